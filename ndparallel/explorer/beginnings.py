"""What each screen is for, and what to try on it first: the page shows it above the controls.

Idea   Something to try is a set-up, mostly beside another one that is pinned: one click shows what one change
       does. The saved page holds an answer for each.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from ndparallel.lessons.questions import questions

Setup = dict[str, Any]


@dataclass(frozen=True)
class Try:
    """A set-up to look at, in a few words; `beside` is the one that it is compared with."""

    words: str
    setup: Setup
    beside: Setup | None = None

    def address(self, screen: str) -> str:
        pin = {} if self.beside is None else {"pin": f"?{urlencode(self.beside)}"}
        return f"#{screen}?{urlencode({**self.setup, **pin})}"


@dataclass(frozen=True)
class Beginning:
    """A screen's name, what it shows, the part of the book that explains it, and what to try. `live` says
    what a saved page has not."""

    title: str
    what: str
    book: str
    tries: tuple[Try, ...] = ()
    live: str = ""

    def as_dict(self, screen: str) -> dict[str, Any]:
        tries = [[each.words, each.address(screen)] for each in self.tries]
        words = {"title": self.title, "what": self.what, "live": self.live, "book": self.book}
        return words | {"tries": tries}


TP4, DP8 = {"tp": 4, "pp": 1}, {"tp": 1, "pp": 1, "microbatches": 1}
CP4 = {"tp": 1, "pp": 1, "cp": 4}
PP4 = {"tp": 1, "pp": 4, "microbatches": 8, "batch": 16}
BEGINNINGS = {
    "cut": Beginning(
        "Cut it",
        "8 simulated GPUs train one small model, with real numbers. Cut the work among them, and see what a "
        "step takes, what the GPUs wait for, and what each of them holds. To compare "
        "two cuts, pin the first one and then change a setting.",
        "docs/book/4d.md",
        (
            Try("tensor parallelism inside the node", TP4),
            Try("the same, with TP's GPUs spread over both nodes", TP4 | {"order": "pp-dp-ep-cp-tp"}, TP4),
            Try("one GPU twice as slow", {"slow_gpu": "0:2"}, {}),
            Try("ZeRO-3 against none", DP8 | {"zero": 3}, DP8),
            Try("a sequence shared by heads, against a ring", CP4 | {"context_parallel": "all-to-all"}, CP4),
        ),
    ),
    "timeline": Beginning(
        "Timeline",
        "The step that Cut it shows, over time: a lane for what each GPU computes, thin ones for what it "
        "sends, and below them what it holds. Point at a piece to read it.",
        "docs/book/3d.md",
        (
            Try("a pipeline of four stages", PP4),
            Try("its bubble filled with weight gradients", PP4 | {"schedule": "zb-v"}, PP4),
            Try("all microbatches forward first", PP4 | {"schedule": "gpipe"}, PP4),
        ),
    ),
    "ring": Beginning(
        "Ring",
        "How GPUs add up what each of them has. Move the hop to see who sends what to whom; below, every "
        "algorithm by the size of the array.",
        "docs/book/1d.md",
        (
            Try("a kilobyte: latency decides", {"bytes": "1kB", "ranks": 8}),
            Try("two nodes, ring by ring", {"algorithm": "hierarchical", "ranks": 8, "gpus_per_node": 4}),
            Try("all to all, as experts do", {"collective": "all_to_all", "algorithm": "direct"}),
        ),
    ),
    "schedule": Beginning(
        "Schedule",
        "All schedules of a pipeline on one scale of time.",
        "docs/book/3d.md",
        (
            Try("as many microbatches as GPUs", {"microbatches": 4}),
            Try("four times as many", {"microbatches": 16}),
            Try("messages that take a quarter of a forward", {"p2p": 0.25}),
        ),
        live="Place actions by hand, GPU by GPU, and beat 1F1B.",
    ),
    "cluster": Beginning(
        "Cluster",
        "A real model on real GPUs: what a step takes, where it goes, whether it fits, and how sure that is. "
        "Then search all plans, and copy the script that starts one.",
        "docs/book/cluster.md",
        (
            Try("TP16, which crosses nodes", {"tp": 16, "pp": 2}, {}),
            Try("a network twice as fast", {"what_if": "bandwidth_across*2"}),
            Try("everything computed again", {"recompute": "full"}, {}),
        ),
    ),
    "predict": Beginning(
        "Predict first",
        "Guess first, then see the run. The book's chapters end with these questions; begin with the first "
        "chapter.",
        "docs/book/0d.md",
    ),
}


def setups(screen: str) -> Iterator[Setup]:
    """Yield all set-ups that a screen begins with, and those beside them."""
    for each in BEGINNINGS[screen].tries:
        yield from (setup for setup in (each.setup, each.beside) if setup is not None)


def chapters() -> list[str]:
    """Return the names of the chapters that screens and questions name."""
    return sorted({each.book for each in BEGINNINGS.values()} | {each.book for each in questions()})
