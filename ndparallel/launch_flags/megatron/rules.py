"""What of a plan Megatron-Core cannot run.

Idea   Its own checks, as rules: validate_args in megatron/training/arguments.py, and
       TransformerConfig.__post_init__ in megatron/core/transformer/transformer_config.py.
Limit  Versions of PyTorch and Transformer Engine are taken to be new enough.
"""

import numpy as np

from ndparallel.base.errors import UserError
from ndparallel.hardware.architecture import HOPPER, is_before, nvlink_ranks, shares_nvlink
from ndparallel.launch_flags import fields
from ndparallel.launch_flags.rules import Condition, LaunchRule, has_no, is_none_of, rule_maker
from ndparallel.pipeline.catalog import RECIPES, names_in
from ndparallel.planner.dispatchers import DEEPEPS_NODE, DEEPEPS_RANKS
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.launches import GRAPH_SCOPES


def schedules_it_has(job: TrainingJob, plan: Plan) -> UserError:
    named = (name + " with several chunks" * (not RECIPES[name].chunks) for name in names_in("megatron"))
    return no_flags_for(f"the schedule {plan.schedule}", f"it has {', and '.join(named)}")


def unsharded(plan: Plan):
    """Whether tp ranks all have the whole sequence between their matmuls."""
    return (plan.tp > 1) & np.logical_not(plan.sequence_parallel)


def parts_beside(job: TrainingJob, plan: Plan):
    """Whether tp's messages travel in parts beside matmuls, in Transformer Engine's user buffers."""
    return (job.stack.tp_overlap == "all") & (plan.tp > 1)


def dispatcher_of(job: TrainingJob, plan: Plan) -> str:
    return "alltoall" if plan.keeps_rows(job.stack) else job.stack.dispatcher


def recomputes(job: TrainingJob, plan: Plan, *modules: str):
    """Whether selective recomputation runs one of these again."""
    return bool({*modules} & {*plan.modules(job.stack)}) & (plan.recompute == "selective")


def no_flags_for(what: str, instead: str = "") -> UserError:
    return has_no("megatron", f"flags for {what}", instead)


never = rule_maker(no_flags_for)


def never_beside(what: str, instead: str, breaks: Condition) -> LaunchRule:
    return never(
        f"rows beside another microbatch's compute {what}",
        instead,
        lambda job, plan: plan.sends_rows_beside(job.stack) & breaks(job, plan),
    )


def precision_aware(job: TrainingJob) -> bool:
    """Whether the job needs Megatron's optimizer of several precisions, of which that on the host is one."""
    return job.moments == "bf16" or "optimizer" in job.offload


def weights_beside(job: TrainingJob, plan: Plan):
    """Whether weights that ranks share come beside compute: FSDP's ahead of their layer, others once they are
    stepped."""
    stack, zero = job.stack, np.asarray(plan.zero)
    return (zero == 3) & stack.prefetch | (zero > 0) & (zero < 3) & stack.gathers_first


PAIRED = (  # overlap_moe_expert_parallel_comm
    never_beside(
        "in a pipeline of one chunk",
        "take several chunks, or leave ep out of --overlap",
        lambda job, plan: (plan.pp > 1) & (plan.chunks == 1),
    ),
    never_beside(
        "with the dispatcher allgather",
        "take another --dispatcher",
        lambda job, plan: job.stack.dispatcher == "allgather",
    ),
    never_beside(
        "where experts are recomputed",
        "recompute less, or leave ep out of --overlap",
        lambda job, plan: (plan.recompute == "full") | recomputes(job, plan, "moe"),
    ),
    never_beside(
        "with several prediction layers",
        "leave ep out of --overlap",
        lambda job, plan: job.shape.prediction_layers > 1,
    ),
    never_beside(  # of FullyShardedDataParallel in megatron/core/distributed/fsdp/mcore_fsdp_adapter.py
        "and CUDA graphs of layers, in Megatron-FSDP",
        "leave ep out of --overlap, or take --zero 1",
        lambda job, plan: job.stack.graphs in GRAPH_SCOPES and (plan.zero >= 2),
    ),
    never_beside(  # of validate_args
        "and CUDA graphs of attention with biases, or of gradients that are added up apart",
        "leave ep out of --overlap, or take --cuda-graphs step",
        lambda job, plan: (
            job.stack.graphs == "router"
            and (bool({"qkv", "output"} & {*job.shape.biases}) or not job.stack.accumulates)
        ),
    ),
)
GRAPHED = (  # cuda_graph_impl and cuda_graph_modules
    never(
        "CUDA graphs of layers where experts are recomputed",
        "recompute less, or take step",
        lambda job, plan: (
            job.stack.graphs in GRAPH_SCOPES and (plan.recompute == "full") | recomputes(job, plan, "moe")
        ),
    ),
    never(
        "CUDA graphs of what is recomputed with dropout",
        "recompute something else",
        lambda job, plan: (
            job.stack.dropout
            and job.stack.graphs in ("router", "step")
            and recomputes(job, plan, "core_attn", *("mlp", "moe") * (job.stack.graphs == "step"))
        ),
    ),
    never(
        "CUDA graphs of the dispatcher alltoall with a capacity factor",
        "take another --dispatcher, or leave --capacity-factor out",
        lambda job, plan: (
            job.stack.graphs in GRAPH_SCOPES
            and job.capacity_factor is not None
            and plan.keeps_rows(job.stack) | (job.stack.dispatcher == "alltoall")
        ),
    ),
    never(
        "CUDA graphs of a step with the dispatcher deepep, which does not pad what experts take",
        "take another --dispatcher",
        lambda job, plan: (
            job.stack.graphs == "step"
            and job.capacity_factor is not None
            and job.stack.dispatcher == "deepep"
            and np.logical_not(plan.keeps_rows(job.stack))
        ),
    ),
)


