"""Arrays of a collective: cut into one piece for each rank, laid flat to work on, written when it is over.

Cost   Pieces are views; only a copy asked for, and `write`, move data.
Limit  Arrays that are only sizes have no content: they are passed on and never written.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from ndparallel.base.messages import snapshot

Array = np.ndarray


def write(output: Array | None, content: Array | None) -> Array | None:
    """Put `content` of any shape into `output`, unless there is none or it is read-only."""
    if output is not None and content is not None and output.flags.writeable:
        require_room(output.dtype, content.dtype)
        output[...] = content.reshape(output.shape)
    return output


def require_room(output: np.dtype, content: np.dtype) -> None:
    """Raise TypeError where numbers would lose their fractions, or their imaginary parts."""
    if output != content and not np.can_cast(content, output, "same_kind"):
        raise TypeError(f"an array of {output} cannot hold the result, which is of {content}.")


def require_array(array: Any) -> None:
    """Raise TypeError for what a collective cannot write its result into."""
    if isinstance(array, np.generic) or not hasattr(array, "strides"):
        raise TypeError(
            f"a collective works in a numpy array, and this is of the type {type(array).__name__}: "
            "np.array(...) makes one."
        )


def rows_of(array: Any, *others: Any) -> int:
    """Return how many rows an array has. Raises TypeError where it, or another, has none."""
    for each in (array, *others):
        require_array(each)
        if not each.ndim:
            raise TypeError("an all-to-all exchanges rows, and an array without dimensions has none.")
    return len(array)


def split_sizes(size: int, parts: int) -> list[int]:
    """The sizes of the parts that np.array_split cuts."""
    least, larger = divmod(size, parts)
    return [least + 1] * larger + [least] * (parts - larger)


def cut(array: Array, rows: Sequence[int]) -> list[Array]:
    """Cut into pieces of that many rows, which are views."""
    return [array[end - size : end] for size, end in zip(rows, accumulate(rows))]


def split(array: Any, parts: int) -> Sequence[Array]:
    """Cut as np.array_split does, in a quarter of its time; a SizeOnly keeps its pieces in mind."""
    if not isinstance(array, np.ndarray):
        return np.array_split(array, parts)
    return cut(array, split_sizes(len(array), parts))


def flat(array: Array, copy: bool) -> Array:
    """Return the array in one dimension: a copy, or its own memory where that can be."""
    require_array(array)
    return snapshot(array).reshape(-1) if copy else array.reshape(-1)


def work_array(output: Array, async_op: bool) -> Array:
    """Return a 1-D work array for the result: `output`'s own memory if it can be written in place, else a new
    array."""
    require_array(output)
    in_place = not output.flags.writeable or (output.flags.c_contiguous and not async_op)
    return output.reshape(-1) if in_place else np.empty_like(output, shape=output.size)


def is_view(work: Array | None, output: Array | None) -> bool:
    """Whether `work`, made by `flat` or `work_array`, is in the memory of `output` itself."""
    if work is output or work is None or output is None:
        return work is output
    return work.base is (output if output.base is None else output.base)
