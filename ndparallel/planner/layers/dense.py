"""The lists of one layer, written out: attention, the MLP, and the two ends of the model; expert_lists.py has
the mixture of experts.

Idea   Forward and backward of each half stand next to each other, its collectives where the software has
       them.
Limit  As layer_parts.py.

Glossary: see `ndparallel.planner.layers.operations`.
"""

from gpu import Operation
from ndparallel.planner.layers.experts import ExpertLists
from ndparallel.planner.layers.operations import HALF, SCORE_DROPOUT, CollectiveOp, Layer, elementwise, matmul
from ndparallel.planner.models.shape import Linear

QKV = 3  # matrices side by side: queries, keys, values


class LayerLists(ExpertLists):
    """Writes the lists of one kind of layer for one share and one stack."""

    def unit(self, kind: str, recompute: str) -> Layer:
        """The four lists of an embedding, dense, experts or head unit."""
        if kind == "embedding":
            return Layer([self.lookup(False)], [], [self.lookup(True)], [])
        if kind == "head":
            forward, inputs, weights = self.head()
            return Layer(forward, [], inputs, weights)
        return self.layer(kind == "experts", recompute)

    def layer(self, experts: bool, recompute: str) -> Layer:
        """The four lists; `recompute` is none, selective or full."""
        last = self.experts_forward() if experts else self.mlp_forward()
        first = self.attention_forward()
        backward = [
            *(self.experts_backward() if experts else self.mlp_backward()),
            *self.attention_backward(),
        ]
        second = self.experts_weights() if experts else self.weights(self.shape.mlp(self.shape.ffn))
        lists = (
            first + last,
            self.again(first, last, recompute),
            backward,
            self.weights(self.shape.attention()) + second,
        )
        return Layer(*map(with_casts, lists)) if self.share.linear_dtype == "float8" else Layer(*lists)

    def again(self, first: list, last: list, recompute: str) -> list:
        """What runs again before the backward pass."""
        if recompute == "full":
            return first + (last[: _last_matmul(last)] if self.stack.early_stop else last)
        return [
            item
            for module in self.stack.selective * (recompute == "selective")
            for item in self.module(module, first, last)
        ]

    def module(self, name: str, first: list, last: list) -> list:
        """What one module of selective recomputation runs again; nothing where the layer has none."""
        experts = any(isinstance(item, CollectiveOp) and item.group == "ep" for item in last)
        if name == "moe_act":
            return [self.expert_activation(False)] if experts else []
        if name == "mla_up_proj":
            ups = [
                item
                for item in first
                if isinstance(item, Operation) and item.name in ("query_up forward", "kv_up forward")
            ]
            return [*ups, *self.rotary(False)] if ups else []
        if name in ("mlp", "moe"):
            return last[1:-1] if experts == (name == "moe") else []
        norms = [self.norm(False), self.norm(False)]
        return {
            "core_attn": self.core_forward,
            "layernorm": lambda: norms,
            "half": lambda: half_of_matrices(first + last),
        }[name]()

    # ---- attention

    def attention_forward(self) -> list:
        *into, out = self.shape.attention()
        products, result = [self.product(matrix, "forward") for matrix in into], self.product(out, "forward")
        core = self.keys_and_values(self.core_forward(), False)
        return [
            self.norm(False),
            *self.gather(products[-1], QKV),
            *products,
            *self.rotary(False),
            *core,
            result,
        ] + [
            *self.sum_parts(result),
            self.residual(False),
        ]

    def attention_backward(self) -> list:
        *into, out = self.shape.attention()
        back, products = (
            self.product(out, "dgrad"),
            [self.product(matrix, "dgrad") for matrix in reversed(into)],
        )
        core = self.keys_and_values(self.core_backward(), True)
        return [self.residual(True), *self.gather(back), back, *core, *self.rotary(True)] + [
            *self.gather_again(products[0]),
            *products,
            *self.sum_parts(self.product(into[-1], "wgrad"), True, QKV),
            self.norm(True),
        ]

    def rotary(self, backward: bool) -> list[Operation]:
        if self.shape.position != "rotary":
            return []
        elements = (
            self.share.rows * (self.shape.heads + self.shape.kv_heads) / self.share.tp * self.shape.head_dim
        )
        return [elementwise("rotary", elements, self.passes("rotary", backward))]

    def keys_and_values(self, core: list[Operation], backward: bool) -> list:
        """The core of attention, with the keys and values of the cp ranks: they go round a ring beside it,
        their gradients too (Liu et al. 2310.01889), or are gathered before it, and their gradients scattered
        behind it (Llama 3, 2407.21783, 3.3.2)."""
        kv = 2 * self.shape.kv_heads / self.share.tp * self.shape.head_dim
        size = self.share.micro_batch * self.share.sequence * kv * HALF
        if self.stack.cp_gathers:
            scatter = [CollectiveOp("cp scatter", "reduce_scatter", "cp", size)] if backward else []
            return [CollectiveOp("cp gather", "all_gather", "cp", size), *core, *scatter]
        beside = max(core, key=lambda op: op.kind != "elementwise") if self.stack.cp_overlap else None
        return [
            CollectiveOp("cp ring", "all_gather", "cp", size * (1 + backward), beside, self.share.cp),
            *core,
        ]

    @property
    def pairs(self):
        """Query-key pairs under the causal mask, over the rank's heads; cp ranks share them evenly."""
        heads, length = self.shape.heads / self.share.tp, self.share.sequence
        return self.share.micro_batch * heads * length * (length + 1) / 2 / self.share.cp

    def core_forward(self) -> list[Operation]:
        """Scores, softmax, values."""
        if self.stack.flash:
            return [self.flash("forward", 1, 1, 1)]
        scores, unmasked = self.scores, self.unmasked
        return [
            unmasked("scores", "qk", self.shape.head_dim),
            elementwise("softmax", scores, 2),
            *self.score_dropout(),
            unmasked("values", "pv", self.shape.value_dim),
            elementwise(
                "heads to rows", self.share.rows * self.shape.heads / self.share.tp * self.shape.value_dim, 2
            ),
        ]

    def core_backward(self) -> list[Operation]:
        if self.stack.flash:
            return [self.flash("backward", 3, 2, 2)]
        unmasked = self.unmasked
        return [
            unmasked("values dgrad", "qk", self.shape.value_dim),
            unmasked("values wgrad", "pv", self.shape.value_dim),
            *self.score_dropout(),
            elementwise("softmax", self.scores, 3),
            unmasked("queries", "pv", self.shape.head_dim),
            unmasked("keys", "pv", self.shape.head_dim),
            elementwise(
                "rows to heads", self.share.rows * self.shape.heads / self.share.tp * self.shape.value_dim, 4
            ),
        ]

    def flash(self, direction: str, query_products: int, value_products: int, times: int) -> Operation:
        """One fused kernel: (pairs x head_dim) products of queries and keys, and of probabilities and
        values."""
        heads, kv_heads = self.shape.heads / self.share.tp, self.shape.kv_heads / self.share.tp
        flops = (
            2.0 * self.pairs * (query_products * self.shape.head_dim + value_products * self.shape.value_dim)
        )
        arrays = times * self.share.rows * (heads + kv_heads) * (self.shape.head_dim + self.shape.value_dim)
        kind = f"{self.stack.attention} {direction}"
        return Operation("attention", kind, (self.pairs,), self.share.dtype, flops, arrays * HALF, times)

    @property
    def scores(self):
        return (
            self.share.micro_batch
            * self.shape.heads
            / self.share.tp
            * self.share.sequence
            * self.share.sequence
            / self.share.cp
        )

    def unmasked(self, name: str, side: str, width: int) -> Operation:
        """A product over all pairs: into scores (qk), or from them (pv)."""
        length, mine = self.share.sequence, self.share.sequence / self.share.cp
        n, k = (length, width) if side == "qk" else (width, length)
        return matmul(
            name, mine, n, k, self.share.dtype, self.share.micro_batch * self.shape.heads / self.share.tp
        )

    def score_dropout(self) -> list[Operation]:
        return [elementwise("score dropout", self.scores, SCORE_DROPOUT)] if self.stack.dropout else []

    # ---- the MLP

    def mlp_forward(self) -> list:
        up, down = (self.product(matrix, "forward") for matrix in self.shape.mlp(self.shape.ffn))
        middle = self.activation(self.share.rows * self.shape.ffn / self.share.tp, False)
        return [
            self.norm(False),
            *self.gather(up, 1 + self.shape.gated),
            up,
            middle,
            down,
            *self.sum_parts(down),
            self.residual(False),
        ]

    def mlp_backward(self) -> list:
        up, down = self.shape.mlp(self.shape.ffn)
        down_back, up_back = self.product(down, "dgrad"), self.product(up, "dgrad")
        middle = self.activation(self.share.rows * self.shape.ffn / self.share.tp, True)
        return [
            self.residual(True),
            *self.gather(down_back),
            down_back,
            middle,
            *self.gather_again(up_back),
            up_back,
        ] + [
            *self.sum_parts(self.product(up, "wgrad"), True, 1 + self.shape.gated),
            self.norm(True),
        ]

    # ---- the two ends of the model

    def lookup(self, backward: bool) -> Operation:
        """Copy rows of the table, or add up their gradients in it."""
        return elementwise("lookup", self.share.rows * self.shape.hidden, 3 if backward else 2)

    def head(self) -> tuple[list, list, list]:
        """Final norm, logits and loss: forward, backward for inputs, backward for weights."""
        logits = Linear("logits", self.shape.hidden, self.shape.vocab, False, "columns")
        forward, back, weight = (self.product(logits, side) for side in ("forward", "dgrad", "wgrad"))
        elements = self.share.rows * self.shape.vocab
        loss = elementwise(
            "loss",
            elements / self.share.tp if self.stack.parallel_loss else elements,
            self.stack.logit_bytes / 2 / HALF,
        )
        whole = (
            []
            if self.stack.parallel_loss
            else [CollectiveOp("tp logits", "all_gather", "tp", elements * HALF)]
        )
        return (
            [self.norm(False), *self.gather(forward), forward, *whole, loss],
            [loss, back, *self.sum_parts(weight, True), self.norm(True)],
            [weight],
        )


def with_casts(items: list) -> list:
    """Before a matmul in fp8 its activations, or their gradients, are cast: read in 16 bits, written in 8, as
    they are and transposed."""
    result = []
    for item in items:
        if isinstance(item, Operation) and item.dtype == "float8" and not item.name.endswith("wgrad"):
            result.append(elementwise("cast to fp8", item.flops / (2 * item.shape[1]), 2))
        result.append(item)
    return result


def _last_matmul(items: list) -> int:
    return max(
        place for place, item in enumerate(items) if isinstance(item, Operation) and item.kind == "matmul"
    )


def half_of_matrices(items: list) -> list:
    """torchtitan's selective recomputation: every second matmul runs again, everything small too, attention
    never (2410.06511)."""
    small = [item for item in items if isinstance(item, Operation) and item.kind == "elementwise"]
    matmuls = [item for item in items if isinstance(item, Operation) and item.kind == "matmul"]
    return small + [
        item._replace(flops=item.flops / 2, bytes=item.bytes / 2, shape=_half(item.shape)) for item in matmuls
    ]


def _half(shape: tuple) -> tuple:
    m, n, k = shape
    return m, n, k / 2
