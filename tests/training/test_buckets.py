"""Claims about which units share a bucket, on units of so many bytes; and about weights that were freed."""

from typing import Any

import numpy as np
import pytest

from gpu import GPU
from ndparallel.base.errors import UserError
from ndparallel.engines.launch import launch
from ndparallel.hardware.pocket import POCKET
from ndparallel.parallel.mesh import Mesh
from ndparallel.training.buckets import FullyShardedUnit, wrap
from ndparallel.training.job import Job
from ndparallel.training.replica import Replica


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


def test_weights_that_were_freed_are_nan_and_no_pass_runs_on_them():
    """Nor on weights whose gathering has only begun."""

    def program(gpu: GPU) -> None:
        replica = Replica(gpu, Job(mesh=Mesh(dp=2)), FullyShardedUnit)
        head = replica.buckets[0]
        assert isinstance(head, FullyShardedUnit)
        head.gather(async_op=True)
        for begun in (True, False):
            with pytest.raises(UserError, match=r"gather\(\) makes the weights whole before each pass"):
                head.backward(None, 0)
            if begun:
                head.gather()
                assert np.isfinite(head.weights).all()
                head.reshard()
        assert np.isnan(head.weights).all() and np.isfinite(head.weight_shard).all()

    launch(program, 2, POCKET, engine="inline")
