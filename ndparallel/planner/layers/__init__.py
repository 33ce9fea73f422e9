"""A layer of a real model: its operations, their seconds, and what it keeps for the backward pass."""
