"""Collectives beyond the ring, and how long any of them takes: executed, on clocks in lockstep, by closed form."""
