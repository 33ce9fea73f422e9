"""The screens of the page, by the name that it asks for."""

from ndparallel.drawing.palette import ACTIVITIES, FAINT_INK, GRID, GROUND, INK, MEMORY
from ndparallel.explorer import cut, schedules

SCREENS = {"cut": cut.answer, "schedule": schedules.answer}


def known() -> dict:
    """Return what the page knows before it asks: colours, and what it begins with."""
    paints = {**ACTIVITIES, **{f"memory {kind}": paint for kind, paint in MEMORY.items()}}
    return {
        "paints": {name: [paint.light, paint.dark, paint.letter] for name, paint in paints.items()},
        "ground": GROUND,
        "ink": INK,
        "faint": FAINT_INK,
        "grid": GRID,
    }
