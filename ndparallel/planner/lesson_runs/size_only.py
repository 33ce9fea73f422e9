"""Arrays that are only sizes: they have a shape and a dtype, take part in numpy's mathematics, and have no
content.

Idea   The layers of ndparallel/model run on them unchanged, so that what a rank would compute, send and keep
       can be recorded without computing it. numpy hands its functions over by two protocols, __array_ufunc__
       and __array_function__; here they find the shape of the result.
Cost   a few microseconds for each call, whatever the size.
Limit  The functions that the layers call, and no others. What depends on content is not there: a mask keeps
       everything, a comparison is true, a number is 0. A dimension may be a fraction or an array (one number
       for each of many ranks) where nothing but its size is asked for.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

COMPARISONS = (np.less, np.less_equal, np.greater, np.greater_equal, np.equal, np.not_equal)


class SizeOnly(np.lib.mixins.NDArrayOperatorsMixin):
    """An array of this shape and dtype without content; read-only, as `gpu.is_size_only` wants it."""

    flags, base = SimpleNamespace(writeable=False, c_contiguous=True), None

    def __init__(self, shape: Sequence, dtype: Any) -> None:
        self.shape, self.dtype = tuple(shape), np.dtype(dtype)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def strides(self) -> tuple[int, ...]:
        return (0,) * self.ndim

    @property
    def size(self) -> Any:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> Any:
        return self.size * self.dtype.itemsize

    def like(self, shape: Sequence) -> "SizeOnly":
        return SizeOnly(shape, self.dtype)

    # ---- elements

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator["SizeOnly"]:
        return iter([self.like(self.shape[1:])] * len(self))

    def __getitem__(self, key: Any) -> "SizeOnly":
        return self.like(indexed(self.shape, key if isinstance(key, tuple) else (key,)))

    def __setitem__(self, key: Any, value: Any) -> None:
        pass

    def __bool__(self) -> bool:
        return True

    def __float__(self) -> float:
        return 0.0

    def take(self, indices: "SizeOnly") -> "SizeOnly":
        return self.like(indices.shape)

    # ---- shapes

    @property
    def T(self) -> "SizeOnly":  # noqa: N802
        return self.like(self.shape[::-1])

    def transpose(self, *axes: int) -> "SizeOnly":
        return self.like([self.shape[axis] for axis in axes])

    def swapaxes(self, one: int, other: int) -> "SizeOnly":
        shape = list(self.shape)
        shape[one], shape[other] = shape[other], shape[one]
        return self.like(shape)

    def reshape(self, *shape: Any) -> "SizeOnly":
        sizes = list(shape[0] if isinstance(shape[0], tuple) else shape)
        if -1 in [size for size in sizes if isinstance(size, int)]:
            place = sizes.index(-1)
            sizes[place] = self.size // math.prod(sizes[:place] + sizes[place + 1 :])
        return self.like(sizes)

    def copy(self) -> "SizeOnly":
        return self

    def astype(self, dtype: Any) -> "SizeOnly":
        return SizeOnly(self.shape, dtype)

    # ---- mathematics

    def sum(self, axis: int | None = None, keepdims: bool = False, out: Any = None, **_: Any) -> "SizeOnly":
        if axis is None:
            return self.like(())
        shape = list(self.shape)
        shape[axis : axis + 1 or None] = [1] * keepdims
        return self.like(shape)

    max = min = mean = sum

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = None, **_: Any) -> Any:
        if method == "at":
            return None
        if out:
            return out[0]
        shapes = [np.shape(each) if not isinstance(each, SizeOnly) else each.shape for each in inputs]
        if ufunc is np.matmul:
            (*a, m, k), (*b, k_too, n) = shapes
            common((k, k_too))
            return self.like((*broadcast(a, b), m, n))
        dtype = bool if ufunc in COMPARISONS else self.dtype
        return SizeOnly(broadcast(*shapes), dtype)

    def __array_function__(self, function: Callable, types: Any, args: tuple, kwargs: dict) -> Any:
        return FUNCTIONS[function.__name__](*args, **kwargs)


def broadcast(*shapes: Sequence) -> tuple:
    """Return the common shape. Raises ValueError where numbers do not fit; fractions and arrays are
    believed."""
    length = max(map(len, shapes))
    aligned = zip(*((1,) * (length - len(shape)) + tuple(shape) for shape in shapes))
    return tuple(common(sizes) for sizes in aligned)


def common(sizes: tuple) -> Any:
    wide = [size for size in sizes if not (isinstance(size, int) and size == 1)]
    if len({size for size in wide if isinstance(size, int)}) > 1:
        raise ValueError(f"sizes {wide} do not fit")
    return wide[0] if wide else 1


def indexed(shape: tuple, key: tuple) -> list:
    """Return the shape of `array[key]`; arrays as indices stand side by side, and masks keep everything."""
    consumed = sum(depth(each) for each in key)
    rest, found, fancy = list(shape), [], False
    for each in key:
        if each is Ellipsis:
            count = len(shape) - consumed
            found += rest[:count]
            del rest[:count]
        elif each is None:
            found.append(1)
        elif isinstance(each, slice):
            found.append(length(each, rest.pop(0)))
        else:
            taken, rest = rest[: depth(each)], rest[depth(each) :]
            if not isinstance(each, int) and not fancy:
                fancy = True
                found += [math.prod(taken)] if is_mask(each) else each.shape
    return found + rest


def depth(key: Any) -> int:
    """How many dimensions an index stands for."""
    if key is None or key is Ellipsis:
        return 0
    return key.ndim if is_mask(key) else 1


def is_mask(key: Any) -> bool:
    return isinstance(key, SizeOnly) and key.dtype.kind == "b"


def length(part: slice, size: Any) -> Any:
    """How long a slice of a dimension is; with fractions and arrays, of one that lies in it."""
    if all(each is None or isinstance(each, int) for each in (part.start, part.stop, size)):
        return len(range(*part.indices(size)))
    return (size if part.stop is None else part.stop) - (part.start or 0)


def einsum(spec: str, *operands: SizeOnly) -> SizeOnly:
    inputs, output = spec.replace("...", "*").split("->")
    sizes: dict[str, Any] = {}
    for letters, operand in zip(inputs.split(","), operands):
        leading = len(operand.shape) - len(letters) + 1
        if letters.startswith("*"):
            sizes["*"] = operand.shape[:leading]
            sizes |= zip(letters[1:], operand.shape[leading:])
        else:
            sizes |= zip(letters, operand.shape)
    shape = [size for letter in output for size in (sizes[letter] if letter == "*" else (sizes[letter],))]
    return operands[0].like(shape)


def concatenate(arrays: Sequence[SizeOnly], axis: int = 0) -> SizeOnly:
    first, *_ = arrays = list(arrays)
    shape = list(first.shape)
    shape[axis] = sum(array.shape[axis] for array in arrays)
    return first.like(shape)


def stack(arrays: Sequence[SizeOnly], axis: int = 0) -> SizeOnly:
    shape = list(arrays[0].shape)
    shape.insert(axis, len(arrays))
    return arrays[0].like(shape)


def where(condition: SizeOnly, one: Any, other: Any) -> SizeOnly:
    sizes = [each.shape if isinstance(each, SizeOnly) else np.shape(each) for each in (condition, one, other)]
    dtype = next((each.dtype for each in (one, other) if hasattr(each, "dtype")), condition.dtype)
    return SizeOnly(broadcast(*sizes), dtype)


def blank(array: SizeOnly, dtype: Any = None, shape: Any = None, **_: Any) -> SizeOnly:
    return SizeOnly(array.shape if shape is None else shape, dtype or array.dtype)


FUNCTIONS: dict[str, Callable] = {
    "empty_like": blank,
    "zeros_like": blank,
    "concatenate": concatenate,
    "stack": stack,
    "where": where,
    "einsum": einsum,
    "split": lambda array, parts: [array.like((len(array) // parts, *array.shape[1:]))] * parts,
    "sum": SizeOnly.sum,
    "mean": SizeOnly.mean,
    "vdot": lambda one, other: one.like(()),
    "argsort": lambda array, **_: array.astype(np.int64),
    "nonzero": lambda mask: (SizeOnly((mask.size,), np.int64),) * mask.ndim,
    "take_along_axis": lambda array, places, axis: array.like(places.shape),
}
