"""The model that a command line of Megatron-Core describes.

Idea   Megatron's defaults are those of 2019's GPT-2: LayerNorm, GELU, learned positions, biases, dropout, a
       tied head. What is not given is that, and is noted.
Limit  Expert layers are all alike.
"""

import ast
import re
from dataclasses import replace
from typing import Any

from ndparallel.base.errors import UserError
from ndparallel.base.quantities import whole_number
from ndparallel.launch_flags import fields
from ndparallel.launch_flags.megatron.constants import CLAMP, constants_from
from ndparallel.launch_flags.megatron.given import GivenFlags
from ndparallel.launch_flags.shell.words import how_to_set
from ndparallel.planner.models.attentions import GatedDeltaNet, LatentAttention
from ndparallel.planner.models.experts import Experts
from ndparallel.planner.models.kinds import layers_with
from ndparallel.planner.models.presets import preset, presets
from ndparallel.planner.models.shape import ModelShape
from ndparallel.planner.models.sizes import LARGEST, head_width

NORMALIZATIONS = {"LayerNorm": "layernorm", "RMSNorm": "rmsnorm"}
NORMALIZATIONS |= {"layernorm": "layernorm", "rmsnorm": "rmsnorm"}  # of Megatron-DeepSpeed
POSITIONS = {
    "learned_absolute": "learned",
    "rope": "rotary",
    "yarn": "rotary",
    "mrope": "rotary",
    "none": "rotary",
    "relative": "rotary",
    "rotary": "rotary",  # of Megatron-DeepSpeed
    "alibi": "alibi",  # of bigscience's fork
}
ACTIVATIONS = {"--swiglu": "swiglu", "--quick-geglu": "geglu", "--squared-relu": "relu2"}
QK_NORMS = {flag: norm for norm, flag in fields.QK_NORMS.items() if flag}
SOFTMAXES = {"vanilla": False, "off-by-one": False, "learnable": True}
# what has one size of vocabulary: a tokenizer, or the file that is published under this name
TOKENIZERS = {
    "GPT2BPETokenizer": 50257,
    "gpt2-vocab.json": 50257,
    "bert-large-uncased-vocab.txt": 30522,
    "bert-large-cased-vocab.txt": 28996,
}
LONGEST_LIST = LARGEST["layers"] + 1  # of layers: longer ones are refused as this one is
DELTA_NETS = ("gated_delta_net", "gdn")  # the gated delta rule, in releases of 2025 and of 2026
LINEAR_DEFAULTS = {"key_heads": 16, "value_heads": 32, "key_dim": 128, "value_dim": 128, "conv": 4}
LATENT_DEFAULTS = {"kv_rank": 32, "nope_dim": 128, "rope_dim": 64, "value_dim": 128}


def shape_from(flags: GivenFlags, vocab: int | None) -> ModelShape:
    """Read the shape of the model. Raises UserError for sizes that are missing or that no model can have."""
    layers, hidden, heads = (flags.number(fields.SIZES[name]) for name in ("layers", "hidden", "heads"))
    activation, position = activation_from(flags), position_from(flags)
    norm = flags.word("--normalization", "LayerNorm", NORMALIZATIONS)
    latent = latent_from(flags) if flags.has("--multi-latent-attention") else None
    ffn = ffn_from(flags, hidden, activation)
    assume_words(flags, activation)
    biases = biases_from(flags, norm, bool(latent))
    shape = ModelShape(
        "a model",
        layers,
        hidden,
        heads,
        *((heads, latent.head_dim) if latent else kv_heads_and_width(flags, hidden, heads)),
        ffn,
        vocab_from(flags) if vocab is None else vocab,
        activation=activation,
        norm=norm,
        position=position,
        positions=flags.number("--max-position-embeddings") if position == "learned" else 0,
        biases=biases,
        **attention_from(flags, layers, latent),
        prediction_layers=flags.number_or(fields.PREDICTION, 0),
        tied_embeddings=not flags.has("--untie-embeddings-and-output-weights"),
        experts=experts_from(flags, layers, ffn, "mlp" in biases),
        constants=replace(constants_from(flags), unrotated=unrotated_from(flags, layers)),
        source="a Megatron command line",
    )
    return replace(shape, name=known_name(shape))


def attention_from(flags: GivenFlags, layers: int, latent: LatentAttention | None) -> dict[str, Any]:
    """The fields of a ModelShape that say what attention its layers have, beside its sizes."""
    return {
        "latent": latent,
        "qk_norm": "" if latent else flags.one_of(QK_NORMS, ""),
        "sinks": flags.word("--softmax-type", "vanilla", SOFTMAXES),
        "window": window_from(flags),
        "whole_layers": whole_layers_from(flags, layers),
        "linear": linear_from(flags, layers),
        "output_gate": "queries" if flags.has(fields.OUTPUT_GATE) else "",
    }


