"""Wrong and slow answers to `leave_early`. The docstring of each is in what its reader is told."""

from ndparallel.training.replica import Replica


def begins_at_the_end(gpu, job):
    """Right, with 2.59 times the model solution's exposed time"""
    replica = Replica(gpu, job, bucket_mb=job.bucket_mb)
    for microbatches in replica.steps():
        for microbatch in microbatches:
            replica.forward(microbatch)
            replica.backward(microbatch)
        for handle in [bucket.all_reduce(async_op=True) for bucket in replica.buckets]:
            handle.wait()
        replica.optimizer_step()
    return replica.outcome


def waits_at_once(gpu, job):
    """a bucket can leave as soon as the unit that fills it is done"""
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


def never_waits(gpu, job):
    """GPU 0 never waited for its all_reduce (ring), collective 0 of group 'dp', nor for 3 more"""
    replica = Replica(gpu, job, bucket_mb=job.bucket_mb)
    for microbatches in replica.steps():
        for microbatch in microbatches:
            replica.forward(microbatch)
            gradient = None
            for unit in reversed(replica.units):
                gradient = unit.backward(gradient, microbatch)
                for bucket in replica.filled_by(unit):
                    bucket.all_reduce(async_op=True)
        replica.optimizer_step()
    return replica.outcome


def averages_before_the_backward_pass(gpu, job):
    """or before the backward pass had filled it"""
    replica = Replica(gpu, job, bucket_mb=job.bucket_mb)
    for microbatches in replica.steps():
        for microbatch in microbatches:
            replica.forward(microbatch)
            handles = [bucket.all_reduce(async_op=True) for bucket in replica.buckets]
            replica.backward(microbatch)
        for handle in handles:
            handle.wait()
        replica.optimizer_step()
    return replica.outcome


def returns_nothing(gpu, job):
    """end with `return replica.outcome`"""
    begins_at_the_end(gpu, job)


def forgets_the_optimizer(gpu, job):
    """never stepped its optimizer"""
    replica = Replica(gpu, job)
    for microbatches in replica.steps():
        for microbatch in microbatches:
            replica.forward(microbatch)
            replica.backward(microbatch)
    return replica.outcome


def units_from_the_first_to_the_last(gpu, job):
    """Only the last unit begins with None: run the units from the last to the first"""
    replica = Replica(gpu, job, bucket_mb=job.bucket_mb)
    for microbatches in replica.steps():
        for microbatch in microbatches:
            replica.forward(microbatch)
            gradient = None
            for unit in replica.units:
                gradient = unit.backward(gradient, microbatch)
        replica.optimizer_step()
    return replica.outcome


def of_ten_units(gpu, job):
    """With 3 GPUs, 1 microbatch and 2 layers: IndexError"""
    replica = Replica(gpu, job, bucket_mb=job.bucket_mb)
    for microbatches in replica.steps():
        for microbatch in microbatches:
            replica.forward(microbatch)
            gradient, handles = None, []
            for number in range(9, -1, -1):
                unit = replica.units[number]
                gradient = unit.backward(gradient, microbatch)
                handles += [bucket.all_reduce(async_op=True) for bucket in replica.filled_by(unit)]
            for handle in handles:
                handle.wait()
        replica.optimizer_step()
    return replica.outcome
