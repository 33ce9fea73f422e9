"""The program that a launcher starts: its command, its files, and what its arguments ask for."""
