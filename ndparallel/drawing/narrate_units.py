"""One rank's run in at most a screen of plain sentences: forward, backward and optimizer, unit by unit.

Idea   A line stands for all kernels of one unit in one phase and microbatch, with what the GPU waits for in
       it and what it sends beside it. Where these are too many lines, it stands for all units of a phase.
Limit  A message from stage to stage is told where its content was computed, others where they begin.
       `ndparallel.drawing.narrate` tells every kernel and message.

Glossary
    unit       the embedding, one layer, or the head
    section    what one line tells: operations of one phase and microbatch, of one unit or of several
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpu import COLLECTIVE, RECEIVE, SEND, WAIT, Event, si
from ndparallel.base.events import RankRun, of_kinds
from ndparallel.base.words import WIDTH, count, listed, paragraph, ranges
from ndparallel.drawing import palette
from ndparallel.drawing.activities import phase_and_unit
from ndparallel.drawing.lanes import timeline
from ndparallel.drawing.memory import memory_points
from ndparallel.drawing.narrate import lines
from ndparallel.drawing.spans import Span

MOST_LINES = 60
CONTENTS = {"F": "activations", "B": "gradients"}  # of a message from stage to stage
LEAST_SHARE = 0.0005  # of a step: a bubble that is shorter is not told


@dataclass
class Section:
    """Neighbouring spans of the compute stream that one line tells."""

    phase: str
    microbatch: int | None
    unit: str  # where every unit has a section of its own
    start: float
    units: list[str] = field(default_factory=list)
    seconds: float = 0.0
    end: float = 0.0
    waited: dict[str, float] = field(default_factory=dict)  # seconds by stream

    def begins_with(self, phase: str, microbatch: int | None, unit: str) -> bool:
        return (self.phase, self.microbatch, self.unit) == (phase, microbatch, unit)

    def add(self, span: Span, unit: str, stream: str) -> None:
        """Add an operation of this unit, or a wait for this stream."""
        if span.activity == palette.WAITING:
            self.waited[stream] = self.waited.get(stream, 0.0) + span.seconds
        elif unit not in self.units:
            self.units.append(unit)
        self.seconds, self.end = self.seconds + span.seconds, span.end

    def words(self) -> str:
        """Write "forward of microbatch 2, layers 0-3: 68.0 ms"."""
        if self.phase == palette.WAITING:
            return f"waits {si(self.seconds, 's')} for {listed(list(self.waited))}"
        microbatch = f" of microbatch {self.microbatch}" if self.microbatch is not None else ""
        units = f", {listed(unit_words(self.units))}" if self.phase in palette.PER_MICROBATCH else ""
        phase = palette.HALVES.get(self.phase, self.phase)
        return f"{phase}{microbatch}{units}: {si(self.seconds, 's')}"


def narrate_units(run: RankRun, step_seconds: float, width: int = WIDTH) -> list[str]:
    """Narrate the run of one rank in at most MOST_LINES lines, in as much detail as they allow."""
    head = paragraph(f"GPU {run.rank}, unit by unit (--kernels tells every operation and message):", width)
    for by_unit in (True, False):
        told = [text for telling in tellings(run, step_seconds, by_unit) for text in lines(*telling, width)]
        if len(told) < MOST_LINES - 1:
            break
    else:
        first, last = MOST_LINES * 2 // 3, MOST_LINES // 3 - 3
        told = [*told[:first], f"{'...':>8}  {len(told) - first - last} lines like these", *told[-last:]]
    return [*head.split("\n"), *told, *lines(step_seconds, "the step ends.", width)]


def tellings(run: RankRun, step_seconds: float, by_unit: bool) -> Iterator[tuple[float, str]]:
    """Yield (seconds, words) of every section, and of every bubble before, between and after them."""
    least = LEAST_SHARE * step_seconds
    spans = timeline("", [run]).lanes[0].spans
    found = [
        section
        for section in sections(spans, waits_of(run), by_unit, least)
        if section.phase != palette.WAITING or section.seconds > least
    ]
    ends = [*(section.start for section in found[1:]), step_seconds]
    now = 0.0
    for section, end in zip(found, ends):
        if section.start - now > least:
            yield now, bubble_words(run, now, section.start)
        sent = [*handed_on_words(run, section, end), *sent_words(run, section.start, end)]
        beside = [*waiting_words(section), *sent, *held_words(run, end)]
        yield section.start, f"{'; '.join([section.words(), *beside])}."
        now = section.end
    if step_seconds - now > least:
        yield now, bubble_words(run, now, step_seconds)


def bubble_words(run: RankRun, start: float, end: float) -> str:
    """Say how long there is nothing to do, and which message ends it, if one does."""
    come = [
        event
        for event in of_kinds(run.events, RECEIVE)
        if start < event.start <= end and is_handed_on(event.what)
    ]
    until = f", until GPU {come[-1].peer} sends {content(come[-1].what)}" if come else ""
    return f"has nothing to do for {si(end - start, 's')}: bubble{until}."


def is_handed_on(what: Any) -> bool:
    """Whether a message goes from one stage to another: it is no part of a collective or of a ring."""
    return isinstance(what, str) or what[0] in CONTENTS


def content(what: Any, known: int | None = None) -> str:
    """Write "gradients of microbatch 2", or "gradients" alone where the microbatch is `known`."""
    if isinstance(what, str):
        return what
    operation, _, microbatch = what
    return CONTENTS[operation] + f" of microbatch {microbatch}" * (microbatch != known)


def waits_of(run: RankRun) -> dict[float, str]:
    """Return the stream of every wait by the time at which it begins."""
    return {event.start: str(event.peer).split()[0] for event in of_kinds(run.events, WAIT)}


def sections(spans: Sequence[Span], waits: dict[float, str], by_unit: bool, least: float) -> list[Section]:
    """Return the sections of a compute lane. A wait belongs to the section before it; one after a gap of more
    than `least` seconds is a section of its own."""
    found: list[Section] = []
    for span in spans:
        phase, unit = told_as(span)
        begun = phase, span.microbatch, unit if by_unit else ""
        belongs = found and (phase == palette.WAITING or found[-1].begins_with(*begun))
        if not belongs or span.start - found[-1].end > least:
            found.append(Section(*begun, span.start))
        found[-1].add(span, unit, waits.get(span.start, "a message"))
    return found


def told_as(span: Span) -> tuple[str, str]:
    """Return phase and unit; a wait is a phase, and so are the halves of a backward pass."""
    if span.activity == palette.WAITING:
        return palette.WAITING, ""
    phase, unit = phase_and_unit(span.what)
    return span.activity if span.activity in palette.HALVES else phase, unit


def waiting_words(section: Section) -> Iterator[str]:
    for stream, seconds in section.waited.items() if section.phase != palette.WAITING else ():
        yield f"{si(seconds, 's')} of it waiting for {stream}"


def handed_on_words(run: RankRun, section: Section, end: float) -> Iterator[str]:
    """Say what a section, after which the next begins at `end`, hands on to other stages: it leaves when the
    section is over."""
    for event in of_kinds(run.events, SEND):
        if section.start < event.start <= end and is_handed_on(event.what):
            yield f"sends {content(event.what, section.microbatch)} to GPU {event.peer}"


def sent_words(run: RankRun, start: float, end: float) -> Iterator[str]:
    """Say what else begins to be sent from `start` to `end`: bytes and collectives of every group."""
    begun = [
        event
        for event in of_kinds(run.events, SEND, COLLECTIVE)
        if start <= event.start < end and (event.kind == COLLECTIVE or not is_handed_on(event.what))
    ]
    for stream in dict.fromkeys(map(stream_of, begun)):
        here = [event for event in begun if stream_of(event) == stream]
        size = si(sum(event.bytes for event in of_kinds(here, SEND)), "B")
        yield f"sends {size} on {stream}{calls_words(here)}"


def stream_of(event: Event) -> str:
    return event.stream.split()[0]


def calls_words(events: Sequence[Event]) -> str:
    """Count the collectives of some events: " in 2 all-gathers"; nothing where there are none."""
    calls = Counter(event.what[2].replace("_", "-") for event in of_kinds(events, COLLECTIVE))
    return f" in {listed([count(number, name) for name, number in calls.items()])}" if calls else ""


def held_words(run: RankRun, end: float) -> Iterator[str]:
    """Say how much memory is held at the end of a section."""
    held = [sum(kinds.values()) for seconds, kinds in memory_points(run.events) if seconds <= end]
    if held:
        yield f"holds {si(held[-1], 'B')}"


def unit_words(units: Sequence[str]) -> list[str]:
    """Write ["embedding", "layers 0-3"]."""
    layers = sorted(int(unit.partition(".")[2]) for unit in units if unit.startswith("layers."))
    others = [unit for unit in units if not unit.startswith("layers.")]
    named = [f"layer{'s' * (len(layers) > 1)} {ranges(layers)}"] if layers else []
    first, last = ([unit for unit in others if (unit == "embedding") == begins] for begins in (True, False))
    return [*first, *named, *last]
