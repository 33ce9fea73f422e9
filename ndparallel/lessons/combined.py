"""4D: strategies on a grid of GPUs, what to notice, and its options."""

import argparse
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from gpu import si
from ndparallel.base.errors import UserError, check_known
from ndparallel.base.functions import file_in, in_words
from ndparallel.base.quoting import brief
from ndparallel.base.words import count
from ndparallel.engines.time_limit import TooLong, in_time
from ndparallel.lessons.expert_parallel import mixture
from ndparallel.lessons.lesson import Lesson, Own, Program, Strategy
from ndparallel.model.units import ModelConfig
from ndparallel.parallel.context import VARIANTS
from ndparallel.parallel.mesh import DEFAULT_ORDER, Mesh
from ndparallel.parallel.tensor import SEQUENCE_PARALLEL
from ndparallel.results.report import Run
from ndparallel.training.job import Job

OF_THE_JOB = (
    "zero",
    "schedule",
    "microbatches",
    "stage_chunks",
    "recompute",
    "sequence_parallel",
    "context_parallel",
    "tp_overlap",
)
SHARED_BY = {"tp": "matrices", "pp": "layers", "dp": "the batch", "ep": "experts", "cp": "sequences"}
DEGREES = (*SHARED_BY, "etp")

# --------------------------------------------------------------------------------------- strategies on a grid


