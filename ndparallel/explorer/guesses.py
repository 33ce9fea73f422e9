"""The screen "Predict first": every question of the book as a card, to be guessed before the run says it.

Idea   A question's command runs as the reader would run it, in a process of its own: once for its JSON, which
       has the answer, and once for what it prints.
Cost   Some seconds the first time; what was printed is kept.
"""

import shlex
import subprocess
import sys
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from ndparallel.base.errors import UserError
from ndparallel.base.words import three_digits
from ndparallel.lessons.questions import Question, questions
from ndparallel.lessons.registry import ROOT

MOST_SECONDS = 120
SHOWN = {  # where the page has the same run
    "tp-only": "cut?tp=8&pp=1",
    "tp-outermost": "cut?order=pp-dp-ep-cp-tp",
    "cube-memory": "cut",
    "ring-small": "ring?ranks=8&bytes=1kB",
    "llama-mfu": "cluster",
    "llama-network": "cluster?what_if=bandwidth_across*2",
    "llama-tp16": "cluster?tp=16&pp=2",
}


def answer(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the cards; or, of a question, what its command says, and how far off a guess is."""
    if "question" not in given:
        return {"command": "", "cards": [card(question) for question in questions()]}
    question = named(given["question"])
    if not question.command:
        return {"why": question.why}
    found = revealed(question)
    if "guess" not in given:
        return found
    guess = guess_of(question, given["guess"])
    return found | {"guess": guess, "off": off(question, guess, found["value"])}


def card(question: Question) -> dict[str, Any]:
    shown = ("name", "chapter", "words", "guess", "unit", "low", "high", "step", "command")
    return {name: getattr(question, name) for name in shown} | {
        "ends": [question.said(question.low), question.said(question.high)],
        "shown": SHOWN.get(question.name, ""),
    }


def named(name: Any) -> Question:
    for question in questions():
        if question.name == name:
            return question
    raise UserError(f"there is no question {str(name)[:100]!r}.")


def guess_of(question: Question, guess: Any) -> float:
    if isinstance(guess, int | float) and question.low <= guess <= question.high:
        return float(guess)
    raise UserError(f"{question.name}: guess a number from {question.low:g} to {question.high:g}.")


def revealed(question: Question) -> dict[str, Any]:
    found = question.answer(printed(question.command, json=True))
    return {
        "value": found,
        "text": question.said(found),
        "off": "",
        "why": question.why,
        "output": printed(question.command, json=False),
    }


def off(question: Question, guess: float, found: float) -> str:
    """Compare a guess with the answer, to as many decimals as are written of it."""
    if abs(guess - found) <= question.step:
        return f"You said {question.said(guess)}: right."
    decimals = len(three_digits(found).partition(".")[2])
    points = " points" if question.unit == "%" else ""
    difference = abs(guess - round(found, decimals))
    much = question.said(round(difference, decimals)).removesuffix("%" if points else "") + points
    return f"You said {question.said(guess)}: {much} too {'much' if guess > found else 'little'}."


@lru_cache
def printed(command: str, json: bool) -> str:
    """Return what a command prints. Raises UserError where it does not come to an end."""
    try:
        done = subprocess.run(
            argv_of(command) + ["--json"] * json,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=MOST_SECONDS,
            check=True,
        )
    except subprocess.TimeoutExpired:
        raise UserError(f"`{command}` came to no end within {MOST_SECONDS} s.") from None
    except (subprocess.SubprocessError, OSError):
        raise UserError(f"`{command}` failed; run it yourself to see why.") from None
    return done.stdout


def argv_of(command: str) -> list[str]:
    """Return a command of the book as this Python runs it, a lesson without processes of its own."""
    program, name, *words = shlex.split(command)
    if program == "python":
        name, words = "lesson", [name.removesuffix(".py"), *words, "--engine", "inline"]
    return [sys.executable, "-m", "ndparallel", name, *words]
