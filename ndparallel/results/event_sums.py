"""A GPU's events as sums: for runs of so many GPUs that their events would not fit into memory.

Idea   Takes the place of the GPU's list of events, and adds each one up as it happens. A stream does one
       thing at a time, so what its GPU waits for adds up without a sort.
Cost   A microsecond an event, and no memory.
Limit  What is hidden behind compute is not known, for that needs all intervals; there is nothing to draw.
"""

import math
from typing import NamedTuple

from gpu import COMPUTE, MEMORY, SEND


class Breakdown(NamedTuple):
    """Where one GPU's step went, in seconds: compute + exposed + bubble is the step."""

    compute: float
    exposed: float
    hidden: float
    bubble: float


class EventSums(list[tuple]):
    """An empty list that knows what its events would have added up to, in seconds and bytes."""

    compute_seconds = exposed_seconds = bytes_sent = 0.0

    def append(self, event: tuple) -> None:
        _, stream, kind, _, start, end, nbytes, _, _ = event
        if kind == SEND:
            self.bytes_sent += nbytes
        if stream == COMPUTE and kind == COMPUTE:
            self.compute_seconds += end - start
        elif stream == COMPUTE and kind != MEMORY:
            self.exposed_seconds += end - start

    def breakdown(self, step_seconds: float) -> Breakdown:
        bubble = step_seconds - self.compute_seconds - self.exposed_seconds
        return Breakdown(self.compute_seconds, self.exposed_seconds, hidden=math.nan, bubble=bubble)
