"""The parser of all command lines, and what it takes for a number."""

import argparse
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from ndparallel.base.errors import UserError, check_whole, guarded
from ndparallel.base.quantities import number, whole_number
from ndparallel.base.quoting import brief
from ndparallel.base.words import option_of

NEGATIVE = re.compile(r"-\.?\d")  # a value, as -1s, and no option
ALIKE = 0.8  # as difflib counts: a letter too many, too few or in another place, and no other word
Number = TypeVar("Number", int, float)


class Parser(argparse.ArgumentParser):
    """An argparse parser that raises UserError, without printing the list of all options first; what it
    calls int and float are whole_number and number. `elsewhere` says of the words from an unknown option on
    where they belong, or nothing."""

    elsewhere: Callable[[Sequence[str]], str] = staticmethod(lambda words: "")

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._negative_number_matcher = NEGATIVE
        self.register("type", int, in_argparse(whole_number))
        self.register("type", float, in_argparse(number))

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        found, left = self.parse_known_args(args, namespace)
        if left:
            meant = self.near(left[0]) or self.elsewhere(left)
            self.error(f"unrecognized arguments: {brief(' '.join(left))[1:-1]}{meant}")
        return found

    def near(self, word: str) -> str:
        """Return a question after the option that a word is nearest to, or nothing."""
        near = nearest(word.partition("=")[0], self._option_string_actions) if word.startswith("--") else ""
        return f"; did you mean {near}?" if near else ""

    def takes(self, word: str) -> bool:
        """Whether a word is one of those that can stand without an option, as their help lists them."""
        listed = (
            action.choices or (action.help or "").split(", ") for action in self._positionals._group_actions
        )
        return any(word.lower() in words for words in listed)

    def error(self, message: str) -> NoReturn:
        _, lacks, names = message.partition("arguments are required: ")
        if lacks:
            message = f"{self.prog} needs {'; '.join(map(self.described, names.split(', ')))}"
        option, lacks, _ = message.partition(": expected one argument")
        if lacks:
            option = option.removeprefix("argument ")
            message = f"{option} needs {self.described(option)}"
        raise UserError(f"{message} ({self.prog} --help tells what there is).")

    def described(self, name: str) -> str:
        """Return the name of what is to be given, and what can be; `name` is what argparse prints: an option,
        or the name itself where that stands without one."""
        action = next(
            each for each in self._actions if name in ("/".join(each.option_strings), each.metavar, each.dest)
        )
        word = (action.metavar or "one of") if action.option_strings else name
        return f"{word}: {', '.join(map(str, action.choices)) if action.choices else action.help}"


def tell(prog: str, doc: str, story: Callable[[], str]) -> int:
    """Print a program's story; its command line has --help alone, which prints `doc`. Returns the exit
    code."""
    parser = Parser(prog, description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)

    def told() -> int:
        parser.parse_args()
        print(story(), end="")  # in one piece, so that `| head` is no broken pipe
        return 0

    return guarded(told)


def at_least_one(arguments: object, *names: str) -> None:
    """Raise UserError for the first of these attributes that is given and is no whole number above 0."""
    for name in names:
        if (value := getattr(arguments, name)) is not None:
            check_whole(option_of(name), value)


def owners(option: str, parsers: Mapping[str, Parser]) -> list[str]:
    """Return the names of the parsers that know an option."""
    return [name for name, parser in parsers.items() if option in parser._option_string_actions]


def nearest(option: str, options: Iterable[str]) -> str:
    """Return the option that was probably meant; "" where none is like it."""
    import difflib  # for what is misspelled alone

    return next(iter(difflib.get_close_matches(option, options, 1, ALIKE)), "")


def spelled(others: Mapping[str, str]) -> Callable[[str], str]:
    """Return a type for argparse: a word in any case, or one of `others`, which stand for another."""
    return lambda word: others.get(word.lower(), word.lower())


def in_argparse(parse: Callable[[str], Number]) -> Callable[[str], Number]:
    """Return a type for argparse, whose error is the sentence of `parse`."""

    def parsed(text: str) -> Number:
        try:
            return parse(text)
        except UserError as error:
            raise argparse.ArgumentTypeError(str(error).removesuffix(".")) from None

    return parsed
