"""What all lessons share: their options, and the way from rank programs to a table.

Idea   A lesson is a list of strategies, each a rank program and the job it is given. All train the same model on the same batch; the single
       GPU runs it first, and every strategy's loss and gradients are held against its.

Glossary
    strategy     a row of the table
    entry        a strategy with the job that it is given, about to be run
    reference    the single GPU's run: the truth that all rows are held against
    contrast     the strategies whose timelines are shown unless others are asked for
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from gpu import Hardware, OutOfMemoryError
from ndparallel.errors import UserError, guarded, unknown
from ndparallel.job import Job
from ndparallel.launch import RankResult, Ranks
from ndparallel.measure import Measurement, failed, measure
from ndparallel.mesh import Mesh
from ndparallel.options import add_common_options, hardware_from, job_from
from ndparallel.oracle import Tensors, gradient_difference, whole_tensors
from ndparallel.report import Report

TOLERANCE = {"float32": 1e-5, "float64": 1e-12}


@dataclass(frozen=True)
class Strategy:
    """A rank program and how its job differs from the lesson's: the mesh for so many GPUs, and other fields."""

    name: str
    program: Callable[..., Any]
    mesh: Callable[[int], Mesh]
    changes: dict[str, Any] = field(default_factory=dict)

    def job(self, job: Job, gpus: int) -> Job:
        return job.on(mesh=self.mesh(gpus), **self.changes)


@dataclass(frozen=True)
class Lesson:
    """`notice` says, from the numbers, what to notice; `compare` names the strategies that `ndparallel compare` shows of this lesson."""

    name: str
    title: str
    strategies: Sequence[Strategy]
    contrast: tuple[str, ...]
    notice: Callable[["Run"], str]
    gpus: int = 4
    add_options: Callable[[argparse.ArgumentParser], None] = lambda parser: None
    compare: tuple[str, ...] = ()


class Entry(NamedTuple):
    """A row to be: a strategy with its job, or with the reason why it cannot be given one on so many GPUs."""

    strategy: Strategy
    gpus: int
    job: Job | None
    refusal: UserError | None = None


@dataclass
class Run:
    """A lesson's measurements and, by strategy, what every rank left behind."""

    report: Report
    hardware: Hardware
    results: dict[str, list[RankResult]]

    def __getitem__(self, name: str) -> Measurement:
        return next(row for row in self.report.strategies if row.name == name)

    def __contains__(self, name: str) -> bool:
        """Whether the strategy was run, and fitted into memory."""
        return bool(self.results.get(name))


@dataclass(frozen=True)
class Reference:
    """What the single GPU measured and computed, as if it had all the memory that it needs."""

    entry: Entry
    measurement: Measurement
    tensors: Tensors
    results: list[RankResult]

    def stands_for(self, entry: Entry, memory_bytes: float) -> bool:
        """Whether it is this very run, and would have fitted into this memory."""
        peak = self.measurement.peak_memory_bytes
        return entry == self.entry and peak is not None and peak["total"] <= memory_bytes


class Runner:
    """Runs strategies one after another; ranks are kept between those of the same size."""

    def __init__(self, hardware: Hardware, engine: str, announce: Callable[[str], None] = lambda name: None) -> None:
        self.hardware, self.engine, self.announce = hardware, engine, announce
        self.ranks: dict[int, Ranks] = {}

    def __enter__(self) -> "Runner":
        return self

    def __exit__(self, *exception: object) -> None:
        for ranks in self.ranks.values():
            ranks.close()

    def run(self, strategy: Strategy, job: Job, hardware: Hardware) -> list[RankResult]:
        self.announce(strategy.name)
        size = job.mesh.world_size
        if size not in self.ranks:
            self.ranks[size] = Ranks(size, self.engine)
        return self.ranks[size].run(strategy.program, hardware, job)

    def reference(self, entry: Entry) -> Reference:
        """Run the single GPU: what it computes is the truth for every size of model."""
        assert entry.job
        results = self.run(entry.strategy, entry.job, replace(self.hardware, memory_bytes=float("inf")))
        measurement = measure(entry.strategy.name, results, self.hardware, entry.job.steps, mean_loss(results), 0.0)
        return Reference(entry, measurement, whole_tensors(results[0].value.gradients), results)

    def measured(self, entry: Entry, reference: Reference) -> tuple[Measurement, list[RankResult]]:
        """Run one strategy and measure it; one that cannot run, or does not fit into memory, is a row that says so."""
        strategy, gpus, job, refusal = entry
        if job is None:
            return failed(strategy.name, gpus, refusal), []
        if reference.stands_for(entry, self.hardware.memory_bytes):
            return reference.measurement, reference.results
        try:
            results = self.run(strategy, job, self.hardware)
        except OutOfMemoryError as error:
            self.ranks.pop(gpus).close()
            return failed(strategy.name, gpus, error), []
        difference = gradient_difference((result.value for result in results), reference.tensors)
        return measure(strategy.name, results, self.hardware, job.steps, mean_loss(results), difference), results


