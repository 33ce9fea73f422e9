"""What the operators of every axis have: a GPU, its group on this axis, and its place in it."""

from dataclasses import dataclass
from functools import cached_property

from collectives import Group
from gpu import GPU


@dataclass
class AxisOperators:
    """The operators of one rank on one axis of the mesh."""

    gpu: GPU
    group: Group

    @cached_property
    def size(self) -> int:
        return self.group.size

    @cached_property
    def index(self) -> int:
        return self.group.index(self.gpu.rank)
