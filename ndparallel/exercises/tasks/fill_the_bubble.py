"""Fill the bubble.

In 1F1B a GPU stands idle while the pipeline fills and drains. But a backward pass has two
halves: I, the gradient of the stage's input, which the GPU before is waiting for; and W, the
gradient of the stage's weights, which nobody waits for until the step ends. So W can be done
when there is nothing better to do:

        GPU 2 in 1F1B         F F   I W F I W F I W F I W ...
        GPU 2 with W later    F F   I F I F I W F I W F I ...

Until its W is done, a microbatch's activations stay in memory. 1F1B on P GPUs holds at most P of
them on a GPU; so may you.

Given   Action(op, stage, microbatch)       op is "F", "I" or "W", and takes 1 s; GPU r holds stage r
        a GPU takes its actions in your order, each as soon as its input is there

Right is a schedule that can run and does everything once. Then the seconds count, and the
microbatches held.
"""

from collections.abc import Iterator

from ndparallel.exercises.exercise import Attempt, Exercise
from ndparallel.exercises.runs import as_schedule
from ndparallel.pipeline.actions import Action


def schedule(rank: int, ranks: int, microbatches: int) -> Iterator[Action]:
    """Yield the actions of one GPU, in order."""
    ahead, later = ranks - 1 - rank, rank
    for turn in range(microbatches + ahead + later):
        if turn < microbatches:
            yield Action("F", rank, turn)
        if 0 <= turn - ahead < microbatches:
            yield Action("I", rank, turn - ahead)
        if 0 <= turn - ahead - later < microbatches:
            yield Action("W", rank, turn - ahead - later)


def attempt(answer) -> Attempt:
    return as_schedule(answer, "FIW")


def over_par(yours: Attempt, par: Attempt) -> str:
    if yours.figures["held_microbatches"] > par.figures["held_microbatches"]:
        return "Too many microbatches are held: too many F go ahead, or some W come later than they must."
    if yours.figures["step_seconds"] > 30:
        return (
            "1F1B with I and W in place of B takes 30 s: P - 1 - rank forwards ahead, then F and I by turns."
        )
    if yours.figures["step_seconds"] == 30:
        return "It takes as long as with every W right behind its I, where it is in the way of the next I."
    return (
        "There is a bubble left: the later a GPU stands in the pipeline, the more W it can keep for the end."
    )


EXERCISE = Exercise(
    file=__file__,
    chapter="3D",
    minutes=25,
    asks={"schedule": schedule},
    attempt=attempt,
    hints=(
        "Begin with 1F1B, and write I, then W, for each B: 30 s. Which W delay an I that somebody waits for?",
        "Let W lag behind I. GPU 0 holds P microbatches already, so its W must not wait; the last GPU holds "
        "one, so that W may lag by P - 1.",
        "On GPU `rank`, P - 1 - rank forwards ahead; then F, I, and the W of `rank` microbatches before, "
        "by turns.",
    ),
    learned="splitting the backward pass takes two thirds of 1F1B's bubble away, in the same memory. "
    "This is ZB-H1.",
    page="docs/book/3d.md",
    over_par=over_par,
)
