"""The keys of a Hugging Face config.json: every spelling of a size, and one reader that finds, checks and
explains.

Idea   Code asks for a field by our name for it. The reader knows how the many families spell it, refuses what
       cannot be, and keeps a note of every default that it had to use.
Limit  Nothing is guessed. What is neither written down nor a default of the family is an error that names the
       key.

Glossary
    key      a name in config.json
    field    our name for the same thing
    tied     input and output embedding are one matrix
"""

import json
import reprlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ndparallel.base.errors import UserError
from ndparallel.planner.models.sizes import checked_choice, checked_size

SPELLINGS = {
    "layers": ("num_hidden_layers", "n_layer", "n_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "kv_heads": ("num_key_value_heads",),
    "head_dim": ("head_dim",),
    "ffn": ("intermediate_size", "n_inner"),
    "vocab": ("vocab_size",),
    "positions": ("n_positions", "max_position_embeddings"),
    "activation": ("hidden_act", "activation_function"),
    "tied": ("tie_word_embeddings",),
    "attention_bias": ("attention_bias",),
    "qkv_bias": ("qkv_bias",),
    "mlp_bias": ("mlp_bias",),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts"),
    "top_k": ("num_experts_per_tok",),
    "expert_ffn": ("moe_intermediate_size",),
    "shared_experts": ("n_shared_experts",),
    "shared_ffn": ("shared_expert_intermediate_size",),
    "first_dense": ("first_k_dense_replace",),
    "groups": ("n_group",),
    "top_groups": ("topk_group",),
    "every": ("moe_layer_freq", "decoder_sparse_step", "interleave_moe_layer_step"),
    "dense_layers": ("mlp_only_layers",),
    "mixed_layers": ("moe_layers",),
    "query_rank": ("q_lora_rank",),
    "kv_rank": ("kv_lora_rank",),
    "nope_dim": ("qk_nope_head_dim",),
    "rope_dim": ("qk_rope_head_dim",),
    "value_dim": ("v_head_dim",),
    "window": ("sliding_window",),
    "use_window": ("use_sliding_window",),
    "window_layers": ("max_window_layers",),
    "chunk": ("attention_chunk_size",),
    "full_every": ("sliding_window_pattern",),
    "layer_types": ("layer_types",),
    "attention_every": ("full_attention_interval",),
    "linear_key_heads": ("linear_num_key_heads",),
    "linear_value_heads": ("linear_num_value_heads",),
    "linear_key_dim": ("linear_key_head_dim",),
    "linear_value_dim": ("linear_value_head_dim",),
    "linear_conv": ("linear_conv_kernel_dim",),
    "mlp_types": ("mlp_layer_types",),
    "prediction_layers": ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers"),
    "head_bias": ("lm_head_bias",),
    "qk_norm": ("use_qk_norm",),
    "parallel_residual": ("use_parallel_residual",),
    "parallel_attention": ("parallel_attn",),
    "parallel_norms": ("num_ln_in_parallel_attn",),
    "multi_query": ("multi_query",),
    "new_decoder": ("new_decoder_architecture",),
    "alibi": ("alibi",),
    "bias": ("bias",),
    "post_norm": ("use_post_norm",),
    "embedding_width": ("word_embed_proj_dim",),
}


class Config:
    """The entries of one config.json, read field by field; `defaults` are those of `class_name`, a
    configuration class of transformers, and `spellings` its own names of fields."""

    def __init__(
        self,
        entries: Mapping[str, Any],
        defaults: Mapping[str, Any],
        class_name: str,
        spellings: Mapping[str, tuple[str, ...]],
    ) -> None:
        self.entries, self.defaults, self.class_name = entries, defaults, class_name
        self.spellings = {**SPELLINGS, **spellings}
        self.notes: list[str] = []

    def key(self, field: str) -> str:
        """Return the key that gives `field`, or all its spellings if none does. A null counts as not
        given, as in transformers."""
        given = [key for key in self.spellings[field] if self.entries.get(key) is not None]
        for other in given[1:]:
            if self.entries[other] != self.entries[given[0]]:
                raise UserError(
                    f"{self._shown(given[0])} and {self._shown(other)} should be the same and differ."
                )
        return given[0] if given else " or ".join(self.spellings[field])

    def has(self, field: str) -> bool:
        """Whether the file gives `field`, and not as null."""
        return any(self.entries.get(key) is not None for key in self.spellings[field])

    def value(self, field: str) -> Any:
        key = self.key(field)
        # transformers computes a default where it finds None, and takes every other None as it is
        computed = isinstance(self.defaults.get(field), ConfigRule)
        given = self.has(field) or (key in self.entries and not computed)
        return self.entries[key] if given else self._default(field)

    def given(self, field: str) -> Any:
        """Return what is neither missing nor null, or the default."""
        return self.value(field) if self.has(field) else self._default(field)

    def is_null(self, field: str) -> bool:
        return any(key in self.entries and self.entries[key] is None for key in self.spellings[field])

    def size(self, field: str, least: int = 1) -> int:
        return checked_size(self.value(field), field, self.key(field), least)

    def size_or_null(self, field: str) -> int:
        """Return a size, or 0 for a null, which must be written down and means "there is none"."""
        return 0 if self.is_null(field) else self.size(field, least=0)

    def size_or_zero(self, field: str) -> int:
        """Return a size, or 0 where it is null or missing, which says the same."""
        return self.size(field, least=0) if self.has(field) else 0

    def flag(self, field: str) -> bool:
        value = self.value(field)
        if not isinstance(value, bool):
            raise UserError(f"{self.key(field)} must be true or false, not {reprlib.repr(value)}.")
        return value

    def word(self, field: str, choices: Mapping[str, str]) -> str:
        """Translate one of the words that are the keys of `choices`."""
        return choices[checked_choice(self.value(field), self.key(field), choices)]

    def layer_numbers(self, field: str) -> frozenset[int]:
        """Return the layers that are listed; a null is as if nothing were given."""
        value, last = self.given(field), self.size("layers") - 1
        if not isinstance(value, list) or not all(
            type(layer) is int and 0 <= layer <= last for layer in value
        ):
            raise UserError(
                f"{self.key(field)} must be a list of layer numbers from 0 to {last}, not "
                f"{reprlib.repr(value)}."
            )
        return frozenset(value)

    def marked_layers(self, field: str) -> list[bool]:
        """Return whether a one stands for each layer, and no zero, or nothing where they are not listed."""
        if not self.has(field):
            return []
        value, layers = self.value(field), self.size("layers")
        if not isinstance(value, list) or len(value) != layers or any(mark not in (0, 1) for mark in value):
            raise UserError(
                f"{self.key(field)} must be a list of {layers} zeros and ones, not {reprlib.repr(value)}."
            )
        return [bool(mark) for mark in value]

    def layer_kinds(self, field: str, known: Sequence[str]) -> list[str]:
        """Return the kind of each layer, or nothing where they are not listed; behind them those of
        prediction layers may stand."""
        value, key = self.value(field) if self.has(field) else [], self.key(field)
        if not isinstance(value, list):
            raise UserError(f"{key} must be a list, not {reprlib.repr(value)}.")
        for kind in value:
            checked_choice(kind, key, known)
        layers = self.size("layers")
        if value and len(value) not in (layers, layers + self.size_or_zero("prediction_layers")):
            raise UserError(f"{key} lists {len(value)} layers; there are {layers}.")
        return value[:layers]

    def _default(self, field: str) -> Any:
        if field not in self.defaults:
            raise UserError(f"{self.key(field)} is missing.")
        default = self.defaults[field]
        words = default.words if isinstance(default, ConfigRule) else json.dumps(default)
        self.notes.append(f"{self.key(field)} is not given: {words}, as {self.class_name} has it.")
        return default.compute(self) if isinstance(default, ConfigRule) else default

    def _shown(self, key: str) -> str:
        return f"{key} {reprlib.repr(self.entries[key])}"


class ConfigRule(NamedTuple):
    """A default that follows from other fields, and the sentence that says so."""

    words: str
    compute: Callable[[Config], int]