def activation_from(flags: GivenFlags) -> str:
    """The activation; the gate of a quick GELU with a clamp is gpt-oss's, which is priced as SwiGLU."""
    clamped = flags.has("--quick-geglu") and flags.has(CLAMP)
    return flags.one_of(ACTIVATIONS | ({"--quick-geglu": "swiglu"} if clamped else {}), "gelu")


def known_name(shape: ModelShape) -> str:
    """The preset with all these sizes, if there is one."""
    same = (
        name
        for name in presets()
        if replace(shape, name=name, source=preset(name).source, notes=preset(name).notes) == preset(name)
    )
    return next(same, shape.name)


def assume_words(flags: GivenFlags, activation: str) -> None:
    """Note the architecture that nobody chose."""
    if not flags.has("--normalization"):
        flags.assume("--normalization", "LayerNorm")
    if activation == "gelu":
        flags.assume("--swiglu", "no, GELU without a gate")
    flags.heed("--max-position-embeddings", "--use-mcore-models", "--group-query-attention")


def position_from(flags: GivenFlags) -> str:
    """Read how positions are told. Raises UserError for flags that contradict one another."""
    named = flags.word("--position-embedding-type", "learned_absolute", POSITIONS)
    if flags.has("--use-rotary-position-embeddings"):
        if named == "learned" and "--position-embedding-type" in flags.flags:
            raise UserError(
                "--use-rotary-position-embeddings contradicts --position-embedding-type learned_absolute: "
                "keep one."
            )
        return "rotary"
    if not flags.has("--position-embedding-type"):
        flags.assume("--position-embedding-type", "learned_absolute")
    return named


def ffn_from(flags: GivenFlags, hidden: int, activation: str) -> int:
    """Megatron's own widths: 4 * hidden, or with SwiGLU two thirds of it in whole 64s."""
    return flags.number(
        "--ffn-hidden-size", 4 * hidden if activation != "swiglu" else int(4 * hidden * 2 / 3 / 64) * 64
    )


def kv_heads_and_width(flags: GivenFlags, hidden: int, heads: int) -> tuple[int, int]:
    """--num-query-groups counts only with --group-query-attention."""
    groups = flags.number("--num-query-groups", 1) if flags.has("--group-query-attention") else heads
    flags.heed("--num-query-groups")
    usual = 0 if flags.has("--kv-channels") else head_width(hidden, heads, "--hidden-size")
    return groups, flags.number("--kv-channels", usual)


def vocab_from(flags: GivenFlags) -> int:
    for flag in ("--padded-vocab-size", "--vocab-size"):
        if flags.has(flag):
            flags.heed("--vocab-size")
            return flags.number(flag)
    for flag in ("--tokenizer-type", "--vocab-file"):
        tokenizer = (flags.text(flag) or "").rpartition("/")[2]
        if tokenizer in TOKENIZERS:
            flags.assume("--vocab-size", f"{tokenizer}'s {TOKENIZERS[tokenizer]}")
            return TOKENIZERS[tokenizer]
    raise UserError(
        "how large is the vocabulary? The tokenizer's file knows it, not the command line: add --vocab."
    )


def biases_from(flags: GivenFlags, norm: str, latent: bool) -> tuple[str, ...]:
    """Queries, keys and values of latent attention have none
    (megatron/core/transformer/multi_latent_attention.py)."""
    every, qkv = not flags.has("--disable-bias-linear"), flags.has("--add-qkv-bias")
    if every:
        flags.assume("--disable-bias-linear", "no, every matrix has a bias")
    there = {"qkv": (every or qkv) and not latent, "output": every, "mlp": every, "norm": norm == "layernorm"}
    return tuple(bias for bias, has_it in there.items() if has_it)


def window_from(flags: GivenFlags) -> int:
    """Tokens that a query sees, itself among them: --window-size has those on its left, -1 for all. Raises
    UserError for what is no pair of numbers."""
    text = flags.text(fields.WINDOW)
    if text is None:
        return 0
    found = re.fullmatch(r"\(?\s*(-1|\d{1,9})\s*,\s*-?\d{1,9}\s*\)?", text.strip("\"'"))
    if not found:
        raise UserError(f"{fields.WINDOW} {text[:60]!r} must be two numbers of tokens, as in 4095,0.")
    return int(found[1]) + 1


def unrotated_from(flags: GivenFlags, layers: int) -> tuple[int, ...]:
    """--no-rope-freq is N, for no positions in every N-th layer, or a list of 1 (none) or 0 by layer."""
    if (text := flags.text(fields.UNROTATED)) is None:
        return ()
    return layers_with(1, layer_numbers(fields.UNROTATED, text, layers, every_nth=1))


