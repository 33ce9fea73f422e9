"""Kinds of attention that are more than the same heads in every layer: heads of layers with a window, latent
attention, and linear attention, which takes attention's place in some layers.

Glossary: see `ndparallel.planner.models.shape`, and
    state    what a head of linear attention remembers: key_dim x value_dim numbers
"""

from dataclasses import dataclass

from ndparallel.base.errors import UserError
from ndparallel.planner.models.matrices import Linear
from ndparallel.planner.models.sizes import checked_size, checked_sizes, near_divisors


@dataclass(frozen=True)
class WindowedHeads:
    """The heads of layers with a window, where other layers have other heads. Its fields are those of a
    ModelShape, in whose place they stand in these layers."""

    heads: int
    kv_heads: int
    head_dim: int
    value_width: int = 0
    keys_as_values: bool = False
    sinks: bool = False


@dataclass(frozen=True)
class LatentAttention:
    """Ranks and head widths of multi-head latent attention (arXiv 2405.04434, section 2.1). With query_rank 0
    queries take one matrix."""

    query_rank: int
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int

    def __post_init__(self) -> None:
        checked_sizes(self, ("kv_rank", "nope_dim", "rope_dim", "value_dim"))
        checked_size(self.query_rank, "query_rank", least=0)

    @property
    def head_dim(self) -> int:
        return self.nope_dim + self.rope_dim

    def queries(self, hidden: int, heads: int, bias: bool) -> tuple[Linear, ...]:
        width = heads * self.head_dim
        if not self.query_rank:
            return (Linear("query", hidden, width, False, "columns"),)
        down = Linear("query_down", hidden, self.query_rank, bias, "whole")
        return down, Linear("query_up", self.query_rank, width, False, "columns")

    def keys_and_values(self, hidden: int, heads: int, bias: bool) -> tuple[Linear, ...]:
        # all heads share one key with position
        down = Linear("kv_down", hidden, self.kv_rank + self.rope_dim, bias, "whole")
        return down, Linear("kv_up", self.kv_rank, heads * (self.nope_dim + self.value_dim), False, "columns")


@dataclass(frozen=True)
class GatedDeltaNet:
    """Linear attention by the gated delta rule (Yang et al., arXiv 2412.06464) in `layers` (their numbers,
    from 0). Every head of values has a state, which a gate lets decay and a second one lets learn; heads of
    queries and keys serve several of them. Queries, keys and values pass a convolution over `conv` tokens,
    and what comes out is normed and gated (Qwen3NextGatedDeltaNet in transformers). Where it is `joined`, the
    gate's matrix is one with that of queries, keys and values, and so are the two gates of states."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv: int
    layers: tuple[int, ...]
    joined: bool = False

    def __post_init__(self) -> None:
        checked_sizes(self, ("key_heads", "value_heads", "key_dim", "value_dim", "conv"))
        if self.value_heads % self.key_heads:
            near = near_divisors(self.value_heads, self.key_heads)
            raise UserError(
                f"{self.key_heads} heads of keys cannot serve {self.value_heads} heads of values evenly; "
                f"nearest: {near}."
            )

    @property
    def keys(self) -> int:
        """Numbers of a token's keys, as many as of its queries."""
        return self.key_heads * self.key_dim

    @property
    def values(self) -> int:
        """Numbers of a token's values, as many as of their gate."""
        return self.value_heads * self.value_dim

    @property
    def products(self) -> tuple[int, ...]:
        """Numbers of a token's queries, keys, values, their gate, and of two gates of states."""
        return self.keys, self.keys, self.values, self.values, self.value_heads, self.value_heads

    @property
    def mixed(self) -> int:
        """Numbers of a token that pass the convolution."""
        return 2 * self.keys + self.values

    @property
    def states(self) -> int:
        """Numbers in all states of one sequence."""
        return self.value_heads * self.key_dim * self.value_dim

    def matrices(self, hidden: int) -> tuple[Linear, ...]:
        """Into queries, keys, values and their gate, and two gates for each head of values; and out."""
        return (
            Linear("linear_in", hidden, sum(self.products), False, "columns"),
            Linear("linear_out", self.values, hidden, False, "rows"),
        )

    def small_parameters(self) -> int:
        """Parameters outside of these: the convolution, two biases of gates for each head, a norm."""
        return self.conv * self.mixed + 2 * self.value_heads + self.value_dim
