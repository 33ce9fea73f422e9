"""What DeepSpeed can run of a plan; its configuration is not written.

Idea   Its pipeline runs 1F1B of one chunk (runtime/pipe/schedule.py, TrainSchedule.steps), with gradients and
       weights that are not sharded (runtime/pipe/engine.py, PipelineEngine.__init__). Tensor parallelism
       (AutoTP) goes with every level of ZeRO (runtime/engine.py, _configure_tensor_parallel_states), and cuts
       no sequences. Experts (AutoEP) may be sharded as weights without it
       (_validate_zero3_moe_compatibility); with it they take neither ZeRO-3 nor a pipeline
       (module_inject/auto_ep_folding.py, validate_folding_global). Whole layers are recomputed, or none
       (runtime/pipe/module.py, PipelineModule.forward). An optimizer on the host is ZeRO's
       (docs/_pages/config-json.md, Optimizer offloading).
Limit  Its context parallelism (Ulysses) is another than ours; ZeRO++'s shards inside a node are left out.
"""

from ndparallel.base.errors import UserError
from ndparallel.launch_flags.rules import LaunchRule, without
from ndparallel.pipeline.catalog import names_in
from ndparallel.planner.job import Plan, TrainingJob

SOURCE = {
    "framework": "DeepSpeed",
    "version": "0.19.6",
    "source": "github.com/deepspeedai/DeepSpeed, commit edaa72212",
}
RULES = (
    LaunchRule(
        lambda job, plan: (plan.pp > 1) & without(names_in("deepspeed"), plan.schedule),
        lambda job, plan: deepspeed_lacks(f"schedule {plan.schedule}", "it has 1f1b"),
    ),
    LaunchRule(
        lambda job, plan: (plan.pp > 1) & (plan.zero >= 2),
        lambda job, plan: deepspeed_lacks(f"ZeRO-{plan.zero} in a pipeline", "take --zero 0 or 1"),
    ),
    LaunchRule(
        lambda job, plan: (plan.ep > 1) & (plan.tp > 1) & (plan.zero == 3),
        lambda job, plan: deepspeed_lacks(
            f"ZeRO-3 of experts that ep ranks share with tp={plan.tp}", "take --zero 0, 1 or 2, or --tp 1"
        ),
    ),
    LaunchRule(
        lambda job, plan: (plan.ep > 1) & (plan.tp > 1) & (plan.pp > 1),
        lambda job, plan: deepspeed_lacks(
            f"pipeline of experts that ep ranks share with tp={plan.tp}", "take --tp 1"
        ),
    ),
    LaunchRule(
        lambda job, plan: "optimizer" in job.offload and (plan.zero == 0),
        lambda job, plan: deepspeed_lacks("optimizer on the host without ZeRO", "take --zero 1"),
    ),
    LaunchRule(
        lambda job, plan: plan.sends_rows_beside(job.stack),
        lambda job, plan: deepspeed_lacks("rows beside another microbatch", "leave ep out of --overlap"),
    ),
)


def not_written(job: TrainingJob, plan: Plan) -> str:
    """Raise UserError: a plan's place in DeepSpeed is its configuration and the model's own code."""
    raise deepspeed_lacks("launch script that is written here", "take --emit megatron or torchtitan")


def deepspeed_lacks(what: str, instead: str) -> UserError:
    return UserError(f"DeepSpeed has no {what}; {instead}.")
