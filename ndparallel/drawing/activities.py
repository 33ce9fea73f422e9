"""What an event is in a picture: an activity of the palette, and a name in words.

Glossary
    phase   the first word of an operation's name, as forward; the second is its unit, as layers.3
"""

from functools import lru_cache
from typing import Any

from gpu import COLLECTIVE, COMPUTE, WAIT, Event, say
from ndparallel.drawing import palette


def activity(event: Event) -> str:
    """Return an event's activity, one of the palette's."""
    return activity_of(event.stream, event.kind, event.what)


def activity_of(stream: str, kind: str, what: Any) -> str:
    if kind == COMPUTE:
        return phase_of(str(what))
    exposed = kind == WAIT or stream == COMPUTE
    return palette.WAITING if exposed and kind != COLLECTIVE else palette.COMMUNICATION


@lru_cache(maxsize=4096)
def phase_of(operation: str) -> str:
    phase = operation.partition(" ")[0]
    return phase if phase in palette.PHASES else palette.OTHER


@lru_cache(maxsize=4096)
def phase_and_unit(operation: str) -> tuple[str, str]:
    """Return ("forward", "layers.3") of an operation of layer 3, of its experts too."""
    phase, _, rest = operation.partition(" ")
    return phase, ".".join(rest.partition(" ")[0].split(".")[:2])


def label(what: Any) -> str:
    """Name an event in words."""
    match what:
        case str():
            return what
        case (str(group), int(number), str(operation), str(algorithm)):
            return f"{algorithm} {operation.replace('_', '-')} {number} of group {group!r}"
        case ((str(group), int(number)), (str(phase), int(hop))):
            return f"{phase} hop {hop} of collective {number} of group {group!r}"
        case (str(what_is_passed_on), int(hop)):
            return f"{what_is_passed_on}, hop {hop}"
    return say(what)
