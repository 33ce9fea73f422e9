"""The screen "Schedule": all schedules on one scale, and one that the reader places by hand.

Idea   The reader's schedule is a letter for every action, GPU by GPU: "FFB|FB" takes the next microbatch each
       time. What is placed is timed as far as it can run, and the checker says what a GPU waits for.
Limit  By hand each GPU has one stage.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ndparallel.base.errors import UserError
from ndparallel.drawing.actions import peaks
from ndparallel.drawing.svg.schedules import boxes, fused_pairs
from ndparallel.explorer.setup import Control, checked, command, stops
from ndparallel.pipeline.actions import Action, Layout, Schedule
from ndparallel.pipeline.catalog import RECIPES, build, written_schedules
from ndparallel.pipeline.checker import explain, run_ranks, waits_for
from ndparallel.pipeline.clock import Clock
from ndparallel.pipeline.timing import Timing, time_schedule
from ndparallel.pipeline.work import Work

PIPELINE, TIMES = "the pipeline", "seconds of an action, for all of a GPU's layers"
CONTROLS = (
    Control("stages", "--stages", (2, 3, 4, 6, 8), 4, "GPUs in the pipeline", PIPELINE),
    Control("microbatches", "--microbatches", (2, 4, 6, 8, 12, 16), 8, "parts of the batch", PIPELINE),
    Control("forward", "--forward", (0.5, 1, 1.5, 2), 1, "F, forward", TIMES, usual=1),
    Control(
        "backward_input", "--backward-input", (0.5, 1, 1.5, 2), 1, "I, gradient of the input", TIMES, usual=1
    ),
    Control(
        "backward_weight",
        "--backward-weight",
        (0.5, 1, 1.5, 2),
        1,
        "W, gradient of the weights",
        TIMES,
        usual=1,
    ),
    Control("p2p", "--p2p", (0, 0.1, 0.25, 0.5), 0, "a message", TIMES, usual=0),
)
PROGRAM, GOAL = "ndparallel schedule", "1f1b"
TOO_LONG = "naive"  # for one scale with the others
OPS = "FBIW"


def answer(given: Mapping[str, Any]) -> dict[str, Any]:
    """Time every schedule that can be written for these sizes, and what the reader has placed."""
    placed = str(given.get("mine", ""))
    setup = checked(CONTROLS, {name: value for name, value in given.items() if name != "mine"})
    timed, reasons = all_timed(setup)
    return {
        "command": command(
            f"{PROGRAM} {' '.join(timing.schedule.name for timing in timed)}", CONTROLS, setup
        ),
        "controls": list(stops(CONTROLS, setup, refusal)),
        "schedules": [described(timing) for timing in timed],
        "reasons": reasons,
        "seconds": max(timing.makespan for timing in timed),
        "mine": by_hand(placed, setup),
    }


def refusal(setup: Mapping[str, Any]) -> str:
    """1F1B takes any number of microbatches, so that no stop is refused."""
    return ""


def all_timed(setup: Mapping[str, Any]) -> tuple[list[Timing], list[str]]:
    """Return all schedules that can be written, timed, and why the others cannot."""
    timed, reasons = [], []
    for name in [name for name in written_schedules() if name != TOO_LONG]:
        try:
            schedule = build(name, setup["stages"], setup["microbatches"])
            timed.append(time_schedule(schedule, work(setup, schedule.chunks)))
        except UserError as error:
            reasons.append(str(error))
    return timed, reasons


def work(setup: Mapping[str, Any], chunks: int) -> Work:
    times = (setup[name] for name in ("forward", "backward_input", "backward_weight", "p2p"))
    return Work.of_whole_stages(chunks, *times)


def described(timing: Timing) -> dict[str, Any]:
    """Return a schedule's figures as `ndparallel schedule --json` has them, and its actions to be drawn."""
    schedule = timing.schedule
    held = max(timing.peak_held) / schedule.chunks
    return {
        "name": schedule.name,
        "what": RECIPES[schedule.name].summary,
        "makespan": timing.makespan,
        "bubble_ratio": timing.bubble_ratio,
        "bubble_over_ideal": timing.bubble_over_ideal,
        "span_bubble_ratio": timing.span_bubble_ratio,
        "peak_held": timing.peak_held,
        "text": f"{timing.makespan:g} s, bubble {timing.bubble_ratio:.1%} of it and "
        f"{timing.bubble_over_ideal:.1%} of the work, holds {held:g} microbatches",
        "rows": [
            [row_of(schedule, box.action, box.start, box.end) for box in boxes(timing, rank)]
            for rank in range(schedule.ranks)
        ],
        "pairs": [list(fused_pairs(timing, rank)) for rank in range(schedule.ranks)],
    }


def row_of(schedule: Schedule, action: Action, start: float, end: float) -> list[Any]:
    """Return [start, end, op, microbatch, chunk, what it is in words]: of a pair that runs as one each action
    has half of its time."""
    return [start, end, action.op, action.microbatch, schedule.layout.chunk(action.stage), str(action)]


# ------------------------------------------------------------------------------------------- placed by hand


