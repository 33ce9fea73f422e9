"""What a launch file sets, by dotted names, as "training.seq_len" or "zero_optimization.stage".

Idea   Who asks for a setting gets it, or the framework's default; so what was assumed is known at the end.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ndparallel.base.errors import UserError, check_known
from ndparallel.base.options import nearest
from ndparallel.base.quoting import brief, visible, without_long_words
from ndparallel.base.words import listed
from ndparallel.launch_flags.frozen import frozen, release

Configuration = dict[str, Any]  # fields by their dotted names
NotModelled = Mapping[str, tuple[tuple, str]]  # what is priced without a word, and what in place of others


@dataclass
class Settings:
    """The settings that are given, the framework's defaults, and a note of those that were asked for and are
    missing."""

    given: Configuration
    defaults: Mapping[str, Any]
    assumed: dict[str, Any] = field(default_factory=dict)

    def value(self, key: str) -> Any:
        """A setting, or the framework's default."""
        if key in self.given:
            return self.given[key]
        self.assumed[key] = default = self.defaults[key]
        return default

    def number(self, key: str, least: int = 1) -> int:
        """A whole number; -1 where it stands for none. Raises UserError for another, or a smaller one."""
        value = self.value(key)
        none = value == -1 == self.defaults.get(key)
        if type(value) is not int or value < least and not none:
            raise UserError(f"{key} = {brief(value)}: give a whole number from {least} on.")
        return value

    def text(self, key: str) -> str:
        return str(self.value(key))

    def texts(self, key: str) -> list[str]:
        """A list of words; one that stands alone, or none, too."""
        value = self.value(key)
        return list(map(str, value)) if isinstance(value, list) else [str(value)] if value else []

    def word(self, key: str, known: Mapping[str, Any]) -> Any:
        """What a word stands for. Raises UserError for one that is not known."""
        value = self.text(key)
        check_known(key, value, known)
        return known[value]

    def switch(self, key: str) -> bool:
        if type(value := self.value(key)) is not bool:
            raise UserError(f"{key} = {brief(value)}: it is True or False.")
        return value


def notes_on_keys(
    framework: str, given: Configuration, lacking: Sequence[str], not_modelled: NotModelled
) -> Iterator[str]:
    """Sentences on keys that the framework's release does not have, and on values that are not modelled."""
    if lacking:
        yield unknown_keys(framework, lacking)
    for key, (modelled, instead) in not_modelled.items():
        if (value := given.get(key, modelled[0])) not in modelled:
            yield f"{key} = {brief(value)} is not modelled: {instead}."


def unknown_keys(framework: str, lacking: Sequence[str]) -> str:
    """A sentence on keys that the framework's release does not have, with the nearest that it has."""
    names = frozen(framework)["keys"]
    shown = ((without_long_words(visible(key)), nearest(key, names)) for key in lacking[:8])
    said = [f"{key} (it has {near})" if near else key for key, near in shown]
    return f"{release(framework)} has no {listed(said)}: left out."


def flat(table: Mapping[str, Any], before: str = "") -> Configuration:
    """The fields of nested tables."""
    found: Configuration = {}
    for name, value in table.items():
        inner = isinstance(value, dict)
        found |= flat(value, f"{before}{name}.") if inner else {f"{before}{name}": value}
    return found


def read_value(text: str) -> Any:
    """The number, truth, list or word that is written."""
    if re.fullmatch(r"-?\d{1,15}", text):
        return int(text)
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    return text.split(",") if "," in text else text
