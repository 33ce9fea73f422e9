"""Cases of a test with several parametrizations, in which any two of their values meet.

Idea   What breaks at all mostly breaks where two values meet, and far fewer cases have all of these pairs
       than a product has cases: of 6 meshes, 6 schedules and 4 stages of ZeRO 36 in place of 144.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Any

import pytest


def dropped(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """The cases whose pairs other cases of the same tests have."""
    by_test: dict[str, list[tuple[pytest.Item, frozenset]]] = defaultdict(list)
    for item in items:
        by_test[item.nodeid.partition("[")[0]].append((item, pairs_of(item)))
    return [item for cases in by_test.values() for item in without_new_pairs(cases)]


def pairs_of(item: pytest.Item) -> frozenset:
    """Any two of the case's values; one parametrization gives one value, also of several names."""
    params: dict[str, Any] = {**item.callspec.params} if hasattr(item, "callspec") else {}
    values: list[tuple[tuple[str, str], ...]] = []
    for mark in item.iter_markers("parametrize"):
        names = mark.args[0].split(",") if isinstance(mark.args[0], str) else mark.args[0]
        values.append(tuple((name.strip(), repr(params.pop(name.strip()))) for name in names))
    values += [((name, repr(value)),) for name, value in params.items()]  # of fixtures
    return frozenset(combinations(values, 2))


def without_new_pairs(cases: Sequence[tuple[pytest.Item, frozenset]]) -> list[pytest.Item]:
    """The cases that are left when each time the one with the most new pairs is taken. A test of one or two
    parametrizations keeps all its cases."""
    left, others = frozenset().union(*(pairs for _, pairs in cases)), list(cases)
    while left:
        best = max(others, key=lambda case: len(case[1] & left))
        others.remove(best)
        left -= best[1]
    return [item for item, pairs in others if len(pairs) > 1]
