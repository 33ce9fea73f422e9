"""Wrong and slow answers to `zero1`. The docstring of each is in what its reader is told."""

from ndparallel.training.buckets import ShardedOptimizer
from ndparallel.training.replica import Replica


def forgets_to_gather(gpu, job):
    """does everybody have all stepped weights?"""
    replica = Replica(gpu, job, ShardedOptimizer, job.bucket_mb)
    for microbatches in replica.steps():
        for microbatch in microbatches:
            replica.forward(microbatch)
            replica.backward(microbatch)
        for bucket in replica.buckets:
            bucket.reduce_scatter()
        replica.optimizer_step()
    return replica.outcome


def at_the_end(gpu, job):
    """begin each one when its bucket is full"""
    replica = Replica(gpu, job, ShardedOptimizer, job.bucket_mb)
    for microbatches in replica.steps():
        for microbatch in microbatches:
            replica.forward(microbatch)
            replica.backward(microbatch)
        for bucket in replica.buckets:
            bucket.reduce_scatter()
        replica.optimizer_step()
        for bucket in replica.buckets:
            bucket.all_gather()
    return replica.outcome


def waits_for_each(gpu, job):
    """wait for all of them only before the step"""
    replica = Replica(gpu, job, ShardedOptimizer, job.bucket_mb)
    for microbatches in replica.steps():
        for microbatch in microbatches:
            replica.forward(microbatch)
            gradient = None
            for bucket in replica.buckets:
                gradient = bucket.backward(gradient, microbatch)
                bucket.reduce_scatter()
        replica.optimizer_step()
        for bucket in replica.buckets:
            bucket.all_gather()
    return replica.outcome


def all_reduces(gpu, job):
    """Whole gradients come back to everybody"""
    replica = Replica(gpu, job, ShardedOptimizer, job.bucket_mb)
    for microbatches in replica.steps():
        handles = []
        for microbatch in microbatches:
            replica.forward(microbatch)
            gradient = None
            for bucket in replica.buckets:
                gradient = bucket.backward(gradient, microbatch)
                handles.append(bucket.all_reduce(async_op=True))
        for handle in handles:
            handle.wait()
        replica.optimizer_step()
        for bucket in replica.buckets:
            bucket.all_gather()
    return replica.outcome


def keeps_all_moments(gpu, job):
    """The moments of all weights are kept"""
    replica = Replica(gpu, job, bucket_mb=job.bucket_mb)
    for microbatches in replica.steps():
        handles = []
        for microbatch in microbatches:
            replica.forward(microbatch)
            gradient = None
            for bucket in replica.buckets:
                gradient = bucket.backward(gradient, microbatch)
                handles.append(bucket.all_reduce(async_op=True))
        for handle in handles:
            handle.wait()
        replica.optimizer_step()
    return replica.outcome


def gathers_before_the_step(gpu, job):
    """does everybody have all stepped weights?"""
    replica = Replica(gpu, job, ShardedOptimizer, job.bucket_mb)
    for microbatches in replica.steps():
        for microbatch in microbatches:
            replica.forward(microbatch)
            replica.backward(microbatch)
        for bucket in replica.buckets:
            bucket.reduce_scatter()
        for bucket in replica.buckets:
            bucket.all_gather()
        replica.optimizer_step()
    return replica.outcome
