"""The checker of README.md and docs/, whose every number is made by a command, and their pictures."""