def never_by_deepep(what: str, instead: str, breaks: Condition) -> LaunchRule:
    return never(
        f"the dispatcher deepep {what}",
        f"take --dispatcher {instead}",
        lambda job, plan: goes_by_deepep(job, plan) & breaks(job, plan),
    )


def goes_by_deepep(job: TrainingJob, plan: Plan):
    deepep = job.stack.dispatcher == "deepep" and job.shape.experts is not None
    return deepep & np.logical_not(plan.keeps_rows(job.stack))


def ranks_of_deepep(job: TrainingJob, plan: Plan) -> UserError:
    return no_flags_for(
        f"the dispatcher deepep over {plan.expert_parts(job.stack)} ranks",
        f"it has {', '.join(map(str, DEEPEPS_RANKS))} of them; or take --dispatcher alltoall",
    )


DEEPEP = (
    never_by_deepep(  # validate_flex_dispatcher_backend of Megatron-Bridge: B200 and B300, no GB200 or GB300
        "where machines share one NVLink", "hybridep", lambda job, plan: shares_nvlink(job.hardware)
    ),
    never_by_deepep(  # Buffer in csrc/legacy/buffer.hpp; "NVLink for intranode" in docs/legacy.md
        "over more ranks than NVLink joins, but in nodes of 8 GPUs",
        "alltoall",
        lambda job, plan: (
            bool(nvlink_ranks(job.hardware) % DEEPEPS_NODE)
            & (plan.expert_parts(job.stack) > nvlink_ranks(job.hardware))
        ),
    ),
    never_by_deepep(  # DISABLE_SM90_FEATURES in setup.py
        "over several nodes of GPUs before Hopper",
        "alltoall, or at most 8 ranks of experts",
        lambda job, plan: is_before(job.hardware, HOPPER) & (plan.expert_parts(job.stack) > DEEPEPS_NODE),
    ),
    LaunchRule(
        lambda job, plan: goes_by_deepep(job, plan) & is_none_of(DEEPEPS_RANKS, plan.expert_parts(job.stack)),
        ranks_of_deepep,
    ),
)

# OptimizerConfig.__post_init__ in megatron/core/optimizer/optimizer_config.py, and validate_args
OPTIMIZERS = (
    never(
        "moments in 16 bits, or an optimizer on the host, without ZeRO-1",
        "take --zero 1",
        lambda job, plan: precision_aware(job) and (plan.zero != 1),
    ),
    never(
        "an optimizer on the host beside weights in 8 bits alone, but in fp8 with delayed scales",
        "take another --dtype or --software",
        lambda job, plan: "optimizer" in job.offload and job.casts_weights_alone and job.dtype != "fp8",
    ),
)

