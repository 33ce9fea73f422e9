"""What is known of a shell script: its variables, as its assignments set them, and its commands.

Limit  What may be set behind a condition that is not known is not known from there on.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ndparallel.launch_flags.shell.words import INSIDE, WORD, expanded_words, lacks, one_word

ASSIGNMENT = re.compile(
    r"(?:(?:export|local|readonly|declare(?: -\w+)?)\s+)?(?P<name>[A-Za-z_]\w*)(?P<more>\+?)="
)
ARRAY = re.compile(r"\((?P<words>.*)\)\s*$", re.DOTALL)
NOT_HERE = r"\\.|`[^`]*`|\$\((?!\()[^()]*\)"  # what is set in it is not set in this shell
DEFAULT = rf"\$\{{(?P<name>[A-Za-z_]\w*)(?P<empty>:?)=(?P<default>{INSIDE})\}}"
QUOTED_DEFAULTS = re.compile(rf"{NOT_HERE}|{DEFAULT}", re.DOTALL)
DEFAULTS = re.compile(rf"{NOT_HERE}|'[^']*'|\"(?P<quoted>(?:[^\"\\]|\\.)*)\"|{DEFAULT}", re.DOTALL)
LET = re.compile(  # ((N*=8)), ((N++)), let N=M*8
    r"(?:\(\(|let\s)\s*[\"']?(?P<name>[A-Za-z_]\w*)\s*"
    r"(?:(?P<sign>[-+*/%]?)=(?P<sum>[^=].*?)|(?P<step>\+\+|--))[\"']?\s*(?:\)\))?",
    re.DOTALL,
)


@dataclass
class Script:
    """What a script says: the words of its commands with flags, its variables word by word, those of them
    that are `given` and stay as they are; `skipped` is what it may set, words behind a condition that is not
    known, `never_set` are variables that it only tests, and `included` files that it runs as its own lines,
    each with the path at which it was found and read, in or around the script's `folder`."""

    given: frozenset[str] = frozenset()
    folder: Path | None = None
    commands: list[list[str]] = field(default_factory=list)
    variables: dict[str, list[str]] = field(default_factory=dict)
    skipped: dict[str, list[str]] = field(default_factory=dict)
    never_set: dict[str, None] = field(default_factory=dict)
    included: dict[str, Path | None] = field(default_factory=dict)


def as_assignment(statement: str) -> str:
    """Write arithmetic that sets a variable as an assignment; any other statement as it is."""
    if not (found := LET.fullmatch(statement)):
        return statement
    name, sign, sum_ = found["name"], found["sign"], found["sum"]
    if found["step"]:
        sign, sum_ = found["step"][0], "1"
    return f"{name}=$(({name}{sign}({sum_})))" if sign else f"{name}=$(({sum_}))"


def assign(script: Script, statement: str, conditional: bool) -> str:
    """Carry out the assignments that a statement begins with, and return the rest of it."""
    while found := ASSIGNMENT.match(statement):
        name = found["name"]
        old = script.variables.get(name, []) if found["more"] else []
        new, statement = value_and_rest(statement[found.end() :], old, script.variables)
        put(script, name, new, conditional)
    return statement


def put(script: Script, name: str, words: list[str], conditional: bool) -> None:
    """Set a variable, but for one that is given; under a condition that is not known, note that it may be."""
    if name in script.given:
        return
    if conditional:
        skip(script, name, words)
    else:
        script.variables[name] = words


def assign_defaults(script: Script, statement: str, conditional: bool) -> None:
    """Carry out each ${NAME:=default} of a statement whose variable is not set, or with := is empty."""
    for name, empty, default in [] if statement.startswith("(") else defaults_in(statement):
        if lacks(script.variables, name, empty):
            put(script, name, [one_word(default, script.variables)], conditional)


def defaults_in(statement: str) -> Iterator[tuple[str, str, str]]:
    """Yield the name, the colon or "" and the text of each ${NAME:=text} that is in no single quotes."""
    for part in DEFAULTS.finditer(statement):
        inside = QUOTED_DEFAULTS.finditer(part["quoted"]) if part["quoted"] else [part]
        yield from ((found["name"], found["empty"], found["default"]) for found in inside if found["name"])


def value_and_rest(text: str, old: list[str], variables: Mapping[str, list[str]]) -> tuple[list[str], str]:
    """The value that a text begins with, an array's or a word, behind the `old` one of `+=`; and the rest."""
    if array := ARRAY.match(text):
        return [*old, *expanded_words(array["words"], variables)], ""
    word = WORD.match(text)
    end = word.end() if word else 0
    return [" ".join(old) + one_word(text[:end], variables)], text[end:].lstrip()


def skip(script: Script, name: str, words: list[str]) -> None:
    """Note that a variable may be set to these words: it is not known any more, or what may be behind it."""
    old, new = " ".join(script.variables.get(name, [])), " ".join(words)
    more = new.removeprefix(old) if re.match(r"\s", new[len(old) :]) else new
    script.skipped.setdefault(name, []).extend(more.split())
    if name not in script.variables or new != old:
        known = script.variables.get(name, []) if more != new else []
        script.variables[name] = [*known, f"${{{name}}}"]
