"""How communication hides behind compute: one function for each pattern, the lessons' loops on the planner's
streams.

Idea   1d_data_parallel.py executes these loops with real numbers; here the same order is only timed, from
       prices and the collectives' seconds. tests/ladder/test_rung3_scale.py holds the two together.
Cost   a few microseconds for every unit; units and microbatches that are alike are timed until they are in
       their stride.

Glossary
    unit      embedding, layer or head: its lists of the forward and the backward pass
    bucket    a run of units whose gradients, or weights, travel together; a list of buckets has the model's
              last first
    reduce    collectives that sum its gradients: whole, or to their owners
    gather    collectives that make its weights whole again
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from ndparallel.planner.layers.operations import CollectiveOp
from ndparallel.planner.step.streams import Item, StreamClock


@dataclass(frozen=True)
class UnitCost:
    """What a rank does for one microbatch."""

    forward: Sequence[Item]
    backward: Sequence[Item]
    weights: Sequence[Item] = ()  # of the backward pass what a schedule may put off


@dataclass(frozen=True)
class BucketCost:
    """`whole_bytes` are those of its weights when gathered, and of its gradients until they are reduced."""

    units: Sequence[UnitCost]
    reduce: Sequence[CollectiveOp]
    gather: Sequence[CollectiveOp] = ()
    shared: Sequence[CollectiveOp] = ()  # over tp, before the gradients are reduced
    whole_bytes: tuple[float, float] = (0, 0)
    added: Sequence[Item] = ()  # what adds reduced gradients to those of microbatches before

    def forward(self, streams: StreamClock) -> None:
        streams.phase = "forward"
        for unit in self.units:
            streams.run(unit.forward)

    def backward(self, streams: StreamClock) -> None:
        streams.phase = "backward"
        for unit in reversed(self.units):
            streams.run(unit.backward)

    def weights(self, streams: StreamClock) -> None:
        """The part of the backward pass that makes the weights' gradients."""
        streams.phase = "backward"
        for unit in reversed(self.units):
            streams.run(unit.weights)


def forward(streams: StreamClock, buckets: Sequence[BucketCost]) -> None:
    for bucket in in_turn(streams, reversed(buckets)):
        bucket.forward(streams)


def backward(streams: StreamClock, buckets: Sequence[BucketCost]) -> None:
    for bucket in in_turn(streams, buckets):
        bucket.backward(streams)


def in_turn(streams: StreamClock, buckets: Iterable[BucketCost]) -> Iterator[BucketCost]:
    """The buckets of a pass beside nothing; of a run of equal ones as few as tell how long it takes."""
    for _, run in groupby(buckets, key=id):
        bucket, *others = run
        for _ in streams.repeats(1 + len(others)):
            yield bucket


def neighbours(
    streams: StreamClock, buckets: Iterable[BucketCost]
) -> Iterator[tuple[BucketCost | None, BucketCost, BucketCost | None]]:
    """Each bucket with the ones before and behind it; of a run of equal threes as few as tell how long it
    takes."""
    ordered: list[Any] = [None, *buckets, None]
    names, place = [id(bucket) for bucket in ordered], 0
    for _, run in groupby(zip(names, names[1:], names[2:])):
        before, bucket, following = ordered[place : place + 3]
        times = sum(1 for _ in run)
        for _ in streams.repeats(times):
            yield before, bucket, following
        place += times


def replicated(
    streams: StreamClock,
    buckets: Sequence[BucketCost],
    microbatches: int,
    overlap: bool,
    gathers_first: bool = False,
) -> None:
    """DDP and ZeRO-1: gradients travel once a step. With `gathers_first` the weights that others have stepped
    come beside the first forward pass."""
    (arriving_forward if gathers_first else forward)(streams, buckets)
    if microbatches > 1:
        backward(streams, buckets)
        for _ in streams.repeats(microbatches - 2):
            forward(streams, buckets)
            backward(streams, buckets)
        forward(streams, buckets)
    reduce_behind(streams, buckets, overlap)


def arriving_forward(streams: StreamClock, buckets: Sequence[BucketCost]) -> None:
    """A forward pass beside which the weights come, in the order of their use."""
    begin_gathers(streams, buckets)
    for bucket in reversed(buckets):
        finish(streams, bucket.gather)
        bucket.forward(streams)


def begin_gathers(streams: StreamClock, buckets: Sequence[BucketCost]) -> None:
    """Send for the weights of all buckets, in the order of their use."""
    for bucket in reversed(buckets):
        begin(streams, bucket.gather)


def reduce_behind(streams: StreamClock, buckets: Sequence[BucketCost], overlap: bool) -> None:
    """The last backward pass: send each bucket as soon as it is filled, or all at the end, one after
    another."""
    for bucket in buckets:
        bucket.backward(streams)
        begin_reduce(streams, bucket, overlap)
    finish_reduces(streams, buckets, overlap)


def begin_reduce(streams: StreamClock, bucket: BucketCost, overlap: bool = True) -> None:
    """Sum over tp what its ranks share, and with overlap begin to sum over dp."""
    streams.run(bucket.shared)
    begin(streams, bucket.reduce if overlap else ())


