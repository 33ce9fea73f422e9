"""DeepSpeed: a plan as its configuration and script, and its jobs as a plan."""