# get_attention_backend in transformer_engine/pytorch/attention/dot_product_attention/utils.py, and
# attn_forward_func_with_cp in context_parallel.py beside it
ATTENTION = (
    never(
        "attention with sinks by FlashAttention",
        "it has fused and unfused kernels",
        lambda job, plan: job.shape.sinks and job.stack.attention == "flash2",
    ),
    never(
        "attention with sinks over cp ranks, but by all-to-all",
        "take --context-parallel all-to-all, or --cp 1",
        lambda job, plan: job.shape.sinks and job.stack.context_parallel != "all-to-all" and plan.cp > 1,
    ),
    never(
        "layers with a window whose keys and values go round cp ranks",
        "take --context-parallel all-gather or all-to-all, or --cp 1",
        lambda job, plan: (
            job.shape.window
            and not job.shape.chunked
            and job.stack.context_parallel == "ring"
            and plan.cp > 1
        ),
    ),
    never(
        "unfused attention over cp ranks",
        "leave --no-flash-attention out, or take --cp 1",
        lambda job, plan: job.stack.attention == "unfused" and plan.cp > 1,
    ),
)

# TransformerConfig.__post_init__
RECOMPUTED = (
    never(
        "recomputation of layernorm or moe_act in fp8 with delayed scales",
        "recompute something else, or take --dtype fp8-current",
        lambda job, plan: job.dtype == "fp8" and recomputes(job, plan, "layernorm", "moe_act"),
    ),
    never(
        "recomputation of moe_act in a model without experts",
        "recompute something else",
        lambda job, plan: job.shape.experts is None and recomputes(job, plan, "moe_act"),
    ),
    never(
        "recomputation of mla_up_proj without latent attention",
        "recompute something else",
        lambda job, plan: job.shape.latent is None and recomputes(job, plan, "mla_up_proj"),
    ),
)
EXPERTS = (
    never(
        "experts with biases that tp cuts",
        f"give {fields.EXPERT_TP} 1",
        lambda job, plan: (
            job.shape.experts and job.stack.expert_tp and "mlp" in job.shape.biases and plan.tp > 1
        ),
    ),
)

RULES = (
    LaunchRule(
        lambda job, plan: (plan.pp > 1) & is_none_of(names_in("megatron"), plan.schedule), schedules_it_has
    ),
    never(
        "several chunks on two pipeline ranks without overlap of their messages",
        "add pp to --overlap",
        lambda job, plan: not job.stack.pp_overlap and (plan.chunks > 1) & (plan.pp == 2),
    ),
    never(
        "experts with tp={plan.tp} and without sequence parallelism",
        "add --sequence-parallel",
        lambda job, plan: job.shape.experts and unsharded(plan),
    ),
    never(  # _get_dp_tp_mesh in megatron/core/distributed/fsdp/mcore_fsdp_adapter.py: dp * cp * tp are all
        "ZeRO-{plan.zero} in a pipeline, as its ranks are those of tp, cp and dp",
        "take --zero 1, or --pp 1",
        lambda job, plan: (plan.pp > 1) & (plan.zero >= 2),
    ),
    LaunchRule(
        lambda job, plan: recomputes(job, plan, "half"),
        lambda job, plan: no_flags_for(
            "recomputation of every second matrix", f"it can recompute {', '.join(fields.MODULES)}"
        ),
    ),
    never(
        "tensor parallelism without any overlap",
        "add tp to --overlap",
        lambda job, plan: job.stack.tp_overlap == "none" and plan.tp > 1,
    ),
    never(
        "tp in parts beside matmuls without sequence parallelism",
        "add --sequence-parallel",
        lambda job, plan: job.stack.tp_overlap == "all" and unsharded(plan),
    ),
    LaunchRule(  # Requirements in examples/pytorch/comm_gemm_overlap/README.md of Transformer Engine
        lambda job, plan: parts_beside(job, plan) & (plan.tp > nvlink_ranks(job.hardware)),
        lambda job, plan: no_flags_for(
            f"tp in parts beside matmuls over {plan.tp} GPUs, of which NVLink joins "
            f"{nvlink_ranks(job.hardware)}",
            f"take {'--tp 1' if nvlink_ranks(job.hardware) == 1 else 'a smaller --tp'}, or --software "
            "megatron-core",
        ),
    ),
    never(
        "context parallelism without overlap",
        "add cp to --overlap",
        lambda job, plan: not job.stack.cp_overlap and plan.cp > 1,
    ),
    never(  # validate_args: --overlap-param-gather with --overlap-grad-reduce alone
        "weights that come beside compute where gradients do not",
        "add dp to --overlap, or take --overlap none",
        lambda job, plan: ~np.asarray(job.stack.dp_overlap) & weights_beside(job, plan),
    ),
    *RECOMPUTED,
    *PAIRED,
    *GRAPHED,
    *DEEPEP,
    *OPTIMIZERS,
    *ATTENTION,
    *EXPERTS,
)
