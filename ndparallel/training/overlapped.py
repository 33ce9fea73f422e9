"""DDP's step with overlap: the loop that 1d_data_parallel.py writes out, for lessons that put it around
something else. A test holds the two equal."""

from ndparallel.training.replica import Outcome, Replica


def reduce_behind(replica: Replica) -> Outcome:
    """Train a replica, and average each bucket as soon as the backward pass has filled it, behind the rest of
    the backward pass."""
    for microbatches in replica.steps():
        handles = []
        for microbatch in microbatches:
            replica.forward(microbatch)
            gradient = None
            for unit in reversed(replica.units):
                gradient = unit.backward(gradient, microbatch)
                if microbatch == microbatches[-1]:
                    handles += [bucket.all_reduce(async_op=True) for bucket in replica.filled_by(unit)]
        for handle in handles:
            handle.wait()
        replica.optimizer_step()
    return replica.outcome
