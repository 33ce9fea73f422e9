"""Running strategies: the job of each, the single GPU as its reference, and the row of its measurements.

Idea   The single GPU runs first, as if it had all the memory it needs: its loss and gradients are the truth
       for every strategy.

Glossary
    strategy     a rank program, and how its job and hardware differ from the others'
    entry        a strategy with the job that it is given, about to be run
    reference    the single GPU's run
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, repeat
from typing import Any, NamedTuple

import numpy as np

from gpu import GPU, Hardware, OutOfMemoryError
from ndparallel.base.bfloat16 import NAME as BFLOAT16
from ndparallel.base.errors import UserError
from ndparallel.base.quoting import brief
from ndparallel.base.words import listed
from ndparallel.engines.alone import Alone
from ndparallel.engines.launch import PendingRun, RankResult, Ranks
from ndparallel.engines.task import Limit, Task, in_limit, run_rank
from ndparallel.engines.time_limit import CPU_SECONDS
from ndparallel.hardware.disturbances import undisturbed
from ndparallel.lessons.lesson import Strategy
from ndparallel.lessons.registry import single_gpu
from ndparallel.model.nonfinite import earliest, first_trace
from ndparallel.model.units import Routed
from ndparallel.results.contention import measure_contention
from ndparallel.results.event_sums import EventSums
from ndparallel.results.measure import Measurement, failed, forgotten_wait, measure
from ndparallel.results.progress import Announce, ignore
from ndparallel.training.gradient_check import (
    Tensors,
    distances,
    gradient_difference,
    largest_difference,
    step_difference,
    whole_tensors,
)
from ndparallel.training.job import Job

TIMES_ALONE = 10  # that a reader's own program may compute on each rank as long as the single GPU
MOST_WITH_EVENTS = 64  # GPUs of a run of sizes only; of more the events are added up


class Entry(NamedTuple):
    """A row before its run: a strategy with its job. `is_baseline` marks the single GPU that the others are
    compared with, which no disturbance reaches."""

    strategy: Strategy
    job: Job
    is_baseline: bool = False

    @property
    def gpus(self) -> int:
        return self.job.mesh.world_size


class RefusedEntry(NamedTuple):
    """A row without a run: a strategy, and the reason why it cannot be cut to so many GPUs."""

    strategy: Strategy
    gpus: int
    reason: UserError


def entry_of(strategy: Strategy, job: Job, gpus: int) -> Entry:
    """Give a strategy its job. Raises UserError for sizes that it cannot be cut to."""
    return Entry(strategy, strategy.job(job, gpus))


def baseline(job: Job, program: Callable[..., Any] | None = None) -> Entry:
    """Return the single GPU's entry, which takes the batch whole and trains the lessons' model, unless
    another program is given."""
    usual = single_gpu()
    alone = replace(usual, program=program) if program else usual
    return entry_of(alone, job.work, 1)._replace(is_baseline=True)


class Reference(NamedTuple):
    """What the single GPU measured and computed, as if it had all the memory that it needs."""

    entry: Entry
    measurement: Measurement
    gradients: Tensors  # of the first step
    weights: Tensors  # after the last step
    results: list[RankResult]
    cpu_seconds: float  # that its run took here

    @property
    def trained(self) -> set[str]:
        """Names of its parameters."""
        return self.results[0].value.trained

    def stands_for(self, entry: Entry, hardware: Hardware) -> bool:
        """Return whether it is this very run, and would have fitted into this hardware's memory."""
        peak = self.measurement.peak_memory_bytes
        same = entry._replace(is_baseline=True) == self.entry and (
            entry.is_baseline or not hardware.disturbances
        )
        return same and peak is not None and peak["total"] <= hardware.memory_bytes


