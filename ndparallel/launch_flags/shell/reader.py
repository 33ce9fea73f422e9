"""The words of a launch command in a shell script, as the shell would pass them: variables, arrays,
arithmetic, comments.

Idea   One pass cuts the text into statements; those that run (flow.py) fill a table with their
       assignments (script.py), and the commands that have flags are expanded with it (words.py).
Cost   Linear in the text; a script of more than 200 kB is refused.
Limit  No shell: functions are not run, and what only the environment knows stays as it is written.

Glossary
    statement   what stands between line ends, semicolons, pipes or & that are in no quotes and no parentheses
    given       variables that are set from outside, and the script's own arguments, by their numbers
    word        a part of a statement between spaces, still quoted
"""

import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path

from ndparallel.base.errors import UserError
from ndparallel.base.files import read_text
from ndparallel.launch_flags.shell.files import included_file
from ndparallel.launch_flags.shell.flow import JOINTS, ScriptFlow
from ndparallel.launch_flags.shell.script import Script, as_assignment, assign, assign_defaults
from ndparallel.launch_flags.shell.words import LARGEST, expanded_words

PIECE = re.compile(
    r"""(?P<joined>\\\r?\n)|(?P<kept>\\.|"(?:[^"\\]|\\.)*"|'[^']*')
    |(?P<comment>(?<!\S)\#[^\n]*|`[ ]*\#[^`\\\n]*`)
    |(?P<open>\$?\(+)|(?P<close>\)+)
    |(?P<redirect>(?:&|(?<=\s)\d)?[<>]{1,3}[ \t]*(?:[<>]?\([^()]*\)|&?[^\s;&|()<>]*))
    |(?P<end>;;|[\n;]|&&|\|\||[|&])|(?P<quote>["'])
    |(?P<plain>(?:(?!(?<=\s)\d[<>]|`[ ]*\#)[^\\"'\#()\n;&|$<>])+|.)""",
    re.VERBOSE | re.DOTALL,
)
SHELLS = (("bash", "-c"), ("sh", "-c"))
INCLUDES = (["source"], ["."])
PROGRAMS = ("llamafactory-cli", "axolotl", "axolotl.cli.train")  # as in `llamafactory-cli train FILE.yaml`
# in which && and || join tests; a branch of `case`, or another block, may begin before it
CONDITION = re.compile(r"(?:.{0,200}?\))??\s*(?:(?:then|else|do|\{)\s+)?(?:if|elif|while|until)\s", re.DOTALL)
JOINED = re.compile(r"\\\r?\n")


def read_script(
    text: str,
    given: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Script:
    """Read a shell script, or a bare command line, with variables and arguments `given` from outside, and an
    `environment` that it may change. What it includes is read where it lies in or around its `folder`. Raises
    UserError for one that is too long, or never closes a quote."""
    if len(text) > LARGEST:
        raise UserError(f"it has {len(text)} characters, more than the {LARGEST} of any launch script.")
    given = given or {}
    known = {**(environment or {}), "#": str(arguments_in(given)), **given}
    set_before = {name: [value] for name, value in known.items()}
    script = Script(frozenset(given), folder, variables=set_before)
    flow, pending = ScriptFlow(script), Statements(statements(text))
    for statement in pending:
        if statement in JOINTS:
            flow.join(statement)
            continue
        command = flow.command_in(statement)
        runs = flow.runs
        flow.end(command)
        if command and runs is not False:
            pending.insert(carry_out(command, script, conditional=runs is None))
    return script


class Statements(Iterator[str]):
    """Statements in the order in which they run: those of a script, and of what it includes, which `insert`
    puts before the rest."""

    def __init__(self, statements: Iterator[str]) -> None:
        self.under_way = [statements]

    def insert(self, statements: Iterator[str]) -> None:
        self.under_way.append(statements)

    def __next__(self) -> str:
        while self.under_way:
            if statement := next(self.under_way[-1], None):
                return statement
            self.under_way.pop()
        raise StopIteration


def carry_out(statement: str, script: Script, conditional: bool) -> Iterator[str]:
    """Set what a statement sets, and keep the words of its command if that has flags. Return the statements
    of a file that it includes, if it does."""
    assign_defaults(script, statement, conditional)
    left = assign(script, as_assignment(statement), conditional)
    words = program(expanded_words(left, script.variables), script.variables)
    script.commands += [words] if has_arguments(words) else []
    return included(script, words[1]) if words[:1] in INCLUDES and words[1:] else iter(())


def has_arguments(words: list[str]) -> bool:
    """Whether a command trains: it has flags, or a file of them that a program of its own reads."""
    return any(word.startswith("--") for word in words) or bool({*PROGRAMS}.intersection(words))


def included(script: Script, word: str) -> Iterator[str]:
    """The statements of a file that a script includes; none of one that is not found, or is read already."""
    path = included_file(word, script.folder)
    is_new = path not in script.included.values()
    script.included[word] = path
    if path and is_new:
        yield from statements_of(path)


def statements_of(path: Path) -> Iterator[str]:
    """Raise UserError for a file that cannot be read, or never closes a quote."""
    text = read_text(path, LARGEST)
    try:
        yield from statements(text)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def arguments_in(given: Mapping[str, str]) -> int:
    """How many arguments a script has, of which these are given."""
    return max((int(name) for name in given if name.isdecimal()), default=0)


def program(words: list[str], variables: Mapping[str, list[str]]) -> list[str]:
    """The words of the command that is run: of `bash -c` those that it is given; `echo` and `:` run none."""
    shell = next((place for place, pair in enumerate(pairwise(words)) if pair in SHELLS), None)
    if words[:1] in (["echo"], [":"]):
        return []
    return (
        words if shell is None else [*words[:shell], *expanded_words(" ".join(words[shell + 2 :]), variables)]
    )


def statements(text: str) -> Iterator[str]:
    """Yield the statements of a script. Raises UserError where a quotation mark is never closed."""
    statement, depth = "", 0
    for piece in PIECE.finditer(text):
        kind, words = piece.lastgroup, piece[0]
        if kind == "quote":
            raise UserError(
                f"the quotation mark in line {text.count(chr(10), 0, piece.start()) + 1} is never closed."
            )
        depth = max(0, depth + words.count("(") - words.count(")")) if kind in ("open", "close") else depth
        if kind == "end" and depth == 0 and not (words in JOINTS and CONDITION.match(statement)):
            yield from filter(None, [statement.strip(), words * (words in (";;", *JOINTS))])
            statement = ""
        elif kind != "comment":
            blank = kind == "joined" or words in "\n;" or (kind == "redirect" and depth == 0)
            statement += " " if blank else JOINED.sub(" ", words)
    yield from filter(None, [statement.strip()])
