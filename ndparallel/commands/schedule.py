"""Time and draw pipeline schedules; several at once are compared under the same work.

Idea   The times given are those of all of a rank's layers; of V chunks each takes 1/V. A message takes as
       long for a chunk.
Limit  All ranks have the same work, and all messages the same delay.

Glossary
    makespan     the time until the last rank ends, in the unit of --forward
    bubble       idle share of all ranks' time, until the last one ends
    over ideal   what waiting adds to the time of a pipeline that never waits
    of the span  idle share between a rank's first and last action, where these are farthest apart
    held, live   activations kept until B or W; until B or I. The most at any time, by rank

  ndparallel schedule 1f1b
  ndparallel schedule gpipe 1f1b zb-v --stages 8 --microbatches 16
"""

import argparse
import json
import math
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ndparallel.base.errors import UserError
from ndparallel.base.files import check_writable, write_atomically
from ndparallel.base.functions import is_own
from ndparallel.base.options import at_least_one
from ndparallel.base.quoting import visible
from ndparallel.base.words import count, listed, option_of
from ndparallel.drawing.actions import peaks
from ndparallel.drawing.terminal import schedules as terminal_schedules
from ndparallel.pipeline.catalog import (
    RECIPES,
    SEARCHED,
    build,
    contradictions,
    schedule_named,
    written_schedules,
)
from ndparallel.pipeline.search import check_size
from ndparallel.pipeline.timing import Timing, peak_activations, time_schedule
from ndparallel.pipeline.work import Work
from ndparallel.results.printing import plain_console, prose
from ndparallel.results.progress import counted, progress
from ndparallel.results.tables import quiet_table

MOST_STEPS = 1_000_000
DURATIONS = ("forward", "backward_input", "backward_weight", "p2p", "fused")
OWN = "or FILE.py:FUNCTION, which yields (op, stage, microbatch) for (rank, ranks, microbatches)"
NAMES = ", ".join([*written_schedules(), SEARCHED, OWN])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = f"{parser.prog} NAME [NAME ...] [options]"
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME", help=NAMES)
    add("--stages", type=int, default=4, metavar="P", help="ranks of the pipeline (default 4)")
    add("--microbatches", type=int, default=8, metavar="M", help="parts of the batch (default 8)")
    add(
        "--chunks",
        type=int,
        metavar="V",
        help="chunks of the model per rank (default: 2 where the schedule has a choice)",
    )
    add_durations(parser)
    add(
        "--memory-limit",
        type=float,
        metavar="X",
        help="most activations per rank, in those of one chunk; searched keeps to it (default P)",
    )
    add(
        "--released-by-input",
        type=float,
        default=0.0,
        metavar="R",
        help="share of the activations that I frees (default 0)",
    )
    add("--svg", metavar="FILE", help="draw the schedules into an SVG")
    add("--json", action="store_true", help="print JSON: one object, or a list of them for several names")


