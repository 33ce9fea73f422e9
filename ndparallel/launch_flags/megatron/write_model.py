"""The flags of a model for Megatron-Core: its sizes, its layers, its attention, its experts.

Idea   What Megatron-Core's GPT cannot be is refused, and never written as another model.

Glossary: see ../fields.py.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from ndparallel.launch_flags import fields
from ndparallel.launch_flags.megatron.constants import (
    clamp_flags,
    constant_flags,
    is_balanced,
    is_stretched,
)
from ndparallel.launch_flags.megatron.rules import no_flags_for
from ndparallel.parallel.divisibility import divisors
from ndparallel.planner.models.shape import ModelShape


def model_flags(shape: ModelShape) -> Iterator[str]:
    """Yield a model's flags. Raises UserError for a model that Megatron-Core's GPT cannot be."""
    yield from numbers(shape, fields.SIZES)
    yield (
        flags_for("activation", shape.activation, fields.ACTIVATIONS)
        if shape.constants.activation_clamp is None
        else clamp_flags(shape)
    )
    yield flags_for("norm", shape.norm, fields.NORMS)
    yield fields.ZERO_CENTERED if shape.constants.zero_centered else ""
    if ("norm" in shape.biases) != (shape.norm == "layernorm"):
        raise no_flags_for(f"a {shape.norm} {'with' if 'norm' in shape.biases else 'without'} a shift")
    refuse_other_layers(shape)
    yield fields.YARN if is_stretched(shape) else flags_for("position", shape.position, fields.POSITIONS)
    linear = tuple(bias for bias in ("qkv", "output", "mlp") if bias in shape.biases)
    yield flags_for("biases of", linear, fields.LATENT_BIASES if shape.latent else fields.BIASES)
    yield "" if shape.tied_embeddings else "--untie-embeddings-and-output-weights"
    yield from latent_flags(shape) if shape.latent else attention_flags(shape)
    yield fields.SINKS if shape.sinks else ""
    yield from linear_flags(shape)
    yield from window_flags(shape)
    yield from unrotated_flags(shape)
    yield from expert_flags(shape)
    yield from constant_flags(shape)
    yield f"{fields.PREDICTION} {shape.prediction_layers}" if shape.prediction_layers else ""


def refuse_other_layers(shape: ModelShape) -> None:
    """Raise UserError for layers that are put together otherwise than Megatron-Core's."""
    for there, what in (*other_layers(shape), *other_attention(shape)):
        if there:
            raise no_flags_for(what)


def other_layers(shape: ModelShape) -> Iterator[tuple[Any, str]]:
    """What of layers and ends of the model Megatron-Core does not have, and whether it is there."""
    yield shape.parallel, "attention and MLP that read the same input"
    yield (
        shape.experts and shape.experts.own_norms,
        "norms of their own of router, experts and shared experts",
    )
    yield shape.norms != "before", "norms behind attention and MLP, or one norm for both"
    yield shape.embedding_norm, "a norm of the embedding"
    yield not shape.norm_weights, "norms without weights"
    yield "head" in shape.biases, "a bias of the head"
    yield (
        is_stretched(shape) and shape.prediction_layers,
        "multi-token prediction with positions of YaRN, but in latent attention",
    )


def other_attention(shape: ModelShape) -> Iterator[tuple[Any, str]]:
    """What of attention Megatron-Core does not have, and whether it is there."""
    gate, norm, constants = shape.output_gate, shape.qk_norm, shape.constants
    yield shape.windowed, "heads of their own in the layers with a window"
    yield shape.value_width not in (0, shape.head_dim), "heads of values of another width than keys"
    yield shape.keys_as_values, "values that are made of the keys"
    yield norm == "values", "norms of values"
    yield norm == "width", "a norm over all heads of queries, and of keys, together"
    yield (
        norm == "unscaled" and constants.unrotated,
        "norms of queries and keys in the layers with positions alone",
    )
    yield constants.rotated_first and norm, "norms of queries and keys behind their rotation"
    yield gate == "head", "gates of one number for each head"
    yield gate == "biased", "biases of their own of the gates of heads"
    yield (
        gate == "element" and "qkv" in shape.biases,
        "gates of heads without the biases that queries have",
    )


def attention_flags(shape: ModelShape) -> Iterator[str]:
    yield f"{fields.HEAD_DIM} {shape.head_dim}"
    yield (f"{fields.KV_HEADS} {shape.kv_heads}" if shape.kv_heads != shape.heads else "")
    yield fields.QK_NORMS[shape.qk_norm]
    yield fields.OUTPUT_GATE if shape.output_gate else ""


def linear_flags(shape: ModelShape) -> Iterator[str]:
    """Linear attention, and the layers that have it."""
    if not shape.linear:
        return
    yield f"{fields.VARIANT} gated_delta_net"
    yield from numbers(shape.linear, fields.LINEAR_SIZES)
    kinds = [layer in shape.linear.layers for layer in range(shape.layers)]
    yield f"{fields.LINEAR_LAYERS} {runs_of(kinds)}"


