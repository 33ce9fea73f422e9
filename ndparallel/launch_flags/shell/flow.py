"""Which statements of a shell script run: the blocks that are open around each, and && and || before it.

Limit  A loop is passed over where its condition does not hold at first. A function is read where it is
       defined, as if it were called there.

Glossary
    block    a condition, `case`, a loop or a group in braces that is open
    branch   a part of a block that runs or not: between `then` and `else`, or behind a pattern of `case`
"""

import re
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from ndparallel.launch_flags.shell.conditions import TEST, truth
from ndparallel.launch_flags.shell.script import Script
from ndparallel.launch_flags.shell.truths import Truth, every, opposite, some
from ndparallel.launch_flags.shell.words import one_word

CLOSERS = ("fi", "done", "esac", "}")
JOINTS = ("&&", "||")  # what stands behind runs where what stands before succeeds, or does not
# a function's name, before its body
FUNCTION = re.compile(r"\A(?:function\s+[\w-]+\s*(?:\(\s*\))?|[\w-]+\s*\(\s*\))\s*(?=\{|$)")


@dataclass
class ShellBlock:
    """An open block, and the word that closes it."""

    closer: str
    reached: Truth  # whether the block itself is, by what is around it and before it
    taken: Truth  # whether its present branch is
    settled: Truth  # whether its present branch is taken, or one before it was

    def branch(self, condition: Truth) -> None:
        """Enter the next branch."""
        self.taken = every([condition, opposite(self.settled)])
        self.settled = some([self.settled, condition])

    @property
    def runs(self) -> Truth:
        """Whether what stands in its present branch runs."""
        return every([self.reached, self.taken])


@dataclass
class CaseBlock(ShellBlock):
    """`case` compares a subject with the patterns before each branch: those of the next one, while they are
    read."""

    subject: str
    patterns: list[str] = field(default_factory=list)
    is_choosing: bool = True

    def choose(self, statement: str) -> str:
        """Read a pattern, "7B|8B)", which pipes cut; behind the last of them its branch begins."""
        if statement in ("", ";;"):
            return ""
        pattern, closed, rest = statement.partition(")")
        self.patterns.append(pattern.strip(" (\"'"))
        if not closed:
            return ""
        self.branch(self.matches())
        self.is_choosing = False
        return rest.strip()

    def matches(self) -> Truth:
        """Whether the subject is like one of the patterns."""
        if "*" in self.patterns:
            return True
        if "$" in self.subject or any("$" in pattern for pattern in self.patterns):
            return None
        return any(fnmatchcase(self.subject, pattern) for pattern in self.patterns)

    def end_branch(self) -> None:
        """Wait for the patterns of the next branch."""
        self.taken, self.patterns, self.is_choosing = False, [], True


@dataclass
class ScriptFlow:
    """Where the reader of a script is, statement by statement."""

    script: Script
    blocks: list[ShellBlock] = field(default_factory=list)
    reached: Truth = True  # whether a statement is, by the && or || before it
    succeeded: Truth = True  # whether the last that was reached did

    @property
    def runs(self) -> Truth:
        """Whether a statement here runs."""
        return every([self.reached, *(block.runs for block in self.blocks[-1:])])

    def join(self, joint: str) -> None:
        """Go on behind && or ||."""
        self.reached = self.succeeded if joint == "&&" else opposite(self.succeeded)

    def end(self, command: str) -> None:
        """Leave a statement: a test succeeds by its variables, any other command always, and what is not
        reached leaves things as they were."""
        if self.reached is not False:
            now = truth(command, self.script) if TEST.match(command) else True
            self.succeeded = now if self.reached else None
        self.reached = True

    def command_in(self, statement: str) -> str:
        """Open, turn and close the blocks that a statement begins with, and return the command in it."""
        while statement := FUNCTION.sub("", statement):
            inside = self.inside(statement)
            if inside is None:
                return statement
            statement = inside
        return ""

    def inside(self, statement: str) -> str | None:
        """What follows in the block, or in the branch, that a statement begins with; None where it begins
        with none."""
        first, rest = [*statement.split(None, 1), ""][:2]
        top = self.blocks[-1] if self.blocks else None
        if isinstance(top, CaseBlock) and top.is_choosing and first not in CLOSERS:
            return top.choose(statement)
        if (inside := self.opened(first, rest)) is not None:
            return inside
        match first:
            case "elif" if top:
                top.branch(truth(rest, self.script))
            case "else" if top:
                top.branch(True)
                return rest
            case ";;":
                if isinstance(top, CaseBlock):
                    top.end_branch()
            case "then" | "do":
                return rest
            case _ if first in CLOSERS:
                self.close(first)
            case _:
                return None
        return ""

    def opened(self, first: str, rest: str) -> str | None:
        """What follows in the block that a statement opens with its `first` word; None where it opens
        none."""
        match first:
            case "{":
                self.blocks.append(ShellBlock("}", self.runs, True, True))
                return rest
            case "if":
                now = truth(rest, self.script)
                self.blocks.append(ShellBlock("fi", self.runs, now, now))
            case "while" | "until":
                never = truth(rest, self.script) is (first == "until")
                self.blocks.append(ShellBlock("done", self.runs, False if never else None, None))
            case "for":
                self.blocks.append(ShellBlock("done", self.runs, None, None))
                name, _, words = rest.partition(" in")
                return f"{name}=({words})" if name.isidentifier() else ""
            case "case":
                subject, _, patterns = rest.partition(" in")
                block = CaseBlock(
                    "esac", self.runs, False, False, one_word(subject.strip(), self.script.variables)
                )
                self.blocks.append(block)
                return block.choose(patterns.strip())
            case _:
                return None
        return ""

    def close(self, closer: str) -> None:
        """Close the last block that this word closes, with all that is open in it."""
        place = next((n for n in reversed(range(len(self.blocks))) if self.blocks[n].closer == closer), None)
        if place is not None:
            del self.blocks[place:]
