"""JSON as every command prints it."""

import json
import math
from typing import Any


def json_text(value: Any) -> str:
    """Write a value with null for what is not finite, as JSON has no other word for it."""
    return json.dumps(json_value(value), indent=2, allow_nan=False)


def json_value(value: Any) -> Any:
    """Return a value in JSON's types: None for what is not finite, Python's numbers for numpy's."""
    if isinstance(value, dict):
        return {str(key): json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(item) for item in value]
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and not math.isfinite(value) else value
