"""Read the shape of a model from a Hugging Face config.json on this machine.

Idea   Load the JSON, find the language model in it, let its family (families.py) and the keys (config.py)
       fill a ModelShape.
Limit  Only the families listed there. Weights are not looked at, so what the file says wrongly is believed.

Glossary
    text_config    where a model that also sees or hears keeps its language model
"""

import json
import reprlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ndparallel.base.errors import UserError
from ndparallel.base.files import read_json
from ndparallel.base.options import nearest
from ndparallel.base.quoting import brief
from ndparallel.base.words import count
from ndparallel.planner.models.huggingface.config import SPELLINGS, Config
from ndparallel.planner.models.huggingface.constants import constants_of
from ndparallel.planner.models.huggingface.families import FAMILIES
from ndparallel.planner.models.huggingface.family import Family
from ndparallel.planner.models.huggingface.parts import windows
from ndparallel.planner.models.huggingface.refused import REFUSED
from ndparallel.planner.models.shape import BIASES, ModelShape

MOST_BYTES = 4e6  # of a config.json
# fields of a ModelShape that no file says
OF_THE_FAMILY = (
    *("norm", "norms", "norm_weights", "embedding_norm", "position", "qk_norm", "sinks", "parallel"),
    "output_gate",
)
OF_ALL = {"is_causal": True}  # what a file of any family may say, and the only value that is counted
WIDEST_HEAD = 256  # of fused attention (README.md of Dao-AILab/flash-attention)
BY_SIZES = (
    "the sizes can be given one by one (--layers, --hidden, --heads, --kv-heads, --head-dim, --ffn, --vocab, "
    "--experts, --top-k, --expert-ffn)"
)


def from_huggingface(path: str | Path) -> ModelShape:
    """Return the shape that the config.json at `path` describes.

    Raises UserError, one sentence that names the file and the key: no such file, a directory, not UTF-8, not
    JSON, an unknown model_type, a missing key, a size that is no whole number, negative or absurd, or an
    architecture that we cannot count.
    """
    path = Path(path)
    entries = read_json(path, MOST_BYTES)
    try:
        if not isinstance(entries, dict):
            raise UserError(f"an object with keys is needed, not {reprlib.repr(entries)}.")
        return shape_of(entries, name_of(path), source=str(path))
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def name_of(path: Path) -> str:
    """Name a model after its file, or after the folder of a config.json."""
    return path.parent.name or path.stem if path.name == "config.json" else path.stem


def shape_of(entries: Mapping[str, Any], name: str, source: str) -> ModelShape:
    """Return the shape that the entries of a config.json describe."""
    text = language_model(entries)
    if "model_type" not in text:
        raise UserError("model_type is missing.")
    family = family_of(text["model_type"])
    refuse_variants(text, family)
    config = Config(text, family.class_defaults(), family.class_name, family.spellings)
    shape = ModelShape(name=name, source=source, **build(config, family))
    return replace(shape, notes=(*dict.fromkeys(config.notes), *remarks(entries, shape)))


def family_of(model_type: Any) -> Family:
    """Find the family of a type. Raises UserError for one that is none of ours: why, what is near, and what
    can be done."""
    if isinstance(model_type, str) and model_type in REFUSED:
        why, nearest = REFUSED[model_type]
        raise UserError(
            f"model_type {model_type!r} is not counted: {why}. Nearest in structure is {nearest!r}: write "
            f"that, and mend the sizes; {BY_SIZES}."
        )
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise unknown_type(model_type)
    return FAMILIES[model_type]


def unknown_type(model_type: Any) -> UserError:
    """Name the nearest of the many types that are counted, and what can be done."""
    import difflib  # for what is misspelled alone

    word = str(model_type)[:80]
    near = difflib.get_close_matches(word, FAMILIES, n=6, cutoff=0.0)
    meant = f" Did you mean {near[0]!r}?" if nearest(word, near) else ""
    return UserError(
        f"unknown model_type {brief(model_type)}.{meant} Of the {len(FAMILIES)} that are counted the nearest "
        f"are {', '.join(near)}. Of another model {BY_SIZES}."
    )


