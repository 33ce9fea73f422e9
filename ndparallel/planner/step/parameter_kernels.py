"""The kernels that a framework runs over a rank's parameters, beside the layers' own: the optimizer's step,
what is done to gradients before it, and the copies of whole weights and gradients that ZeRO-2 and 3 make.

Idea   All are bound by memory: so many bytes for each parameter (ndparallel.planner.optimizer_kernels). A
       step on the host takes its transfers and the host's own seconds instead; behind one on the GPU weights
       that are on the host are copied there (_reassign_or_swap_out_partitioned_parameters in
       deepspeed/runtime/zero/stage3.py).
Limit  See optimizer_kernels.py. Copies to the host's memory take no longer where it is not pinned.

Glossary
    shared, experts   parameters: those that all of a dp group's ranks hold, those of experts; numbers, or
                      arrays of plans
    mine              of all these, the rank's share
"""

from typing import Any, NamedTuple

from gpu import Operation
from ndparallel.base.sums import sum_of
from ndparallel.hardware.accelerator import host_bandwidth, host_size, optimizer_fraction
from ndparallel.planner.job import MOMENTS, TrainingJob
from ndparallel.planner.layers.operations import HALF, SINGLE
from ndparallel.planner.layers.pricing import Pricing
from ndparallel.planner.numbers import anywhere, either, smaller
from ndparallel.planner.optimizer_kernels import (
    ADAM,
    OPTIMIZERS,
    SHARDING,
    OptimizerKernel,
    bytes_of,
    kernels_of,
)
from ndparallel.planner.stages import (
    elements_of,
    gathers_again,
    gathers_every_microbatch,
    keeps_gradients,
    trained_of,
)

# of a host, for one parameter: Ren et al., "ZeRO-Offload" (2101.06840), table 4, 2.57 s for 10 billion. That
# kernel is 5 to 7 times as fast as PyTorch's loop (pytorch/pytorch, issue 74588), and PyTorch's fused one 5.1
# times (pull request 123074): it is taken to be as fast
CPU_ADAM_SECONDS = 0.257e-9


def optimizer_seconds(pricing: Pricing, shared, experts):
    """Seconds of the step of these parameters, or of the rank's share of them. On the host it comes between
    gradients on their way down and weights on their way up, and a host has the parameters of all its GPUs."""
    job, mine = pricing.job, owned(pricing, shared, experts)
    on_host = sum_of(part.seconds for part in host_parts(pricing, mine))
    if "optimizer" in job.offload:
        return on_host
    gradients = zero_and_divide(pricing, mine if pricing.plan.zero >= 2 else shared + experts)
    return pricing.seconds(optimizer_step(job, mine)) + sum_of(map(pricing.seconds, gradients)) + on_host


class HostPart(NamedTuple):
    """What a step does on the host, or on the way there: bytes on the way, and seconds."""

    name: str
    bytes: Any
    seconds: Any


def host_parts(pricing: Pricing, mine) -> list[HostPart]:
    """What of a step is on the host: all of an optimizer there, or weights that a GPU has stepped and does
    not keep. These travel in the step's 32 bits, and the host casts them (copy_kernel_cuda in
    aten/src/ATen/native/cuda/Copy.cu, for copies that block)."""
    job = pricing.job
    if "optimizer" in job.offload:
        return step_on_host(pricing, mine)
    if not job.weights_away:
        return []
    down = mine * (HALF if job.half else SINGLE)
    return [HostPart("weights to host", down, down / host_bandwidth(job.hardware))]


def step_on_host(pricing: Pricing, mine) -> list[HostPart]:
    """Gradients on their way down, the host's own seconds, weights on their way up, but to a GPU that does
    not keep them. Where the gradients are there already the host takes their norm, too."""
    job, bandwidth = pricing.job, host_bandwidth(pricing.job.hardware)
    if job.states_away:
        return [kernel_on_host(pricing, kernel, mine) for kernel in OPTIMIZERS[job.stack.optimizer]]
    down, up = mine * job.gradient_bytes, mine * HALF * (not job.weights_away)
    return [
        HostPart("gradients to host", down, down / bandwidth),
        kernel_on_host(pricing, ADAM, mine),
        HostPart("weights from host", up, up / bandwidth),
    ]


def kernel_on_host(pricing: Pricing, kernel: OptimizerKernel, mine) -> HostPart:
    """A kernel of the step on the host."""
    return HostPart(f"{kernel.name} on host", 0.0, seconds_on_host(pricing, mine, kernel.moved))


def seconds_on_host(pricing: Pricing, mine, size: float):
    """Seconds in which a host moves so many bytes for each of these parameters of all its GPUs, at the rate
    that Adam reaches."""
    gpus = smaller(pricing.plan.gpus, host_size(pricing.job.hardware))
    return mine * gpus * CPU_ADAM_SECONDS * (size / ADAM.moved)


