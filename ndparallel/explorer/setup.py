"""What a reader has set on the page: checked, turned into the words of a command, and what else could be set.

Idea   A set-up is a command line. What the page shows is what this command prints, and whether a slider may
       stop somewhere is asked of the command too: where it refuses, its sentence is the reason, with names of
       the page in place of options.
"""

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ndparallel.base.errors import UserError

MOST_WORD = 100  # characters of a value
OPTION = re.compile(r" \(--[^()]*\)|--([a-z][a-z0-9-]*)")
Refusal = Callable[[Mapping[str, Any]], str]  # why a set-up cannot be; nothing where it can


@dataclass(frozen=True)
class Control:
    """One thing to set: its name on the page, its option, the values it may stop at, what it is in a few
    words, and the heading it stands under. The page begins with `first`; `usual` needs no option. Whole
    numbers from 1 to `most` may be set beside the stops."""

    name: str
    option: str
    stops: Sequence[Any]
    first: Any
    what: str
    group: str
    usual: Any = None
    most: int = 0

    @property
    def kind(self) -> str:
        """How the page shows it: a list of words, a field for a number, or stops side by side."""
        return "words" if self.is_words else "stops" if self.stops else "number"

    @property
    def is_words(self) -> bool:
        """Whether its stops are a list of words, and not on a slider."""
        return isinstance(self.first, str)

    def words(self, value: Any) -> list[str]:
        """Return the option and its value; without an option the value is one."""
        return [] if value == self.usual else [*([self.option] if self.option else []), str(value)]

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "what": self.what,
            "group": self.group,
            "kind": self.kind,
            "most": self.most,
        }


def checked(controls: Sequence[Control], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a value for every control: what was given, or what the page begins with. Raises UserError for a
    name that no control has, or a value at which it has no stop."""
    names = {control.name for control in controls}
    for name in given:
        if name not in names:
            raise UserError(f"there is nothing to set that is called {str(name)[:MOST_WORD]!r}.")
    return {
        control.name: checked_value(control, given.get(control.name, control.first)) for control in controls
    }


def checked_value(control: Control, value: Any) -> Any:
    for each in control.stops:
        if value == each and type(value) is type(each):
            return each
    if type(value) is int and 1 <= value <= control.most:
        return value
    if control.most:
        raise UserError(
            f"{control.name} cannot be {str(value)[:MOST_WORD]!r}: it is a whole number from 1 to "
            f"{control.most:,}."
        )
    stops = ", ".join(map(str, control.stops))
    raise UserError(f"{control.name} cannot be {str(value)[:MOST_WORD]!r}: it is one of {stops}.")


def command(program: str, controls: Sequence[Control], setup: Mapping[str, Any]) -> str:
    """Return the command line that prints the same numbers."""
    return shlex.join([*program.split(), *words(controls, setup)])


def words(controls: Sequence[Control], setup: Mapping[str, Any]) -> list[str]:
    return [word for control in controls for word in control.words(setup[control.name])]


def controls_and_reason(
    controls: Sequence[Control], setup: Mapping[str, Any], refusal: Refusal
) -> dict[str, Any]:
    """Return controls with their stops; and of a set-up that cannot be, why, and what else could be set."""
    reason = in_page_words(refusal(setup))
    known: dict[str, Any] = {"controls": list(stops(controls, setup, refusal, reason))}
    if reason:
        known |= {"reason": reason, "remedies": list(remedies(controls, setup, refusal))}
    return known


def stops(
    controls: Sequence[Control], setup: Mapping[str, Any], refusal: Refusal, reason: str = ""
) -> Iterator[dict[str, Any]]:
    """Yield every control with its stops, and why it cannot stand there while all others stay; where all
    stand now, that is `reason`."""
    for control in controls:
        here = setup[control.name]
        found = [
            {
                "value": value,
                "reason": reason if value == here else in_page_words(refusal({**setup, control.name: value})),
            }
            for value in with_value(control, here)
        ]
        yield {**control.as_dict(), "value": here, "stops": found}


def in_page_words(sentence: str) -> str:
    """Write "choose --gpus-per-node 4 (--gpus 8)" as "choose gpus per node 4"."""
    return OPTION.sub(lambda found: (found[1] or "").replace("-", " "), sentence)


def remedies(
    controls: Sequence[Control], setup: Mapping[str, Any], refusal: Refusal
) -> Iterator[dict[str, Any]]:
    """Yield what else could be moved, one control alone, so that a set-up can be: to the nearest stop."""
    for control in controls:
        if control.kind != "stops":
            continue
        here = control.stops.index(setup[control.name]) if setup[control.name] in control.stops else 0
        nearest = sorted(control.stops, key=lambda stop: abs(control.stops.index(stop) - here))
        legal = (stop for stop in nearest if not refusal({**setup, control.name: stop}))
        if (stop := next(legal, None)) is not None:
            yield {"name": control.name, "value": stop}


def with_value(control: Control, value: Any) -> list[Any]:
    """Return a control's stops, and in its place among them a number that was set beside them."""
    if not control.stops or value in control.stops:
        return list(control.stops)
    return sorted([*control.stops, value])
