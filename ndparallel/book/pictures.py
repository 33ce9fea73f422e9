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

from ndparallel.drawing.block import block_run
from ndparallel.drawing.history import alike, memory_history, timeline
from ndparallel.drawing.svg import draw_timelines
from ndparallel.drawing.svg_block import draw_block
from ndparallel.drawing.svg_memory import draw_memory
from ndparallel.drawing.svg_schedules import draw_schedules
from ndparallel.drawing.svg_work import draw_work
from ndparallel.hardware.accelerator import find_hardware
from ndparallel.lessons.comparison import one_run
from ndparallel.lessons.main import run_lesson
from ndparallel.lessons.options import add_common_options, hardware_from
from ndparallel.lessons.registry import LESSONS, ROOT, load
from ndparallel.pipeline.catalog import build
from ndparallel.pipeline.timing import Timing, time_schedule
from ndparallel.pipeline.work import Work
from ndparallel.results.run import Run
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
    return run_lesson(its, Job(**(its.defaults | job)), hardware, its.gpus, names, engine, lambda name: None)


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
    return draw_block(
        [block_run(name, run.results[name], f"layers.{model.layers // 2}") for name in names], model
    )


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


def time_one(name: str, ranks: int = 4, microbatches: int = 8) -> Timing:
    schedule = build(name, ranks, microbatches)
    return time_schedule(schedule, Work.of_whole_stages(schedule.chunks))


ZERO_D, ONE_D = (
    ("single GPU", "4 microbatches", "full recompute"),
    ("DDP ring", "DDP overlapped", "FSDP", "FSDP prefetch"),
)
STAGES_OF_ZERO, TWO_D = (
    ("DDP ring", "ZeRO-1", "ZeRO-2", "FSDP prefetch"),
    ("TP", "TP + SP", "TP + SP regather"),
)
THREE_D, FOUR_D = ("1F1B", "ZB-V"), ("TP2 x PP2 x DP2", "TP outermost")

PICTURES = {
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
        "what each stage of ZeRO takes out of memory",
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
