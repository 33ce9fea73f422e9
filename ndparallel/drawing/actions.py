"""The actions of a schedule, as every picture of it shows them: colour, name, how light a later chunk is."""

from collections.abc import Sequence

from ndparallel.drawing.palette import BACKWARD, FORWARD, INPUT, TERMS, WEIGHT
from ndparallel.pipeline.actions import Layout

ACTIVITY = {"F": FORWARD, "B": BACKWARD, "I": INPUT, "W": WEIGHT}
NAMES = {op: TERMS.get(activity, activity) for op, activity in ACTIVITY.items()}


def shade_of(layout: Layout, chunk: int) -> float:
    """Return 0 for the first chunk of a rank, 1 for the last, and shares between."""
    return chunk / max(layout.chunks - 1, 1)


def peaks(by_rank: Sequence[int], most: int = 4) -> str:
    """Write the peaks of all ranks, one by one where they are at most `most`, else their range."""
    if len(set(by_rank)) == 1:
        return f"{by_rank[0]} each"
    return " ".join(map(str, by_rank)) if len(by_rank) <= most else f"{min(by_rank)} to {max(by_rank)}"
