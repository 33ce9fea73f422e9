"""Seconds and memory of an executed run's step.

Idea   Where the stack runs on a grid, every GPU of every pipeline rank is timed, and the slowest one's
       seconds are the step; else the step is timed as a real framework's. FSDP in a pipeline is timed on the
       grid alone.
"""

from functools import lru_cache

from ndparallel.planner.lesson_runs.grid import run_grid, slowest_gpu
from ndparallel.planner.lesson_runs.memory import most_held
from ndparallel.planner.lesson_runs.workload import ExecutedWorkload
from ndparallel.planner.memory.total import STAGE_MEMORY_KINDS, StageMemory
from ndparallel.planner.step.pipeline import schedule_of
from ndparallel.planner.step.step import Step, one_stage, step_from, time_workload
from ndparallel.planner.step.streams import StreamClock


@lru_cache(maxsize=8)
def grid_of(work: ExecutedWorkload) -> list[StreamClock]:
    """Every pipeline rank's clocks at the end of the step: for its seconds and for its memory."""
    return run_grid(work, schedule_of(work))


def traced_grid(work: ExecutedWorkload) -> list[StreamClock]:
    """Every pipeline rank's clocks, with what every GPU does when, for a picture."""
    return run_grid(work, schedule_of(work), traces=True)


def executed_step(work: ExecutedWorkload) -> Step:
    """Time an executed run."""
    if not work.on_grid:
        return time_workload(work)
    return step_from(*slowest_gpu(grid_of(work)))


def executed_memory(work: ExecutedWorkload) -> list[StageMemory]:
    """The memory of every pipeline rank, counted as the GPUs of an executed run count it: allocation by
    allocation."""
    if work.on_grid:
        peaks = [streams.memory.fullest for streams in grid_of(work)]
    elif work.plan.pp == 1:
        peaks = [one_stage(work).memory.peak]
    else:
        schedule = schedule_of(work)
        peaks = [most_held(work, rank, schedule) for rank in range(work.plan.pp)]
    return [StageMemory(**{kind: peak.get(kind, 0.0) for kind in STAGE_MEMORY_KINDS}) for peak in peaks]
