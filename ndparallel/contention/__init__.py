"""A run again, from the journals of its ranks, on a network whose ports are shared."""
