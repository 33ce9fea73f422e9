"""Who sits where.

Eight GPUs stand in two nodes of four, and the model is cut in three ways at once: tp = 2, pp =
2, dp = 2. A GPU has a place on each axis, and the order of the axes says who sits where. The
first axis varies fastest: in "pp-dp-tp" GPUs 0 and 1 are neighbours in the pipeline, GPUs 0 and
2 average their gradients, and GPUs 0 and 4 share every matrix.

        node 0   0 1 2 3        link inside: fast
        node 1   4 5 6 7        link across: slow

One axis must cross the nodes, and two need not. To look around:

        ndparallel mesh --tp 2 --pp 2 --dp 2 --order pp-dp-tp       who is in whose group, and on which links

Given   nothing: return the order

Right is an order of tp, dp and pp. Then the seconds count.
"""

from ndparallel.base.errors import UserError
from ndparallel.exercises.exercise import Attempt, Exercise
from ndparallel.exercises.runs import in_lesson
from ndparallel.lessons.registry import full_name, module_of
from ndparallel.parallel.mesh import Mesh
from ndparallel.training.job import Job


def order() -> str:
    """Return the order of the axes, as "pp-dp-tp"."""
    return "tp-dp-pp"


def attempt(answer) -> Attempt:
    chosen = answer.on(0).order()
    if not isinstance(chosen, str) or sorted(chosen.split("-")) != ["dp", "pp", "tp"]:
        raise UserError(f"order() returned {chosen!r}: return tp, dp and pp in some order, joined by -")
    mesh = Mesh(tp=2, pp=2, dp=2, order=chosen)
    return in_lesson(
        module_of(full_name("4d")).train, Job(mesh=mesh, microbatches=4), mesh, ("step_seconds",)
    )


def over_par(yours: Attempt, par: Attempt) -> str:
    if yours.figures["step_seconds"] > 1.2 * par.figures["step_seconds"]:
        return "tp crosses the nodes. It talks four times in every layer, and each time somebody waits."
    return "dp crosses the nodes. It sends more than pp does, and not all of it hides."


EXERCISE = Exercise(
    file=__file__,
    chapter="4D",
    minutes=5,
    asks={"order": order},
    attempt=attempt,
    hints=(
        "Which axis talks most often, and cannot hide it? It stays inside.",
        "Of dp and pp, which sends fewer bytes? It may cross.",
        "The first axis varies fastest and stays inside; the last one crosses the nodes.",
    ),
    learned="what matters is which axis crosses the nodes: tp never, and here pp rather than dp.",
    page="docs/book/4d.md",
    over_par=over_par,
)
