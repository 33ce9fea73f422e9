"""What is being run, on a terminal that somebody watches."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

Announce = Callable[[str], None]
T = TypeVar("T")


def ignore(words: str) -> None:
    """Say nothing of what is being run."""


@contextmanager
def progress() -> Iterator[Announce]:
    """Say on a terminal what is being run, and how much there is to do; elsewhere say nothing."""
    if not sys.stderr.isatty():
        yield ignore
        return
    from rich.console import Console  # where nobody watches, ranks start without it

    console = Console(stderr=True, markup=False, emoji=False)
    spinner = "dots" if console.encoding.startswith("utf") else "line"
    with console.status("starting", spinner=spinner) as status:
        yield lambda words: status.update(f"running {words}")


def counted(items: Sequence[T], announce: Announce, name: Callable[[T], str]) -> Iterator[T]:
    """The items, each announced by its name and its number when its turn comes."""
    for number, item in enumerate(items, start=1):
        announce(f"{name(item)}, {number} of {len(items)}")
        yield item
