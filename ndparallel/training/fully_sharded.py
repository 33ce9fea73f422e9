"""FSDP's step with prefetch: the loop that 1d_data_parallel.py writes out, for lessons that put FSDP around
something else. A test holds the two equal."""

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

from ndparallel.training.buckets import Handles
from ndparallel.training.replica import Outcome, Replica


def gather_ahead(replica: Replica) -> Outcome:
    """Train a replica whose buckets are fully sharded units: gather the next one, and reduce the last one,
    while this one computes. Gradients that tp ranks share are summed before they are averaged."""
    for microbatches in replica.steps():
        for microbatch in microbatches:
            x = replica.tokens[microbatch]
            for unit in gathered(reversed(replica.buckets)):
                x = unit.forward(x, microbatch)
                if replica.job.reshard_after_forward:
                    unit.reshard()
            gradient, on_its_way = None, Handles()  # of nothing yet
            for unit in gathered(replica.buckets):
                unit.stage()
                gradient = unit.backward(gradient, microbatch)
                unit.reshard()
                unit.sum_shared()
                on_its_way.wait()
                on_its_way = unit.reduce_scatter(async_op=True)
            on_its_way.wait()
        replica.optimizer_step()
    return replica.outcome


def gathered(units: Iterable[Any]) -> Iterator[Any]:
    """Yield each unit with whole weights, and the next one's on their way."""
    for unit, following in pairwise([*units, None]):
        unit.gather()
        if following:
            following.gather(async_op=True)
        yield unit
