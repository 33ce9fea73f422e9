"""What all lessons share: their options, and the way from rank programs to a table.

Idea   A lesson is a list of strategies, each a rank program and the job it is given. All train the same model on the same batch; the single
       GPU runs it first, and every strategy's loss and gradients are held against its.

Glossary
    strategy     a row of the table
    contrast     the strategies whose timelines are shown unless others are asked for
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gpu import Hardware, OutOfMemoryError
from ndparallel.errors import guarded, unknown
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
    """A rank program and how its job and hardware differ from the lesson's: the mesh for so many GPUs, and other fields.

    `reference` is the single GPU's program where it is not the lesson's model that is trained.
    """

    name: str
    program: Callable[..., Any]
    mesh: Callable[[int], Mesh]
    changes: dict[str, Any] = field(default_factory=dict)
    hardware: dict[str, Any] = field(default_factory=dict)
    reference: Callable[..., Any] | None = None

    def job(self, job: Job, gpus: int) -> Job:
        return job.on(mesh=self.mesh(gpus), **self.changes)


@dataclass(frozen=True)
class Lesson:
    """`notice` says, from the numbers, what to notice; `sweeps` are further tables, by the name that --sweep asks for them."""

    name: str
    title: str
    strategies: Sequence[Strategy]
    contrast: tuple[str, ...]
    notice: Callable[["Run"], str]
    gpus: int = 4
    add_options: Callable[[argparse.ArgumentParser], None] = lambda parser: None
    defaults: dict[str, Any] = field(default_factory=dict)
    sweeps: dict[str, Callable[["Runner", Job], "Sweep"]] = field(default_factory=dict)


@dataclass(frozen=True)
class Sweep:
    """A table in which one thing changes from row to row, and a sentence on what that shows. The first of `rows` are the keys of all."""

    title: str
    rows: list[dict[str, Any]]
    sentence: str


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
    """What the single GPU measured and computed; `results` are None where it would not fit into memory."""

    measurement: Measurement
    tensors: Tensors
    results: list[RankResult]


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

    def run(self, strategy: Strategy, job: Job, hardware: Hardware | None = None) -> list[RankResult]:
        self.announce(strategy.name)
        size = job.mesh.world_size
        if size not in self.ranks:
            self.ranks[size] = Ranks(size, self.engine)
        return self.ranks[size].run(strategy.program, hardware or self.hardware_of(strategy), job)

    def hardware_of(self, strategy: Strategy) -> Hardware:
        return replace(self.hardware, **strategy.hardware)

    def reference_of(self, strategy: Strategy, job: Job, usual: Reference) -> Reference:
        """The single GPU that this strategy is held against."""
        if strategy.reference is None:
            return usual
        return self.reference(Strategy("single GPU", strategy.reference, lambda gpus: Mesh()), job)

    def reference(self, strategy: Strategy, job: Job) -> Reference:
        """Run the single GPU as if it had all the memory it needs: what it computes is the truth for every size of model."""
        roomy = replace(self.hardware, memory_bytes=float("inf"))
        results = self.run(strategy, strategy.job(job, 1).on(microbatches=1, schedule="1f1b", stage_chunks=None), roomy)
        measurement = measure(strategy.name, results, roomy, job.steps, mean_loss(results), 0.0)
        return Reference(measurement, whole_tensors(results[0].value.gradients), results)

    def baseline(self, strategy: Strategy, job: Job, reference: Reference) -> Measurement:
        """The single GPU's row: the reference, unless a GPU with this hardware's memory could not have run it."""
        peak = reference.measurement.peak_memory_bytes
        if peak and peak["total"] <= self.hardware.memory_bytes:
            return reference.measurement
        return self.measured(strategy, strategy.job(job, 1).on(microbatches=1, schedule="1f1b", stage_chunks=None), reference)[0]

    def measured(self, strategy: Strategy, job: Job, reference: Reference) -> tuple[Measurement, list[RankResult]]:
        """Run one strategy and measure it; one that does not fit into memory is a row that says so."""
        size = job.mesh.world_size
        try:
            results = self.run(strategy, job)
        except OutOfMemoryError as error:
            self.ranks.pop(size).close()
            return failed(strategy.name, size, error), []
        difference = gradient_difference((result.value for result in results), reference.tensors)
        hardware = self.hardware_of(strategy)
        return measure(strategy.name, results, hardware, job.steps, mean_loss(results), difference, reference.measurement), results


def mean_loss(results: Sequence[RankResult]) -> float:
    """The last step's loss over the whole batch: the mean over the ranks that have one. Off the clock."""
    return float(np.mean([result.value.losses[-1] for result in results if result.value.losses]))


def run_lesson(lesson: Lesson, job: Job, hardware: Hardware, gpus: int, names: Sequence[str], engine: str, announce) -> Run:
    """Run the strategies of these names (all, where none is given) beside the single GPU."""
    from ndparallel.lessons import single_gpu

    chosen = choose(lesson, names)
    jobs = [strategy.job(job, gpus) for strategy in chosen]
    rows, results = [], {}
    with Runner(hardware, engine, announce) as runner:
        reference = runner.reference(single_gpu(), job)
        if lesson.gpus > 1 and not names:
            rows.append(runner.baseline(single_gpu(), job, reference))
        for strategy, its_job in zip(chosen, jobs):
            its_reference = runner.reference_of(strategy, its_job, reference)
            row, results[strategy.name] = runner.measured(strategy, its_job, its_reference)
            rows.append(row)
    return Run(make_report(lesson.name, job, hardware, rows, reference), hardware, results)


def choose(lesson: Lesson, names: Sequence[str]) -> list[Strategy]:
    by_name = {strategy.name: strategy for strategy in lesson.strategies}
    for name in names:
        if name not in by_name:
            raise unknown("strategy", name, by_name)
    return [by_name[name] for name in names] or list(lesson.strategies)


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
    parser.set_defaults(**lesson.defaults)
    if lesson.sweeps:
        first = next(iter(lesson.sweeps))
        parser.add_argument("--sweep", nargs="?", const=first, choices=lesson.sweeps, help=f"instead, a table over (default {first})")
    arguments = parser.parse_args(argv)
    return guarded(lambda: run_and_show(lesson, arguments))


def run_and_show(lesson: Lesson, arguments: argparse.Namespace) -> int:
    from ndparallel.show import progress, show, show_sweep

    job, hardware = job_from(arguments), hardware_from(arguments)
    if getattr(arguments, "sweep", None):
        with progress() as announce, Runner(hardware, arguments.engine, announce) as runner:
            sweep = lesson.sweeps[arguments.sweep](runner, job)
        show_sweep(sweep, arguments.json)
        return 0
    with progress() as announce:
        run = run_lesson(lesson, job, hardware, arguments.gpus, arguments.strategy, arguments.engine, announce)
    show(lesson, run, arguments)
    return int(not run.report.equal())
