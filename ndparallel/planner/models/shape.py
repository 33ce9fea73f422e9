"""The shape of a model: which matrices a layer multiplies with, and how many parameters that makes.

Idea   A planner needs no weights, only their sizes. A layer is listed as its matrices, each once, and
       everything else follows from the list: the parameters, the FLOPs, the memory, what tensor parallelism
       cuts and how.
Cost   A few frozen dataclasses; counting takes microseconds and is exact to the last parameter.
Limit  Decoder-only transformers, every layer attention, or linear attention, and MLP. What a checkpoint holds
       besides (vision towers, quantization scales) is left out, and `notes` says so. Sparse attention,
       whose indexer has matrices of its own, is not held here either.

Glossary
    MLP                 the feed-forward block
    ffn                 its width, between its matrices
    expert              one MLP of many, of which a router chooses top_k for each token
    MoE                 mixture of experts
    kv                  keys and values; kv_heads < heads is grouped-query attention
    head_dim            width of one head
    latent attention    (MLA) DeepSeek's: queries, keys and values pass through narrow matrices; their width
                        is a rank
    nope, rope          the parts of a head without and with rotary position
    window              so many tokens back attention sees
    chunk               a part of the sequence of as many tokens, which attends to itself alone
    prediction layer    one of multi-token prediction (MTP), behind the last layer, that predicts one token
                        further ahead
"""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from ndparallel.base.errors import UserError
from ndparallel.planner.models.attentions import GatedDeltaNet, LatentAttention, WindowedHeads
from ndparallel.planner.models.constants import Constants
from ndparallel.planner.models.experts import Experts
from ndparallel.planner.models.kinds import has_window, is_linear
from ndparallel.planner.models.matrices import Linear, count
from ndparallel.planner.models.parameters import Parameters
from ndparallel.planner.models.sizes import checked_choice, checked_size, checked_sizes, near_divisors

SIZES = ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab")  # that every model has
# activation: does it multiply with a gate, a third matrix?
GATED = {"gelu": False, "relu": False, "relu2": False, "xielu": False, "swiglu": True, "geglu": True}
# parameters of an activation itself (XIELUActivation in activations.py of transformers)
LEARNED = {"xielu": 2}
NORMS = ("layernorm", "rmsnorm")
# where a layer's norms stand: norms of attention's half and of the MLP's
NORM_PLACES = {"before": (1, 1), "after": (1, 1), "both": (2, 2), "shared": (1, 0)}
# none; over each head alike, or without weights, or so of values besides; over all heads together
QK_NORMS = ("", "head", "unscaled", "values", "width")
# none; as wide as a head, out of the queries' matrix and with its bias, or out of one of their own without,
# or so with a number added for each head; one number for each head, out of a matrix of their own
OUTPUT_GATES = ("", "queries", "element", "biased", "head")
POSITIONS = ("learned", "rotary", "alibi")
BIASES = ("qkv", "output", "mlp", "norm", "head")


