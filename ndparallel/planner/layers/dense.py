"""The lists of one layer, written out: attention, the MLP, and the two ends of the model; experts.py has
the mixture of experts.

Idea   Forward and backward of each half stand next to each other, its collectives where the software has
       them.
Limit  As parts.py.

Glossary: see `ndparallel.planner.layers.operations`.
"""

from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import count

from gpu import Operation
from ndparallel.base.latest import latest
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.layers.attention import AttentionLists
from ndparallel.planner.layers.experts import ExpertLists
from ndparallel.planner.layers.frozen import FrozenLists
from ndparallel.planner.layers.latent import LatentLists
from ndparallel.planner.layers.operations import SINGLE, CollectiveOp, Layer
from ndparallel.planner.layers.parts import ATTENTION, MLP
from ndparallel.planner.models.shape import Linear
from ndparallel.planner.stages import padded_vocab

QKV = 3  # matrices side by side: queries, keys, values
# products whose input the one before makes, in fused experts
INSIDE_EXPERTS = ("experts down forward", "experts gate_up dgrad", "experts up dgrad")


class LayerLists(AttentionLists, ExpertLists, LatentLists):
    """Writes the lists of one kind of layer for one share and one stack."""

    def unit(self, kind: str, recompute: str) -> Layer:
        """The four lists of an embedding, dense, experts or head unit, written once; `recompute` is none,
        selective or full."""
        if (kind, recompute) not in self.units:
            self.units[kind, recompute] = self.written(kind, recompute)
        return self.units[kind, recompute]

    @cached_property
    def units(self) -> dict[tuple[str, str], Layer]:
        return {}

    def written(self, kind: str, recompute: str) -> Layer:
        frozen = self.frozen
        if kind == "embedding":
            return frozen.embedding(self.embedding()) if frozen else self.embedding()
        if kind == "head":
            head = self.with_prediction(self.head(), recompute)
            return frozen.head(head) if frozen else head
        return self.layer(kind == "experts", recompute)

    @property
    def frozen(self) -> FrozenLists | None:
        return FrozenLists(self.shape, self.share.adapters) if self.share.adapters else None

    def layer(self, experts: bool, recompute: str) -> Layer:
        attention = self.attention_forward + self.small("attention", False)
        mlp = (self.experts_forward() if experts else self.mlp_forward()) + self.small("mlp", False)
        back = (self.experts_backward() if experts else self.mlp_backward()) + self.attention_backward
        back = back + self.small("mlp", True) + self.small("attention", True)
        again, weights = self.again(attention, mlp, recompute), self.layer_weights(experts)
        lists = Layer(attention + mlp, again, back, weights)
        lists = self.frozen.layer(lists) if self.frozen else lists
        return Layer(*map(self.with_casts, lists)) if self.share.number_type.kernels else lists

    def layer_weights(self, experts: bool) -> list:
        attention = self.attention_weights
        mlp = self.experts_weights() if experts else self.weights(self.shape.mlp(self.shape.ffn))
        return mlp + attention if self.stack.in_order else attention + mlp

    def again(self, attention: list, mlp: list, recompute: str) -> list:
        """What runs again of both halves before the backward pass."""
        if recompute == "full":
            needed = mlp[: _last_matmul(mlp)] if self.stack.early_stop else mlp
            return self.small("recompute", False) + attention + needed
        modules = self.stack.selective if recompute == "selective" else ()
        return [item for module in modules for item in self.module(module, attention, mlp)]

    def module(self, name: str, attention: list, mlp: list) -> list:
        """What one module of selective recomputation runs again; nothing where the layer has none."""
        experts = any(isinstance(item, CollectiveOp) and item.group == "ep" for item in mlp)
        if name == "moe_act":
            return [self.expert_activation(False)] if experts else []
        if name == "mla_up_proj":
            return [*self.from_ranks(), *self.rotary(False)] if self.shape.latent else []
        if name in ("mlp", "moe"):
            return mlp[len(self.norms_before(MLP, False)) : -1] if experts == (name == "moe") else []
        norms = [norm for half in (ATTENTION, MLP) for norm in self.norms_before(half, False)]
        return {
            "core_attn": self.core_again,
            "layernorm": lambda: norms,
            "half": lambda: self.every_second(attention + mlp),
        }[name]()

    def every_second(self, items: list) -> list:
        """What torchtitan's selective recomputation runs again: every second matrix and everything small, as
        far as anything needs it; attention and what is exchanged never (2410.06511; _save_list in torchtitan
        of 2024, parallelisms/parallelize_llama.py)."""
        operations = [item for item in items if isinstance(item, Operation)]
        needed = operations[: _last_matmul(operations)] if self.stack.early_stop else operations
        small = [item for item in needed if item.kind == "elementwise"]
        matmuls = [(item, self.again_share(item)) for item in needed if item.kind == "matmul"]
        return small + [partly(matmul, share) for matmul, share in matmuls if share]

    def again_share(self, matmul: Operation) -> float:
        """The share of a product that runs again: all of what is no aten.mm, as experts' and in fewer bits,
        and of the router."""
        name = matmul.name.removesuffix(" forward")
        return self.second_shares.get(name, 1.0) if matmul.dtype == self.share.dtype else 1.0

    @cached_property
    def second_shares(self) -> dict[str, float]:
        """The share of each matrix's outputs, outside experts, that every second product makes, as torch
        counts them: queries, keys, values, output, gate, up, down."""
        sizes = {"qkv": (self.shape.heads, self.kv_heads, self.kv_heads), "gate_up": (1, 1)}
        places, shares = count(1), {}
        for matrix in (*self.attention(), *self.shape.mlp(self.shape.ffn)):
            parts = sizes.get(matrix.name, (1,))
            shares[matrix.name] = sum(part for part in parts if next(places) % 2 == 0) / sum(parts)
        return shares

    # ---- attention, which dense layers and mixtures have alike

    @cached_property
    def attention_forward(self) -> list:
        result = self.product(self.attention()[-1], "forward")
        return [
            *self.norms_before(ATTENTION, False),
            *self.into_heads(),
            *self.norms_of_heads(False),
            *self.rotary(False),
            *self.core(False),
            *self.summed(result, result),
            *self.norms_behind(ATTENTION, False),
            self.residual(False),
        ]

    @cached_property
    def attention_backward(self) -> list:
        back = self.product(self.attention()[-1], "dgrad")
        half = [
            *self.norms_behind(ATTENTION, True),
            *self.gather(back),
            back,
            *self.core(True),
            *self.rotary(True),
            *self.norms_of_heads(True),
            *self.out_of_heads(),
            *self.norms_before(ATTENTION, True),
        ]
        return self.with_residual(half)

    def into_heads(self) -> list:
        """The products that give queries, keys and values, and what they gather."""
        if self.gathers_ranks:
            return [*self.to_ranks(), *self.from_ranks()]
        products = [self.product(matrix, "forward") for matrix in self.attention()[:-1]]
        return [*self.gather(products[-1], QKV), *products]

    def out_of_heads(self) -> list:
        """Their gradients' way back."""
        if self.gathers_ranks:
            return [*self.back_to_ranks(), *self.back_from_ranks()]
        *into, _ = self.attention()
        products = [self.product(matrix, "dgrad") for matrix in reversed(into)]
        summed = self.summed(products[-1], self.product(into[-1], "wgrad"), True, QKV)
        return [*self.gather_again(products[0]), *products[:-1], *summed]

    @cached_property
    def attention_weights(self) -> list:
        return self.weights(self.attention())

    def rotary(self, backward: bool) -> list[Operation]:
        if self.shape.position != "rotary":
            return []
        passes, kernels = self.passes("rotary", backward), self.stack.rotary_kernels
        return [self.elementwise("rotary", self.queries_and_keys, passes, kernels)]

    def norms_of_heads(self, backward: bool) -> list[Operation]:
        """Norms of queries and of keys, two kernels."""
        if not self.shape.qk_norm:
            return []
        return [self.elementwise("norms of heads", self.queries_and_keys, self.passes("norm", backward), 2)]

    @property
    def queries_and_keys(self):
        """Elements of the rank's queries and keys."""
        return self.share.rows * (self.shape.heads + self.kv_heads) / self.share.tp * self.shape.head_dim

    # ---- the MLP

    def mlp_forward(self) -> list:
        matrices = self.shape.mlp(self.shape.ffn)
        half = [*self.norms_before(MLP, False), *self.gated_forward(matrices), *self.norms_behind(MLP, False)]
        return [*half, self.residual(False)]

    def mlp_backward(self) -> list:
        matrices = self.shape.mlp(self.shape.ffn)
        half = [*self.norms_behind(MLP, True), *self.gated_backward(matrices), *self.norms_before(MLP, True)]
        return self.with_residual(half)

    # ---- the two ends of the model

    def embedding(self) -> Layer:
        """Every tp rank looks up what it has of the vocabulary; the sum over them is counted where the stack
        says so."""
        into, back = self.lookup(False), self.lookup(True)
        normed = [[self.norm(way)] * self.shape.embedding_norm for way in (False, True)]
        summed = self.sum_parts(into) if self.stack.vocabulary_sums else []
        gathered = self.gather(back) if self.stack.vocabulary_sums else []
        backward: tuple[list, list] = ([], [*normed[True], *gathered, back])
        return Layer(
            [into, *summed, *normed[False]], [], *(backward if self.stack.table_waits else reversed(backward))
        )

    def lookup(self, backward: bool) -> Operation:
        """Copy rows of the table, or add up their gradients in it."""
        return self.elementwise("lookup", self.share.rows * self.shape.hidden, 3 if backward else 2)

    def with_prediction(self, head: Layer, recompute: str) -> Layer:
        """The head, and for each prediction layer two norms, the matrix that joins two hidden states, a
        layer, and the head again (DeepSeek-V3, arXiv 2412.19437, section 2.2)."""
        if not self.shape.prediction_layers:
            return head
        matrices = self.shape.prediction()
        layer = self.unit("experts" if self.shape.moe_layers else "dense", recompute)
        (into,), (back,) = ([self.product(one, side) for one in matrices] for side in ("forward", "dgrad"))
        joined = Layer(
            [self.norm(False)] * 2 + [*self.gather(into) * 2, into, *self.gathered_columns()],
            [],
            [back, *self.sum_parts(back, True), *[self.norm(True)] * 2],
            self.weights(matrices),
        )
        one = [sum(lists, []) for lists in zip(joined, layer, head)]
        return Layer(*(mine + more * self.shape.prediction_layers for mine, more in zip(head, one)))

    def gathered_columns(self) -> list[CollectiveOp]:
        """The outputs of a column matrix, which tp ranks hold parts of, wanted whole."""
        return [CollectiveOp("tp all_gather", "all_gather", "tp", self.activation_bytes)]

    def head(self) -> Layer:
        """Final norm, logits and loss: forward, backward for inputs, backward for weights."""
        vocab = padded_vocab(self.shape, self.stack, self.share.tp)
        logits = Linear("logits", self.shape.hidden, vocab, False, "columns")
        forward, back, weight = (self.product(logits, side) for side in ("forward", "dgrad", "wgrad"))
        elements = self.share.rows * vocab
        loss = self.elementwise(
            "loss",
            elements / self.share.tp if self.stack.parallel_loss else elements,
            self.stack.logit_bytes / 2 / self.itemsize,
        )
        whole = (
            []
            if self.stack.parallel_loss
            else [CollectiveOp("tp logits", "all_gather", "tp", elements * self.itemsize)]
        )
        return Layer(
            [self.norm(False), *self.gather(forward), forward, *whole, loss, *self.sums_of_loss()],
            [],
            [loss, back, *self.sum_parts(weight, True), self.norm(True)],
            self.weight(logits),
        )

    def sums_of_loss(self) -> list[CollectiveOp]:
        """Sums over tp of a number for each token: the largest logit, the target's, the sum of
        exponentials."""
        size = self.share.rows * self.itemsize
        return [CollectiveOp("tp all_reduce", "all_reduce", "tp", size)] * (3 * self.stack.vocabulary_sums)

    def with_casts(self, items: list) -> list:
        """Cast what a matmul in fewer than 16 bits takes: its activations, or their gradients; its weights
        too, where nobody keeps them cast. The gradient of the weights takes what the two others made."""
        kind, result = self.share.number_type, []
        for item in items:
            if (
                isinstance(item, Operation)
                and item.dtype == kind.dtype
                and not self.is_cast_before(item.name)
            ):
                result += self.casts_before(item)
            result.append(item)
        return result

    def is_cast_before(self, product: str) -> bool:
        """Whether another kernel has cast what a product takes: for weights' gradients the products of the
        other passes, in fused experts the product before."""
        return product.endswith("wgrad") or (self.stack.fused_experts and product in INSIDE_EXPERTS)

    def casts_before(self, product: Operation) -> list:
        """The casts of a product's inputs; of many products in one operation each has its own."""
        kind, (rows, columns, _) = self.share.number_type, product.shape
        gathered = kind.travels and product.name in self.gathered_products
        moved = (
            kind.gathered_bytes(self.share.transposes, self.share.tp)
            if gathered
            else kind.cast_bytes(self.share.transposes)
        )
        widths = (columns, rows) if kind.casts_weights else (columns,)
        elements = sum(product.flops / (2 * width) for width in widths)
        kernels = kind.kernels * product.kernels
        name = f"{'experts ' * product.name.startswith('experts')}cast to {kind.name}"
        cast = Operation(name, "cast", (elements,), self.share.dtype, 0, moved * elements, kernels)
        amax = CollectiveOp("tp amax", "few bytes", "tp", SINGLE)
        return [cast, *[amax] * (gathered and kind.gathers_amax)]

    @cached_property
    def gathered_products(self) -> set[str]:
        """Products whose input, or its gradient, tp ranks have in shards: of column matrices in the forward
        pass, of row matrices for the gradients of their inputs."""
        sides = {"columns": "forward", "rows": "dgrad"}
        matrices = (
            (*self.attention(), *self.shape.mlp(self.shape.ffn)) if self.share.sequence_parallel else ()
        )
        return {
            f"{matrix.name} {sides[matrix.split]}"
            for matrix in matrices
            if matrix.split in sides
            and (self.gathers_ranks or self.shape.hidden in (matrix.inputs, matrix.outputs))
        }


def _last_matmul(items: list) -> int:
    return max(
        place for place, item in enumerate(items) if isinstance(item, Operation) and item.kind == "matmul"
    )


def partly(matmul: Operation, share: float) -> Operation:
    """A share of the products that a list has as one."""
    m, n, k = matmul.shape
    return matmul._replace(flops=matmul.flops * share, bytes=matmul.bytes * share, shape=(m, n * share, k))


@latest
def lists_of(job: TrainingJob, plan: Plan) -> LayerLists:
    """The lists of a job's layers, which plans that cut a layer alike share."""
    stack = replace(job.stack, selective=plan.recompute_modules) if plan.recompute_modules else job.stack
    given = job.shape, plan.share(job), stack
    try:
        return shared_lists(*given)
    except TypeError:  # an array of plans has no hash
        return LayerLists(*given)


shared_lists = lru_cache(maxsize=64)(LayerLists)
