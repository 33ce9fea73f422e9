"""Why does it hang?

Three programs, and each stops for ever. On real GPUs you would see nothing but a timeout after
ten minutes. Here you are told who waits for whom, for what, and in which line. Each needs one
small change.

Given   the error message: run the exercise, read it, mend the first program, and run it again

Right is what the docstrings promise, with 4 GPUs as with 6.
"""

import numpy as np

from collectives import Group, all_reduce
from gpu import CLASSROOM, GPU
from ndparallel.exercises.exercise import Attempt, Exercise
from ndparallel.exercises.runs import attempt_of, first_fault, on_gpus, right_everywhere

RANKS = ((4,), (6,))  # the first is measured


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
    first = gpu.rank // 2 * 2
    pair = Group("pair", (first, first + 1))
    everybody = Group("everybody", tuple(range(ranks)))
    of_pair, of_all = array.copy(), array.copy()
    groups = [(of_pair, pair), (of_all, everybody)]
    if gpu.rank % 2:
        groups.reverse()
    for target, group in groups:
        all_reduce(gpu, target, group)
    return of_pair + of_all


def pass_right_mended(gpu: GPU, array: np.ndarray, ranks: int) -> np.ndarray:
    gpu.send((gpu.rank + 1) % ranks, array, "array")
    return gpu.receive((gpu.rank - 1) % ranks, "array")


def sum_and_print_mended(gpu: GPU, array: np.ndarray, ranks: int) -> np.ndarray:
    everybody = Group("everybody", tuple(range(ranks)))
    total = array.copy()
    all_reduce(gpu, total, everybody)  # all members call it, and not GPU 0 alone
    return total


def two_sums_mended(gpu: GPU, array: np.ndarray, ranks: int) -> np.ndarray:
    first = gpu.rank // 2 * 2
    pair = Group("pair", (first, first + 1))
    everybody = Group("everybody", tuple(range(ranks)))
    of_pair, of_all = array.copy(), array.copy()
    for target, group in ((of_pair, pair), (of_all, everybody)):  # in the same order on all GPUs
        all_reduce(gpu, target, group)
    return of_pair + of_all


UNIT = 100_000  # no number of it fits into 16 bits
# what each returns, in units, where GPU r brings r + 1
EXPECTED = {
    "pass_right": lambda rank, ranks: (rank - 1) % ranks + 1,
    "sum_and_print": lambda rank, ranks: sum(range(ranks + 1)),
    "two_sums": lambda rank, ranks: sum(range(ranks + 1)) + 4 * (rank // 2) + 3,
}


def attempt(answer) -> Attempt:
    return right_everywhere(lambda ranks: all_three(answer, ranks), "With {} GPUs", *RANKS)


def all_three(answer, ranks: int) -> Attempt:
    last = Attempt()
    for name, right in EXPECTED.items():

        def program(gpu: GPU, name: str = name) -> np.ndarray:
            return getattr(answer.on(gpu.rank), name)(
                gpu, np.full(8, UNIT * (gpu.rank + 1), np.float32), ranks
            )

        results = on_gpus(program, ranks, CLASSROOM)
        wrong = first_fault(
            fault(name, result.rank, result.value, UNIT * right(result.rank, ranks)) for result in results
        )
        last = attempt_of(results, ("step_seconds",), wrong)
        if wrong:
            break
    return last


def fault(name: str, rank: int, found: object, right: float) -> str:
    if isinstance(found, np.ndarray) and found.shape == (8,) and (found == right).all():
        return ""
    shown = f"{found.flat[0]:.8g}" if isinstance(found, np.ndarray) and found.size else repr(found)
    return f"{name}: GPU {rank} returned {shown}, and {right:.8g} is right."


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
    known_better="There are faster sums, too: those of two_sums can travel at the same time, with "
    "async_op=True, and messages that go straight to their readers pay fewer latencies.",
    least={"step_seconds": 0.15},  # every number goes to every GPU at once
)
