"""bfloat16 in numpy, which has none: float32 arrays whose every number is one that bfloat16 has.

Idea   A bfloat16 is the upper half of a float32: the same exponent, 8 bits of significand in place of 24. So
       a float32 array can hold it, and what is computed with it in float32 is rounded when it is written, to
       nearest, ties to even, as a tensor core does with a product that it has summed in float32. Where other
       arrays take part the result is theirs, float32, as in torch.
Cost   An array takes 4 bytes here; it says and sends 2.
Limit  Each numpy function is taken for a kernel, which rounds once, unless `@kernel` makes one of several.

Glossary
    unit roundoff   2^-8: half the distance between 1 and the next number, the most that a rounding changes by
"""

from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import Any

import numpy as np

NAME, BYTES, UNIT_ROUNDOFF = "bfloat16", 2, 2.0**-8
ON_THE_WIRE = np.dtype([(NAME, "<u2")])  # two bytes, which nobody else calls so
STAND_IN = np.dtype(np.float16)  # of an array that is only a size


class BFloat16(np.ndarray):
    """An array of float32 numbers that bfloat16 has, and of as many bytes as bfloat16 takes. Other dtypes,
    which a comparison or a choice of places makes of it, are themselves."""

    @property
    def nbytes(self) -> int:
        return BYTES * self.size if self.dtype == np.float32 else np.asarray(self).nbytes

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = None, **more: Any
    ) -> Any:
        written = {"out": tuple(map(wide, out))} if out else {}
        result = getattr(ufunc, method)(*map(wide, inputs), **written, **more)
        if method == "at":  # which writes into its first input
            round_in_place(inputs[0])
        if out:
            for array in out:
                round_in_place(array)
            return out[0] if len(out) == 1 else out
        return narrow(result) if are_narrow(inputs) else result

    def __array_function__(
        self, function: Callable, types: Any, args: Iterable[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        result = super().__array_function__(function, types, args, kwargs)
        return narrow(result) if are_narrow(args) else result


def are_narrow(arguments: Iterable) -> bool:
    """Whether all arrays of float32 among the arguments, and in lists of theirs, are in bfloat16."""
    inner = [each for one in arguments for each in (one if isinstance(one, list | tuple) else [one])]
    floats = [each for each in inner if isinstance(each, np.ndarray) and each.dtype == np.float32]
    return all(map(is_narrow, floats))


def is_narrow(array: Any) -> bool:
    return isinstance(array, BFloat16) and array.dtype == np.float32


def wide(array: Any) -> Any:
    """Return the numbers as a plain array; anything else as it is."""
    return array.view(np.ndarray) if isinstance(array, BFloat16) else array


def narrow(array: Any) -> Any:
    """Round a new float32 array, in its own memory; anything else stays as it is."""
    if not isinstance(array, np.ndarray) or array.dtype != np.float32:
        return array
    return round_in_place(array.view(BFloat16))


def round_in_place(array: Any) -> Any:
    """Round to nearest, ties to even; infinities and NaN stay."""
    if is_narrow(array):
        plain = array.view(np.ndarray)
        bits = np.ascontiguousarray(plain).view(np.uint32)
        rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).view(np.float32)
        np.copyto(plain, rounded.reshape(plain.shape), where=np.isfinite(plain))
    return array


def as_dtype(array: np.ndarray, dtype: str) -> np.ndarray:
    """Return a copy of the array in a dtype of numpy's or in "bfloat16"."""
    return narrow(array.astype(np.float32)) if dtype == NAME else array.astype(dtype)


def wide_dtype(dtype: str) -> str:
    """What sums, gradients and masters of numbers in a dtype are in: float32 for "bfloat16", else itself."""
    return "float32" if dtype == NAME else dtype


def zeros(shape: Any, dtype: str) -> np.ndarray:
    return np.zeros(shape, np.float32).view(BFloat16) if dtype == NAME else np.zeros(shape, dtype)


def kernel(compute: Callable) -> Callable:
    """Let a function of arrays be one kernel: where its first array is in bfloat16 it computes in float32,
    and rounds what it returns; of several results the first, and sums that come with it stay float32."""

    @wraps(compute)
    def fused(first: Any, *others: Any) -> Any:
        if type(first) is np.ndarray:  # as nearly all are
            return compute(first, *others)
        if is_narrow(first):
            return with_sums(compute(*map(wide, (first, *others))), narrow, wide)
        results = compute(first, *others)
        return with_sums(results, lambda result: result, in_float32) if first.dtype == STAND_IN else results

    return fused


def with_sums(results: Any, main: Callable, sums: Callable) -> Any:
    if not isinstance(results, tuple):
        return main(results)
    first, *others = results
    return (main(first), *map(sums, others))


def in_float32(array: Any) -> Any:
    """Return the numbers where they are not to be rounded any more; other dtypes stay as they are."""
    return array.astype(np.float32) if array.dtype == STAND_IN else wide(array)


def to_wire(array: np.ndarray) -> np.ndarray:
    """Pack bfloat16 into two bytes a number; leave other arrays as they are."""
    if not is_narrow(array):
        return array
    return (np.ascontiguousarray(wide(array)).view(np.uint32) >> 16).astype(np.uint16).view(ON_THE_WIRE)


def from_wire(array: np.ndarray) -> np.ndarray:
    """Unpack what `to_wire` has packed, into new memory."""
    return (array.view(np.uint16).astype(np.uint32) << 16).view(np.float32).view(BFloat16)
