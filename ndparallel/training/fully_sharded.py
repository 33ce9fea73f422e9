"""FSDP that fetches ahead: 1d_data_parallel.py's `fsdp`, where no rank waits before every unit."""

from itertools import pairwise

from gpu import GPU
from ndparallel.training.buckets import FullyShardedUnit, Handles
from ndparallel.training.job import Job
from ndparallel.training.replica import Outcome, Replica


def fsdp_prefetch(gpu: GPU, job: Job, unit_kind: type[FullyShardedUnit] = FullyShardedUnit) -> Outcome:
    """Gather the next unit and reduce the last one while this one computes. Gradients that tp ranks share
    are summed before they are averaged."""
    replica = Replica(gpu, job, unit_kind, job.unit_mb)
    for microbatches in replica.steps():
        for microbatch in microbatches:
            x = replica.tokens[microbatch]
            for unit, following in pairwise([*reversed(replica.buckets), None]):
                unit.gather()
                if following:
                    following.gather(async_op=True)
                x = unit.forward(x, microbatch)
                if job.reshard_after_forward:
                    unit.reshard()
            gradient, on_its_way = None, Handles()  # of nothing yet
            for unit, following in pairwise([*replica.buckets, None]):
                unit.gather()
                if following:
                    following.gather(async_op=True)
                unit.allocate_gradients()
                gradient = unit.backward(gradient, microbatch)
                unit.reshard()
                unit.sum_shared()
                on_its_way.wait()
                on_its_way = unit.reduce_scatter(async_op=True)
            on_its_way.wait()
        replica.optimizer_step()
    return replica.outcome
