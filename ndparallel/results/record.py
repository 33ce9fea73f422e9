"""What a command's JSON says, for an expression to ask: `strategies["1F1B"].speedup`.

Idea   The documents and the questions of the book name a number by a Python expression of the JSON that the
       command prints. Strategies are found by their names; a list of rows is `rows`.
"""

import json
from typing import Any

from ndparallel.base.errors import UserError


class Record(dict):
    """A JSON object whose keys are attributes too."""

    __getattr__ = dict.__getitem__


def record_in(printed: str) -> Record:
    """Return what JSON says. Raises ValueError for what is none."""
    record = json.loads(printed, object_hook=Record)
    if isinstance(record, list):
        return Record(rows=record)
    if "strategies" in record:
        record["strategies"] = {row.name: row for row in record.strategies}
    return record


def value_of(expression: str, names: dict[str, Any]) -> float:
    """Return the value of a Python expression. Raises UserError where it has none."""
    try:
        return float(eval(expression, dict(names)))
    except Exception as error:
        raise UserError(f"{expression!r} has no value: {type(error).__name__}: {error}.") from None
