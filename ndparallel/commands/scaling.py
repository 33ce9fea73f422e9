"""The best plan on 8, 64, 512, 2048 and 16384 GPUs: step time, efficiency, MFU.

Idea   Weak scaling gives every GPU the same share of a batch that grows, strong scaling shares one batch
       among ever more. The job's batch is that of --gpus. Beside the numbers stand the ranges of a table that
       circulates, whose degrees are tried on this job too.

  ndparallel scaling --model llama-3-70b --gpus 512 --global-batch 512 --svg scaling.svg
"""

import argparse
import sys
from collections.abc import Iterator
from fractions import Fraction

from rich.table import Table

from gpu import si
from ndparallel.base.errors import UserError
from ndparallel.base.files import check_writable, write_atomically
from ndparallel.base.quantities import whole_number
from ndparallel.base.quoting import brief, visible
from ndparallel.base.words import count, three_digits
from ndparallel.planner.describe import peak_words, plan_words
from ndparallel.planner.option_groups import add_job_options
from ndparallel.planner.options import job_from, with_defaults
from ndparallel.planner.plan_name import name_of
from ndparallel.results.printing import plain_console, print_json, print_paragraphs, prose
from ndparallel.results.progress import progress
from ndparallel.results.tables import quiet_table
from ndparallel.search.scaling import SIZES, USUAL, Curves, Point, base_of, scale, scaling_rows
from ndparallel.search.scaling_svg import scaling_svg

COLUMNS = ("GPUs and their best plan", "batch", "step", "efficiency", "usual", "MFU", "usual", "its plan")
MOST_SIZES = 32
SHOWN_ABOVE_ONE = 1.005  # what is not 100% in whole percent
NOTE = (
    "Efficiency is a GPU's throughput against the smallest size that fits. The usual ranges are of a table "
    "that circulates without model or hardware; its plan is the MFU of that table's degrees on this job, "
    "with ZeRO-1."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_job_options(parser)
    output = parser.add_argument_group("the answer")
    output.add_argument("--sizes", metavar="N,N,...", help=f"GPUs (default {','.join(map(str, SIZES))})")
    output.add_argument("--svg", metavar="FILE", help="write a picture as well")
    output.add_argument("--json", action="store_true", help="print JSON and nothing else")


def run(arguments: argparse.Namespace) -> int:
    arguments = with_defaults(arguments)
    check_writable(arguments.svg)
    job, sizes = job_from(arguments), sizes_from(arguments.sizes)
    if arguments.gpus < 1:
        raise UserError(f"--gpus is {arguments.gpus}; the batch belongs to at least 1 GPU.")
    with progress() as announce:
        curves = scale(job, arguments.gpus, sizes, announce=announce)
    if arguments.svg is not None:
        write_atomically(
            arguments.svg,
            scaling_svg(f"{job.shape.name} on {job.hardware.name}: how the best plan scales", curves),
        )
    if arguments.json:
        print_json({"rows": scaling_rows(curves)})
    else:
        show(curves)
    if arguments.svg is not None:
        print(
            f"\n{visible(arguments.svg)} shows efficiency and MFU of both.",
            file=sys.stderr if arguments.json else sys.stdout,
        )
    return 0


def sizes_from(words: str | None) -> list[int]:
    """The numbers of GPUs in a list. Raises UserError for what is none."""
    if words is None:
        return list(SIZES)
    example = f"--sizes {brief(words)}: write numbers of GPUs with commas, as in 8,64,512"
    sizes = sorted({whole_number(part, example) for part in words.split(",")})
    if sizes[0] < 1 or len(sizes) > MOST_SIZES:
        raise UserError(f"{example}; each is a search of its own, so {MOST_SIZES} at most.")
    return sizes


def show(curves: Curves) -> None:
    console, width = plain_console()
    for way, points in curves.items():
        console.print(prose(f"{way} scaling", width, bold=f"{way} scaling"), end="\n\n")
        console.print(table_of(points, width))
        console.print()
    each = [point for points in curves.values() for point in points]
    reasons = [f"Batch {point.global_batch}: {point.why_not}" for point in each if point.why_not]
    above = [sentence for way, points in curves.items() for sentence in above_one(way, points)]
    print_paragraphs(
        console, dict.fromkeys([*reasons, NOTE, *peak_of(each), *rounded(curves["weak"]), *above]), width
    )


def peak_of(points: list[Point]) -> list[str]:
    """Say which peak MFU is a share of, where it is not that of 16 bits."""
    best = next((point.best for point in points if point.best), None)
    peak = peak_words(best).partition(" (")[0] if best else ""
    return [f"MFU is{peak}, and not of bf16's."] * bool(peak)


def rounded(points: list[Point]) -> list[str]:
    """Say where a GPU's share of the batch is not the same on all sizes."""
    shares = {Fraction(point.global_batch, point.gpus) for point in points}
    if len(shares) < 2:
        return []
    least, most = (three_digits(float(share)) for share in (min(shares), max(shares)))
    return [f"In weak scaling batches are whole sequences: a GPU's share is from {least} to {most} of them."]


def above_one(way: str, points: list[Point]) -> Iterator[str]:
    """Say why an efficiency of weak or strong scaling is above 100%."""
    base = base_of(points)
    most = max((point.efficiency(base) or 0 for point in points), default=0)
    if most <= SHOWN_ABOVE_ONE or not (base and base.best and base.fastest):
        return
    few, plan = count(base.gpus, "GPU"), name_of(base.best.plan)
    fastest = base.fastest.tokens_per_second_per_gpu / base.best.tokens_per_second_per_gpu
    if most > fastest * SHOWN_ABOVE_ONE:
        yield (
            f"Efficiency of {way} scaling is above 100% where no plan that fits on {few} takes as little of "
            f"a GPU's time for a token as those on more: there it is {plan}."
        )
    else:
        yield (
            f"Efficiency of {way} scaling is above 100% as the plan to take on {few}, {plan}, is the "
            "simplest of those that predictions cannot tell apart: the fastest has an efficiency of "
            f"{fastest:.1%}."
        )


def table_of(points: list[Point], width: int) -> Table:
    base = base_of(points)
    return quiet_table(COLUMNS, [cells(point, base) for point in points], width)


def cells(point: Point, base: Point | None) -> tuple[str, ...]:
    row, best, efficiency = USUAL.get(point.gpus), point.best, point.efficiency(base)
    return (
        f"{point.gpus}: {plan_words(best.plan) if best else 'no plan'}",
        f"{point.global_batch}",
        si(best.seconds, "s") if best else "-",
        f"{efficiency:.0%}" if efficiency else "-",
        between(row.efficiency) if row else "-",
        f"{best.mfu:.1%}" if best else "-",
        between(row.mfu) if row else "-",
        f"{point.usual.mfu:.1%}" if point.usual else "-",
    )


def between(limits: tuple[float, float]) -> str:
    low, high = limits
    return f"{100 * low:.0f}-{high:.0%}"
