"""Seconds added up along the steps of all ranks, in an order in which they can run.

Idea   A full pipeline does the same again and again, and so its order repeats itself: stretches of steps,
       each step with its sender as many steps before it as in the stretch before. Seconds are sums and
       maxima of sums; so once a stretch has left every rank, and every message that the next one waits for,
       later by the same seconds than it found them, each stretch behind it does too, and is passed over.
Cost   A tenth of a microsecond a step that is not passed over, thrice that where messages may wait for a
       line.
Limit  Stretches are passed over only where no message finds its line taken.

Glossary: see `ndparallel.pipeline.replay`; and
    stretch    steps that come several times in a row
    pending    of messages that the next stretch waits for: how many steps before its beginning they were sent
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import groupby
from math import isclose, nan
from typing import NamedTuple

from ndparallel.pipeline.work import Reduction

# its rank, its place in the list of all prices, its sender, its arrival, its departure
Step = tuple[int, int, int, int, int, int, int]
# a rank, and the price and the sender of each step that it does running
Turn = tuple[int, list[tuple[int, int]]]
SAME = 1e-12  # the share by which rounding may part moments that are equal


class Reduced(NamedTuple):
    """A kind of step that waits until its stage's last gradients are reduced, and makes new ones; None where
    it makes none."""

    stage: int
    gradients: Reduction | None


class Tariff(NamedTuple):
    """Seconds of every kind of step; of a message's first byte, and of the rest of it, by link; whether all
    links are alike; and what each kind of step reduces, nothing where gradients stay until the step's end."""

    prices: list[float]
    latency: list[float]
    wire: list[float]
    alike: bool
    reductions: list[Reduced | None]

    @property
    def finds_lines_free(self) -> bool:
        """Whether no message finds its line taken, as no step is shorter than a message's time on it."""
        return self.alike and min(self.prices) >= self.wire[0]


class ReplayClocks(NamedTuple):
    """The state of a run: the time of every rank, when lines are free, of every step so far its end, and its
    message's first byte; when each rank's reductions end, and each stage's."""

    now: list[float]
    lines: list[float]
    ends: list[float]
    first_byte: list[float]
    reducing: list[float]
    reduced: list[float]


class Stretch(NamedTuple):
    """Steps that come again and again from `begin` to `end`. Of those that are passed over the ends of the
    last `asked` stretches are asked for later."""

    begin: int
    length: int
    end: int
    pending: Sequence[int]
    asked: int

    def state(self, clocks: ReplayClocks) -> list[float]:
        """All moments that the next stretch depends on."""
        return [*clocks.now, *(clocks.ends[-1 - back] for back in self.pending)]

    def spans(self, begin: int, end: int) -> bool:
        """Whether whole stretches fill the steps between two places."""
        return self.begin <= begin and end <= self.end and (end - begin) % self.length == 0

    def times(self, until: int) -> int:
        """How often they come before this place, and before their end."""
        return (min(until, self.end) - self.begin) // self.length

    def pass_over(self, times: int, seconds: float, clocks: ReplayClocks) -> None:
        """Let the last stretch come so many times more, each so many seconds later than the one before."""
        ends, asked = clocks.ends[-self.length :], min(times, self.asked)
        clocks.ends.extend([nan] * (self.length * (times - asked)))
        for later in range(times - asked + 1, times + 1):
            clocks.ends.extend([end + later * seconds for end in ends])
        clocks.now[:] = [now + times * seconds for now in clocks.now]


