"""Wrong and slow answers to `fsdp`. The docstring of each is in what its reader is told."""

from ndparallel.training.buckets import FullyShardedUnit
from ndparallel.training.replica import Replica


def never_forgets_after_forward(gpu, job):
    """Something is whole for longer than it is used"""
    replica = Replica(gpu, job, FullyShardedUnit, job.unit_mb)
    for microbatches in replica.steps():
        for microbatch in microbatches:
            x = replica.tokens[microbatch]
            for unit in reversed(replica.buckets):
                unit.gather()
                x = unit.forward(x, microbatch)
            gradient = None
            for unit in replica.buckets:
                unit.allocate_gradients()
                gradient = unit.backward(gradient, microbatch)
                unit.reshard()
                unit.reduce_scatter()
        replica.optimizer_step()
    return replica.outcome


def forgets_to_gather_again(gpu, job):
    """gather() makes the weights whole before each pass, and reshard() frees them (line"""
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
                unit.allocate_gradients()
                gradient = unit.backward(gradient, microbatch)
                unit.reduce_scatter()
        replica.optimizer_step()
    return replica.outcome


def makes_no_room(gpu, job):
    """allocate_gradients() comes before the backward pass (line"""
    replica = Replica(gpu, job, FullyShardedUnit, job.unit_mb)
    for microbatches in replica.steps():
        for microbatch in microbatches:
            x = replica.tokens[microbatch]
            for unit in reversed(replica.buckets):
                unit.gather()
                x = unit.forward(x, microbatch)
            gradient = None
            for unit in replica.buckets:
                gradient = unit.backward(gradient, microbatch)
                unit.reduce_scatter()
        replica.optimizer_step()
    return replica.outcome


def never_reduces(gpu, job):
    """It is zero"""
    replica = Replica(gpu, job, FullyShardedUnit, job.unit_mb)
    for microbatches in replica.steps():
        for microbatch in microbatches:
            x = replica.tokens[microbatch]
            for unit in reversed(replica.buckets):
                unit.gather()
                x = unit.forward(x, microbatch)
            gradient = None
            for unit in replica.buckets:
                unit.allocate_gradients()
                gradient = unit.backward(gradient, microbatch)
                unit.reshard()
        replica.optimizer_step()
    return replica.outcome


def begins_to_gather_and_never_waits(gpu, job):
    """gather() makes the weights whole before each pass"""
    replica = Replica(gpu, job, FullyShardedUnit, job.unit_mb)
    for microbatches in replica.steps():
        for microbatch in microbatches:
            x = replica.tokens[microbatch]
            for unit in reversed(replica.buckets):
                unit.gather(async_op=True)
                x = unit.forward(x, microbatch)
        replica.optimizer_step()
    return replica.outcome


def goes_round_the_units_that_were_freed(gpu, job):
    """is not a number. Freed memory holds none"""
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
                unit.allocate_gradients()
                for inner in reversed(unit.units):
                    gradient = inner.backward(gradient, microbatch)
                unit.reduce_scatter()
        replica.optimizer_step()
    return replica.outcome


def reshards_twice(gpu, job):
    """GPU 0 frees 32.8 kB of buffers, and holds 0 B: is something freed twice? (line"""
    replica = Replica(gpu, job, FullyShardedUnit, job.unit_mb)
    for microbatches in replica.steps():
        for microbatch in microbatches:
            x = replica.tokens[microbatch]
            for unit in reversed(replica.buckets):
                unit.gather()
                x = unit.forward(x, microbatch)
                unit.reshard()
                unit.reshard()
    return replica.outcome


def reduces_twice(gpu, job):
    """reduce_scatter() reduces what a backward pass has left, once"""
    replica = Replica(gpu, job, FullyShardedUnit, job.unit_mb)
    for microbatches in replica.steps():
        for microbatch in microbatches:
            x = replica.tokens[microbatch]
            for unit in reversed(replica.buckets):
                unit.gather()
                x = unit.forward(x, microbatch)
            unit = replica.buckets[0]
            unit.allocate_gradients()
            unit.backward(None, microbatch)
            unit.reduce_scatter()
            unit.reduce_scatter()
    return replica.outcome


def passes_of_the_replica(gpu, job):
    """'table' of embedding has no array on this GPU"""
    replica = Replica(gpu, job, FullyShardedUnit, job.unit_mb)
    for microbatches in replica.steps():
        replica.forward(microbatches[0])


def begins_with_the_head(gpu, job):
    """forward of head takes what the unit before it returns: run the units from the first to the last"""
    replica = Replica(gpu, job, FullyShardedUnit, job.unit_mb)
    for microbatches in replica.steps():
        replica.buckets[0].gather()
        replica.buckets[0].forward(replica.tokens[0], microbatches[0])
