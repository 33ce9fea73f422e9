"""Claims about which units share a bucket, on units of so many bytes."""

from typing import Any

import pytest

from ndparallel.training.buckets import wrap


class Unit:
    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes


@pytest.mark.parametrize(
    ("sizes", "minimum", "runs"),
    [
        ([4] * 7, 9, [[4, 4, 4], [4, 4, 4], [4]]),  # two are a byte too few, each time
        ([4] * 4, 8, [[4, 4], [4, 4]]),
        ([1, 2, 3, 9, 5], 8, [[9, 5], [1, 2, 3]]),  # the last unit's gradients are there first
        ([4, 0, 4], 0, [[4], [0], [4]]),
        ([4, 4], 100, [[4, 4]]),
        ([], 8, [[]]),
    ],
)
def test_a_bucket_takes_units_from_the_last_on_until_it_has_its_bytes(sizes, minimum, runs):
    units: list[Any] = [Unit(size) for size in sizes]
    found = wrap(units, minimum)
    assert [[unit.nbytes for unit in run] for run in found] == runs
    assert [unit for run in reversed(found) for unit in run] == units
