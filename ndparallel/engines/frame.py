"""How an array travels between processes: what stands in the frame, and what lies beside it.

Idea   A frame is a pickled tuple of plain values. A small array stands in it as bytes, one that is only a size as its one element; a
       larger one has only its dtype and shape there, and its content goes another way, unpickled.
"""

import pickle
from typing import Any

import numpy as np

from gpu import is_size_only

LENGTH_BYTES = 4


def frame_of(header: tuple) -> bytes:
    """Its length, then the header."""
    body = pickle.dumps(header, pickle.HIGHEST_PROTOCOL)
    return len(body).to_bytes(LENGTH_BYTES, "little") + body


def pack(array: np.ndarray, most_bytes: int) -> tuple[Any, tuple[int, ...], bytes | None, bool]:
    """(dtype, shape, content, is that one element, repeated?); the content is None where it has more than `most_bytes`.

    Raises TypeError for an array of Python objects.
    """
    dtype = array.dtype
    if dtype.hasobject:
        raise TypeError(f"arrays of dtype {dtype} cannot be sent: they hold Python objects.")
    name = dtype.str if dtype.isbuiltin == 1 else dtype
    if is_size_only(array) and array.size:
        return name, array.shape, array[(0,) * array.ndim].tobytes(), True
    return name, array.shape, array.tobytes() if array.nbytes <= most_bytes else None, False


def unpack(dtype: Any, shape: tuple[int, ...], content: bytes, repeated: bool) -> tuple:
    """(the array, the function to call when it has been read, or None)"""
    if repeated:
        return np.ndarray(shape, dtype, content, strides=(0,) * len(shape)), None
    return np.ndarray(shape, dtype, content), _nothing


def _nothing() -> None:
    """A small array needs no release: it came with its frame. It is read-only, as all lent arrays should be taken to be."""
