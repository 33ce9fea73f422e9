"""`python -m ndparallel COMMAND ...`, which is `ndparallel COMMAND ...`."""

import sys

from ndparallel.commands.command_line import main

if __name__ == "__main__":
    sys.exit(main())
