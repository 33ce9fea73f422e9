"""Who holds what of the weights, gradients and optimizer state: from DDP, where everybody holds all, to
ZeRO-3 (FSDP).

Idea   A bucket is a run of whole units, at least so many bytes. Each class below holds less than the one
       above it, as the levels of ZeRO do (Rajbhandari et al. 1910.02054): rank r of N owns piece r of every
       bucket.
Cost   Bytes a rank sends in a step, for n bytes of gradients: 2 (N-1)/N n up to ZeRO-2; FSDP gathers weights
       before the backward pass once more: 3 (N-1)/N n. Where a group has several members in each of several
       nodes, they talk in two levels: inside the nodes, and across on all rails at once
       (ndparallel/collective/algorithms.py); elsewhere in a ring.
Limit  A bucket holds whole units: one smaller than a unit is that unit.

Glossary
    whole, shard     all elements of a bucket; the piece this rank owns
    reshard          give a gathered bucket's whole weights back
"""

from typing import Any

import numpy as np

from collectives import Group, all_gather, all_reduce, reduce_scatter
from gpu import GPU, Handle
from ndparallel.base.errors import UserError
from ndparallel.collective.algorithms import usual_algorithm
from ndparallel.model.costs import itemsize
from ndparallel.model.units import Unit
from ndparallel.parallel.slices import Parameter, part


class UnitRun:
    """A run of units, and the passes through it."""

    def __init__(self, units: list[Unit]) -> None:
        self.units = units

    def forward(self, x, microbatch: int):
        for unit in self.units:
            x = unit.forward(x, microbatch)
        return x

    def backward(self, dy, microbatch: int):
        for unit in reversed(self.units):
            dy = unit.backward(dy, microbatch)
        return dy

    def sum_shared(self) -> None:
        """Sum over tp the gradients that its ranks share, before anything is averaged over dp."""
        self.units[0].context.tp.sum_shared(
            pair for unit in self.units for pair in unit.parameter_gradients()
        )


class Bucket(UnitRun):
    """A DDP bucket: whole weights and whole gradients on every rank. `owned` is the part that this rank's
    optimizer steps."""

    def __init__(self, gpu: GPU, units: list[Unit], group: Group, seed: int) -> None:
        super().__init__(units)
        self.gpu, self.group, self.seed = gpu, group, seed
        self.dtype = units[0].context.dtype
        self.size = sum(unit.size for unit in units)
        self.shard = part(self.size, group.size, group.index(gpu.rank))
        self.algorithm = usual_algorithm(group, gpu.hardware)
        self.allocate()

    @property
    def owned(self) -> slice:
        return slice(0, self.size)

    def allocate(self) -> None:
        self.weights, self.gradients = self.zeros("weights", self.size), self.gradient_zeros(self.size)
        self.weights[:] = self.initial_weights()
        self.attach(self.weights, self.gradients)

    def initial_weights(self) -> np.ndarray:
        draw, seed = self.units[0].context.draw, self.seed
        return np.concatenate([draw(parameter, seed).reshape(-1) for parameter in self.parameters])

    def zeros(self, kind: str, size: int) -> np.ndarray:
        """Allocate an array of zeros; the memory is counted first, so that an array which does not fit is
        never made."""
        return self.allocated(kind, size, self.dtype)

    def gradient_zeros(self, size: int, kind: str = "gradients") -> np.ndarray:
        """Allocate zeros for gradients, in the dtype that they are kept and reduced in."""
        return self.allocated(kind, size, self.units[0].context.gradient_dtype)

    def allocated(self, kind: str, size: int, dtype: str) -> np.ndarray:
        self.gpu.allocate(kind, size * itemsize(dtype))
        return self.units[0].context.zeros(size, dtype=dtype)

    def give_back(self, kind: str, array: np.ndarray) -> None:
        """Free an array. Its content is gone: who still computes with it finds NaN."""
        self.gpu.free(kind, array.nbytes)
        if array.flags.writeable:
            array.fill(np.nan)

    def attach(self, weights: np.ndarray | None = None, gradients: np.ndarray | None = None) -> None:
        """Make the units' parameters views of these arrays."""
        start = 0
        for unit in self.units:
            stop = start + unit.size
            unit.attach(
                None if weights is None else weights[start:stop],
                None if gradients is None else gradients[start:stop],
            )
            start = stop

    @property
    def parts(self) -> list["Bucket"]:
        return [self]

    @property
    def owners(self) -> tuple[Group, ...]:
        """Groups whose ranks own different parts of the bucket."""
        return ()

    @property
    def parameters(self) -> list[Parameter]:
        return [parameter for unit in self.units for parameter in unit.parameters]

    @property
    def owned_weights(self) -> np.ndarray:
        return self.weights[self.owned]

    @property
    def held(self) -> tuple[slice, np.ndarray]:
        """The part whose weights this rank has when a step is over, and these."""
        return slice(0, self.size), self.weights

    @property
    def owned_gradients(self) -> np.ndarray:
        return self.gradients[self.owned]

    def clear_gradients(self) -> None:
        self.owned_gradients[:] = 0

    def all_reduce(self, algorithm: str | None = None, async_op: bool = False):
        return all_reduce(
            self.gpu, self.gradients, self.group, "average", algorithm or self.algorithm, async_op
        )


