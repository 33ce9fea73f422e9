"""The words of the code: one name is one thing, and a docstring begins with its subject or its verb."""

import ast
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef


@cache
def trees() -> dict[Path, ast.Module]:
    """The lessons, gpu.py, collectives.py and the package."""
    files = [*ROOT.glob("*.py"), *(ROOT / "ndparallel").rglob("*.py")]
    return {path.relative_to(ROOT): ast.parse(path.read_text("utf-8")) for path in files}


def nodes() -> Iterator[tuple[Path, ast.AST]]:
    return ((path, node) for path, tree in trees().items() for node in ast.walk(tree))


def test_no_class_name_is_defined_twice():
    names = Counter(node.name for _, node in nodes() if isinstance(node, ast.ClassDef))
    assert len(names) > 100
    assert [name for name, count in names.items() if count > 1] == []


def test_docstrings_begin_with_a_verb_or_their_subject():
    docstrings = [(path, ast.get_docstring(node)) for path, node in nodes() if isinstance(node, DOCUMENTED)]
    assert sum(bool(text) for _, text in docstrings) > 1000
    others = ("Of ", "Raises ", "With ", "Without ", "Before ")
    assert [(path, text) for path, text in docstrings if text and text.startswith(others)] == []


def test_no_line_of_help_begins_with_a_preposition():
    helps = [
        (path, ast.unparse(node.value).lstrip("f\"'"))
        for path, node in nodes()
        if isinstance(node, ast.keyword) and node.arg == "help"
    ]
    assert len(helps) > 150
    prepositions = ("of ", "that ", "from ", "to ", "with ", "between ", "in ", "on ", "for ", "(default")
    assert [(path, words) for path, words in helps if words.startswith(prepositions)] == []
