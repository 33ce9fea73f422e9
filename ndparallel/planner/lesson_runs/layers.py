"""The lessons' own model, as lists: what its layers charge, say and keep, in program order.

Idea   ndparallel/model/costs.py says what an executed layer computes and keeps. Here collectives and memory
       stand between those operations, where ndparallel/model/layers.py, attention.py and experts.py have
       them; so the planner can predict an executed cluster to the last digit
       (tests/ladder/test_rung3_scale.py).
Cost   as `ndparallel.planner.step.streams`.
Limit  Llama-style blocks, all microbatches alike; experts in balance, but for
       `ndparallel.planner.lesson_runs.routing`.

Glossary
    woven      operations with what happens after each of them
    I, W       halves of a backward pass: gradients of inputs, gradients of weights
    deferred   a backward pass whose W comes later keeps what W needs
    core       where queries meet keys
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from gpu import Operation
from ndparallel.model import costs
from ndparallel.model.costs import Sizes
from ndparallel.planner.layers.operations import CollectiveOp, Hold, Start, Wait
from ndparallel.planner.lesson_runs.core import Core
from ndparallel.planner.step.streams import Item

ACTIVATIONS = "activations"
BYTE = 1  # of a token


@dataclass(frozen=True)
class ExecutedLists:
    """The lists of one rank's units, for sizes as `ndparallel.model.units.local_sizes` gives them."""

    z: Sizes
    tp: int
    sequence_parallel: str = "none"
    recompute: str = "none"
    chunks: int = 1
    cp: int = 1
    gathers: bool = False  # context parallelism gathers all keys, and sends no blocks round

    def passes(self, kind: str, which: str, deferred: bool = False) -> list[Item]:
        """A unit's "forward", "backward" or "weight"."""
        make: Callable[..., list[Item]] = getattr(self, f"{kind}_{which}")
        return make(deferred) if which == "backward" else make()

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
        return (
            [CollectiveOp(f"tp {collective}", collective, "tp", self.bytes_of(size))] if self.tp > 1 else []
        )

    def enter(self) -> list[Item]:
        return self.talk("all_gather") if self.shards else []

    def leave(self) -> list[Item]:
        return self.talk("reduce_scatter" if self.shards else "all_reduce")

    def leave_backward(self) -> list[Item]:
        return self.talk("all_gather") if self.shards else []

    enter_backward = leave

    def gather_again(self) -> list[Item]:
        return self.talk("all_gather") if self.sequence_parallel == "sp-regather" else []

    def woven(
        self, operations: Iterable[Operation], after: Mapping[str, Sequence[Item]], summed: str = ""
    ) -> list[Item]:
        """The operations, each followed by its entry in `after`; the matmul `summed` by a sum over tp, in
        chunks where asked for."""
        items: list[Item] = []
        for operation in operations:
            items += self.summed(operation) if operation.name == summed else [operation]
            items += after.get(operation.name, ())
        return items

    def summed(self, operation: Operation) -> list[Item]:
        if self.chunks == 1 or self.tp == 1:
            return [operation, *self.leave()]
        size = self.bytes_of(self.z.tokens * self.z.hidden) / self.chunks
        parts = [
            CollectiveOp(f"tp chunk {number}", "all_reduce", "tp", size) for number in range(self.chunks)
        ]
        sent = [item for part in parts for item in (costs.chunk(operation, self.chunks), Start(part))]
        return [*sent, *(Wait(part) for part in parts)]

    # ---- the block

    @cached_property
    def kept(self) -> Mapping[str, Mapping[str, float]]:
        return {
            "attention": costs.attention_saved(self.z, self.recompute == "selective"),
            "second": self.second_kept,
        }

    @property
    def second_kept(self) -> Mapping[str, float]:
        """Of the block's second half."""
        return costs.mlp_saved(self.z)

    def block_forward(self) -> list[Item]:
        if self.recompute != "full":
            return self.pass_forward()
        kept = [size for branch in self.kept.values() for size in branch.values()]
        return [*self.pass_forward(), *self.free(*kept), *self.hold(self.kept["attention"]["x"])]

    def block_backward(self, deferred: bool = False) -> list[Item]:
        again = (
            [*self.free(self.kept["attention"]["x"]), *self.pass_forward()]
            if self.recompute == "full"
            else []
        )
        return [*again, *self.second_backward(deferred), *self.attention_backward(deferred)]

    def block_weight(self) -> list[Item]:
        return [*self.second_weight(), *self.attention_weight()]

    def pass_forward(self) -> list[Item]:
        return [*self.attention_forward(), *self.second_forward()]

    @cached_property
    def core(self) -> Core:
        return Core(self.z, self.cp, self.gathers, self.recompute == "selective")

    def attention_forward(self) -> list[Item]:
        kept = dict(self.kept["attention"])
        enter = [*self.enter(), *self.hold(kept.pop("x"), kept.pop("normed"))]
        before, after = around(costs.attention_forward(self.z), costs.core_forward(self.z))
        core = [*self.core.forward(), *self.hold(*kept.values())]
        return [*self.woven(before, {"norm1": enter}), *core, *self.woven(after, {}, summed="out")]

    def attention_backward(self, deferred: bool) -> list[Item]:
        kept, z = self.kept["attention"], self.z
        before, after = around(costs.attention_backward_input(z), costs.core_backward(z))
        out = self.hold(z.tokens * z.hidden) if deferred else self.weight("out", kept["mixed"])
        core = [
            *self.free(*(size for name, size in kept.items() if name not in ("x", "normed", "mixed"))),
            *self.core.backward(),
        ]
        qkv = self.hold(z.tokens * z.qkv) if deferred else self.weight("qkv", kept["normed"])
        into = self.woven(after, {"qkv": qkv, "norm1": self.free(kept["x"])}, summed="qkv")
        return [*self.leave_backward(), *self.woven(before, {}), *out, *core, *into]

    def attention_weight(self) -> list[Item]:
        z, kept = self.z, self.kept["attention"]
        out = [*self.free(z.tokens * z.hidden), *self.weight("out", kept["mixed"])]
        return [*out, *self.free(z.tokens * z.qkv), *self.weight("qkv", kept["normed"])]

    def second_forward(self) -> list[Item]:
        kept = self.kept["second"]
        after = {
            "norm2": [*self.enter(), *self.hold(kept["x"], kept["normed"])],
            "swiglu": self.hold(kept["gate_up"], kept["activated"]),
        }
        return self.woven(costs.mlp_forward(self.z), after, summed="down")

    def second_backward(self, deferred: bool) -> list[Item]:
        kept, z = self.kept["second"], self.z
        down = self.hold(z.tokens * z.hidden) if deferred else self.weight("down", kept["activated"])
        gate_up = self.hold(kept["gate_up"]) if deferred else self.weight("gate_up", kept["normed"])
        after = {
            "down": down,
            "swiglu": self.free(kept["gate_up"]),
            "gate_up": gate_up,
            "norm2": self.free(kept["x"]),
        }
        return [*self.leave_backward(), *self.woven(costs.mlp_backward_input(z), after, summed="gate_up")]

    def second_weight(self) -> list[Item]:
        kept = self.kept["second"]
        down = [*self.free(self.z.tokens * self.z.hidden), *self.weight("down", kept["activated"])]
        return [*down, *self.free(kept["gate_up"]), *self.weight("gate_up", kept["normed"])]

    def weight(self, name: str, kept) -> list[Item]:
        """Take a matmul's input and multiply it with the gradient of its output."""
        again = self.gather_again() if name in ("qkv", "gate_up", "logits") else []
        return [*self.free(kept), *again, self.weights[f"{name} weight"]]

    @cached_property
    def weights(self) -> dict[str, Operation]:
        z = self.z
        second = costs.router_backward_weight(z) if z.experts else costs.mlp_backward_weight(z)
        lists = costs.attention_backward_weight(z) + second + costs.head_backward_weight(z)
        return {operation.name: operation for operation in lists}

    # ---- the two ends

    def embedding_forward(self) -> list[Item]:
        return [*costs.embedding_forward(self.z), Hold(ACTIVATIONS, BYTE * self.z.tokens), *self.leave()]

    def embedding_backward(self, deferred: bool = False) -> list[Item]:
        if deferred:
            return self.hold(self.z.shard_tokens * self.z.hidden)
        return [
            *self.leave_backward(),
            Hold(ACTIVATIONS, -BYTE * self.z.tokens),
            *costs.embedding_backward_weight(self.z),
        ]

    def embedding_weight(self) -> list[Item]:
        return [*self.free(self.z.shard_tokens * self.z.hidden), *self.embedding_backward()]

    def head_forward(self) -> list[Item]:
        # the largest logit, the target's, and the sum of exponentials
        per_token = self.talk("all_reduce", self.z.tokens)
        after = {
            "norm": self.enter(),
            "cross_entropy": [*per_token * 3, *self.hold(*costs.head_saved(self.z).values())],
        }
        return self.woven(costs.head_forward(self.z), after)

    def head_backward(self, deferred: bool = False) -> list[Item]:
        kept, z = costs.head_saved(self.z), self.z
        logits = self.hold(z.tokens * z.vocab) if deferred else self.weight("logits", kept["normed"])
        after = {"logits": [*logits, *self.enter_backward()], "norm": self.free(kept["x"])}
        return [*self.free(kept["probabilities"]), *self.woven(costs.head_backward_input(z), after)]

    def head_weight(self) -> list[Item]:
        return [
            *self.free(self.z.tokens * self.z.vocab),
            *self.weight("logits", costs.head_saved(self.z)["normed"]),
        ]


def around(whole: list[Operation], part: list[Operation]) -> tuple[list[Operation], list[Operation]]:
    """What stands before a run of operations in a list, and what behind."""
    start = whole.index(part[0])
    return whole[:start], whole[start + len(part) :]