def add_durations(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("how long an action takes").add_argument
    add("--forward", type=float, default=1.0, metavar="T", help="time of F (default 1)")
    add("--backward-input", type=float, default=1.0, metavar="T", help="time of I (default 1)")
    add(
        "--backward-weight", type=float, default=1.0, metavar="T", help="time of W (default 1); B takes I + W"
    )
    add("--p2p", type=float, default=0.0, metavar="T", help="delay of a message between ranks (default 0)")
    add("--fused", type=float, metavar="T", help="time of an overlapped F and B together (default F + B)")


def run(args: argparse.Namespace) -> None:
    check_writable(args.svg)
    check_named(args)
    args.names = list(map(schedule_named, args.names))
    check(args)
    console, _ = plain_console()
    with progress() as announce:
        steps = args.stages * args.microbatches * (args.chunks or 1)
        names = counted(args.names, announce, lambda name: f"{name} of {steps:,} forwards")
        timings = [timed(name, args) for name in names]
        check_fused(timings, args)
        announce(f"the drawing of {steps:,} forwards")
        svg = svg_of(timings) if args.svg is not None else ""
        pictures = [] if args.json else pictures_of(timings, console)
    if args.svg is not None:
        write_atomically(args.svg, svg)
    if args.json:
        described = [describe(timing) for timing in timings]
        print(json.dumps(described if len(described) > 1 else described[0]))
    else:
        show(timings, pictures, args, console)
    if args.svg is not None:
        print(
            f"\n{visible(args.svg)} shows {listed(args.names)}.", file=sys.stderr if args.json else sys.stdout
        )


def check_fused(timings: Sequence[Timing], args: argparse.Namespace) -> None:
    """Raise UserError for seconds of pairs that no schedule has."""
    if args.fused is not None and not any(pairs for timing in timings for pairs in timing.schedule.fused):
        raise UserError(
            f"--fused is of an F and a B that run as one, and {listed(args.names)} has none: take dualpipev, "
            "or leave it out."
        )


def check_named(args: argparse.Namespace) -> None:
    """Raise UserError where no schedule is named, which also says what else is wrong."""
    if args.names:
        return
    lacks = f"ndparallel schedule needs NAME: {NAMES} (ndparallel schedule --help tells what there is)."
    try:
        check(args)
    except UserError as error:
        raise UserError(f"{error} And {lacks}") from None
    raise UserError(lacks)


def check(args: argparse.Namespace) -> None:
    """Raise UserError for what no schedule can be timed with."""
    at_least_one(args, "stages", "microbatches", "chunks")
    if args.stages * args.microbatches * (args.chunks or 1) > MOST_STEPS:
        sizes = [count(args.stages, "stage"), count(args.microbatches, "microbatch", "es")]
        sizes += [count(args.chunks, "chunk")] * (args.chunks is not None)
        raise UserError(f"{listed(sizes)} are too many: choose a product of {MOST_STEPS:,} at most.")
    for duration in DURATIONS:
        if not 0 <= (getattr(args, duration) or 0) < math.inf:
            raise UserError(f"{option_of(duration)} {getattr(args, duration):g} is no time: give 0 or more.")
    if SEARCHED in args.names:
        check_size(args.stages, args.microbatches)
    if args.memory_limit is not None and not args.memory_limit > 0:
        raise UserError(f"--memory-limit {args.memory_limit:g} is too low: give 1 or more.")
    if not 0 <= args.released_by_input <= 1:
        raise UserError(
            f"--released-by-input {args.released_by_input:g} is no share of the activations: give 0 to 1."
        )


def timed(name: str, args: argparse.Namespace) -> Timing:
    """Time a schedule; where several are asked for, --chunks is for those that have a choice."""
    fixed = name not in RECIPES or RECIPES[name].chunks
    chunks = None if fixed and len(args.names) > 1 else args.chunks
    given = [getattr(args, duration) for duration in DURATIONS]
    one_chunk = Work.of_whole_stages(1, *given)
    schedule = build(
        name, args.stages, args.microbatches, chunks, one_chunk, args.memory_limit, args.released_by_input
    )
    return time_schedule(schedule, Work.of_whole_stages(schedule.chunks, *given))


def describe(timing: Timing) -> dict[str, object]:
    schedule = timing.schedule
    figures = (
        "makespan",
        "busy",
        "bubble_ratio",
        "bubble_over_ideal",
        "span_bubble_ratio",
        "peak_held",
        "peak_live",
    )
    lists = {"actions": schedule.actions, "fused": schedule.fused}
    return {
        "name": schedule.name,
        "layout": schedule.layout.kind,
        **lists,
        **{name: getattr(timing, name) for name in figures},
    }


def svg_of(timings: Sequence[Timing]) -> str:
    from ndparallel.drawing.svg.schedules import draw_schedules  # only where a picture is asked for

    return draw_schedules(timings)


def pictures_of(timings: Sequence[Timing], console: Console) -> list[Text]:
    scale = terminal_schedules.columns_per_second(timings, console.width)
    return [terminal_schedules.draw(timing, scale, is_plain(console), console.width) for timing in timings]


def is_plain(console: Console) -> bool:
    return console.no_color or console.color_system is None


def show(
    timings: Sequence[Timing], pictures: Sequence[Text], args: argparse.Namespace, console: Console
) -> None:
    scale = terminal_schedules.columns_per_second(timings, console.width)
    for timing, picture in zip(timings, pictures):
        console.print(heading(timing))
        console.print(picture, no_wrap=True)
        if missing := terminal_schedules.left_out(timing, scale, console.width):
            console.print(f"{missing} --svg FILE draws all of it.", style="dim")
        console.print()
    drawn = "".join(picture.plain for picture in pictures)
    console.print(terminal_schedules.legend(timings, is_plain(console), drawn, scale))
    console.print(numbers(timings[0], args) if len(timings) == 1 else table(timings, args, console.width))
    for remark in filter(None, map(record_remark, timings)):
        console.print()
        console.print(prose(remark, console.width))


def heading(timing: Timing) -> Text:
    schedule = timing.schedule
    recipe = RECIPES.get(schedule.name)
    if is_own(schedule.name):
        about = "The order that this function yields."
    elif recipe:
        about = f"{recipe.summary} ({recipe.source})"
    else:
        about = "The order found for these times and this memory."
    return Text.assemble((schedule.name, "bold"), "  ", (about, "dim"))


def record_remark(timing: Timing) -> str:
    """Say where the record of a schedule, which a reader may have added, is wrong; nothing where it holds."""
    name = timing.schedule.name
    wrong = list(contradictions(timing.schedule)) if name in written_schedules() else []
    return f"The record of {name} is wrong: {'; '.join(wrong)}. Plans are predicted by it." if wrong else ""


def numbers(timing: Timing, args: argparse.Namespace) -> str:
    over = "" if fits(timing, args) else f", over the limit of {args.memory_limit:g}"
    bubble, of_span = f"{timing.bubble_ratio:.1%}", f"{timing.span_bubble_ratio:.1%}"
    span = "" if of_span == bubble else f", {of_span} of the span"
    return (
        f"makespan {timing.makespan:g}, bubble {bubble} ({timing.bubble_over_ideal:.1%} over ideal{span}), "
        f"peak held {peaks(timing.peak_held)}, live {peaks(timing.peak_live)}{over}"
    )


def table(timings: Sequence[Timing], args: argparse.Namespace, width: int) -> Table:
    """The figures side by side. Memory is also given in whole microbatches, held / V: chunks of different
    schedules differ in size."""
    columns = [
        "schedule",
        "makespan",
        "bubble",
        "over ideal",
        "of span",
        "peak held",
        "peak live",
        "held / V",
    ]
    limit = [] if args.memory_limit is None else [f"limit {args.memory_limit:g}"]
    return quiet_table(
        columns + limit, [cells(timing, args)[: len(columns + limit)] for timing in timings], width
    )


def cells(timing: Timing, args: argparse.Namespace) -> list[str]:
    ratios = (timing.bubble_ratio, timing.bubble_over_ideal, timing.span_bubble_ratio)
    memory = [
        peaks(timing.peak_held),
        peaks(timing.peak_live),
        f"{max(timing.peak_held) / timing.schedule.chunks:g}",
    ]
    return [
        timing.schedule.name,
        f"{timing.makespan:g}",
        *(f"{ratio:.1%}" for ratio in ratios),
        *memory,
        "fits" if fits(timing, args) else "over",
    ]


def fits(timing: Timing, args: argparse.Namespace) -> bool:
    limit = math.inf if args.memory_limit is None else args.memory_limit
    return max(peak_activations(timing.schedule, args.released_by_input)) <= limit + 1e-6
