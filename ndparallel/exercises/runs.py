"""The ways in which an answer is run: on bare GPUs, as a strategy of a lesson, as a pipeline's schedule.

Idea   Everything runs on the inline engine, all GPUs in one process: the simulated seconds are those of any
       engine, and nothing has to start.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from gpu import COLLECTIVE, GPU, SEND, Event, Hardware
from ndparallel.base.errors import UserError
from ndparallel.base.events import of_kinds
from ndparallel.base.quoting import brief
from ndparallel.base.words import count, ended
from ndparallel.drawing.fewer_spans import alike
from ndparallel.drawing.lanes import timeline
from ndparallel.engines.launch import RankResult, launch
from ndparallel.exercises.answer import TOLD, Answer
from ndparallel.exercises.exercise import Attempt
from ndparallel.hardware.pocket import POCKET
from ndparallel.lessons.lesson import Strategy
from ndparallel.lessons.runner import Reference, Runner, entry_of, mean_losses, wrong_outcome
from ndparallel.parallel.mesh import Mesh
from ndparallel.pipeline.actions import Action, Layout, Schedule
from ndparallel.pipeline.catalog import actions_of, most_actions
from ndparallel.pipeline.checker import explain
from ndparallel.pipeline.timing import time_schedule
from ndparallel.pipeline.work import Work
from ndparallel.results.against_one_gpu import WEIGHT_TOLERANCE
from ndparallel.results.measure import breakdown, bytes_sent, forgotten_wait
from ndparallel.training.gradient_check import (
    TOLERANCE,
    Tensors,
    differences,
    distances,
    distances_of,
    step_difference,
)
from ndparallel.training.job import Job


def on_gpus(program: Callable[[GPU], Any], gpus: int, hardware: Hardware) -> list[RankResult]:
    """Run a program on so many GPUs."""
    return launch(program, gpus, hardware, engine="inline")


def attempt_of(
    results: Sequence[RankResult], figures: Iterable[str], wrong: str = "", steps: int = 1
) -> Attempt:
    """Measure a run of so many steps: these of its figures for one step, each on the GPU that has most."""
    measured = {
        "step_seconds": lambda: max(result.end_seconds for result in results) / steps,
        "bytes_sent": lambda: max(bytes_sent(result.events) for result in results) / steps,
        "peak_memory_bytes": lambda: max(sum(result.peak_bytes.values()) for result in results),
        "exposed_seconds": lambda: max(
            breakdown(result.events, result.end_seconds).exposed / steps for result in results
        ),
    }
    picture = alike(timeline("", map(sends_apart, results)))
    end = max(result.end_seconds for result in results)
    parts = [breakdown(result.events, end) for result in results]
    spent = {
        name: sum(getattr(part, name) for part in parts) / len(parts) / steps
        for name in ("compute", "exposed", "bubble")
    }
    sent = tuple(bytes_sent(result.events) / steps for result in results)
    return Attempt({name: measured[name]() for name in figures}, picture, wrong, sent_bytes=sent, spent=spent)


def sends_apart(result: RankResult) -> RankResult:
    """Return a rank's run in which sending is drawn as communication, and only receiving as waiting."""
    drawn: list[tuple] = [
        event._replace(kind=COLLECTIVE) if event.kind == SEND else event
        for event in map(Event._make, result.events)
    ]
    return result._replace(events=drawn)


def wrong_list(
    name: str, rank: int, arrays: Sequence[object], shapes: Sequence[tuple[int, ...] | None]
) -> str:
    """Say what is wrong with a rank's list that should have arrays of these shapes, and anything where there
    is none; nothing where it has."""
    if len(arrays) != len(shapes):
        return (
            f"{name} of GPU {rank} has {count(len(arrays), 'element')} in the end, and should have "
            f"{len(shapes)}, as in the beginning."
        )
    for place, (array, shape) in enumerate(zip(arrays, shapes)):
        if shape and getattr(array, "shape", None) != shape:
            found = described(array)
            return f"{name}[{place}] of GPU {rank} is {found}, and should be an array of shape {shape}."
    return ""


def described(found: object) -> str:
    """Name what an answer has made: an array by its shape, and what holds others by its type."""
    if isinstance(found, np.ndarray):
        return f"an array of shape {found.shape}"
    return f"a {type(found).__name__}" if isinstance(found, list | tuple | dict) else brief(found)


def as_array(found: object) -> object:
    """Return a list of numbers or rows as the array that it stands for, and all else as it is."""
    if not isinstance(found, list):
        return found
    try:
        array = np.array(found)
    except ValueError:  # rows of several lengths
        return found
    return array if array.dtype.kind in "iuf" else found


def ready_made(results: Sequence[RankResult]) -> str:
    """Say which collective an answer calls that is asked to write one; nothing where it calls none."""
    for collective, _algorithm in called(results):
        return (
            f"The numbers are right, but {collective} of collectives.py does what you are asked to write: "
            "use gpu.send and gpu.receive alone."
        )
    return ""


