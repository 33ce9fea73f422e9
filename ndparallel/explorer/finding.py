"""The search of the screen "Cluster", in a process of its own: it says how far it is, and can be ended.

Idea   One search at a time. Its process sends a sentence for every step of its way, and at last the plans. A
       newer question ends the older one's process, and so does the page when it asks for that.
Limit  How many plans will be timed is known only when they are: of that part there is a number and no share.
"""

import multiprocessing
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from multiprocessing.connection import Connection
from typing import Any

from ndparallel.base.errors import UserError
from ndparallel.explorer.cluster import THE_JOB, TOKENS, PlanQuestion, question_of, rows_of, with_sign
from ndparallel.planner.job import Plan
from ndparallel.search.search import Found, search
from ndparallel.search.tables import MOST_KINDS, advice_sentences, certainty, is_equal

PROCESSES = multiprocessing.get_context("spawn")  # the server has threads, which a fork would not copy


class CountingExecutor(Executor):
    """An executor that does everything at once and in turn, and says how much of it is done."""

    def __init__(self, say: Callable[[str, float | None], None]) -> None:
        self.say, self.timed = say, 0

    def map(self, work: Callable, *items: Iterable, **options: Any) -> Iterator:  # type: ignore[override]
        (every,) = map(list, items)
        for number, item in enumerate(every):
            if isinstance(item, Plan):
                self.timed += 1
                self.say(f"timing plan {self.timed:,} of those that promise most", None)
            else:
                share = number / len(every)
                self.say(f"pricing all plans, {number} of {len(every)} lengths of the pipeline", share)
            yield work(item)


def find(given: Mapping[str, Any], answers: Connection) -> None:
    """Search, and send what is to be said of it: the program of the process."""

    def say(words: str, share: float | None) -> None:
        answers.send({"running": words, "share": share})

    try:
        asked = question_of(given)
        found = search(asked.job, asked.setup["gpus"], executor=CountingExecutor(say), kinds=True)
        answers.send(described(asked, found))
    except UserError as error:
        answers.send({"reason": str(error)})
    finally:
        answers.close()


def described(asked: PlanQuestion, found: Found) -> dict[str, Any]:
    """Return the fastest plan of each kind, those that predictions cannot tell apart, and which to take."""
    kinds = found.kinds[:MOST_KINDS]
    take = found.recommended
    every = kinds if take.plan in [each.plan for each in kinds] else [take, *kinds]
    fastest = min(every, key=lambda each: each.seconds)
    marks = [marked(each.plan == take.plan, each is fastest, is_equal(found, each)) for each in every]
    return {
        "command": asked.command(THE_JOB),
        "plans": [row | {"remark": mark} for row, mark in zip(rows_of(every), marks)],
        "advice": [with_sign(sentence) for sentence in advice_sentences(found, TOKENS, None)],
        "certainty": certainty(found),
    }


def marked(recommended: bool, fastest: bool, equal: bool) -> str:
    marks = {"take this": recommended, "the fastest": fastest, "equal to the fastest": equal}
    return next((words for words, holds in marks.items() if holds), "")


def found_for(setup: Mapping[str, Any]) -> dict[str, Any]:
    """Search here and now, and return what the page shows of it."""
    asked = question_of(setup)
    return described(asked, search(asked.job, asked.setup["gpus"], kinds=True))


class Finder:
    """Holds the one search that may run."""

    def __init__(self) -> None:
        self.guard = threading.Lock()
        self.process: Any = None
        self.answers: Connection | None = None
        self.last: dict[str, Any] = {}

    def answer(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Begin a search (`do` is "begin", and the set-up is beside it), end it ("end"), or say how far it is
        ("look")."""
        setup = {name: value for name, value in given.items() if name != "do"}
        with self.guard:
            match given.get("do"):
                case "begin":
                    self.begin(setup)
                case "end":
                    self.end()
                case "look":
                    self.look()
                case _:
                    raise UserError("a search is to begin, to end, or to be looked at.")
            return self.last

    def begin(self, setup: Mapping[str, Any]) -> None:
        question_of(setup)  # what cannot be asked is refused here
        self.end()
        self.answers, theirs = PROCESSES.Pipe(duplex=False)
        self.process = PROCESSES.Process(target=find, args=(setup, theirs), daemon=True)
        self.process.start()
        theirs.close()
        self.last = {"running": "starting", "share": None}

    def look(self) -> None:
        """Take in what has been said since."""
        try:
            while self.answers and self.answers.poll():
                self.last = self.answers.recv()
        except EOFError:
            if "running" in self.last:
                self.last = {"reason": "The search ended without an answer."}
            self.end(keep=True)

    def end(self, keep: bool = False) -> None:
        """End the process, whatever it does."""
        if self.process:
            self.process.kill()
            self.process.join()
            self.process = None
        if self.answers:
            self.answers.close()
            self.answers = None
        if not keep:
            self.last = {"ended": True}