class Runner:
    """Runs strategies one after another; ranks are kept between those of the same size, references between
    those of the same job.

    A strategy that does not fit into memory is a row that says so; with `keep_going`, so is one that these
    sizes cannot be cut to. With `contention` every row says what shared ports would add to its step.
    """

    def __init__(
        self,
        hardware: Hardware,
        engine: str,
        announce: Announce = ignore,
        keep_going: bool = False,
        contention: bool = False,
    ) -> None:
        self.hardware, self.engine, self.announce, self.contention = hardware, engine, announce, contention
        self.row_errors = (OutOfMemoryError, UserError) if keep_going else (OutOfMemoryError,)
        self.ranks: dict[int, Ranks] = {}
        self.references: dict[tuple, Reference] = {}
        self.most_gpus = 0

    def __enter__(self) -> "Runner":
        return self

    def __exit__(self, kind: type | None = None, *exception: object) -> None:
        for ranks in self.ranks.values():
            ranks.close()
        if kind is None and self.hardware.disturbances:
            self.hardware.disturbances.check(self.most_gpus)

    def with_hardware(self, **hardware: Any) -> "Runner":
        """Return a runner like this one on changed hardware, to be used with `with`."""
        return Runner(replace(self.hardware, **hardware), self.engine, self.announce)

    def run(self, strategy: Strategy, job: Job, hardware: Hardware) -> list[RankResult]:
        return self.begin(strategy, job, hardware).results()

    def begin(self, strategy: Strategy, job: Job, hardware: Hardware) -> PendingRun:
        self.announce(strategy.name)
        size = job.mesh.world_size
        self.most_gpus = max(self.most_gpus, size)
        limit = self.limit_of(strategy, job)
        # it talks to nobody and waits for nobody: no engine is needed, and what it draws and derives is here
        # for all ranks
        if size == 1:
            return PendingRun(partial(run_alone, strategy.program, Task(hardware, (job,), limit=limit)))
        if size not in self.ranks:
            self.ranks[size] = Ranks(size, self.engine)
        keep: dict[str, Any] = {"keep_journal": self.contention, "limit": limit}
        if job.sizes_only and size > MOST_WITH_EVENTS:
            return self.ranks[size].begin(with_event_sums, hardware, strategy.program, job, **keep)
        return self.ranks[size].begin(strategy.program, hardware, job, **keep)

    def limit_of(self, strategy: Strategy, job: Job) -> Limit | None:
        """Return how long a reader's own file may compute: for every rank and microbatch TIMES_ALONE as long
        as the same work took the single GPU, which takes the batch whole."""
        if strategy.file is None:
            return None
        alone = self.reference(job, strategy.reference).cpu_seconds
        parts = job.mesh.world_size * job.microbatches
        return Limit(CPU_SECONDS + TIMES_ALONE * alone * parts, strategy.file)

    def reference(self, job: Job, program: Callable[..., Any] | None = None) -> Reference:
        """Return the single GPU's run of a job, made once: the reference for every size of model."""
        entry = baseline(job, program)
        key = (entry.strategy.program, entry.job)
        if key not in self.references:
            self.references[key] = self._refer(entry)
        return self.references[key]

    def reference_of(self, strategy: Strategy, job: Job, results: Sequence[RankResult]) -> Reference:
        """Return the single GPU's run that trains what these ranks have trained. Raises UserError where a
        reader's own trains something else."""
        usual = self.reference(job, strategy.reference)
        if strategy.file is None:
            return usual
        trained = set().union(*(result.value.trained for result in results))
        others = (self.reference(job, program) for program in strategy.references)
        for reference in chain([usual], others):
            if trained <= reference.trained:
                return reference
        strange = listed(sorted(trained - usual.trained))
        raise UserError(f"{strategy.name} trains {strange}, and no single GPU of this lesson does.")

    def rounding(self, job: Job) -> float:
        """How far the roundings of bfloat16 put the single GPU's first gradients from those in float32; 0 in
        other types."""
        if job.dtype != BFLOAT16 or job.sizes_only:
            return 0.0
        exact = self.reference(job.replace(dtype="float32", grad_reduce_in_bf16=False, steps=1))
        return gradient_difference([self.reference(job).results[0].value], exact.gradients)

    def _refer(self, entry: Entry) -> Reference:
        began = time.process_time()
        results = self.run(
            entry.strategy, entry.job, replace(undisturbed(self.hardware), memory_bytes=float("inf"))
        )
        took = time.process_time() - began
        measurement = measure(
            entry.strategy.name,
            results,
            self.hardware,
            entry.job.steps,
            losses=mean_losses(results),
            max_gradient_difference=0.0,
            max_weight_difference=0.0,
            weight_step_difference=0.0,
            gradient_norm=last_norm(results),
        )
        measurement = self.looked_through(measurement, entry, results, self.hardware)
        alone = results[0].value
        return Reference(
            entry, measurement, whole_tensors(alone.gradients), whole_tensors(alone.weights), results, took
        )

    def measured(self, entry: Entry) -> tuple[Measurement, list[RankResult]]:
        """Run one strategy and measure it."""
        return self._begin(entry)()

    def measured_in_turn(
        self, entries: Sequence[Entry | RefusedEntry], meanwhile: Callable[[], object] = lambda: None
    ) -> Iterator[tuple[Measurement, list[RankResult]]]:
        """Run one strategy after another. While ranks compute, do what is to be done `meanwhile`, make the
        next one's reference, and measure the entry before; while they end, measure the last one."""
        measured_before: Callable[[], tuple[Measurement, list[RankResult]]] | None = None
        for entry, following in zip(entries, [*entries[1:], *entries[-1:]]):
            measured = self._begin(entry)
            if entry.gpus > 1:
                meanwhile()
                if isinstance(following, Entry):
                    self.reference(following.job, following.strategy.reference)
            if measured_before:
                yield measured_before()
            measured_before = measured
        for ranks in self.ranks.values():
            ranks.end()
        if measured_before:
            yield measured_before()

    def _begin(self, entry: Entry | RefusedEntry) -> Callable[[], tuple[Measurement, list[RankResult]]]:
        """Start an entry's run, and return what waits for its end and measures it."""
        if isinstance(entry, RefusedEntry):
            row = failed(entry.strategy.name, entry.gpus, entry.reason)
            return lambda: (row, [])
        underway = self.begin(entry.strategy, entry.job, self._hardware(entry))
        return partial(self._measured, entry, underway)

    def _hardware(self, entry: Entry) -> Hardware:
        return replace(
            undisturbed(self.hardware) if entry.is_baseline else self.hardware, **entry.strategy.hardware
        )

    def _measured(self, entry: Entry, underway: PendingRun) -> tuple[Measurement, list[RankResult]]:
        strategy, job, _ = entry
        reference, hardware = self.reference(job, strategy.reference), self._hardware(entry)
        if reference.stands_for(entry, self.hardware):
            return reference.measurement, reference.results
        try:
            results = underway.results()
        except self.row_errors as error:
            return failed(strategy.name, entry.gpus, error), []
        if wrong := wrong_outcome(results, job.sizes_only):
            raise UserError(f"{strategy.name}: {wrong}")
        reference = self.reference_of(strategy, job, results)
        row = measure_against(strategy.name, results, hardware, job, reference)
        if hardware.disturbances:
            as_planned = self.run(strategy, job, undisturbed(hardware))
            row = replace(
                row, undisturbed_step_seconds=max(result.end_seconds for result in as_planned) / job.steps
            )
        if self.contention and entry.gpus > 1:
            row = replace(row, contention=measure_contention(results, hardware, job.steps))
        return self.looked_through(row, entry, results, hardware), results

    def looked_through(
        self, row: Measurement, entry: Entry, results: list[RankResult], hardware: Hardware
    ) -> Measurement:
        """Return the row with the place of its first NaN or infinity, which a second, watched run finds.
        Sizes alone are no numbers to look through or to compare."""
        if entry.job.sizes_only:
            return replace(
                row,
                max_gradient_difference=None,
                max_weight_difference=None,
                weight_step_difference=None,
                gradient_norm=None,
            )
        trace = first_trace([result.value for result in results])
        if trace is None:
            return row
        watched = self.run(
            entry.strategy, entry.job.replace(watch=True), replace(hardware, memory_bytes=float("inf"))
        )
        return replace(row, not_finite=str(earliest([result.value for result in watched]) or trace))