def grid(program: Program, name: str, changes: dict | None = None, **degrees: Any) -> Strategy:
    """Make a strategy on a mesh of these degrees; those that depend on the number of GPUs are functions of
    it. `name` may say {dp}."""

    def mesh(gpus: int) -> Mesh:
        return Mesh(
            **{axis: degree(gpus) if callable(degree) else degree for axis, degree in degrees.items()}
        )

    def named(gpus: int) -> str:
        return name.format(dp=max(1, gpus // 4))

    changes = {"microbatches": one_sequence_each} | (changes or {})
    return Strategy(named(8), program, mesh, changes, named=named)


def one_sequence_each(job: Job, mesh: Mesh) -> int:
    """Take microbatches of one sequence in a pipeline, unless --microbatches says otherwise; the whole share
    at once without one."""
    return job.microbatches if job.microbatches > 1 or mesh.pp == 1 else max(1, job.batch // mesh.dp)


def share(parts: int) -> Callable[[int], int]:
    """Return the degree that is left when the others take `parts`, as a function of the GPUs."""

    def degree(gpus: int) -> int:
        if gpus % parts:
            fewer = gpus // parts * parts
            near = f"{fewer} or {fewer + parts}" if fewer else parts
            raise UserError(
                f"tp * pp * cp is {parts}, which does not divide {count(gpus, 'GPU')}: choose --gpus {near}, "
                "or other degrees (--tp, --pp, --cp of 4D)."
            )
        return gpus // parts

    return degree


def all_gpus(gpus: int) -> int:
    return gpus


def half_as_many(job: Job, mesh: Mesh) -> int:
    """Halve the sequences, which are twice as long, where they can be shared out: the tokens stay as many."""
    return job.batch // 2 if job.batch % (2 * mesh.dp) == 0 else job.batch


def twice_as_long(job: Job, mesh: Mesh) -> ModelConfig:
    return job.model.replace(sequence=2 * job.model.sequence)


def strategies_for(lesson: Lesson, arguments: argparse.Namespace) -> list[Strategy]:
    """Return the one strategy that --tp, --pp, ... ask for, or the lesson's own."""
    asked = {axis: getattr(arguments, axis) for axis in DEGREES if getattr(arguments, axis) is not None}
    settings = (arguments.order, arguments.schedule, arguments.zero)
    if not asked and settings == (DEFAULT_ORDER, None, None):
        return list(lesson.strategies)
    for axis, degree in asked.items():
        if degree < 1:
            raise UserError(f"--{axis} is {degree}; a degree of parallelism is at least 1.")
    rest = asked.get("tp", 1) * asked.get("pp", 1) * asked.get("cp", 1)
    asked.setdefault("dp", share(rest)(arguments.gpus))
    if rest * asked["dp"] != arguments.gpus:
        raise UserError(
            f"tp * pp * cp * dp is {rest * asked['dp']}, not the {arguments.gpus} GPUs of --gpus: leave --dp "
            "to be derived."
        )
    told = [f"{axis.upper()}{degree}" for axis, degree in asked.items() if degree > 1 or axis == "etp"]
    name = " x ".join(told) or "one GPU"
    layout = grid(lesson.strategies[0].program, name, with_experts(asked), order=arguments.order, **asked)
    if arguments.order != DEFAULT_ORDER:
        refuse_order_of_one_axis(layout, arguments.gpus)
    return [layout]


def with_experts(degrees: dict[str, Any]) -> dict:
    """Return the model of a layout that says who shares experts: one that has some."""
    return {"model": mixture} if degrees.get("ep", 1) != 1 or "etp" in degrees else {}


def refuse_order_of_one_axis(layout: Strategy, gpus: int) -> None:
    mesh = layout.mesh(gpus)
    axes = [axis for axis in mesh.order.split("-") if getattr(mesh, axis) > 1]
    if len(axes) < 2:
        raise UserError(
            f"--order needs two axes or more, and {layout.name} has {'one' if axes else 'none'}: give two "
            "of --tp, --pp, --cp, --dp and --ep a degree above 1, or leave --order out."
        )


def as_layout(lesson: Lesson, name: str, words: str, function: Callable, gpus: int) -> Strategy:
    """Run what a reader's function returns for so many GPUs: degrees of the axes, and fields of the job."""
    returned = called(words, function, gpus)
    known = sorted({*DEGREES, "order", *OF_THE_JOB})
    if not isinstance(returned, dict):
        raise UserError(f"{words} returned {brief(returned)}: return a dict of {', '.join(known)}.")
    for key in returned:
        check_known(f"key of the layout that {words} returned:", key, known)
    changes = {name: value for name, value in returned.items() if name in OF_THE_JOB}
    degrees = {name: value for name, value in returned.items() if name not in OF_THE_JOB}
    return grid(lesson.strategies[0].program, name, with_experts(degrees) | changes, **degrees)


def called(words: str, function: Callable, gpus: int) -> object:
    """Return what a reader's function does. Raises UserError for what it raises, with its line."""
    try:
        with in_time(words, file_in(words)):
            return function(gpus)
    except (UserError, TooLong):
        raise
    except Exception as error:
        raise UserError(f"{words} raised {in_words(error, file_in(words))}.") from None


LAYOUT = Own(
    "a layout, returned for the number of GPUs as {'tp': 2, 'pp': 2, 'dp': 2, 'zero': 1, ...}",
    ("gpus",),
    as_layout,
)


def add_options(parser: argparse.ArgumentParser) -> None:
    layout = parser.add_argument_group(
        "one layout, in place of the table's", "dp takes the GPUs that --tp, --pp and --cp leave."
    )
    option = layout.add_argument
    for axis, what in SHARED_BY.items():
        option(f"--{axis}", type=int, metavar="N", help=f"GPUs that share {what}")
    option("--etp", type=int, metavar="N", help="GPUs that cut each expert; 1 leaves it whole (default tp)")
    option(
        "--order",
        default=DEFAULT_ORDER,
        metavar="A-B-...",
        help=f"the order of the axes above 1, innermost first (default {DEFAULT_ORDER})",
    )
    option("--schedule", metavar="NAME", help="the pipeline's schedule, with --pp (default 1f1b)")
    option("--zero", type=int, choices=range(4), help="what DP ranks share out: 0 nothing to 3 all")
    parser.add_argument(
        "--sequence-parallel",
        default="none",
        choices=SEQUENCE_PARALLEL,
        help="cut norms and residuals over TP too",
    )
    parser.add_argument(
        "--context-parallel",
        default="ring",
        choices=VARIANTS,
        help="how CP shares a sequence; all-to-all is Ulysses (default ring)",
    )


# --------------------------------------------------------------------------------------------- what to notice


def notice(run: Run) -> Sequence[str]:
    """Say what stops each dimension, and what the shape of the network costs."""
    sentences = []
    cube = next((name for name in run.results if name.startswith("TP2 x PP2 x")), "")
    rows = [run[name] for name in (cube, "DP only", "TP only", "PP only") if name in run]
    if len(rows) == 4:
        best, (_, _, tp, pp) = min(rows, key=lambda row: row.step_seconds), rows
        waits = tp.exposed_communication_seconds / tp.step_seconds
        sentences += [
            f"On this model and network {best.name!r} is the fastest of the dense layouts: "
            f"{si(best.step_seconds, 's')} a step.",
            f"'TP only' waits for {'less than 1%' if waits < 0.005 else f'{waits:.0%}'} of its step.",
            f"'PP only' idles for {pp.bubble_seconds / pp.step_seconds:.0%} of its step.",
        ]
    if "TP outermost" in run and cube in run:
        sentences += about_places(run, cube)
    return sentences


def about_places(run: Run, cube: str) -> Iterator[str]:
    """Say what it costs that TP crosses the nodes; where all links are alike, that it costs nothing."""
    gpus, each = run[cube].gpus, run.hardware.gpus_per_node
    if each == 1 or gpus <= each:
        where = "every GPU has a node of its own" if each == 1 else f"all {gpus} GPUs stand in one node"
        yield (
            f"'TP outermost' is the same as {cube} here: {where}, so all links are alike. Try "
            f"--gpus-per-node {gpus // 2}."
        )
    else:
        slower = run["TP outermost"].step_seconds / run[cube].step_seconds - 1
        inside = "PP" if cube.endswith("DP1") else "DP"
        yield f"The very same {cube} with TP across nodes and {inside} inside is {slower:.0%} slower."
