"""The screens "Cut it" and "Timeline": one layout of 4D, run with real numbers on simulated GPUs.

Idea   The set-up is a command line of 4d_combined.py, and goes the way that a command goes: the same parser,
       the same strategy, the same report. So the numbers are those that the command prints.
Limit  At most 16 GPUs: more would not answer at once.
"""

import threading
from collections.abc import Container, Iterator, Mapping, Sequence
from functools import cache
from itertools import groupby
from typing import Any

from gpu import COMPUTE, MEMORY_KINDS, WAIT, Hardware, si
from ndparallel.base.errors import UserError, refusal_of
from ndparallel.base.json_text import json_value
from ndparallel.base.options import Parser
from ndparallel.drawing.fewer_spans import alike
from ndparallel.drawing.lanes import timeline
from ndparallel.drawing.memory import memory_points
from ndparallel.engines.task import RankResult
from ndparallel.explorer.lanes import lanes
from ndparallel.explorer.setup import Control, checked, command, controls_and_reason, words
from ndparallel.lessons.lesson import Lesson
from ndparallel.lessons.main import parser_of
from ndparallel.lessons.options import disturbed_hardware_from, job_from
from ndparallel.lessons.registry import full_name, load
from ndparallel.lessons.runner import Entry, Runner, entry_of
from ndparallel.lessons.table import run_entries
from ndparallel.parallel.context import VARIANTS
from ndparallel.parallel.mesh import Mesh
from ndparallel.parallel.tensor import SEQUENCE_PARALLEL
from ndparallel.results.by_axis import AXES, axis_of, hierarchy
from ndparallel.results.columns import LEAST_SHARE, heads
from ndparallel.results.report import Report
from ndparallel.results.show import cell
from ndparallel.training.job import Job

PROGRAM = "python 4d_combined.py"
ORDERS = ("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp", "pp-dp-ep-cp-tp")
SCHEDULES = ("naive", "gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipev")
CLUSTER, CUT, STEP = "the cluster", "the cut", "the step"
CONTROLS = (
    Control("gpus", "--gpus", (1, 2, 4, 8, 16), 8, "GPUs in all", CLUSTER),
    Control("gpus_per_node", "--gpus-per-node", (1, 2, 4, 8, 16), 4, "GPUs in a node", CLUSTER, usual=4),
    Control(
        "slow_gpu",
        "--slow-gpu",
        ("none", "0:1.5", "0:2", "0:4"),
        "none",
        "how slow GPU 0 is: 0:2 takes twice as long",
        CLUSTER,
        usual="none",
    ),
    Control(
        "slow_link",
        "--slow-link",
        ("none", "0-1:4", "0-4:4", "0-4:16"),
        "none",
        "how slow a link is: 0-4:16 has a 16th of its bandwidth between GPUs 0 and 4",
        CLUSTER,
        usual="none",
    ),
    Control("tp", "--tp", (1, 2, 4, 8), 2, "tensor parallel, GPUs that share every matrix", CUT),
    Control("pp", "--pp", (1, 2, 4, 8), 2, "pipeline parallel, GPUs that share the layers", CUT, usual=1),
    Control("cp", "--cp", (1, 2, 4, 8), 1, "context parallel, GPUs that share each sequence", CUT, usual=1),
    Control(
        "context_parallel",
        "--context-parallel",
        tuple(VARIANTS),
        "ring",
        "how tokens see the others' keys and values, with cp",
        CUT,
        usual="ring",
    ),
    Control("ep", "--ep", (1, 2, 4, 8), 1, "expert parallel, GPUs that share the experts", CUT, usual=1),
    Control(
        "zero",
        "--zero",
        (0, 1, 2, 3),
        0,
        "what data parallelism shards: 1 optimizer, 2 gradients, 3 weights",
        CUT,
        usual=0,
    ),
    Control(
        "order",
        "--order",
        ORDERS,
        ORDERS[0],
        "whose GPUs are neighbours: the first axis, inside a node",
        CUT,
        usual=ORDERS[0],
    ),
    Control("schedule", "--schedule", SCHEDULES, "1f1b", "of the pipeline", STEP, usual="1f1b"),
    Control(
        "microbatches", "--microbatches", (1, 2, 4, 8, 16), 4, "parts of the batch, one after another", STEP
    ),
    Control("batch", "--batch", (8, 16, 32), 8, "sequences in a step", STEP, usual=8),
    Control(
        "sequence_parallel",
        "--sequence-parallel",
        SEQUENCE_PARALLEL,
        "none",
        "norms and residuals are cut beside tp",
        STEP,
        usual="none",
    ),
)
RUNNING = threading.Lock()  # one run at a time, whoever asks: they share a runner


@cache
def lesson() -> Lesson:
    return load(full_name("4d"))


@cache
def parser() -> Parser:
    return parser_of(lesson(), "4d_combined.py")


def entry(setup: Mapping[str, Any]) -> tuple[Any, Entry]:
    """Return the parsed command of a set-up, and its strategy with its job. Raises UserError as the command
    does."""
    arguments = parser().parse_args(words(CONTROLS, setup))
    job = job_from(arguments, lesson().defaults, arguments.gpus)
    disturbances = disturbed_hardware_from(arguments).disturbances
    if disturbances:
        disturbances.check(arguments.gpus)
    (strategy,) = lesson().strategies_for(lesson(), arguments)  # type: ignore[misc]
    if setup["pp"] > 1 and setup["microbatches"] == 1:
        raise UserError("with one microbatch a pipeline has one GPU at work; the command takes more.")
    return arguments, entry_of(strategy, job, arguments.gpus)