def seconds_of_adding(pricing: Pricing, kind: str):
    """Seconds in which a host adds a unit's gradients, in their shards, to those before: two are read, and
    one is written."""
    mine = owned(pricing, *trained_of(pricing.job, pricing.plan, kind))
    return seconds_on_host(pricing, mine, 3 * pricing.job.shard_bytes)


def step_operations(pricing: Pricing, shared, experts) -> list[Operation]:
    """What a rank does between the last gradient and the next forward pass, kernel by kernel. As in
    `optimizer_step`, which has them as one, only the first has a kernel's overhead."""
    job, mine = pricing.job, owned(pricing, shared, experts)
    kernels = step_kernels(job)
    if is_measured(job):
        own = [optimizer_step(job, mine)]
    else:
        moved = [one.moved - spared(job) * (one.name == ADAM.name) for one in kernels]
        own = [
            stepping(job, one.name, mine, size)._replace(kernels=1 * (one is kernels[0]))
            for one, size in zip(kernels, moved)
        ]
    held = mine if pricing.plan.zero >= 2 else shared + experts
    return [*zero_and_divide(pricing, held), *own]


def optimizer_step(job: TrainingJob, mine) -> Operation:
    """All kernels of the step as one. Every moment is read and written once."""
    moved = job.stack.optimizer_bytes if is_measured(job) else sum(one.moved for one in step_kernels(job))
    return stepping(job, "adamw", mine, moved - spared(job))


def step_kernels(job: TrainingJob) -> tuple[OptimizerKernel, ...]:
    """The kernels of the step on the GPU; in 16 bits alone there is nothing to cast."""
    return kernels_of(job.stack.optimizer, SINGLE if job.half else job.stack.gradient_bytes)


def is_measured(job: TrainingJob) -> bool:
    """Whether the step's bytes are not those of the software's kernels."""
    return job.stack.optimizer_bytes != bytes_of(job.stack.optimizer)


def stepping(job: TrainingJob, name: str, mine: Any, size: Any) -> Operation:
    """A kernel of the step, whose bytes count for more where it does not reach the memory's bandwidth."""
    return moving(name, mine, size / optimizer_fraction(job.hardware))


def spared(job: TrainingJob) -> float:
    """Bytes for each parameter that moments of fewer bits spare."""
    return 4 * (SINGLE - MOMENTS[job.moments])


def zero_and_divide(pricing: Pricing, mine) -> list[Operation]:
    """What is done to gradients that stay, shards of them from ZeRO-2 on: they are zeroed, and divided by dp
    (megatron/core/distributed/param_and_grad_buffer.py, reset and start_grad_sync)."""
    job, several = pricing.job, pricing.groups.dp.ranks > 1
    if not job.stack.accumulates:
        return []
    divided = 1 * (several & job.stack.scales_gradients)  # a kernel, or none
    divide = moving("divide gradients", mine, 2 * job.gradient_bytes * divided)._replace(kernels=divided)
    return [moving("zero gradients", mine, job.gradient_bytes), *[divide] * anywhere(divided > 0)]


def owned(pricing: Pricing, shared, experts):
    """The rank's share of these parameters."""
    groups, sharded = pricing.groups, pricing.plan.zero > 0
    owners = groups.shards.ranks if pricing.plan.zero == 3 else groups.dp.ranks
    return shared / (owners if sharded else 1) + experts / (groups.experts_dp.ranks if sharded else 1)


def copies_of_shards(pricing: Pricing, kind: str) -> tuple[list[Operation], list[Operation], list[Operation]]:
    """What is copied of a unit's whole weights after their gather in a forward pass and in a backward pass,
    and from ZeRO-2 on of its whole gradients before they are reduced; nothing where nothing is sharded."""
    job, plan, groups = pricing.job, pricing.plan, pricing.groups
    over = groups.shards if plan.zero == 3 else groups.dp
    if not job.stack.sharding or plan.zero < 2 or not anywhere(over.ranks > 1):
        return [], [], []
    copies, weights = SHARDING[job.stack.sharding], sum(elements_of(job, plan, kind))
    trained, each = sum(trained_of(job, plan, kind)), job.gradient_bytes
    size = either(keeps_gradients(job, plan), copies.added_bytes(each), copies.gradient_bytes(each))
    gathers = gathers_every_microbatch(job, plan) and copies.weight_bytes > 0
    gathered = [moving("copy weights", weights, copies.weight_bytes)] * gathers
    return gathered, gathered * gathers_again(job, plan), [moving("copy gradients", trained, size)]


def moving(name: str, parameters: Any, size: Any) -> Operation:
    """A kernel that moves so many bytes for each of these parameters."""
    return Operation(name, "elementwise", (parameters,), "float32", 0, parameters * size)