def mean_loss(results: Sequence[RankResult]) -> float:
    """The last step's loss over the whole batch: the mean over the ranks that have one. Off the clock."""
    return float(np.mean([result.value.losses[-1] for result in results if result.value.losses]))


def run_lesson(lesson: Lesson, job: Job, hardware: Hardware, gpus: int, names: Sequence[str], engine: str, announce) -> Run:
    """Run the strategies of these names (all, after the single GPU, where none is given)."""
    entries = [enter(strategy, job, gpus) for strategy in choose(lesson.strategies, names)]
    if lesson.gpus > 1 and not names:
        entries = [baseline(job), *entries]
    return run_entries(lesson.name, entries, job, hardware, engine, announce)


def run_entries(name: str, entries: Sequence[Entry], job: Job, hardware: Hardware, engine: str, announce) -> Run:
    """Run all entries on the same ranks, and hold each against the single GPU, which runs first."""
    rows, results = [], {}
    with Runner(hardware, engine, announce) as runner:
        reference = runner.reference(baseline(job))
        for entry in entries:
            row, results[entry.strategy.name] = runner.measured(entry, reference)
            rows.append(row)
    return Run(make_report(name, job, hardware, rows, reference), hardware, results)


def enter(strategy: Strategy, job: Job, gpus: int) -> Entry:
    """Give a strategy its job. Raises UserError for sizes that it cannot be cut to."""
    its_job = strategy.job(job, gpus)
    return Entry(strategy, its_job.mesh.world_size, its_job)


def baseline(job: Job) -> Entry:
    """The single GPU, which takes the batch whole."""
    from ndparallel.lessons import single_gpu

    return enter(single_gpu(), job.on(microbatches=1), 1)


def choose(strategies: Sequence[Strategy], names: Sequence[str]) -> list[Strategy]:
    """The strategies of these names, or all of them. Raises UserError for a name that none has."""
    by_name = {strategy.name: strategy for strategy in strategies}
    for name in names:
        if name not in by_name:
            raise unknown("strategy", name, by_name)
    return [by_name[name] for name in names] or list(strategies)


def make_report(name: str, job: Job, hardware: Hardware, rows: list[Measurement], reference: Reference) -> Report:
    return Report(
        lesson=name,
        hardware={"name": hardware.name, "gpus_per_node": hardware.gpus_per_node, "memory_bytes": hardware.memory_bytes},
        model={**vars(job.model), "batch": job.batch, "dtype": job.dtype, "seed": job.seed, "steps": job.steps},
        strategies=tuple(rows),
        baseline=reference.measurement,
        tolerance=TOLERANCE[job.dtype],
    )


def main(lesson: Lesson, argv: Sequence[str] | None = None) -> int:
    """Parse, run, print. Returns the exit code: 1 where a strategy does not compute what one GPU computes."""
    parser = argparse.ArgumentParser(f"{lesson.name}.py", description=lesson.title)
    add_common_options(parser, lesson.gpus)
    lesson.add_options(parser)
    arguments = parser.parse_args(argv)
    return guarded(lambda: run_and_show(lesson, arguments))


def run_and_show(lesson: Lesson, arguments: argparse.Namespace) -> int:
    from ndparallel.show import progress, show

    job, hardware = job_from(arguments), hardware_from(arguments)
    with progress() as announce:
        run = run_lesson(lesson, job, hardware, arguments.gpus, arguments.strategy, arguments.engine, announce)
    show(lesson.title, run, arguments, lesson.contrast, lesson.notice)
    return int(not run.report.equal())
