"""To the experts and back.

In a mixture of experts every token goes to one of several experts, and each GPU has one of
them. The tokens are where the batch put them, so they travel to their expert, and the results
travel back, each to the place where its token stood:

        GPU 0   rows for experts 2 0 1 1 3 ...  ->  expert 0 gets its rows from everybody  ->  back in place

How many rows a GPU gets for its expert is known only when the router has chosen. NCCL has to be
told how many; here what is received has the shape of what was sent.

Given   rows                        (tokens, width); expert_of[i] is the GPU whose expert takes row i
        expert(rows)                this GPU's expert, for any number of rows; its price grows with them
        gpu.send(target, array, what), gpu.receive(source, what)    receive returns the array
        rows[expert_of == e]        the rows for expert e, in order

Right is every row's result in the row's own place, with 3 or 5 GPUs as well, and where an expert
gets no row. Then the bytes count, and the seconds.
"""

from collections.abc import Callable

import numpy as np

from gpu import GPU, Operation
from ndparallel.exercises.exercise import Attempt, Exercise
from ndparallel.exercises.runs import (
    as_array,
    attempt_of,
    described,
    first_fault,
    on_gpus,
    right_everywhere,
)
from ndparallel.hardware.pocket import POCKET

WORLDS = ((4, 64), (3, 10), (5, 3))  # GPUs, and rows of each: the first is measured
WIDTH = 32


def through_experts(
    gpu: GPU, rows: np.ndarray, expert_of: np.ndarray, expert: Callable[[np.ndarray], np.ndarray], ranks: int
) -> np.ndarray:
    """Return what every row's expert makes of it, in the order of the rows."""
    others = [(gpu.rank + distance) % ranks for distance in range(1, ranks)]
    for other in others:
        gpu.send(other, rows[expert_of == other], "to the expert")
    sources = [gpu.rank, *reversed(others)]
    arrived = [rows[expert_of == gpu.rank]] + [gpu.receive(other, "to the expert") for other in sources[1:]]
    done = np.split(expert(np.concatenate(arrived)), np.cumsum([len(part) for part in arrived])[:-1])
    results = np.empty_like(rows)
    results[expert_of == gpu.rank] = done[0]
    for source, part in zip(sources[1:], done[1:]):
        gpu.send(source, part, "and back")
    for other in others:
        results[expert_of == other] = gpu.receive(other, "and back")
    return results


def problem(rank: int, ranks: int, tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows, and the expert of each: expert 0 is a favourite."""
    generator = np.random.default_rng(rank)
    rows = generator.standard_normal((tokens, WIDTH)).astype(np.float32)
    return rows, np.minimum(generator.integers(0, 6, tokens) % 5, ranks - 1)


def made_by(expert: int, rows: np.ndarray) -> np.ndarray:
    """What an expert makes of rows: its own, so that one can tell who has made it."""
    return rows * np.float32(expert + 2) + np.float32(expert)


def attempt(answer) -> Attempt:
    name = "With {} GPUs and {} rows on each"
    return right_everywhere(lambda *world: in_world(answer, *world), name, *WORLDS)


def in_world(answer, ranks: int, tokens: int) -> Attempt:
    def program(gpu: GPU) -> np.ndarray:
        def expert(rows: np.ndarray) -> np.ndarray:
            gpu.compute(Operation("forward expert", flops=200 * rows.size))
            return made_by(gpu.rank, rows)

        rows, expert_of = problem(gpu.rank, ranks, tokens)
        return answer.on(gpu.rank).through_experts(gpu, rows, expert_of, expert, ranks)

    results = on_gpus(program, ranks, POCKET)
    wrong = first_fault(fault(result.rank, result.value, ranks, tokens) for result in results)
    return attempt_of(results, ("step_seconds", "bytes_sent"), wrong)


def fault(rank: int, found: object, ranks: int, tokens: int) -> str:
    rows, expert_of = problem(rank, ranks, tokens)
    right = np.select(
        [(expert_of == expert)[:, None] for expert in range(ranks)], [made_by(e, rows) for e in range(ranks)]
    )
    found = as_array(found)
    if not isinstance(found, np.ndarray) or found.shape != right.shape:
        return (
            f"GPU {rank} returns {described(found)}. It should return one row for each of its {tokens} rows: "
            f"an array of shape {right.shape}."
        )
    bad = np.flatnonzero(~(np.abs(found - right).max(axis=1) <= 1e-5))
    if not bad.size:
        return ""
    row = int(bad[0])
    return (
        f"GPU {rank}: {bad.size} rows are wrong. Row {row} should come from expert {expert_of[row]}; "
        f"{seen(found[row], rows, ranks)}"
    )


def seen(found: np.ndarray, rows: np.ndarray, ranks: int) -> str:
    """Say whose result stands there: which expert's, of which row."""
    for expert in range(ranks):
        same = np.flatnonzero(np.abs(made_by(expert, rows) - found).max(axis=1) <= 1e-5)
        if same.size:
            return f"it is what expert {expert} made of row {same[0]}."
    if not found.any():
        return "it is zero: nothing was written there."
    return "it is no expert's result of a row of this GPU: was it never written, or sent to the wrong GPU?"


def over_par(yours: Attempt, par: Attempt) -> str:
    if yours.figures["bytes_sent"] > 1.2 * par.figures["bytes_sent"]:
        return (
            "Rows travel that nobody needs: a row goes to its expert's GPU, and its result back, and "
            "nowhere else. One whose expert is on its own GPU stays."
        )
    return (
        "A GPU waits, or runs many small kernels: send the rows, and nothing else, to all before you receive "
        "from any, and run the expert on many rows at once."
    )


EXERCISE = Exercise(
    file=__file__,
    chapter="EP",
    minutes=25,
    asks={"through_experts": through_experts},
    attempt=attempt,
    hints=(
        "Write it with a loop over GPUs: send rows[expert_of == other] to each other, receive from each, "
        "concatenate.",
        "Keep the number of rows from each source: np.split cuts the results where the inputs were joined.",
        "The results from expert e come back in the order in which the rows went: results[expert_of == "
        "e] = ...",
    ),
    learned="expert parallelism is two all-to-alls, whose sizes the router decides; and the GPU with the "
    "favourite expert keeps all others waiting.",
    page="docs/book/ep.md",
    over_par=over_par,
    least={"bytes_sent": 1},
    as_much=0.03,  # for the order of the sends, which is not the point
    known_better='The project has such a way, too: in "experts, overlapped" of ep_expert_parallel.py rows '
    "travel while the experts compute others.",
)
