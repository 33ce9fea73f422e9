"""Choosing among plans: search, advice, scaling, what-if."""
