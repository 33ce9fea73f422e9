"""The words of a launch command in a shell script, as the shell would pass them: variables, arrays,
arithmetic, comments.

Idea   One pass cuts the text into statements; assignments fill a table, and the commands that have flags are
       expanded with it.
Cost   Linear in the text; a script of more than 200 kB is refused.
Limit  No shell: loops and functions are not run, and of `if` and `case` only comparisons of what the script
       itself sets, or is given. What is set where that is not known is left out, and the reading says so.
       What only the environment knows ($SLURM_NNODES) stays as it is written.

Glossary
    statement   what stands between line ends, semicolons, pipes or & that are in no quotes and no parentheses
    given       variables that are set from outside, and the script's own arguments, by their numbers
    word        a part of a statement between spaces, still quoted
    block       a condition or a loop that is open; None stands for "not known" in all that is true or false
"""

import ast
import operator
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from ndparallel.base.errors import UserError

LARGEST = 200_000  # characters of a script, and of one expanded statement
LARGEST_NUMBER = 2**63  # as the shell's
PIECE = re.compile(
    r"""(?P<joined>\\\r?\n)|(?P<kept>\\.|"(?:[^"\\]|\\.)*"|'[^']*')|(?P<comment>(?<!\S)\#[^\n]*)
    |(?P<open>\$?\(+)|(?P<close>\)+)
    |(?P<redirect>(?:&|(?<=\s)\d)?[<>]{1,3}[ \t]*(?:[<>]?\([^()]*\)|&?[^\s;&|()<>]*))
    |(?P<end>;;|[\n;]|&&|\|\||[|&])|(?P<quote>["'])
    |(?P<plain>(?:(?!(?<=\s)\d[<>])[^\\"'\#()\n;&|$<>])+|.)""",
    re.VERBOSE | re.DOTALL,
)
ASSIGNMENT = re.compile(
    r"(?:(?:export|local|readonly|declare(?: -\w+)?)\s+)?(?P<name>[A-Za-z_]\w*)(?P<more>\+?)="
)
WORD = re.compile(
    r"""(?:\\.|"(?:[^"\\]|\\.)*"|'[^']*'|\$\(\((?:[^()]|\([^()]*\))*\)\)|[^\s"'\\])+""", re.DOTALL
)
ARRAY = re.compile(r"\((?P<words>.*)\)\s*$", re.DOTALL)
REFERENCE = re.compile(r"\"?\$(?:\{(?P<braced>\w+)(?:\[[@*]\])?\}|(?P<plain>[A-Za-z_]\w*|\d))\"?")
ARITHMETIC = re.compile(r"\$\(\((?P<sum>(?:[^()]|\([^()]*\))*)\)\)")
VARIABLE = re.compile(
    r"\$\{(?P<braced>\w+)(?:\[[@*]\])?(?::?-(?P<default>[^}]*))?\}|\$(?P<plain>[A-Za-z_]\w*|\d)"
)
LOOPS, CLOSERS = ("for", "while", "until"), ("fi", "done", "esac")
CONDITION = re.compile(r"\s*(?:if|elif)\s")
JOINED = re.compile(r"\\\r?\n")
SUMS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.FloorDiv: operator.floordiv,
}


@dataclass
class Script:
    """What a script says: the words of its commands with flags, its variables word by word, those of them
    that are `given` and stay as they are, and the names that it sets conditionally."""

    given: frozenset[str] = frozenset()
    commands: list[list[str]] = field(default_factory=list)
    variables: dict[str, list[str]] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)


def read_script(text: str, given: Mapping[str, str] | None = None) -> Script:
    """Read a shell script, or a bare command line, with variables and arguments `given` from outside. Raises
    UserError for one that is too long, or never closes a quote."""
    if len(text) > LARGEST:
        raise UserError(f"it has {len(text)} characters, more than the {LARGEST} of any launch script.")
    set_before = {name: [value] for name, value in (given or {}).items()}
    script, blocks = Script(frozenset(set_before), variables=set_before), list[ShellBlock]()
    for statement in statements(text):
        rest = follow(blocks, statement, script.variables)
        runs = every(block.runs for block in blocks)
        if rest and runs is not False:
            words = expanded_words(assign(script, rest, runs is None), script.variables)
            script.commands += [words] if any(word.startswith("--") for word in words) else []
    return script


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


def follow(blocks: list[ShellBlock], statement: str, variables: Mapping[str, list[str]]) -> str:
    """Keep account of conditions and loops, and return what of the statement is neither."""
    first, rest = [*statement.split(None, 1), ""][:2]
    top = blocks[-1] if blocks else None
    if top and top.patterns is not None and first not in CLOSERS:
        return choose(top, statement)
    if statement == ";;":
        if top and top.subject is not None:
            top.runs, top.patterns = False, []
    elif first == "case":
        subject, _, rest = rest.partition(" in")
        blocks.append(ShellBlock(False, False, one_word(subject.strip(), variables), []))
        return choose(blocks[-1], rest.strip())
    elif first == "if":
        now = truth(rest, variables)
        blocks.append(ShellBlock(now, now))
    elif first in LOOPS:
        blocks.append(ShellBlock(None, None))
    elif first in CLOSERS:
        del blocks[-1:]
    elif first in ("elif", "else") and blocks:
        blocks[-1].branch(truth(rest, variables) if first == "elif" else True)
        return rest if first == "else" else ""
    else:
        return rest if first in ("then", "do") else statement
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


