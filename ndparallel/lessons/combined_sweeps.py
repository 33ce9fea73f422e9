"""4D: its sweeps over layouts, orders, levels of ZeRO, expert capacities and places of experts."""

from itertools import permutations
from math import isclose
from typing import Any

from gpu import si
from ndparallel.base.words import compare_durations, listed
from ndparallel.lessons.combined import grid
from ndparallel.lessons.expert_parallel import mixture
from ndparallel.lessons.lesson import Lesson
from ndparallel.lessons.runner import Entry, Runner, entry_of
from ndparallel.lessons.sweeps import (
    Row,
    fastest_first,
    fitting,
    routing_figures,
    row_and_results,
    sentence_of_first_and_last,
    sweep_row,
)
from ndparallel.results.report import Sweep
from ndparallel.training.job import Job

COLUMNS = ("step_seconds", "speedup", "exposed share", "bubble share", "sent_bytes", "memory_bytes")


def on_eight(lesson: Lesson, job: Job, changes: dict | None = None, **degrees: Any) -> Entry:
    """Enter the lesson's program on a grid of 8 GPUs."""
    return entry_of(grid(lesson.strategies[0].program, "", changes, **degrees), job, 8)


def layouts(lesson: Lesson, runner: Runner, job: Job) -> Sweep:
    """Run every dense layout of 8 GPUs."""
    powers = (1, 2, 4, 8)
    layouts: list[dict[str, Any]] = [
        {"tp": tp, "pp": pp, "dp": 8 // (tp * pp)} for tp in powers for pp in powers if tp * pp <= 8
    ]
    rows = fastest_first(
        [sweep_row(runner, on_eight(lesson, job, **layout), COLUMNS, **layout) for layout in layouts]
    )

    def sentence(best: Row, worst: Row) -> str:
        return (
            f"Fastest is TP{best['tp']} x PP{best['pp']} x DP{best['dp']}; what does not fit into memory has "
            "no step."
        )

    title = "All layouts of 8 GPUs, fastest first"
    return Sweep(title, rows, sentence_of_first_and_last(rows, sentence))


def orders(lesson: Lesson, runner: Runner, job: Job) -> Sweep:
    """Run 2 x 2 x 2 in every order of the three axes, innermost first."""
    rows = fastest_first(
        [
            sweep_row(runner, on_eight(lesson, job, tp=2, pp=2, dp=2, order=order), COLUMNS, order=order)
            for order in map("-".join, permutations(("tp", "dp", "pp")))
        ]
    )

    def like(row: Row) -> list[str]:
        return [each["order"] for each in rows if isclose(each["step_seconds"], row["step_seconds"])]

    def sentence(best: Row, worst: Row) -> str:
        longer, (first, last) = worst["step_seconds"] / best["step_seconds"] - 1, map(like, (best, worst))
        verb, takes = ("is", "are")[len(first) > 1], ("takes", "take")[len(last) > 1]
        return f"Best {verb} {listed(first)}, worst {listed(last)}, which {takes} {longer:.0%} longer."

    title = "TP2 x PP2 x DP2 in every order, innermost first, fastest first"
    return Sweep(title, rows, sentence_of_first_and_last(rows, sentence))


def zero_stages(lesson: Lesson, runner: Runner, job: Job) -> Sweep:
    """Run 2 x 2 x 2 with more and more sharded over dp: what does a pipeline pay for what it no longer
    holds?"""
    columns = (*COLUMNS, "buffers_bytes")
    rows = [
        sweep_row(runner, on_eight(lesson, job, {"zero": zero}, tp=2, pp=2, dp=2), columns, zero=zero)
        for zero in range(4)
    ]

    def sentence(first: Row, last: Row) -> str:
        longer = compare_durations(last["step_seconds"], first["step_seconds"])
        more = f"{last['sent_bytes'] / first['sent_bytes']:.1f}x"
        return (
            f"{level(last)} sends {more} the bytes of {level(first)}, and {longer}. "
            f"{who_needs_least(fitting(rows))}"
        )

    title = "TP2 x PP2 x DP2, by what DP shares out (0 is DDP, 3 FSDP)"
    return Sweep(title, rows, sentence_of_first_and_last(rows, sentence))


def level(row: Row) -> str:
    return f"ZeRO-{row['zero']}" if row["zero"] else "DDP"


def who_needs_least(rows: list[Row]) -> str:
    """Say which level of ZeRO needs the least memory, and what those have that share out more."""
    least = min(rows, key=lambda row: row["memory_bytes"])
    told = f"{level(least)} needs the least memory, {si(least['memory_bytes'], 'B')}."
    more = [row for row in rows if row["zero"] > least["zero"]]
    if not more:
        return told
    buffers = listed([f"{si(row['buffers_bytes'], 'B')} with {level(row)}" for row in more])
    return f"{told} What is shared out beyond that is whole again while it is used, in buffers: {buffers}."


def capacities(lesson: Lesson, runner: Runner, job: Job) -> Sweep:
    """Run the grid with experts, which take fewer and fewer rows: either all wait for the busiest rank, or
    rows are dropped."""
    rows = [at_capacity(lesson, runner, job, factor) for factor in (None, 2.0, 1.5, 1.25, 1.0)]

    def sentence(first: Row, last: Row) -> str:
        room = (
            f"With a capacity factor of {first['capacity_factor']}"
            if first["capacity_factor"]
            else "With no capacity factor"
        )
        busiest = f"{room}, the busiest rank has {first['busiest to mean']:.2f}x the mean rank's rows."
        if first is last:
            return busiest
        longer = compare_durations(last["step_seconds"], first["step_seconds"])
        dropped = f"{last['dropped share']:.0%} of the tokens' choices are dropped, and the step {longer}"
        return f"{busiest} With one of {last['capacity_factor']}, {dropped}."

    title = "TP2 x PP2 x DP2 with EP2, by what an expert takes (in even shares)"
    return Sweep(title, rows, sentence_of_first_and_last(rows, sentence))


def at_capacity(lesson: Lesson, runner: Runner, job: Job, factor: float | None) -> Row:
    experts = {"model": lambda job, mesh: mixture(job, mesh).replace(capacity_factor=factor)}
    entry = on_eight(lesson, job, experts, tp=2, pp=2, dp=2, ep=2)
    row, results = row_and_results(runner, entry, COLUMNS, capacity_factor=factor)
    del row["speedup"]  # one GPU alone drops other choices: it is no measure here
    return row | routing_figures(results)


def folding(lesson: Lesson, runner: Runner, job: Job) -> Sweep:
    """Run the grid with experts that tp cuts, and with whole ones, shared out over more and more GPUs."""
    degrees = ((2, 1), (2, 2), (1, 1), (1, 2), (1, 4))
    rows = [with_experts_over(lesson, runner, job, etp, ep) for etp, ep in degrees]
    quarters = [row for row in fitting(rows) if row["etp"] * row["ep"] == 4]

    def sentence(first: Row, last: Row) -> str:
        return cut_or_whole(*quarters) if len(quarters) == 2 else "What does not fit into memory has no step."

    title = "TP2 x PP2 x DP2 with experts: each cut over etp GPUs, all shared out over ep"
    return Sweep(title, rows, sentence_of_first_and_last(rows, sentence))


def with_experts_over(lesson: Lesson, runner: Runner, job: Job, etp: int, ep: int) -> Row:
    entry = on_eight(lesson, job, {"model": mixture}, tp=2, pp=2, dp=2, ep=ep, etp=etp)
    row, results = row_and_results(runner, entry, COLUMNS, etp=etp, ep=ep)
    return row | {"busiest to mean": routing_figures(results)["busiest to mean"]}


def cut_or_whole(cut: Row, whole: Row) -> str:
    """Compare experts that tp cuts with whole ones, of which a GPU has as many weights."""
    here, there = (f"etp {row['etp']}, ep {row['ep']}" for row in (cut, whole))
    longer = compare_durations(whole["step_seconds"], cut["step_seconds"])
    return (
        f"A GPU has a quarter of the experts' weights with {here} and with {there}. With {there} it sends "
        f"{whole['sent_bytes'] / cut['sent_bytes']:.2f}x the bytes, and the step {longer}. The busiest rank "
        f"has {whole['busiest to mean']:.2f}x the mean rank's rows, in place of "
        f"{cut['busiest to mean']:.2f}x."
    )


SWEEPS = {
    "layouts": layouts,
    "orders": orders,
    "zero": zero_stages,
    "capacity": capacities,
    "folding": folding,
}
