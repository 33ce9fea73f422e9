"""What the first clock leaves out, in seconds: messages that are taken in as they arrive, and ports that are
shared.

Idea   The same run on two more networks, each with one change: incoming lines take messages in the order in
       which they arrive; then ports that all streams of a GPU share are in the place of the lines. What a
       change adds to a step may be negative.
"""

from collections.abc import Sequence
from math import isclose
from typing import Any

from gpu import Hardware, si
from ndparallel.engines.task import RankResult
from ndparallel.results.measure import Contention, Measurement

ROUNDING = 1e-9  # seconds that differ by less of themselves are the same, added up in another order


def measure_contention(results: Sequence[RankResult], hardware: Hardware, steps: int) -> Contention:
    """Replay a run of so many steps, whose ranks have kept their journals."""
    # imported only where it is asked for: every lesson reads this file
    from ndparallel.contention.networks import ArrivalOrder, ProgramOrder, SharedPorts
    from ndparallel.contention.replay import replay

    journals = [result.journal for result in results]
    program, arrival, shared = (
        max(replay(journals, hardware, network)) / steps
        for network in (ProgramOrder, ArrivalOrder, SharedPorts)
    )
    return Contention(shared, added(program, arrival), added(arrival, shared))


def added(before: float, after: float) -> float:
    return 0.0 if isclose(before, after, rel_tol=ROUNDING) else after - before


# ------------------------------------------------------------------------------------------ what people read


def contention_rows(strategies: Sequence[Measurement]) -> list[dict[str, Any]]:
    """One row for each strategy of several GPUs that ran."""
    return [
        {
            "strategy": row.name,
            "step_seconds": row.step_seconds,
            "arrival order": signed(row.contention.arrival_order_seconds),
            "sharing": signed(row.contention.sharing_seconds),
            "both": f"{lengthened(row):+.2%}" if lengthened(row) else "0%",
        }
        for row in strategies
        if row.contention
    ]


def signed(seconds: float) -> str:
    return f"{'+' * (seconds > 0)}{si(seconds, 's')}"


def lengthened(row: Measurement) -> float:
    """The share of the step that both changes add to it."""
    assert row.contention and row.step_seconds
    return (row.contention.arrival_order_seconds + row.contention.sharing_seconds) / row.step_seconds


def most_lengthened(strategies: Sequence[Measurement]) -> str:
    """Name the strategy whose step changes most."""
    row = max((row for row in strategies if row.contention), key=lambda row: abs(lengthened(row)))
    share = lengthened(row)
    if not share:
        return "No step is longer or shorter."
    return f"{row.name} changes most: its step is {abs(share):.2%} {'longer' if share > 0 else 'shorter'}."


def sharing_words(row: Measurement) -> str:
    """Say what becomes of the step where sends ask more of a link than it has."""
    if row.contention is None:
        return "; --contention says what sharing it adds to the step."
    seconds = row.contention.sharing_seconds
    longer = f"{si(abs(seconds), 's')} {'longer' if seconds > 0 else 'shorter'}" if seconds else "as long"
    return f". Where GPUs share their ports, the step is {longer}."
