"""A lesson: its strategies, each a rank program and the job that it is given, and what is shown of them.

Glossary
    strategy     a row of the table
    contrast     the strategies whose timelines are shown unless others are asked for
    sweep        a table in which one thing changes from row to row
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ndparallel.parallel.mesh import Mesh
from ndparallel.results.run import Run, Sweep
from ndparallel.training.job import Job


@dataclass(frozen=True)
class Strategy:
    """A rank program and how its job and hardware differ from the lesson's: the mesh for so many GPUs, and
    other fields.

    Changes that depend on the job are functions of it and of the mesh. `reference` is the single GPU's
    program where it is not the lesson's model that is trained. `named` is its name where that depends on the
    number of GPUs.
    """

    name: str
    program: Callable[..., Any]
    mesh: Callable[[int], Mesh]
    changes: dict[str, Any] = field(default_factory=dict)
    hardware: dict[str, Any] = field(default_factory=dict)
    reference: Callable[..., Any] | None = None
    named: Callable[[int], str] | None = None

    def named_for(self, gpus: int) -> "Strategy":
        """The same strategy under the name that it has on so many GPUs."""
        return replace(self, name=self.named(gpus)) if self.named else self

    def job(self, job: Job, gpus: int) -> Job:
        mesh = self.mesh(gpus)
        changes = {
            name: value(job, mesh) if callable(value) else value for name, value in self.changes.items()
        }
        return job.replace(mesh=mesh, **changes)


@dataclass(frozen=True)
class Lesson:
    """`notice` says, from the numbers, what to notice; `compare` names the strategies that `ndparallel
    compare` shows of this lesson; `chosen` picks strategies by the lesson's own options; `hierarchy` is the
    strategy whose communication is told axis by axis; `defaults` are the job's fields where no option says
    otherwise; `sweeps` are further tables, by the name that --sweep asks for them.
    """

    name: str
    title: str
    strategies: Sequence[Strategy]
    contrast: tuple[str, ...]
    notice: Callable[[Run], str]
    gpus: int = 4
    add_options: Callable[[argparse.ArgumentParser], None] = lambda parser: None
    compare: tuple[str, ...] = ()
    chosen: Callable[[argparse.Namespace], Sequence[Strategy]] | None = None
    hierarchy: str | None = None
    defaults: dict[str, Any] = field(default_factory=dict)
    sweeps: dict[str, Callable[..., Sweep]] = field(default_factory=dict)

    @property
    def dimension(self) -> str:
        return self.title.partition(":")[0]

    def named_for(self, gpus: int) -> "Lesson":
        """The lesson with its strategies named as they are on so many GPUs."""
        names = {strategy.name: strategy.named_for(gpus).name for strategy in self.strategies}
        return replace(
            self,
            strategies=[strategy.named_for(gpus) for strategy in self.strategies],
            contrast=tuple(names.get(name, name) for name in self.contrast),
            compare=tuple(names.get(name, name) for name in self.compare),
            hierarchy=names.get(self.hierarchy or "", self.hierarchy),
        )
