"""The lessons' own runs in the planner: what one rank does, recorded, on the clocks of all GPUs."""
