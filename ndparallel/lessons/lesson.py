"""A lesson as data: its strategies, each a rank program with its job, and what is shown of them.

Glossary
    strategy     a row of the table
    contrast     the strategies whose timelines are shown unless others are asked for
    sweep        a table in which one thing changes from row to row
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from ndparallel.base.errors import UserError, check_known
from ndparallel.parallel.mesh import Mesh
from ndparallel.results.report import Run, Sweep
from ndparallel.training.cuts import BatchError, DegreeError
from ndparallel.training.job import Job

Program = Callable[..., Any]  # a rank program: (gpu, job) -> Outcome


@dataclass(frozen=True)
class Strategy:
    """A rank program and how its job and hardware differ from the lesson's.

    `mesh` makes the mesh of so many GPUs. `changes` are fields of the job, or functions of the job and the
    mesh; `hardware` are fields of the hardware. `reference` is the single GPU's program where another model
    than the lesson's is trained. `named` gives the name where it depends on the number of GPUs.
    `file` is a reader's own, which may compute for so long alone, and may train the model of one of
    `references`, too.
    """

    name: str
    program: Program
    mesh: Callable[[int], Mesh]
    changes: dict[str, Any] = field(default_factory=dict)
    hardware: dict[str, Any] = field(default_factory=dict)
    reference: Program | None = None
    named: Callable[[int], str] | None = None
    file: Path | None = None
    references: tuple[Program, ...] = ()

    def named_for(self, gpus: int) -> "Strategy":
        """Return the strategy under its name on so many GPUs."""
        return replace(self, name=self.named(gpus)) if self.named else self

    def job(self, job: Job, gpus: int) -> Job:
        """Return the lesson's job on this strategy's mesh, with its changes."""
        try:
            return self.on_mesh(job, self.mesh(gpus))
        except BatchError as error:  # in TP x FSDP more GPUs do not cut the batch into more parts
            raise error if self.mesh(gpus).world_size == gpus else error.without_gpus() from None
        except DegreeError as error:
            fitting = [size for size in error.legal if self.fits(job, size, error.axis)]
            raise error.in_gpus(fitting) if fitting else error from None

    def on_mesh(self, job: Job, mesh: Mesh) -> Job:
        changes = {
            name: value(job, mesh) if callable(value) else value for name, value in self.changes.items()
        }
        for name in changes:
            check_known(f"field of the job of {self.name!r}", name, Job.__dataclass_fields__)
        return job.replace(mesh=mesh, **changes)

    def fits(self, job: Job, gpus: int, axis: str) -> bool:
        """Return whether the strategy runs on so many GPUs, which are all on one axis."""
        with suppress(UserError):
            return getattr(self.on_mesh(job, self.mesh(gpus)).mesh, axis) == gpus
        return False


class Own(NamedTuple):
    """What a reader's own function is in a lesson: `what` it is in words, the `parameters` that it takes, and
    how it becomes a `strategy`, from (lesson, name, FILE.py:FUNCTION, function, gpus)."""

    what: str
    parameters: tuple[str, ...]
    strategy: Callable[["Lesson", str, str, Callable[..., Any], int], Strategy]


@dataclass(frozen=True)
class Lesson:
    """A table of strategies, and what is shown with it.

    notice: what to notice, from the numbers, in at most four sentences; contrast: the strategies whose
    timelines are shown; compare: those that `ndparallel compare` shows of this lesson; hierarchy: the
    strategy whose communication is shown axis by axis; defaults: fields of the job where no option sets them;
    strategies_for: the strategies that the lesson's own options ask for; sweeps: further tables, by the name
    that --sweep takes; own: what --with takes, where that is no rank program.
    """

    name: str
    title: str
    strategies: Sequence[Strategy]
    contrast: tuple[str, ...]
    notice: Callable[[Run], Sequence[str]]
    gpus: int = 4
    compare: tuple[str, ...] = ()
    hierarchy: str | None = None
    defaults: dict[str, Any] = field(default_factory=dict)
    add_options: Callable[[argparse.ArgumentParser], None] = lambda parser: None
    strategies_for: Callable[["Lesson", argparse.Namespace], Sequence[Strategy]] | None = None
    sweeps: Mapping[str, Callable[..., Sweep]] = field(default_factory=dict)
    own: Own | None = None

    @property
    def dimension(self) -> str:
        return self.title.partition(":")[0]

    def strategy(self, name: str) -> Strategy:
        return next(strategy for strategy in self.strategies if strategy.name == name)

    def sweep(self, name: str, runner: Any, job: Job) -> Sweep:
        """Make one of the lesson's further tables with a Runner."""
        return self.sweeps[name](self, runner, job)

    def named_for(self, gpus: int) -> "Lesson":
        """Return the lesson with its strategies under their names on so many GPUs."""
        names = {strategy.name: strategy.named_for(gpus).name for strategy in self.strategies}
        return replace(
            self,
            strategies=[strategy.named_for(gpus) for strategy in self.strategies],
            contrast=tuple(names.get(name, name) for name in self.contrast),
            compare=tuple(names.get(name, name) for name in self.compare),
            hierarchy=names.get(self.hierarchy or "", self.hierarchy),
        )
