"""Broadcast a big array.

GPU 0 has an array, and seven other GPUs need it. If GPU 0 sends it to each in turn, its link
carries the array seven times, and the other seven links carry nothing:

        GPU 0   ─1─ ─2─ ─3─ ─4─ ─5─ ─6─ ─7─         the others wait

Whoever has received something can pass it on, and need not have received all of it.
np.array_split(array, k) cuts an array into k pieces.

Given   gpu.rank, gpu.send(target, array, what), gpu.receive(source, what, into=array)

Right is GPU 0's array on every GPU. Then the seconds count. The array has 2,000 numbers, and each
keeps a link busy for 0.01 s. A message arrives 0.05 s after that; the link is free meanwhile.
"""

import numpy as np

from gpu import CLASSROOM, GPU, si
from ndparallel.exercises.exercise import Attempt, Exercise
from ndparallel.exercises.runs import attempt_of, first_fault, on_gpus, ready_made, right_everywhere

WORLDS = ((8, 2000), (4, 2000), (2, 2003))  # GPUs and elements: the first is measured
RANKS, SIZE = WORLDS[0]
FIRST = 1_000_001  # element 0: no element fits into 16 bits


def broadcast(gpu: GPU, array: np.ndarray, ranks: int) -> None:
    """Put GPU 0's array into `array`, on every GPU."""
    pieces = np.array_split(array, 500)
    for number, part in enumerate(pieces):
        if gpu.rank > 0:
            gpu.receive(gpu.rank - 1, number, into=part)
        if gpu.rank < ranks - 1:
            gpu.send(gpu.rank + 1, part, number)


def attempt(answer) -> Attempt:
    return right_everywhere(lambda *world: in_world(answer, *world), "With {} GPUs and {} elements", *WORLDS)


def in_world(answer, ranks: int, size: int) -> Attempt:
    expected = np.arange(FIRST, FIRST + size, dtype=np.float32)

    def program(gpu: GPU) -> np.ndarray:
        array = expected.copy() if gpu.rank == 0 else np.zeros(size, np.float32)
        answer.on(gpu.rank).broadcast(gpu, array, ranks)
        return array

    results = on_gpus(program, ranks, CLASSROOM)
    wrong = first_fault(fault(result.rank, result.value, expected) for result in results)
    return attempt_of(results, ("step_seconds",), wrong or ready_made(results))


def fault(rank: int, found: np.ndarray, expected: np.ndarray) -> str:
    places = np.flatnonzero(found != expected)
    if not places.size:
        return ""
    if not found.any():
        return f"GPU {rank} has received nothing, or not into `array`: only into=array fills it."
    first = places[0]
    stands = seen(float(found[first]), float(expected[first]), expected)
    return f"GPU {rank}, element {first}: {stands} ({places.size} of {len(found)} elements are wrong)."


def seen(value: float, right: float, expected: np.ndarray) -> str:
    """Say what stands where an element should."""
    if value == 0:
        return "still empty"
    elsewhere = np.flatnonzero(expected == value)
    if elsewhere.size:
        return f"element {elsewhere[0]} of the array, in the wrong place"
    return f"{value:.8g}, and {right:.8g} is right"


def over_par(yours: Attempt, par: Attempt) -> str:
    once = CLASSROOM.inside.latency_seconds + 4 * SIZE / CLASSROOM.inside.bandwidth_bytes_per_second
    seconds = yours.figures["step_seconds"]
    if seconds > (RANKS - 1) * once * 0.95:
        return (
            f"This is {seconds / once:.2g} times the {si(once, 's')} of sending the array once: one link is "
            "busy at a time."
        )
    if seconds > 2.5 * once:
        return (
            "Several links are busy at a time, as in a tree. But a GPU helps nobody while it waits for the "
            "whole array, or for a big piece of it."
        )
    if max(yours.sent_bytes) > 1.005 * 4 * SIZE:
        return "Many links are busy, but one GPU sends more than the array once, and the others wait for it."
    return "Nearly there: the smaller the pieces, the earlier the last GPU gets its first."


EXERCISE = Exercise(
    file=__file__,
    chapter="gpu",
    minutes=20,
    asks={"broadcast": broadcast},
    attempt=attempt,
    hints=(
        "Let every GPU that has the array help: after one message two GPUs have it, after two four.",
        "A chain is better still for a big array: GPU r receives from r - 1 and sends to r + 1, piece by "
        "piece, so that all links are busy once the first piece has reached the end.",
        "A chain of k pieces takes (p - 1)(a + b/k) + (k - 1) b/k. With p = 8, a = 0.05 s and b = 20 s that "
        "is 22.8 s for k = 50, 20.6 s for 500, and hardly less for more. (Where a message keeps its sender "
        "busy for a, too, k near 50 is best.)",
    ),
    learned="a chain in pieces sends a big array to any number of GPUs in little more than the time of "
    "sending it once; for a small one, where latency counts, a tree is better.",
    page="docs/book/1d.md",
    over_par=over_par,
    least={"step_seconds": 0.97},  # one latency, and the array once
    as_much=0.02,  # 500 pieces or 2,000 are the same idea
)
