"""The planner: how long a training step of a large model takes on a cluster, whether it fits, and what bounds
it."""