def measure_against(
    name: str, results: list[RankResult], hardware: Hardware, job: Job, reference: Reference
) -> Measurement:
    """Measure a run, and how far its numbers are from the single GPU's."""
    outcomes = [result.value for result in results]
    weights = distances((each for one in outcomes for each in one.weights), reference.weights)
    return measure(
        name,
        results,
        hardware,
        job.steps,
        losses=mean_losses(results),
        max_gradient_difference=gradient_difference(outcomes, reference.gradients),
        max_weight_difference=largest_difference(weights, reference.weights),
        weight_step_difference=step_difference(weights, reference.gradients, job.steps * job.learning_rate),
        gradient_norm=last_norm(results),
        forgotten_wait=forgotten_wait(results),
        baseline=reference.measurement,
    )


def wrong_outcome(results: Sequence[RankResult], sizes_only: bool = False) -> str:
    """Say which GPU returned no Outcome, as a program without `return replica.outcome` does, or one without
    gradients or weights, which only a run of sizes may have."""
    for result in results:
        if not hasattr(result.value, "gradients"):
            return (
                f"GPU {result.rank} returned {brief(result.value)}, and not its outcome: end with "
                "`return replica.outcome`."
            )
        if not result.value.gradients and not sizes_only:
            return (
                f"GPU {result.rank} never stepped its optimizer: call replica.optimizer_step() in every step."
            )
        if not result.value.weights and not sizes_only:
            return (
                f"GPU {result.rank} left its loop before the last step was over: go through all of "
                "replica.steps(), without `break` and `return` in between."
            )
    return ""


def run_alone(program: Callable[..., Any], task: Task) -> list[RankResult]:
    """Run a rank program on a single GPU, in this process."""
    with in_limit(task):
        return [run_rank(0, program, task, Alone())]


def with_event_sums(gpu: GPU, program: Callable[..., Any], job: Job) -> Any:
    """Run a rank program on a GPU that adds its events up instead of keeping them."""
    gpu.events = EventSums()
    return program(gpu, job)


def mean_losses(results: Sequence[RankResult]) -> tuple[float, ...]:
    """Return every step's loss over the whole batch, off the clock: the mean over the ranks that have it, and
    the experts' balance loss, which the ranks of every pipeline stage have of the stage's own layers."""
    found = [result.value.losses for result in results if result.value.losses]
    balance = [list(map(balance_loss, result.value.routed)) for result in results if result.value.routed]
    added = [math.fsum(step) / max(len(found), 1) for step in zip(*balance)] or repeat(0.0)
    return tuple(float(np.mean(losses)) + more for losses, more in zip(zip(*found), added))


def last_norm(results: Sequence[RankResult]) -> float | None:
    """Return the global norm of the last step's gradients, where they were clipped: the same on all ranks."""
    return next(reversed(results[0].value.gradient_norms), None)


def balance_loss(routed: Mapping[tuple[str, int], Routed]) -> float:
    """Return one rank's balance loss of a step: the sum over its layers, the mean over microbatches."""
    microbatches = {microbatch for _, microbatch in routed}
    return math.fsum(each.balance_loss for each in routed.values()) / max(len(microbatches), 1)
