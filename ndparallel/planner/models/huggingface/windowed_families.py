"""Families of models whose layers with a window have other heads than those that see the whole sequence.

Idea   One row per family, and the function that reads both kinds of heads; see family.py for what a row says,
       and for its limit.

Glossary: see `ndparallel.planner.models.shape`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ndparallel.base.errors import UserError
from ndparallel.planner.models.attentions import WindowedHeads
from ndparallel.planner.models.experts import Experts
from ndparallel.planner.models.huggingface.config import Config, ConfigRule
from ndparallel.planner.models.huggingface.dense_families import GEMMA3
from ndparallel.planner.models.huggingface.family import AS_HEADS, Family
from ndparallel.planner.models.huggingface.parts import (
    SLIDING,
    SPARSE,
    experts_of,
    groups,
    layer_types,
    mlp_kinds,
    per_layer_config,
    windows,
)
from ndparallel.planner.models.kinds import layers_with

TWICE_THE_OTHERS = ConfigRule(
    "twice as many as in the other layers", lambda config: 2 * config.size("kv_heads")
)
HEAD_OF_THE_OTHERS = ConfigRule("as in the other layers", lambda config: config.size("head_dim"))
VALUE_OF_THE_OTHERS = ConfigRule("as in the other layers", lambda config: config.size("value_dim"))


def gemma4_words(config: Config) -> Mapping[str, Any]:
    """Layers that see the whole sequence have wider heads; where their keys serve as values they may have
    other numbers of these, too. The last layer is always such a one (Gemma4TextConfig.__post_init__)."""
    if width := config.size("layer_inputs", least=0):
        raise UserError(
            f"{config.key('layer_inputs')} is {width}: a layer's own embeddings are not counted, only 0."
        )
    config.size("window")  # neither null nor 0: it tells which heads a layer has
    whole = {*windows(config, GEMMA3.full_every, False)["whole_layers"], config.size("layers") - 1}
    own = per_layer_config(config, whole, "sees the whole sequence", ("head_dim", "num_key_value_heads"))
    shares, fewer = config.flag("keys_as_values"), own is config and config.has("whole_kv_heads")
    return {
        "kv_heads": own.size("whole_kv_heads" if shares and fewer else "kv_heads"),
        "head_dim": own.size("whole_head_dim" if own is config else "head_dim"),
        "keys_as_values": shares,
        "whole_layers": tuple(sorted(whole)),
        "windowed": WindowedHeads(config.size("heads"), config.size("kv_heads"), config.size("head_dim")),
    }


def gemma4_experts(config: Config) -> Experts | None:
    """In every layer beside its MLP, or in none."""
    if not (config.has("mixes") and config.flag("mixes")):
        return None
    return replace(experts_of(config), shared_experts=1, shared_ffn=config.size("ffn"), own_norms=True)


GEMMA4 = replace(
    GEMMA3,
    class_name="Gemma4TextConfig",
    defaults={
        **GEMMA3.defaults,
        "vocab": 262144,
        "window": 512,
        "whole_head_dim": 512,
        "keys_as_values": False,
        "layer_inputs": 256,
    },
    spellings={
        **GEMMA3.spellings,
        "whole_head_dim": ("global_head_dim",),
        "whole_kv_heads": ("num_global_key_value_heads",),
        "keys_as_values": ("attention_k_eq_v",),
        "layer_inputs": ("hidden_size_per_layer_input",),
        "mixes": ("enable_moe_block",),
        "experts": ("num_experts",),
        "top_k": ("top_k_experts",),
    },
    qk_norm="values",
    experts=gemma4_experts,
    words=gemma4_words,
    reads_layers=True,
    must={"num_kv_shared_layers": 0, "use_bidirectional_attention": "vision"},
    constants={},
)
GEMMA4_UNIFIED = replace(
    GEMMA4,
    class_name="Gemma4UnifiedTextConfig",
    defaults={**GEMMA4.defaults, "window": 1024, "layer_inputs": 0},
    experts=None,
    must={**GEMMA4.must, "enable_moe_block": False},
)


def mimo_v2_experts(config: Config) -> Experts:
    """In the layers that are listed or marked, or in all but the first."""
    mixed = [kind == SPARSE for kind in mlp_kinds(config)] or config.marked_layers("mixed_marks")
    mixed = mixed or [layer > 0 for layer in range(config.size("layers"))]
    dense = layers_with(False, mixed)
    return replace(experts_of(config), router_bias=True, **groups(config), dense_layers=dense)


def mimo_v2_words(config: Config) -> Mapping[str, Any]:
    """Windows in the layers that are listed or marked, or in all but the first and every sixth; the file's
    `sliding_window_size` does not count the query itself (MiMoV2FlashConfig.__post_init__)."""
    windowed = [kind == SLIDING for kind in layer_types(config)] or config.marked_layers("window_marks")
    windowed = windowed or [layer > 0 and (layer + 1) % 6 > 0 for layer in range(config.size("layers"))]
    before = config.size_or_zero("window_before")
    return {
        "value_width": config.size("value_dim"),
        "sinks": config.flag("whole_sinks"),
        "window": before + 1 if before else config.size("window"),
        "whole_layers": layers_with(False, windowed),
        "windowed": WindowedHeads(
            config.size("window_heads"),
            config.size("window_kv_heads"),
            config.size("window_head_dim"),
            config.size("window_value_dim"),
            sinks=config.flag("window_sinks"),
        ),
    }


MIMO_V2_FLASH = Family(
    "MiMoV2FlashConfig",
    {
        "head_dim": 192,
        "value_dim": 128,
        "tied": False,
        "attention_bias": False,
        "window": 129,
        "window_heads": AS_HEADS,
        "window_kv_heads": TWICE_THE_OTHERS,
        "window_head_dim": HEAD_OF_THE_OTHERS,
        "window_value_dim": VALUE_OF_THE_OTHERS,
        "whole_sinks": False,
        "window_sinks": True,
    },
    spellings={
        "mixed_marks": ("moe_layer_freq",),
        "window_marks": ("hybrid_layer_pattern",),
        "window_before": ("sliding_window_size",),
        "window_heads": ("swa_num_attention_heads",),
        "window_kv_heads": ("swa_num_key_value_heads",),
        "window_head_dim": ("swa_head_dim",),
        "window_value_dim": ("swa_v_head_dim",),
        "whole_sinks": ("add_full_attention_sink_bias",),
        "window_sinks": ("add_swa_attention_sink_bias",),
    },
    bias_flags={"attention_bias": ("qkv",)},
    experts=mimo_v2_experts,
    words=mimo_v2_words,
    must={"n_shared_experts": 0, "num_nextn_predict_layers": 0},
)
