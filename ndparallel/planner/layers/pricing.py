"""Seconds of one layer's passes on one machine: its list, priced, with the communication that nothing
hides.

Idea   Sum the prices. A collective that the software runs beside a matmul costs only what is left of it when
       the matmul ends.
Limit  All GPUs are alike: one number stands for them.

Glossary
    exposed    seconds of a collective that the GPU's compute waits for
    host       the CPU that launches kernels, one after another: a pass takes no less than its launches
    unit       embedding, layer or head
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np

from gpu import Hardware, Operation
from ndparallel.base.sums import sum_of
from ndparallel.hardware.accelerator import host_bandwidth, host_launch
from ndparallel.hardware.collective_links import slowdown_of
from ndparallel.hardware.launch_modes import with_launch_mode
from ndparallel.planner.groups import Groups
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.launches import in_graph, launch_cost, launches_of
from ndparallel.planner.layers.breakdown import TimeBreakdown, end_to_end
from ndparallel.planner.layers.collective_time import collective_seconds, hops_seconds, lost_to
from ndparallel.planner.layers.dispatch_time import dispatch_seconds
from ndparallel.planner.layers.kept import kept_bytes
from ndparallel.planner.layers.layer import LayerLists, lists_of
from ndparallel.planner.layers.operations import CollectiveOp, Layer
from ndparallel.planner.numbers import anywhere, everywhere, larger
from ndparallel.planner.ports import Round, rounds_of
from ndparallel.planner.stages import ENDS, kind_and_recompute

FEW_BYTES = 1e-3  # take no time on the wire
Item = TypeVar("Item", Operation, CollectiveOp)
# what an item counts as, its seconds, the CPU's to launch it, whether the CPU waits for the GPU behind it
ItemPrice = tuple[str, Any, Any, bool]


class UnitSeconds(NamedTuple):
    """One microbatch through one unit, by pass."""

    forward: TimeBreakdown
    recompute: TimeBreakdown
    backward_input: TimeBreakdown
    backward_weight: TimeBreakdown

    @property
    def passes(self) -> tuple[TimeBreakdown, TimeBreakdown, TimeBreakdown]:
        """F, I and W; what is recomputed counts as I."""
        return self.forward, self.recompute + self.backward_input, self.backward_weight

    @property
    def backward(self) -> TimeBreakdown:
        return self.recompute + self.backward_input + self.backward_weight

    @property
    def total(self) -> TimeBreakdown:
        return self.forward + self.backward


@dataclass(frozen=True)
class Pricing:
    """Prices lists for one job and one plan (or an array of plans); a `Machine` whose GPUs are all alike."""

    job: TrainingJob
    plan: Plan
    groups: Groups = field(init=False)
    units: dict[str, UnitSeconds] = field(init=False, default_factory=dict)
    known_prices: dict[Any, ItemPrice] = field(init=False, default_factory=dict)
    known_alone: dict[CollectiveOp, Any] = field(init=False, default_factory=dict)
    slowdown: float = field(init=False)
    alike = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "groups", Groups(self.plan, self.job))
        object.__setattr__(self, "slowdown", slowdown_of(self.job.hardware))

    @cached_property
    def hardware(self) -> Hardware:
        """The job's, whose kernels follow one another as its software launches them."""
        return with_launch_mode(self.job.hardware, self.job.stack.launching)

    @cached_property
    def lists(self) -> LayerLists:
        return lists_of(self.job, self.plan)

    def unit(self, kind: str) -> UnitSeconds:
        """All passes of an embedding, a layer of this kind, or a head."""
        if kind not in self.units:
            self.units[kind] = self.joined(kind) if self.by_dispatch else self.price_unit(kind)
        return self.units[kind]

    def price_unit(self, kind: str) -> UnitSeconds:
        found = UnitSeconds(*(self.price_list(items) for items in self.listed(kind)))
        return self.with_host(found, kind) if self.job.activations_away and kind not in ENDS else found

    @cached_property
    def by_dispatch(self) -> list[tuple[np.ndarray, "Pricing"]]:
        """Where of an array of plans some keep the rows of experts, and others send them: both parts, whose
        lists differ, with their places."""
        stay = self.plan.keeps_rows(self.job.stack)
        if not anywhere(stay) or everywhere(stay):
            return []
        places = np.flatnonzero(stay), np.flatnonzero(~stay)
        return [(rows, Pricing(self.job, rows_of(self.plan, rows))) for rows in places]

    def joined(self, kind: str) -> UnitSeconds:
        """A unit's seconds in both parts, each at its places."""
        places = np.argsort(np.concatenate([rows for rows, _ in self.by_dispatch]))
        counts = [len(rows) for rows, _ in self.by_dispatch]
        passes = zip(*(pricing.unit(kind) for _, pricing in self.by_dispatch))
        return UnitSeconds(*(end_to_end(parts, counts).at(places) for parts in passes))

    def listed(self, kind: str) -> Layer:
        """The lists of a unit, in the program's order."""
        return self.lists.unit(*kind_and_recompute(self.plan, kind))

    def with_host(self, unit: UnitSeconds, kind: str) -> UnitSeconds:
        """A layer's passes, each no shorter than its activations are on their way to the host, or back. Where
        a schedule parts backward passes I has all the wait, and W, which comes later, none: with a quicker W
        more is waited in I, and such a step can be some hundredths longer."""
        kept = kept_bytes(self.lists, *kind_and_recompute(self.plan, kind))
        seconds = self.job.activations_away * kept / host_bandwidth(self.job.hardware)
        waits = [larger(0.0, seconds - taken.total) for taken in (unit.forward, unit.backward)]
        forward, backward = (TimeBreakdown(host=wait) for wait in waits)
        return unit._replace(forward=unit.forward + forward, backward_input=unit.backward_input + backward)

    def price_list(self, items: list) -> TimeBreakdown:
        """Price a list; its launches are a lower bound."""
        parts, prices = TimeBreakdown(compute=0.0), list(map(self.price_of, items))
        for kind, seconds, _, _ in prices:
            parts[kind] = parts[kind] + seconds
        if self.launch_cost:
            parts.launch_seconds = sum_of([cpu_seconds for _, _, cpu_seconds, _ in prices])
            parts["launch"] = larger(0, seconds_with_waits(prices) - parts.total)
        return parts

    def price_of(self, item: Any) -> ItemPrice:
        return priced_once(item, self.known_prices, self.price_item)

    def price_item(self, item: Any) -> ItemPrice:
        cpu_seconds = self.launches(item) if self.launch_cost else 0.0
        if isinstance(item, CollectiveOp):
            return item.group, self.exposed(item), cpu_seconds, False
        return "compute", self.seconds(item), cpu_seconds, self.waits(item)

    @cached_property
    def launch_cost(self) -> float:
        return launch_cost(self.hardware, self.job.stack.launching)

    @cached_property
    def host_launch(self) -> float:
        return host_launch(self.job.hardware)

    def launches(self, item: Any) -> Any:
        """The CPU's seconds for an item of a list."""
        if in_graph(self.job.stack.graphs, item.name):
            return 0.0
        if not isinstance(item, CollectiveOp):
            return launches_of(item, self.launch_cost) * self.host_launch
        return self.launch_cost * (self.groups.links(item.group).ranks > 1) * self.host_launch

    def waits(self, operation: Operation) -> bool:
        return operation.kind == "wait" and self.job.stack.graphs != "step"

    def seconds(self, operation: Operation):
        return self.hardware.seconds(operation)

    def arrival(self, exchange: CollectiveOp, start):
        return start + self.seconds_alone(exchange)

    def rounds(self, exchange: CollectiveOp) -> list[Round]:
        """What is left of a collective beside its operation, as messages."""
        seconds = float(self.exposed(exchange))
        latency = float(self.seconds_alone(exchange._replace(bytes=FEW_BYTES)))
        use = self.groups.on_shared_ports.get(exchange.group) or self.groups.port_use(exchange.group)
        return rounds_of(seconds, min(seconds, latency), use)

    def exposed(self, exchange: CollectiveOp):
        """What is left of a collective beside its operation: at least one of its chunks, or what it slows the
        operation by."""
        whole = self.seconds_alone(exchange)
        if exchange.beside is None:
            return whole
        beside = self.price_of(exchange.beside)[1] * exchange.share
        left = larger(whole - beside, whole / exchange.chunks)
        return larger(left, lost_to(whole, beside, self.slowdown))

    def seconds_alone(self, exchange: CollectiveOp):
        """Seconds of a collective with nothing beside it."""
        return priced_once(exchange, self.known_alone, self.price_collective)

    def price_collective(self, exchange: CollectiveOp):
        if anywhere(exchange.host_bytes):
            copied = exchange.host_bytes / host_bandwidth(self.job.hardware)
            return copied + self.seconds_alone(exchange._replace(host_bytes=0))
        links = self.groups.links(exchange.group)
        if exchange.router:
            return dispatch_seconds(exchange.bytes, exchange.router, links)
        if exchange.collective == "hops":
            return hops_seconds(exchange.bytes, exchange.hops, links)
        return collective_seconds(exchange.collective, exchange.bytes, links)


