"""Wrong and slow answers to `accumulate`. The docstring of each is in what its reader is told."""

from ndparallel.training.replica import Replica


def all_forwards_first(gpu, job):
    """Activations of several parts are kept at once"""
    replica = Replica(gpu, job)
    for microbatches in replica.steps():
        for microbatch in microbatches:
            replica.forward(microbatch)
        for microbatch in microbatches:
            replica.backward(microbatch)
        replica.optimizer_step()
    return replica.outcome


def steps_after_every_part(gpu, job):
    """let it step once, after the last part's backward pass"""
    replica = Replica(gpu, job)
    for microbatches in replica.steps():
        for microbatch in microbatches:
            replica.forward(microbatch)
            replica.backward(microbatch)
            replica.optimizer_step()
    return replica.outcome


def only_the_first_part(gpu, job):
    """Not every part's gradient is in it"""
    replica = Replica(gpu, job)
    for _ in replica.steps():
        replica.forward(0)
        replica.backward(0)
        replica.optimizer_step()
    return replica.outcome


def backward_of_the_wrong_part(gpu, job):
    """backward of head: microbatch 0 has no forward yet, or its backward is done"""
    replica = Replica(gpu, job)
    for microbatches in replica.steps():
        for microbatch in microbatches:
            replica.forward(microbatch)
            replica.backward(0)
        replica.optimizer_step()
    return replica.outcome


def backward_before_forward(gpu, job):
    """backward of head: microbatch 0 has no forward yet"""
    replica = Replica(gpu, job)
    for microbatches in replica.steps():
        for microbatch in microbatches:
            replica.backward(microbatch)
            replica.forward(microbatch)
        replica.optimizer_step()
    return replica.outcome


def four_parts(gpu, job):
    """With 3 microbatches and 2 layers:"""
    replica = Replica(gpu, job)
    for _ in replica.steps():
        for microbatch in range(4):
            replica.forward(microbatch)
            replica.backward(microbatch)
        replica.optimizer_step()
    return replica.outcome


def takes_all_at_once(gpu, job):
    """there is no microbatch range(0, 4): those of this step are 0 to 3"""
    replica = Replica(gpu, job)
    for microbatches in replica.steps():
        replica.forward(microbatches)  # type: ignore[arg-type]


def draws_no_batch(gpu, job):
    """no batch is drawn yet: replica.steps() draws one for each step"""
    Replica(gpu, job).forward(0)
