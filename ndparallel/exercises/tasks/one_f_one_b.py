"""One forward, one backward.

A pipeline of P GPUs, each with one stage of the model, takes M microbatches through all stages and back. The
order in which a GPU takes its forwards (F) and backwards (B) is yours. GPipe takes all forwards first, and so
keeps the activations of all M microbatches in memory until their backwards come:

        GPU 0   F0 F1 F2 F3 F4 F5 F6 F7                            B0    B1    ...
        GPU 1      F0 F1 F2 F3 F4 F5 F6 F7                   B0    B1    ...
        GPU 2         F0 F1 F2 F3 F4 F5 F6 F7          B0    B1    ...
        GPU 3            F0 F1 F2 F3 F4 F5 F6 F7 B0    B1    ...

Given   Action(op, stage, microbatch)       op is "F" or "B"; GPU `rank` holds stage `rank`
        a GPU takes its actions in your order, each as soon as its input is there

Right is a schedule that can run and does everything once, with few microbatches too. Then the seconds count
(a forward takes 1 s here, a backward 2 s), and how many microbatches a GPU holds between their F and their B:
GPipe holds M, and P is enough.
"""

from collections.abc import Iterator

from ndparallel.exercises.exercise import Attempt, Exercise
from ndparallel.exercises.runs import as_schedule
from ndparallel.lessons.registry import full_name, module_of
from ndparallel.pipeline.actions import Action
from ndparallel.pipeline.timing import Timing


def schedule(rank: int, ranks: int, microbatches: int) -> Iterator[Action]:
    """Yield the actions of one GPU, in order. This is GPipe: change it."""
    for microbatch in range(microbatches):
        yield Action("F", rank, microbatch)
    for microbatch in range(microbatches):
        yield Action("B", rank, microbatch)


def attempt(answer) -> Attempt:
    return as_schedule(answer, "FB")


def over_par(yours: Attempt, par: Attempt) -> str:
    if yours.figures["held_microbatches"] > par.figures["held_microbatches"]:
        return "A GPU takes forwards that nobody needs yet: how many must it take before its first backward?"
    if any(map(int.__gt__, ahead(yours), ahead(par))):
        return (
            "The GPUs wait for one another: a GPU near the end takes forwards while the one before it "
            "waits for a gradient. How many must it take before its first backward?"
        )
    return (
        "The GPUs wait for one another: a GPU far from the end needs more forwards before its first backward."
    )


def ahead(attempt: Attempt) -> list[int]:
    """Count each GPU's forwards before its first backward."""
    assert isinstance(attempt.picture, Timing)
    return [[action.op for action in actions].index("B") for actions in attempt.picture.schedule.actions]


EXERCISE = Exercise(
    file=__file__,
    chapter="3D",
    minutes=20,
    asks={"schedule": module_of(full_name("3d")).one_f_one_b},
    attempt=attempt,
    hints=(
        "The last GPU can take a backward right after its first forward: it waits for nobody. What about the "
        "one before it?",
        "GPU `rank` has P - 1 - rank GPUs behind it, and takes so many forwards ahead. From then on, one "
        "forward and one backward by turns.",
        "ahead = min(ranks - 1 - rank, microbatches); for turn in range(ahead + microbatches): F of `turn` "
        "while there is one, then B of turn - ahead once turn >= ahead.",
    ),
    learned="1F1B has GPipe's bubble, and holds P microbatches where GPipe holds M.",
    page="docs/book/3d.md",
    over_par=over_par,
)
