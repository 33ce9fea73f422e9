"""A plan's step as the lessons' picture: a lane for each pipeline rank, or for compute and communication
where there is no pipeline.

Idea   The same timings as the prediction's, as the spans that ndparallel.drawing.terminal.timelines draws.
Limit  A few ranks stand for many, and few microbatches for many where all are alike; the title says which.
"""

from itertools import pairwise

import numpy as np

from ndparallel.drawing import palette
from ndparallel.drawing.spans import Lane, Span, Timeline
from ndparallel.pipeline.actions import Action
from ndparallel.pipeline.timing import Timing, time_schedule
from ndparallel.planner.layers.breakdown import TimeBreakdown
from ndparallel.planner.prediction import Prediction
from ndparallel.planner.step.framework import FrameworkWorkload
from ndparallel.planner.step.searched_schedule import replay_of_step
from ndparallel.planner.step.step import one_stage
from ndparallel.planner.step.workload import Workload

MOST_RANKS, MOST_MICROBATCHES = 8, 4
MOST_ACTIONS = 2**16  # of a pipeline, forward passes alone
ACTIONS = {"F": palette.FORWARD, "B": palette.BACKWARD, "I": palette.INPUT, "W": palette.WEIGHT}
PHASES = {
    "forward": palette.FORWARD,
    "backward": palette.BACKWARD,
    "input": palette.INPUT,
    "weight": palette.WEIGHT,
    "compute": palette.OTHER,
    "optimizer": palette.OPTIMIZER,
}


def timeline_of(found: Prediction) -> Timeline:
    """The picture of one step."""
    if found.job.stack.grid:
        return grid_timeline(found)
    if found.plan.pp > 1:
        return pipeline_timeline(found)
    microbatches = found.microbatches
    shown = min(microbatches, MOST_MICROBATCHES)
    name = "one step" if shown == microbatches else f"one step, {shown} of its {microbatches} microbatches"
    return stage_timeline(found.work, shown, name)


def stage_timeline(work: Workload, microbatches: int, name: str) -> Timeline:
    """Compute, and what communicates beside it."""
    trace: list[tuple[str, float, float, str]] = []
    seconds = one_stage(work, trace, microbatches).now
    return Timeline(name, float(np.max(seconds)), as_lanes(spans_of(trace)))


def grid_timeline(found: Prediction) -> Timeline:
    """What the GPUs of every pipeline rank do; without a pipeline, also what communicates beside it."""
    from ndparallel.planner.lesson_runs.step import traced_grid

    assert not isinstance(found.work, FrameworkWorkload)
    ranks = traced_grid(found.work)
    shown = shown_ranks(len(ranks), found.step.rank)
    lanes = [lane for rank in shown for lane in as_lanes(spans_of(ranks[rank].trace or []), rank)]
    if len(ranks) > 1:
        lanes = [lane for lane in lanes if lane.stream == "compute"]
    name = "one step" + f", {len(shown)} of its {len(ranks)} pipeline ranks" * (len(shown) < len(ranks))
    return Timeline(name, max(float(np.max(streams.now)) for streams in ranks), tuple(lanes))


def spans_of(trace: list[tuple[str, float, float, str]]) -> dict[str, list[Span]]:
    """What was noted, by stream; idle time is left blank."""
    lanes: dict[str, list[Span]] = {}
    for stream, start, end, what in trace:
        if end > start and what != "bubble":
            other = palette.WAITING if stream == "compute" else palette.COMMUNICATION
            lanes.setdefault(stream, []).append(
                Span(start, end, PHASES.get(what, other) if stream == "compute" else other, what)
            )
    return lanes


def as_lanes(lanes: dict[str, list[Span]], rank: int = 0) -> tuple[Lane, ...]:
    """One lane for each stream, first that of compute."""
    streams = sorted(lanes, key=lambda stream: stream != "compute")
    return tuple(Lane(rank, stream, tuple(lanes[stream])) for stream in streams)


def pipeline_timeline(found: Prediction) -> Timeline:
    """The schedule's actions on some of the ranks, and what follows them."""
    assert found.step.pipeline
    durations, tails = found.step.pipeline.actions.durations, found.step.pipeline.tails
    shown = min(found.microbatches, MOST_ACTIONS // found.plan.stages)
    timing = time_schedule(replay_of_step(found.plan, shown, durations).schedule, durations)
    ranks = shown_ranks(found.plan.pp, found.step.rank)
    seconds = durations.seconds_by_stage(timing.schedule.layout.stages)
    lanes = [pipeline_lane(timing, rank, seconds, tails[rank]) for rank in ranks]
    name = "one step of the pipeline"
    name += f", {shown} of its {found.microbatches} microbatches" * (shown < found.microbatches)
    name += f", {len(ranks)} of its {found.plan.pp} ranks" * (len(ranks) < found.plan.pp)
    return Timeline(name, max(lane.spans[-1].end for lane in lanes), tuple(lanes))


def pipeline_lane(timing: Timing, rank: int, seconds: dict[str, list[float]], tail: TimeBreakdown) -> Lane:
    """A rank's actions, and the `tail` of its step; `seconds` are those of each stage."""
    times = apart(list(zip(timing.schedule.actions[rank], timing.start[rank], timing.end[rank])), seconds)
    spans = [Span(start, end, ACTIONS[action.op], str(action)) for action, start, end in times]
    last, optimizer = spans[-1].end, float(tail["optimizer"])
    end = last + float(tail.total)
    spans.append(Span(last, end - optimizer, palette.WAITING, "gradients and weights"))
    spans.append(Span(end - optimizer, end, palette.OPTIMIZER, "optimizer"))
    return Lane(rank, "compute", tuple(span for span in spans if span.end > span.start), of="rank")


def apart(
    times: list[tuple[Action, float, float]], seconds: dict[str, list[float]]
) -> list[tuple[Action, float, float]]:
    """A fused pair runs from one start to one end: its two are drawn one after the other, as long as each
    would be of that time."""
    for place, ((one, start, end), (other, *same)) in enumerate(list(pairwise(times))):
        if same == [start, end] and end > start:
            first, second = seconds[one.op][one.stage], seconds[other.op][other.stage]
            middle = start + (end - start) * first / (first + second)
            times[place : place + 2] = [(one, start, middle), (other, middle, end)]
    return times


def shown_ranks(ranks: int, spoken_of: int) -> list[int]:
    """All ranks, or as many as there is room for: the first, the last and the one that is spoken of among
    them."""
    if ranks <= MOST_RANKS:
        return list(range(ranks))
    shown = [round(number * (ranks - 1) / (MOST_RANKS - 1)) for number in range(MOST_RANKS)]
    if spoken_of not in shown:
        shown[min(range(1, MOST_RANKS - 1), key=lambda place: abs(shown[place] - spoken_of))] = spoken_of
    return shown
