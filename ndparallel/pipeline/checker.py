"""Can this schedule run, and if not, why: who waits for what.

Idea   One function, `waits_for`, says what an action still needs. The checker asks it until all lists are
       done or all ranks wait; the clock asks it before it moves time; so what is legal, what is timed and
       what an error says can never differ.
Cost   About a microsecond for every check of an action, of which there are one or two.
Limit  It speaks of order, not of time or memory: a legal schedule may be slow.

Glossary: see `ndparallel.pipeline.actions`.
"""

from collections import defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence, Sized

from ndparallel.base.words import listed
from ndparallel.pipeline.actions import Action, Layout, Schedule

# what is done after each op: a full backward gives the gradient of the input as I does
GIVES = {"F": "F", "I": "I", "B": "I", "W": "W"}


def waits_for(action: Action, done: Container, last_stage: int) -> Action | None:
    """The first thing that `action` needs and that is not in `done` yet, or None when it can run: why can't
    this run yet?

    `done` holds (op, stage, microbatch) with op one of F, I, W; a full backward counts as I.
    """
    op, stage, microbatch = action
    if op == "F":
        return (
            None if stage == 0 or ("F", stage - 1, microbatch) in done else Action("F", stage - 1, microbatch)
        )
    if op == "W":
        return None if ("I", stage, microbatch) in done else Action("I", stage, microbatch)
    if ("F", stage, microbatch) not in done:
        return Action("F", stage, microbatch)
    return (
        None
        if stage == last_stage or ("I", stage + 1, microbatch) in done
        else Action("I", stage + 1, microbatch)
    )


def explain(schedule: Schedule) -> str | None:
    """None if `schedule` can run and does everything exactly once, else one sentence that says why not."""
    for faults in (_wrong_entries, _wrong_counts, _wrong_pairs, _circles):
        for fault in faults(schedule):
            return fault
    return None


def run_ranks(programs: Sequence[Iterator[Action]], done: Sized) -> list[Action | None]:
    """Let all ranks go on until none can; return what each one waits for, None for those that ended.

    A program yields what it waits for as long as it waits, and adds to `done` what it does.
    """
    waits: list[Action | None] = []
    before = -1
    while len(done) > before:
        before = len(done)
        waits = [next(program, None) for program in programs]
        # gradients travel from the last rank to the first
        waits = [next(program, None) for program in reversed(programs)][::-1]
    return waits


def _wrong_entries(schedule: Schedule) -> Iterator[str]:
    layout = schedule.layout
    for rank, actions in enumerate(schedule.actions):
        stages = layout.stages_of(rank)
        for action in actions:
            if action.op not in GIVES:
                yield f"rank {rank} lists {action}: an op is one of F, B, I, W."
            elif not 0 <= action.microbatch < schedule.microbatches:
                yield f"rank {rank} lists {action}: there are microbatches 0 to {schedule.microbatches - 1}."
            elif action.stage not in stages:
                has = "stages are" if len(stages) > 1 else "only stage is"
                yield f"rank {rank} lists {action}: its {has} {listed([*map(str, sorted(stages))])}."


def _wrong_counts(schedule: Schedule) -> Iterator[str]:
    listed: dict[tuple[int, int], str] = defaultdict(str)
    for actions in schedule.actions:
        for op, stage, microbatch in actions:
            listed[stage, microbatch] += op
    for stage in range(schedule.layout.stages):
        for microbatch in range(schedule.microbatches):
            ops = listed[stage, microbatch]
            if ops != "FB" and sorted(ops) not in (["B", "F"], ["F", "I", "W"]):
                yield (
                    f"rank {schedule.layout.rank(stage)} {_count_fault(ops)} of microbatch {microbatch} on "
                    f"stage {stage}."
                )


def _count_fault(ops: str) -> str:
    twice = next((op for op in "FBIW" if ops.count(op) > 1), None)
    if twice:
        return f"lists {ops.count(twice)} times, not once, {twice}"
    if "F" not in ops:
        return "never does F"
    if "B" in ops:
        return f"lists besides B, which is I and W at once, also {'I' if 'I' in ops else 'W'}"
    if "I" in ops:
        return "never does W, the gradient of the weights,"
    return "never does " + ("I, the gradient of the input," if "W" in ops else "the backward pass")


def _wrong_pairs(schedule: Schedule) -> Iterator[str]:
    for rank, positions in enumerate(schedule.fused):
        last, begins = len(schedule.actions[rank]) - 1, set(positions)
        for position in positions:
            if not 0 <= position < last:
                yield (
                    f"rank {rank} fuses position {position} with the next: a pair begins at 0 to {last - 1}."
                )
            elif position + 1 in begins:
                yield (
                    f"rank {rank} fuses positions {position} and {position + 1} each with the next: a pair "
                    "is two actions, not three."
                )


def _circles(schedule: Schedule) -> Iterator[str]:
    done: set[tuple[str, int, int]] = set()
    waits = run_ranks([_program(schedule, rank, done) for rank in range(schedule.ranks)], done)
    needs = {rank: need for rank, need in enumerate(waits) if need}
    if needs:
        yield _circle(needs, schedule.layout)


def _program(schedule: Schedule, rank: int, done: set[tuple[str, int, int]]) -> Iterator[Action]:
    last_stage = schedule.layout.stages - 1
    for step in schedule.steps(rank):
        for action in step:
            while need := waits_for(action, done, last_stage):
                yield need
        for op, stage, microbatch in step:
            done.add((GIVES[op], stage, microbatch))


def _circle(needs: Mapping[int, Action], layout: Layout) -> str:
    """Follow who waits for whom until a rank comes up again: where no action is missing, whoever is waited
    for waits too."""
    path, rank = [], min(needs)
    while rank not in path:
        path.append(rank)
        rank = layout.rank(needs[rank].stage)
    circle = path[path.index(rank) :]
    if len(circle) == 1:
        return f"rank {rank} waits for its own {needs[rank]}, which does not come earlier in its list."
    return (
        f"rank {circle[0]} "
        + ", which ".join(_wait(needs[rank], layout) for rank in circle)
        + ": none of them can go on."
    )


def _wait(need: Action, layout: Layout) -> str:
    what = "activations" if need.op == "F" else "gradients"
    return (
        f"waits for the {what} of microbatch {need.microbatch} (stage {need.stage}) from rank "
        f"{layout.rank(need.stage)}"
    )
