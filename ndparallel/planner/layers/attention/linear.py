"""Linear attention's half of a layer, by the gated delta rule: products into heads, a convolution, the rule
itself, a gated norm, and the product out of heads.

Idea   The rule goes over a sequence chunk by chunk. Inside a chunk its kernels multiply, and from chunk to
       chunk a head hands on its state: so they are as fast as there are heads and sequences to go over at
       once, and take as long for a token whatever the sequence's length. Forward and backward stand next to
       each other.
Cost   Of every token and head: 3 products of chunk x key_dim, 2 of chunk x value_dim, 3 of key_dim x
       value_dim; backward 9, 5 and 8, as they recompute (fla/ops/gated_delta_rule/chunk.py and
       fla/ops/common, fla-org/flash-linear-attention 0.5.1).
Limit  The rates are those of flash-linear-attention's Triton kernels; FlashQLA's take half of the time.
       With fewer states than were measured, 8 forward and 4 backward, they stay, which is too fast.
       Triangular matrices are multiplied whole; what solves with one is not counted. What a kernel reads
       again while a cache has it is not counted, either.

Glossary
    chunk    tokens that the rule multiplies at once
    states   sequences x heads of values that a GPU goes over at the same time
    mixed    queries, keys and values of a token together, which pass the convolution
"""

from functools import cached_property

from gpu import Operation
from ndparallel.planner.layers.operations import CollectiveOp
from ndparallel.planner.layers.parts import ATTENTION, LayerParts
from ndparallel.planner.models.attentions import GatedDeltaNet
from ndparallel.planner.models.matrices import Linear
from ndparallel.planner.numbers import anywhere
from ndparallel.planner.stack_words import HAND_WRITTEN

CHUNK = 64  # chunk_size of chunk_gated_delta_rule
# chunk_gated_delta_rule_fwd, chunk_gated_delta_rule_bwd: with sums over a chunk, zeros, and sums of gradients
KERNELS = {"forward": 6, "backward": 10}
# of each token and head: products of chunk x key_dim, of chunk x value_dim, and of key_dim x value_dim
PRODUCTS = {"forward": (3, 2, 3), "backward": (9, 5, 8)}
# arrays that these kernels read and write: of keys, of values, of chunk x chunk, and of a state a chunk
ARRAYS = {"forward": (7, 6, 3, 2), "backward": (21, 15, 2, 4)}


