"""Which units of a model are on which stage, and how many parameters a GPU holds of each.

Glossary
    unit       embedding, layer or head
    kind       of a unit: embedding, head, or a layer's (ModelShape.kind); "dense kept" where other layers are
               recomputed and this one is not
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from ndparallel.base.errors import UserError
from ndparallel.base.words import count, listed
from ndparallel.pipeline.work import spread_layers
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.models.kinds import has_experts, is_linear
from ndparallel.planner.models.shape import ModelShape
from ndparallel.planner.stack import Stack

ENDS = ("embedding", "head")
Elements = tuple[Any, Any]  # parameters: those that all of dp share, and those of experts
KEPT = " kept"  # of a layer that is not recomputed while others are


def kind_and_recompute(plan: Plan, kind: str) -> tuple[str, str]:
    """A unit's kind as the model has it, and what it computes again: what the plan says, or nothing where it
    is kept and others are not."""
    return kind.removesuffix(KEPT), "none" if kind.endswith(KEPT) else plan.recompute


def layers_by_stage(layers: int, stages: int, prediction_layers: int = 0) -> list[int]:
    """Megatron's even split, of the layers, or with embedding and head as a layer each (Llama 3, 2407.21783,
    section 3.3.2). Where neither is even the first stages are filled, and the last, which has the head and
    prediction layers besides, has what is left (Megatron-Bridge, recipes/deepseek/deepseek_v3.py). That may
    be none ("Et|(tt|)*30mL" in perf_recipes/deepseek/h100): a head may be as long as two layers of three. By
    itself Megatron-Core splits evenly or not at all; torchtitan leaves no stage without a layer, unless
    module_fqns_per_model_part says so."""
    if layers % stages == 0:
        return [layers // stages] * stages
    each = -(-layers // stages)
    if (layers + 2) % stages == 0 or each * (stages - 2) >= layers:
        return spread_layers(layers, stages, 1, 1 + 2 * prediction_layers)
    return [min(each, max(0, layers - stage * each)) for stage in range(stages)]


def split_of(shape: ModelShape, plan: Plan) -> list[int]:
    """How many layers each stage of the plan has."""
    return [*plan.stage_layers] or layers_by_stage(shape.layers, plan.stages, shape.prediction_layers)


def stage_kinds(job: TrainingJob, plan: Plan, layers: tuple[int, ...] = ()) -> tuple[tuple[str, ...], ...]:
    """The kinds of the units on every stage of the plan; `layers` stands in for its own split."""
    return kinds_by_stage(job.shape, plan.stages, plan.recompute_layers, layers or plan.stage_layers)


@lru_cache(maxsize=1024)
def kinds_by_stage(
    shape: ModelShape, stages: int, recomputed: int = 0, layers: tuple[int, ...] = ()
) -> tuple[tuple[str, ...], ...]:
    """The kinds of the units on every stage, in the order of the model; with `recomputed` layers of a stage
    behind those are kept. `layers` says how many each stage has; without it they are split evenly. Raises
    UserError where it does not deal out all layers."""
    if layers and (len(layers), sum(layers)) != (stages, shape.layers):
        raise UserError(
            f"{count(len(layers), 'stage')} of {listed([str(each) for each in layers])} layers are not the "
            f"{count(stages, 'stage')} of the plan with the {shape.layers} layers of the model: change "
            "--stage-layers."
        )
    places = np.cumsum([0, *(layers or layers_by_stage(shape.layers, stages, shape.prediction_layers))])
    kinds = [[shape.kind(layer) for layer in range(a, b)] for a, b in zip(places, places[1:])]
    if recomputed:
        kinds = [[kind + KEPT * (place >= recomputed) for place, kind in enumerate(stage)] for stage in kinds]
    kinds[0].insert(0, "embedding")
    kinds[-1].append("head")
    return tuple(map(tuple, kinds))


def kinds_of_rank(plan: Plan, kinds: Sequence[Sequence[str]], rank: int) -> tuple[str, ...]:
    """The kinds of the units on all stages of a pipeline rank, of the `kinds` on every stage."""
    return tuple(kind for stage in plan.layout.stages_of(rank) for kind in kinds[stage])


def trained_of(job: TrainingJob, plan: Plan, kind: str) -> Elements:
    """Parameters of one unit on a GPU that have gradients: all, or those of adapters."""
    adapters, kind = job.adapters, kind.removesuffix(KEPT)
    shape = job.shape.like(kind)
    if adapters is None:
        return elements_of(job, plan, kind)
    if kind in ENDS:
        return 0.0, 0.0
    mixers = shape.linear_attention() if is_linear(kind) else shape.attention()
    stack = job.stack
    attention = adapters.elements(shape, mixers, plan.tp, stack)
    if not has_experts(kind):
        return attention + adapters.elements(shape, shape.mlp(shape.ffn), plan.tp, stack), 0.0
    some = shape.experts
    assert some
    own = adapters.elements(shape, shape.mlp(some.ffn), plan.etp(stack), stack)
    pairs = 1 if stack.bridge_adapters else some.experts / plan.ep
    return attention + adapters.elements(shape, shape.shared_mlp(), plan.tp, stack), pairs * own


def held_of(job: TrainingJob, plan: Plan, kind: str) -> Elements:
    """Parameters of one unit as its GPU keeps them, whole or cast, in numbers of 16 bits."""
    return elements_of(job, plan, kind, 1.0 if plan.zero == 3 else job.matrix_bytes(plan.zero) / 2)


def elements_of(job: TrainingJob, plan: Plan, kind: str, kept: float = 1.0) -> Elements:
    """Parameters of one unit on a GPU, in numbers of 16 bits: (all but experts, experts). A tied head on a
    stage of its own holds a copy of the table. A weight of a layer's matrix counts as so many `kept`."""
    counted, tp = job.shape.parameters(), plan.tp
    kind = kind.removesuffix(KEPT)
    if kind == "embedding":
        table = embedding_elements(job, tp)
        return table + counted.position_embedding + counted.embedding_norm, 0.0
    if kind == "head":
        copied = (plan.pp > 1) | (not job.shape.tied_embeddings)
        head = copied * table_elements(job, tp) + counted.head_bias / tp + counted.final_norm
        return head_and_prediction(job, plan, head, kept)
    mixture, cut = has_experts(kind), counted.mixer(kind)
    cut += counted.shared_experts if mixture else counted.dense_mlp
    whole = counted.layer_norms + (counted.router if mixture else 0)
    experts = counted.experts * counted.expert / plan.expert_parts(job.stack) if mixture else 0.0
    if adapters := job.adapters:
        added, own = trained_of(job, plan, kind)
        kept = adapters.base_bits / 16 if adapters.quantized else kept
        return kept * cut / tp + whole + added, kept * experts + own
    return kept * cut / tp + whole, kept * experts


