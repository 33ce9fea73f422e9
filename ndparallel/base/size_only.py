"""Arrays that are only sizes: they have a shape and a dtype, take part in numpy's mathematics, and have no
content.

Idea   The layers of ndparallel/model run on them unchanged, so that what a rank would compute, send and keep
       can be run, or recorded, without computing it. numpy hands its functions over by two protocols,
       __array_ufunc__ and __array_function__; here they find the shape of the result.
Cost   Some tenths of a microsecond for each call, whatever the size: there is one object for every shape and
       dtype, and what an operation makes of the same objects is looked up.
Limit  The functions that the layers call, and no others. What depends on content is not there: a mask keeps
       everything, a comparison is true, a number is 0, and of so many choices every value is made as often.

    SizeOnly((2, 3), "float32") @ SizeOnly((3, 4), "float32")     -> SizeOnly((2, 4), "float32")
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, lru_cache, wraps
from types import SimpleNamespace
from typing import Any

import numpy as np

from ndparallel.base.bfloat16 import NAME as BFLOAT16
from ndparallel.base.bfloat16 import STAND_IN
from ndparallel.base.pieces import split_sizes

COMPARISONS = (np.less, np.less_equal, np.greater, np.greater_equal, np.equal, np.not_equal)
MOST_KNOWN = 1 << 16  # results that an operation keeps in mind


def remembered(operation: Callable) -> Callable:
    """Look up what an operation makes of the same operands; compute it where one of them has no hash."""
    find = lru_cache(MOST_KNOWN)(operation)

    @wraps(operation)
    def found(*operands: Any, **options: Any) -> Any:
        try:
            return find(*operands, **options)
        except TypeError:
            pass
        return operation(*operands, **options)

    return found


def numpy_dtype(dtype: Any) -> np.dtype:
    """The dtype, or one of as many bytes in place of "bfloat16", which numpy lacks."""
    return STAND_IN if dtype == BFLOAT16 else np.dtype(dtype)


class SizeOnly:
    """An array of this shape and dtype without content; read-only, as `gpu.is_size_only` wants it."""

    flags, base = SimpleNamespace(writeable=False, c_contiguous=True), None
    known: dict[tuple, "SizeOnly"] = {}
    shape: tuple
    dtype: np.dtype

    def __new__(cls, shape: Sequence, dtype: Any) -> "SizeOnly":
        key = tuple(shape), numpy_dtype(dtype)
        if key not in cls.known:
            made = cls.known[key] = super().__new__(cls)
            made.shape, made.dtype = key
        return cls.known[key]

    @cached_property
    def ndim(self) -> int:
        return len(self.shape)

    @cached_property
    def strides(self) -> tuple[int, ...]:
        return (0,) * self.ndim

    @cached_property
    def size(self) -> Any:
        return math.prod(self.shape)

    @cached_property
    def nbytes(self) -> Any:
        return self.size * self.dtype.itemsize

    def like(self, shape: Sequence) -> "SizeOnly":
        return type(self)(shape, self.dtype)

    # ---- elements

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator["SizeOnly"]:
        return iter([self.like(self.shape[1:])] * len(self))

    def __getitem__(self, key: Any) -> "SizeOnly":
        if type(key) is slice:
            return self.between(key.start, key.stop, key.step)
        return self.at(key)

    @remembered
    def between(self, *bounds: int | None) -> "SizeOnly":
        return self.like(indexed(self.shape, (slice(*bounds),)))

    @remembered
    def at(self, key: Any) -> "SizeOnly":
        return self.like(indexed(self.shape, key if isinstance(key, tuple) else (key,)))

    def __setitem__(self, key: Any, value: Any) -> None:
        pass

    def __bool__(self) -> bool:
        return True

    def __float__(self) -> float:
        return 0.0

    def tobytes(self) -> bytes:
        return bytes(self.nbytes)

    def take(self, indices: "SizeOnly") -> "SizeOnly":
        return self.like(indices.shape)

    # ---- shapes

    @cached_property
    def T(self) -> "SizeOnly":  # noqa: N802
        return self.like(self.shape[::-1])

    @remembered
    def transpose(self, *axes: int) -> "SizeOnly":
        return self.like([self.shape[axis] for axis in axes])

    @remembered
    def swapaxes(self, one: int, other: int) -> "SizeOnly":
        shape = list(self.shape)
        shape[one], shape[other] = shape[other], shape[one]
        return self.like(shape)

    @remembered
    def reshape(self, *shape: Any) -> "SizeOnly":
        sizes = list(shape[0] if isinstance(shape[0], tuple) else shape)
        if -1 in [size for size in sizes if isinstance(size, int)]:
            place = sizes.index(-1)
            sizes[place] = self.size // math.prod(sizes[:place] + sizes[place + 1 :])
        return self.like(sizes)

    def copy(self) -> "SizeOnly":
        return self

    def astype(self, dtype: Any) -> "SizeOnly":
        return type(self)(self.shape, dtype)

    # ---- mathematics

    @remembered
    def sum(self, axis: int | None = None, keepdims: bool = False, out: Any = None, **_: Any) -> "SizeOnly":
        if axis is None:
            return self.like(())
        shape = list(self.shape)
        shape[axis : axis + 1 or None] = [1] * keepdims
        return self.like(shape)

    max = min = mean = sum

    @remembered
    def elementwise(self, other: Any = 0) -> "SizeOnly":
        return self.like(broadcast(self.shape, shape_of(other)))

    def compared(self, other: Any) -> "SizeOnly":
        return self.elementwise(other).astype(bool)

    @remembered
    def matmul(self, other: "SizeOnly") -> "SizeOnly":
        (*a, m, k), (*b, k_too, n) = self.shape, other.shape
        common((k, k_too))
        return self.like((*broadcast(a, b), m, n))

    def in_place(self, other: Any) -> "SizeOnly":
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = elementwise
    __floordiv__ = __pow__ = __and__ = __neg__ = __invert__ = elementwise
    __lt__ = __le__ = __gt__ = __ge__ = compared
    __iadd__ = __isub__ = __imul__ = __itruediv__ = in_place
    __matmul__ = matmul

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = None, **_: Any) -> Any:
        if method == "at":
            return None
        return out[0] if out else applied(ufunc, self, *inputs)

    def __array_function__(self, function: Callable, types: Any, args: tuple, kwargs: dict) -> Any:
        return FUNCTIONS[function.__name__](*args, **kwargs)


@remembered
def applied(ufunc: np.ufunc, array: SizeOnly, *inputs: Any) -> SizeOnly:
    """Return the result of a numpy function of these inputs, of which `array` is one."""
    if ufunc is np.matmul:
        return inputs[0].matmul(inputs[1])
    made = array.like(broadcast(*map(shape_of, inputs)))
    return made.astype(bool) if ufunc in COMPARISONS else made


def shape_of(array: Any) -> tuple:
    return array.shape if isinstance(array, SizeOnly) else np.shape(array)


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
            rest = rest[depth(each) :]
            if not isinstance(each, int) and not fancy:
                fancy = True
                found += [np.count_nonzero(each)] if is_mask(each) else shape_of(each)
    return found + rest


def depth(key: Any) -> int:
    """How many dimensions an index stands for."""
    if key is None or key is Ellipsis:
        return 0
    return key.ndim if is_mask(key) else 1


def is_mask(key: Any) -> bool:
    return getattr(key, "dtype", np.dtype(int)).kind == "b"


def length(part: slice, size: Any) -> Any:
    """How long a slice of a dimension is; with fractions and arrays, of one that lies in it."""
    if all(each is None or isinstance(each, int) for each in (part.start, part.stop, size)):
        return len(range(*part.indices(size)))
    return (size if part.stop is None else part.stop) - (part.start or 0)


@remembered
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


def repeat(array: SizeOnly, times: int, axis: int) -> SizeOnly:
    shape = list(array.shape)
    shape[axis] *= times
    return array.like(shape)


@remembered
def where(condition: SizeOnly, one: Any, other: Any) -> SizeOnly:
    dtype = next((each.dtype for each in (one, other) if hasattr(each, "dtype")), condition.dtype)
    return condition.like(broadcast(*map(shape_of, (condition, one, other)))).astype(dtype)


@remembered
def blank(array: SizeOnly, dtype: Any = None, shape: Any = None, **_: Any) -> SizeOnly:
    return type(array)(array.shape if shape is None else shape, dtype or array.dtype)


def split(array: SizeOnly, parts: int, axis: int = 0) -> list[SizeOnly]:
    shape = list(array.shape)
    shape[axis] //= parts
    return [array.like(shape)] * parts


@remembered
def array_split(array: SizeOnly, parts: int) -> tuple[SizeOnly, ...]:
    return tuple([array.like((size, *array.shape[1:])) for size in split_sizes(len(array), parts)])


FUNCTIONS: dict[str, Callable] = {
    "empty_like": blank,
    "zeros_like": blank,
    "concatenate": concatenate,
    "stack": stack,
    "repeat": repeat,
    "where": where,
    "einsum": einsum,
    "split": split,
    "array_split": array_split,
    "bincount": lambda array, minlength: np.array(split_sizes(array.size, minlength)),
    "sum": SizeOnly.sum,
    "mean": SizeOnly.mean,
    "vdot": lambda one, other: one.like(()),
    "argsort": lambda array, **_: array.astype(np.int64),
    "count_nonzero": lambda mask: mask.size,
    "nonzero": lambda mask: (type(mask)((mask.size,), np.int64),) * mask.ndim,
    "take_along_axis": lambda array, places, axis: array.like(places.shape),
}