def truth(condition: str, variables: Mapping[str, list[str]]) -> bool | None:
    """Whether tests of what the script itself sets hold."""
    return some(
        every(holds(part, variables) for part in either.split("&&")) for either in condition.split("||")
    )


def holds(text: str, variables: Mapping[str, list[str]]) -> bool | None:
    words = [one_word(word, variables) for word in WORD.findall(text) if word not in ("[", "]", "[[", "]]")]
    if any("$" in word for word in words):
        return None
    match words:
        case ["-n", word]:
            return bool(word)
        case ["-z", word]:
            return not word
        case [word, "=" | "==" | "-eq", other]:
            return word == other
        case [word, "!=" | "-ne", other]:
            return word != other
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
    """Raises UserError where a quotation mark is never closed."""
    statement, depth = "", 0
    for piece in PIECE.finditer(text):
        kind, words = piece.lastgroup, piece[0]
        if kind == "quote":
            raise UserError(
                f"the quotation mark in line {text.count(chr(10), 0, piece.start()) + 1} is never closed."
            )
        depth = max(0, depth + words.count("(") - words.count(")")) if kind in ("open", "close") else depth
        if kind == "end" and depth == 0 and not (words in ("&&", "||") and CONDITION.match(statement)):
            yield from filter(None, [statement.strip(), words * (words == ";;")])
            statement = ""
        elif kind != "comment":
            blank = kind == "joined" or words in "\n;" or (kind == "redirect" and depth == 0)
            statement += " " if blank else JOINED.sub(" ", words)
    yield from filter(None, [statement.strip()])


def assign(script: Script, statement: str, conditional: bool) -> str:
    """Carry out the assignments that a statement begins with, and return the rest of it."""
    while found := ASSIGNMENT.match(statement):
        name, old, value = found["name"], [], statement[found.end() :]
        if found["more"]:
            old = script.variables.get(found["name"], [])
        if array := ARRAY.match(value):
            new, statement = [*old, *expanded_words(array["words"], script.variables)], ""
        else:
            word = WORD.match(value)
            statement = value[word.end() :].lstrip() if word else value.lstrip()
            new = [" ".join(old) + one_word(word[0] if word else "", script.variables)]
        if name in script.given:
            continue
        if conditional:
            script.skipped.append(name)
        else:
            script.variables[name] = new
    return statement


def expanded_words(text: str, variables: Mapping[str, list[str]]) -> list[str]:
    """The words without quotes, with variables and sums replaced; a variable that stands alone may be several
    words."""
    found: list[str] = []
    length = 0
    for word in WORD.findall(text):
        if word.strip('"') in ("$@", "$*"):
            continue  # the script's own arguments
        reference = REFERENCE.fullmatch(word)
        name = (reference["braced"] or reference["plain"]) if reference else ""
        if name in variables:
            words = variables[name]
            words = words if word.startswith('"') and len(words) > 1 else " ".join(words).split()
        else:
            words = [one_word(word, variables)]
        found += words
        length = refused_if_long(length + sum(map(len, words)))
    return found


def refused_if_long(length: int) -> int:
    if length > LARGEST:
        raise UserError("its variables grow beyond any launch command.")
    return length


def one_word(word: str, variables: Mapping[str, list[str]]) -> str:
    """Without its quotes, and with variables and sums replaced where they are not in single quotes."""
    if word.startswith("'"):
        return word[1:-1]
    plain = re.sub(
        r"\\(.)|[\"']", r"\1", VARIABLE.sub(lambda found: value_of(found, variables), word), flags=re.DOTALL
    )
    refused_if_long(len(plain))
    return ARITHMETIC.sub(lambda found: str(sum_of(found["sum"], variables)), plain)


def value_of(found: re.Match, variables: Mapping[str, list[str]]) -> str:
    """A variable's value, else the default that stands with it, else its name as it is written."""
    name = found["braced"] or found["plain"]
    return (
        " ".join(variables[name])
        if name in variables
        else found["default"]
        if found["default"] is not None
        else found[0]
    )


def sum_of(text: str, variables: Mapping[str, list[str]]) -> int | str:
    """What `$((...))` comes to; the text as it stands where it is no sum of known whole numbers."""
    try:
        return whole_number(ast.parse(text.strip(), mode="eval").body, variables)
    except (SyntaxError, ValueError, KeyError, ZeroDivisionError, RecursionError, MemoryError):
        return f"$(({text}))"


def whole_number(node: ast.AST, variables: Mapping[str, list[str]]) -> int:
    if isinstance(node, ast.BinOp):
        sum_ = SUMS[type(node.op)](whole_number(node.left, variables), whole_number(node.right, variables))
        if abs(sum_) > LARGEST_NUMBER:
            raise ValueError
        return sum_
    if isinstance(node, ast.Name):
        return int(" ".join(variables[node.id]))
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    raise ValueError
