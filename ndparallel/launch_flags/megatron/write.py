"""`--emit megatron`: the launch line of Megatron-Core for a job and a plan.

Idea   Every field of the model, the job and the plan is a flag, or it is refused: a launch line of another
       plan than the one that was priced is worse than none.
Limit  What no plan knows (data, tokenizer, learning rate, checkpoints) is passed on from the script's own
       arguments.

Glossary: see ../fields.py.
"""

from collections.abc import Iterator
from dataclasses import replace

from ndparallel.base.errors import UserError
from ndparallel.base.quoting import shell_comment
from ndparallel.base.words import listed
from ndparallel.hardware.architecture import HOPPER, has_multicast, is_before
from ndparallel.launch_flags import fields
from ndparallel.launch_flags.frozen import release
from ndparallel.launch_flags.megatron.constants import constant_remarks
from ndparallel.launch_flags.megatron.rules import (
    RULES,
    dispatcher_of,
    goes_by_deepep,
    no_flags_for,
    parts_beside,
    precision_aware,
    weights_beside,
)
from ndparallel.launch_flags.megatron.write_model import flags_for, model_flags, numbers
from ndparallel.launch_flags.nodes import torchrun_nodes
from ndparallel.launch_flags.rules import refuse, refuse_other_software, switches_apart
from ndparallel.launch_flags.script_text import note_on_imbalance, opening
from ndparallel.planner.attention_kernels import trains
from ndparallel.planner.describe import state_words
from ndparallel.planner.dispatchers import DEEPEPS_LATER_RANKS
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.launches import GRAPH_SCOPES
from ndparallel.planner.legality import check
from ndparallel.planner.models.shape import ModelShape
from ndparallel.planner.software import MEGATRON_CORE, NEMO
from ndparallel.planner.stack import Stack
from ndparallel.planner.stages import padded_vocab, split_of

FREE = (  # of a software stack: what flags choose
    *("name", "attention", "dropout", "accumulates", "vocabulary_multiple", "gradient_bytes"),
    *("scales_gradients", "cast_weights", "dispatcher", "expert_tp", *fields.OF_MIXTURES),
    *("sequence_parallel", "selective", "context_parallel", "hides_dispatch", "graphs"),
    *("tp_overlap", "dp_overlap", "prefetch", "gathers_first", "cp_overlap", "pp_overlap"),
)
ELSEWHERE = "data, tokenizer, learning rate, number of steps, checkpoints"


def emit_megatron(job: TrainingJob, plan: Plan) -> str:
    """A shell script that launches this plan. Raises UserError, saying what, for what Megatron-Core's flags
    cannot express."""
    check(job, plan)
    refuse_other_software(job, "megatron", (MEGATRON_CORE.name, NEMO.name))
    flags = [
        *model_flags(job.shape),
        *plan_flags(job, plan),
        *job_flags(job, plan),
        *overlap_flags(job, plan),
    ]
    lines = [f"  {flag} \\" for flag in flags if flag]
    return "\n".join(
        [*header(job, plan), *environment(job, plan), *launcher(job, plan), *lines, '  "$@"', ""]
    )


def header(job: TrainingJob, plan: Plan) -> Iterator[str]:
    yield "#!/bin/bash"
    yield from map(shell_comment, remarks(job, plan))


def remarks(job: TrainingJob, plan: Plan) -> Iterator[str]:
    """What a reader of the script wants to know and no flag says."""
    yield from opening(job, plan, "megatron", "Flags")
    padded = padded_vocab(job.shape, job.stack, plan.tp)
    if padded != job.shape.vocab:
        yield f"It pads the vocabulary of {job.shape.vocab} to {padded}, as the plan does."
    yield from note_on_imbalance(job, ", which no flag says.")
    if job.moments == "bf16" and not job.offload:
        yield "Of the weights' copy in float32 it may keep the lower half alone: 2 bytes less than planned."
    if job.shape.latent and job.stack.attention == "flash2":
        yield "FlashAttention has values narrower than keys from Transformer Engine 2.17 on."
    yield from deepep_remarks(job, plan)
    yield from constant_remarks(job.shape, release("megatron"))
    yield f"What no plan knows is given as this script's arguments: {ELSEWHERE}."


def deepep_remarks(job: TrainingJob, plan: Plan) -> Iterator[str]:
    """Which DeepEP has the kernels (setup.py, and get_dispatch_config in deep_ep/buffers/legacy.py)."""
    if goes_by_deepep(job, plan):
        if is_before(job.hardware, HOPPER):
            yield "Its DeepEP is 1.2.1, built with DISABLE_SM90_FEATURES=1: later ones begin with Hopper."
        if plan.expert_parts(job.stack) in DEEPEPS_LATER_RANKS:
            yield f"Its DeepEP is later than 1.2.1, which has no {plan.expert_parts(job.stack)} ranks."


