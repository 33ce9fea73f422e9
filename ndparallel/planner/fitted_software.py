"""A software stack with those of its kernels that run on a GPU, for a model.

Idea   Megatron-Core's own choice of attention and dispatcher is for H100s, and its ring over cp ranks for
       attention that sees all. Where these cannot run there are others, and a user wants a plan that runs.
       So a stack that nobody changed is fitted; what is asked for by name stays, and is refused where it
       cannot be launched (ndparallel/launch_flags).
Limit  What stands for a published run is not fitted: it ran.
"""

from dataclasses import replace

from gpu import Hardware
from ndparallel.hardware.architecture import AMPERE, is_before, nvlink_ranks, shares_nvlink
from ndparallel.planner.attention_kernels import fitting_kernel
from ndparallel.planner.dispatchers import DEEPEPS_NODE
from ndparallel.planner.job import TrainingJob
from ndparallel.planner.models.shape import ModelShape
from ndparallel.planner.software import find_stack
from ndparallel.planner.stack import Stack

FITTED = ("attention", "dispatcher")


def software_on(name: str, hardware: Hardware, shape: ModelShape) -> Stack:
    """The stack of that name, fitted. Raises UserError with the nearest name."""
    stack = find_stack(name)
    if stack.fusion != "engine":
        return stack
    return replace(
        stack,
        attention=fitting_kernel(stack.attention, hardware, shape),
        dispatcher=dispatcher_on(hardware) if shape.experts else stack.dispatcher,
        context_parallel=way_over_cp(stack.context_parallel, shape),
    )


def way_over_cp(way: str, shape: ModelShape) -> str:
    """The way of keys and values over cp ranks, or where Transformer Engine does not have it for a model's
    windows or sinks another one (attn_forward_func_with_cp in its
    pytorch/attention/dot_product_attention/context_parallel.py)."""
    if any(heads.sinks for heads in shape.with_heads):
        return "all-to-all"
    return "all-gather" if shape.window and not shape.chunked else way


def dispatcher_on(hardware: Hardware) -> str:
    """DeepEP, whose kernels join GPUs of a machine by NVLink, in eights; HybridEP where machines share one
    NVLink; else all-to-all."""
    if shares_nvlink(hardware):
        return "hybridep"
    joined = nvlink_ranks(hardware) % DEEPEPS_NODE == 0
    return "deepep" if joined and not is_before(hardware, AMPERE) else "alltoall"


def on_hardware(job: TrainingJob, hardware: Hardware) -> TrainingJob:
    """The job on other hardware, fitted anew but for what was asked for."""
    before, after = (software_on(job.stack.name, each, job.shape) for each in (job.hardware, hardware))
    fitted = {
        name: getattr(after, name) for name in FITTED if getattr(job.stack, name) == getattr(before, name)
    }
    return replace(job, hardware=hardware, stack=replace(job.stack, **fitted))