def language_model(entries: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the entries of the language model: `text_config` where there is one. Whether embeddings are
    tied may be given outside of it."""
    if "text_config" not in entries:
        return entries
    text, tied = entries["text_config"], entries.get("tie_word_embeddings")
    if not isinstance(text, dict):
        raise UserError(f"text_config must be an object with keys, not {reprlib.repr(text)}.")
    if tied is not None and text.get("tie_word_embeddings", tied) != tied:
        raise UserError("tie_word_embeddings differs inside and outside of text_config.")
    return text if tied is None else {**text, "tie_word_embeddings": tied}


def refuse_variants(entries: Mapping[str, Any], family: Family) -> None:
    """Raise UserError for a variant of the architecture whose parameters are not counted here."""
    for path, wanted in {**OF_ALL, **family.must}.items():
        value: Any = entries
        for key in path.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        if value not in (None, wanted):
            raise UserError(f"{path} {reprlib.repr(value)} is not supported, only {json.dumps(wanted)}.")
    if (own := entries.get("per_layer_config")) and not family.reads_layers:
        raise UserError(
            f"per_layer_config {reprlib.repr(own)} is not read for {family.class_name}, whose layers "
            "are counted alike here: leave it out only if they are alike."
        )


def build(config: Config, family: Family) -> dict[str, Any]:
    """Return the fields of a ModelShape, but for its name, source and notes."""
    latent = family.latent(config) if family.latent else None
    flagged = (biases for flag, biases in family.bias_flags.items() if config.flag(flag))
    biases = sum(flagged, family.biases)
    own = {
        **windows(config, family.full_every, family.full_first),
        "constants": constants_of(config.entries),
        **family.words(config),
    }
    unrotated = {"unrotated": own.get("whole_layers", ())} if family.rotates_windows_alone else {}
    own["constants"] = replace(own["constants"], **family.constants, **unrotated)
    return {
        **{name: getattr(family, name) for name in OF_THE_FAMILY},
        "layers": config.size("layers"),
        "hidden": config.size("hidden"),
        "heads": config.size("heads"),
        "kv_heads": own.get("kv_heads") or config.size("heads" if latent else "kv_heads"),
        "head_dim": latent.head_dim if latent else config.size("head_dim"),
        "ffn": config.size("ffn"),
        "vocab": config.size("vocab"),
        "activation": family.activation or config.word("activation", family.activations),
        "positions": config.size("positions") if family.position == "learned" else 0,
        "biases": tuple(bias for bias in BIASES if bias in biases),
        "tied_embeddings": config.flag("tied"),
        "prediction_layers": config.size_or_zero("prediction_layers"),
        "latent": latent,
        "linear": family.linear(config) if family.linear else None,
        "experts": family.experts(config) if family.experts else None,
        **own,
    }


def uncounted_prediction(entries: Mapping[str, Any]) -> str:
    """Numbers that a file gives of prediction layers by names that no family is counted with."""
    numbers = {key: value for key, value in entries.items() if "mtp" in key and type(value) is int and value}
    return ", ".join(
        f"{brief(key)} {value}" for key, value in numbers.items() if key not in SPELLINGS["prediction_layers"]
    )


def remarks(entries: Mapping[str, Any], shape: ModelShape) -> Iterator[str]:
    """Return sentences on what the file describes and a ModelShape does not hold, or holds beside its
    total."""
    if "text_config" in entries:
        yield "Only text_config, the language model, is counted; what sees or hears is left out."
    elif "vision_config" in entries:
        yield "Only the language model is counted; what sees is left out."
    yield from remarks_on_attention(shape)
    yield from remarks_on_mlps(shape)
    if shape.linear and shape.norms == "after":
        yield "Norms of linear attention stand before it; they are priced behind it, as attention's are."
    if not shape.prediction_layers and (named := uncounted_prediction(language_model(entries))):
        yield f"Layers of multi-token prediction are not counted: {named}."
    if shape.prediction_layers:
        yield (
            f"Multi-token prediction adds {count(shape.prediction_layers, 'layer')} and the head again, on "
            f"the last stage: {shape.parameters().prediction / 1e9:.2f} billion parameters beside the total."
        )


def remarks_on_attention(shape: ModelShape) -> Iterator[str]:
    if shape.parallel:
        yield "Attention and MLP read the same input; they are priced one after the other."
    if shape.qk_norm == "unscaled" and shape.constants.unrotated:
        yield "Queries and keys are normed where they have positions; it is priced in every layer."
    if (width := max(heads.head_dim for heads in shape.with_heads)) > WIDEST_HEAD:
        yield (
            f"Heads are up to {width} wide; attention is priced as if fused kernels took more than "
            f"{WIDEST_HEAD}, as fast."
        )
    if any(heads.sinks for heads in shape.with_heads):
        yield "Attention's sinks are counted, but take no time."


def remarks_on_mlps(shape: ModelShape) -> Iterator[str]:
    if shape.constants.activation_clamp is not None:
        yield (
            "The biases of experts are counted, but take no time; the activation is priced as SwiGLU without "
            "its clamps."
        )
    if shape.experts and shape.experts.own_norms:
        yield (
            "The MLP beside the experts is counted as a shared expert; the scales of experts' weights are "
            "counted, but take no time."
        )
    if shape.activation == "xielu":
        yield "xIELU is priced as one kernel, as other activations are; plain PyTorch runs several."
