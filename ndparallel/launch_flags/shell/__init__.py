"""A launch script in the shell's language: its words as the shell would pass them, without running it."""
