"""What is asked for of a plan that is to be found: the parts that are fixed, and their values.

Glossary
    fixed    parts with their value, or with some values: {"tp": 8, "schedule": ("1f1b", "interleaved")}
"""

from collections.abc import Iterable, Mapping
from typing import Any

from ndparallel.base.errors import UserError, check_known, check_whole, find_choice, unknown
from ndparallel.base.quantities import whole_number
from ndparallel.base.quoting import brief
from ndparallel.model.costs import RECOMPUTE
from ndparallel.pipeline.catalog import RECIPES
from ndparallel.planner.plan_name import known_modules
from ndparallel.search.bounds.plan_table import DEGREES

ZERO = (0, 1, 2, 3)  # stages of it
WORDS = {
    "recompute": RECOMPUTE,
    "zero": ZERO,
    "sequence_parallel": (False, True),
    "schedule": RECIPES,
}
FIXABLE = (*DEGREES, "chunks", "shards", *WORDS, "recompute_modules")
Fixed = Mapping[str, Any]


def allowed(values: Iterable, fixed: Fixed, name: str) -> list:
    """Those of the values of a part that what is fixed does not rule out."""
    return [value for value in values if name not in fixed or value in fixed_values(fixed, name)]


def fixed_values(fixed: Fixed, name: str) -> tuple:
    """The values that a fixed part may have."""
    return fixed[name] if isinstance(fixed[name], tuple) else (fixed[name],)


def check_fixed(fixed: Fixed) -> None:
    """Raise UserError for what is no part of a plan, or no value of it."""
    for name in fixed:
        check_known("part of a plan", name, FIXABLE)
        if name == "recompute_modules":
            known_modules(fixed[name])
        else:
            for value in fixed_values(fixed, name):
                check_value(name, value)


def check_value(name: str, value: Any) -> None:
    """Raise UserError for what is no value of a part of a plan."""
    least = 0 if name == "shards" else 1
    if name in WORDS and value not in WORDS[name]:
        raise unknown(name, str(value), map(str, WORDS[name]))
    if name not in WORDS:
        check_whole(name, value, least)


def parsed(words: str) -> tuple[str, Any]:
    """Read "tp=8". Raises UserError where it is not of this form."""
    name, equals, value = (part.strip() for part in words.partition("="))
    name = name.replace("-", "_")
    if not equals or not value:
        raise UserError(
            f"{brief(words)} fixes nothing; write a part of the plan and its value, as in tp=8 or "
            "schedule=1f1b."
        )
    check_known("part of a plan", name, FIXABLE)
    if name == "recompute":
        return name, find_choice(name, value, RECOMPUTE)
    if name == "schedule":
        return name, find_choice(name, value, RECIPES)
    if name == "recompute_modules":
        return name, known_modules(value.split("+"))
    if name == "sequence_parallel":
        return name, {"true": True, "1": True, "false": False, "0": False}.get(value.lower(), value)
    return name, whole_number(value, name)