def window_flags(shape: ModelShape) -> Iterator[str]:
    """The window, in Megatron's count of tokens on the left and on the right, and the layers that have it; of
    chunks the sequence has one (write.py)."""
    if not shape.window or shape.chunked:
        return
    yield f"{fields.WINDOW} {shape.window - 1},0"
    kinds = [layer not in shape.whole_layers for layer in range(shape.layers)]
    yield f"{fields.WINDOWED} {runs_of(kinds)}" if shape.whole_layers else ""


def unrotated_flags(shape: ModelShape) -> Iterator[str]:
    if without := shape.constants.unrotated:
        yield f"{fields.UNROTATED} {runs_of([layer in without for layer in range(shape.layers)])}"


def latent_flags(shape: ModelShape) -> Iterator[str]:
    """Yield the flags of latent attention, whose norms are `--qk-layernorm`. The other attention's width is
    asked for where heads do not divide the residual (validate_args in megatron/training/arguments.py)."""
    assert shape.latent
    if shape.qk_norm:
        raise no_flags_for("multi-head latent attention with a norm on every head")
    yield "--multi-latent-attention --qk-layernorm"
    yield from numbers(shape.latent, fields.LATENT_SIZES)
    yield f"--q-lora-rank {shape.latent.query_rank}" if shape.latent.query_rank else ""
    yield f"{fields.HEAD_DIM} {shape.latent.nope_dim}" if shape.hidden % shape.heads else ""


def expert_flags(shape: ModelShape) -> Iterator[str]:
    if not (some := shape.experts):
        return
    yield from numbers(some, fields.EXPERT_SIZES)
    yield " ".join(numbers(some, fields.EXPERT_GROUPS)) if some.groups > 1 else ""
    kinds = [shape.has_experts(layer) for layer in range(shape.layers)]
    yield f"--moe-layer-freq {runs_of(kinds)}" if some.dense_layers else ""
    yield (
        f"--moe-shared-expert-intermediate-size {some.shared_experts * some.shared_ffn}"
        if some.shared_experts
        else ""
    )
    yield "--moe-shared-expert-gate" if some.shared_gate else ""
    yield from score_flags(shape)
    yield "--moe-grouped-gemm"
    yield "--no-bias-dropout-fusion" if "mlp" in shape.biases else ""


def runs_of(kinds: Sequence[bool]) -> str:
    """Which layers are of a kind, as Megatron writes it: "([0]*3+[1]*58)", or "([0]*1+[1]*1)*24"."""
    kinds, times = period_of([*kinds])
    starts = [layer for layer in range(len(kinds)) if layer == 0 or kinds[layer] != kinds[layer - 1]]
    ends = [*starts[1:], len(kinds)]
    runs = "+".join(f"[{int(kinds[a])}]*{b - a}" for a, b in zip(starts, ends))
    return f'"({runs})*{times}"' if times > 1 else f'"({runs})"'


def period_of(kinds: list[bool]) -> tuple[list[bool], int]:
    """The shortest part that the list repeats, and how often; of layers all alike the list itself."""
    lengths = [] if len({*kinds}) == 1 else divisors(len(kinds))
    for length in lengths:
        if kinds == kinds[:length] * (len(kinds) // length):
            return kinds[:length], len(kinds) // length
    return kinds, 1


def score_flags(shape: ModelShape) -> Iterator[str]:
    """How a router weighs experts: by a softmax, or by sigmoids, which alone may have numbers that balance
    the load."""
    given, balanced = shape.constants, is_balanced(shape)
    if balanced and given.scores == "softmax":
        raise no_flags_for("a softmax router with numbers that balance the load")
    by_sigmoid = balanced or given.scores == "sigmoid"
    several = shape.experts is not None and shape.experts.top_k > 1
    if by_sigmoid and several and given.renormalized is False:
        raise no_flags_for("sigmoids of a router whose sum is not made 1")
    if given.scaled_inputs and several:
        raise no_flags_for("weights on the inputs of several experts")
    yield f"{fields.SCORES} sigmoid" if by_sigmoid else ""
    yield "--moe-router-enable-expert-bias" if balanced else ""
    yield fields.SCALED_INPUTS if given.scaled_inputs else ""


# ---------------------------------------------------------------------------------------------------- helpers


def numbers(thing: object, flags: dict[str, str]) -> Iterator[str]:
    return (f"{flag} {getattr(thing, name)}" for name, flag in flags.items())


def flags_for(what: str, word, flags: dict) -> str:
    """The flags of a choice. Raises UserError where Megatron-Core has none."""
    if word not in flags:
        has = ", ".join(map(str, flags))
        raise no_flags_for(f"{what} {word}", f"it has {has}")
    return flags[word]
