"""Quantities as people write them: "400Gb/s", "80GiB", "5us", "989 TFLOP/s" become SI numbers; `si` writes
them.

Idea   number, prefix, unit. A capital B is a byte, a small b a bit; k M G T P count in thousands, Ki Mi Gi Ti
       in 1024s.
       Numbers have limits that nothing real comes near, so that no sum or quotient of them overflows.
Cost   none.
Limit  A number without a unit is only taken from a JSON or TOML file, where it already is in SI: bytes,
       seconds, FLOP/s.

Glossary
    quantity   what is measured: "bytes", "bytes per second", "seconds", "FLOP/s", "joules" or "watts"
"""

import math
import re

from ndparallel.base.errors import UserError
from ndparallel.base.quoting import brief

MOST_DIGITS = 18  # of a whole number, which fits 64 bits then
LEAST, MOST = 1e-18, 1e24  # of every other number but 0, in SI
LIMITS = f"0, or from {LEAST:g} to {MOST:g}"
_WHOLE = re.compile(rf"\s*[-+]?[0-9]{{1,{MOST_DIGITS}}}\s*")
_DIGITS = re.compile(r"\s*[-+]?\d+\s*")
_PREFIXES = {
    "": 1.0,
    "p": 1e-12,
    "n": 1e-9,
    "u": 1e-6,
    "m": 1e-3,
    "k": 1e3,
    "K": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
    "P": 1e15,
    "E": 1e18,
}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}

_BYTES = {"B": 1.0, "byte": 1.0, "bytes": 1.0, "b": 1 / 8, "bit": 1 / 8, "bits": 1 / 8}
_UNITS: dict[str, dict[str, float]] = {
    "bytes": _BYTES,
    "bytes per second": {f"{unit}{per}": value for unit, value in _BYTES.items() for per in ("/s", "ps")},
    "seconds": {
        "s": 1.0,
        "sec": 1.0,
        "second": 1.0,
        "seconds": 1.0,
        "min": 60.0,
        "h": 3600.0,
        "days": 86_400.0,
    },
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
_NUMBER_AND_UNIT = re.compile(
    r"\s*([-+]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?(?:nan|inf|infinity)\b)\s*(.*?)\s*",
    re.IGNORECASE | re.ASCII,
)


def si(value: float, unit: str) -> str:
    """Write a quantity with three digits and the prefix that fits: si(0.00312, "s") is "3.12 ms"."""
    if not value or not math.isfinite(value):
        return f"{value:.0f} {unit}"
    digits, exponent = f"{value:.2e}".split("e")  # rounded first, so that 999.9 becomes 1.00 k
    group = min(max(int(exponent) // 3, -3), 5)
    places = min(max(2 - int(exponent) + 3 * group, 0), 2)
    return (
        f"{float(digits) * 10.0 ** (int(exponent) - 3 * group):.{places}f} "
        f"{'num kMGTP'[group + 3].strip()}{unit}"
    )


def si_or_dash(value: float | None, unit: str) -> str:
    """What `si` writes, and "-" where there is no value."""
    return "-" if value is None else si(value, unit)


def whole_number(text: str, name: str = "") -> int:
    """Return the whole number that `text` is. Raises UserError, which says of what `name` it was, for any
    other text and for one of more than MOST_DIGITS digits."""
    if _WHOLE.fullmatch(text):
        return int(text)
    what = f"{name}: " if name else ""
    if _DIGITS.fullmatch(text):
        raise UserError(f"{what}{brief(text)} is no number of up to {MOST_DIGITS} digits, 0 to 9.")
    raise UserError(f"{what}not a whole number: {brief(text)}.")


def number(text: str, name: str = "") -> float:
    """Return the number that `text` is, which may be nan or infinite. Raises UserError, which says of what
    `name` it was, for any other text and for a number outside of LIMITS."""
    what = f"{name}: " if name else ""
    try:
        value = float(text.encode("ascii"))
    except ValueError:  # Unicode's errors too
        raise UserError(f"{what}not a number: {brief(text)}.") from None
    if is_absurd(abs(value)):
        raise UserError(f"{what}{brief(text)} is beyond what can be calculated with: give {LIMITS}.")
    return value


def is_absurd(value: float) -> bool:
    """Whether a number is finite and outside of LIMITS."""
    return 0 < value < LEAST or MOST < value < math.inf


def parse_quantity(text: str | float, quantity: str, name: str = "", example: str = "") -> float:
    """Turn `text` into the SI number of `quantity`; a number is taken as SI already, and so is "0". `name`
    and `example` say in an error what the text was for, and how to write it.

    Raises UserError where it is no number, has no unit or another quantity's, is NaN, negative or infinite.
    """
    subject = f"{name} = {brief(text)}" if name else brief(text)
    example = example or _EXAMPLES[quantity]
    if isinstance(text, bool) or not isinstance(text, str | int | float):
        raise UserError(f"{subject} is not a quantity of {quantity}: write {example}.")
    try:
        return _positive(_parse(text, quantity) if isinstance(text, str) else text)
    except _Wrong as wrong:
        raise UserError(f"{subject} {wrong}: write {quantity} as in {example}.") from None


class _Wrong(Exception):
    """The reason why a text is no quantity."""


def _parse(text: str, quantity: str) -> float:
    match = _NUMBER_AND_UNIT.fullmatch(text)
    if not match:
        raise _Wrong("does not begin with a number")
    value, unit = _positive(float(match[1])), match[2]
    if not unit and value:
        raise _Wrong("has no unit")
    factor = _factor(unit, quantity) if unit else 0.0
    if factor is None:
        raise _Wrong(f"has the unit {brief(unit)}, which {_meaning(unit)}")
    return value * factor


def _positive(value: float) -> float:
    """Return a number, or raise _Wrong where it is negative, not finite, or beyond LIMITS."""
    wrong = (
        "is not a number"
        if value != value
        else "is negative"
        if value < 0
        else "is not finite"
        if value == math.inf
        else f"is beyond what can be calculated with ({LIMITS}, in SI)"
        if is_absurd(value)
        else None
    )
    if wrong:
        raise _Wrong(wrong)
    return float(value)


def _factor(unit: str, quantity: str) -> float | None:
    """Return the SI value of one `unit` of `quantity`, or None where the unit measures something else.
    Binary prefixes are for bytes and bits only."""
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
