"""More algorithms of collectives, their closed forms, and thousands of ranks in lockstep."""
