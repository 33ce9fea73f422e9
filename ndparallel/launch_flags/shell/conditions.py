"""The conditions, loops and tests of a shell script: which of its statements run.

Limit  Of conditions there are comparisons of what the script itself sets, or is given. A loop is passed over
       where its condition does not hold at first. A test whether something is there that only the
       environment knows says no. A function is read where it is defined, as if it were called there.

Glossary
    block   a condition, a loop or a group in braces that is open; None stands for "not known" in all that is
            true or false
"""

import operator
import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from ndparallel.launch_flags.shell.files import included_file
from ndparallel.launch_flags.shell.script import Script
from ndparallel.launch_flags.shell.words import WORD, name_of, one_word, sum_holds

CLOSERS = ("fi", "done", "esac", "}")
# a function's name, before its body
FUNCTION = re.compile(r"\A(?:function\s+[\w-]+\s*(?:\(\s*\))?|[\w-]+\s*\(\s*\))\s*(?=\{|$)")
TEST = re.compile(r"\s*(?:!\s*)*(?:\[\[?\s|test\s|\(\(|(?:true|false)$)")
SUM = r"\(\((?:[^()]|\([^()]*\))*\)\)"
# what they join
AND, OR = (re.compile(rf"((?:{SUM}|(?!{sign}).)+)(?:{sign})?", re.DOTALL) for sign in ("&&", r"\|\|"))
SUM_TEST = re.compile(r"\s*\(\((?P<sum>.*)\)\)\s*", re.DOTALL)
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
class ShellBlock:
    """An open condition, `case`, loop or group: the word that closes it, whether its present branch runs, and
    whether one has run already; whether it is `reached`, by what is around it and before it. A `case` has a
    subject, and before each branch its patterns."""

    closer: str
    runs: bool | None
    settled: bool | None
    subject: str | None = None
    patterns: list[str] | None = None
    reached: bool | None = True

    def branch(self, now: bool | None) -> None:
        """Enter a branch whose own condition is `now`."""
        self.runs = every([now, None if self.settled is None else not self.settled])
        self.settled = some([self.settled, now])


def follow(blocks: list[ShellBlock], statement: str, script: Script, reached: bool | None) -> str:
    """Keep account of conditions and loops, and return what of the statement is neither."""
    while statement := FUNCTION.sub("", statement):
        inside = entered(blocks, statement, script, reached)
        if inside is None:
            return statement
        statement = inside
    return ""


def entered(blocks: list[ShellBlock], statement: str, script: Script, reached: bool | None) -> str | None:
    """Open or close the block, or enter the branch, that a statement begins with, and return what follows
    there; None where it begins with none."""
    first, rest = [*statement.split(None, 1), ""][:2]
    top = blocks[-1] if blocks else None
    if top and top.patterns is not None and first not in CLOSERS:
        return choose(top, statement)
    if block := opened(first, rest, script):
        block.reached = every([reached, running(blocks)])
        blocks.append(block)
        return rest if first == "{" else beginning(block, first, rest)
    match first:
        case "elif" if top:
            top.branch(truth(rest, script))
        case "else" if top:
            top.branch(True)
            return rest
        case ";;":
            if top and top.subject is not None:
                top.runs, top.patterns = False, []
        case "then" | "do":
            return rest
        case _ if first in CLOSERS:
            close(blocks, first)
        case _:
            return None
    return ""


def beginning(block: ShellBlock, first: str, rest: str) -> str:
    """What follows in a block behind the word that opens it: a loop sets its variable."""
    name, _, words = rest.partition(" in")
    if first == "for":
        return f"{name}=({words})" if name.isidentifier() else ""
    return choose(block, words.strip())


def running(blocks: list[ShellBlock]) -> bool | None:
    """Whether what stands in all these blocks runs."""
    return every([blocks[-1].reached, blocks[-1].runs]) if blocks else True


def close(blocks: list[ShellBlock], closer: str) -> None:
    """Close the last block that this word closes, with all that is open in it."""
    place = next((place for place in reversed(range(len(blocks))) if blocks[place].closer == closer), None)
    if place is not None:
        del blocks[place:]


def opened(first: str, rest: str, script: Script) -> ShellBlock | None:
    """The condition, `case` or loop that a statement opens with its `first` word, if it does."""
    match first:
        case "{":
            return ShellBlock("}", True, True)
        case "if":
            now = truth(rest, script)
            return ShellBlock("fi", now, now)
        case "case":
            subject = rest.partition(" in")[0].strip()
            return ShellBlock("esac", False, False, one_word(subject, script.variables), [])
        case "while" | "until":
            never = truth(rest, script) is (first == "until")
            return ShellBlock("done", False if never else None, None)
        case "for":
            return ShellBlock("done", None, None)
    return None


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
        case ["true" | "false" as word]:
            return word == "true"
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


def outcome(statement: str, reached: bool | None, before: bool | None, script: Script) -> bool | None:
    """Whether what stands before `&&` or `||` succeeds: a test by its variables, any other command; what is
    not reached leaves things as they were."""
    if reached is False:
        return before
    now = truth(statement, script) if TEST.match(statement) else True
    return now if reached else None