def table_elements(job: TrainingJob, tp: Any) -> Any:
    """Parameters of a tp rank's part of the vocabulary's table."""
    return padded_vocab(job.shape, job.stack, tp) * job.shape.hidden / tp


def embedding_elements(job: TrainingJob, tp: Any) -> Any:
    """Parameters of what a tp rank has of the embedding's table: all of it where the software does not cut
    that."""
    return table_elements(job, tp if job.stack.cuts_table else 1)


def padded_vocab(shape: ModelShape, stack: Stack, tp: Any) -> Any:
    """The vocabulary with the rows that no token has, so that all tp ranks have as many
    (vocab_size_with_padding in megatron/core/tokenizers/utils/build_tokenizer.py)."""
    multiple = stack.vocabulary_multiple * tp
    return -(-shape.vocab // multiple) * multiple


def head_and_prediction(job: TrainingJob, plan: Plan, head: Any, kept: float) -> Elements:
    """Parameters of the head with its prediction layers, each a layer and what joins it to the model."""
    counted, layers = job.shape.parameters(), job.shape.prediction_layers
    if not layers:
        return head, 0.0
    shared, experts = elements_of(job, plan, job.shape.last_kind, kept)
    return head + layers * (shared + counted.prediction_head / plan.tp), layers * experts


def gathers_every_microbatch(job: TrainingJob, plan: Plan) -> bool:
    """Whether weights are gathered for each microbatch: in ZeRO-3, and in FSDP's ZeRO-2 too, which keeps them
    whole from the forward pass to the backward pass alone (set_reshard_after_backward in
    torch/distributed/fsdp/_fully_shard/_fully_shard.py; SHARD_GRAD_OP in torch/distributed/fsdp/api.py)."""
    return plan.zero == 3 or (plan.zero == 2 and job.stack.has_torch_fsdp)


def gathers_again(job: TrainingJob, plan: Plan) -> bool:
    """Whether weights are freed behind the forward pass, and gathered again for the backward pass."""
    return plan.zero == 3 and job.stack.reshards


def keeps_weights(job: TrainingJob, plan: Plan):
    """Whether FSDP's weights are whole from their first use to the end of the step."""
    return (plan.zero == 3) & (plan.pp > 1) & job.stack.whole_in_pipeline


def weights_are_whole(job: TrainingJob, plan: Plan):
    """Whether all of FSDP's weights are whole at the end of the forward pass, as ZeRO-2's are."""
    return keeps_weights(job, plan) | (plan.zero == 2) | (not job.stack.reshards)


def keeps_gradients(job: TrainingJob, plan: Plan):
    """Whether FSDP's gradients are whole until the last microbatch, which alone reduces them."""
    between = (plan.zero == 3) & (plan.microbatches(job) > 1) & job.stack.whole_between
    return keeps_weights(job, plan) | between
