"""A plan as the flags of a training framework, and a framework's flags as a plan."""