def called(results: Sequence[RankResult]) -> Iterator[tuple[str, str]]:
    """Yield the collectives of a run, each with its algorithm."""
    for result in results:
        yield from (event.what[2:4] for event in of_kinds(result.events, COLLECTIVE))


MEASURED = "The run that is measured and shown is right."


def right_everywhere(
    run: Callable[..., Attempt], name: str, measured: Sequence[float], *others: Sequence[float]
) -> Attempt:
    """Run an answer in the world that is measured, and in others, in which it must be right too. `name` says
    in which one it was wrong."""
    done = run(*measured)
    for world in others:
        if not done.wrong:
            fault = fault_of(run, world)
            done = done.with_fault(fault and f"{name.format(*world)}: {ended(fault)} {MEASURED}")
    return done


def fault_of(run: Callable[..., Attempt], world: Sequence[float]) -> str:
    """Say what is wrong with an answer in a world; nothing where it is right."""
    try:
        return run(*world).wrong
    except TOLD as error:
        return str(error)


def first_fault(faults: Iterable[str]) -> str:
    """Return the first that is not empty; nothing where all are."""
    return next(filter(None, faults), "")


# -------------------------------------------------------------------------------- as a strategy of a lesson


OTHERS = ((3, 2), (2, 3))  # GPUs and layers
OF_A_STEP = WEIGHT_TOLERANCE["float32", "adamw"].most  # that weights may be away from the single GPU's


def in_lesson(
    program: Callable[[GPU, Job], Any],
    job: Job,
    mesh: Mesh,
    figures: Iterable[str],
    hardware: Hardware = POCKET,
    meaning: Callable[[float], str] | None = None,
    reference: Callable[[GPU, Job], Any] | None = None,
    fault: Callable[[], str] = str,
) -> Attempt:
    """Run a program as a strategy beside the single GPU, and compare every gradient. `meaning` says what a
    gradient of so many times the right one usually means; `reference` is the single GPU's program where it
    trains another model than the lessons'; `fault` says what else may be wrong with the numbers."""
    with Runner(hardware, "inline") as runner:
        strategy = Strategy("answer", program, lambda gpus: mesh)
        results = runner.run(strategy, entry_of(strategy, job, mesh.world_size).job, hardware)
        alone = runner.reference(job, reference)
    tolerance = TOLERANCE[job.dtype]
    wrong = wrong_outcome(results)
    far_off = wrong or (
        wrong_gradients(results, alone.gradients, tolerance, meaning or averaged_wrongly(mesh.dp))
        or wrong_losses(mean_losses(results), alone.measurement.losses, tolerance)
        or wrong_weights(results, alone, job)
        or fault()
    )
    if far_off and not wrong:
        wrong = f"{ended(far_off)} {forgotten_wait(results)}".rstrip()
    return attempt_of(results, figures, wrong or missing_work(results, alone.results), job.steps)


def data_parallel(answer: Answer, name: str, job: Job, gpus: int, figures: Iterable[str]) -> Attempt:
    """Run an answer's rank program of this name as in_lesson does, on so many GPUs with a part of the batch
    each. It must be right too with OTHERS, with several buckets, and with one microbatch fewer where there
    are several."""
    sequences, fewer = job.batch // (gpus * job.microbatches), max(job.microbatches - 1, 1)

    def program(gpu: GPU, job: Job) -> Any:
        return getattr(answer.on(gpu.rank), name)(gpu, job)

    def run(gpus: int, layers: int, parts: int = fewer, bucket_mb: float = Job.bucket_mb) -> Attempt:
        model, batch = job.model.replace(layers=layers), gpus * parts * sequences
        changed = job.replace(model=model, batch=batch, microbatches=parts, bucket_mb=bucket_mb)
        return in_lesson(program, changed, Mesh(dp=gpus), figures)

    other = f"With {{}} GPUs, {count(fewer, 'microbatch', 'es')} and {{}} layers"
    measured = (gpus, job.model.layers, job.microbatches, job.bucket_mb)
    return right_everywhere(run, other, measured, *OTHERS)


def wrong_gradients(
    results: Sequence[RankResult], reference: Tensors, tolerance: float, meaning: Callable[[float], str]
) -> str:
    """Say which gradient is not the single GPU's: the first rank, its first such tensor, where it is most
    wrong, and what that usually means."""
    for result in results:
        for holding in result.value.gradients:
            found = distances_of(holding, reference)
            for part, difference in zip(holding.pieces(), differences(found, reference)):
                if not difference <= tolerance:
                    parameter, elements, array = part
                    right = reference[parameter.name][parameter.index].reshape(-1)[elements]
                    margin = reference.scales[parameter.name] * tolerance
                    return wrong_element(result.rank, parameter.name, array, right, margin, meaning)
    return ""


