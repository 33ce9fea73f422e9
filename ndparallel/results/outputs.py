"""What else a run can leave behind: its timelines as an SVG, its events as a Chrome trace, one rank's run in
words.

Idea   A run is drawn only after it is over, from its events, so that asking for a picture changes no number.
Limit  A narration is of one strategy: the last that --strategy names, or the last of the contrast that ran.
"""

import argparse
from collections.abc import Iterator, Sequence

from ndparallel.base.errors import UserError
from ndparallel.base.files import check_writable, write_atomically
from ndparallel.base.words import count, listed, option_of
from ndparallel.drawing.fewer_spans import alike
from ndparallel.drawing.lanes import timeline
from ndparallel.results.report import Run


def check_outputs(arguments: argparse.Namespace) -> None:
    """Raise UserError where a file that is asked for cannot be written, or --kernels has nothing to tell."""
    check_writable(arguments.svg, arguments.trace)
    if arguments.kernels and arguments.narrate is None:
        raise UserError("--kernels says how much --narrate tells: add --narrate, or leave --kernels out.")


def refuse_outputs(arguments: argparse.Namespace, table: str, *others: str) -> None:
    """Raise UserError where an option draws, narrates or replays one run, or is one of `others`: beside
    `table`, which makes a table of many."""
    if arguments.timeline == "all":
        raise UserError(
            f"--timeline all is of one run, and {table} makes a table of many: leave one of the two out."
        )
    for option in ("svg", "trace", "narrate", "kernels", "memory", "wide", "contention", *others):
        given = getattr(arguments, option)
        if given is not None and given is not False:
            raise UserError(
                f"{option_of(option)} is of one run, and {table} makes a table of many: leave one "
                "of the two out."
            )


def drawn_strategies(run: Run, contrast: Sequence[str], arguments: argparse.Namespace) -> list[str]:
    """Which strategies to draw: all that ran and have events, those that --strategy names, the contrast, or
    the last."""
    ran = [name for name in run.results if run.has_events(name)]
    if arguments.timeline == "all":
        return ran
    wanted = arguments.strategy or [name for name in contrast if name in ran] or ran[-1:]
    return [name for name in dict.fromkeys(wanted) if name in ran]


def narrated_strategy(run: Run, contrast: Sequence[str], arguments: argparse.Namespace) -> str:
    """The one strategy to narrate. Raises UserError where it has not run."""
    told = [name for name in contrast if name in run and run.has_events(name)]
    wanted = arguments.strategy or told or list(run.results)
    if wanted[-1] not in run:
        raise UserError(
            f"{wanted[-1]} has no events to tell of, because it did not run: choose another with --strategy."
        )
    if not run.has_events(wanted[-1]):
        raise UserError(
            f"{wanted[-1]} has no events to tell of, because those of {run[wanted[-1]].gpus} GPUs are added "
            "up: choose fewer GPUs."
        )
    return wanted[-1]


def write_files(run: Run, names: Sequence[str], arguments: argparse.Namespace) -> Iterator[str]:
    """Write the files that are asked for, of the strategies with these names, and say of each what it has."""
    for path in (arguments.svg, arguments.trace):
        if path is not None and not names:
            raise UserError(
                f"there is nothing to draw into {path!r}, because no strategy ran and has kept its events."
            )
    if arguments.svg is not None:
        from ndparallel.drawing.svg.timelines import draw_timelines  # only where a picture is asked for

        write_atomically(
            arguments.svg, draw_timelines([alike(timeline(name, run.results[name])) for name in names])
        )
        yield f"{arguments.svg} shows {listed(names)}."
    if arguments.trace is not None:
        from ndparallel.drawing.trace import trace_json

        write_atomically(arguments.trace, trace_json({name: run.results[name] for name in names}))
        told = listed([f"{name} on {count(run[name].gpus, 'GPU')}" for name in names])
        yield f"{arguments.trace} has {told}: open it with ui.perfetto.dev, or offline with vizviewer."


def narration(run: Run, contrast: Sequence[str], arguments: argparse.Namespace, width: int) -> list[str]:
    """The narration of the rank that --narrate names, unit by unit, or with --kernels event by event, in
    lines of at most `width` characters. Raises UserError where there is no such rank, or nothing to tell."""
    if arguments.narrate is None:
        return []
    from ndparallel.drawing.narrate import narrate
    from ndparallel.drawing.narrate_units import narrate_units

    name = narrated_strategy(run, contrast, arguments)
    results = run.results[name]
    check_rank(arguments.narrate, len(results), f"{name} ran on")
    tell = narrate if arguments.kernels else narrate_units
    told = tell(results[arguments.narrate], max(result.end_seconds for result in results), width)
    return [f"{name}, {count(len(results), 'GPU')}.", *told]


def check_rank(rank: int, gpus: int, what_has: str) -> None:
    """Raise UserError where there is no such GPU to narrate; `what_has` so many begins the sentence."""
    if not 0 <= rank < gpus:
        there = f"GPUs 0 to {gpus - 1}" if gpus > 1 else "GPU 0 alone"
        raise UserError(f"{what_has} {there}: there is no GPU {rank} to tell of.")