def environment(job: TrainingJob, plan: Plan) -> Iterator[str]:
    """One hardware queue keeps tp's and cp's communication in order before Blackwell; FSDP, and rows beside
    another microbatch, need several. Parts beside matmuls are written to several GPUs at once, where a switch
    can do that (initialize_ub in transformer_engine/pytorch/module/base.py)."""
    if parts_beside(job, plan) and not has_multicast(job.hardware):
        yield "export UB_SKIPMC=1"
    if plan.zero >= 2:
        yield "# FSDP's messages travel beside compute in hardware queues of their own: one queue is too few."
        yield "unset CUDA_DEVICE_MAX_CONNECTIONS"
    elif plan.sends_rows_beside(job.stack):
        yield "export CUDA_DEVICE_MAX_CONNECTIONS=32"
    elif job.before_blackwell and (plan.tp > 1 or plan.cp > 1):
        yield "export CUDA_DEVICE_MAX_CONNECTIONS=1"


def launcher(job: TrainingJob, plan: Plan) -> Iterator[str]:
    yield f"torchrun {torchrun_nodes(job, plan)} \\"
    yield '  --rdzv-backend c10d --rdzv-endpoint "$MASTER_ADDR:$MASTER_PORT" pretrain_gpt.py \\'


# --------------------------------------------------------------------------------------------------- the plan


def plan_flags(job: TrainingJob, plan: Plan) -> Iterator[str]:
    """Yield a plan's flags. Raises UserError for a plan that Megatron-Core does not have."""
    refuse(RULES, job, plan)
    yield from numbers(plan, fields.DEGREES)
    yield from pipeline_flags(job, plan)
    cut = plan.etp(job.stack)
    yield f"{fields.EXPERT_TP} {cut}" if plan.tp > 1 and job.shape.experts else ""
    yield fields.SEQUENCE_PARALLEL if plan.sequence_parallel and plan.tp > 1 else ""
    yield from recompute_flags(job.stack, plan)
    yield flags_for("zero", plan.zero, fields.ZERO)
    replicas = plan.dp * plan.cp // (plan.shards or plan.dp * plan.cp) if plan.zero == 3 else 1
    yield f"{fields.REPLICAS} {replicas}" if replicas > 1 else ""


def recompute_flags(stack: Stack, plan: Plan) -> Iterator[str]:
    some = plan.recompute == "full" and plan.recompute_layers
    yield (
        f"{fields.RECOMPUTE_SOME} {plan.recompute_layers}"
        if some
        else flags_for("recompute", plan.recompute, fields.RECOMPUTE)
    )
    if plan.recompute == "selective" and plan.modules(stack) != MEGATRON_CORE.selective:
        yield f"{fields.RECOMPUTED} {' '.join(plan.modules(stack))}"


def pipeline_flags(job: TrainingJob, plan: Plan) -> Iterator[str]:
    if plan.pp == 1:
        return
    if plan.stage_layers or job.shape.layers % plan.stages:
        yield f"{fields.LAYOUT} {layout_of(job.shape, plan)}"
    else:
        yield f"{fields.CHUNKS} {plan.chunks}" if plan.chunks > 1 else ""
    group = group_of(job, plan)
    yield f"{fields.GROUP} {group}" if group not in (0, plan.pp) else ""


def group_of(job: TrainingJob, plan: Plan) -> int:
    """How many microbatches go through a chunk before the next one; 0 with one chunk. Megatron-Core's own
    choice is pp, and a step of M microbatches then stops where M % pp is not 0."""
    interleaves = plan.pp > 1 and plan.recipe.group
    return plan.recipe.microbatches_per_round(plan.microbatches(job), plan.pp) if interleaves else 0


def layout_of(shape: ModelShape, plan: Plan) -> str:
    """The stages in Megatron's letters: E embedding, t transformer layer, m prediction layer, L loss;
    "Et*2|t*3|t*2L"."""
    runs = [f"t*{number}" if number else "" for number in split_of(shape, plan)]
    return f'"E{"|".join(runs)}{"m" * shape.prediction_layers}L"'


# ---------------------------------------------------------------------------------------------------- the job


def refuse_sequence(job: TrainingJob) -> None:
    """Raise UserError for a sequence that is too long for what Megatron-Core can be of this model."""
    shape = job.shape
    if shape.position == "learned" and shape.positions < job.sequence:
        what = f"a sequence of {job.sequence} with {shape.positions} learned positions"
        raise no_flags_for(what, "shorten the sequence")
    if shape.chunked and 0 < shape.window < job.sequence:
        raise no_flags_for("attention in chunks", f"take a sequence of one chunk, at most {shape.window}")


