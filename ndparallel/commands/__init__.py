"""A module for each command, or a folder: its docstring is its help, `add_arguments(parser)` its options,
`run(arguments)` its work."""