class ShardedOptimizer(Bucket):
    """A ZeRO-1 bucket: every rank keeps the optimizer's state of its own shard and steps only that."""

    @property
    def owned(self) -> slice:
        return self.shard

    @property
    def owners(self) -> tuple[Group, ...]:
        return (self.group,)

    def clear_gradients(self) -> None:
        self.gradients[:] = 0

    def reduce_scatter(self, async_op: bool = False):
        return reduce_scatter(
            self.gpu, self.owned_gradients, self.gradients, self.group, "average", self.algorithm, async_op
        )

    def all_gather(self, async_op: bool = False):
        return all_gather(self.gpu, self.weights, self.owned_weights, self.group, self.algorithm, async_op)


class ShardedGradients(ShardedOptimizer):
    """A ZeRO-2 bucket: gradients are whole only while the bucket is filled and reduced; then they are
    added to the rank's shard."""

    whole_gradients: np.ndarray | None

    def allocate(self) -> None:
        self.weights = self.zeros("weights", self.size)
        self.gradient_shard = self.gradient_zeros(self.shard.stop - self.shard.start)
        self.weights[:] = self.initial_weights()
        self.whole_gradients = None
        self.attach(self.weights)

    @property
    def owned_gradients(self) -> np.ndarray:
        return self.gradient_shard

    def clear_gradients(self) -> None:
        self.gradient_shard[:] = 0

    def allocate_gradients(self) -> None:
        """Make room for the whole gradients, until they are reduced."""
        if self.whole_gradients is None:
            self.whole_gradients = self.gradient_zeros(self.size, "buffers")
            self.attach(gradients=self.whole_gradients)

    def backward(self, dy, microbatch: int):
        if self.whole_gradients is None:
            raise UserError("allocate_gradients() comes before the backward pass")
        return super().backward(dy, microbatch)

    def reduce_scatter(self, async_op: bool = False):
        """Reduce the whole gradients; the handle's wait adds them to the shard and frees their memory."""
        if self.whole_gradients is None:
            raise UserError(
                "reduce_scatter() reduces what a backward pass has left, once, and allocate_gradients() "
                "makes room for it"
            )
        whole, self.whole_gradients = self.whole_gradients, None

        def add(reduced: np.ndarray) -> None:
            self.gradient_shard += reduced
            self.give_back("buffers", whole)

        handle = self.average(whole).then(add)
        return handle if async_op else handle.wait()

    def average(self, whole: np.ndarray) -> Handle:
        """Start to average whole gradients over the group; the handle's wait returns this rank's shard."""
        piece = np.empty_like(self.gradient_shard)
        return reduce_scatter(self.gpu, piece, whole, self.group, "average", self.algorithm, async_op=True)


