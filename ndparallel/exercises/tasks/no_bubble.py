"""No bubble.

ZB-H1 fills the end of the step, and still waits at its beginning. With more memory that time
can be filled as well: with more forwards. If every GPU may hold 2 P - 1 microbatches, no GPU
needs to stand idle between its first action and its last:

        GPU 0   F F F F F F F I W F I W I W I W I W I W I W I W
        GPU 3         F I F I F I F I F I F I F I W F I W W W W W W W

Given   Action(op, stage, microbatch)       as in `fill_the_bubble`, and the same 4 GPUs and 8 microbatches

Right is a schedule that can run, does everything once and holds at most 7 microbatches. Then
the idle seconds count: of the GPU that has most of them between its first action and its last.
(When the next step follows without a stop, these are the only ones that are lost.)
"""

from collections.abc import Iterator
from dataclasses import replace

from ndparallel.exercises.exercise import Attempt, Exercise
from ndparallel.exercises.runs import as_schedule
from ndparallel.pipeline.actions import Action
from ndparallel.pipeline.timing import Timing

MOST_HELD = 7


def schedule(rank: int, ranks: int, microbatches: int) -> Iterator[Action]:
    """Yield the actions of one GPU, in order: Action(op, rank, microbatch), op "F", "I" or "W"."""
    ahead, later = 2 * (ranks - 1 - rank), 2 * rank
    for turn in range(microbatches + ahead + later):
        if turn < microbatches:
            yield Action("F", rank, turn)
        if 0 <= turn - ahead < microbatches:
            yield Action("I", rank, turn - ahead)
        if 0 <= turn - ahead - later < microbatches:
            yield Action("W", rank, turn - ahead - later)


def attempt(answer) -> Attempt:
    done = as_schedule(answer, "FIW")
    if not isinstance(done.picture, Timing):  # it cannot run
        return done
    idle = max(span - busy for span, busy in zip(done.picture.spans, done.picture.busy))
    held = done.figures["held_microbatches"]
    too_many = (
        f"A GPU holds {held:g} microbatches at once, and may hold {MOST_HELD}." if held > MOST_HELD else ""
    )
    return replace(done, figures={"idle_seconds": idle}, wrong=too_many or done.wrong)


def over_par(yours: Attempt, par: Attempt) -> str:
    return (
        "A GPU still waits: before its first I it can take forwards until the gradient comes, and behind its "
        "last F it can do the W that it has kept."
    )


EXERCISE = Exercise(
    file=__file__,
    chapter="3D",
    minutes=15,
    asks={"schedule": schedule},
    attempt=attempt,
    hints=(
        "When does the first gradient reach GPU 0? How many forwards can it do until then?",
        "GPU 0 does 2 (P - 1) + 1 forwards before its first I, and each GPU behind it does two fewer. The "
        "memory that a GPU does not need for forwards ahead, it can use for W kept back.",
        "ahead = 2 (P - 1 - rank), and W lags 2 rank microbatches behind I.",
    ),
    learned="with twice 1F1B's memory no GPU waits once it has begun. This is ZB-H2; what is left of the "
    "bubble is before a GPU's first action and after its last, and the next step fills it.",
    page="docs/book/3d.md",
    over_par=over_par,
)
