"""The pictures that README.md and docs/ show: what each has, and how it is made from a run.

Idea   A picture is drawn from the same runs and by the same functions as --svg, `ndparallel schedule --svg`
       and a notebook use, so that none of them can tell another story. All lie in docs/pictures; one file
       serves light and dark pages.
Cost   A few seconds for all.
Limit  Files must be the same on every machine to the last byte; so only what the simulated clock says is
       drawn, never a loss.

Glossary
    stale   a file that is not what its picture would be now, or is not there
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from collectives import Group
from gpu import RECEIVE, Hardware
from ndparallel.base.errors import UserError
from ndparallel.base.events import of_kinds
from ndparallel.collective import hops
from ndparallel.drawing.block import block_run
from ndparallel.drawing.fewer_spans import alike
from ndparallel.drawing.lanes import timeline
from ndparallel.drawing.memory import memory_history
from ndparallel.drawing.svg.block import draw_block
from ndparallel.drawing.svg.crossover import draw_crossover
from ndparallel.drawing.svg.experts import draw_experts
from ndparallel.drawing.svg.filling import draw_filling, draw_with_memory
from ndparallel.drawing.svg.grid import GridRun, draw_grids
from ndparallel.drawing.svg.holders import KeptByGPU, draw_holders
from ndparallel.drawing.svg.memory import draw_memory
from ndparallel.drawing.svg.ring import draw_moving_ring, draw_ring
from ndparallel.drawing.svg.schedules import draw_schedules
from ndparallel.drawing.svg.timelines import draw_timelines
from ndparallel.drawing.svg.work import draw_work
from ndparallel.drawing.svg.zigzag import draw_zigzag
from ndparallel.engines.task import RankResult
from ndparallel.hardware.accelerator import find_hardware
from ndparallel.lessons.combined import grid
from ndparallel.lessons.comparison import one_run
from ndparallel.lessons.expert_parallel import mixture
from ndparallel.lessons.options import add_common_options, hardware_from
from ndparallel.lessons.registry import LESSONS, ROOT, load
from ndparallel.lessons.runner import Runner, entry_of
from ndparallel.lessons.table import run_lesson
from ndparallel.parallel.context import zigzag_positions
from ndparallel.pipeline.catalog import build
from ndparallel.pipeline.timing import Timing, time_schedule
from ndparallel.pipeline.work import Work
from ndparallel.results.by_axis import hierarchy
from ndparallel.results.report import Run
from ndparallel.training.job import Job

FOLDER = ROOT / "docs" / "pictures"
LONGEST = 33  # seconds of the longest schedule that is drawn on the gallery's common scale


@dataclass(frozen=True)
class Picture:
    """A picture of the book: what it shows, and how it is drawn from runs on an engine."""

    shows: str
    draw: Callable[[str], str]


def lesson_run(
    lesson: str, names: Sequence[str], engine: str, gpus_per_node: int | None = None, **job: int
) -> Run:
    """Run a lesson's strategies on pocket with other nodes or other fields of the job."""
    its, pocket = load(lesson), find_hardware("pocket")
    hardware = replace(pocket, gpus_per_node=gpus_per_node or pocket.gpus_per_node)
    return run_lesson(its, Job(**(its.defaults | job)), hardware, its.gpus, names, engine)


def timelines(lesson: str, names: Sequence[str], engine: str, **changes: int) -> str:
    run = lesson_run(lesson, names, engine, **changes)
    return draw_timelines([alike(timeline(name, run.results[name])) for name in names])


def memory(lesson: str, names: Sequence[str], engine: str, **changes: int) -> str:
    """Draw the memory of GPU 0 of every strategy."""
    run = lesson_run(lesson, names, engine, **changes)
    return draw_memory(
        [memory_history(name, run.results[name][0], run.hardware.memory_bytes) for name in names]
    )


def block(names: Sequence[str], engine: str) -> str:
    """Draw one of the middle layers; the first and the last have neighbours of another kind."""
    run, model = lesson_run("2d_tensor_parallel", names, engine), Job().model
    blocks = [block_run(name, run.results[name], f"layers.{model.layers // 2}") for name in names]
    return draw_block(blocks, model.sequence, model.head_dim)


def work(engine: str) -> str:
    """Draw the strategies of `ndparallel compare` that do the same work, run as it runs them."""
    parser = argparse.ArgumentParser()
    add_common_options(parser, gpus=None)
    arguments = parser.parse_args(["--engine", engine])
    run = one_run(arguments, [load(name) for name in LESSONS], lambda job: job, hardware_from(arguments))
    report = run.report
    pairs = zip(report.strategies, report.as_dict()["strategies"], strict=True)
    same = [(row, report.label(each)) for each, row in pairs if each.baseline in (None, report.baseline)]
    return draw_work([row for row, _ in same], [label for _, label in same])


