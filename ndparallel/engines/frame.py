"""How a message travels between processes: in a frame, with a large array's content beside it.

Idea   A frame is a header of numbers, then the content of a small array (the one element of an array that is
       only a size), then the message's name and its form. A form is what many messages share, so it is
       pickled once and then known again by its bytes. Of a collective's message the name is a group, which
       belongs to the form, and two numbers, which stand in the header.
Cost   One small pickle a message of no collective, of its name.

Glossary
    form      the collective that a message belongs to, its group, and its array's dtype, shape, strides where
              these are not the usual, and whether it is packed for the wire
    block     where the content of an array lies that is too large for the frame; 0 where it is in the frame
    note      a frame that carries any value, and belongs to no run
"""

from collections.abc import Callable
from functools import lru_cache
from pickle import HIGHEST_PROTOCOL, dumps, loads
from struct import Struct
from typing import Any

import numpy as np

from gpu import is_size_only
from ndparallel.base.bfloat16 import ON_THE_WIRE, from_wire, to_wire
from ndparallel.base.messages import holds_objects
from ndparallel.engines.inbox import pickled_name
from ndparallel.engines.system import PIPE_BUF

CONTENT_BYTES = min(2048, PIPE_BUF // 2)  # arrays up to this size travel inside the frame
# Bytes of the frame; run, source; bytes of the name and of the form; the clock's three numbers; block;
# numbers of the name
HEADER = Struct("IiiIIdddQqq")
# (data, start=0): the header of the frame that begins there
header_of = HEADER.unpack_from
NO_RUN = -1
FORMS = 4096  # that are remembered
MOST = 1 << 63  # numbers in a header are less


def frame_of(run: int, source: int, message: tuple, put: Callable[[np.ndarray], int]) -> bytes:
    """Frame a message; `put` lays down an array that is too large for the frame, and returns its block."""
    what, call, departed, first_byte, wire_seconds, array, _ = message
    if type(array) is not np.ndarray:
        array = to_wire(array)
    repeated = not array.flags.writeable and is_size_only(array) and array.size > 0
    (group, number), step = what if _is_numbered(what) else ((None, 0), 0)
    form = _pickled_form(group, call, array.dtype, array.shape, repeated)
    name = b"" if group else pickled_name(what, source)
    content, block = b"", 0
    if repeated:
        content = array[(0,) * array.ndim].tobytes()
    elif array.nbytes <= CONTENT_BYTES:
        content = array.tobytes()
    else:
        block = put(array)
    length = HEADER.size + len(content) + len(name) + len(form)
    header = HEADER.pack(
        length, run, source, len(name), len(form), departed, first_byte, wire_seconds, block, number, step
    )
    return header + content + name + form


def message_of(header: tuple, frame: bytes, array_at: Callable[..., tuple]) -> tuple:
    """The message; `array_at(block, dtype, shape)` finds an array that is not in the frame."""
    length, _, _, name_bytes, form_bytes, departed, first_byte, wire_seconds, block, number, step = header
    name_ends = length - form_bytes
    group, call, dtype, shape, strides, packed = _form(frame[name_ends:])
    if block:
        array, release = array_at(block, dtype, shape)
    else:
        array = np.ndarray(shape, dtype, frame, HEADER.size, strides)
        release = _nothing if strides is None else None
    if packed:
        array, release = unpacked(array, release)
    what = loads(frame[name_ends - name_bytes : name_ends]) if name_bytes else ((group, number), step)
    return what, call, departed, first_byte, wire_seconds, array, release


def unpacked(array: np.ndarray, release: Callable[[], None] | None) -> tuple[np.ndarray, None]:
    """Return an array that came packed, in memory of its own."""
    own = from_wire(array)
    if release:
        release()
    return own, None


def block_of(frame: bytes) -> int:
    *_, block, _, _ = header_of(frame)
    return block


def note(source: int, value: Any) -> bytes:
    content = dumps(value, HIGHEST_PROTOCOL)
    return (
        HEADER.pack(HEADER.size + len(content), NO_RUN, source, len(content), 0, 0, 0, 0, 0, 0, 0) + content
    )


def noted(frame: bytes) -> Any:
    return loads(frame[HEADER.size :])


def _is_numbered(what: Any) -> bool:
    """Whether it is as collectives.py names its messages: ((group, number of the call), step)."""
    if type(what) is not tuple or len(what) != 2 or type(what[0]) is not tuple or len(what[0]) != 2:
        return False
    (group, number), step = what
    return (
        type(group) is str
        and group != ""
        and type(number) is type(step) is int
        and 0 <= number < MOST
        and 0 <= step < MOST
    )


@lru_cache(FORMS)
def _pickled_form(
    group: str | None, call: tuple | None, dtype: np.dtype, shape: tuple[int, ...], repeated: bool
) -> bytes:
    """Pickle it. Raises TypeError for an array of Python objects."""
    if dtype.hasobject:
        raise holds_objects(dtype)
    strides = (0,) * len(shape) if repeated else None
    return dumps((group, call, dtype, shape, strides, dtype == ON_THE_WIRE), HIGHEST_PROTOCOL)


_form = lru_cache(FORMS)(loads)


def _nothing() -> None:
    """A small array needs no release: it came with its frame. It is read-only, as all lent arrays should be
    taken to be."""
