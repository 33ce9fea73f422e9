"""Wrong and slow answers to `talk_once`. The docstring of each is in what its reader is told."""

from ndparallel.training.replica import Replica


def after_every_microbatch(gpu, job):
    """Every gradient travels 4 times"""
    replica = Replica(gpu, job, bucket_mb=job.bucket_mb)
    for microbatches in replica.steps():
        for microbatch in microbatches:
            replica.forward(microbatch)
            gradient = None
            for unit in reversed(replica.units):
                gradient = unit.backward(gradient, microbatch)
                for bucket in replica.filled_by(unit):
                    bucket.all_reduce()
        replica.optimizer_step()
    return replica.outcome


def all_buckets_after_every_unit(gpu, job):
    """Every gradient travels 10 times: a bucket is full after the last microbatch only, and leaves once."""
    replica = Replica(gpu, job, bucket_mb=job.bucket_mb)
    for microbatches in replica.steps():
        for microbatch in microbatches:
            replica.forward(microbatch)
            gradient, handles = None, []
            for unit in reversed(replica.units):
                gradient = unit.backward(gradient, microbatch)
                if microbatch == microbatches[-1]:
                    handles += [bucket.all_reduce(async_op=True) for bucket in replica.buckets]
            for handle in handles:
                handle.wait()
        replica.optimizer_step()
    return replica.outcome


def at_the_end(gpu, job):
    """Nothing computes while you talk"""
    replica = Replica(gpu, job, bucket_mb=job.bucket_mb)
    for microbatches in replica.steps():
        for microbatch in microbatches:
            replica.forward(microbatch)
            replica.backward(microbatch)
        for bucket in replica.buckets:
            bucket.all_reduce()
        replica.optimizer_step()
    return replica.outcome


def only_the_first_microbatch_travels(gpu, job):
    """so not all parts are in it"""
    replica = Replica(gpu, job, bucket_mb=job.bucket_mb)
    for microbatches in replica.steps():
        for microbatch in microbatches:
            replica.forward(microbatch)
            gradient = None
            for unit in reversed(replica.units):
                gradient = unit.backward(gradient, microbatch)
                if microbatch == 0:
                    for bucket in replica.filled_by(unit):
                        bucket.all_reduce()
        replica.optimizer_step()
    return replica.outcome


def waits_for_each(gpu, job):
    """and wait for all of them after it"""
    replica = Replica(gpu, job, bucket_mb=job.bucket_mb)
    for microbatches in replica.steps():
        for microbatch in microbatches:
            replica.forward(microbatch)
            gradient = None
            for unit in reversed(replica.units):
                gradient = unit.backward(gradient, microbatch)
                if microbatch == microbatches[-1]:
                    for bucket in replica.filled_by(unit):
                        bucket.all_reduce()
        replica.optimizer_step()
    return replica.outcome


def only_the_fourth_microbatch_travels(gpu, job):
    """With 3 GPUs, 3 microbatches and 2 layers: GPU 0, gradient of"""
    replica = Replica(gpu, job, bucket_mb=job.bucket_mb)
    for microbatches in replica.steps():
        for microbatch in microbatches:
            replica.forward(microbatch)
            gradient, handles = None, []
            for unit in reversed(replica.units):
                gradient = unit.backward(gradient, microbatch)
                if microbatch == 3:
                    handles += [bucket.all_reduce(async_op=True) for bucket in replica.filled_by(unit)]
            for handle in handles:
                handle.wait()
        replica.optimizer_step()
    return replica.outcome
