"""What the tests of pipeline schedules share: shorthands, random schedules, and oracles that know nothing of
the package's own loops."""

from graphlib import CycleError, TopologicalSorter
from random import Random
from typing import Any

from hypothesis import strategies as st

from gpu import Hardware
from ndparallel.model.stages import layers_per_stage
from ndparallel.pipeline.actions import Action, Schedule
from ndparallel.pipeline.attempt import Memory, Problem
from ndparallel.pipeline.catalog import RECIPES, SEARCHED, build, written_schedules
from ndparallel.pipeline.timing import Timing, time_schedule
from ndparallel.pipeline.work import Work
from ndparallel.training.job import Job
from tests.support import hand_count

SCHEDULES = (*written_schedules(), SEARCHED)
DURATIONS = st.one_of(st.sampled_from([0.5, 1.0, 2.0]), st.floats(0.01, 5.0))


def timed(
    name: str, ranks: int, microbatches: int, F=1.0, I=1.0, W=1.0, p2p=0.0, chunks=None, fused=None, **search
) -> Timing:
    work = Work.of_whole_stages(1, F, I, W, p2p)
    schedule = build(name, ranks, microbatches, chunks, work, **search)
    return time_schedule(schedule, Work.of_whole_stages(schedule.chunks, F, I, W, p2p, fused))


def drawn_problem(seed: int) -> Problem:
    """A pipeline whose stages, messages and memory may be as unlike as can be."""
    draw = Random(seed)
    P, M = draw.randint(1, 6), draw.randint(1, 14)

    def by_stage(most: float) -> list[float] | float:
        return [draw.uniform(0.1, most) for _ in range(P)] if draw.random() < 0.5 else draw.uniform(0.1, most)

    def by_link(most: float) -> list[list[float]]:
        return [[draw.uniform(0, most) for _ in range(P)] for _ in range(P)]

    work = Work(by_stage(2), by_stage(2), by_stage(2), latency=by_link(0.5), wire=by_link(3))
    return Problem(P, M, work, Memory(draw.uniform(1, 2 * P), draw.choice([0.0, 0.4, 1.0])))


@st.composite
def schedules(draw, names=SCHEDULES) -> Schedule:
    name = draw(st.sampled_from(names))
    recipe, ranks = RECIPES.get(name), draw(st.integers(1, 6))
    microbatches = draw(st.integers(ranks if recipe and recipe.group else 1, 15))
    chunks = draw(st.integers(1, 4)) if recipe and recipe.chunks is None else None
    return build(name, ranks, microbatches, chunks)


@st.composite
def works(draw, schedule: Schedule) -> Work:
    """Stages of uneven times, full backwards that are not I + W, and ranks at uneven distances."""
    stages, ranks = schedule.layout.stages, schedule.ranks
    forward, backward_input, backward_weight, backward = (
        draw(st.lists(DURATIONS, min_size=stages, max_size=stages)) for _ in range(4)
    )
    delays = draw(
        st.lists(st.lists(st.floats(0, 3), min_size=ranks, max_size=ranks), min_size=ranks, max_size=ranks)
    )
    fused = draw(st.sampled_from([{}, 1.5]))
    return Work(forward, backward_input, backward_weight, backward, fused, delays)


def needs(action: Action, layout) -> list[list[Action]]:
    """The data that `action` reads: of each list, whichever the schedule has."""
    op, stage, microbatch = action
    if op == "W":
        return [[Action("I", stage, microbatch)]]
    if op == "F":
        return [[Action("F", stage - 1, microbatch)]] if stage else []
    later = [[Action(op, stage + 1, microbatch) for op in "BI"]] if stage + 1 < layout.stages else []
    return [[Action("F", stage, microbatch)], *later]


def graph(schedule: Schedule) -> dict[tuple[int, int], set[tuple[int, int]]]:
    """(rank, step) -> the steps that must come before: its inputs', and the one before on its rank."""
    steps = {
        (rank, place): step
        for rank in range(schedule.ranks)
        for place, step in enumerate(schedule.steps(rank))
    }
    home = {action: node for node, step in steps.items() for action in step}
    edges: dict[tuple[int, int], set[tuple[int, int]]] = {}
    for (rank, place), step in steps.items():
        inputs = {
            home[source]
            for action in step
            for sources in needs(action, schedule.layout)
            for source in sources
            if source in home
        }
        edges[rank, place] = inputs | ({(rank, place - 1)} if place else set())
    return edges


def is_legal(schedule: Schedule) -> bool:
    """Complete, everything where it lives, nothing twice, no circle."""
    layout = schedule.layout
    listed = sorted(action for actions in schedule.actions for action in actions)
    for stage in range(layout.stages):
        for microbatch in range(schedule.microbatches):
            ops = "".join(op for op, *where in listed if where == [stage, microbatch])
            if ops not in ("BF", "FIW"):
                return False
    if any(
        layout.rank(action.stage) != rank
        for rank, actions in enumerate(schedule.actions)
        for action in actions
    ):
        return False
    try:
        TopologicalSorter(graph(schedule)).prepare()
    except CycleError:
        return False
    return True


def ends_by_longest_path(schedule: Schedule, work: Work) -> dict[tuple[int, int], float]:
    """The end of every step: the longest path through the graph, with a pure delay between ranks."""
    seconds, edges = work.seconds_by_stage(schedule.layout.stages), graph(schedule)
    latency: Any = work.latency
    fused: Any = work.fused
    ends: dict[tuple[int, int], float] = {}
    for rank, place in TopologicalSorter(edges).static_order():
        step = schedule.steps(rank)[place]
        delay = {other: latency[other][rank] if other != rank else 0.0 for other in range(schedule.ranks)}
        start = max((ends[node] + delay[node[0]] for node in edges[rank, place]), default=0.0)
        alone = sum(seconds[action.op][action.stage] for action in step)
        ends[rank, place] = start + (fused if len(step) == 2 and fused else alone)
    return ends


def work_of(job: Job, schedule: Schedule, hardware: Hardware) -> Work:
    """Seconds of every stage's actions, and of the messages between ranks, from the costs alone."""
    sizes = hand_count.Sizes(job.model, job.microbatch, dtype=job.dtype)

    def seconds(operations):
        return sum(float(hardware.seconds(operation)) for operation in operations)

    layers = layers_per_stage(job.model, schedule.layout.stages)
    block, first, last = hand_count.block(sizes), hand_count.embedding(sizes), hand_count.head(sizes)
    times: dict[str, Any] = {}
    for part in block._fields:
        times[part] = [count * seconds(getattr(block, part)) for count in layers]
        times[part][0] += seconds(getattr(first, part))
        times[part][-1] += seconds(getattr(last, part))
    activation = sizes.tokens * job.model.hidden * 4
    links = [[hardware.link(a, b) for b in range(schedule.ranks)] for a in range(schedule.ranks)]
    latency = [[link.latency_seconds for link in row] for row in links]
    wire = [[activation / link.bandwidth_bytes_per_second for link in row] for row in links]
    return Work(**times, latency=latency, wire=wire)
