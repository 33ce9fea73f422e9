"""The mesh: which rank stands where, and who talks to whom.

Idea   World size = tp * cp * dp * pp. Ranks count through the axes from the innermost to the outermost; the
       innermost are neighbours, in one node. Experts add no ranks. They see the tp * cp * dp ranks of a stage
       a second time, counted in the same order through axes of their own: etp ranks hold the parts of each
       expert, ep ranks different experts, and expert_dp ranks the same ones. With etp below tp, or ep above
       dp, experts are folded over tp and cp too (MoE Parallel Folding, Liu et al. 2504.14960).

Glossary
    axis       tp, cp, ep, dp, pp as in Megatron's order "tp-cp-ep-dp-pp", innermost first; for experts, "tp"
               stands for etp and "dp" for expert_dp = tp * cp * dp / (etp * ep)
    stage      the ranks with the same place on pp
    group      the ranks that differ along one axis only
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate
from operator import mul

import numpy as np

from collectives import Group
from gpu import Hardware
from ndparallel.base.errors import UserError, check_whole
from ndparallel.base.words import listed
from ndparallel.parallel.divisibility import divisors

AXES = ("tp", "cp", "ep", "dp", "pp")
DEFAULT_ORDER = "tp-cp-ep-dp-pp"
OF_EXPERTS = {"tp": "etp", "ep": "ep", "dp": "expert_dp"}  # what an axis of the order is for experts
SPANS = {
    "tp": ("tp",),
    "cp": ("cp",),
    "dp": ("dp",),
    "pp": ("pp",),
    "dp_cp": ("cp", "dp"),  # who averages gradients
    "tp_cp": ("tp", "cp"),  # who has the tokens of the same sequences
    "etp": ("etp",),
    "ep": ("ep",),
    "expert_dp": ("expert_dp",),  # who averages the gradients of the same experts
}


@dataclass(frozen=True)
class Mesh:
    """Degrees of parallelism and the order of their axes. An order may leave out axes of one rank; etp is tp
    where it is not given. Raises UserError for degrees below 1, an etp that does not divide tp, an ep that
    does not divide the ranks that experts are spread over, and a wrong order."""

    tp: int = 1
    cp: int = 1
    dp: int = 1
    pp: int = 1
    ep: int = 1
    order: str = DEFAULT_ORDER
    etp: int = 0

    def __post_init__(self) -> None:
        for axis in AXES:
            check_whole(axis, getattr(self, axis), words="a degree of parallelism is")
        object.__setattr__(self, "etp", self.etp or self.tp)
        check_whole("etp", self.etp, words="a degree of parallelism is")
        if self.tp % self.etp:
            raise UserError(
                f"etp={self.etp} does not divide tp={self.tp}, whose ranks hold the parts of an expert; etp "
                f"can be {divisors_of(self.tp)}."
            )
        self.check_experts()
        object.__setattr__(self, "order", self.whole_order())

    def check_experts(self) -> None:
        ranks = self.tp * self.cp * self.dp // self.etp
        if ranks % self.ep:
            raise UserError(
                f"ep={self.ep} does not divide {self.spread_over}={ranks}, whose ranks the experts are "
                f"spread over; ep can be {divisors_of(ranks)}."
            )

    def whole_order(self) -> str:
        """Return the order with the axes that it leaves out as the outermost ones."""
        named = str(self.order).split("-")
        if len(set(named)) < len(named) or not set(named) <= set(AXES):
            raise UserError(
                f"the order {self.order!r} is no order of {', '.join(AXES)}; the usual one is "
                f"{DEFAULT_ORDER!r}."
            )
        left_out = [axis for axis in AXES if axis not in named]
        if missing := [
            f"{axis} ({getattr(self, axis)} ranks)" for axis in left_out if getattr(self, axis) > 1
        ]:
            raise UserError(
                f"the order {self.order!r} leaves out {listed(missing)}; only axes of one rank may be left "
                "out."
            )
        return "-".join([*named, *left_out])

    @property
    def world_size(self) -> int:
        return self.tp * self.cp * self.dp * self.pp

    @property
    def spread_over(self) -> str:
        """Name the ranks that experts are spread over: "dp", "cp*dp", "tp*cp*dp" or "tp*cp*dp/etp"."""
        names = ["tp"] * (self.etp < self.tp) + ["cp"] * (self.cp > 1) + ["dp"]
        return "*".join(names) + "/etp" * (1 < self.etp < self.tp)

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Return the axes with their sizes, innermost first."""
        return {axis: getattr(self, axis) for axis in self.order.split("-") if axis != "ep"}

    @cached_property
    def expert_sizes(self) -> dict[str, int]:
        """Return the experts' axes of a stage with their sizes, innermost first."""
        same = self.tp * self.cp * self.dp // (self.etp * self.ep)
        sizes = {"etp": self.etp, "ep": self.ep, "expert_dp": same}
        names = [OF_EXPERTS[axis] for axis in self.order.split("-") if axis in OF_EXPERTS]
        return {name: sizes[name] for name in names}

    def coordinates(self, rank: int) -> dict[str, int]:
        """Return a rank's coordinates on every axis, those of experts included."""
        _, within = self.in_stage(rank)
        return places(rank, self.sizes) | places(within, self.expert_sizes)

    def rank(self, **coordinates: int) -> int:
        """Return the rank at these coordinates; those not given are 0."""
        return sum(coordinates.get(axis, 0) * stride for axis, stride in strides(self.sizes).items())

    def in_stage(self, rank: int) -> tuple[int, int]:
        """Return a rank's place on pp, and its place among the ranks of its stage."""
        stride = strides(self.sizes)["pp"]
        outer, stage = divmod(rank // stride, self.pp)
        return stage, outer * stride + rank % stride

    def of_stage(self, stage: int, within: int) -> int:
        """Return the rank at a place among those of a stage."""
        stride = strides(self.sizes)["pp"]
        return (within // stride * self.pp + stage) * stride + within % stride

    def group(self, axis: str, rank: int) -> Group:
        """Return the ranks that differ from `rank` along `axis` only, in the axis' order."""
        return Group(axis, _members(self, axis, rank))

    def expert_slices(self, rank: int) -> Group:
        """Return the ranks that hold the slices of the same experts: those of tp, where they are the same."""
        tp, etp = self.group("tp", rank), self.group("etp", rank)
        return tp if tp.ranks == etp.ranks else etp

    def groups(self, axis: str) -> np.ndarray:
        """Return all groups of an axis by their first rank: (groups, size)."""
        names = [*reversed(self.sizes)]
        grid = np.arange(self.world_size).reshape([*reversed(self.sizes.values())])
        if SPANS[axis][0] in self.expert_sizes:
            stages = np.moveaxis(grid, names.index("pp"), 0)
            names = ["pp", *reversed(self.expert_sizes)]
            grid = stages.reshape([self.pp, *reversed(self.expert_sizes.values())])
        spanned = [names.index(span) for span in reversed(SPANS[axis])]
        size = math.prod(grid.shape[place] for place in spanned)
        found = np.moveaxis(grid, spanned, range(-len(spanned), 0)).reshape(-1, size)
        return found[np.argsort(found[:, 0])]

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
    if SPANS[axis][0] in mesh.expert_sizes:
        stage, within = mesh.in_stage(rank)
        return tuple(mesh.of_stage(stage, each) for each in along(within, SPANS[axis], mesh.expert_sizes))
    return tuple(along(rank, SPANS[axis], mesh.sizes))


def along(place: int, axes: Iterable[str], sizes: dict[str, int]) -> list[int]:
    """Return the places that differ from this one along these axes only, the first axis counting fastest."""
    found, stride_of = [place], strides(sizes)
    for axis in axes:
        size, stride = sizes[axis], stride_of[axis]
        here = place // stride % size
        steps = range(-here * stride, (size - here) * stride, stride)
        found = [each + step for step in steps for each in found]
    return found


def strides(sizes: dict[str, int]) -> dict[str, int]:
    """Return by axis how many places lie from one coordinate to the next."""
    return dict(zip(sizes, accumulate(sizes.values(), mul, initial=1)))


def places(place: int, sizes: dict[str, int]) -> dict[str, int]:
    """Return the coordinates of a place on axes of these sizes, innermost first."""
    found = {}
    for axis, size in sizes.items():
        place, found[axis] = divmod(place, size)
    return found


def divisors_of(number: int) -> str:
    return ", ".join(map(str, divisors(number)))
