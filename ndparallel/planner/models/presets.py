"""Find the model that a person means: a preset by its name, a config.json by its path, or the sizes given one
by one.

Idea   All three become one ModelShape. The presets are kept as config.json files keep them, each with its
       source, and are read by the same reader, so they can be held against the published files key by key.
Limit  A preset is a shape, not a training recipe: sequence length, batch and precision belong to the job.
"""

import json
import os
import re
from functools import cache
from pathlib import Path
from typing import Any

from ndparallel.base.errors import UserError, unknown
from ndparallel.base.words import option_of
from ndparallel.planner.models.experts import Experts
from ndparallel.planner.models.huggingface.read import from_huggingface, shape_of
from ndparallel.planner.models.shape import ModelShape
from ndparallel.planner.models.sizes import checked_size, head_width

PRESETS = Path(__file__).with_name("presets.json")
ON_THE_HUB = re.compile("^huggingface.co/(([^/]+)/[^,]+), ")


def find_model(name_or_path: str | os.PathLike[str]) -> ModelShape:
    """Return the preset of one of its names, in capitals or not, or the model that the config.json at that
    path, or in that folder, describes. A name goes before a path: ./gpt2 is no name.

    Raises UserError, with the nearest names, where there is neither, and whatever `from_huggingface` raises.
    """
    name_or_path = os.fspath(name_or_path)
    if name := preset_named(name_or_path):
        return preset(name)
    if os.path.isdir(name_or_path):
        return from_huggingface(Path(name_or_path, "config.json"))
    if name_or_path.lower().endswith(".json") or os.path.exists(name_or_path):
        return from_huggingface(name_or_path)
    raise unknown("model or file", name_or_path[:80], presets(), "ndparallel plan --help")


@cache
def presets() -> dict[str, dict[str, Any]]:
    """Return the presets by name, each with its `source` and its `config`: the keys of its config.json
    that matter, with defaults written out; `also` are models of the very same sizes."""
    return json.loads(PRESETS.read_text(encoding="utf-8"))


def preset_named(name: str) -> str | None:
    """Return the preset that has this name: its own, that of a model of the very same sizes, or one of these
    on the Hugging Face Hub. Capitals, hyphens, and suffixes that change no size make no difference."""
    return presets_by_name().get(plain(name))


@cache
def presets_by_name() -> dict[str, str]:
    return {plain(each): name for name, entry in presets().items() for each in names_of(name, entry)}


def names_of(name: str, entry: dict[str, Any]) -> list[str]:
    """Return all names of a preset: its own, those of models of its sizes, and those of their owner's
    repositories on the Hub, its source among them."""
    own = [name, *entry.get("also", ())]
    found = ON_THE_HUB.findall(entry["source"])
    return [*own, *(path for path, _ in found), *(f"{owner}/{each}" for _, owner in found for each in own)]


def plain(name: str) -> str:
    """Strip a name of all that makes no difference: Llama-3.1-8B-Instruct becomes llama3.18b."""
    return re.sub(r"\(.*\)|meta|[-_ ](instruct|base|chat|hf|it|pt)(?![a-z0-9])|[-_ ]", "", name.lower())


@cache
def preset(name: str) -> ModelShape:
    entry = presets()[name]
    return shape_of(entry["config"], name, entry["source"])


def from_flags(
    *,
    layers: int,
    hidden: int,
    heads: int,
    ffn: int,
    vocab: int,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    experts: int = 0,
    top_k: int = 0,
    expert_ffn: int = 0,
    **others: Any,
) -> ModelShape:
    """Return the shape of a model given size by size. What is not given is as in Llama: SwiGLU, RMSNorm,
    rotary, no bias, not tied.

    kv_heads is heads if not given, head_dim hidden / heads. A model is a mixture of experts if `experts` is
    not 0. `others` are further fields of ModelShape: activation, norm, biases, qk_norm, tied_embeddings.
    Latent attention takes a config.json. Raises UserError, naming it, for a size that is missing (None) or
    cannot be.
    """
    refuse_missing(layers=layers, hidden=hidden, heads=heads, ffn=ffn, vocab=vocab)
    check_flags(
        layers=layers, hidden=hidden, heads=heads, ffn=ffn, vocab=vocab, kv_heads=kv_heads, head_dim=head_dim
    )
    kv_heads = heads if kv_heads is None else kv_heads
    head_dim = head_width(hidden, heads) if head_dim is None else head_dim
    sizes = (layers, hidden, heads, kv_heads, head_dim, ffn, vocab)
    moe = experts_from_flags(experts, top_k, expert_ffn)
    return ModelShape("from options", *sizes, experts=moe, source="given by its sizes", **others)


def experts_from_flags(experts: int, top_k: int, ffn: int) -> Experts | None:
    if not experts:
        if top_k or ffn:
            raise UserError("--top-k and --expert-ffn mean nothing without --experts.")
        return None
    check_flags(experts=experts, top_k=top_k, expert_ffn=ffn)
    return Experts(experts, top_k, ffn)


def check_flags(**sizes: int | None) -> None:
    """Raise UserError, which names the option, for a size that cannot be. None is accepted."""
    for name, size in sizes.items():
        if size is not None:
            checked_size(size, name, option_of(name))


def refuse_missing(**sizes: int | None) -> None:
    missing = [name for name, value in sizes.items() if value is None]
    if missing:
        raise UserError(f"a model given by its sizes also needs {', '.join(map(option_of, missing))}.")
