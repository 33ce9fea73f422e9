"""The lessons' blocks with experts, as lists: the branch of ndparallel/model/experts.py, for experts that are
equally busy.

Idea   Rows travel to experts and back while shared experts compute and weights' gradients are added up;
       between two collectives of ep stand those by which tp ranks hand rows on to one another.
Cost   as `ndparallel.planner.step.streams`.
Limit  Every rank sends `rows` rows to every expert: what a router in balance does, or one whose experts are
       all full. For others see `ndparallel.planner.lesson_runs.routing`.

Glossary
    rows       that one rank sends to one expert
    sent       by a rank to all experts;  received: by its own experts, from all ranks
    come, go   collectives that bring rows to experts, and their outputs back
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gpu import Operation
from ndparallel.model import costs
from ndparallel.planner.layers.operations import CollectiveOp, Start, Wait
from ndparallel.planner.lesson_runs.layers import ExecutedLists
from ndparallel.planner.step.streams import Item

INTEGER = 4  # bytes of a count of rows


@dataclass(frozen=True)
class ExecutedExperts(ExecutedLists):
    """The lists of a block whose second half is a mixture of experts."""

    rows: float = 0.0
    sequences: int = 1  # of a microbatch
    balances: bool = True  # a loss keeps the experts equally busy

    @property
    def sent(self) -> float:
        return self.rows * self.z.experts

    @property
    def each(self) -> list[float]:
        """Rows of each of the rank's experts."""
        return [self.rows * self.z.senders] * self.z.local_experts

    @property
    def received(self) -> float:
        return sum(self.each)

    @property
    def second_kept(self) -> Mapping[str, float]:
        return costs.experts_saved(self.z, self.sent, self.received)

    # ---- the rows' way

    def itinerary(self) -> list[Item]:
        """Tell who gets how many rows."""
        size = self.z.experts * INTEGER
        told = [CollectiveOp("tp counts", "all_gather", "tp", self.tp * size)] if self.tp > 1 else []
        return [CollectiveOp("ep counts", "all_to_all", "ep", size), *told]

    def leg(self, name: str) -> CollectiveOp:
        """Rows on their way over the ep ranks, to experts or back."""
        return CollectiveOp(f"ep {name}", "all_to_all", "ep", self.bytes_of(self.sent * self.z.hidden))

    def hand_on(self) -> list[Item]:
        """Over the tp ranks, each of which has a slice of the experts."""
        return self.talk("all_to_all", self.received * self.z.hidden)

    sum_up = hand_on

    def sort(self) -> list[Operation]:
        return costs.sort_rows(self.z, self.received) if self.z.senders > 1 else []

    def busy(self, operations: Callable[..., list[Operation]]) -> list[Operation]:
        """Of all the rank's experts, one after another."""
        return costs.each(operations, self.z, self.each)

    def kept_of(self, *names: str) -> list[Item]:
        return self.free(*(self.second_kept[name] for name in names))

    # ---- the branch

    def second_forward(self) -> list[Item]:
        z, kept = self.z, self.second_kept
        permute, combine = costs.rows_forward(z, self.sent)
        norm, router, route, *shared, add = costs.router_forward(z)
        busy = CollectiveOp("balance", "all_reduce", "tp_cp", self.bytes_of(2 * z.experts * self.sequences))
        balance = [busy] if self.balances else []
        come, go = self.leg("to experts"), self.leg("from experts")
        rows = [*self.sort(), *self.busy(costs.expert_forward)]
        routed = self.hold(*(kept[name] for name in ("routed", "probabilities", "chosen")))
        worked = self.hold(*(kept[name] for name in ("rows", "expert gate_up", "expert activated")))
        return [
            *(
                norm,
                *self.hold(kept["x"]),
                router,
                route,
                *routed,
                *map(Start, balance),
                *self.hold(kept["order"]),
            ),
            *(
                *self.itinerary(),
                permute,
                Start(come),
                *self.shared_forward(shared),
                Wait(come),
                *self.hand_on(),
            ),
            *(*rows, *worked, *self.sort(), *self.sum_up(), go, *self.hold(kept["returned"]), combine),
            *(*map(Wait, balance), add, *self.unshare()),
        ]

    def second_backward(self, deferred: bool) -> list[Item]:
        z, kept = self.z, self.second_kept
        combine, permute = costs.rows_backward(z, self.sent)
        *shared, route, router, norm, add = costs.router_backward_input(z)
        come, go = self.leg("to experts"), self.leg("from experts")
        rows = [*self.sort(), *self.kept_of("expert gate_up"), *self.busy(costs.expert_backward_input)]
        asked = self.hold(self.received * z.hidden, self.received * 2 * z.expert_ffn)
        router_weight = (
            self.hold(z.routed_tokens * z.experts) if deferred else self.weight("router", kept["routed"])
        )
        return [
            *(
                combine,
                *self.kept_of("returned"),
                Start(come),
                *self.shared_backward(shared, deferred),
                Wait(come),
                *self.hand_on(),
            ),
            *(
                *rows,
                *asked,
                *self.sort(),
                *self.sum_up(),
                Start(go),
                *([] if deferred else self.rows_weight()),
            ),
            *(
                route,
                *self.kept_of("probabilities", "chosen"),
                router,
                *router_weight,
                Wait(go),
                *self.kept_of("order"),
                permute,
            ),
            *(*self.unshare(), norm, *self.kept_of("x"), add),
        ]

    def second_weight(self) -> list[Item]:
        z, kept = self.z, self.second_kept
        router = [*self.free(z.routed_tokens * z.experts), *self.weight("router", kept["routed"])]
        shared = costs.shared(z)
        down = (
            [*self.free(z.tokens * z.hidden), *self.weight("down", kept["activated"])] if z.shared_ffn else []
        )
        gate_up = (
            [*self.free(z.tokens * 2 * shared.ffn), *self.weight("gate_up", kept["normed"])]
            if z.shared_ffn
            else []
        )
        return [*router, *down, *gate_up, *self.rows_weight()]

    def rows_weight(self) -> list[Item]:
        """The experts' own gradients, one matrix after the other."""
        kept = self.second_kept
        both = self.busy(costs.expert_backward_weight)
        return [
            *(
                *self.kept_of("expert activated", "rows"),
                *self.free(self.received * self.z.hidden),
                *both[0::2],
            ),
            *(*self.free(kept["expert gate_up"]), *both[1::2]),
        ]

    def unshare(self) -> list[Item]:
        """Every tp rank has routed its own tokens; without sequence parallelism all need all of them."""
        return [] if self.shards else self.talk("all_gather")

    # ---- the shared experts

    def shared_forward(self, operations: list[Operation]) -> list[Item]:
        kept = self.second_kept
        if not operations:
            return []
        after = {"swiglu": self.hold(kept["gate_up"], kept["activated"])}
        return [*self.enter(), *self.hold(kept["normed"]), *self.woven(operations, after, summed="down")]

    def shared_backward(self, operations: list[Operation], deferred: bool) -> list[Item]:
        if not operations:
            return []
        kept, z = self.second_kept, self.z
        down = self.hold(z.tokens * z.hidden) if deferred else self.weight("down", kept["activated"])
        gate_up = self.hold(kept["gate_up"]) if deferred else self.weight("gate_up", kept["normed"])
        after = {"down": down, "swiglu": self.free(kept["gate_up"]), "gate_up": gate_up}
        return [*self.leave_backward(), *self.woven(operations, after, summed="gate_up")]
