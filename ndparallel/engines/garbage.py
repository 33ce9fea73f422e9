"""When Python looks for garbage: hardly ever, while ranks run in this process.

Idea   Objects that nobody refers to are set free at once. Python's search is for those that refer to one
       another in a circle; it visits every message and event, a fifth of a run's time, and finds nothing, for
       layers, GPUs and engines form no circles.
Limit  Circles that a rank program makes of its own are set free after the run.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

COLLECT_AFTER = 10_000_000  # objects; Python's own default is 700


@contextmanager
def rare_garbage_collection() -> Iterator[None]:
    """Look only after very many new objects. Those left at the end count as old at once, or the next one made
    would start the search."""
    before = gc.get_threshold()
    gc.set_threshold(before[0] and max(before[0], COLLECT_AFTER), *before[1:])
    try:
        yield
    finally:
        gc.freeze()
        gc.unfreeze()
        gc.set_threshold(*before)
