"""Types of number that hardware multiplies: their names, and tables that give each a figure.

Glossary
    dtype    type of number, as hardware prices it;  peak: FLOP/s of a data sheet
    gain     how many times bf16's sustained rate a dtype reaches
"""

from collections.abc import Mapping
from typing import Any

from ndparallel.base.errors import UserError, check_known
from ndparallel.base.quantities import LEAST, parse_quantity
from ndparallel.base.quoting import brief

DTYPES = {
    "float64": "fp32",
    "float32": "tf32",
    "tf32": "tf32",
    "fp32": "fp32",
    "bfloat16": "bf16",
    "float16": "bf16",
    "bf16": "bf16",
    "fp16": "bf16",
    "float8": "fp8",
    "fp8": "fp8",
    "fp8-block": "fp8-block",
    "mxfp8": "mxfp8",
    "nvfp4": "nvfp4",
}
MOST_GAIN = 100


def checked_peaks(subject: str, given: Any) -> dict[str, float]:
    if not isinstance(given, Mapping) or "bf16" not in given:
        raise UserError(f'{subject} must be a table with at least bf16, as in {{ bf16 = "989 TFLOP/s" }}.')
    for dtype in given:
        check_known(f"dtype of {subject}:", dtype, DTYPES.values())
    peaks = {
        dtype: positive(f"{subject}.{dtype}", parse_quantity(rate, "FLOP/s", f"{subject}.{dtype}"))
        for dtype, rate in given.items()
    }
    return {"tf32": peaks["bf16"] / 2, **peaks}


def checked_gains(subject: str, given: Any) -> dict[str, float]:
    if not isinstance(given, Mapping):
        raise UserError(
            f"{subject} must be a table of dtypes, as in {{ fp8 = 1.9 }}, times bf16's rate, "
            f"not {brief(given)}."
        )
    for dtype in given:
        check_known(f"dtype of {subject}:", dtype, DTYPES.values())
    return {dtype: number_up_to(f"{subject}.{dtype}", gain, MOST_GAIN) for dtype, gain in given.items()}


def positive(subject: str, value: float, zero: bool = False) -> float:
    if value == 0 and not zero:
        raise UserError(f"{subject} must be above 0.")
    return value


def number_up_to(subject: str, given: Any, most: float, zero: bool = False) -> float:
    least = 0 if zero else LEAST
    if isinstance(given, bool) or not isinstance(given, int | float) or not least <= given <= most:
        raise UserError(f"{subject} must be a number from {least:g} to {most:g}, not {brief(given)}.")
    return float(given)
