"""The page as one file with its answers inside: for a static site, a lecture hall, a USB stick.

Idea   The answers to some hundred questions: one change at a time around the layouts of 8 GPUs, schedules,
       collectives and a real plan. What occurs twice stands there once. The page looks answers up and
       computes nothing: a stop that it holds no answer for is grey.
Limit  No search but one, no experts that are folded over cp, and nothing that is placed by hand. Coordinates
       of pictures have DIGITS digits.

Glossary
    grid   the questions, by screen
    key    what is set of every control, in words: by this an answer is found
"""

import base64
import gzip
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from itertools import product
from typing import Any

from ndparallel.base.errors import UserError
from ndparallel.explorer import cluster, cut, guesses, rings, schedules
from ndparallel.explorer.beginnings import setups as begun
from ndparallel.explorer.finding import found_for
from ndparallel.explorer.page import page
from ndparallel.explorer.screens import SCREENS, known
from ndparallel.explorer.setup import Control
from ndparallel.lessons.questions import Question, questions
from ndparallel.parallel.context import VARIANTS

DIGITS = 4
SHORTEST = 150  # characters of what is stored once
CONTROLS: dict[str, tuple[Control, ...]] = {
    "cut": cut.CONTROLS,
    "schedule": schedules.CONTROLS,
    "ring": rings.CONTROLS,
    "cluster": cluster.CONTROLS,
}
Setup = dict[str, Any]


# ------------------------------------------------------------------------------------------------- the grid


def around(base: Setup, **changes: Iterable[Any]) -> Iterator[Setup]:
    """Yield a set-up, and those that differ from it in one thing."""
    yield base
    yield from (base | {name: value} for name, values in changes.items() for value in values)


@cache
def grid() -> dict[str, list[Setup]]:
    """Return the set-ups of every screen, each once."""
    found = {
        "cut": [
            setup
            for setup in (*begun("cut"), *begun("timeline"), *cuts())
            if not cut.refusal(whole("cut", setup))
        ],
        "schedule": [*begun("schedule"), *schedule_setups()],
        "ring": [
            setup
            for setup in (*begun("ring"), *ring_setups())
            if not rings.refusal(rings.with_its_algorithm(whole("ring", setup)))
        ],
        "cluster": [*begun("cluster"), *cluster_setups()],
    }
    return {
        screen: list({key(screen, setup): setup for setup in setups}.values())
        for screen, setups in found.items()
    }