def equal_work(names: Sequence[str], _engine: str, end: float | None = LONGEST) -> str:
    """Draw schedules of 4 ranks and 8 microbatches, with one second for each of F, I and W of a rank's
    layers. Nothing is executed."""
    return draw_schedules([time_one(name) for name in names], end)


def time_one(name: str) -> Timing:
    schedule = build(name, ranks=4, microbatches=8)
    return time_schedule(schedule, Work.of_whole_stages(schedule.chunks))


def ring(draw: Callable[[hops.Show], str], engine: str) -> str:
    """Draw the ring all-reduce of 1 MB in a pocket node."""
    group = Group("dp", (0, 1, 2, 3))
    return draw(hops.watch("all_reduce", "ring", group, find_hardware("pocket"), 1e6, engine))


def holders(names: Sequence[str], engine: str) -> str:
    """Draw what the GPUs of every strategy keep from step to step."""
    run = lesson_run("1d_data_parallel", names, engine)
    return draw_holders(
        [KeptByGPU(name, [ranks.peak_bytes for ranks in run.results[name]]) for name in names]
    )


def grids(names: Sequence[str], engine: str) -> str:
    """Draw layouts of 4D with the bytes that each axis carried in their runs."""
    run, strategies = lesson_run("4d_combined", names, engine), load("4d_combined")
    layouts = []
    for name in names:
        rows = hierarchy(run.results[name], run.hardware)
        sent = {row["axis"]: row["sent_bytes"] for row in rows}
        mesh = strategies.strategy(name).mesh(strategies.gpus)
        layouts.append(GridRun(name, mesh, run[name].step_seconds, sent))
    return draw_grids(layouts)


def held_over_time(names: Sequence[str], _engine: str) -> str:
    """Draw the schedules of `equal_work` with what they hold."""
    return draw_with_memory([time_one(name) for name in names])


def filling(_engine: str) -> str:
    return draw_filling(time_one("1f1b"))