def whole_layers_from(flags: GivenFlags, layers: int) -> tuple[int, ...]:
    """--window-attn-skip-freq is N, for the whole sequence in every N-th layer, or a list of 1 (window) or 0
    by layer."""
    text = flags.text(fields.WINDOWED)
    if text is None or not flags.has(fields.WINDOW):
        return ()
    return layers_with(0, layer_numbers(fields.WINDOWED, text, layers, every_nth=0))


def latent_from(flags: GivenFlags) -> LatentAttention:
    flags.heed("--qk-layernorm", fields.HEAD_DIM)
    sizes = {name: flags.number(flag, LATENT_DEFAULTS[name]) for name, flag in fields.LATENT_SIZES.items()}
    return LatentAttention(query_rank=flags.number_or("--q-lora-rank", 0), **sizes)


def linear_from(flags: GivenFlags, layers: int) -> GatedDeltaNet | None:
    """Linear attention, in all but every N-th layer, or in those whose number in a list is 1. Raises
    UserError for another variant of attention, and where no layer is said to have it."""
    if (variant := flags.text(fields.VARIANT)) is None:
        return None
    if variant not in DELTA_NETS:
        what = f"{fields.VARIANT} {variant[:60]}{how_to_set(variant)}"
        raise UserError(f"{what} makes another model than the planner's layers: it cannot be priced.")
    if (text := flags.text(fields.LINEAR_LAYERS)) is None:
        raise UserError(f"{fields.VARIANT} says nothing without {fields.LINEAR_LAYERS}: give N, or a list.")
    linear = layers_with(1, layer_numbers(fields.LINEAR_LAYERS, text, layers, every_nth=0))
    sizes = {name: flags.number(flag, LINEAR_DEFAULTS[name]) for name, flag in fields.LINEAR_SIZES.items()}
    return GatedDeltaNet(**sizes, layers=linear, joined=False)


def experts_from(flags: GivenFlags, layers: int, ffn: int, biased: bool) -> Experts | None:
    """Experts are as wide as the dense MLP where --moe-ffn-hidden-size is not given, and top-2. Where their
    matrices are `biased` the router's is too."""
    if (number := flags.number_or("--num-experts", 0)) < 2:
        return None  # of one expert, Megatron-DeepSpeed's dense layers, a router has nothing to choose
    shared = flags.number_or("--moe-shared-expert-intermediate-size", 0)
    flags.heed("--moe-grouped-gemm", "--moe-router-score-function", fields.EXPERT_TP)
    return Experts(
        number,
        flags.number("--moe-router-topk", 2),
        flags.number("--moe-ffn-hidden-size", ffn),
        shared_experts=int(shared > 0),
        shared_ffn=shared,
        shared_gate=flags.has("--moe-shared-expert-gate"),
        router_bias=flags.has("--moe-router-enable-expert-bias") or biased,
        own_norms=False,
        **{name: flags.number_or(flag, 1) for name, flag in fields.EXPERT_GROUPS.items()},
        dense_layers=dense_layers_from(flags, layers),
    )


def dense_layers_from(flags: GivenFlags, layers: int) -> tuple[int, ...]:
    """--moe-layer-freq is N, for experts in every N-th layer, or a list of 0 or 1 by layer."""
    text = (flags.text("--moe-layer-freq") or "1").strip("\"'")
    return layers_with(0, layer_numbers("--moe-layer-freq", text, layers, every_nth=1, from_first=True))


def layer_numbers(flag: str, text: str, layers: int, every_nth: int, from_first: bool = False) -> list[int]:
    """0 or 1 for each layer. A list says them itself; N gives the number `every_nth` to every N-th layer,
    which are N, 2N ... or `from_first` 1, N + 1 ..., and the other number to the rest. Raises UserError for
    what is neither."""
    if text.isdecimal() and (step := whole_number(text)):
        chosen = range(0 if from_first else step - 1, layers, step)
        return [every_nth if layer in chosen else 1 - every_nth for layer in range(layers)]
    numbers = layer_list(text)
    if len(numbers) != layers or not {*numbers} <= {0, 1}:
        raise UserError(
            f"{flag} {text[:60]!r} must be N, or a list of {layers} zeros and ones, one for each layer"
            f"{how_to_set(text)}."
        )
    return numbers


def layer_list(text: str) -> list[int]:
    """The list that an expression of lists, + and * makes: "([0]*3+[1]*58)". Empty for anything else."""
    try:
        return listed_by(ast.parse(text.strip("\"'")[:4000], mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []


def listed_by(node: ast.AST) -> list[int]:
    match node:
        case ast.List(elts=elements):
            return [whole(element) for element in elements]
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            return listed_by(left) + listed_by(right)
        case ast.BinOp(op=ast.Mult(), left=left, right=right):
            return (listed_by(left) * min(whole(right), LONGEST_LIST))[:LONGEST_LIST]
    raise ValueError


def whole(node: ast.AST) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    raise ValueError