class FullyShardedUnit(ShardedGradients):
    """A ZeRO-3 (FSDP) bucket: weights, too, are whole only while they are used."""

    gathered: Handle | None

    def allocate(self) -> None:
        size = self.shard.stop - self.shard.start
        self.weight_shard, self.gradient_shard = self.zeros("weights", size), self.gradient_zeros(size)
        self.weight_shard[:] = self.initial_weights()[self.shard]
        self.whole_gradients = None
        self.gathered = None

    def forward(self, x, microbatch: int):
        self.require_whole()
        return super().forward(x, microbatch)

    def backward(self, dy, microbatch: int):
        self.require_whole()
        return super().backward(dy, microbatch)

    def require_whole(self) -> None:
        if self.gathered is None or not self.gathered.waited:
            raise UserError("gather() makes the weights whole before each pass, and reshard() frees them")

    @property
    def owned_weights(self) -> np.ndarray:
        return self.weight_shard

    @property
    def held(self) -> tuple[slice, np.ndarray]:
        return self.owned, self.owned_weights

    def gather(self, async_op: bool = False):
        """Make the weights whole, unless they are, or are about to be."""
        if self.gathered is None:
            whole = self.zeros("buffers", self.size)
            self.gathered = all_gather(
                self.gpu, whole, self.weight_shard, self.group, self.algorithm, async_op=True
            ).then(self.attach)
            self.weights = whole
        return self.gathered if async_op else self.gathered.wait()

    def reshard(self) -> None:
        self.give_back("buffers", self.weights)
        self.gathered = None


class BucketParts(UnitRun):
    """The buckets of units that have units inside, which go wherever the first one goes. Experts are a bucket
    of their own because fewer ranks hold the same ones than the same everything else; so is the table of tied
    embeddings, which the ranks at both ends of a pipeline cut alike."""

    def __init__(self, units: list[Unit], parts: list[Bucket]) -> None:
        super().__init__(units)
        self.parts: list[Any] = parts

    def all(self, verb: str, *arguments: Any, async_op: bool = False):
        """Start a collective on all parts; then wait, unless `async_op` is given."""
        handles = Handles([getattr(part, verb)(*arguments, async_op=True) for part in self.parts])
        return handles if async_op else handles.wait()

    def all_reduce(self, algorithm: str | None = None, async_op: bool = False):
        return self.all("all_reduce", algorithm, async_op=async_op)

    def reduce_scatter(self, async_op: bool = False):
        return self.all("reduce_scatter", async_op=async_op)

    def all_gather(self, async_op: bool = False):
        return self.all("all_gather", async_op=async_op)

    def gather(self, async_op: bool = False):
        return self.all("gather", async_op=async_op)

    def allocate_gradients(self) -> None:
        for bucket in self.parts:
            bucket.allocate_gradients()

    def reshard(self) -> None:
        for bucket in self.parts:
            bucket.reshard()


class Handles(list[Handle]):
    """Several handles, waited for one after another."""

    def wait(self) -> None:
        for handle in self:
            handle.wait()


def make_bucket(
    kind: type[Bucket], gpu: GPU, units: list[Unit], group: Group, expert_group: Group, seed: int
) -> Bucket | BucketParts:
    """Build a bucket over `group`, one for each table of tied embeddings inside its units, and one over
    `expert_group` for the experts."""
    inner = [inner for unit in units for inner in unit.inner]
    if not inner:
        return kind(gpu, units, group, seed)
    parts = [
        ([unit for unit in units if unit.size], group),
        *(([unit], group) for unit in inner if not unit.is_experts),
        ([unit for unit in inner if unit.is_experts], expert_group),
    ]
    return BucketParts(units, [kind(gpu, some, over, seed) for some, over in parts if some])


def wrap(units: list[Unit], minimum_bytes: float) -> list[list[Unit]]:
    """Cut the units into runs of at least `minimum_bytes`, from the last unit on, as the backward pass
    fills them; the last run first."""
    runs: list[list[Unit]] = [[]]
    held = 0
    for unit in reversed(units):
        if held >= minimum_bytes and runs[-1]:
            runs.append([])
            held = 0
        runs[-1].insert(0, unit)
        held += unit.nbytes
    return runs