class LinearAttentionLists(LayerParts):
    """Writes linear attention's half of a layer."""

    @cached_property
    def net(self) -> GatedDeltaNet:
        if self.shape.linear is None:
            raise ValueError(f"{self.shape.name} has no linear attention.")
        return self.shape.linear

    @cached_property
    def matrices(self) -> tuple[Linear, ...]:
        return self.net.matrices(self.shape.hidden)

    @cached_property
    def forward(self) -> list:
        into, out = (self.product(matrix, "forward") for matrix in self.matrices)
        return [
            *self.norms_before(ATTENTION, False),
            *self.tp.gather(into),
            into,
            *self.to_heads(False),
            *self.convolution(False),
            *self.heads_apart(False),
            self.delta_rule("forward"),
            *self.gated_norm(False),
            *self.to_tokens(),
            *self.tp.summed(out, out),
            *self.norms_behind(ATTENTION, False),
            self.residual(False),
        ]

    @cached_property
    def backward(self) -> list:
        into, out = (self.product(matrix, "dgrad") for matrix in self.matrices)
        half = [
            *self.norms_behind(ATTENTION, True),
            *self.tp.gather(out),
            out,
            *self.to_tokens(),
            *self.gated_norm(True),
            self.delta_rule("backward"),
            *self.heads_apart(True),
            *self.convolution(True),
            *self.to_heads(True),
            *self.tp.gather_again(into),
            *self.tp.summed(into, self.product(self.matrices[0], "wgrad"), True),
            *self.norms_before(ATTENTION, True),
        ]
        return self.with_residual(half)

    @cached_property
    def weight_gradients(self) -> list:
        return self.weights(self.matrices)

    def core_again(self) -> list:
        """Selective recomputation of attention's core leaves linear attention alone."""
        return []

    def latent_again(self) -> list:
        return []

    # ---- between the products

    def delta_rule(self, direction: str) -> Operation:
        """The kernels of the rule over all chunks. Their rate depends on the number of states."""
        net, tokens = self.net, self.of_tokens(self.net.value_heads)
        by_key, by_value, by_state = PRODUCTS[direction]
        state = net.key_dim * net.value_dim
        flops = CHUNK * (by_key * net.key_dim + by_value * net.value_dim) + by_state * state
        keys, values, squares, states = ARRAYS[direction]
        moved = keys * net.key_dim + values * net.value_dim + squares * CHUNK + states * state / CHUNK
        at_once = self.share.micro_batch * net.value_heads / self.share.tp / self.share.cp
        return Operation(
            "linear attention",
            f"delta-rule {direction}",
            (tokens, at_once, net.key_dim),
            self.share.dtype,
            2.0 * flops * tokens,
            moved * tokens * self.itemsize,
            KERNELS[direction],
        )

    def of_tokens(self, width):
        """Elements of an array that has so many for each of the rank's tokens."""
        return self.share.rows * width / self.share.tp

    def convolution(self, backward: bool) -> list[Operation]:
        """A convolution over a few tokens, and its activation, out of the array that the product gave;
        backward it runs again, as its result before the activation is not kept (CausalConv1dFunction and
        causal_conv1d_bwd in fla/modules/conv/triton/ops.py). Around it the gradients of queries, keys and
        values are joined, and those of all that the product gave."""
        mixed, joined = self.of_tokens(self.net.mixed), self.of_tokens(self.matrices[0].outputs)
        if not backward:
            return [self.elementwise("convolution", mixed, 2)]
        return [
            self.elementwise("join q, k, v", mixed, 2),
            self.elementwise("convolution", mixed, 6, 2),
            self.elementwise("join heads", joined, 2),
        ]

    def heads_apart(self, backward: bool) -> list[Operation]:
        """Norms of queries and keys, and their copies for each of the heads of values that they serve;
        forward values and gates are made contiguous too (_prepare_input_for_gated_delta_rule in
        megatron/core/ssm/gated_delta_net/common.py)."""
        net = self.net
        once, copied = self.of_tokens(2 * net.keys), self.of_tokens(2 * net.value_heads * net.key_dim)
        norms = self.elementwise("norms of heads", once, 3 if backward else 4, 1 if backward else 2)
        copies = self.elementwise("heads of keys", once + copied, 1, 2)
        if backward:
            return [copies, norms]
        return [norms, copies, self.elementwise("values apart", self.of_tokens(2 * net.values), 2, 2)]

    def gated_norm(self, backward: bool) -> list[Operation]:
        """A norm of each head, times its gate; of several sequences a copy that puts tokens first again."""
        values, several = self.of_tokens(self.net.values), 1 * (self.share.micro_batch > 1)
        kernels = 2 if self.stack.fusion in HAND_WRITTEN else 1
        normed = self.elementwise("gated norm", values, self.passes("gated norm", backward), kernels)
        copied = self.elementwise("heads to rows", several * values, 2, several)
        return [copied, normed] if backward else [normed, copied]

    def to_heads(self, backward: bool) -> list:
        """From a part of the sequence with all heads to all of it with a part of the heads. Heads are
        ordered and cut before, and tokens ordered behind (a2a_cp_to_hp in
        megatron/core/ssm/gated_delta_net/common.py); backward the order of heads is a sum into zeros."""
        return self.over_cp(self.matrices[0].outputs, *((8, 4) if backward else (6, 3)))

    def to_tokens(self) -> list:
        """And back: tokens are ordered before, and heads joined behind (a2a_hp_to_cp in the same file)."""
        return self.over_cp(self.net.values, 4, 2)

    def over_cp(self, width: int, passes: int, kernels: int) -> list:
        """An all-to-all over cp, and the copies around it."""
        if not anywhere(self.share.cp > 1):
            return []
        elements, there = self.of_tokens(width), self.share.cp > 1
        return [
            CollectiveOp("cp heads", "all_to_all", "cp", elements * self.itemsize),
            self.elementwise("order heads", there * elements, passes, kernels * there),
        ]

    # ---- memory

    @property
    def kept(self):
        """Numbers kept from forward to backward: all that the first product gives, which the convolution and
        the gates read; what the rule takes, with its queries and keys before and behind their copies, and
        its inverse of each chunk; what the rule gives, before and behind its norm where a kernel of its own
        makes that; and the gate. Not what goes into the last product."""
        net, behind_norm = self.net, self.stack.fusion in HAND_WRITTEN
        heads = net.value_heads * (2 * net.key_dim + net.value_dim + CHUNK)
        behind = (2 + behind_norm) * net.values
        return self.of_tokens(self.matrices[0].outputs + 2 * net.keys + heads + behind)
