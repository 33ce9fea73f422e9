"""Everybody to everybody.

Every GPU has something for every other: tokens for its expert, a block of a matrix that is to
be transposed. An all-to-all brings outgoing[t] of GPU s to incoming[s] of GPU t. No ring helps
here, for every piece has only one reader; but nobody has to wait for one message before the
next one leaves.

        GPU 0   0>0  0>1  0>2  0>3          GPU 0   0>0  1>0  2>0  3>0
        GPU 1   1>0  1>1  1>2  1>3    ->    GPU 1   0>1  1>1  2>1  3>1
        GPU 2   2>0  2>1  2>2  2>3          GPU 2   0>2  1>2  2>2  3>2
        GPU 3   3>0  3>1  3>2  3>3          GPU 3   0>3  1>3  2>3  3>3

Given   gpu.rank, gpu.send(target, array, what), gpu.receive(source, what, into=array)
        A GPU takes in one message after another. So it matters who sends to whom at the same time.

Right is every piece in its place, your own one too. Then the seconds count: the latency need be
paid only once, and no GPU's incoming line need ever be idle.
"""

import numpy as np

from gpu import CLASSROOM, GPU
from ndparallel.exercises.exercise import Attempt, Exercise
from ndparallel.exercises.runs import (
    attempt_of,
    first_fault,
    on_gpus,
    ready_made,
    right_everywhere,
    wrong_list,
)

WORLDS = ((4,), (3,), (5,))  # GPUs: the first are measured
SIZE = 100


def all_to_all(gpu: GPU, outgoing: list[np.ndarray], incoming: list[np.ndarray]) -> None:
    """Bring outgoing[t] of every GPU s to incoming[s] of GPU t."""
    ranks = len(outgoing)
    incoming[gpu.rank][:] = outgoing[gpu.rank]
    for distance in range(1, ranks):
        target = (gpu.rank + distance) % ranks
        gpu.send(target, outgoing[target], "piece")
    for distance in range(1, ranks):
        source = (gpu.rank - distance) % ranks
        gpu.receive(source, "piece", into=incoming[source])


def piece(source: int, target: int) -> np.ndarray:
    """What goes from one GPU to another: its number says which, and has more digits than 16 bits hold."""
    return np.full(SIZE, 10 * source + target + 1 / 3, np.float32)


def attempt(answer) -> Attempt:
    return right_everywhere(lambda ranks: in_world(answer, ranks), "With {} GPUs", *WORLDS)


def in_world(answer, ranks: int) -> Attempt:
    def program(gpu: GPU) -> list[np.ndarray]:
        incoming = [np.full(SIZE, -1, np.float32) for _ in range(ranks)]
        answer.on(gpu.rank).all_to_all(gpu, [piece(gpu.rank, target) for target in range(ranks)], incoming)
        return incoming

    results = on_gpus(program, ranks, CLASSROOM)
    wrong = first_fault(fault_of_rank(result.rank, result.value, ranks) for result in results)
    return attempt_of(results, ("step_seconds", "bytes_sent"), wrong or ready_made(results))


def fault_of_rank(rank: int, incoming: list[np.ndarray], ranks: int) -> str:
    """Say what is wrong with what came to a GPU, and first whether it has a piece of every GPU."""
    if wrong := wrong_list("incoming", rank, incoming, [(SIZE,)] * ranks):
        return wrong
    if all((found == -1).all() for found in incoming):
        return (
            f"Nothing was put into incoming of GPU {rank}. It is filled by into=incoming[source], or by "
            "incoming[source][:] = ...; what is returned, or only given to a name, is not in it."
        )
    return first_fault(fault(source, rank, found, ranks) for source, found in enumerate(incoming))


def fault(source: int, target: int, found: np.ndarray, ranks: int) -> str:
    """Say what stands in incoming[source] of a GPU in place of what should."""
    if np.array_equal(found, piece(source, target)):
        return ""
    whose = {
        float(piece(a, b)[0]): f"what GPU {a} had for GPU {b}" for a in range(ranks) for b in range(ranks)
    }
    stands = (
        "nothing was put there"
        if found[0] == -1
        else f"there is {whose.get(float(found[0]), 'something else')}"
    )
    own = " A GPU's own piece needs no message, and has to be copied." if source == target else ""
    return f"incoming[{source}] of GPU {target} should have what GPU {source} had for it; {stands}.{own}"


def over_par(yours: Attempt, par: Attempt) -> str:
    if yours.figures["bytes_sent"] > par.figures["bytes_sent"]:
        return (
            "Some pieces travel twice, or to the GPU that has them: send each straight to its reader, and "
            "copy your own."
        )
    return (
        "Somebody waits. Send everything before you look at what comes, and let every GPU send to another "
        "one at the same time: all to GPU 0 first, and the messages queue there."
    )


EXERCISE = Exercise(
    file=__file__,
    chapter="gpu",
    minutes=10,
    asks={"all_to_all": all_to_all},
    attempt=attempt,
    hints=(
        "A send never waits for its receiver. What is the best order of p - 1 sends and p - 1 receives?",
        "If all GPUs send to GPU 0 first, then to GPU 1, each incoming line has a queue and then nothing. "
        "Begin with your neighbour on the right, and receive first from the one on the left.",
        "for distance in 1 .. p-1: send to (rank + distance) % p. Then receive in the same order from "
        "(rank - distance) % p.",
    ),
    learned="an all-to-all sends (p-1)/p of what a GPU holds and pays one latency, if all sends leave before "
    "the first receive, and at every moment each GPU sends to another one.",
    page="docs/book/ep.md",
    over_par=over_par,
    least={"bytes_sent": 1},
)