def refusal(setup: Mapping[str, Any]) -> str:
    """Say why a set-up cannot be; nothing where it can."""
    return refusal_of(entry, setup)


def answer(given: Mapping[str, Any]) -> dict[str, Any]:
    """Run a set-up. What cannot be says why, and shows what else could be set."""
    setup = checked(CONTROLS, given)
    head = {"command": command(PROGRAM, CONTROLS, setup), **controls_and_reason(CONTROLS, setup, refusal)}
    return head if "reason" in head else head | of_run(setup)


# ---------------------------------------------------------------------------------------------- what is shown

RUNNERS: dict[Any, Runner] = {}


def of_run(setup: Mapping[str, Any]) -> dict[str, Any]:
    """Run a set-up, and return all that the page draws of it: numbers as the command's JSON has them, and as
    people read them."""
    arguments, what = entry(setup)
    hardware = disturbed_hardware_from(arguments)
    assert what.job
    report, results = run(what, job_from(arguments, lesson().defaults, arguments.gpus), hardware)
    (row,) = report.as_dict()["strategies"]
    head = {
        "row": row,
        "cells": dict(zip(heads(wide=True), next(report.rows(wide=True)))),
        "remarks": report.remarks(),
        "gpus": places(what.job.mesh, hardware.gpus_per_node),
    }
    if not results:
        return head | {"reason": row["error"]}
    drawn = alike(timeline(row["name"], results))
    return head | {
        "parts": parts(row, results),
        "timeline": lanes(drawn),
        "memory": memory(results, hardware.memory_bytes, {lane.rank for lane in drawn.lanes}),
        "traffic": json_value(rows := hierarchy(results, hardware)),
        "traffic_text": [[cell(*item) for item in row.items()] for row in rows],
    }


def run(what: Entry, job: Job, hardware: Hardware) -> tuple[Report, list[RankResult]]:
    """Run on the inline engine; the single GPU's run of the same job is kept for the next one."""
    with RUNNING:
        runner = RUNNERS.setdefault(hardware, Runner(hardware, "inline"))
        done = run_entries(lesson().name, [what], job, runner)
    return done.report, done.results[what.strategy.name]


def parts(row: Mapping[str, Any], results: Sequence[RankResult]) -> list[dict[str, Any]]:
    """Say where a GPU's step goes, on average: compute, what it waits for by axis, and the bubble. What the
    table shows as 0 is left out."""
    waits: dict[str, float] = {}
    for result in results:
        for axis, waited in waits_of(result.events).items():
            waits[axis] = waits.get(axis, 0.0) + waited / len(results)
    seconds = {"compute": row["compute_seconds"]}
    seconds |= {f"exposed {axis}": waits[axis] for axis in AXES if axis in waits}
    seconds |= {"bubble": row["bubble_seconds"]}
    least = LEAST_SHARE * row["step_seconds"]
    return [
        {"name": name, "seconds": each, "text": f"{si(each, 's')}, {each / row['step_seconds']:.0%}"}
        for name, each in seconds.items()
        if each >= least
    ]


def waits_of(events: Sequence[tuple]) -> dict[str, float]:
    """Return the seconds that one GPU's compute stream waits, by the axis that it waits for."""
    waits: dict[str, float] = {}
    for _, stream, kind, _, start, end, _, _, peer in events:
        if stream == COMPUTE and kind == WAIT:
            waits[axis_of(peer)] = waits.get(axis_of(peer), 0.0) + end - start
    return waits


def memory(results: Sequence[RankResult], limit_bytes: float, drawn: Container[int]) -> dict[str, Any]:
    """Return what every GPU holds at its peak, by kind and in words; of those that are `drawn`, over time:
    points of [seconds, bytes by kind]."""
    return {
        "limit_bytes": limit_bytes,
        "limit": si(limit_bytes, "B"),
        "kinds": MEMORY_KINDS,
        "gpus": [
            {
                "rank": result.rank,
                "peak_bytes": sum(result.peak_bytes.values()),
                "peak": si(sum(result.peak_bytes.values()), "B"),
                "by_kind": [result.peak_bytes[kind] for kind in MEMORY_KINDS],
                "texts": [si(result.peak_bytes[kind], "B") for kind in MEMORY_KINDS],
                "points": list(points(result)) if result.rank in drawn else [],
            }
            for result in results
        ],
    }


def points(result: RankResult) -> Iterator[list[float]]:
    """Yield the highest point of every 400th of the step."""
    width = result.end_seconds / 400
    drawn = (
        [seconds, *(held[kind] for kind in MEMORY_KINDS)] for seconds, held in memory_points(result.events)
    )
    for _, part in groupby(drawn, key=lambda point: int(point[0] / width)):
        yield max(part, key=lambda point: sum(point[1:]))


def places(mesh: Mesh, gpus_per_node: int) -> list[dict[str, Any]]:
    """Return every GPU with its node, its place on every axis, and the others in its groups."""
    axes = [axis for axis in ("tp", "cp", "ep", "dp", "pp") if getattr(mesh, axis) > 1]
    return [
        {
            "rank": rank,
            "node": rank // gpus_per_node,
            "place": {axis: mesh.coordinates(rank)[axis] for axis in axes},
            "groups": {axis: list(mesh.group(axis, rank).ranks) for axis in axes},
        }
        for rank in range(mesh.world_size)
    ]