def wrong_losses(found: Sequence[float], right: Sequence[float], tolerance: float) -> str:
    """Say which step's loss is not the single GPU's, where the gradients of the first step are."""
    if len(found) != len(right):
        return f"There are losses of {count(len(found), 'step')}, and {len(right)} should be."
    for step, (loss, expected) in enumerate(zip(found, right)):
        if not abs(loss - expected) <= 10 * tolerance * abs(expected):
            return (
                f"The loss of step {step + 1} is {loss:.6g}, and {expected:.6g} is right. The first step's "
                "gradients were right, so its weights are not: does everybody have all stepped weights?"
            )
    return ""


def wrong_weights(results: Sequence[RankResult], alone: Reference, job: Job) -> str:
    """Say which GPU's stepped weights are not the single GPU's, where gradients and losses are."""
    for result in results:
        found = distances(result.value.weights, alone.weights)
        far = step_difference(found, alone.gradients, job.steps * job.learning_rate)
        if far > OF_A_STEP:
            return (
                f"GPU {result.rank}: its weights are {far:.2g} of a step away from one GPU's, and its "
                "gradients are right. Does its optimizer step once for each batch, and does everybody have "
                "all stepped weights?"
            )
    return ""


def missing_work(results: Sequence[RankResult], alone: Sequence[RankResult]) -> str:
    """Say that less was charged to the clocks than a single GPU's work: what is multiplied beside them takes
    no time."""
    charged, work = flops_of(results), flops_of(alone)
    if charged >= 0.999 * work:
        return ""
    return (
        f"The numbers are right, but the clocks know of {charged / work:.0%} of the work: what numpy "
        "multiplies alone, as in h @ w, takes no time. Multiply with what the task gives, as it is "
        "given."
    )


def flops_of(results: Iterable[RankResult]) -> float:
    """Add up what all GPUs compute, in FLOPs."""
    return sum(event.flops for result in results for event in map(Event._make, result.events))


def wrong_element(
    rank: int,
    name: str,
    found: np.ndarray,
    right: np.ndarray,
    allowed: float,
    meaning: Callable[[float], str],
) -> str:
    place = int(np.argmax(np.abs(found - right)))
    if np.isnan(found[place]):
        return (
            f"GPU {rank}, gradient of {name}, element {place} is not a number. Freed memory holds none: were "
            "weights used that reshard() had freed, and gather() not made whole again?"
        )
    times = float(found @ right) / float(right @ right)
    alike = np.abs(found - times * right).max() <= 10 * allowed
    return (
        f"GPU {rank}, gradient of {name}, element {place}: {found[place]:.4g}, and {right[place]:.4g} is "
        f"right. {meaning(times) if alike else meaning(np.nan)}"
    )


def averaged_wrongly(ranks: int) -> Callable[[float], str]:
    """What it usually means that a data-parallel gradient is so many times the right one; NaN where it is no
    multiple of it."""

    def meaning(times: float) -> str:
        if np.isnan(times):
            return (
                "It is no multiple of the right one, so not all parts are in it: a bucket was not reduced, "
                "or reduced before it was full or after the optimizer's step, or its handle was not waited "
                "for."
            )
        if times == 0:
            return (
                "It is zero: it was never averaged, or before the backward pass had filled it, or its handle "
                "was not waited for."
            )
        if abs(times - ranks) < 0.01:
            return f"It is {ranks} times the right one: the sum over {ranks} GPUs where their mean is wanted."
        return f"It is {times:.3g} times the right one: are all parts in it, and each once?"

    return meaning


# --------------------------------------------------------------------------------- as a pipeline's schedule


PIPELINES = ((4, 8), (3, 5), (5, 7), (4, 2))  # GPUs and microbatches: the first is measured


def as_schedule(answer: Answer, ops: str) -> Attempt:
    """Time the lists of an answer's `schedule`, made of these ops, in the first of PIPELINES. In the others
    it must be able to run."""
    return right_everywhere(
        lambda *pipeline: in_pipeline(answer, ops, *pipeline), "With {} GPUs and {} microbatches", *PIPELINES
    )


def in_pipeline(answer: Answer, ops: str, ranks: int, microbatches: int) -> Attempt:
    """Time the lists of an answer's `schedule`: a stage for each GPU, and a second for each of F, I and W."""
    found = [answer.on(rank).schedule(rank, ranks, microbatches) for rank in range(ranks)]
    most = most_actions(1, microbatches)
    lists = [list(actions_among(ops, actions, rank, most)) for rank, actions in enumerate(found)]
    schedule = Schedule("", Layout("loop", ranks), microbatches, lists, [[]] * ranks)
    if fault := explain(schedule):
        return Attempt(wrong=fault[0].upper() + fault[1:])
    timing = time_schedule(schedule, Work())
    figures = {"step_seconds": timing.makespan, "held_microbatches": max(timing.peak_held)}
    return Attempt(figures, timing)


def actions_among(ops: str, found: object, rank: int, most: int) -> Iterator[Action]:
    """Read one GPU's list. Raises UserError for what is none, and for other ops."""
    for action in actions_of("schedule()", found, rank, most):
        if action.op not in tuple(ops):
            named = ", ".join(ops)
            raise UserError(
                f"schedule() yields the op {action.op!r} for GPU {rank}: here an op is one of {named}"
            )
        yield action
