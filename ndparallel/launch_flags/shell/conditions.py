"""Whether a condition of a shell script holds: `[ ... ]`, `[[ ... ]]`, `((...))`, joined by && and ||.

Limit  Comparisons of what the script itself sets, or is given. A test whether something is there that only
       the environment knows says no.
"""

import operator
import re
from fnmatch import fnmatchcase

from ndparallel.launch_flags.shell.files import included_file
from ndparallel.launch_flags.shell.script import Script
from ndparallel.launch_flags.shell.truths import Truth, every, opposite, some
from ndparallel.launch_flags.shell.words import WORD, name_of, one_word, sum_holds

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


def truth(condition: str, script: Script) -> Truth:
    """Whether tests of what the script itself sets hold."""
    eithers = OR.findall(condition)
    return some(every(holds(part, script) for part in AND.findall(either)) for either in eithers)


def holds(test: str, script: Script) -> Truth:
    """Whether a single test holds."""
    if sum_ := SUM_TEST.fullmatch(test):
        return sum_holds(sum_["sum"], script.variables)
    written = [word for word in WORD.findall(test) if word not in ("[", "]", "[[", "]]", "test")]
    words = [one_word(word, script.variables) for word in written]
    match words:
        case ["true" | "false" as word]:
            return word == "true"
        case ["!", *_]:
            return opposite(holds(" ".join(written[1:]), script))
        case ["-n" | "-z" as sign, word]:
            name = name_of(written[1])
            if name and not is_set(name, script):
                return sign == "-z"
            return None if "$" in word else (sign == "-z") == (not word)
        case ["-f" | "-e", file] if included_file(file, script.folder):
            return True
        case ["-v", name]:
            return is_set(name, script)
    return comparison_holds(words)


def is_set(name: str, script: Script) -> bool:
    """Whether the script has set a variable; one that it only tests is noted."""
    if name in script.variables:
        return True
    script.never_set[name] = None
    return False


def comparison_holds(words: list[str]) -> Truth:
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
