"""The loss without the logits.

The last matmul gives every token a logit for every symbol: with a vocabulary of 128,000 that is
the largest activation of the model. Cut it over the GPUs by symbols, and the loss needs the
whole rows; or does it?

        loss of a token  =  log( sum over symbols of exp(logit) )  -  logit of its target

        GPU 0   symbols    0 .. 63      part of the sum, perhaps the target's logit
        GPU 1   symbols   64 .. 127     part of the sum, perhaps the target's logit        ... and so on

exp overflows: subtract the largest logit of the row from all of them first. It may be on
another GPU.

Given   logits              (tokens, symbols of this GPU); its first symbol has the number `first`
        targets             (tokens,) numbers of symbols, on any GPU
        all_reduce(gpu, array, tp, op="sum")        or op="max"; the result is in `array`, and returned

Right is the loss of every token, on every GPU, with 3 GPUs and other numbers of symbols as well.
Then the bytes count: gathering the logits is right, and sends far more than is needed.
"""

import numpy as np

from collectives import Group, all_reduce
from gpu import GPU
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

WORLDS = ((4, 64, 256), (3, 10, 60))  # GPUs, tokens and symbols: the first is measured


def cross_entropy(gpu: GPU, logits: np.ndarray, targets: np.ndarray, first: int, tp: Group) -> np.ndarray:
    """Return the loss of every token."""
    largest = all_reduce(gpu, logits.max(axis=1), tp, op="max")
    shifted = logits - largest[:, None]
    sums = all_reduce(gpu, np.exp(shifted).sum(axis=1), tp)
    here = (targets >= first) & (targets < first + logits.shape[1])
    mine = np.where(here, shifted[np.arange(len(targets)), np.where(here, targets - first, 0)], 0)
    return np.log(sums) - all_reduce(gpu, mine, tp)


def problem(tokens: int, symbols: int) -> tuple[np.ndarray, np.ndarray]:
    """Logits so large that exp of them is infinite, and targets on all GPUs. Every second token has a loss so
    small that no sum may be rounded to 16 bits."""
    generator = np.random.default_rng(0)
    logits = generator.normal(0, 60, (tokens, symbols)).astype(np.float32)
    targets = generator.integers(0, symbols, tokens)
    logits[::2] /= 60
    logits[range(0, tokens, 2), targets[::2]] = 6
    return logits, targets


def attempt(answer) -> Attempt:
    name = "With {} GPUs, {} tokens and {} symbols"
    return right_everywhere(lambda *world: in_world(answer, *world), name, *WORLDS)


def in_world(answer, ranks: int, tokens: int, symbols: int) -> Attempt:
    logits, targets = problem(tokens, symbols)
    tp = Group("tp", tuple(range(ranks)))

    def program(gpu: GPU) -> np.ndarray:
        first, many = gpu.rank * symbols // ranks, symbols // ranks
        mine = logits[:, first : first + many].copy()
        with np.errstate(all="ignore"):  # an answer may overflow, and is told so
            return answer.on(gpu.rank).cross_entropy(gpu, mine, targets.copy(), first, tp)

    results = on_gpus(program, ranks, POCKET)
    right = losses(logits.astype(np.float64), targets)
    wrong = first_fault(fault(result.rank, result.value, right, targets) for result in results)
    return attempt_of(results, ("step_seconds", "bytes_sent"), wrong)


def losses(logits: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """The losses of whole rows, in float64."""
    largest = logits.max(axis=1, keepdims=True)
    return np.log(np.exp(logits - largest).sum(axis=1)) - (logits - largest)[np.arange(len(targets)), targets]


def fault(rank: int, found: object, right: np.ndarray, targets: np.ndarray) -> str:
    found = as_array(found)
    if not isinstance(found, np.ndarray) or found.shape != right.shape:
        return (
            f"GPU {rank} returns {described(found)}. It should return one loss for each of {len(right)} "
            f"tokens: an array of shape {right.shape}."
        )
    bad = ~(np.abs(found - right) <= 1e-4 * np.maximum(np.abs(right), 1))
    if not bad.any():
        return ""
    token = int(np.flatnonzero(bad)[0])
    return (
        f"GPU {rank}, token {token}: {found[token]:.6g}, and {right[token]:.6g} is right. "
        f"{meaning(found[bad])}"
    )


def meaning(found: np.ndarray) -> str:
    if not np.isfinite(found).all():
        return (
            "exp overflowed: subtract the largest logit of the whole row, which op='max' finds, from "
            "all of them."
        )
    return (
        "Does every GPU subtract the same largest logit, is the sum over all symbols and not rounded, and "
        "does the GPU that has the target tell the others?"
    )


def over_par(yours: Attempt, par: Attempt) -> str:
    if yours.figures["bytes_sent"] > 4 * par.figures["bytes_sent"]:
        return (
            "Whole rows of logits travel, where three numbers for every token are enough: maximum, "
            "sum, target."
        )
    return "Right with few bytes; three sums of one number for every token, in float32, are enough."


EXERCISE = Exercise(
    file=__file__,
    chapter="2D",
    minutes=25,
    asks={"cross_entropy": cross_entropy},
    attempt=attempt,
    hints=(
        "Which three numbers of a row does the loss need? Each can be found in parts.",
        "The row's maximum (op='max'), the sum of exp(logit - maximum), and the target's logit, which one "
        "GPU has: the others contribute 0.",
        "here = (targets >= first) & (targets < first + logits.shape[1]) says for which tokens this GPU has "
        "the target; np.where(here, ..., 0) is its part of the third sum.",
    ),
    learned="a loss over a cut vocabulary sends three numbers for every token, whatever the vocabulary.",
    page="docs/book/2d.md",
    over_par=over_par,
    least={"bytes_sent": 0.4},  # a number of every token from all, and another from one
    known_better="The project knows better ways: sum and target can travel in one message, and a maximum can "
    "be rounded, if all GPUs subtract the same one.",
)
