"""One rank's run in plain sentences, in the order of time.

Idea   What a timeline shows at a glance, a reader can also follow step by step: every event is one sentence.
Limit  Messages inside a collective are told under it, indented; on streams other than compute the stream is
       named.

Glossary
    on dp    on the stream of that group, beside what the GPU computes
    bubble   time in which the compute stream is idle, and what it needs has not been sent yet, or it is done
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from gpu import COLLECTIVE, COMPUTE, MEMORY, MEMORY_KINDS, RECEIVE, SEND, Event, si
from ndparallel.base.events import RankRun
from ndparallel.base.words import WIDTH, hanging, paragraph
from ndparallel.drawing.activities import label

WHAT_IS_DONE = re.compile(" (send|receive) .*")  # in the name of a stream; the sentence says it anyway
FEW = 4  # GPUs that are named one by one
Telling = tuple[float, str]  # when, and what


def narrate(run: RankRun, step_seconds: float, width: int = WIDTH) -> Iterator[str]:
    """Narrate the run of one rank up to the end of the step, each sentence on lines of its own."""
    yield from paragraph(f"GPU {run.rank}, in the order of time{beside_compute(run)}:", width).split("\n")
    # a bubble is known only when it ends
    told = sorted(tellings(run, step_seconds), key=lambda telling: telling[0])
    for telling in (*told, (step_seconds, "the step ends.")):
        yield from lines(*telling, width)


def beside_compute(run: RankRun) -> str:
    """Say what "on" means, with the first stream that is not compute; nothing where there is none."""
    streams = (event.stream for event in map(Event._make, run.events) if event.stream != COMPUTE)
    first = WHAT_IS_DONE.sub("", next(filter(None, streams), ""))
    return f" ('on {first}': on the stream of {first}, beside compute)" if first else ""


def tellings(run: RankRun, step_seconds: float) -> Iterator[Telling]:
    narrator = Narrator()
    for (is_memory, seconds), events in groupby(
        in_order(run.events), key=lambda event: (event.kind == MEMORY, event.start)
    ):
        if is_memory:
            yield seconds, narrator.memory(list(events))
        else:
            yield from (telling for event in events for telling in narrator.tell(event))
    yield from narrator.idle_until(step_seconds)


def lines(seconds: float, words: str, width: int) -> list[str]:
    return hanging(f"{si(seconds, 's'):>8}  ", words, width).split("\n")


def in_order(events: Iterable[tuple]) -> list[Event]:
    """Sort events by their start. Events that start together stay in program order, but a collective comes
    before its messages. Memory events follow the compute stream."""
    places: list[tuple[float, float, Event]] = []
    first_message: dict[str, float] = {}
    now = 0.0
    for number, event in enumerate(map(Event._make, events)):
        place = float(number)
        if event.kind == COLLECTIVE:
            place = first_message.pop(event.stream, number) - 0.5
        elif event.kind in (SEND, RECEIVE):
            first_message.setdefault(event.stream, number)
        if event.kind == MEMORY:
            event = event._replace(start=now)
        elif event.stream == COMPUTE:
            now = max(now, event.end)
        places.append((event.start, place, event))
    return [event for _, _, event in sorted(places, key=lambda place: place[:2])]


@dataclass
class Narrator:
    """The state that the narration keeps from one sentence to the next."""

    busy_until: float = 0.0
    held: dict[str, float] = field(default_factory=lambda: dict.fromkeys(MEMORY_KINDS, 0.0))
    collective_until: dict[str, float] = field(default_factory=dict)

    def tell(self, event: Event) -> Iterator[Telling]:
        if event.stream == COMPUTE:
            yield from self.idle_until(event.start)
            self.busy_until = max(self.busy_until, event.end)
        inside = event.kind in (SEND, RECEIVE) and event.end <= self.collective_until.get(event.stream, 0.0)
        stream = "" if event.stream == COMPUTE else f"on {WHAT_IS_DONE.sub('', event.stream)} "
        yield event.start, f"{'    ' * inside}{stream}{deed(event)}."
        if event.kind == COLLECTIVE:
            self.collective_until[event.stream] = event.end

    def idle_until(self, seconds: float) -> Iterator[Telling]:
        if seconds > self.busy_until:
            yield self.busy_until, f"has nothing to do for {si(seconds - self.busy_until, 's')}: bubble."

    def memory(self, events: list[Event]) -> str:
        """Say all changes of memory at one instant in one sentence."""
        before, self.held = self.held, self.held | {event.what: event.bytes for event in events}
        changes = {kind: size - before[kind] for kind, size in self.held.items()}
        grown = sizes("allocates", {kind: change for kind, change in changes.items() if change > 0})
        shrunk = sizes("frees", {kind: -change for kind, change in changes.items() if change < 0})
        words = " and ".join(filter(None, (grown, shrunk))) or "allocates and frees the same"
        return f"{words}; holds {si(sum(self.held.values()), 'B')}."


def sizes(verb: str, by_kind: dict[str, float]) -> str:
    words = ", ".join(f"{si(size, 'B')} of {kind}" for kind, size in by_kind.items())
    return f"{verb} {words}" if words else ""


def deed(event: Event) -> str:
    """Say in words what a GPU does in an event."""
    name = label(event.what).removesuffix(f" of group {event.stream!r}")  # which is said already
    lasts, size = si(event.end - event.start, "s"), si(event.bytes, "B")
    match event.kind:
        case "compute":
            return f"computes {name} for {lasts}" + (f" ({si(event.flops, 'FLOP')})" if event.flops else "")
        case "send":
            return f"sends {size} to GPU {event.peer}, in {lasts}: {name}"
        case "receive" if event.end > event.start:
            return f"receives {size} from GPU {event.peer}, after {lasts}: {name}"
        case "receive":
            return f"has {size} from GPU {event.peer} before it needs them: {name}"
        case "collective":
            return f"begins {name}: {size} with {gpus(event.peer)}, for {lasts}"
    return f"waits {lasts} for {name}"


def gpus(ranks: Sequence[int]) -> str:
    """Write "GPUs 0, 2, 4, 6"; of neighbours and of many GPUs only the first and the last."""
    first, last = ranks[0], ranks[-1]
    if list(ranks) == list(range(first, last + 1)) and len(ranks) > 2:
        return f"GPUs {first} to {last}"
    return (
        f"GPUs {', '.join(map(str, ranks))}"
        if len(ranks) <= FEW
        else f"{len(ranks)} GPUs from {first} to {last}"
    )
