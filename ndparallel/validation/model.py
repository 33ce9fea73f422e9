"""The model of a measured run, as a shape: its sizes in the usual spellings, and what is not stated from a
preset or a rule.

Idea   A model with a preset's name, and nothing stated that the preset has otherwise but depth and
       vocabulary, is that preset. Others are GPT (where activations are not gated) or Llama in everything
       that is not stated. cases.py says the rules.
Limit  What tensor parallelism does not divide is padded to what it does, heads and widths alike; nobody
       publishes who did otherwise.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ndparallel.base.errors import UserError
from ndparallel.planner.models.attentions import LatentAttention
from ndparallel.planner.models.experts import Experts
from ndparallel.planner.models.huggingface.config import SPELLINGS
from ndparallel.planner.models.presets import preset, preset_named
from ndparallel.planner.models.shape import BIASES, GATED, ModelShape
from ndparallel.planner.models.sizes import checked_size
from ndparallel.planner.stack import Stack
from ndparallel.planner.stages import padded_vocab

UNSTATED_VOCABULARY = 32_000
MOE_HEAD = 128
MORE_SPELLINGS = {
    "top_k": ("topk", "top_k", "experts_per_token", "moe_router_topk"),
    "expert_ffn": ("moe_ffn", "expert_ffn", "moe_ffn_hidden_size"),
    "first_dense": ("first_k_dense", "first_dense_layers", "dense_layers"),
    "experts": ("experts", "moe_experts"),
    "shared_experts": ("shared_experts",),
    "shared_ffn": ("shared_ffn", "moe_shared_ffn"),
    "ffn": ("ffn_hidden_size",),
    "tied": ("tied_embeddings", "tied"),
    "position": ("position", "position_embedding"),
    "norm": ("norm", "normalization"),
    "heads": ("heads",),
    "kv_heads": ("num_query_groups",),
}
LATENT = ("kv_rank", "nope_dim", "rope_dim", "value_dim")
# the first that is in it
ACTIVATIONS = (("geglu", "geglu"), ("relu", "relu"), ("gelu", "gelu"), ("swi?g?lu|silu|swish", "swiglu"))


@dataclass(frozen=True)
class Stated:
    """The facts that a run states about its model."""

    model: Mapping[str, Any]

    def get(self, field: str) -> Any:
        """Return a field in any spelling; None where it is not stated."""
        names = (field, *MORE_SPELLINGS.get(field, ()), *SPELLINGS.get(field, ()))
        return next((self.model[name] for name in names if self.model.get(name) is not None), None)

    @property
    def name(self) -> str:
        return str(self.get("name") or "model")

    @cached_property
    def known(self) -> ModelShape | None:
        """Return the preset of that name, if no stated fact contradicts it."""
        name = preset_named(self.name)
        found = preset(name) if name else None
        sizes = ("hidden", "heads", "kv_heads", "ffn", "head_dim")
        differs = found and any(self.get(size) not in (None, getattr(found, size)) for size in sizes)
        return None if differs else found

    def size(self, field: str, otherwise: Any = None) -> Any:
        """Return a size as stated, as in the preset, or by a rule. Raises UserError where there is none."""
        value = self.get(field)
        if value is None and self.known:
            value = getattr(self.known, field)
        if value is None and otherwise is None:
            raise UserError(
                f"the run does not give its model's {field}, and no preset is called {self.name!r}."
            )
        value = otherwise if value is None else value
        is_word = isinstance(value, str | bool) and isinstance(otherwise, str | bool)
        return value if is_word else checked_size(value, field)

    def count(self, field: str) -> int | None:
        """Return a number that may be 0 or missing."""
        value = self.get(field)
        return None if value is None else checked_size(value, field, least=0)


def shape_of(run: Mapping[str, Any], tp: int, stack: Stack) -> ModelShape:
    """Return the model's shape. Raises UserError for a size that is not stated and follows from nothing."""
    stated = Stated(run["model"])
    shape = known_shape(run, stated) or usual_shape(run, stated)
    return cut_by(tp, stack, shape)


def known_shape(run: Mapping[str, Any], stated: Stated) -> ModelShape | None:
    """Return the preset with the run's own depth, vocabulary and experts."""
    if not (known := stated.known):
        return None
    layers = stated.size("layers")
    experts = experts_of(stated, layers)
    positions = max(known.positions, run["batch"]["sequence"]) if known.positions else 0
    return replace(
        known.with_layers(layers),
        name=stated.name,
        vocab=vocabulary(run, stated),
        experts=experts,
        positions=positions,
    )


