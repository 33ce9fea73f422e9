"""Bytes of each kind of memory that a GPU counts."""

from typing import NoReturn

from ndparallel.base.events import MEMORY_KINDS


class BytesByKind(dict[str, float]):
    """Bytes of every kind, 0 at first. Raises ValueError for a kind that there is not."""

    def __init__(self) -> None:
        super().__init__(dict.fromkeys(MEMORY_KINDS, 0))

    def __missing__(self, kind: str) -> NoReturn:
        raise ValueError(f"there is no memory of the kind {kind!r}; there are {', '.join(MEMORY_KINDS)}.")
