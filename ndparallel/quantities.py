"""Quantities as people write them: "400Gb/s", "80GiB", "5us", "989 TFLOP/s" become SI numbers.

Idea   number, prefix, unit. A capital B is a byte, a small b a bit; k M G T P count in thousands, Ki Mi Gi Ti in 1024s.
Cost   none.
Limit  A number without a unit is only taken from a JSON or TOML file, where it already is in SI: bytes, seconds, FLOP/s.

Glossary
    quantity   what is measured: "bytes", "bytes per second", "seconds", "FLOP/s", "joules" or "watts"
"""

import math
import re

from ndparallel.errors import UserError

_PREFIXES = {"": 1.0, "p": 1e-12, "n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}

_BYTES = {"B": 1.0, "byte": 1.0, "bytes": 1.0, "b": 1 / 8, "bit": 1 / 8, "bits": 1 / 8}
_UNITS: dict[str, dict[str, float]] = {
    "bytes": _BYTES,
    "bytes per second": {f"{unit}{per}": value for unit, value in _BYTES.items() for per in ("/s", "ps")},
    "seconds": {"s": 1.0, "sec": 1.0, "second": 1.0, "seconds": 1.0, "min": 60.0, "h": 3600.0, "days": 86_400.0},
    "FLOP/s": {"FLOP/s": 1.0, "FLOPs/s": 1.0, "FLOPS": 1.0, "FLOPs": 1.0, "flops": 1.0, "flop/s": 1.0},
    "joules": {"J": 1.0, "joule": 1.0, "joules": 1.0},
    "watts": {"W": 1.0, "watt": 1.0, "watts": 1.0},
}
_EXAMPLES = {
    "bytes": '"80GiB" or "16 GB"',
    "bytes per second": '"400Gb/s" (bits) or "50GB/s" (bytes)',
    "seconds": '"5us"',
    "FLOP/s": '"989 TFLOP/s"',
    "joules": '"0.7 pJ"',
    "watts": '"700 W"',
}
_NUMBER_AND_UNIT = re.compile(r"\s*([-+]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?(?:nan|inf|infinity)\b)\s*(.*?)\s*", re.IGNORECASE)


def parse_quantity(text: str | float, quantity: str, name: str = "") -> float:
    """Turn `text` into the SI number of `quantity`; a number is taken as SI already. `name` says in an error what the text was for.

    Raises UserError where it is no number, has no unit or another quantity's, is NaN, negative or infinite.
    """
    subject = f"{name} = {text!r}" if name else repr(text)
    if isinstance(text, bool) or not isinstance(text, str | int | float):
        raise UserError(f"{subject} is not a quantity of {quantity}: write {_EXAMPLES[quantity]}.")
    value = _parse(text, quantity, subject) if isinstance(text, str) else float(text)
    if not math.isfinite(value) or value < 0:
        raise UserError(f"{subject} must be a finite number of {quantity}, and not negative.")
    return value


def _parse(text: str, quantity: str, subject: str) -> float:
    match = _NUMBER_AND_UNIT.fullmatch(text)
    if not match:
        raise UserError(f"{subject} does not begin with a number: write {_EXAMPLES[quantity]}.")
    number, unit = match.groups()
    if not unit:
        raise UserError(f"{subject} has no unit: write {_EXAMPLES[quantity]}.")
    factor = _factor(unit, quantity)
    if factor is None:
        raise UserError(f"{subject} has the unit {unit!r}, which {_meaning(unit)}: write {quantity} as in {_EXAMPLES[quantity]}.")
    return float(number) * factor


def _factor(unit: str, quantity: str) -> float | None:
    """What one `unit` is in SI, None where it does not measure `quantity`. Binary prefixes count bytes and bits alone."""
    prefixes = _PREFIXES | (_BINARY if quantity.startswith("bytes") else {})
    for name, value in _UNITS[quantity].items():
        if unit.endswith(name) and unit[: -len(name)] in prefixes:
            return prefixes[unit[: -len(name)]] * value
    return None


def _meaning(unit: str) -> str:
    for quantity in _UNITS:
        if _factor(unit, quantity) is not None:
            return f"measures {quantity}"
    return "is unknown"
