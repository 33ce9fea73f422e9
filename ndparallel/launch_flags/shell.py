"""The words of a launch command in a shell script, as the shell would pass them: variables, arrays,
arithmetic, comments.

Idea   One pass cuts the text into statements; assignments fill a table, and the commands that have flags are
       expanded with it.
Cost   Linear in the text; a script of more than 200 kB is refused.
Limit  No shell: functions are not run, and a loop is passed over where its condition does not hold at first.
       Of conditions there are comparisons of what the script itself sets, or is given. What may be set where
       they are not known is not known from there on. What only the environment knows stays as it is written;
       a test whether it is there at all says no.

Glossary
    statement   what stands between line ends, semicolons, pipes or & that are in no quotes and no parentheses
    given       variables that are set from outside, and the script's own arguments, by their numbers
    word        a part of a statement between spaces, still quoted
    block       a condition or a loop that is open; None stands for "not known" in all that is true or false
"""

import operator
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import Path

from ndparallel.base.errors import UserError
from ndparallel.base.files import read_text
from ndparallel.launch_flags.shell_files import Statements, included_file
from ndparallel.launch_flags.shell_words import (
    INSIDE,
    LARGEST,
    WORD,
    expanded_words,
    lacks,
    name_of,
    one_word,
    sum_holds,
)

PIECE = re.compile(
    r"""(?P<joined>\\\r?\n)|(?P<kept>\\.|"(?:[^"\\]|\\.)*"|'[^']*')
    |(?P<comment>(?<!\S)\#[^\n]*|`[ ]*\#[^`\\\n]*`)
    |(?P<open>\$?\(+)|(?P<close>\)+)
    |(?P<redirect>(?:&|(?<=\s)\d)?[<>]{1,3}[ \t]*(?:[<>]?\([^()]*\)|&?[^\s;&|()<>]*))
    |(?P<end>;;|[\n;]|&&|\|\||[|&])|(?P<quote>["'])
    |(?P<plain>(?:(?!(?<=\s)\d[<>]|`[ ]*\#)[^\\"'\#()\n;&|$<>])+|.)""",
    re.VERBOSE | re.DOTALL,
)
ASSIGNMENT = re.compile(
    r"(?:(?:export|local|readonly|declare(?: -\w+)?)\s+)?(?P<name>[A-Za-z_]\w*)(?P<more>\+?)="
)
ARRAY = re.compile(r"\((?P<words>.*)\)\s*$", re.DOTALL)
NOT_HERE = r"\\.|`[^`]*`|\$\((?!\()[^()]*\)"  # what is set in it is not set in this shell
DEFAULT = rf"\$\{{(?P<name>[A-Za-z_]\w*)(?P<empty>:?)=(?P<default>{INSIDE})\}}"
QUOTED_DEFAULTS = re.compile(rf"{NOT_HERE}|{DEFAULT}", re.DOTALL)
DEFAULTS = re.compile(rf"{NOT_HERE}|'[^']*'|\"(?P<quoted>(?:[^\"\\]|\\.)*)\"|{DEFAULT}", re.DOTALL)
SHELLS = (("bash", "-c"), ("sh", "-c"))
INCLUDES = (["source"], ["."])
CLOSERS = ("fi", "done", "esac")
AND_OR = {"&&": lambda truth: truth, "||": lambda truth: None if truth is None else not truth}
TEST = re.compile(r"\s*(?:!\s*)?(?:\[\[?\s|test\s|\(\()")
CONDITION = re.compile(r"\s*(?:if|elif|while|until)\s")
SUM = r"\(\((?:[^()]|\([^()]*\))*\)\)"
# what they join
AND, OR = (re.compile(rf"((?:{SUM}|(?!{sign}).)+)(?:{sign})?", re.DOTALL) for sign in ("&&", r"\|\|"))
SUM_TEST = re.compile(r"\s*\(\((?P<sum>.*)\)\)\s*", re.DOTALL)
LET = re.compile(  # ((N*=8)), ((N++)), let N=M*8
    r"(?:\(\(|let\s)\s*[\"']?(?P<name>[A-Za-z_]\w*)\s*"
    r"(?:(?P<sign>[-+*/%]?)=(?P<sum>[^=].*?)|(?P<step>\+\+|--))[\"']?\s*(?:\)\))?",
    re.DOTALL,
)
JOINED = re.compile(r"\\\r?\n")
NUMBER = re.compile(r"-?\d{1,18}")
TESTS = {  # of two numbers
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-gt": operator.gt,
    "-ge": operator.ge,
    "-lt": operator.lt,
    "-le": operator.le,
}


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
    known = {**(environment or {}), "#": str(arguments_in(given or {})), **(given or {})}
    set_before = {name: [value] for name, value in known.items()}
    script, blocks = Script(frozenset(given or ()), folder, variables=set_before), list[ShellBlock]()
    succeeded: bool | None = True
    reached: bool | None = True
    pending = Statements(statements(text))
    for statement in pending:
        if statement in AND_OR:
            reached = AND_OR[statement](succeeded)
            continue
        rest = follow(blocks, statement, script)
        runs = every([reached, *(block.runs for block in blocks)])
        succeeded, reached = outcome(rest, reached, succeeded, script), True
        if rest and runs is not False:
            assign_defaults(script, rest, runs is None)
            left = assign(script, as_assignment(rest), runs is None)
            words = program(expanded_words(left, script.variables), script.variables)
            if words[:1] in INCLUDES and words[1:]:
                pending.insert(included(script, words[1]))
            script.commands += [words] if any(word.startswith("--") for word in words) else []
    return script


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