@dataclass(frozen=True, eq=False)
class StepOrder:
    """All steps in an order in which they can run; `places` are those whose ends a run is asked for."""

    steps: list[Step]
    places: Sequence[int] = ()

    def relative(self, done: int = 0) -> list[tuple[int, ...]]:
        """The steps behind the first ones, each with its sender as so many steps before it."""
        return [
            (rank, place, number - sender if sender else 0, *lines)
            for number, (rank, place, sender, *lines) in enumerate(self.steps[done:], done + 1)
        ]

    @cached_property
    def stretch(self) -> Stretch | None:
        """The shortest steps that come again and again around the middle, on all ranks; behind the first
        time, in which ranks may still find their stride."""
        steps, ranks = self.relative(), {rank for rank, *_ in self.steps}
        middle = len(steps) // 2
        for length in range(len(ranks), middle // 2):
            if steps[middle] != steps[middle - length]:
                continue
            begin = end = middle
            while begin > length and steps[begin - 1] == steps[begin - 1 - length]:
                begin -= 1
            while end < len(steps) and steps[end] == steps[end - length]:
                end += 1
            if end - begin >= 3 * length and {rank for rank, *_ in steps[begin : begin + length]} == ranks:
                return self.stretch_of(begin, length, end)
        return None

    def stretch_of(self, begin: int, length: int, end: int) -> Stretch:
        """The stretch, with what it waits for, and what is asked of it later."""
        pending = {begin - sender for _, _, sender, *_ in self.steps[begin : begin + length] if sender}
        pending = {back for back in pending if back >= 0}
        asked = [sender for _, _, sender, *_ in self.steps[end:] if sender]
        asked += [place for place in self.places if place > begin + length]
        farthest = max([*pending, *(end - place for place in asked)])
        return Stretch(begin, length, end, sorted(pending), 1 + -(-farthest // length))

    @lru_cache(maxsize=128)  # noqa: B019
    def turns(self, done: int, until: int) -> list[Turn]:
        """The steps by turns, in each of which one rank goes on."""
        by_rank = groupby(self.steps[done:until], key=lambda step: step[0])
        return [(rank, [(price, sender) for _, price, sender, *_ in steps]) for rank, steps in by_rank]


def run(order: StepOrder, done: int, until: int, tariff: Tariff, clocks: ReplayClocks) -> float | None:
    """Go on from `clocks`; return the seconds of a step, in the mean, of stretches that were passed over."""
    if tariff.reductions:
        run_beside_reductions(order.steps[done:until], tariff, clocks)
    elif not tariff.finds_lines_free:
        run_on_lines(order.steps[done:until], tariff, clocks)
    else:
        return run_freely(order, done, until, tariff, clocks)
    return None


def run_freely(order: StepOrder, done: int, until: int, tariff: Tariff, clocks: ReplayClocks) -> float | None:
    """Replay where no message finds its line taken, and pass over what repeats."""
    stretch = order.stretch
    if not stretch or done > stretch.begin or stretch.times(until) < 2:
        run_turns(order.turns(done, until), tariff, clocks)
        return None
    begin, length, end = stretch.begin, stretch.length, stretch.begin + stretch.length
    run_turns(order.turns(done, begin), tariff, clocks)
    found = stretch.state(clocks)
    run_turns(order.turns(begin, end), tariff, clocks)
    if seconds := shift(found, stretch.state(clocks)):
        times = stretch.times(until) - 1
        stretch.pass_over(times, seconds, clocks)
        end += times * length
    run_turns(order.turns(end, until), tariff, clocks)
    return seconds and seconds / length


def shift(before: list[float], after: list[float]) -> float | None:
    """Seconds by which all moments are later; None where they differ."""
    seconds = after[0] - before[0]
    same = all(isclose(later, moment + seconds, rel_tol=SAME) for moment, later in zip(before, after))
    return seconds if same else None


def run_turns(turns: list[Turn], tariff: Tariff, clocks: ReplayClocks) -> None:
    prices, travels = tariff.prices, tariff.latency[0] + tariff.wire[0]
    now, ends, add = clocks.now, clocks.ends, clocks.ends.append
    for rank, steps in turns:
        end = now[rank]
        for place, sender in steps:
            there = ends[sender] + travels
            end = (there if there > end else end) + prices[place]
            add(end)
        now[rank] = end


def run_on_lines(steps: list[Step], tariff: Tariff, clocks: ReplayClocks) -> None:
    (prices, latency, wire, *_), (now, lines, ends, first_byte, *_) = tariff, clocks
    for rank, place, sender, line, link, out_line, out_link in steps:
        start, there, free = now[rank], first_byte[sender], lines[line]
        if free > there:
            there = free
        lines[line] = there = there + wire[link]
        if there > start:
            start = there
        now[rank] = leaves = start + prices[place]
        ends.append(leaves)
        free = lines[out_line]
        if free > leaves:
            leaves = free
        lines[out_line] = leaves + wire[out_link]
        first_byte.append(leaves + latency[out_link])


def run_beside_reductions(steps: list[Step], tariff: Tariff, clocks: ReplayClocks) -> None:
    """Where every microbatch's gradients are reduced (ZeRO-2): a stage's backward pass waits until its last
    gradients are, a rank's line serves one stage after another, and compute beside it is slower."""
    (prices, latency, wire, _, reductions), (now, lines, ends, first_byte, reducing, reduced) = tariff, clocks
    slowdown = max(each.gradients.slowdown for each in reductions if each and each.gradients)
    for rank, place, sender, line, link, out_line, out_link in steps:
        there = lines[line] = max(first_byte[sender], lines[line]) + wire[link]
        start, seconds, backward = max(now[rank], there), prices[place], reductions[place]
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
