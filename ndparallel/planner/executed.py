"""The lessons' own model, as lists: what its layers charge, say and keep, in program order, and the clocks of its GPUs.

Idea   ndparallel/costs.py says what an executed layer computes and keeps. Here collectives and memory stand between those operations, where
       ndparallel/layers.py has them; so the planner can predict an executed cluster to the last digit (tests/test_rung3.py).
Cost   as `ndparallel.planner.streams`, and a vector operation for every step of a collective.
Limit  Llama-style blocks, all microbatches alike.

Glossary
    woven      operations with what happens after each of them
    I, W       halves of a backward pass: gradients of inputs, gradients of weights
    deferred   a backward pass whose W comes later keeps what W needs
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from gpu import Hardware, Operation
from ndparallel import costs
from ndparallel.clocks import start_clocks
from ndparallel.costs import Sizes
from ndparallel.lockstep import advance
from ndparallel.mesh import Mesh
from ndparallel.planner.operations import Exchange, Hold, Start, Wait
from ndparallel.planner.streams import Item
from ndparallel.sharding import usual_algorithm

RING = {"all_reduce": "ring", "all_gather": "ring", "reduce_scatter": "ring", "all_to_all": "direct"}
ACTIVATIONS = "activations"
BYTE = 1  # of a token


@dataclass(frozen=True)
class ExecutedLists:
    """The lists of one rank's units, for sizes as `ndparallel.units.local_sizes` gives them."""

    z: Sizes
    tp: int
    sequence_parallel: str = "none"
    recompute: str = "none"
    chunks: int = 1

    # ---- what all units share

    @property
    def shards(self) -> bool:
        return self.sequence_parallel != "none" and self.tp > 1

    def bytes_of(self, elements) -> float:
        return elements * costs.itemsize(self.z.dtype)

    def hold(self, *elements) -> list[Item]:
        return [Hold(ACTIVATIONS, self.bytes_of(size)) for size in elements]

    def free(self, *elements) -> list[Item]:
        return [Hold(ACTIVATIONS, -self.bytes_of(size)) for size in elements]

    def talk(self, collective: str, elements=None) -> list[Item]:
        """A collective of tp, by default on a whole activation."""
        size = self.z.tokens * self.z.hidden if elements is None else elements
        return [Exchange(f"tp {collective}", collective, "tp", self.bytes_of(size))] if self.tp > 1 else []

    def enter(self) -> list[Item]:
        return self.talk("all_gather") if self.shards else []

    def leave(self) -> list[Item]:
        return self.talk("reduce_scatter" if self.shards else "all_reduce")

    def leave_backward(self) -> list[Item]:
        return self.talk("all_gather") if self.shards else []

    enter_backward = leave

    def gather_again(self) -> list[Item]:
        return self.talk("all_gather") if self.sequence_parallel == "sp-regather" else []

    def woven(self, operations: Iterable[Operation], after: Mapping[str, Sequence[Item]], summed: str = "") -> list[Item]:
        """The operations, each followed by its entry in `after`; the matmul `summed` by a sum over tp, in chunks where asked for."""
        items: list[Item] = []
        for operation in operations:
            items += self.summed(operation) if operation.name == summed else [operation]
            items += after.get(operation.name, ())
        return items

    def summed(self, operation: Operation) -> list[Item]:
        if self.chunks == 1 or self.tp == 1:
            return [operation, *self.leave()]
        size = self.bytes_of(self.z.tokens * self.z.hidden) / self.chunks
        parts = [Exchange(f"tp chunk {number}", "all_reduce", "tp", size) for number in range(self.chunks)]
        sent = [item for part in parts for item in (costs.chunk(operation, self.chunks), Start(part))]
        return [*sent, *(Wait(part) for part in parts)]

    # ---- the block

    @cached_property
    def kept(self) -> dict[str, dict[str, int]]:
        return {"attention": costs.attention_saved(self.z, self.recompute == "selective"), "mlp": costs.mlp_saved(self.z)}

    def block_forward(self) -> list[Item]:
        if self.recompute != "full":
            return self.pass_forward()
        kept = [size for branch in self.kept.values() for size in branch.values()]
        return [*self.pass_forward(), *self.free(*kept), *self.hold(self.kept["attention"]["x"])]

    def block_backward(self, deferred: bool = False) -> list[Item]:
        again = [*self.free(self.kept["attention"]["x"]), *self.pass_forward()] if self.recompute == "full" else []
        return [*again, *self.mlp_backward(deferred), *self.attention_backward(deferred)]

    def block_weight(self) -> list[Item]:
        return [*self.mlp_weight(), *self.attention_weight()]

    def pass_forward(self) -> list[Item]:
        return [*self.attention_forward(), *self.mlp_forward()]

    def attention_forward(self) -> list[Item]:
        kept = dict(self.kept["attention"])
        enter = [*self.enter(), *self.hold(kept.pop("x"), kept.pop("normed"))]
        return self.woven(costs.attention_forward(self.z), {"norm1": enter, "values": self.hold(*kept.values())}, summed="out")

    def attention_backward(self, deferred: bool) -> list[Item]:
        kept, z = self.kept["attention"], self.z
        again = costs.core_recompute(z) if self.recompute == "selective" else self.free(kept["probabilities"])
        core = [*self.free(kept["q"], kept["k"], kept["v"]), *again]
        out = self.hold(z.tokens * z.hidden) if deferred else self.weight("out", kept["mixed"])
        qkv = self.hold(z.tokens * z.qkv) if deferred else self.weight("qkv", kept["normed"])
        after = {"out": [*out, *core], "qkv": qkv, "norm1": self.free(kept["x"])}
        return [*self.leave_backward(), *self.woven(costs.attention_backward_input(z), after, summed="qkv")]

    def attention_weight(self) -> list[Item]:
        z, kept = self.z, self.kept["attention"]
        out = [*self.free(z.tokens * z.hidden), *self.weight("out", kept["mixed"])]
        return [*out, *self.free(z.tokens * z.qkv), *self.weight("qkv", kept["normed"])]

    def mlp_forward(self) -> list[Item]:
        kept = self.kept["mlp"]
        after = {"norm2": [*self.enter(), *self.hold(kept["x"], kept["normed"])], "swiglu": self.hold(kept["gate_up"], kept["activated"])}
        return self.woven(costs.mlp_forward(self.z), after, summed="down")

    def mlp_backward(self, deferred: bool) -> list[Item]:
        kept, z = self.kept["mlp"], self.z
        down = self.hold(z.tokens * z.hidden) if deferred else self.weight("down", kept["activated"])
        gate_up = self.hold(kept["gate_up"]) if deferred else self.weight("gate_up", kept["normed"])
        after = {"down": down, "swiglu": self.free(kept["gate_up"]), "gate_up": gate_up, "norm2": self.free(kept["x"])}
        return [*self.leave_backward(), *self.woven(costs.mlp_backward_input(z), after, summed="gate_up")]

    def mlp_weight(self) -> list[Item]:
        kept = self.kept["mlp"]
        down = [*self.free(self.z.tokens * self.z.hidden), *self.weight("down", kept["activated"])]
        return [*down, *self.free(kept["gate_up"]), *self.weight("gate_up", kept["normed"])]

    def weight(self, name: str, kept) -> list[Item]:
        """Take a matmul's input and multiply it with the gradient of its output."""
        again = self.gather_again() if name in ("qkv", "gate_up", "logits") else []
        return [*self.free(kept), *again, self.weights[f"{name} weight"]]

    @cached_property
    def weights(self) -> dict[str, Operation]:
        z = self.z
        lists = costs.attention_backward_weight(z) + costs.mlp_backward_weight(z) + costs.head_backward_weight(z)
        return {operation.name: operation for operation in lists}

    # ---- the two ends

    def embedding_forward(self) -> list[Item]:
        return [*costs.embedding_forward(self.z), Hold(ACTIVATIONS, BYTE * self.z.tokens), *self.leave()]

    def embedding_backward(self, deferred: bool = False) -> list[Item]:
        if deferred:
            return self.hold(self.z.shard_tokens * self.z.hidden)
        return [*self.leave_backward(), Hold(ACTIVATIONS, -BYTE * self.z.tokens), *costs.embedding_backward_weight(self.z)]

    def embedding_weight(self) -> list[Item]:
        return [*self.free(self.z.shard_tokens * self.z.hidden), *self.embedding_backward()]

    def head_forward(self) -> list[Item]:
        per_token = self.talk("all_reduce", self.z.tokens)  # the largest logit, the target's, and the sum of exponentials
        after = {"norm": self.enter(), "cross_entropy": [*per_token * 3, *self.hold(*costs.head_saved(self.z).values())]}
        return self.woven(costs.head_forward(self.z), after)

    def head_backward(self, deferred: bool = False) -> list[Item]:
        kept, z = costs.head_saved(self.z), self.z
        logits = self.hold(z.tokens * z.vocab) if deferred else self.weight("logits", kept["normed"])
        after = {"logits": [*logits, *self.enter_backward()], "norm": self.free(kept["x"])}
        return [*self.free(kept["probabilities"]), *self.woven(costs.head_backward_input(z), after)]

    def head_weight(self) -> list[Item]:
        return [*self.free(self.z.tokens * self.z.vocab), *self.weight("logits", costs.head_saved(self.z)["normed"])]


