"""Why does it hang?

Three programs, and each stops for ever. On real GPUs you would see nothing but a timeout after
ten minutes. Here you are told who waits for whom, for what, and in which line. Each needs one
small change.

Given   the error message: run the exercise, read it, mend the first program, and run it again

Right is what the docstrings promise.
"""

import numpy as np

from collectives import Group, all_reduce
from gpu import CLASSROOM, GPU
from ndparallel.exercises.exercise import Attempt, Exercise
from ndparallel.exercises.runs import attempt_of, first_fault, on_gpus

RANKS = 4


def pass_right(gpu: GPU, array: np.ndarray, ranks: int) -> np.ndarray:
    """Return the array of the GPU on the left."""
    received = gpu.receive((gpu.rank - 1) % ranks, "array")
    gpu.send((gpu.rank + 1) % ranks, array, "array")
    return received


def sum_and_print(gpu: GPU, array: np.ndarray, ranks: int) -> np.ndarray:
    """Return the sum over all GPUs; GPU 0 also prints it."""
    everybody = Group("everybody", tuple(range(ranks)))
    total = array.copy()
    if gpu.rank == 0:
        all_reduce(gpu, total, everybody)
        print(f"the sum is {total[0]:g}")
    return total


def two_sums(gpu: GPU, array: np.ndarray, ranks: int) -> np.ndarray:
    """Return the sum over this GPU's pair plus the sum over all GPUs."""
    pair = Group("pair", (0, 1) if gpu.rank < 2 else (2, 3))
    everybody = Group("everybody", tuple(range(ranks)))
    first, second = array.copy(), array.copy()
    groups = [(first, pair), (second, everybody)]
    if gpu.rank % 2:
        groups.reverse()
    for target, group in groups:
        all_reduce(gpu, target, group)
    return first + second


def pass_right_mended(gpu: GPU, array: np.ndarray, ranks: int) -> np.ndarray:
    gpu.send((gpu.rank + 1) % ranks, array, "array")
    return gpu.receive((gpu.rank - 1) % ranks, "array")


def sum_and_print_mended(gpu: GPU, array: np.ndarray, ranks: int) -> np.ndarray:
    everybody = Group("everybody", tuple(range(ranks)))
    total = array.copy()
    all_reduce(gpu, total, everybody)  # all members call it, and not GPU 0 alone
    return total


def two_sums_mended(gpu: GPU, array: np.ndarray, ranks: int) -> np.ndarray:
    pair = Group("pair", (0, 1) if gpu.rank < 2 else (2, 3))
    everybody = Group("everybody", tuple(range(ranks)))
    first, second = array.copy(), array.copy()
    for target, group in ((first, pair), (second, everybody)):  # in the same order on all GPUs
        all_reduce(gpu, target, group)
    return first + second


EXPECTED = {
    "pass_right": lambda rank: (rank - 1) % RANKS + 1,
    "sum_and_print": lambda rank: 10,
    "two_sums": lambda rank: 10 + (3 if rank < 2 else 7),
}


def attempt(answer) -> Attempt:
    last = Attempt()
    for name, right in EXPECTED.items():

        def program(gpu: GPU, name: str = name) -> np.ndarray:
            return getattr(answer.on(gpu.rank), name)(gpu, np.full(8, gpu.rank + 1, np.float32), RANKS)

        results = on_gpus(program, RANKS, CLASSROOM)
        wrong = first_fault(fault(name, result.rank, result.value, right(result.rank)) for result in results)
        last = attempt_of(results, ("step_seconds",), wrong)
        if wrong:
            break
    return last


def fault(name: str, rank: int, found: object, right: float) -> str:
    if isinstance(found, np.ndarray) and found.shape == (8,) and (found == right).all():
        return ""
    shown = f"{found.flat[0]:g}" if isinstance(found, np.ndarray) and found.size else repr(found)
    return f"{name}: GPU {rank} returned {shown}, and {right:g} is right."


EXERCISE = Exercise(
    file=__file__,
    chapter="gpu",
    minutes=10,
    asks={
        "pass_right": pass_right_mended,
        "sum_and_print": sum_and_print_mended,
        "two_sums": two_sums_mended,
    },
    attempt=attempt,
    hints=(
        "pass_right: everybody waits for a message before sending one. Who begins?",
        "sum_and_print: a collective needs all members of its group, whoever prints the result.",
        "two_sums: half of the GPUs sum in the other order. All members must call their collectives in "
        "the same one.",
    ),
    learned="a send that comes after a receive, a collective that only some call, and two collectives in "
    "different orders: nearly every hang of a real run is one of these.",
    page="docs/book/1d.md",
)
