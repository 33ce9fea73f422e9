"""The nodes on which a plan is launched, and the processes on each."""

from ndparallel.base.errors import UserError
from ndparallel.hardware.accelerator import host_size
from ndparallel.planner.job import Plan, TrainingJob


def full_nodes(job: TrainingJob, plan: Plan) -> tuple[int, int]:
    """Nodes, which are hosts, and GPUs of each. Raises UserError where the last one is not full."""
    each = min(host_size(job.hardware), int(plan.gpus))
    if plan.gpus % each:
        near = max(1, round(plan.gpus / each)) * each
        raise UserError(
            f"{plan.gpus} GPUs do not fill nodes of {each}, and a launcher starts as many on each; take "
            f"{near}."
        )
    return int(plan.gpus) // each, each


def torchrun_nodes(job: TrainingJob, plan: Plan) -> str:
    """torchrun's options. Raises UserError where the last node is not full."""
    nodes, each = full_nodes(job, plan)
    return f"--nnodes {nodes} --nproc-per-node {each}"
