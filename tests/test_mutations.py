"""The list of mutations that change nothing belongs to the code as it is, and functions that are there can be
changed."""

import importlib.util

from tests.mutated_room import can_be_put, put
from tests.mutations import equivalents, mutated, mutations

SUMS = """
import functools

@functools.cache
def cached(a, b=3):
    return (
        a +
        b
    )

class Sum:
    def method(self, a):
        return a + 3

SHORT = lambda a: a + 3

def outer(a):
    def inner(b):
        return a + b
    return inner(3)
"""


def test_every_mutation_that_is_listed_as_none_can_still_be_made():
    listed = equivalents()
    made = {each.key for file in {file for file, *_ in listed} for each in mutations(file)}
    assert listed <= made


def test_functions_that_are_there_get_the_changed_code(tmp_path):
    """Cached ones, methods and lambdas too, and one behind an expression that is put into fewer lines."""
    path = tmp_path / "sums.py"
    path.write_text(SUMS)
    spec = importlib.util.spec_from_file_location("sums", path)
    assert spec and spec.loader
    sums = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sums)
    for mutation in mutations(f"{path}"):
        put(path, SUMS.encode(), mutated(SUMS.encode(), mutation))
        changed = mutation.function > 0
        assert (results(sums) != [5, 5, 5, 5]) == changed
        put(path, mutated(SUMS.encode(), mutation), SUMS.encode())
        assert results(sums) == [5, 5, 5, 5]


def test_code_that_closes_over_other_variables_is_not_put_into_functions_that_are_there(tmp_path):
    """Their closures would not fit: without its call of super() a method needs no __class__."""
    source = b"class A(B):\n    def __init__(self, a):\n        super().__init__(a + 3)\n"
    (path := tmp_path / "sums.py").write_bytes(source)
    fits = {each.after: can_be_put(path, source, mutated(source, each)) for each in mutations(f"{path}")}
    assert fits == {"pass": False, "a - 3": True, "a": True, "4": True}


def results(sums) -> list:
    sums.cached.cache_clear()
    return [sums.cached(2), sums.Sum().method(2), sums.SHORT(2), sums.outer(2)]
