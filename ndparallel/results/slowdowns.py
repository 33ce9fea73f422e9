"""What disturbances cost: every strategy against the same run undisturbed, and which suffers most."""

from collections.abc import Iterator, Sequence
from typing import Any

from ndparallel.base.words import listed
from ndparallel.engines.launch import RankResult
from ndparallel.hardware.disturbances import Disturbances
from ndparallel.results.measure import PEER, Measurement, sends


def damages(strategies: Sequence[Measurement]) -> list[dict[str, Any]]:
    """One row for each strategy that was disturbed, the one that suffers most first. `takes` is how many
    times as long it takes."""
    rows = [
        {
            "strategy": row.name,
            "undisturbed_seconds": row.undisturbed_step_seconds,
            "disturbed_seconds": row.step_seconds,
            "takes": row.step_seconds / row.undisturbed_step_seconds,
        }
        for row in strategies
        if row.step_seconds and row.undisturbed_step_seconds
    ]
    return sorted(rows, key=lambda row: -row["takes"])


def sentences(
    rows: Sequence[dict[str, Any]], disturbances: Disturbances, results: dict[str, list[RankResult]]
) -> Iterator[str]:
    """Name the strategies that suffer most and least, and the links that slow none."""
    if len(rows) > 1:
        first, *_, last = rows
        most, least = (f"{row['takes']:.2f}x" for row in (first, last))
        yield (
            f"All take {most} as long."
            if most == least
            else f"{first['strategy']} suffers most ({most}), {last['strategy']} least ({least})."
        )
    unused = [
        f"{a}-{b}"
        for a, b, _ in disturbances.slow_links
        if not any(is_used(runs, a, b) for runs in results.values())
    ]
    if unused:
        yield f"No message goes over link {listed(unused)}, so that it slows nobody."


def is_used(runs: Sequence[RankResult], a: int, b: int) -> bool:
    """Whether one of these two GPUs has sent the other anything."""
    return any({run.rank, event[PEER]} == {a, b} for run in runs for event in sends(run.events))
