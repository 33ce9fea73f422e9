"""The mesh, the operators of each axis (tensor, context, expert), and what divides what."""
