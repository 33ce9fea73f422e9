"""What the sweeps of all lessons share: the figures of a row, and the sentence under the table."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from math import fsum
from typing import Any

from ndparallel.engines.launch import RankResult
from ndparallel.lessons.runner import Entry, Runner
from ndparallel.results.measure import Measurement

Row = dict[str, Any]
NOTHING_FITS = "None of them fits into the memory of a GPU."

# by column: its value from a strategy's measurement and the single GPU's
FIGURES: dict[str, Callable[[Any, Any], float]] = {
    "step_seconds": lambda measured, alone: measured.step_seconds,
    "speedup": lambda measured, alone: alone.step_seconds / measured.step_seconds,
    "compute_seconds": lambda measured, alone: measured.compute_seconds,
    "exposed_communication_seconds": lambda measured, alone: measured.exposed_communication_seconds,
    "exposed share": lambda measured, alone: measured.exposed_communication_seconds / measured.step_seconds,
    "bubble share": lambda measured, alone: measured.bubble_seconds / measured.step_seconds,
    "sent_bytes": lambda measured, alone: measured.bytes_sent_per_gpu,
    "memory_bytes": lambda measured, alone: measured.peak_memory_bytes["total"],
    "buffers_bytes": lambda measured, alone: measured.peak_memory_bytes["buffers"],
}


def sweep_row(runner: Runner, entry: Entry, columns: Sequence[str], **point: Any) -> Row:
    """Run an entry and return what the sweep changes (`point`) and these figures of it; None for each figure
    of what does not fit into memory."""
    return row_and_results(runner, entry, columns, **point)[0]


def row_and_results(
    runner: Runner, entry: Entry, columns: Sequence[str], **point: Any
) -> tuple[Row, list[RankResult]]:
    """Run an entry and return its row and its ranks' results."""
    measured, results = runner.measured(entry)
    if measured.step_seconds is None:
        return point | dict.fromkeys(columns), results
    alone: Measurement = runner.reference(entry.job).measurement
    return point | {column: FIGURES[column](measured, alone) for column in columns}, results


def fastest_first(rows: list[Row]) -> list[Row]:
    """Sort by the seconds of a step; rows that do not fit into memory come last."""
    return sorted(rows, key=lambda row: row["step_seconds"] or float("inf"))


def fitting(rows: list[Row]) -> list[Row]:
    """Return the rows that fit into memory."""
    return [row for row in rows if row["step_seconds"]]


def sentence_of_first_and_last(rows: list[Row], sentence: Callable[[Row, Row], str]) -> str:
    """Compare the first and the last row that fit into memory."""
    fit = fitting(rows)
    return sentence(fit[0], fit[-1]) if fit else NOTHING_FITS


def routing_figures(results: list[RankResult]) -> Row:
    """Return the share of the tokens' choices that were dropped, and the rows of the busiest rank, which all
    wait for, over those of the mean rank: the mean over layers and microbatches."""
    if not results:
        return {"dropped share": None, "busiest to mean": None}
    sent = dropped = 0
    rows: dict[tuple, list[int]] = defaultdict(list)
    for result in results:
        for place, routed in result.value.routed[0].items():
            sent, dropped = sent + sum(routed.sent_rows), dropped + routed.dropped
            rows[place].append(sum(routed.expert_rows))
    ratios = [max(ranks) * len(ranks) / sum(ranks) for ranks in rows.values()]
    return {"dropped share": dropped / (sent + dropped), "busiest to mean": fsum(ratios) / len(ratios)}
