"""Megatron-Core: a plan as its flags, what of a plan it cannot run, and its flags as a plan."""