def usual_shape(run: Mapping[str, Any], stated: Stated) -> ModelShape:
    """Return a GPT or a Llama with the stated sizes."""
    hidden, heads, layers = (stated.size(field) for field in ("hidden", "heads", "layers"))
    activation, latent, experts = activation_of(stated), latent_of(stated), experts_of(stated, layers)
    gpt, alibi = not GATED[activation], bool(re.match("mpt|bloom", stated.name))
    position = position_of(stated, "alibi" if alibi else "learned" if gpt else "rotary")
    shape = {
        "name": stated.name,
        "layers": layers,
        "hidden": hidden,
        "heads": heads,
        "kv_heads": heads if latent else stated.size("kv_heads", heads),
        "head_dim": latent.head_dim
        if latent
        else stated.size("head_dim", MOE_HEAD if experts else max(1, hidden // heads)),
        "ffn": stated.size("ffn", usual_ffn(hidden, gpt)),
        "vocab": vocabulary(run, stated),
        "activation": activation,
        "norm": str(stated.size("norm", "layernorm" if gpt else "rmsnorm")).lower(),
        "position": position,
        "positions": run["batch"]["sequence"] if position == "learned" else 0,
        "biases": BIASES if gpt and not stated.name.startswith("mpt") else (),
        "tied_embeddings": bool(stated.size("tied", gpt)),
    }
    return ModelShape(**shape, latent=latent, experts=experts)


def usual_ffn(hidden: int, gpt: bool) -> int:
    """Return GPT's ffn, four times hidden, or as many weights in three matrices, rounded up to 256 (Llama,
    2302.13971)."""
    return 4 * hidden if gpt else -(-8 * hidden // (3 * 256)) * 256


def activation_of(stated: Stated) -> str:
    words = str(stated.get("activation") or "").lower()
    return next((name for pattern, name in ACTIVATIONS if re.search(pattern, words)), "swiglu")


def position_of(stated: Stated, usual: str) -> str:
    words = str(stated.get("position") or usual).lower()
    return "rotary" if "ro" in words else "alibi" if "alibi" in words else "learned"


def vocabulary(run: Mapping[str, Any], stated: Stated) -> int:
    unknown = "vocab" in str(run.get("unknown") or "")
    return UNSTATED_VOCABULARY if unknown else stated.size("vocab", UNSTATED_VOCABULARY)


def latent_of(stated: Stated) -> LatentAttention | None:
    if stated.get("kv_rank") is None:
        return None
    return LatentAttention(stated.count("query_rank") or 0, *(stated.size(field) for field in LATENT))


def experts_of(stated: Stated, layers: int) -> Experts | None:
    """Return the stated experts, or the preset's."""
    number, top_k, ffn = map(stated.count, ("experts", "top_k", "expert_ffn"))
    known = stated.known.experts if stated.known else None
    if number and not known:
        known = Experts(number, top_k or 1, ffn or stated.size("ffn"))
    if not known:
        return None
    ffn = ffn or known.ffn
    dense = dense_layers(stated, layers, known.dense_layers)
    return replace(
        known,
        **groups_of(stated, known if number in (None, known.experts) else None),
        **shared_of(stated, known, ffn),
        experts=number or known.experts,
        top_k=top_k or known.top_k,
        ffn=ffn,
        dense_layers=tuple(layer for layer in dense if layer < layers),
    )


def shared_of(stated: Stated, known: Experts, ffn: int) -> dict[str, Any]:
    """Return the number of shared experts and their width: as stated, else the preset's, else `ffn`."""
    shared = stated.count("shared_experts")
    shared = known.shared_experts if shared is None else shared
    width = stated.count("shared_ffn") or known.shared_ffn or ffn
    return {"shared_experts": shared, "shared_ffn": width if shared else 0}


def groups_of(stated: Stated, known: Experts | None) -> dict[str, Any]:
    """Return the limit of a token to some groups of experts: as stated, else that of the same experts."""
    limit = {name: stated.count(name) for name in ("groups", "top_groups")}
    return {name: found or (getattr(known, name) if known else 1) for name, found in limit.items()}


def dense_layers(stated: Stated, layers: int, usual: tuple[int, ...]) -> tuple[int, ...]:
    """Return the layers without experts: a stated list, so many at the front, or all but every n-th."""
    first, every = stated.get("first_dense"), stated.get("every")
    if isinstance(first, list):
        return tuple(checked_size(layer, "a dense layer's number", least=0) for layer in first)
    if isinstance(every, list):
        return tuple(layer for layer, has in enumerate(every) if not has)
    if first is None and every is None:
        return usual
    first, every = stated.count("first_dense"), stated.count("every")
    return tuple(layer for layer in range(layers) if layer < (first or 0) or (layer + 1) % (every or 1))


# ------------------------------------------------------------------------------------ what tp does not divide


def cut_by(tp: int, stack: Stack, shape: ModelShape) -> ModelShape:
    """Return the shape padded to multiples of tp: heads, KV heads that ranks do not share, the MLP, the
    vocabulary."""
    heads, kv_heads = padded_heads(tp, shape)
    ffn, vocab = padded(shape.ffn, tp), padded_vocab(shape, stack, tp)
    windowed = shape.windowed
    if windowed:
        in_windows, kv_in_windows = padded_heads(tp, shape.with_window)
        windowed = replace(windowed, heads=in_windows, kv_heads=kv_in_windows)
    return replace(shape, heads=heads, kv_heads=kv_heads, windowed=windowed, ffn=ffn, vocab=vocab)


def padded_heads(tp: int, shape: ModelShape) -> tuple[int, int]:
    heads = padded(shape.heads, tp)
    if shape.kv_heads == shape.heads:
        return heads, heads
    kv_heads = shape.kv_heads if tp % shape.kv_heads == 0 else padded(shape.kv_heads, tp)
    return heads, kv_heads if heads % kv_heads == 0 else heads


def padded(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