def refuse_kernel(job: TrainingJob) -> None:
    """Raise UserError for an attention kernel that cannot train the model's heads on this GPU."""
    kernel, of_job = job.stack.attention, (job.hardware, job.shape)
    if not trains(kernel, *of_job):
        heads = f"heads of {job.shape.head_dim} and {job.shape.value_dim} on {job.hardware.name}"
        others = listed([each for each in fields.ATTENTION if trains(each, *of_job)])
        raise no_flags_for(f"training with {kernel} attention of {heads}", f"it has {others}")


def job_flags(job: TrainingJob, plan: Plan) -> Iterator[str]:
    yield from numbers(job, fields.JOB_SIZES)
    refuse_sequence(job)
    yield f"--max-position-embeddings {job.shape.positions or job.sequence}"
    yield flags_for("dtype", job.dtype, fields.DTYPES)
    yield from optimizer_flags(job)
    refuse_kernel(job)
    yield flags_for("attention", job.stack.attention, fields.ATTENTION)
    rate = 0.1 if job.stack.dropout else 0  # Megatron's own, or none
    yield f"--attention-dropout {rate} --hidden-dropout {rate}"
    multiple = job.stack.vocabulary_multiple
    yield "" if multiple == MEGATRON_CORE.vocabulary_multiple else f"{fields.MULTIPLE} {multiple}"
    yield "" if job.stack.accumulates else "--no-gradient-accumulation-fusion"
    yield gradient_flag(job.stack, plan)
    yield "" if job.stack.scales_gradients else "--ddp-average-in-collective"
    yield fields.CAST_WEIGHTS[job.dtype] if job.casts_weights_alone and plan.zero else ""
    yield fields.CONTEXT_PARALLEL[job.stack.context_parallel] if plan.cp > 1 else ""
    if job.shape.experts:
        yield "" if job.capacity_factor is None else f"{fields.CAPACITY} {job.capacity_factor:g}"
        yield fields.DISPATCHERS[dispatcher_of(job, plan)]
        yield from (flag for name, flag in fields.OF_MIXTURES.items() if getattr(job.stack, name))
    yield from graph_flags(job)


def gradient_flag(stack: Stack, plan: Plan) -> str:
    """The flag of the type in which gradients are added up and reduced; "" where Megatron-Core takes it
    anyway."""
    if plan.zero < 2:
        return "--grad-reduce-in-bf16" if stack.gradient_bytes == 2 else ""
    (dtype,) = (name for name, size in fields.FSDP_GRADIENT_BYTES.items() if size == stack.gradient_bytes)
    return f"{fields.FSDP_GRADIENTS} {dtype}"


def optimizer_flags(job: TrainingJob) -> Iterator[str]:
    """Yield how the optimizer is kept. Raises UserError for other states that are not as usual."""
    if "activations" in job.offload:
        raise UserError(
            "ndparallel does not write Megatron's --fine-grained-activation-offloading: it offloads modules, "
            "and the plan a share of each layer's activations. Leave activations out of --offload."
        )
    known = replace(job, offload=(), moments="fp32" if job.moments in fields.MOMENTS else job.moments)
    if words := state_words(known):
        raise no_flags_for(" or ".join(words))
    yield fields.AWARE if precision_aware(job) else ""
    yield fields.MOMENTS[job.moments]
    yield f"{fields.ON_HOST} {fields.HOST_SHARE} 1" if job.offload else ""


def graph_flags(job: TrainingJob) -> Iterator[str]:
    """Yield the flags of CUDA graphs. Raises UserError for what they cannot hold of this model."""
    graphs, some = job.stack.graphs, job.shape.experts
    if graphs in GRAPH_SCOPES and not some:
        raise no_flags_for(f"CUDA graphs of the {graphs} in a model without experts", "it has step")
    if graphs == "step" and some and job.capacity_factor is None:
        raise no_flags_for(
            "CUDA graphs of a step whose experts take all rows, as nobody knows their number before",
            "add --capacity-factor",
        )
    yield flags_for("CUDA graphs", graphs, fields.GRAPHS)
    yield fields.PADDED if graphs == "step" and some else ""


def overlap_flags(job: TrainingJob, plan: Plan) -> Iterator[str]:
    """What travels beside compute. Raises UserError for what Megatron-Core always does otherwise."""
    stack = job.stack
    refuse_other_kernels(stack)
    yield fields.PARTS_BESIDE if parts_beside(job, plan) else ""
    yield fields.GRADIENTS_BESIDE if stack.dp_overlap else ""
    yield fields.WEIGHTS_BESIDE if weights_beside(job, plan) else ""
    yield "" if stack.pp_overlap else fields.MESSAGES_NOT_BESIDE
    yield fields.ROWS_BESIDE if plan.sends_rows_beside(job.stack) else ""


def refuse_other_kernels(stack: Stack) -> None:
    """Raise UserError for software whose kernels are not those of the present Megatron-Core."""
    if differs := switches_apart(stack, MEGATRON_CORE, FREE):
        raise no_flags_for(f"the plan's {listed(differs)}", "leave them as they are")