def outcome(statement: str, reached: bool | None, before: bool | None, script: Script) -> bool | None:
    """Whether what stands before `&&` or `||` succeeds: a test by its variables, any other command; what is
    not reached leaves things as they were."""
    if reached is False:
        return before
    now = truth(statement, script) if TEST.match(statement) else True
    return now if reached else None


def program(words: list[str], variables: Mapping[str, list[str]]) -> list[str]:
    """The words of the command that is run: of `bash -c` those that it is given; `echo` and `:` run none."""
    shell = next((place for place, pair in enumerate(pairwise(words)) if pair in SHELLS), None)
    if words[:1] in (["echo"], [":"]):
        return []
    return (
        words if shell is None else [*words[:shell], *expanded_words(" ".join(words[shell + 2 :]), variables)]
    )


@dataclass
class ShellBlock:
    """An open condition, `case` or loop: whether its present branch runs, and whether one has run already. A
    `case` has a subject, and before each branch its patterns."""

    runs: bool | None
    settled: bool | None
    subject: str | None = None
    patterns: list[str] | None = None

    def branch(self, now: bool | None) -> None:
        """Enter a branch whose own condition is `now`."""
        self.runs = every([now, None if self.settled is None else not self.settled])
        self.settled = some([self.settled, now])


def follow(blocks: list[ShellBlock], statement: str, script: Script) -> str:
    """Keep account of conditions and loops, and return what of the statement is neither."""
    first, rest = [*statement.split(None, 1), ""][:2]
    top = blocks[-1] if blocks else None
    if top and top.patterns is not None and first not in CLOSERS:
        return choose(top, statement)
    match first:
        case "if":
            now = truth(rest, script)
            blocks.append(ShellBlock(now, now))
        case "elif" if top:
            top.branch(truth(rest, script))
        case "else" if top:
            top.branch(True)
            return rest
        case "case":
            subject, _, patterns = rest.partition(" in")
            blocks.append(ShellBlock(False, False, one_word(subject.strip(), script.variables), []))
            return choose(blocks[-1], patterns.strip())
        case ";;":
            if top and top.subject is not None:
                top.runs, top.patterns = False, []
        case "while" | "until":
            never = truth(rest, script) is (first == "until")
            blocks.append(ShellBlock(False if never else None, None))
        case "for":
            blocks.append(ShellBlock(None, None))
        case "then" | "do":
            return rest
        case _ if first in CLOSERS:
            del blocks[-1:]
        case _:
            return statement
    return ""


def choose(block: ShellBlock, statement: str) -> str:
    """Read a pattern of `case`, "7B|8B)", which pipes cut; behind the last of them its branch begins."""
    if not statement or statement == ";;" or block.patterns is None or block.subject is None:
        return ""
    pattern, closed, rest = statement.partition(")")
    block.patterns.append(pattern.strip(" (\"'"))
    if not closed:
        return ""
    unknown = "$" in block.subject or any("$" in one for one in block.patterns)
    met = any(fnmatchcase(block.subject, one) for one in block.patterns)
    block.branch(None if unknown and "*" not in block.patterns else met or unknown)
    block.patterns = None
    return rest.strip()


def truth(condition: str, script: Script) -> bool | None:
    """Whether tests of what the script itself sets hold."""
    eithers = OR.findall(condition)
    return some(every(holds(part, script) for part in AND.findall(either)) for either in eithers)


def holds(text: str, script: Script) -> bool | None:
    if sum_ := SUM_TEST.fullmatch(text):
        return sum_holds(sum_["sum"], script.variables)
    written = [word for word in WORD.findall(text) if word not in ("[", "]", "[[", "]]", "test")]
    words = [one_word(word, script.variables) for word in written]
    match words:
        case ["!", *_]:
            now = holds(" ".join(written[1:]), script)
            return None if now is None else not now
        case ["-n" | "-z" as test, word]:
            name = name_of(written[1])
            if name and name not in script.variables:
                script.never_set[name] = None
                return test == "-z"
            return None if "$" in word else (test == "-z") == (not word)
        case ["-f" | "-e", file] if included_file(file, script.folder):
            return True
        case ["-v", name]:
            if name not in script.variables:
                script.never_set[name] = None
            return name in script.variables
    return comparison_holds(words)


def comparison_holds(words: list[str]) -> bool | None:
    """Whether a comparison of two words or numbers holds."""
    match words:
        case [word, _, other] if "$" in word + other:
            return None
        case [word, "=" | "==", other]:
            return fnmatchcase(word, other)
        case [word, "!=", other]:
            return not fnmatchcase(word, other)
        case [word, test, other] if test in TESTS and NUMBER.fullmatch(word) and NUMBER.fullmatch(other):
            return TESTS[test](int(word), int(other))
    return None


def every(truths: Iterable[bool | None]) -> bool | None:
    """False where one is false, else None where one is not known."""
    known = [*truths]
    return False if False in known else None if None in known else True


def some(truths: Iterable[bool | None]) -> bool | None:
    """True where one is true, else None where one is not known."""
    known = [*truths]
    return True if True in known else None if None in known else False


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
        if kind == "end" and depth == 0 and not (words in ("&&", "||") and CONDITION.match(statement)):
            yield from filter(None, [statement.strip(), words * (words in (";;", *AND_OR))])
            statement = ""
        elif kind != "comment":
            blank = kind == "joined" or words in "\n;" or (kind == "redirect" and depth == 0)
            statement += " " if blank else JOINED.sub(" ", words)
    yield from filter(None, [statement.strip()])


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
