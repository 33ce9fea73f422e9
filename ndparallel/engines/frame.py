"""How a message travels between processes: in a frame, with a large array's content beside it.

Idea   A frame is a header of numbers, then the content of a small array (the one element of an array that is only a size), then the
       message's name and its form. A form is what many messages share, so it is pickled once and then known again by its bytes.
Cost   One small pickle a message, of its name.

Glossary
    form      the collective that a message belongs to, and its array's dtype, shape, and strides where these are not the usual ones
    block     where the content of an array lies that is too large for the frame; 0 where it is in the frame
    note      a frame that carries any value, and belongs to no run
"""

import select
from collections.abc import Callable
from functools import lru_cache
from pickle import HIGHEST_PROTOCOL, dumps, loads
from struct import Struct
from typing import Any

import numpy as np

from gpu import is_size_only

CONTENT_BYTES = min(2048, select.PIPE_BUF // 2)  # arrays up to this size travel inside the frame
HEADER = Struct("IiiIIdddQ")  # bytes of the frame; run, source; bytes of the name and of the form; the clock's three numbers; block
NO_RUN = -1
FORMS = 4096  # that are remembered


def frame_of(run: int, source: int, message: tuple, put: Callable[[np.ndarray], int]) -> bytes:
    """Frame a message; `put` lays down an array that is too large for the frame, and returns its block."""
    what, call, departed, first_byte, wire_seconds, array, _ = message
    repeated = not array.flags.writeable and is_size_only(array) and array.size > 0
    form, name = _pickled_form(call, array.dtype, array.shape, repeated), dumps(what, HIGHEST_PROTOCOL)
    content, block = b"", 0
    if repeated:
        content = array[(0,) * array.ndim].tobytes()
    elif array.nbytes <= CONTENT_BYTES:
        content = array.tobytes()
    else:
        block = put(array)
    length = HEADER.size + len(content) + len(name) + len(form)
    return HEADER.pack(length, run, source, len(name), len(form), departed, first_byte, wire_seconds, block) + content + name + form


def header_of(data: bytes, start: int = 0) -> tuple:
    """The header of the frame that begins there: the frame's length, its run, its source, and what `message_of` needs."""
    return HEADER.unpack_from(data, start)


def message_of(header: tuple, frame: bytes, array_at: Callable[..., tuple]) -> tuple:
    """The message; `array_at(source, block, dtype, shape)` finds an array that is not in the frame."""
    length, _, source, name_bytes, form_bytes, departed, first_byte, wire_seconds, block = header
    name_ends = length - form_bytes
    call, dtype, shape, strides = _form(frame[name_ends:])
    if block:
        array, release = array_at(source, block, dtype, shape)
    else:
        array, release = np.ndarray(shape, dtype, frame, HEADER.size, strides), _nothing if strides is None else None
    return loads(frame[name_ends - name_bytes : name_ends]), call, departed, first_byte, wire_seconds, array, release


def block_of(frame: bytes) -> int:
    return HEADER.unpack_from(frame)[-1]


def note(source: int, value: Any) -> bytes:
    content = dumps(value, HIGHEST_PROTOCOL)
    return HEADER.pack(HEADER.size + len(content), NO_RUN, source, len(content), 0, 0, 0, 0, 0) + content


def noted(frame: bytes) -> Any:
    return loads(frame[HEADER.size :])


@lru_cache(FORMS)
def _pickled_form(call: tuple | None, dtype: np.dtype, shape: tuple[int, ...], repeated: bool) -> bytes:
    """Raises TypeError for an array of Python objects."""
    if dtype.hasobject:
        raise TypeError(f"arrays of dtype {dtype} cannot be sent: they hold Python objects.")
    return dumps((call, dtype, shape, (0,) * len(shape) if repeated else None), HIGHEST_PROTOCOL)


_form = lru_cache(FORMS)(loads)


def _nothing() -> None:
    """A small array needs no release: it came with its frame. It is read-only, as all lent arrays should be taken to be."""
