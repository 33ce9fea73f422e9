"""Shared ports by brute force: time goes on in small steps, and in each every message moves a little. It has
nothing in common with ndparallel/contention/ but the journals.

Rates are found by raising those of all messages together, by one quantum after another, until a port or a
link has no more for all of its own; these stay, and the others rise on.
"""

from collections import defaultdict
from functools import lru_cache

from ndparallel.engines.journal import Computed, Received, Sent, WaitedForMessage, WaitedForStream

STEP = 1 / 128
QUANTA = 60  # of the fastest port


class Stepped:
    def __init__(self, journals, hardware, isolated=False):
        self.journals, self.hardware, self.now = journals, hardware, 0.0
        self.streams = {
            (rank, stream): [number for number, action in enumerate(journal) if action.stream == stream]
            for rank, journal in enumerate(journals)
            for stream in {action.stream for action in journal}
        }
        self.done = set()  # (rank, number of an action)
        self.busy = {}  # until when an action computes
        self.moving = {}  # (rank, number) of a sending action: bytes still to go
        self.sent = defaultdict(list)  # (source, target, what): when messages are there, the oldest first
        self.arrivals = {}  # (rank, number) of a receiving action: when its message is there
        self.ends = [0.0] * len(journals)
        self.quantum = hardware.inside.bandwidth_bytes_per_second / QUANTA
        self.rates = lru_cache(None)(self.find_rates)

    def run(self, most=100.0):
        while any(self.streams.values()):
            while any(self.go_on(*line) for line in self.streams):
                pass
            self.move()
            self.now += STEP
            assert self.now < most
        return self.ends

    def go_on(self, rank, stream):
        """Do the stream's next action if that can be done now."""
        numbers = self.streams[rank, stream]
        if not numbers or not self.is_done(rank, numbers[0]):
            return False
        self.done.add((rank, numbers.pop(0)))
        self.ends[rank] = max(self.ends[rank], self.now)
        return True

    def is_done(self, rank, number):
        place = rank, number
        match self.journals[rank][number]:
            case Computed(_, seconds):
                return self.now >= self.busy.setdefault(place, self.now + seconds) - STEP / 2
            case Sent(_, target, what, nbytes):
                if self.moving.setdefault(place, nbytes) > 1e-9:
                    return False
                latency = self.hardware.link(rank, target).latency_seconds
                self.sent[rank, target, what].append(self.now + latency)
                return True
            case Received(_, source, what):
                return self.is_there(place, source, what)
            case WaitedForMessage(_, entry):
                return (rank, entry) in self.done or self.is_there(
                    (rank, entry), *self.journals[rank][entry][1:]
                )
            case WaitedForStream(_, entry):
                return (rank, entry) in self.done

    def is_there(self, place, source, what):
        if place not in self.arrivals and self.sent[source, place[0], what]:
            self.arrivals[place] = self.sent[source, place[0], what].pop(0)
        return place in self.arrivals and self.now >= self.arrivals[place] - STEP / 2

    def move(self):
        moving = tuple(place for place, left in self.moving.items() if left > 0)
        for place, rate in zip(moving, self.rates(moving)):
            self.moving[place] -= rate * STEP

    def find_rates(self, places):
        pairs = [(rank, self.journals[rank][number].target) for rank, number in places]
        used = [self.limits(*pair) for pair in pairs]
        room: dict = {}
        for limits in used:
            room |= {limit: int(bandwidth / self.quantum) for limit, bandwidth in limits.items()}
        quanta, rising = [0] * len(pairs), set(range(len(pairs)))
        while rising:
            full = {
                limit for limit in room if room[limit] < sum(limit in used[message] for message in rising)
            }
            rising -= {message for message in rising if full & used[message].keys()}
            for message in rising:
                quanta[message] += 1
                for limit in used[message]:
                    room[limit] -= 1
        return [number * self.quantum for number in quanta]

    def limits(self, source, target):
        machine = self.hardware
        inside = source // machine.gpus_per_node == target // machine.gpus_per_node
        port = (machine.inside if inside else machine.across).bandwidth_bytes_per_second
        return {
            (source, "sends", inside): port,
            (target, "receives", inside): port,
            (source, target): machine.link(source, target).bandwidth_bytes_per_second,
        }
