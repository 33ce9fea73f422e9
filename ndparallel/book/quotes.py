"""Quote functions of the project's files in its documents.

Idea   A comment names a file and functions of it; the ```python block below it is their code, without
       docstrings, so that prose and code cannot part:

           <!-- code: 1d_data_parallel.py ddp GatheredUnit.gather -->
Limit  Whole functions, methods and classes. What is too long to quote is too long to read.
"""

import ast
import re
import textwrap
from functools import cache

from ndparallel.base.errors import UserError
from ndparallel.lessons.registry import ROOT

CODE = re.compile(r"<!-- code: (?P<file>\S+) (?P<names>.+?) -->\n```python\n(?s:.*?)```")
Definition = ast.FunctionDef | ast.ClassDef


def new_code(found: re.Match) -> str:
    """Return a quotation as the file has it now."""
    quoted = "\n".join(quote(found["file"], name) for name in found["names"].split())
    return f"<!-- code: {found['file']} {found['names']} -->\n```python\n{quoted}```"


@cache
def quote(file: str, name: str) -> str:
    """Return the lines of a definition without its docstring. Raises UserError where the file has none of
    this name, which is "function" or "Class.method"."""
    text = (ROOT / file).read_text("utf-8")
    node = find(ast.parse(text), name)
    if node is None:
        raise UserError(f"{file} defines no {name!r} that could be quoted.")
    lines = text.splitlines(keepends=True)
    head = slice(node.lineno - 1, node.body[0].lineno - 1)
    body = node.body[1:] if ast.get_docstring(node) else node.body
    return textwrap.dedent("".join(lines[head] + lines[body[0].lineno - 1 : node.end_lineno]))


def find(tree: ast.AST, name: str) -> Definition | None:
    for part in name.split("."):
        named = [node for node in getattr(tree, "body", []) if getattr(node, "name", None) == part]
        if not named:
            return None
        tree = named[0]
    return tree if isinstance(tree, Definition) else None
