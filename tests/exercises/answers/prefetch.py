"""Wrong and slow answers to `prefetch`. The docstring of each is in what its reader is told."""

from itertools import pairwise

from ndparallel.training.buckets import FullyShardedUnit
from ndparallel.training.replica import Replica


def fetches_everything_first(gpu, job):
    """More than two units are whole at once"""
    replica = Replica(gpu, job, FullyShardedUnit, job.unit_mb)
    for microbatches in replica.steps():
        for microbatch in microbatches:
            x = replica.tokens[microbatch]
            for unit in reversed(replica.buckets):
                unit.gather(async_op=True)
            for unit in reversed(replica.buckets):
                unit.gather()
                x = unit.forward(x, microbatch)
            gradient, handles = None, []
            for unit in replica.buckets:
                unit.allocate_gradients()
                gradient = unit.backward(gradient, microbatch)
                unit.reshard()
                handles.append(unit.reduce_scatter(async_op=True))
            for handle in handles:
                handle.wait()
        replica.optimizer_step()
    return replica.outcome


def only_forward(gpu, job):
    """is the backward pass fetching ahead too"""
    replica = Replica(gpu, job, FullyShardedUnit, job.unit_mb)
    for microbatches in replica.steps():
        for microbatch in microbatches:
            x = replica.tokens[microbatch]
            for unit, following in pairwise([*reversed(replica.buckets), None]):
                unit.gather()
                if following:
                    following.gather(async_op=True)
                x = unit.forward(x, microbatch)
                unit.reshard()
            gradient = None
            for unit in replica.buckets:
                unit.gather()
                unit.allocate_gradients()
                gradient = unit.backward(gradient, microbatch)
                unit.reshard()
                unit.reduce_scatter()
        replica.optimizer_step()
    return replica.outcome


def never_waits_for_a_reduction(gpu, job):
    """or its handle was not waited for"""
    replica = Replica(gpu, job, FullyShardedUnit, job.unit_mb)
    for microbatches in replica.steps():
        for microbatch in microbatches:
            x = replica.tokens[microbatch]
            for unit in reversed(replica.buckets):
                unit.gather()
                x = unit.forward(x, microbatch)
                unit.reshard()
            gradient = None
            for unit in replica.buckets:
                unit.gather()
                unit.allocate_gradients()
                gradient = unit.backward(gradient, microbatch)
                unit.reshard()
                unit.reduce_scatter(async_op=True)
        replica.optimizer_step()
    return replica.outcome
