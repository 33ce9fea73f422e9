"""Run the Python of the project's documents.

Idea   A ```python block with a ```text block right below it is a whole program and what it prints.
Limit  It runs in this process, as its own `__main__`.
"""

import contextlib
import io
import re
from functools import cache

PROGRAM = re.compile(r"```python\n(?P<code>(?:(?!```).*\n)+)```\n```text\n(?P<output>(?s:.*?))```")


def new_program(found: re.Match) -> str:
    """Return a program with what it prints now."""
    return f"```python\n{found['code']}```\n```text\n{printed_by(found['code'])}```"


@cache
def printed_by(code: str) -> str:
    """Run a program, and return what it prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "a program of the book", "exec"), {"__name__": "__main__"})
    return printed.getvalue()