def by_hand(placed: str, setup: Mapping[str, Any]) -> dict[str, Any]:
    """Time what is placed as far as it can run; say what each GPU waits for, what it may place next, and how
    it compares with 1F1B once all is placed."""
    ranks, microbatches = setup["stages"], setup["microbatches"]
    lists = [actions_of(letters, rank, microbatches) for rank, letters in enumerate(cut(placed, ranks))]
    schedule = Schedule("yours", Layout("loop", ranks), microbatches, lists, [[] for _ in lists])
    clock = Clock(schedule.layout, work(setup, 1))
    waits = run_ranks([clock.program(rank, schedule.steps(rank)) for rank in range(ranks)], clock.done)
    return {
        "placed": "|".join("".join(action.op for action in actions) for actions in lists),
        "rows": [
            [row_of(schedule, *each) for each in zip(*rank)] for rank in zip(lists, clock.start, clock.end)
        ],
        "waits": [f"waits for {need}" if need else "" for need in waits],
        "next": [allowed(actions, microbatches) for actions in lists],
        "hint": hint(lists, clock, microbatches),
        "verdict": verdict(schedule, setup) if all(map(len, lists)) else "",
    }


def hint(lists: Sequence[Sequence[Action]], clock: Clock, microbatches: int) -> dict[str, Any] | None:
    """Return the action that can begin the soonest after those that ran, which `clock` has timed: of equals
    the gradient of an input, then a forward. A GPU holds at most as many microbatches as with 1F1B."""
    found = []
    for rank, actions in enumerate(lists):
        number, reasons = numbers(actions), allowed(actions, microbatches)
        is_full = number["F"] - number["W"] >= len(lists) - rank
        for op in "IFW":
            action = Action(op, rank, number[op])
            if reasons[op] or (op == "F" and is_full) or waits_for(action, clock.done, clock.last_stage):
                continue
            found.append((max(clock.now[rank], clock.arrival(action)), "IFW".index(op), action))
    if not found:
        return None
    start, _, action = min(found)
    words = f"Soonest of all, at {start:g} s, GPU {action.stage} can begin {action}."
    return {"rank": action.stage, "op": action.op, "text": words}


def cut(placed: str, ranks: int) -> list[str]:
    """Return the letters of every GPU; those of GPUs that there are not are left out."""
    letters = placed.upper().split("|")[:ranks]
    return letters + [""] * (ranks - len(letters))


def actions_of(letters: str, rank: int, microbatches: int) -> list[Action]:
    """Return the actions of one GPU: each letter takes the next microbatch of its kind. Raises UserError for
    a letter that is none, or comes too early or too often."""
    actions: list[Action] = []
    for letter in letters:
        reasons = allowed(actions, microbatches)
        if letter not in OPS or reasons[letter]:
            raise UserError(
                f"GPU {rank} cannot place {letter!r} here: {reasons.get(letter) or 'F, B, I or W'}."
            )
        actions.append(Action(letter, rank, numbers(actions)[letter]))
    return actions


def numbers(actions: Sequence[Action]) -> dict[str, int]:
    """Return the next microbatch of every kind: a full backward is one of I and one of W."""
    count = {op: sum(action.op == op for action in actions) for op in OPS}
    return {
        "F": count["F"],
        "B": count["B"] + count["I"],
        "I": count["B"] + count["I"],
        "W": count["B"] + count["W"],
    }


def allowed(actions: Sequence[Action], microbatches: int) -> dict[str, str]:
    """Say, for every kind of action, why it cannot be placed next; nothing where it can."""
    number = numbers(actions)
    backward = (
        "all backwards are placed"
        if number["B"] >= microbatches
        else f"F of microbatch {number['B']} comes first"
        if number["B"] >= number["F"]
        else ""
    )
    weights = "all weight gradients are placed" if number["W"] >= microbatches else ""
    return {
        "F": "all forwards are placed" if number["F"] >= microbatches else "",
        "B": backward or ("W of an earlier microbatch comes first" if number["W"] < number["B"] else ""),
        "I": backward,
        "W": weights or (f"I of microbatch {number['W']} comes first" if number["W"] >= number["I"] else ""),
    }


def verdict(schedule: Schedule, setup: Mapping[str, Any]) -> str:
    """Compare a schedule that is whole with 1F1B; say what is missing of one that is not."""
    if fault := explain(schedule):
        return f"Not yet: {fault.replace('rank ', 'GPU ')}"  # as the page calls it
    mine = time_schedule(schedule, work(setup, 1))
    goal = time_schedule(build(GOAL, setup["stages"], setup["microbatches"]), work(setup, 1))
    held = f"held {peaks(mine.peak_held)}, where 1F1B holds {peaks(goal.peak_held)}"
    times = f"{mine.makespan:g} s, where 1F1B takes {goal.makespan:g} s; {held}"
    if mine.makespan < goal.makespan:
        return f"You beat 1F1B: {times}."
    return f"{'As fast as 1F1B' if mine.makespan == goal.makespan else 'Not as fast as 1F1B'}: {times}."
