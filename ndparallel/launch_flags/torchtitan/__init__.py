"""torchtitan: a plan as its recipe, what of a plan it cannot run, and its settings as a plan."""
