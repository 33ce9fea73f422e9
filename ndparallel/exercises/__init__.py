"""Exercises: the reader writes the parallelism, and the simulator grades it."""
