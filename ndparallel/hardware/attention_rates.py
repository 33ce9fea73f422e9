"""How fast fused attention kernels are, by the length of the sequence and the width of heads.

Idea   A kernel has a curve over the length: short sequences are cut into few blocks, and half of the pairs in
       a block on the diagonal are masked. attention.toml holds published curves with their sources; a file of
       one's own names one of them, or gives a fraction, or a curve.
Limit  Heads between 64 and 128 lie between the two; batches are large.
"""

from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ndparallel.base.errors import UserError, check_known
from ndparallel.base.files import parse_toml
from ndparallel.base.quantities import LEAST
from ndparallel.base.quoting import brief
from ndparallel.hardware.matmul_efficiency import Curve, along, checked_curve

EXAMPLE = '{ "flash2 forward" = 0.55 }'


class AttentionRates(NamedTuple):
    """Fractions of the bf16 peak by kernel and pass, and what heads of 64 reach of them."""

    curves: dict[str, Curve]
    narrow: dict[str, float]


def attention_rates(subject: str, given: Any) -> AttentionRates:
    """Return the published rates of that name, or those of a table. Raises UserError for anything else."""
    if isinstance(given, str):
        check_known(f"table of {subject}:", given, published())
        return published()[given]
    if not isinstance(given, Mapping):
        raise UserError(f"{subject} must be a table of fractions, as in {EXAMPLE}, not {brief(given)}.")
    return AttentionRates({kind: curve_of(f"{subject}.{kind}", value) for kind, value in given.items()}, {})


def fraction_at(curve: Curve, length: Any) -> Any:
    """Return a curve's fraction at a length of the sequence, or at each of an array of lengths."""
    return along(curve, length) if isinstance(length, np.ndarray) else _fraction_at(curve, length)


@lru_cache(maxsize=1024)
def _fraction_at(curve: Curve, length: float) -> float:
    return float(along(curve, length))


def curve_of(subject: str, given: Any) -> Curve:
    """One fraction for all lengths, or pairs of length and fraction."""
    if isinstance(given, bool) or not isinstance(given, int | float):
        return checked_curve(subject, given)
    if not LEAST <= given <= 1:
        raise UserError(f"{subject} must be a number from {LEAST:g} to 1, not {brief(given)}.")
    return ((1.0, float(given)),)


@cache
def published() -> dict[str, AttentionRates]:
    """The tables of attention.toml."""
    tables = parse_toml(Path(__file__).with_name("attention.toml").read_text("utf-8"))
    return {name: published_rates(table) for name, table in tables.items()}


def published_rates(table: dict[str, Any]) -> AttentionRates:
    peak, narrow = table.pop("peak"), table.pop("narrow")
    curves = {
        kind: tuple((float(length), tflops / peak) for length, tflops in pairs)
        for kind, pairs in table.items()
    }
    return AttentionRates(curves, narrow)
