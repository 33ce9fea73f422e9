"""What a value of a measured run says, whatever its type: nothing, a yes or a no, or a word of a table."""

import re
from collections.abc import Iterable
from typing import Any

NOTHING = r"(none|no|not|off|false|null|without|w/o|n/a|unknown|disabled|0)\b|$"
UNSTATED = "unknown|n/a|$"
NOT_USED = rf"unfused|eager|{NOTHING}"
YES = r"(yes|true|on|enabled?|used?|with|fused)\b"


def as_text(stated: Any) -> str:
    if isinstance(stated, bool) or stated is None:
        return "full" if stated else "none"
    if isinstance(stated, dict):
        return ", ".join(
            f"{key} {value}" if key != "granularity" else str(value) for key, value in stated.items()
        ).lower()
    return (", ".join(map(str, stated)) if isinstance(stated, list | tuple) else str(stated)).strip().lower()


def first_named(table: Iterable[tuple[str, Any]], words: str) -> Any:
    """Return what the first pattern of a table that is in the words stands for; None where none is."""
    return next((meant for pattern, meant in table if re.search(pattern, words)), None)


def is_used(stated: Any, words_for_yes: str = "") -> bool | None:
    """Return whether a run uses what it says so of, or names; None where the word is not known."""
    if not isinstance(stated, str):
        return bool(stated)
    words = as_text(stated)
    if re.match(UNSTATED, words):
        return None
    return False if re.match(NOT_USED, words) else True if re.match(words_for_yes, words) else None
