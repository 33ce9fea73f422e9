"""The two halves.

An all-reduce has two halves, and each is worth a name of its own. A reduce-scatter leaves GPU r
with the sum of piece r, and nothing to say about the others. An all-gather starts from there,
and gives all pieces to all:

                     pieces of GPU 0   1   2   3            after reduce-scatter      after all-gather
        GPU 0             a0  b0  c0  d0                    Σa   .   .   .            Σa  Σb  Σc  Σd
        GPU 1             a1  b1  c1  d1                    .   Σb   .   .            Σa  Σb  Σc  Σd
        GPU 2             a2  b2  c2  d2                    .    .  Σc   .            Σa  Σb  Σc  Σd
        GPU 3             a3  b3  c3  d3                    .    .   .  Σd            Σa  Σb  Σc  Σd

ZeRO and FSDP are built of these halves: between them every GPU may do something with its own
piece.

Given   gpu.rank, gpu.send(target, array, what), gpu.receive(source, what, into=array, combine=np.add)
        pieces                              a list of `ranks` arrays, the same on every GPU in number and size

Right is piece r on GPU r after the first, and every piece on every GPU after both. Between the
two a GPU keeps its own piece, and the others are wiped. Then the seconds count, and the bytes
that the busiest GPU sends.
"""

import numpy as np

from gpu import CLASSROOM, GPU
from ndparallel.base.errors import UserError
from ndparallel.exercises import sums
from ndparallel.exercises.exercise import Attempt, Exercise
from ndparallel.exercises.runs import (
    attempt_of,
    first_fault,
    on_gpus,
    ready_made,
    right_everywhere,
    wrong_list,
)

WORLDS = ((4, 400), (3, 300), (5, 500))  # GPUs and elements: the first is measured
WIPED = -1  # no sum of the ranks' parts


def reduce_scatter(gpu: GPU, pieces: list[np.ndarray], ranks: int) -> None:
    """Put the sum of all GPUs' pieces r into pieces[r] of GPU r; the other pieces may be spoilt."""
    right, left = (gpu.rank + 1) % ranks, (gpu.rank - 1) % ranks
    for hop in range(ranks - 1):
        gpu.send(right, pieces[(gpu.rank - hop - 1) % ranks], ("add", hop))
        gpu.receive(left, ("add", hop), into=pieces[(gpu.rank - hop - 2) % ranks], combine=np.add)


def all_gather(gpu: GPU, pieces: list[np.ndarray], ranks: int) -> None:
    """Put pieces[r] of GPU r into pieces[r] of every GPU."""
    right, left = (gpu.rank + 1) % ranks, (gpu.rank - 1) % ranks
    for hop in range(ranks - 1):
        gpu.send(right, pieces[(gpu.rank - hop) % ranks], ("hand on", hop))
        gpu.receive(left, ("hand on", hop), into=pieces[(gpu.rank - hop - 1) % ranks])


def attempt(answer) -> Attempt:
    return right_everywhere(lambda *world: in_world(answer, *world), "With {} GPUs", *WORLDS)


def in_world(answer, ranks: int, size: int) -> Attempt:
    def program(gpu: GPU) -> tuple[list[np.ndarray], np.ndarray]:
        functions, array = answer.on(gpu.rank), sums.part(gpu.rank, ranks, size)
        pieces = np.split(array, ranks)
        functions.reduce_scatter(gpu, pieces, ranks)
        require_pieces("reduce_scatter", gpu.rank, pieces, ranks, size, own_alone=True)
        scattered = [np.copy(piece) for piece in pieces]
        pieces = [np.full(size // ranks, WIPED, np.float32) for _ in range(ranks)]
        pieces[gpu.rank] = scattered[gpu.rank].copy()
        functions.all_gather(gpu, pieces, ranks)
        require_pieces("all_gather", gpu.rank, pieces, ranks, size)
        return scattered, np.concatenate(pieces)

    results = on_gpus(program, ranks, CLASSROOM)
    whole = sums.whole(ranks, size)
    wrong = first_fault(fault_of_scatter(result.rank, result.value[0], whole) for result in results)
    wrong = wrong or first_fault(
        fault_of_gather(result.rank, result.value[1], whole, ranks) for result in results
    )
    return attempt_of(results, ("step_seconds", "bytes_sent"), wrong or ready_made(results))


def require_pieces(
    name: str, rank: int, pieces: list[np.ndarray], ranks: int, size: int, own_alone: bool = False
) -> None:
    """Raise UserError where a function has left something else than arrays as they were; where the others may
    be spoilt, this is asked of the rank's own alone."""
    shapes = [(size // ranks,) if place == rank or not own_alone else None for place in range(ranks)]
    if wrong := wrong_list("pieces", rank, pieces, shapes):
        raise UserError(f"After {name}: {wrong}")


def fault_of_scatter(rank: int, pieces: list[np.ndarray], whole: np.ndarray) -> str:
    """Say what is wrong with a rank's own piece, and which other piece it has the whole sum of."""
    halves = np.split(whole, len(pieces))
    name, first = "its own piece after reduce_scatter", rank * len(halves[0])
    fault = sums.explain(rank, pieces[rank], halves[rank], len(pieces), name, first)
    other = [place for place, half in enumerate(halves) if np.array_equal(pieces[place], half)]
    if fault and other:
        return f"{fault} But rank {rank} has the whole sum of piece {other[0]}: should it end there?"
    return fault


def fault_of_gather(rank: int, found: np.ndarray, whole: np.ndarray, ranks: int) -> str:
    if wiped := np.count_nonzero(found == WIPED):
        return (
            f"Rank {rank}: {wiped} of {found.size} elements were wiped between the two functions, and "
            "all_gather wrote nothing there."
        )
    return sums.explain(rank, found, whole, ranks, "all pieces after all_gather")


def over_par(yours: Attempt, par: Attempt) -> str:
    if yours.figures["bytes_sent"] > par.figures["bytes_sent"]:
        return (
            "Somebody sends pieces that nobody needs: p - 1 pieces leave every GPU in each half, and no more."
        )
    return "The GPUs wait for one another: let all of them send at every hop, each to its right."


EXERCISE = Exercise(
    file=__file__,
    chapter="gpu",
    minutes=20,
    asks={"reduce_scatter": reduce_scatter, "all_gather": all_gather},
    attempt=attempt,
    hints=(
        "The all-gather is the easier half. Begin there: at every hop pass on the piece that came last.",
        "In the reduce-scatter, piece r must arrive at GPU r last, with all the other parts in it. So it "
        "begins its journey on GPU r + 1.",
        "Reduce-scatter: at hop s send piece (rank - s - 1) % p, and add what comes to piece (rank - s - 2) "
        "% p. All-gather: send piece (rank - s) % p, and take piece (rank - s - 1) % p.",
    ),
    learned="an all-reduce is a reduce-scatter and an all-gather; round a ring each takes "
    "(p-1)(a + n/(p B)), with p GPUs, latency a, n bytes and bandwidth B. Straight to their readers, all "
    "pieces pay a once, but every GPU talks to every other, and not to its neighbours alone.",
    page="docs/book/1d.md",
    over_par=over_par,
    least={"bytes_sent": 1},
    known_better="The project has this way, too: pieces that go straight to their readers.",
)
