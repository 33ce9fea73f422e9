"""Hand the sum round.

Every GPU holds an array, and in the end all of them must hold the sum of all arrays: an all-reduce. A GPU can
send to any other and receive from any other, and an array of n bytes keeps its link busy for n / bandwidth.

        GPU 0 ──> GPU 1
          ^         │        The array can be cut: np.array_split(array, p) gives p pieces,
          │         v        which are views. What is written into a piece is in the array.
        GPU 3 <── GPU 2

Given   gpu.rank                                    0 to ranks - 1
        gpu.send(target, array, what)               `what` names the message: any number or word
        gpu.receive(source, what, into=array)       writes the message into an array ...
        gpu.receive(source, what, into=array, combine=np.add)       ... or adds it to what is there

Right is the sum on every GPU, with 4 GPUs as with 3 or 5, whatever the length of the array. Then the seconds
count, and the bytes that the busiest GPU sends: one GPU that collects everything takes more than three times
as long as four that all talk at once.
"""

import numpy as np

from gpu import CLASSROOM, GPU
from ndparallel.exercises import sums
from ndparallel.exercises.exercise import Attempt, Exercise
from ndparallel.exercises.runs import attempt_of, first_fault, on_gpus, ready_made, right_everywhere

WORLDS = ((4, 500), (3, 500), (5, 502))  # GPUs and elements: the first is measured


def all_reduce(gpu: GPU, array: np.ndarray, ranks: int) -> None:
    """Put the sum of all GPUs' arrays into `array`, on every GPU."""
    pieces = np.array_split(array, ranks)
    right, left = (gpu.rank + 1) % ranks, (gpu.rank - 1) % ranks
    for hop in range(ranks - 1):  # add up: in the end, GPU r has the whole sum of piece r + 1
        gpu.send(right, pieces[(gpu.rank - hop) % ranks], hop)
        gpu.receive(left, hop, into=pieces[(gpu.rank - hop - 1) % ranks], combine=np.add)
    for hop in range(ranks - 1):  # hand the sums on
        gpu.send(right, pieces[(gpu.rank + 1 - hop) % ranks], ("sum", hop))
        gpu.receive(left, ("sum", hop), into=pieces[(gpu.rank - hop) % ranks])


def attempt(answer) -> Attempt:
    return right_everywhere(lambda *world: in_world(answer, *world), "With {} GPUs and {} elements", *WORLDS)


def in_world(answer, ranks: int, size: int) -> Attempt:
    def program(gpu: GPU) -> np.ndarray:
        array = sums.part(gpu.rank, ranks, size)
        answer.on(gpu.rank).all_reduce(gpu, array, ranks)
        return array

    results = on_gpus(program, ranks, CLASSROOM)
    expected = sums.whole(ranks, size)
    wrong = first_fault(fault(result.rank, result.value, expected, ranks) for result in results)
    return attempt_of(results, ("step_seconds", "bytes_sent"), wrong or ready_made(results))


def fault(rank: int, found: np.ndarray, expected: np.ndarray, ranks: int) -> str:
    """Say what is wrong with a rank's array; where a part of it is right, that it is to be handed on."""
    wrong = sums.explain(rank, found, expected, ranks)
    right = np.count_nonzero(found == expected)
    return f"{wrong} The other {right} are right: do all ranks get them?" if wrong and right else wrong


def over_par(yours: Attempt, par: Attempt) -> str:
    if not yours.sends_evenly:
        return (
            "One GPU sends more than the others must: cut the array into pieces, so that all links are busy."
        )
    times = yours.figures["bytes_sent"] / par.figures["bytes_sent"]
    if times > 1.005:
        return f"Every GPU sends {times:.3g} times what it must: send pieces, and not the whole array."
    return "The links wait for one another: let every GPU send at every hop, and not one after another."


EXERCISE = Exercise(
    file=__file__,
    chapter="gpu",
    minutes=20,
    asks={"all_reduce": all_reduce},
    attempt=attempt,
    hints=(
        "Begin with what is right and slow: everybody sends to GPU 0, which adds up and sends the sum back.",
        "Cut the array into as many pieces as there are GPUs. At every hop each GPU sends one piece to its "
        "right and receives another from its left. Which piece, so that what it has just added up goes next?",
        "At hop s send piece (rank - s) % p and add what comes to piece (rank - s - 1) % p. After p - 1 "
        "hops GPU r has the whole sum of piece r + 1; p - 1 more hops without adding hand the sums round.",
    ),
    learned="a ring sends 2 (p-1)/p of the array from every GPU, however many GPUs there are, and keeps "
    "every link busy.",
    page="docs/book/1d.md",
    over_par=over_par,
    least={"bytes_sent": 1},
    known_better="The project has a better way, too: pieces that go straight to their readers pay one "
    "latency in each half, where a ring pays p - 1. But then every GPU talks to every other, and not to its "
    "neighbours alone.",
)