def cuts() -> Iterator[Setup]:
    """Yield all layouts of 8 GPUs, and one change of each."""
    for tp, pp, cp in product((1, 2, 4, 8), repeat=3):
        if 8 % (tp * pp * cp):
            continue
        layout = {"tp": tp, "pp": pp, "cp": cp}
        yield from (layout | {"microbatches": number} for number in (1, 2, 4, 8))
        yield from around(
            layout | {"microbatches": most_microbatches(layout)},
            ep=[ep for ep in (2, 4, 8) if 8 // (tp * pp * cp) % ep == 0],
            zero=(1, 2, 3),
            order=cut.ORDERS,
            gpus_per_node=(2, 8),
            slow_gpu=("0:2",),
            schedule=cut.SCHEDULES if pp > 1 else (),
            sequence_parallel=("sp",),
            context_parallel=VARIANTS if cp > 1 else (),
        )


def most_microbatches(layout: Setup) -> int:
    """Return 4 microbatches, or as many as the layout can have."""
    legal = (m for m in (4, 2, 1) if not cut.refusal(whole("cut", layout | {"microbatches": m})))
    return next(legal, 1)


def schedule_setups() -> Iterator[Setup]:
    for stages, microbatches in product((2, 4, 8), (4, 8, 16)):
        yield {"stages": stages, "microbatches": microbatches}
    yield from around({}, **{control.name: control.stops for control in schedules.CONTROLS[2:]})


def ring_setups() -> Iterator[Setup]:
    for collective, algorithm in product(rings.COLLECTIVES, rings.NAMES):
        setup = {"collective": collective, "algorithm": algorithm}
        yield from around(setup, ranks=(8,))
        yield setup | {"ranks": 8, "gpus_per_node": 4}
    for algorithm, size in product(rings.NAMES, rings.SIZES):
        yield {"algorithm": algorithm, "bytes": size, "ranks": 8, "gpus_per_node": 4}
        yield {"algorithm": algorithm, "bytes": size}
    yield from around(
        {},
        ranks=range(2, 9),
        hardware=("classroom", "pocket", "a100-80", "b200"),
        latency=rings.LATENCIES,
        bandwidth=rings.BANDWIDTHS,
    )


def cluster_setups() -> Iterator[Setup]:
    """Yield one plan of Llama 3 70B, and one change of it."""
    stops: dict[str, Iterable[Any]] = {control.name: control.stops for control in cluster.CONTROLS}
    fewer = {
        "gpus": (128, 256, 1024, 2048),
        "global_batch": (256, 1024, 2048),
        "sequence": (4096, 16384, 32768),
        "model": ("llama-3-8b", "llama-3-405b", "qwen2.5-72b"),
        "hardware": ("a100-80", "h200", "b200"),
    }
    yield from around({}, **stops | fewer)


def whole(screen: str, setup: Mapping[str, Any]) -> Setup:
    """Return a set-up with what the page begins with where nothing is set."""
    return {**{control.name: control.first for control in CONTROLS[screen]}, **setup}


def key(screen: str, setup: Mapping[str, Any]) -> str:
    return " ".join(str(value) for value in whole(screen, setup).values())


# ---------------------------------------------------------------------------------------------- the answers


def answers(each: Callable[[list], Iterable]) -> Setup:
    """Return all answers by screen and key; `each` goes through a list, and may say how far it is."""
    asked = [(screen, setup) for screen, setups in grid().items() for setup in setups]
    found: Setup = {screen: {} for screen in CONTROLS}
    for screen, setup in each(asked):
        try:
            found[screen][key(screen, setup)] = SCREENS[screen](setup)
        except UserError as error:
            found[screen][key(screen, setup)] = {"error": str(error)}
    guessed = {question.name: every_guess(question) for question in each(list(questions()))}
    settings = {
        screen: [setting(screen, control) for control in controls] for screen, controls in CONTROLS.items()
    }
    return found | {
        "predict": {"": guesses.answer({})},
        "guesses": guessed,
        "found": found_for({}),
        "settings": settings,
    }


def setting(screen: str, control: Control) -> list[Any]:
    """Return a control's name, what it begins with and, where any number may be set, those that are asked."""
    numbers = (
        {whole(screen, setup)[control.name] for setup in grid()[screen]} if control.kind == "number" else ()
    )
    return [control.name, control.first, sorted(numbers)]


def every_guess(question: Question) -> Setup:
    """Return what a question's run says, and how far off every guess on its scale is."""
    if not question.command:
        return {"why": question.why}
    found = guesses.revealed(question)
    stops = range(round((question.high - question.low) / question.step) + 1)
    said = [guesses.off(question, question.low + at * question.step, found["value"]) for at in stops]
    return found | {"off": said}


class Pool:
    """A store of long values, which keeps each once and refers to it by its number: {"$": 7}. A table is kept
    by its columns, whose numbers are alike: {"|": columns}."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def packed(self, value: Any, in_list: bool = False) -> str:
        """Return JSON of a value, in which what is long is a number."""
        if isinstance(value, Mapping):
            parts = (f"{json.dumps(name)}:{self.packed(each)}" for name, each in value.items())
            return self.stored("{" + ",".join(parts) + "}")
        if is_table(value):
            return self.stored(f'{{"|":{self.packed([list(column) for column in zip(*value)])}}}')
        if isinstance(value, list | tuple):
            return self.stored("[" + ",".join(self.packed(each, True) for each in value) + "]")
        if isinstance(value, float) and in_list:  # a coordinate
            return f"{value:.{DIGITS}g}"
        return json.dumps(value, allow_nan=False)

    def stored(self, text: str) -> str:
        if len(text) < SHORTEST:
            return text
        return f'{{"$":{self.numbers.setdefault(text, len(self.numbers))}}}'


def is_table(value: Any) -> bool:
    """Whether these are rows of the same length, and more rows than columns."""
    rows = isinstance(value, list | tuple) and all(isinstance(row, list | tuple) and row for row in value)
    return rows and len({len(row) for row in value}) == 1 and len(value) > len(value[0])


def packed(found: Mapping[str, Any]) -> str:
    """Return all answers as text: JSON with what occurs twice stored once, compressed, in base64."""
    pool = Pool()
    answered = pool.packed(found)
    text = f'{{"pool":[{",".join(pool.numbers)}],"answers":{answered}}}'
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def saved_page(each: Callable[[list], Iterable]) -> str:
    """Return the page with all answers inside."""
    return page(known(), packed(answers(each)))[0]