def rows_of(plans: Plan, rows: np.ndarray) -> Plan:
    """Some of an array of plans."""
    arrays = {name: value[rows] for name, value in vars(plans).items() if isinstance(value, np.ndarray)}
    return replace(plans, **arrays)


def priced_once(item: Item, known: dict[Item, Any], price: Callable[[Item], Any]) -> Any:
    """The price of an item that may stand in many lists, or several times in one."""
    try:
        return known[item]
    except KeyError:
        return known.setdefault(item, price(item))
    except TypeError:  # an array of sizes has no hash
        return price(item)


def seconds_with_waits(prices: list[ItemPrice]) -> Any:
    """Seconds that a pass of these items takes at least, where those before and behind it are alike. Without
    waits they are the CPU's alone, which runs ahead; from a wait to the next one a kernel begins when it is
    launched and the one before has ended."""
    waits = [place for place, (_, _, _, wait) in enumerate(prices) if wait]
    if not waits:
        return sum_of([cpu_seconds for _, _, cpu_seconds, _ in prices])
    launched = done = 0.0
    for _, seconds, cpu_seconds, wait in prices[waits[-1] + 1 :] + prices[: waits[-1] + 1]:
        launched = launched + cpu_seconds
        done = larger(done, launched) + seconds
        launched = larger(launched, done) if wait else launched
    return done
