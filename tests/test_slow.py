"""tests/slow.txt names tests that are there (one with a new name would pass for a quick one), and what is
left of a slow test's cases has all pairs."""

from itertools import combinations, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.pairs import dropped

HERE = Path(__file__).parent


def test_every_line_of_slow_txt_names_a_test():
    named = [line.split("::") for line in (HERE / "slow.txt").read_text("utf-8").splitlines()]
    assert len(named) > 200
    gone = [name for file, name in named if f"def {name}(" not in (HERE.parent / file).read_text("utf-8")]
    assert gone == [], "give these lines of slow.txt their tests' new names, or delete them"


def case(**values: str) -> Any:
    marks = [pytest.mark.parametrize(name, [value]).mark for name, value in values.items()]
    return SimpleNamespace(
        nodeid=f"test[{values}]", callspec=SimpleNamespace(params=values), iter_markers=lambda name: marks
    )


@pytest.mark.parametrize(("sizes", "left"), [((6, 6, 4), 36), ((5,), 5), ((5, 4), 20), ((2, 2, 2, 2), 6)])
def test_any_two_values_meet_in_the_cases_that_are_left(sizes, left):
    """36 is the fewest that can be; of four times two values 5 would do. Of one or two parametrizations all
    are left."""
    cases = [case(**dict(zip("abcd", map(str, one)))) for one in product(*map(range, sizes))]
    kept = [each.callspec.params for each in cases if each not in dropped(cases)]
    assert len(kept) == left
    for one, other in combinations("abcd"[: len(sizes)], 2):
        met = {(each[one], each[other]) for each in kept}
        assert len(met) == sizes["abcd".index(one)] * sizes["abcd".index(other)]
