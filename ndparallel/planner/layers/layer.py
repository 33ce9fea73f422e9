"""The lists of one layer, put together from its halves: attention, and the MLP or the experts.

Glossary: see `ndparallel.planner.layers.operations`.
"""

from dataclasses import replace
from functools import cached_property, lru_cache

from ndparallel.base.latest import latest
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.layers.attention.half import AttentionLists
from ndparallel.planner.layers.attention.linear import LinearAttentionLists
from ndparallel.planner.layers.casts import Casts
from ndparallel.planner.layers.ends import ModelEnds
from ndparallel.planner.layers.experts.half import ExpertLists
from ndparallel.planner.layers.frozen import FrozenLists
from ndparallel.planner.layers.layer_kernels import writer
from ndparallel.planner.layers.mlp import MLPLists
from ndparallel.planner.layers.operations import Layer
from ndparallel.planner.layers.parts import LayerParts
from ndparallel.planner.layers.recomputed import Mixer, Recomputation
from ndparallel.planner.models.kinds import has_experts, has_window, is_linear
from ndparallel.planner.numbers import everywhere


class LayerLists(LayerParts):
    """Writes the lists of one kind of layer for one share and one stack."""

    linear = writer(LinearAttentionLists)
    mlp = writer(MLPLists)
    experts = writer(ExpertLists)
    ends = writer(ModelEnds)
    casts = writer(Casts)

    @cached_property
    def attention(self) -> AttentionLists:
        """Attention to the whole sequence."""
        return AttentionLists(self.shape.without_window, self.share, self.stack)

    @cached_property
    def windowed(self) -> AttentionLists:
        """Attention in a window."""
        return AttentionLists(self.shape.with_window, self.share, self.stack)

    @cached_property
    def recomputed(self) -> Recomputation:
        return Recomputation(*self.given, self.experts)

    @cached_property
    def frozen(self) -> FrozenLists | None:
        return FrozenLists(*self.given) if self.share.adapters else None

    def mixer(self, kind: str) -> Mixer:
        """What mixes a layer's tokens."""
        if is_linear(kind):
            return self.linear
        return self.windowed if has_window(kind) else self.attention

    @cached_property
    def units(self) -> dict[tuple[str, str], Layer]:
        return {}

    def unit(self, kind: str, recompute: str) -> Layer:
        """The four lists of an embedding, a layer of this kind, or a head, written once; `recompute` is none,
        selective or full."""
        if (kind, recompute) not in self.units:
            self.units[kind, recompute] = self.written(kind, recompute)
        return self.units[kind, recompute]

    def written(self, kind: str, recompute: str) -> Layer:
        if kind == "embedding":
            return self.frozen.embedding(self.ends.embedding()) if self.frozen else self.ends.embedding()
        if kind == "head":
            return self.frozen.head(self.head(recompute)) if self.frozen else self.head(recompute)
        return self.layer(kind, recompute)

    def head(self, recompute: str) -> Layer:
        if not self.shape.prediction_layers:
            return self.ends.head()
        return self.ends.with_prediction(self.unit(self.shape.last_kind, recompute))

    def layer(self, kind: str, recompute: str) -> Layer:
        mixer = self.mixer(kind)
        half = self.experts if has_experts(kind) else self.mlp
        of_mixer, small = mixer.small_kernels.of_part, self.small_kernels.of_part
        part = "linear attention" if is_linear(kind) else "attention"
        forward = mixer.forward + of_mixer(part, False), half.forward + small("mlp", False)
        backward = half.backward + mixer.backward + small("mlp", True) + of_mixer(part, True)
        again = self.recomputed.again(kind, mixer, *forward, recompute)
        first, second = (half, mixer) if self.stack.in_order else (mixer, half)
        weights = first.weight_gradients + second.weight_gradients
        lists = Layer(sum(forward, []), again, backward, weights)
        lists = replace(self.frozen, shape=mixer.shape).layer(lists) if self.frozen else lists
        if not self.share.number_type.kernels:
            return lists
        twice = self.casts_twice(kind, recompute)
        return Layer(*(self.casts.written_into(items, twice) for items in lists))

    def casts_twice(self, kind: str, recompute: str) -> frozenset[str]:
        """Matrices whose input Transformer Engine keeps in 16 bits, because attention, the router, or an
        activation that runs again has it so, unless scales are a former step's (set_save_original_input in
        megatron/core/transformer: attention.py, moe/shared_experts.py, moe/experts.py)."""
        if not self.stack.keeps_cast or self.share.number_type.shares_amax:
            return frozenset()
        if not has_experts(kind):
            return frozenset(("attention_output",))
        acts_again = recompute == "selective" and "moe_act" in self.stack.selective
        shared = (matrix.name for matrix in self.shape.shared_mlp()[:1])
        return frozenset(("attention_output", *shared, *("experts down",) * acts_again))


@latest
def lists_of(job: TrainingJob, plan: Plan) -> LayerLists:
    """The lists of a job's layers, which plans that cut a layer alike share."""
    stack = job.stack
    if plan.recompute_modules:
        stack = replace(stack, selective=plan.recompute_modules)
    if everywhere(plan.keeps_rows(stack)):
        stack = replace(stack, dispatcher="alltoall")
    given = job.shape, plan.share(job), stack
    try:
        return shared_lists(*given)
    except TypeError:  # an array of plans has no hash
        return LayerLists(*given)


shared_lists = lru_cache(maxsize=64)(LayerLists)
