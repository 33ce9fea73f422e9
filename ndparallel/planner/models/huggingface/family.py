"""One family of models: what a config.json does not say, the architecture that its `model_type` stands for.

Idea   A row of one of the files beside this one, whose names end in _families or _mixtures. Norm, positions,
       biases and the layout of experts are the family's; sizes are the file's.
Limit  A key may be missing only where transformers' own configuration class has a default on which published
       files rely; those are the `defaults` (src/transformers/models/*/configuration_*.py). Where a family
       could be built otherwise (a bias, another attention) and we could not count it, `must` names the key
       and the only value we take.

Glossary: see `ndparallel.planner.models.shape`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ndparallel.planner.models.attentions import GatedDeltaNet, LatentAttention
from ndparallel.planner.models.experts import Experts
from ndparallel.planner.models.huggingface.config import Config, ConfigRule
from ndparallel.planner.models.sizes import head_width

GATED_ACTIVATIONS = {
    "silu": "swiglu",
    "swish": "swiglu",
    "gelu": "geglu",
    "gelu_new": "geglu",
    "gelu_pytorch_tanh": "geglu",
}
PLAIN_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu",
    "gelu_fast": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "relu": "relu",
    "relu2": "relu2",
}


AS_HEADS = ConfigRule("as many as heads", lambda config: config.size("heads"))
PER_HEAD = ConfigRule(
    "hidden size / heads",
    lambda config: head_width(config.size("hidden"), config.size("heads"), config.key("hidden")),
)
AS_HIDDEN = ConfigRule("as hidden size", lambda config: config.size("hidden"))
AS_EXPERT = ConfigRule("as wide as an expert", lambda config: config.size("expert_ffn"))
FOUR_TIMES = ConfigRule("4 x hidden size", lambda config: 4 * config.size("hidden"))


def missing(size: int, field: str, null: ConfigRule) -> ConfigRule:
    """A class's own size where the field is missing, and its rule for a null."""
    words = f"{size}, or for a null {null.words}"
    return ConfigRule(words, lambda config: null.compute(config) if config.is_null(field) else size)


ZERO_CENTERED = {"zero_centered": True}
Q_K_V_AND_OUTPUT = ("qkv", "output")
ALL_BUT_THE_HEAD = ("qkv", "output", "mlp", "norm")


@dataclass(frozen=True)
class Family:
    """One model_type. `spellings` are its own names of fields. `biases` are always there, those of
    `bias_flags` where the flag says so; `latent`, `linear` and `experts` read their part, and `words` gives
    further fields of the ModelShape.

    `activation` is given where no key says it; else `activations` translates the key's word, or where a file
    has none `hidden_act`. Where a file has a window, every layer has it, or all but one in `full_every`: the
    last of these, or the first; with `rotates_windows_alone` only layers with a window then have positions.
    `constants` are those that no file says (../constants.py).
    """

    class_name: str
    defaults: Mapping[str, Any]
    spellings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    activation: str = ""
    hidden_act: str = "silu"  # the class's own word
    activations: Mapping[str, str] = field(default_factory=lambda: GATED_ACTIVATIONS)
    norm: str = "rmsnorm"
    position: str = "rotary"
    biases: tuple[str, ...] = ()
    bias_flags: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    norms: str = "before"
    qk_norm: str = ""
    sinks: bool = False
    embedding_norm: bool = False
    parallel: bool = False
    norm_weights: bool = True
    full_every: int = 0
    full_first: bool = False
    rotates_windows_alone: bool = False
    constants: Mapping[str, Any] = field(default_factory=dict)
    latent: Callable[[Config], LatentAttention] | None = None
    linear: Callable[[Config], GatedDeltaNet] | None = None
    output_gate: str = ""
    experts: Callable[[Config], Experts | None] | None = None
    words: Callable[[Config], Mapping[str, Any]] = lambda config: {}
    must: Mapping[str, Any] = field(default_factory=dict)
    reads_layers: bool = False  # what layers have of their own in per_layer_config

    def class_defaults(self) -> Mapping[str, Any]:
        """What a file may leave out."""
        return {"activation": self.hidden_act, **self.defaults}
