"""The number types of measured runs: those of the matmuls, and of the gradients."""

import re
from typing import Any

from ndparallel.validation.words.text import first_named

BITS = (  # of a number type: the first that is in the precision, so the shortest that is named
    ("fp8|float8|e4m3|fp4|int8", 8),
    ("16|half|amp|mixed", 16),
    ("tf32", 19),
    ("fp32|float32|single", 32),
)
NUMBER_WORDS = (  # the first that is in the precision
    ("nv ?fp4|fp4", "nvfp4"),
    ("mx-?fp8|fp8-mx$", "mxfp8"),
    ("block", "fp8-block"),
    ("row", "fp8-row"),
    ("current|fp8-cs|tensor.?wise", "fp8-current"),
    ("fp8|float8|e4m3|int8", "fp8"),
)
CURRENT = "bridge|titan"  # frameworks whose fp8 has the scales of the tensor itself, and not of a former step


def number_of_bits(precision: Any) -> int:
    """Return 8, 16, 19 (TF32) or 32: the shortest number type named for the layers' matmuls; 16 where none
    is."""
    return bits_named(precision) or 16


def bits_named(precision: Any) -> int | None:
    """Return the bits of the shortest number type that is named; None where none is."""
    return first_named(BITS, str(precision or "").lower())


def number_type_of(precision: Any, framework: str) -> str:
    """Return our name of the number type that the layers' matmuls take."""
    if number_of_bits(precision) != 8:
        return "bf16"
    name = first_named(NUMBER_WORDS, str(precision).lower())
    return "fp8-current" if name == "fp8" and re.search(CURRENT, framework) else name


def gradient_bytes(usual: int, framework: str, bits: int) -> int:
    """Return the bytes of a gradient: 2 in Megatron-Bridge's performance recipes, and in NeMo's in fewer than
    16 bits (grad_reduce_in_fp32 in megatron/bridge/perf_recipes/_common.py and in NeMo's
    scripts/performance/llm)."""
    return 2 if "bridge" in framework or ("nemo" in framework and bits < 16) else usual
