"""What a rank of an executed run's pipeline holds, allocation by allocation."""

from functools import cache, partial

from ndparallel.pipeline.actions import Schedule
from ndparallel.planner.layers.operations import Hold
from ndparallel.planner.lesson_runs.workload import ExecutedWorkload
from ndparallel.planner.step.streams import Item, MemoryCounter


def most_held(work: ExecutedWorkload, rank: int, schedule: Schedule) -> dict[str, float]:
    """Bytes by kind when the rank of a pipeline holds most: its actions, one after another."""
    counter, held = MemoryCounter(), cache(partial(holds, work))
    counter.run(work.states(rank))
    whole = {stage: whole_gradients(work, stage) for stage in work.plan.layout.stages_of(rank)}
    for step in schedule.steps(rank):
        for op, stage, _ in step:  # from a stage's first backward pass on they are there
            counter.run(whole.pop(stage, ()) if op != "F" else ())
        for op, stage, _ in step:
            counter.run(held(op, stage))
    return counter.peak


def holds(work: ExecutedWorkload, op: str, stage: int) -> list[Item]:
    return [item for item in work.action_items(op, stage) if isinstance(item, Hold)]


def whole_gradients(work: ExecutedWorkload, stage: int) -> list[Hold]:
    """One microbatch's, which ZeRO-2 holds beside its shards until the next ones are made."""
    return [Hold("buffers", each.whole_bytes[1]) for each in work.buckets(stage) if work.plan.zero == 2]
