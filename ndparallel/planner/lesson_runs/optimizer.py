"""The end of an executed run's step: the global norm, and what each rank steps of what it holds.

Idea   As ndparallel/training/clipping.py adds the norm up and ndparallel/training/buckets.py shards a bucket.

Glossary: see `ndparallel.planner.lesson_runs.stage_units`.
"""

from operator import itemgetter
from typing import Any

import numpy as np

from gpu import Operation
from ndparallel.model import costs
from ndparallel.planner.layers.operations import CollectiveOp
from ndparallel.planner.lesson_runs.cluster import LockstepMachine
from ndparallel.planner.lesson_runs.stage_units import StageUnits
from ndparallel.planner.step.streams import Item


def global_norm(held: StageUnits, rank: int, machine: LockstepMachine) -> list[Item]:
    """The global norm, but for its sum over pp, as ndparallel/training/clipping.py adds it up."""
    if not held.job.stack.clips:
        return []
    kinds = sorted({kind for _, kind in held.parts(rank)})
    over_dp = [(kind, held.averaging_groups[kind]) for kind in kinds if held.plan.zero]
    groups = [*over_dp, *((kind, "ep") for kind in kinds if kind)]
    names = [name for _, name in sorted(groups, key=itemgetter(0))] + ["tp"]
    return [
        over_gradients(held, "norm", 1, rank, machine),
        *(one_number(held, name) for name in names if held.machine.groups(name).shape[1] > 1),
    ]


def norm_over_pp(held: StageUnits) -> list[CollectiveOp]:
    """The norm's sum over pp."""
    return [one_number(held, "pp")] if held.job.stack.clips and held.plan.pp > 1 else []


def one_number(held: StageUnits, group: str) -> CollectiveOp:
    return summed(f"norm over {group}", group, 1, costs.itemsize(held.wide_dtype))


def over_gradients(
    held: StageUnits, name: str, passes: int, rank: int, machine: LockstepMachine
) -> Operation:
    """A kernel over all gradients that each member owns."""
    elements = sum(owned(held, size, kind, machine) for size, kind in held.parts(rank))
    return costs.elementwise(name, elements, passes, held.gradient_dtype)


def stepped(held: StageUnits, rank: int, machine: LockstepMachine) -> list[Item]:
    """Each member of the machine steps what it owns."""
    clipped = [over_gradients(held, "clip", 2, rank, machine)] * held.job.stack.clips
    sizes = [owned(held, size, kind, machine) for size, kind in held.parts(rank)]
    rounded = sizes if held.has_masters else []
    return [
        *clipped,
        *(costs.adamw("adamw", size, held.wide_dtype) for size in sizes),
        *(costs.rounding("round", size) for size in rounded),
    ]


def owned(held: StageUnits, size: Any, kind: int, machine: LockstepMachine) -> Any:
    """Elements of a bucket that each member steps: of an uneven cut the first of the `owners` have one
    more."""
    if np.ndim(size):  # by member of a stage, and all stages are alike
        size = np.resize(size, machine.members.shape)
    share, larger = divmod(size, int(held.owners[kind])) if held.plan.zero else (size, 0)
    return share + (places(held, kind, machine) < larger) if np.any(larger) else share


def places(held: StageUnits, kind: int, machine: LockstepMachine) -> np.ndarray:
    """Each member's place among the `owners` of that kind."""
    group = held.averaging_groups[kind]
    return np.array([held.mesh.group(group, int(rank)).index(int(rank)) for rank in machine.members])


def summed(name: str, group: str, elements: Any, itemsize: int) -> CollectiveOp:
    """A sum over a group of so many numbers, of `itemsize` bytes each."""
    return CollectiveOp(name, "all_reduce", group, elements * itemsize, itemsize=itemsize)
