"""What torchtitan cannot run: rules for one plan, and for all plans of a search.

Idea   As in ../rules.py: each says where it is broken, and why in a sentence. Rules of its models are in
       models.py.
"""

from typing import Any

import numpy as np

from ndparallel.base.errors import UserError
from ndparallel.base.words import count
from ndparallel.launch_flags.rules import SOME_LAYERS, LaunchRule, is_none_of, recomputes_some_layers
from ndparallel.launch_flags.torchtitan.models import MODEL_RULES, never, torchtitan_lacks
from ndparallel.launch_flags.torchtitan.switches import SWITCHED
from ndparallel.pipeline.catalog import default_schedule, names_in
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.software import TORCHTITAN

ONE_FOR_EACH_STAGE = ("gpipe", "1f1b", "dualpipev")


def compiled(job: TrainingJob) -> bool:
    return job.stack.fusion == "compiled"


def unequal_rounds(job: TrainingJob, plan: Plan):
    """Whether the last group of microbatches would be smaller, which Megatron-Core alone has."""
    number = plan.microbatches(job)
    return (plan.pp > 1) & (plan.recipe.group is not None) & (number % rounds_of(job, plan) > 0)


def rounds_of(job: TrainingJob, plan: Plan):
    return np.maximum(1, plan.microbatches(job) // plan.pp)


def fewest_microbatches(plan: Plan):
    """Microbatches that a schedule takes at least in PyTorch (PipelineScheduleSingle and ScheduleDualPipeV in
    torch/distributed/pipelining/schedules.py): one for each stage, or any number."""
    return plan.stages if plan.schedule in ONE_FOR_EACH_STAGE else 1


def one_for_each_stage(job: TrainingJob, plan: Plan) -> UserError:
    number, stages = int(plan.microbatches(job)), int(plan.stages)
    return torchtitan_lacks(
        f"{plan.schedule} of {count(number, 'microbatch', 'es')} on {stages} stages",
        f"take {stages} microbatches or more, or fewer stages",
    )


def tokens_divisor(plan: Plan):
    """What a sequence has to be a multiple of (Trainer.__init__ in torchtitan/trainer.py)."""
    return np.where(plan.sequence_parallel, plan.tp, 1) * np.where(np.greater(plan.cp, 1), 2 * plan.cp, 1)


def equal_rounds(job: TrainingJob, plan: Plan) -> UserError:
    number, rounds = int(plan.microbatches(job)), int(rounds_of(job, plan))
    return torchtitan_lacks(
        f"{plan.schedule} of {number} microbatches on {plan.pp} pipeline ranks, as its {rounds} rounds are "
        "equal",
        f"take {number // rounds * rounds} microbatches",
    )


def expert_shards(job: TrainingJob, plan: Plan) -> tuple[Any, Any]:
    """Ranks over which FSDP cuts an expert's states, and those among which all experts are
    (apply_fsdp_to_decoder in torchtitan/distributed/fsdp.py, whose mesh holds tp and replicas, too)."""
    every = plan.dp * plan.cp
    shards = np.where(np.equal(plan.zero, 3) & np.greater(plan.shards, 0), plan.shards, every)
    spread = np.greater(plan.ep, 1)
    return np.where(spread, shards * plan.tp // plan.ep, shards), np.where(spread, shards, every) * plan.tp


def uneven_cut(job: TrainingJob, plan: Plan) -> Any:
    """Whether FSDP has more ranks than experts, so that it cuts the rows of their matrices, and cannot do so
    evenly (FSDPParam._init_sharded_param in torch/distributed/fsdp/_fully_shard/_fsdp_param.py)."""
    if not (some := job.shape.experts):
        return False
    ranks, among = expert_shards(job, plan)
    rows = some.ffn // np.where(np.equal(plan.ep, 1), plan.tp, 1)
    uneven = (rows % np.maximum(ranks, 1) > 0) | (job.shape.hidden % np.maximum(ranks, 1) > 0)
    return np.greater_equal(plan.zero, 2) & (among > some.experts) & uneven


def no_even_cut(job: TrainingJob, plan: Plan) -> UserError:
    ranks, among = expert_shards(job, plan)
    some = job.shape.experts
    return torchtitan_lacks(
        f"uneven cut of experts' matrices, of {some.ffn if some else 0} and {job.shape.hidden} rows, over "
        f"{ranks} ranks of FSDP, as it takes for {some.experts if some else 0} experts on {among} ranks",
        "take other --shards, or another --ep",
    )


RULES = (
    never("ZeRO-1", "take --zero 0, 2 or 3", lambda job, plan: plan.zero == 1),
    never(
        "ZeRO-2 in a pipeline, where weights and gradients stay whole until the step ends",
        "take --zero 3, which is priced so",
        lambda job, plan: (plan.zero == 2) & (plan.pp > 1),
    ),
    never(
        "weights that cp={plan.cp} ranks hold whole: it shards them over cp",
        "take --zero 2 or 3",
        lambda job, plan: (plan.zero == 0) & (plan.cp > 1),
    ),
    never(  # efsdp = fsdp * tp // ep in build_mesh of torchtitan/distributed/parallel_dims.py
        "ep={plan.ep} of replicas: it spreads experts over the ranks that shard weights, and tp={plan.tp}",
        "take --zero 2 or 3, or an --ep that divides tp",
        lambda job, plan: (plan.zero == 0) & (plan.tp % plan.ep > 0),
    ),
    never(  # fully_shard is always applied (_mesh_exist in torchtitan/distributed/parallel_dims.py)
        "single data-parallel rank without FSDP",
        "take --zero 3",
        lambda job, plan: (plan.zero == 0) & (plan.dp * plan.cp == 1),
    ),
    never(
        "FSDP whose shards are whole: it runs DDP",
        "take --zero 0",
        lambda job, plan: (plan.zero == 3) & (plan.shards == 1) & (plan.dp * plan.cp > 1),
    ),
    never(
        "{plan.shards} shards with cp={plan.cp}",
        "take a multiple of {plan.cp}",
        lambda job, plan: (plan.zero == 3) & (plan.shards % plan.cp > 0),
    ),
    LaunchRule(
        lambda job, plan: (plan.pp > 1) & is_none_of(names_in("torchtitan"), plan.schedule),
        lambda job, plan: torchtitan_lacks(
            f"schedule {plan.schedule}", f"it has {', '.join(names_in('torchtitan'))}"
        ),
    ),
    LaunchRule(
        lambda job, plan: (plan.pp > 1) & (plan.recipe.chunks is None) & (plan.chunks == 1),
        lambda job, plan: torchtitan_lacks(
            f"{plan.schedule} with one chunk", f"take more, or {default_schedule(1)}"
        ),
    ),
    LaunchRule(unequal_rounds, equal_rounds),
    LaunchRule(
        lambda job, plan: (plan.pp > 1) & (plan.microbatches(job) < fewest_microbatches(plan)),
        one_for_each_stage,
    ),
    never(  # github.com/pytorch/pytorch/issues/161904
        "{plan.schedule} of compiled layers, whose backward passes PyTorch cannot split",
        "take --software torchtitan, or a schedule that does not split them",
        lambda job, plan: compiled(job) and (plan.pp > 1) & plan.recipe.splits,
    ),
    LaunchRule(
        lambda job, plan: job.sequence % tokens_divisor(plan) > 0,
        lambda job, plan: torchtitan_lacks(
            f"sequence of {job.sequence} tokens with tp={plan.tp} and cp={plan.cp}",
            f"take a multiple of {tokens_divisor(plan)}",
        ),
    ),
    never(SOME_LAYERS, "take all, or selective", recomputes_some_layers),
    LaunchRule(
        lambda job, plan: plan.modules(job.stack) != TORCHTITAN.selective and plan.recompute == "selective",
        lambda job, plan: torchtitan_lacks(
            f"recomputation of {', '.join(plan.modules(job.stack))}", "leave --recompute-modules out"
        ),
    ),
    never(
        "{job.stack.context_parallel} for the keys and values of cp={plan.cp}",
        "leave --context-parallel {job.stack.context_parallel} out",
        lambda job, plan: job.stack.context_parallel != "all-gather" and plan.cp > 1,
    ),
    never(
        "rows beside another microbatch but in dualpipev",
        "leave ep out of --overlap",
        lambda job, plan: plan.sends_rows_beside(job.stack),
    ),
    never(  # _routed_experts_sharding_configs in torchtitan/models/common/moe_sharding.py
        "key to cut experts over tp beside ep={plan.ep}",
        "leave --etp tp out, or take --ep 1",
        lambda job, plan: bool(job.shape.experts) and job.stack.expert_tp & (plan.tp > 1) & (plan.ep > 1),
    ),
    never(  # there too
        "whole experts on tp={plan.tp} ranks without expert parallelism: it cuts them over tp",
        "give --etp tp, or take an --ep of 2 or more",
        lambda job, plan: (
            bool(job.shape.experts) and (not job.stack.expert_tp) & (plan.tp > 1) & (plan.ep == 1)
        ),
    ),
    LaunchRule(uneven_cut, no_even_cut),
    never(
        "kernels of Transformer Engine for router and permutation",
        "leave --fused-permutation and --fused-router out",
        lambda job, plan: job.stack.fused_permutation or job.stack.fused_router,
    ),
    never(
        "key for a router whose product is in 32 bits",
        "leave --fp32-router out",
        lambda job, plan: job.stack.fp32_router,
    ),
    never(
        "switch for just what these CUDA graphs hold",
        "leave --cuda-graphs out",
        lambda job, plan: bool(job.stack.graphs),
    ),
    SWITCHED,
    *MODEL_RULES,
)