@dataclass(frozen=True)
class ModelShape:
    """All sizes of a decoder-only transformer. Raises UserError, naming field and value, for sizes that no
    model can have.

    `positions` is the number of learned positions, which are parameters; 0 for rotary and ALiBi. `biases`
    names what has one, out of BIASES; "norm" is the shift of a LayerNorm. `norms` says where a layer's norms
    stand; without `norm_weights` these, the last one and the embedding's have no scale. `qk_norm` says over
    what queries and keys are normed; with `sinks` every head has a number that its scores are weighed
    against. A head of values is as wide as one of keys, or has its own `value_width`; with `keys_as_values`
    they are made of the keys, before norm and rotation, and have no matrix. `parallel` attention and MLP read
    the same input and are summed. A query sees the last `window` tokens, itself among them, but in
    `whole_layers` (their numbers, from 0); 0 is the whole sequence. Layers with a window have `windowed`
    heads, if these are given, and the others the model's own. Where windows are `chunked` they stand side by
    side, and a query sees what is before it in its own. In some layers `linear` attention takes attention's
    place. With an `output_gate` each head's result is multiplied by a gate as wide, or by one number. With
    `latent` attention `head_dim` is the width of a query, nope + rope. `ffn` is the width of a dense MLP,
    whether or not a layer has one. `notes` says in sentences what was assumed and what is left out.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    activation: str = "swiglu"
    norm: str = "rmsnorm"
    position: str = "rotary"
    positions: int = 0
    biases: tuple[str, ...] = ()
    norms: str = "before"
    norm_weights: bool = True
    qk_norm: str = ""
    sinks: bool = False
    embedding_norm: bool = False
    parallel: bool = False
    tied_embeddings: bool = False
    window: int = 0
    whole_layers: tuple[int, ...] = ()
    chunked: bool = False
    value_width: int = 0
    keys_as_values: bool = False
    windowed: WindowedHeads | None = None
    prediction_layers: int = 0
    latent: LatentAttention | None = None
    linear: GatedDeltaNet | None = None
    output_gate: str = ""
    experts: Experts | None = None
    constants: Constants = field(default=Constants(), compare=False)  # of the launch, not of the price
    source: str = ""
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        checked_sizes(self, SIZES)
        for name, choices in CHOICES.items():
            checked_choice(getattr(self, name), name, choices)
        for bias in self.biases:
            checked_choice(bias, "bias", BIASES)
        checked_size(self.positions, "positions", least=int(self.position == "learned"))
        checked_size(self.window, "window", least=0)
        checked_size(self.value_width, "value_width", least=0)
        checked_size(self.prediction_layers, "prediction_layers", least=0)
        self._check_together()
        _ = self.with_window  # whose heads are checked, too

    def _check_together(self) -> None:
        if self.heads % self.kv_heads:
            near = near_divisors(self.heads, self.kv_heads)
            raise UserError(
                f"{self.kv_heads} heads of keys and values cannot serve {self.heads} heads evenly; nearest: "
                f"{near}."
            )
        if self.latent and self.head_dim != self.latent.head_dim:
            raise UserError(
                f"head_dim is {self.head_dim}, but a query of this latent attention is "
                f"{self.latent.head_dim} wide."
            )
        if self.latent and self.output_gate:
            raise UserError("gates of what heads give are not counted of latent attention.")
        numbered = (
            ("dense", self.experts.dense_layers if self.experts else ()),
            ("whole", self.whole_layers),
            ("linear", self.linear.layers if self.linear else ()),
        )
        for kind, layer in ((kind, layer) for kind, layers in numbered for layer in layers):
            if checked_size(layer, f"a {kind} layer's number", least=0) >= self.layers:
                raise UserError(f"layer {layer} is to be {kind}, but the last layer is {self.layers - 1}.")

    @property
    def gated(self) -> bool:
        """Whether the MLP multiplies with a gate, and so has three matrices."""
        return GATED[self.activation]

    @property
    def value_dim(self) -> int:
        """The width of one head of values."""
        return self.latent.value_dim if self.latent else self.value_width or self.head_dim

    @property
    def wide_gate(self) -> bool:
        """Whether gates are as wide as what heads give, and multiplied beside the queries."""
        return self.output_gate in ("queries", "element", "biased")

    @property
    def gate_width(self) -> int:
        """Numbers of one head's gate; 0 without any."""
        return self.value_dim if self.wide_gate else int(self.output_gate == "head")

    @property
    def moe_layers(self) -> int:
        return self.layers - len(set(self.experts.dense_layers)) if self.experts else 0

    @property
    def linear_layers(self) -> int:
        return len(set(self.linear.layers)) if self.linear else 0

    def has_experts(self, layer: int) -> bool:
        """Whether layer number `layer`, from 0, is a mixture of experts."""
        return self.experts is not None and layer not in self.experts.dense_layers

    def kind(self, layer: int) -> str:
        """The kind of layer number `layer`, from 0: dense or experts, behind linear- or window- where it has
        linear attention or a window."""
        mlp = "experts" if self.has_experts(layer) else "dense"
        if self.linear and layer in self.linear.layers:
            return f"linear-{mlp}"
        return f"window-{mlp}" if self.window and layer not in self.whole_layers else mlp

    @cached_property
    def layer_kinds(self) -> tuple[str, ...]:
        """The kinds of layers that there are, in the order of their first ones."""
        return tuple(dict.fromkeys(map(self.kind, range(self.layers))))

    @property
    def last_kind(self) -> str:
        """The kind of a layer with attention, of the last one's MLP: a prediction layer is such a one."""
        return self.kind(self.layers - 1).removeprefix("linear-")

    def with_layers(self, layers: int) -> "ModelShape":
        """The model with so many layers: their pattern goes on, but dense layers that come first do not come
        again."""

        def among(numbers: tuple[int, ...]) -> tuple[int, ...]:
            first = {*numbers} == {*range(len(numbers))}
            period = max(layers, self.layers) if first else self.layers
            return tuple(layer for layer in range(layers) if layer % period in numbers)

        linear, experts = self.linear, self.experts
        return replace(
            self,
            layers=layers,
            whole_layers=among(self.whole_layers),
            linear=linear and replace(linear, layers=among(linear.layers)),
            experts=experts and replace(experts, dense_layers=among(experts.dense_layers)),
        )

    @cached_property
    def without_window(self) -> "ModelShape":
        """The model if all its queries saw the whole sequence."""
        return replace(self, window=0, windowed=None) if self.window else self

    @cached_property
    def with_window(self) -> "ModelShape":
        """The model if all its layers had the heads of those with a window."""
        return replace(self, windowed=None, **vars(self.windowed)) if self.windowed else self

    def like(self, kind: str) -> "ModelShape":
        """The model if all its layers had the heads of this kind."""
        return self.with_window if has_window(kind) else self

    @cached_property
    def with_heads(self) -> tuple["ModelShape", ...]:
        """The model with each kind of heads that its layers have."""
        kinds = (*self.layer_kinds, self.last_kind)
        return tuple(dict.fromkeys(self.like(kind) for kind in kinds if not is_linear(kind)))

    def seen_pairs(self, sequence: int) -> int:
        """Pairs under the causal mask that a layer with a window, or chunks, keeps of a sequence."""
        if not 0 < self.window < sequence:
            return causal_pairs(sequence)
        if not self.chunked:
            return causal_pairs(sequence) - causal_pairs(sequence - self.window)
        chunks, rest = divmod(sequence, self.window)
        return chunks * causal_pairs(self.window) + causal_pairs(rest)

    def attention(self) -> tuple[Linear, ...]:
        """The matrices of one layer's attention, in the order of use. Scores and their use on values have no
        weights."""
        bias = "qkv" in self.biases
        output = Linear(
            "attention_output", self.heads * self.value_dim, self.hidden, "output" in self.biases, "rows"
        )
        if self.latent:
            sizes = (self.hidden, self.heads, bias)
            return *self.latent.queries(*sizes), *self.latent.keys_and_values(*sizes), output
        qkv = Linear("qkv", self.hidden, sum(self.qkv_outputs(self.kv_heads)), bias, "columns")
        return qkv, *self.head_gate(), output

    def head_gate(self) -> tuple[Linear, ...]:
        """The matrix of gates of one number for each head; none where a model has none."""
        gates = Linear("head_gate", self.hidden, self.heads, False, "columns")
        return (gates,) if self.output_gate == "head" else ()

    def qkv_outputs(self, kv_heads: Any) -> tuple[Any, ...]:
        """Outputs of the matrices into queries, keys and values, of so many heads of the latter two; of two
        matrices where keys serve as values, too."""
        queries = self.heads * (1 + self.wide_gate) * self.head_dim
        values = () if self.keys_as_values else (kv_heads * (self.value_width or self.head_dim),)
        return queries, kv_heads * self.head_dim, *values

    def linear_attention(self) -> tuple[Linear, ...]:
        """The matrices of one layer's linear attention; none where no layer has any."""
        return self.linear.matrices(self.hidden) if self.linear else ()

    def attention_norms(self) -> tuple[int, ...]:
        """The widths of the norms inside attention that have a scale; none has a shift."""
        ranks = (self.latent.query_rank, self.latent.kv_rank) if self.latent else ()
        queries, keys = (self.heads, self.kv_heads) if self.qk_norm == "width" else (1, 1)
        scaled = self.qk_norm in ("head", "values", "width")
        heads = (queries * self.head_dim, keys * self.head_dim) if scaled else ()
        return *filter(None, ranks), *heads

    def attention_parameters(self) -> int:
        """Parameters of one layer's attention, its own norms, sinks and gates' biases among them."""
        of_heads = self.sinks + (self.output_gate == "biased")
        of_heads -= self.head_dim * ("qkv" in self.biases and self.output_gate in ("element", "biased"))
        return count(self.attention()) + sum(self.attention_norms()) + self.heads * of_heads

    def prediction(self) -> tuple[Linear, ...]:
        """The matrix of a prediction layer that joins the last hidden state and the next token's embedding;
        its norms are three (DeepSeek-V3, arXiv 2412.19437, section 2.2). Embedding and head are the
        model's."""
        return (Linear("prediction", 2 * self.hidden, self.hidden, False, "columns"),)

    def mlp(self, ffn: int) -> tuple[Linear, ...]:
        """The matrices of an MLP of width `ffn`: the dense one, or one expert."""
        bias = "mlp" in self.biases
        up = (
            Linear("gate_up", self.hidden, 2 * ffn, bias, "columns")
            if self.gated
            else Linear("up", self.hidden, ffn, bias, "columns")
        )
        return up, Linear("down", ffn, self.hidden, bias, "rows")

    def shared_mlp(self) -> tuple[Linear, ...]:
        """The matrices of all shared experts together; none where a model has none."""
        some = self.experts
        return self.mlp(some.shared_experts * some.shared_ffn) if some and some.shared_experts else ()

    def parameters(self) -> Parameters:
        """Count the parameters by kind."""
        return self._parameters

    @cached_property
    def _parameters(self) -> Parameters:
        some = self.experts
        norm = self.hidden * (self.norm_weights + ("norm" in self.biases))
        table = self.vocab * self.hidden
        return Parameters(
            token_embedding=table,
            position_embedding=self.positions * self.hidden,
            embedding_norm=norm * self.embedding_norm,
            attention=self.attention_parameters(),
            windowed=self.with_window.attention_parameters(),
            linear=count(self.linear_attention()) + (self.linear.small_parameters() if self.linear else 0),
            dense_mlp=count(self.mlp(self.ffn)) + LEARNED.get(self.activation, 0),
            router=some.router_parameters(self.hidden, norm) if some else 0,
            expert=count(self.mlp(some.ffn)) if some else 0,
            shared_experts=count(self.shared_mlp()),
            layer_norms=sum(NORM_PLACES[self.norms]) * norm,
            final_norm=norm,
            head=0 if self.tied_embeddings else table,
            head_bias=self.vocab * ("head" in self.biases),
            prediction_head=(count(self.prediction()) + 3 * norm) * (self.prediction_layers > 0),
            prediction_layers=self.prediction_layers,
            dense_layers=self.layers - self.moe_layers,
            moe_layers=self.moe_layers,
            windowed_layers=sum(map(has_window, map(self.kind, range(self.layers)))),
            linear_layers=self.linear_layers,
            windowed_prediction=has_window(self.last_kind),
            experts=some.experts if some else 0,
            top_k=some.top_k if some else 0,
        )


CHOICES = {
    "activation": GATED,
    "norm": NORMS,
    "norms": NORM_PLACES,
    "qk_norm": QK_NORMS,
    "position": POSITIONS,
    "output_gate": OUTPUT_GATES,
}


def causal_pairs(length: int) -> int:
    """Return the pairs of a query and a key that is not behind it."""
    return length * (length + 1) // 2
