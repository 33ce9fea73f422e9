"""A heavy head.

A model of 30 layers is cut over 4 GPUs of a pipeline. The last GPU also has the head, which
turns activations into 128,000 logits, and takes as long as 4 layers. A pipeline goes at the
pace of its slowest stage:

        8 + 8 + 7 + 7 layers        the last stage takes as long as 11 layers, and the others wait

Given   layers, the head's time in layers, and the number of GPUs

Return how many layers each GPU gets, in order. Every GPU needs one at least. Your function is
tried on several models.

Right is a split of all layers. Then the seconds of 1F1B count.
"""

from collections.abc import Sequence
from numbers import Integral

import numpy as np

from ndparallel.exercises.exercise import Attempt, Exercise
from ndparallel.lessons.registry import full_name, module_of
from ndparallel.pipeline.actions import Layout, Schedule
from ndparallel.pipeline.timing import Timing, time_schedule
from ndparallel.pipeline.work import Work

MODELS = {"30 layers": (30, 4, 4), "16 layers, a light head": (16, 0.4, 4), "61 layers": (61, 6, 8)}
MICROBATCHES = 8


def split(layers: int, head: float, ranks: int) -> list[int]:
    """Return how many layers each GPU gets; the last one has the head as well, as long as `head` layers."""
    counts = [1] * ranks
    for _ in range(layers - ranks):
        load = [count + head * (rank == ranks - 1) for rank, count in enumerate(counts)]
        counts[min(range(ranks), key=lambda rank: load[rank])] += 1
    return counts


def attempt(answer) -> Attempt:
    figures, slowest, picture = {}, {}, None
    for name, (layers, head, ranks) in MODELS.items():
        counts = answer.on(0).split(layers, head, ranks)
        counts = counts.tolist() if isinstance(counts, np.ndarray) else counts
        if fault := wrong_split(counts, layers, ranks):
            return Attempt(wrong=f"{name}, head {head:g}, {ranks} GPUs: {fault}")
        timing = timed(counts, head, ranks)
        figures[f"seconds of {name}"] = timing.makespan
        slowest[name] = max(*counts[:-1], counts[-1] + head)
        picture = picture or timing
    return Attempt(figures, picture, spent=slowest)


def wrong_split(counts: object, layers: int, ranks: int) -> str:
    if not isinstance(counts, Sequence) or not all(isinstance(count, Integral) for count in counts):
        return f"split() returned {counts!r}: return a list of whole numbers."
    if len(counts) != ranks:
        return f"{counts} is for {len(counts)} GPUs, and there are {ranks}."
    if min(counts) < 1:
        return f"{counts} leaves a GPU without a layer."
    return "" if sum(counts) == layers else f"{counts} has {sum(counts)} layers, and the model {layers}."


def timed(counts: Sequence[int], head: float, ranks: int) -> Timing:
    """Time 1F1B: a layer takes 1 s forward, and 2 s backward."""
    order = module_of(full_name("3d")).one_f_one_b
    lists = [list(order(rank, ranks, MICROBATCHES)) for rank in range(ranks)]
    seconds = [count + head * (rank == ranks - 1) for rank, count in enumerate(counts)]
    work = Work(forward=seconds, backward_input=seconds, backward_weight=seconds)
    return time_schedule(Schedule("", Layout("loop", ranks), MICROBATCHES, lists, [[]] * ranks), work)


def over_par(yours: Attempt, par: Attempt) -> str:
    if any(yours.spent[name] > least for name, least in par.spent.items()):
        return "The slowest stage is slower than it must be: how many layers does the head weigh?"
    return (
        "The slowest stage is as fast as it can be, but more stages than need be are as slow: give one layer "
        "after another to the GPU that has least to do."
    )


EXERCISE = Exercise(
    file=__file__,
    chapter="3D",
    minutes=10,
    asks={"split": split},
    attempt=attempt,
    hints=(
        "If the head is worth 4 layers, there are 34 layers' work for 4 GPUs.",
        "That is 8.5 for each. How many layers may the GPU with the head have? And on other models?",
        "Give every GPU one layer. Then give one layer after another to the GPU that has least to do, the "
        "head counted.",
    ),
    learned="stages are balanced by time, not by the number of layers: Llama 3 took a layer each from the "
    "first and the last stage.",
    page="docs/book/3d.md",
    over_par=over_par,
)
