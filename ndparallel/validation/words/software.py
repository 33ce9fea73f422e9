"""The switches of a measured run's software: kernels, CUDA graphs, dispatchers and habits, as fields of a
software stack; and which words of it are not known."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from ndparallel.base.quoting import brief
from ndparallel.planner.launches import GRAPH_SCOPES, GRAPHS, graphs_of
from ndparallel.planner.software import FP8_PARAM_GATHER
from ndparallel.validation.hardware import number_in
from ndparallel.validation.words.frameworks import stack_of_framework
from ndparallel.validation.words.text import NOTHING, YES, as_text, first_named, is_used

HABITS = (  # a field of a run's software, how a note says it, and what of a stack it changes
    ("tp_overlap", r"\btp\b.*\boverlap on", {"tp_overlap": "all"}),
    ("async_tp", r"async ?tp", {"tp_overlap": "products"}),  # PyTorch's name of its own
    # Transformer Engine's reads logits of 16 bits twice, writes their gradients, and reads and writes these
    # again to scale them (transformer_engine/common/triton/cross_entropy.py, until release 2.17)
    ("fused_loss", r"fused ce\b", {"logits_kept": 4, "logit_bytes": 10}),
)
DISPATCHER_WORDS = (  # the first that is in the word; a flexible one is DeepEP's, which is an all-to-all, too
    ("hybrid", "hybridep"),
    ("deepep|flex", "deepep"),
    ("allgather", "allgather"),
    ("alltoall|a2a", "alltoall"),
)


def weights_cast(stated: Any) -> tuple[str, ...] | None:
    """Return the types in which weights are kept alone; None where the word is not known."""
    used = is_used(stated, YES)
    return None if used is None else FP8_PARAM_GATHER if used else ()


def graphs_stated(stated: Any) -> str | None:
    """Return what CUDA graphs hold, by a word of ours, by Transformer Engine's scopes, or true for the whole
    step; None where the word is not known."""
    words = re.findall("[a-z_]+", str(stated).lower())
    if scopes := {*words} & {*GRAPH_SCOPES["router"]}:
        return graphs_of(scopes) or None
    held = [name for name in GRAPHS if name in words]
    used = is_used(stated, f"full|{YES}")
    return held[0] if held else None if used is None else "step" if used else ""


def dispatcher_named(stated: Any) -> str | None:
    """Return our name of the dispatcher; None where the word is not known."""
    return first_named(DISPATCHER_WORDS, re.sub("[^a-z0-9]", "", str(stated).lower()))


def drops_tokens(stated: Any, note: Any) -> float | None:
    """Return the capacity factor of a mixture that drops tokens: as stated, or 1 where the note says so
    (Megatron-Bridge, training/utils/moe_token_drop.py); None of one that drops none."""
    if stated is not None:
        return number_in(stated) or None
    return 1.0 if re.search("token.?drop", str(note).lower()) else None


def habits_of(software: Mapping[str, Any], note: Any, usual: Sequence[str]) -> dict[str, Any]:
    """Return fields of a stack that a run states of its software, or in its note; `usual` habits it has
    unless it states otherwise."""
    noted = str(note).lower()
    found: dict[str, Any] = {}
    for key, words, fields in HABITS:
        used = software.get(key)
        if used or (used is None and (key in usual or re.search(words, noted))):
            found |= fields
    return found


SWITCHES = (  # of a stack
    "hides_dispatch",
    "fused_permutation",
    "fused_router",
    "fp32_router",
    "fused_mask",
    "fused_experts",
    "fp8_attention",
    "fp8_head",
)
STATED = {name: name for name in ("dispatcher", *SWITCHES)} | {  # a field of a run's, and the stack's
    "cuda_graphs": "graphs",
    "fp8_param_gather": "cast_weights",
}
SOFTWARE: Mapping[str, Callable[[Any], Any]] = {  # how a field of a run's software is read
    **dict.fromkeys((*SWITCHES, *(key for key, *_ in HABITS)), partial(is_used, words_for_yes=YES)),
    **dict.fromkeys(("flash_attention", "compiled"), is_used),  # whatever is named is used
    "cuda_graphs": graphs_stated,
    "fp8_param_gather": weights_cast,
    "dispatcher": dispatcher_named,
}


def read_software(software: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run's software in our words: None where a word is not known."""
    return {
        key: SOFTWARE[key](stated) if key in SOFTWARE and stated is not None else stated
        for key, stated in software.items()
    }


def not_known(software: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a sentence for each word of a run's software that is not known."""
    known = read_software(software) | {"framework": stack_of_framework(as_text(software.get("framework")))}
    return tuple(
        f"its {key} {brief(stated)} is not known here, and counts as not stated."
        for key, stated in software.items()
        if known[key] is None and not re.match(NOTHING, as_text(stated))
    )