def finish_reduces(streams: StreamClock, buckets: Sequence[BucketCost], overlap: bool) -> None:
    """Wait for what has begun, or begin it only now."""
    if overlap:
        streams.wait_for_all()
        return
    for bucket in buckets:
        streams.run(bucket.reduce)


def gather_in_turn(streams: StreamClock, buckets: Sequence[BucketCost]) -> None:
    """The weights that others have stepped, one bucket after another; of one bucket the experts' beside the
    others."""
    for bucket in buckets:
        begin(streams, bucket.gather)
        finish(streams, bucket.gather)


def sharded_gradients(streams: StreamClock, buckets: Sequence[BucketCost], overlap: bool) -> None:
    """ZeRO-2, one microbatch: a bucket's whole gradients exist while it is filled, and while they travel,
    with `overlap` beside the next bucket's backward pass."""
    forward(streams, buckets)
    for before, bucket, _ in neighbours(streams, buckets):
        streams.memory.hold("buffers", bucket.whole_bytes[1])
        bucket.backward(streams)
        finish_reduce(streams, before if overlap else None)
        begin_reduce(streams, bucket)
        finish_reduce(streams, None if overlap else bucket)
    finish_reduce(streams, buckets[-1] if overlap else None)


def fully_sharded(
    streams: StreamClock, buckets: Sequence[BucketCost], prefetch: bool, overlap: bool, reshard: bool = True
) -> None:
    """ZeRO-3, FSDP, one microbatch: with `prefetch` the next bucket's weights come beside compute, with
    `overlap` the last one's gradients go beside it."""
    gathered_forward(streams, buckets, prefetch, reshard)
    gathered_backward(streams, buckets, prefetch, overlap, reshard)


def without(buckets: Sequence[BucketCost], *names: str) -> list[BucketCost]:
    """The buckets of a microbatch that reduces, or adds, no gradients."""
    none: dict[str, Any] = dict.fromkeys(names, ())
    return each_once(buckets, lambda bucket: replace(bucket, **none))


def without_replicas(buckets: Sequence[BucketCost]) -> list[BucketCost]:
    """The buckets of a microbatch that sums over shards, and not over their replicas."""

    def inside(bucket: BucketCost) -> BucketCost:
        return replace(bucket, reduce=[one for one in bucket.reduce if one.group != "replicas"])

    return each_once(buckets, inside)


def each_once(buckets: Sequence[BucketCost], change: Callable[[BucketCost], BucketCost]) -> list[BucketCost]:
    """The buckets changed; what was equal is so again."""
    unlike = {id(bucket): bucket for bucket in buckets}
    known = {key: change(bucket) for key, bucket in unlike.items()}
    return [known[id(bucket)] for bucket in buckets]


def gathered_forward(
    streams: StreamClock, buckets: Sequence[BucketCost], prefetch: bool, reshard: bool
) -> None:
    if prefetch and buckets:  # a stage may have no unit
        start_gather(streams, buckets[-1])
    for _, bucket, following in neighbours(streams, reversed(buckets)):
        fetch(streams, bucket, following, prefetch)
        bucket.forward(streams)
        if reshard:
            streams.memory.hold("buffers", -bucket.whole_bytes[0])


def gathered_backward(
    streams: StreamClock, buckets: Sequence[BucketCost], prefetch: bool, overlap: bool, gathers: bool = True
) -> None:
    """FSDP's backward pass; without `gathers` the forward pass has left the weights whole."""
    if prefetch and gathers and buckets:
        start_gather(streams, buckets[0])
    for before, bucket, following in neighbours(streams, buckets):
        if gathers:
            fetch(streams, bucket, following, prefetch)
        streams.memory.hold("buffers", bucket.whole_bytes[1])
        bucket.backward(streams)
        streams.memory.hold("buffers", -bucket.whole_bytes[0])
        streams.run(bucket.shared)
        finish_reduce(streams, before if overlap else None)
        begin(streams, bucket.reduce)
        finish_reduce(streams, None if overlap else bucket)
        streams.run(bucket.added)
    finish_reduce(streams, buckets[-1] if overlap and buckets else None)


def fetch(streams: StreamClock, bucket: BucketCost, following: BucketCost | None, prefetch: bool) -> None:
    """Wait for a bucket's weights, and send for the next one's."""
    if not prefetch:
        start_gather(streams, bucket)
    finish(streams, bucket.gather)
    if prefetch and following:
        start_gather(streams, following)


def start_gather(streams: StreamClock, bucket: BucketCost) -> None:
    streams.memory.hold("buffers", bucket.whole_bytes[0])
    begin(streams, bucket.gather)


def finish_reduce(streams: StreamClock, bucket: BucketCost | None) -> None:
    if bucket:
        finish(streams, bucket.reduce)
        streams.memory.hold("buffers", -bucket.whole_bytes[1])


def begin(streams: StreamClock, collectives: Sequence[CollectiveOp]) -> None:
    for exchange in collectives:
        streams.start(exchange)


def finish(streams: StreamClock, collectives: Sequence[CollectiveOp]) -> None:
    for exchange in collectives:
        streams.wait(exchange)
