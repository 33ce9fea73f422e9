"""What DeepSpeed can run of a plan; its configuration is not written.

Idea   Its pipeline runs 1F1B of one chunk, and no gradients or weights are sharded in it
       (deepspeed/runtime/pipe/engine.py); its experts are not sharded as weights either
       (deepspeed/runtime/engine.py, "MoE not supported with Stage 3"). Its tensor parallelism (AutoTP) goes
       with stages 0 to 2, and cuts no sequences. Whole layers are recomputed, or none.
Limit  Its context parallelism (Ulysses) is another than ours; ZeRO++'s shards inside a node are left out.
"""

from ndparallel.base.errors import UserError
from ndparallel.launch_flags.rules import LaunchRule, without
from ndparallel.pipeline.catalog import names_in
from ndparallel.planner.job import Plan, TrainingJob

SOURCE = {"framework": "DeepSpeed", "version": "0.18", "source": "github.com/deepspeedai/DeepSpeed"}
RULES = (
    LaunchRule(
        lambda job, plan: (plan.pp > 1) & without(names_in("deepspeed"), plan.schedule),
        lambda job, plan: cannot(f"schedule {plan.schedule}", "it has 1f1b"),
    ),
    LaunchRule(
        lambda job, plan: (plan.pp > 1) & (plan.zero >= 2),
        lambda job, plan: cannot(f"ZeRO-{plan.zero} in a pipeline", "take --zero 0 or 1"),
    ),
    LaunchRule(
        lambda job, plan: (plan.tp > 1) & (plan.zero == 3),
        lambda job, plan: cannot(f"ZeRO-3 with tp={plan.tp}", "take --zero 0, 1 or 2"),
    ),
    LaunchRule(
        lambda job, plan: (plan.ep > 1) & (plan.zero == 3),
        lambda job, plan: cannot("ZeRO-3 of experts that ep ranks share", "take --zero 0, 1 or 2"),
    ),
)


def not_written(job: TrainingJob, plan: Plan) -> str:
    """Raise UserError: a plan's place in DeepSpeed is its configuration and the model's own code."""
    raise cannot("launch script that is written here", "take --emit megatron or torchtitan")


def cannot(what: str, instead: str) -> UserError:
    return UserError(f"DeepSpeed has no {what}; {instead}.")
