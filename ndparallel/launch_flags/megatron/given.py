"""The flags of a command line, checked against Megatron-Core's names, with a note of what was used, defaulted
and left out.

Idea   Who asks for a flag says what Megatron does without it; so what was assumed is known at the end.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from ndparallel.base.errors import UserError, unknown
from ndparallel.base.options import nearest
from ndparallel.launch_flags.frozen import megatron_flags, release
from ndparallel.launch_flags.megatron.forks import pairs, translated, with_defaults
from ndparallel.launch_flags.shell.words import how_to_set

Meaning = TypeVar("Meaning")


@dataclass
class GivenFlags:
    """Flags with their values; `repeated` are those whose values before the last were passed over, `unknown`
    those that Megatron-Core does not have and `translated` those of forks, `used` those that were asked for,
    `defaults` what Megatron does about those that are missing. A flag that nobody asks for may have any
    values."""

    flags: dict[str, list[str]]
    unknown: dict[str, None] = field(default_factory=dict)
    repeated: dict[str, None] = field(default_factory=dict)
    translated: dict[str, None] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    defaults: list[str] = field(default_factory=list)

    def add(self, flag: str, values: list[str]) -> None:
        """Take one more flag from the command line."""
        if flag not in megatron_flags():
            self.unknown[flag] = None
            return
        self.unknown |= dict.fromkeys(unset := unset_variables(flag, values))
        values = [value for value in values if value not in unset]
        if self.flags.get(flag, values) != values:
            self.repeated[flag] = None
        self.flags[flag] = values

    def has(self, flag: str) -> bool:
        """Whether it is there. Raises UserError where it has another number of values than it takes."""
        if flag in self.flags and flag not in self.used:
            refuse_wrong_count(flag, self.flags[flag])
        self.used.add(flag)
        return flag in self.flags

    def heed(self, *flags: str) -> None:
        """Count flags as used that say what is so here, with or without them."""
        for flag in flags:
            self.has(flag)

    def text(self, flag: str) -> str | None:
        return " ".join(self.flags[flag]) if self.has(flag) else None

    def number(self, flag: str, default: int | None = None, why: str = "") -> int:
        """A whole number from 0 on. Raises UserError where it is none, or is missing and has no default."""
        text = self.text(flag)
        if text is None:
            if default is None:
                raise UserError(f"{flag} is missing{why}.")
            self.assume(flag, why or f"{default}")
            return default
        if not re.fullmatch(r"\d{1,18}", text, flags=re.ASCII):
            raise UserError(f"{flag} must be a whole number, not {text[:60]!r}{how_to_set(text)}.")
        return int(text)

    def number_or(self, flag: str, missing: int) -> int:
        """A whole number from 0 on; `missing` where it is missing, which needs no word. Raises UserError
        where it is no number."""
        return self.number(flag) if self.has(flag) else missing

    def fraction(self, flag: str) -> float:
        """A number that is there. Raises UserError where it is none."""
        text = self.text(flag) or ""
        try:
            return float(text)
        except ValueError:
            raise UserError(f"{flag} must be a number, not {text[:60]!r}{how_to_set(text)}.") from None

    def word(self, flag: str, default: str, meanings: Mapping[str, Meaning]) -> Meaning:
        """What the flag's word means. Raises UserError, with the nearest, for a word that is none of them."""
        word = self.text(flag)
        if word is None:
            return meanings[default]
        if word not in meanings and "$" in word:
            raise UserError(f"{flag} must be a word, not {word[:60]!r}{how_to_set(word)}.")
        if word not in meanings:
            raise unknown(flag, word[:60], meanings)
        return meanings[word]

    def one_of(self, meanings: Mapping[str, Meaning], default: Meaning) -> Meaning:
        """What the one flag of these means that is there. Raises UserError for two that contradict one
        another."""
        there = [flag for flag in meanings if self.has(flag)]
        if len({meanings[flag] for flag in there}) > 1:
            raise UserError(f"{' and '.join(there)} contradict one another: keep one.")
        return meanings[there[0]] if there else default

    def assume(self, flag: str, what: str) -> None:
        self.defaults.append(f"{flag}: {what}")

    @property
    def unused(self) -> list[str]:
        return [flag for flag in self.flags if flag not in self.used]


def given_flags(words: Sequence[str]) -> GivenFlags:
    """Sort a command's words by its flags; of one that is given twice the last counts, as in argparse."""
    found = GivenFlags({})
    words = with_defaults(words)
    for flag, values in pairs(words):
        if known := translated(flag, values, "--deepspeed" in words):
            found.translated[" ".join([flag, *values])[:60]] = None
        for named in known or [(flag, values)]:
            found.add(*named)
    return found


def unset_variables(flag: str, values: list[str]) -> list[str]:
    """Variables that the script does not set and that stand behind the flag's own values: more flags, which
    nobody here knows."""
    own = {"none": 0, "one": 1, "some": len(values)}[megatron_flags()[flag]]
    return [value for value in values[own:] if value.startswith("$")]


def refuse_wrong_count(flag: str, values: list[str]) -> None:
    wanted = megatron_flags()[flag]
    if wanted == "one" and not values:
        raise UserError(f"{flag} needs a value.")
    if wanted == "none" and values:
        raise UserError(f"{flag} takes no value, and {shown(values)} follows it.")
    if wanted == "one" and len(values) > 1:
        raise UserError(f"{flag} takes one value, not {shown(values)}.")


def shown(values: list[str]) -> str:
    return repr(" ".join(values)[:60])


def unknown_sentence(flags: Iterable[str]) -> str:
    """Name the flags that the release does not have, with the nearest that it has."""
    named, lacking = [], [*flags]
    for flag in lacking[:20]:
        near = nearest(flag, megatron_flags())
        named.append(f"{flag[:60]} (it has {near})" if near else flag[:60])
    more = f" and {len(lacking) - 20} more" if len(lacking) > 20 else ""
    return f"{release('megatron')} has no {', '.join(named)}{more}: left out."
