"""The words of a shell's statement, with quotes taken off, and variables and sums replaced.

Idea   A word is what stands between spaces, quotes and substitutions kept together. What only the environment
       knows, or a command that the script runs ($(nproc)), stays as it is written.
Limit  What grows beyond any launch command is refused.
"""

import re
import shlex
from collections.abc import Mapping

from ndparallel.base.errors import UserError
from ndparallel.launch_flags.shell.arithmetic import sum_of, value_of_sum

LARGEST = 200_000  # characters of a script, and of one expanded statement
# a command's output, or a sum
SUBSTITUTION = r"\$\((?:[^()]|\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\))*\)|`[^`]*`"
WORD = re.compile(
    rf"""(?:\\.|"(?:[^"\\]|\\.)*"|'[^']*'|{SUBSTITUTION}|\$\[[^][]*\]|[^\s"'\\])+""",
    re.DOTALL,
)
SPLIT = re.compile(rf"(?:{SUBSTITUTION}|\S)+")  # an unquoted value, at its spaces
REFERENCE = re.compile(r"\"?\$(?:\{(?P<braced>\w+)(?:\[[@*]\])?\}|(?P<plain>[A-Za-z_]\w*|\d))\"?")
ARITHMETIC = re.compile(r"\$\(\((?P<sum>(?:[^()]|\([^()]*\))*)\)\)|\$\[(?P<older>[^][]*)\]")
INSIDE = r"(?:[^{}]|\{[^{}]*\})*"  # of ${NAME:-...}, with one ${...} inside
VARIABLE = re.compile(
    rf"\$\{{(?P<braced>\w+)(?:\[[@*]\])?(?:(?P<empty>:?)[-=](?P<default>{INSIDE}))?\}}"
    r"|\$(?P<plain>[A-Za-z_]\w*|\d|\#)"
)


def expanded_words(text: str, variables: Mapping[str, list[str]]) -> list[str]:
    """The words without quotes, with variables and sums replaced; a variable that stands alone may be several
    words."""
    found: list[str] = []
    length = 0
    for word in WORD.findall(text):
        if word.strip('"') in ("$@", "$*"):
            continue  # the script's own arguments
        if (name := name_of(word)) in variables:
            words = variables[name]
            words = words if word.startswith('"') and len(words) > 1 else SPLIT.findall(" ".join(words))
        else:
            words = [one_word(word, variables)]
        found += words
        length = refused_if_long(length + sum(map(len, words)))
    return found


def plain_words(text: str) -> list[str]:
    """The words without quotes, as they are written; none where a quotation mark is never closed."""
    try:
        return shlex.split(text)
    except ValueError:
        return []


def name_of(word: str) -> str:
    """The variable that a word is, all of it; "" for another word."""
    reference = REFERENCE.fullmatch(word)
    return (reference["braced"] or reference["plain"]) if reference else ""


def refused_if_long(length: int) -> int:
    if length > LARGEST:
        raise UserError("its variables grow beyond any launch command.")
    return length


def one_word(word: str, variables: Mapping[str, list[str]]) -> str:
    """Take its quotes off, and replace variables and sums where they are not in single quotes."""
    if word.startswith("'"):
        return word[1:-1]
    plain = re.sub(
        r"\\(.)|[\"']", r"\1", VARIABLE.sub(lambda found: value_of(found, variables), word), flags=re.DOTALL
    )
    refused_if_long(len(plain))
    return ARITHMETIC.sub(lambda found: str(sum_of(found, variables)), plain)


def value_of(found: re.Match, variables: Mapping[str, list[str]]) -> str:
    """A variable's value, else the default that stands with it, else its name as it is written."""
    name, default = found["braced"] or found["plain"], found["default"]
    if default is not None and lacks(variables, name, found["empty"]):
        return VARIABLE.sub(lambda inner: value_of(inner, variables), default)
    return " ".join(variables[name]) if name in variables else found[0]


def lacks(variables: Mapping[str, list[str]], name: str, empty: str) -> bool:
    """Whether a default takes a variable's place: it is not set, or there is a colon and it is empty."""
    return name not in variables or (empty == ":" and not any(variables[name]))


def sum_holds(text: str, variables: Mapping[str, list[str]]) -> bool | None:
    """Whether `((...))` holds, which is what is not 0."""
    value = value_of_sum(VARIABLE.sub(lambda found: value_of(found, variables), text), variables)
    return None if value is None else value != 0


def how_to_set(text: str) -> str:
    """What to do about the first variable that `text` still names; nothing where it names none."""
    if "$" not in text:
        return ""
    name = re.search(r"\$\{?(\w+)", text)
    return (
        "; the file does not set that variable, or only under a condition that is not known: give "
        f"{f'--set {name[1]}=VALUE' if name else 'its value there'}, or --script-arguments"
    )