@dataclass
class Cluster:
    """All GPUs of an executed run: their clocks are arrays over the ranks."""

    hardware: Hardware
    mesh: Mesh
    itemsize: int
    alike: bool = field(default=False, init=False)
    prices: dict[Operation, float] = field(default_factory=dict)

    def seconds(self, operation: Operation) -> float:
        if operation not in self.prices:
            self.prices[operation] = float(self.hardware.seconds(operation))
        return self.prices[operation]

    def arrival(self, exchange: Exchange, start: Any) -> np.ndarray:
        """When each rank ends a collective that it starts at its time of `start`."""
        ranks = self.ranks(exchange.group)
        start = np.broadcast_to(start, (self.mesh.world_size,))
        clocks = start_clocks(self.hardware, ranks, self.itemsize, now=start[ranks])
        advance(clocks, exchange.collective, self.algorithm(exchange), round(exchange.bytes))
        end = start.astype(float)
        end[ranks] = clocks.now
        return end

    def algorithm(self, exchange: Exchange) -> str:
        """What the lessons take: buckets of data parallelism go in two levels where their links allow it, all else round a ring."""
        axis = exchange.group.partition("/")[0]
        return usual_algorithm(self.mesh.group(axis, 0), self.hardware) if "dp" in axis else RING[exchange.collective]

    def ranks(self, name: str) -> np.ndarray:
        """The groups of that name, (groups, ranks); "tp/2" are the pairs of neighbours in tp."""
        axis, _, parts = name.partition("/")
        groups = dict.fromkeys(self.mesh.group(axis, rank).ranks for rank in range(self.mesh.world_size))
        ranks = np.array(list(groups))
        return ranks.reshape(-1, int(parts)) if parts else ranks
