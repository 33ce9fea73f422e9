"""Seconds of one layer's passes on one machine: its list, priced, with the communication that nothing hides.

Idea   Sum the prices. A collective that the software runs beside a matmul costs only what is left of it when the matmul ends.
Limit  A hidden collective does not slow the matmul beside it.

Glossary
    exposed    seconds of a collective that the GPU's compute waits for
    host       the CPU that launches kernels: where routing makes it wait for the GPU, a pass takes no less than its launches
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ndparallel.planner.layer_lists import LayerLists
from ndparallel.planner.network import collective_seconds, dispatch_seconds
from ndparallel.planner.operations import Exchange
from ndparallel.planner.plan import Groups, Job, Plan


class Seconds(NamedTuple):
    """Seconds of a list: compute, and exposed communication by group."""

    compute: Any = 0.0
    tp: Any = 0.0
    cp: Any = 0.0
    ep: Any = 0.0

    @property
    def total(self):
        return self.compute + self.tp + self.cp + self.ep

    def __add__(self, other):  # type: ignore[override]
        return Seconds(*(a + b for a, b in zip(self, other)))

    def times(self, factor) -> "Seconds":
        return Seconds(*(factor * part for part in self))


class LayerSeconds(NamedTuple):
    forward: Seconds
    recompute: Seconds
    backward_input: Seconds
    backward_weight: Seconds

    @property
    def backward(self) -> Seconds:
        return self.recompute + self.backward_input + self.backward_weight

    @property
    def total(self) -> Seconds:
        return self.forward + self.backward


@dataclass(frozen=True)
class Pricing:
    """Prices lists for one job and one plan (or an array of plans)."""

    job: Job
    plan: Plan
    groups: Groups = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "groups", Groups(self.plan, self.job))

    @property
    def lists(self) -> LayerLists:
        return LayerLists(self.job.shape, self.plan.share(self.job), self.job.stack)

    def layer(self, experts: bool) -> LayerSeconds:
        """All passes of one layer."""
        lists = self.lists.layer(experts, self.plan.recompute)
        return LayerSeconds(*(self.seconds(items, waits=experts) for items in lists))

    def seconds(self, items: list, waits: bool = False) -> Seconds:
        """Price a list; with `waits` its launches are a lower bound."""
        parts: dict[str, Any] = dict.fromkeys(Seconds._fields, 0.0)
        launches: Any = 0
        for item in items:
            if isinstance(item, Exchange):
                parts[item.group] = parts[item.group] + self.exposed(item)
                launches = launches + 1
            else:
                parts["compute"] = parts["compute"] + self.job.hardware.seconds(item)
                launches = launches + item.kernels
        priced = Seconds(**parts)
        idle = np.maximum(0, launches * self.job.stack.host_seconds - priced.total) if waits else 0.0
        return priced._replace(compute=priced.compute + idle)

    def exposed(self, exchange: Exchange):
        """What is left of a collective beside its operation: at least one of its chunks."""
        whole = self.whole(exchange)
        if exchange.beside is None:
            return whole
        return np.maximum(whole - self.job.hardware.seconds(exchange.beside), whole / exchange.chunks)

    def whole(self, exchange: Exchange):
        links = self.groups.links(exchange.group)
        if exchange.choices:
            return dispatch_seconds(exchange.bytes, exchange.choices, links)
        return collective_seconds(exchange.collective, exchange.bytes, links)


