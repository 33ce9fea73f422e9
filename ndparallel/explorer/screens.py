"""The screens of the page, by the name that it asks for."""

from ndparallel.drawing.palette import (
    ACCENT,
    ACTIVITIES,
    FAINT_INK,
    GRID,
    GROUND,
    INK,
    LOGITS,
    MEMORY,
    OTHER,
    PARTS,
    TERMS,
    ink_on,
)
from ndparallel.explorer import cluster, cut, guesses, rings, schedules
from ndparallel.explorer.beginnings import BEGINNINGS
from ndparallel.explorer.finding import Finder
from ndparallel.lessons.questions import questions

SCREENS = {
    "cut": cut.answer,
    "schedule": schedules.answer,
    "ring": rings.answer,
    "cluster": cluster.answer,
    "find": Finder().answer,
    "predict": guesses.answer,
}
ASIDE = ("find", "predict")  # which run in processes of their own


def known() -> dict:
    """Return what the page knows before it asks: its screens, what to try on each, the files of the book's
    chapters, and colours."""
    paints = {
        **ACTIVITIES,
        "other": ACTIVITIES[OTHER],
        **{f"memory {kind}": paint for kind, paint in MEMORY.items()},
        "memory logits": LOGITS,
        **{f"part {paint.letter}": paint for paint in PARTS},
    }
    return {
        "screens": {name: each.as_dict(name) for name, each in BEGINNINGS.items()},
        "books": {question.chapter: question.book for question in questions()},
        "paints": {name: [paint.light, paint.dark, paint.letter] for name, paint in paints.items()},
        "inks": {name: [ink_on(paint.light), ink_on(paint.dark)] for name, paint in paints.items()},
        "terms": TERMS,
        "ground": GROUND,
        "ink": INK,
        "faint": FAINT_INK,
        "grid": GRID,
        "accent": ACCENT,
    }
