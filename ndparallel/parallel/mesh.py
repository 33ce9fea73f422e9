"""The mesh: which rank stands where, and who talks to whom.

Idea   World size = tp * cp * dp * pp. Ranks count through the axes from the innermost to the outermost; the
       innermost are neighbours, in one node. Expert parallelism adds no ranks: dp is seen as ep times
       expert_dp, a second view of the same ranks for expert layers.

Glossary
    axis       tp, cp, ep, dp, pp as in Megatron's order "tp-cp-ep-dp-pp", innermost first; there "dp" stands
               for expert_dp = dp / ep
    group      the ranks that differ along one axis only
"""

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate
from operator import mul

import numpy as np

from collectives import Group
from gpu import Hardware
from ndparallel.base.errors import UserError, check_whole
from ndparallel.base.words import listed

AXES = ("tp", "cp", "ep", "dp", "pp")
DEFAULT_ORDER = "tp-cp-ep-dp-pp"
SPANS = {
    "tp": ("tp",),
    "cp": ("cp",),
    "dp": ("ep", "dp"),
    "pp": ("pp",),
    "ep": ("ep",),
    "expert_dp": ("dp",),
    "dp_cp": ("cp", "ep", "dp"),  # who averages gradients
    "expert_dp_cp": ("cp", "dp"),  # who averages the gradients of the same experts
    "tp_cp": ("tp", "cp"),  # who has the tokens of the same sequences
}


@dataclass(frozen=True)
class Mesh:
    """Degrees of parallelism and the order of their axes. An order may leave out axes of one rank. Raises
    UserError for degrees below 1, an ep that does not divide dp, and a wrong order."""

    tp: int = 1
    cp: int = 1
    dp: int = 1
    pp: int = 1
    ep: int = 1
    order: str = DEFAULT_ORDER

    def __post_init__(self) -> None:
        for axis in AXES:
            check_whole(axis, getattr(self, axis), words="a degree of parallelism is")
        if self.dp % self.ep:
            divisors = [str(size) for size in range(1, self.dp + 1) if self.dp % size == 0]
            raise UserError(
                f"ep={self.ep} does not divide dp={self.dp}, whose ranks the experts are spread over; ep can "
                f"be {', '.join(divisors)}."
            )
        object.__setattr__(self, "order", self.whole_order())

    def whole_order(self) -> str:
        """Return the order with the axes that it leaves out as the outermost ones."""
        named = self.order.split("-")
        if len(set(named)) < len(named) or not set(named) <= set(AXES):
            raise UserError(
                f"the order {self.order!r} is no order of {', '.join(AXES)}; the usual one is "
                f"{DEFAULT_ORDER!r}."
            )
        left_out = [axis for axis in AXES if axis not in named]
        if missing := [
            f"{axis} ({getattr(self, axis)} ranks)" for axis in left_out if self.ranks_along(axis) > 1
        ]:
            raise UserError(
                f"the order {self.order!r} leaves out {listed(missing)}; only axes of one rank may be left "
                "out."
            )
        return "-".join([*named, *left_out])

    def ranks_along(self, axis: str) -> int:
        """Return the size of an axis of the order."""
        return self.dp // self.ep if axis == "dp" else int(getattr(self, axis))

    @property
    def world_size(self) -> int:
        return self.tp * self.cp * self.dp * self.pp

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Return the axes with their sizes, innermost first."""
        return {axis: self.ranks_along(axis) for axis in self.order.split("-")}

    @cached_property
    def strides(self) -> dict[str, int]:
        """Return by axis how many ranks lie from one coordinate to the next."""
        return dict(zip(self.sizes, accumulate(self.sizes.values(), mul, initial=1)))

    def coordinates(self, rank: int) -> dict[str, int]:
        """Return a rank's coordinates on every axis, "dp" and "expert_dp" included."""
        found = {}
        for axis, size in self.sizes.items():
            rank, found[axis] = divmod(rank, size)
        return found | {"expert_dp": found["dp"], "dp": found["dp"] * self.ep + found["ep"]}

    def rank(self, **coordinates: int) -> int:
        """Return the rank at these coordinates on AXES; those not given are 0."""
        return sum(coordinates.get(axis, 0) * stride for axis, stride in self.strides.items())

    def group(self, axis: str, rank: int) -> Group:
        """Return the ranks that differ from `rank` along `axis` only, in the axis' order."""
        return Group(axis, _members(self, axis, rank))

    def groups(self, axis: str) -> np.ndarray:
        """Return all groups of an axis by their first rank: (groups, size)."""
        names = list(reversed(self.sizes))
        grid = np.arange(self.world_size).reshape([self.sizes[name] for name in names])
        spanned = [names.index(span) for span in reversed(SPANS[axis])]
        size = math.prod(grid.shape[place] for place in spanned)
        return np.moveaxis(grid, spanned, range(-len(spanned), 0)).reshape(-1, size)

    def link(self, axis: str, hardware: Hardware) -> str:
        """Return where the rings of an axis' groups run: "inside" a node, "across" nodes at every hop,
        "both", or "none" for one rank."""
        groups = self.groups(axis)
        if groups.shape[1] == 1:
            return "none"
        nodes = groups // hardware.gpus_per_node
        inside = nodes == np.roll(nodes, -1, axis=1)
        return "inside" if inside.all() else "both" if inside.any() else "across"


@lru_cache(maxsize=65536)
def _members(mesh: Mesh, axis: str, rank: int) -> tuple[int, ...]:
    members = [rank]
    for span in SPANS[axis]:
        size, stride = mesh.sizes[span], mesh.strides[span]
        here = rank // stride % size
        steps = range(-here * stride, (size - here) * stride, stride)
        members = [member + step for step in steps for member in members]
    return tuple(members)
