"""Wrong and slow answers to `ddp`. The docstring of each is in what its reader is told."""

from collectives import all_reduce
from ndparallel.training.replica import Replica


def trains_four_models(gpu, job):
    """so not all parts are in it"""
    replica = Replica(gpu, job)
    for microbatches in replica.steps():
        for microbatch in microbatches:
            replica.forward(microbatch)
            replica.backward(microbatch)
        replica.optimizer_step()
    return replica.outcome


def averages_one_bucket(gpu, job):
    """With 3 GPUs, 3 microbatches and 2 layers: GPU 0, gradient of"""
    replica = Replica(gpu, job, bucket_mb=job.bucket_mb)
    for microbatches in replica.steps():
        for microbatch in microbatches:
            replica.forward(microbatch)
            replica.backward(microbatch)
        replica.buckets[0].all_reduce()
        replica.optimizer_step()
    return replica.outcome


def averages_too_early(gpu, job):
    """GPU 0, gradient of"""
    replica = Replica(gpu, job)
    for microbatches in replica.steps():
        for bucket in replica.buckets:
            bucket.all_reduce()
        for microbatch in microbatches:
            replica.forward(microbatch)
            replica.backward(microbatch)
        replica.optimizer_step()
    return replica.outcome


def averages_too_late(gpu, job):
    """reduced before it was full or after the optimizer's step"""
    replica = Replica(gpu, job)
    for microbatches in replica.steps():
        for microbatch in microbatches:
            replica.forward(microbatch)
            replica.backward(microbatch)
        replica.optimizer_step()
        for bucket in replica.buckets:
            bucket.all_reduce()
    return replica.outcome


def averages_every_microbatch(gpu, job):
    """Every gradient is averaged 4 times a step"""
    replica = Replica(gpu, job)
    for microbatches in replica.steps():
        for microbatch in microbatches:
            replica.forward(microbatch)
            replica.backward(microbatch)
            for bucket in replica.buckets:
                bucket.all_reduce()
        replica.optimizer_step()
    return replica.outcome


def sums(gpu, job):
    """It is 4 times the right one: the sum over 4 GPUs where their mean is wanted"""
    replica = Replica(gpu, job)
    for microbatches in replica.steps():
        for microbatch in microbatches:
            replica.forward(microbatch)
            replica.backward(microbatch)
        for bucket in replica.buckets:
            all_reduce(gpu, bucket.gradients, bucket.group)
        replica.optimizer_step()
    return replica.outcome


def through_one_gpu(gpu, job):
    """One GPU sends more than the others, who wait for it: a ring keeps all links busy."""
    replica = Replica(gpu, job)
    for microbatches in replica.steps():
        for microbatch in microbatches:
            replica.forward(microbatch)
            replica.backward(microbatch)
        for bucket in replica.buckets:
            bucket.all_reduce(algorithm="naive")
        replica.optimizer_step()
    return replica.outcome


def through_one_gpu_every_microbatch(gpu, job):
    """And average once a step, not after every microbatch."""
    replica = Replica(gpu, job)
    for microbatches in replica.steps():
        for microbatch in microbatches:
            replica.forward(microbatch)
            replica.backward(microbatch)
            for bucket in replica.buckets:
                bucket.all_reduce(algorithm="naive")
        replica.optimizer_step()
    return replica.outcome


def through_one_gpu_twice(gpu, job):
    """And average once a step, not after every microbatch."""
    replica = Replica(gpu, job)
    for microbatches in replica.steps():
        for microbatch in microbatches:
            replica.forward(microbatch)
            replica.backward(microbatch)
        for bucket in [*replica.buckets, *replica.buckets]:
            bucket.all_reduce(algorithm="naive")
        replica.optimizer_step()
    return replica.outcome


def averages_twice(gpu, job):
    """Every gradient is averaged 2 times a step"""
    replica = Replica(gpu, job)
    for microbatches in replica.steps():
        for microbatch in microbatches:
            replica.forward(microbatch)
            replica.backward(microbatch)
        for bucket in [*replica.buckets, *replica.buckets]:
            bucket.all_reduce()
        replica.optimizer_step()
    return replica.outcome


def steps_twice(gpu, job):
    """of a step away from one GPU's, and its gradients are right"""
    replica = Replica(gpu, job)
    for microbatches in replica.steps():
        for microbatch in microbatches:
            replica.forward(microbatch)
            replica.backward(microbatch)
        for bucket in replica.buckets:
            bucket.all_reduce()
        replica.optimizer_step()
        replica.optimizer_step()
    return replica.outcome


def averages_on_some_gpus_alone(gpu, job):
    """called in ddp.py:"""
    replica = Replica(gpu, job)
    for microbatches in replica.steps():
        for microbatch in microbatches:
            replica.forward(microbatch)
            replica.backward(microbatch)
        if gpu.rank:
            for bucket in replica.buckets:
                bucket.all_reduce()
        replica.optimizer_step()
    return replica.outcome


def averages_the_list(gpu, job):
    """'list' object has no attribute 'all_reduce'; its elements have one: go through them in a loop"""
    replica = Replica(gpu, job, bucket_mb=job.bucket_mb)
    replica.buckets.all_reduce()  # type: ignore[attr-defined]
