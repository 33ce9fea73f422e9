"""Seconds added up along the steps of all ranks, in an order in which they can run.

Idea   A step starts when its rank is free, and what it waits for has come; it ends its seconds later.
Cost   A tenth of a microsecond a step, thrice that where messages may wait for a line.

Glossary: see `ndparallel.pipeline.replay`.
"""

from typing import NamedTuple

from ndparallel.pipeline.work import Reduction

# its rank, the number of its kind, its sender; line and link of the message that comes, and of the one that
# goes: a plain tuple, as the loops below read thousands
Step = tuple[int, int, int, int, int, int, int]
KIND, SENDER, LINE, OUT_LINE = 1, 2, 3, 5  # places in a step


class Waits(NamedTuple):
    """By step the number of its kind, its sender, and the step before it on its rank, its sender where it is
    the first: rows of numbers, as a long list of tuples does not stay in a processor's cache."""

    kinds: list[int]
    senders: list[int]
    before: list[int]


class Reduced(NamedTuple):
    """A kind of step that waits until its stage's last gradients are reduced, and makes new ones; None where
    it makes none."""

    stage: int
    gradients: Reduction | None


class Durations(NamedTuple):
    """Seconds of every kind of step; of a message's first byte, and of the rest of it, by link; whether no
    step ends later because a message finds its line taken; and what each kind of step reduces, nothing where
    gradients stay until the step's end."""

    by_kind: list[float]
    latency: list[float]
    wire: list[float]
    lines_free: bool
    reductions: list[Reduced | None]


class ReplayClocks(NamedTuple):
    """The state of a run: the time of every rank, when lines are free, of every step so far its end, and its
    message's first byte; when each rank's reductions end, and each stage's."""

    now: list[float]
    lines: list[float]
    ends: list[float]
    first_byte: list[float]
    reducing: list[float]
    reduced: list[float]


def run(steps: list[Step], waits: Waits, durations: Durations, clocks: ReplayClocks) -> None:
    """Go on from `clocks`."""
    if durations.reductions:
        run_beside_reductions(steps, durations, clocks)
    elif not durations.lines_free:
        run_on_lines(steps, durations, clocks)
    else:
        run_freely(waits, durations, clocks)


def run_freely(waits: Waits, durations: Durations, clocks: ReplayClocks) -> None:
    """Time the steps where none ends later because a message finds its line taken."""
    by_kind, travels, ends = durations.by_kind, durations.latency[0] + durations.wire[0], clocks.ends
    ends[0] = -travels  # nobody sends what the first step waits for: it is there at 0
    for kind, sender, before in zip(*waits):
        start, there = ends[before], ends[sender] + travels
        ends.append((there if there > start else start) + by_kind[kind])


def run_on_lines(steps: list[Step], durations: Durations, clocks: ReplayClocks) -> None:
    """Time the steps where a message may find its line taken, and then waits for it."""
    by_kind, latency, wire, *_ = durations
    now, lines, ends, first_byte, *_ = clocks
    for rank, kind, sender, line, link, out_line, out_link in steps:
        start, there, free = now[rank], first_byte[sender], lines[line]
        if free > there:
            there = free
        lines[line] = there = there + wire[link]
        if there > start:
            start = there
        now[rank] = leaves = start + by_kind[kind]
        ends.append(leaves)
        free = lines[out_line]
        if free > leaves:
            leaves = free
        lines[out_line] = leaves + wire[out_link]
        first_byte.append(leaves + latency[out_link])


def run_beside_reductions(steps: list[Step], durations: Durations, clocks: ReplayClocks) -> None:
    """Time the steps where every microbatch's gradients are reduced (ZeRO-2): a stage's backward pass waits
    until its last gradients are, a rank's line serves one stage after another, and compute beside it is
    slower."""
    (by_kind, latency, wire, _, reductions) = durations
    (now, lines, ends, first_byte, reducing, reduced) = clocks
    slowdown = max(each.gradients.slowdown for each in reductions if each and each.gradients)
    for rank, kind, sender, line, link, out_line, out_link in steps:
        there = lines[line] = max(first_byte[sender], lines[line]) + wire[link]
        start, seconds, backward = max(now[rank], there), by_kind[kind], reductions[kind]
        if backward:
            start = max(start, reduced[backward.stage])
        beside = max(0.0, reducing[rank] - start) / (1 + slowdown)
        now[rank] = leaves = start + seconds + slowdown * min(beside, seconds)
        ends.append(leaves)
        if backward and backward.gradients:
            line_free = reducing[rank] + backward.gradients.line
            reducing[rank] = reduced[backward.stage] = max(leaves + backward.gradients.tail, line_free)
        leaves = max(leaves, lines[out_line])
        lines[out_line] = leaves + wire[out_link]
        first_byte.append(leaves + latency[out_link])
