"""One module a command: its docstring is its help, `add_arguments(parser)` its options, `run(arguments)` its
work."""
