"""What Python's modules have on one system and not on another, by typeshed, which mypy brings."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import mypy

STUBS = Path(mypy.__file__).parent / "typeshed/stdlib"
NEWEST = (3, 14)


@cache
def lacking(module: str, platform: str) -> frozenset[str]:
    """The names that a module has on Linux, and not on this platform."""
    stub = next(file for file in (STUBS / f"{module}.pyi", STUBS / module / "__init__.pyi") if file.exists())
    body = ast.parse(stub.read_text("utf-8")).body
    return frozenset(names(body, "linux")) - frozenset(names(body, platform))


def names(body: list[ast.stmt], platform: str) -> Iterator[str]:
    system = {"sys": SimpleNamespace(platform=platform, version_info=NEWEST)}
    for node in body:
        match node:
            case ast.If():
                holds = eval(compile(ast.Expression(node.test), "", "eval"), system)
                yield from names(node.body if holds else node.orelse, platform)
            case ast.AnnAssign(target=ast.Name(name)) | ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.ImportFrom():
                yield from (alias.asname or alias.name for alias in node.names)


@cache
def used(file: Path, modules: tuple[str, ...]) -> frozenset[tuple[str, str]]:
    """The modules' attributes that a file names: (os, fork)."""
    attributes = (
        node for node in ast.walk(ast.parse(file.read_text("utf-8"))) if isinstance(node, ast.Attribute)
    )
    return frozenset(
        (each.value.id, each.attr)
        for each in attributes
        if isinstance(each.value, ast.Name) and each.value.id in modules
    )