def zigzag_mask(engine: str) -> str:
    """Draw eight groups of tokens of 4 GPUs, and the blocks that the messages of a run carry round."""
    run, groups = lesson_run("cp_context_parallel", CP, engine), 8
    owner = {position: rank for rank in range(4) for position in zigzag_positions(groups, 4, rank)}
    in_order = [group * 4 // groups for group in range(groups)]
    return draw_zigzag(in_order, [owner[group] for group in range(groups)], blocks_met(run.results[CP[0]]))


def blocks_met(results: Sequence[RankResult]) -> list[list[int]]:
    """Return, for every GPU, whose keys and values it has at each hop: first its own, then what its source
    had the hop before."""
    senders = [
        [event.peer for event in of_kinds(result.events, RECEIVE) if event.what[0] == "keys and values"]
        for result in results
    ]
    met = [[rank] for rank in range(len(results))]
    for sources in zip(*senders):
        before = [blocks[-1] for blocks in met]
        for blocks, source in zip(met, sources):
            blocks.append(before[source])
    return met


def experts(engine: str) -> str:
    """Draw the first layer of 4 GPUs that share 8 experts."""
    lesson = load("4d_combined")
    strategy = grid(lesson.strategies[0].program, "EP", {"model": mixture}, dp=4, ep=4)
    with Runner(find_hardware("pocket"), engine) as runner:
        _, results = runner.measured(entry_of(strategy, Job(**lesson.defaults), 4))
    return draw_experts([result.value.routed[0]["layers.0", 0].sent_rows for result in results])


def crossover(engine: str) -> str:
    """Run every cut on every network and batch, with sizes alone, where the batch allows the cut."""
    steps: dict[tuple[int, str], dict[str, float]] = {}
    for words, factor in LINKS.items():
        with Runner(with_links(factor), engine) as runner:
            for batch in BATCHES:
                found = {name: step_of(*where, batch, runner) for name, where in CUTS.items()}
                steps[batch, words] = {name: seconds for name, seconds in found.items() if seconds}
    return draw_crossover(steps, BATCHES, [*LINKS], [*CUTS])


def with_links(factor: float) -> Hardware:
    """Return pocket with links as fast as those of its node, times the factor, and its latencies."""
    pocket = find_hardware("pocket")
    inside = pocket.inside
    link = replace(inside, bandwidth_bytes_per_second=inside.bandwidth_bytes_per_second * factor)
    return replace(pocket, inside=link, across=link)


def step_of(lesson: str, strategy: str, batch: int, runner: Runner) -> float | None:
    """Return the seconds of a step; a pipeline takes microbatches of one sequence."""
    parts = batch if "pipeline" in lesson else 1
    try:
        job = Job(batch=batch, microbatches=parts, sizes_only=True)
        entry = entry_of(load(lesson).strategy(strategy), job, 4)
    except UserError:
        return None
    return runner.measured(entry)[0].step_seconds


ZERO_D = ("single GPU", "4 microbatches", "full recompute")
ONE_D = ("DDP ring", "DDP overlapped", "FSDP", "FSDP prefetch")
STAGES_OF_ZERO = ("DDP ring", "ZeRO-1", "ZeRO-2", "FSDP prefetch")
TWO_D = ("TP", "TP + SP", "TP + SP regather")
BATCHES, LINKS = (1, 2, 4, 8, 16), {"1/64": 1 / 64, "1/16": 1 / 16, "1/4": 1 / 4, "1": 1.0, "4": 4.0}
CUTS = {
    "DP": ("1d_data_parallel", "DDP overlapped"),
    "TP": ("2d_tensor_parallel", "TP + SP"),
    "PP": ("3d_pipeline_parallel", "ZB-V"),
}
CP = ("attention, ring zigzag",)
THREE_D, FOUR_D = ("1F1B", "ZB-V"), ("TP2 x PP2 x DP2", "TP outermost")

PICTURES = {
    "ring": Picture("a ring all-reduce, hop by hop", partial(ring, draw_ring)),
    "ring-moving": Picture("a ring all-reduce that moves", partial(ring, draw_moving_ring)),
    "holders": Picture("who holds what with ZeRO-0 to 3", partial(holders, STAGES_OF_ZERO)),
    "crossover": Picture("which cut wins, by link speed and batch", crossover),
    "zigzag": Picture("the causal mask in zigzag, and the blocks that go round", zigzag_mask),
    "experts": Picture("tokens on their way to the experts and back", experts),
    "1f1b-memory": Picture("1F1B and GPipe with what they hold", partial(held_over_time, ("gpipe", "1f1b"))),
    "1f1b-filling": Picture("1F1B as it fills", filling),
    "grid": Picture("who talks to whom, how much, over which link", partial(grids, FOUR_D)),
    "work": Picture("what the strategies spend on the same work", work),
    "0d-memory": Picture(
        "what accumulation and recomputation leave of memory", partial(memory, "0d_single_gpu", ZERO_D)
    ),
    # every GPU in a node of its own, where there is enough communication to be seen
    "1d-timeline": Picture(
        "what overlapping and prefetching hide, on slow links",
        partial(timelines, "1d_data_parallel", ONE_D, gpus_per_node=1),
    ),
    # in two microbatches, so that activations do not dwarf all else
    "1d-memory": Picture(
        "what each level of ZeRO takes out of memory",
        partial(memory, "1d_data_parallel", STAGES_OF_ZERO, microbatches=2),
    ),
    "2d-block": Picture("the block: who holds which slice, where the GPUs talk", partial(block, TWO_D)),
    "3d-timeline": Picture(
        "a pipeline with a bubble, and one that fills it", partial(timelines, "3d_pipeline_parallel", THREE_D)
    ),
    "4d-timeline": Picture(
        "who talks how often, and what rank order costs", partial(timelines, "4d_combined", FOUR_D)
    ),
    "schedules-naive": Picture("one microbatch after another", partial(equal_work, ("naive",), end=None)),
    "schedules-order": Picture(
        "forwards first, or backwards as soon as there are any",
        partial(equal_work, ("gpipe", "1f1b", "eager-1f1b")),
    ),
    "schedules-chunks": Picture("smaller stages", partial(equal_work, ("interleaved", "looped-bfs"))),
    "schedules-zero-bubble": Picture(
        "weight gradients in the bubble", partial(equal_work, ("zb-h1", "zb-h2"))
    ),
    "schedules-v": Picture("the V", partial(equal_work, ("zb-v", "dualpipev"))),
    "schedules-v-memory": Picture("a V that holds less", partial(equal_work, ("v-half", "v-min"))),
}


def path_of(name: str, folder: Path) -> Path:
    return folder / f"{name}.svg"


def is_stale(name: str, svg: str, folder: Path) -> bool:
    path = path_of(name, folder)
    return not path.is_file() or path.read_text("utf-8") != svg


def strays(folder: Path) -> list[Path]:
    """Return the files in the folder of pictures that are no pictures of the book."""
    return sorted(set(folder.glob("*")) - {path_of(name, folder) for name in PICTURES})
