"""EP: the model with experts, what to notice, and its sweeps over the number of experts and over their
capacity."""

from collections.abc import Iterator, Sequence

from ndparallel.base.words import compare_durations
from ndparallel.lessons.lesson import Lesson
from ndparallel.lessons.runner import Runner, entry_of
from ndparallel.lessons.sweeps import (
    NOTHING_FITS,
    Row,
    fitting,
    routing_figures,
    row_and_results,
    sentence_of_first_and_last,
    sweep_row,
)
from ndparallel.model.units import ModelConfig
from ndparallel.parallel.mesh import Mesh
from ndparallel.results.report import Run, Sweep
from ndparallel.training.job import Job

EVERYWHERE, DIVIDED = "experts, everywhere", "experts, divided"
COLUMNS = ("step_seconds", "exposed share", "sent_bytes", "memory_bytes")
FACTORS = (None, 2.0, 1.5, 1.25, 1.0)  # capacity: even shares that an expert takes


def mixture(job: Job, mesh: Mesh) -> ModelConfig:
    """The lessons' model with 8 experts in place of every MLP, of which a token takes 2, unless the job has
    experts of its own."""
    return job.model if job.model.experts else job.model.replace(experts=8, top_k=2)


def notice(run: Run) -> Sequence[str]:
    """Say what dividing saves, what a favourite costs, and what hides behind what."""
    return [*about_dividing(run), *about_the_favourite(run), *about_hiding(run), *about_the_model(run)]


def about_dividing(run: Run) -> Iterator[str]:
    if EVERYWHERE in run and DIVIDED in run and run[EVERYWHERE].gpus > 1:
        states = [
            sum(run[name].peak_memory_bytes[kind] for kind in ("weights", "gradients"))
            for name in (EVERYWHERE, DIVIDED)
        ]
        sent = run[DIVIDED].bytes_sent_per_gpu / run[EVERYWHERE].bytes_sent_per_gpu
        yield (
            f"Divided, a GPU holds {states[1] / states[0]:.0%} of the weights and gradients, and sends "
            f"{sent:.0%} of the bytes: rows, and not the gradients of all experts."
        )


def about_the_favourite(run: Run) -> Iterator[str]:
    if DIVIDED in run and "experts, skewed" in run and run[DIVIDED].gpus > 1:
        busiest = routing_figures(run.results["experts, skewed"])["busiest to mean"]
        if busiest == 1:  # of sizes alone, whose routers are even
            return
        longer = compare_durations(run["experts, skewed"].step_seconds, run[DIVIDED].step_seconds)
        yield (
            f"With a favourite, the busiest GPU has {busiest:.1f}x the rows of the mean, all wait for it, "
            f"and the step {longer}."
        )


def about_hiding(run: Run) -> Iterator[str]:
    names = (DIVIDED, "experts, overlapped")
    waits = [run[name].exposed_communication_seconds for name in names if name in run]
    if len(waits) == 2 and waits[0] > waits[1]:
        yield (
            f"In two halves, one of which travels while the other is computed, {1 - waits[1] / waits[0]:.0%} "
            "of the waiting is hidden."
        )


def about_the_model(run: Run) -> Iterator[str]:
    if "EP" in run and "DP with experts" in run and run["EP"].gpus > 1:
        alike, divided = run["DP with experts"], run["EP"]
        memory = divided.peak_memory_bytes["total"] / alike.peak_memory_bytes["total"]
        longer = compare_durations(divided.step_seconds, alike.step_seconds)
        yield f"In the whole model EP needs {memory:.0%} of DP's memory, and {longer}."


# ----------------------------------------------------------------------------------------------------- sweeps


def numbers_of_experts(lesson: Lesson, runner: Runner, job: Job) -> Sweep:
    """Give the layer more and more experts, on 4 GPUs: what grows with them, and what does not?"""
    rows = [
        sweep_row(
            runner,
            entry_of(lesson.strategy(name), with_experts(job, experts), 4),
            COLUMNS,
            strategy=name,
            experts=experts,
        )
        for name in (EVERYWHERE, DIVIDED)
        for experts in (4, 8, 16, 32, 64)
    ]
    return Sweep("Experts on 4 GPUs, 2 for each token", rows, what_grows(rows))


def with_experts(job: Job, experts: int, capacity: float | None = None) -> Job:
    return job.replace(model=job.model.replace(experts=experts, top_k=2, capacity_factor=capacity))


def what_grows(rows: list[Row]) -> str:
    by_name = {
        name: {row["experts"]: row for row in fitting(rows) if row["strategy"] == name}
        for name in (EVERYWHERE, DIVIDED)
    }
    if not all(by_name.values()):
        return NOTHING_FITS
    sent = {name: [row["sent_bytes"] for row in of.values()] for name, of in by_name.items()}
    grown = {name: bytes_sent[-1] / bytes_sent[0] for name, bytes_sent in sent.items()}
    alike, divided = by_name.values()
    wins = [
        experts
        for experts in divided.keys() & alike.keys()
        if divided[experts]["step_seconds"] < alike[experts]["step_seconds"]
    ]
    first = f"from {min(wins)} experts on" if wins else "at none of these numbers"
    return (
        f"Divided is faster {first}. From the fewest to the most experts a GPU sends {grown[DIVIDED]:.1f}x "
        f"the bytes; where all are everywhere, {grown[EVERYWHERE]:.1f}x."
    )


def capacities(lesson: Lesson, runner: Runner, job: Job) -> Sweep:
    """Let the experts of a skewed router take fewer and fewer rows: either all wait for the favourite, or
    rows are dropped."""
    rows = [at_capacity(lesson, runner, job, factor) for factor in FACTORS]

    def sentence(first: Row, last: Row) -> str:
        less = compare_durations(last["step_seconds"], first["step_seconds"])
        return (
            f"Without a bound the busiest GPU has {first['busiest to mean']:.1f}x the mean's rows; where an "
            f"expert takes its even share and no more, {last['dropped share']:.0%} of the choices are "
            f"dropped, and the step {less}."
        )

    title = "A skewed router on 4 GPUs, by what an expert takes (in even shares)"
    return Sweep(title, rows, sentence_of_first_and_last(rows, sentence))


def at_capacity(lesson: Lesson, runner: Runner, job: Job, factor: float | None) -> Row:
    """One GPU alone drops other choices than four do, so that there is nothing to compare with."""
    entry = entry_of(lesson.strategy("experts, skewed"), with_experts(job, 8, factor), 4)
    row, results = row_and_results(runner, entry, COLUMNS, capacity_factor=factor)
    return row | routing_figures(results)


SWEEPS = {"experts": numbers_of_experts, "capacity": capacities}
