"""Random legal plans of random jobs, small and large, on random hardware.

Hypothesis draws a seed, and the seed all else: examples that hypothesis itself makes of so many choices have
most of them alike.
"""

from dataclasses import replace
from random import Random
from typing import Any

from hypothesis import strategies as st

from gpu import Link
from ndparallel.hardware.accelerator import Accelerator, data_sheets
from ndparallel.pipeline.catalog import RECIPES
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.legality import why_not
from ndparallel.planner.models.attentions import GatedDeltaNet
from ndparallel.planner.models.experts import Experts
from ndparallel.planner.models.shape import ModelShape
from ndparallel.planner.software import STACKS
from ndparallel.planner.stack import Stack
from tests.support.accelerators import accelerator

FRAMEWORKS = [stack for stack in STACKS.values() if not stack.executed]
SCHEDULES = [name for name, recipe in RECIPES.items() if not recipe.is_searched]
OVERLAPS = ("dp_overlap", "prefetch", "gathers_first", "pp_overlap", "cp_overlap", "hides_dispatch")
SEEDS = st.integers(0, 2**32 - 1)


def scaled(link: Link, bandwidth: float = 1.0, latency: float = 1.0) -> Link:
    return Link(link.latency_seconds * latency, link.bandwidth_bytes_per_second * bandwidth)


def any_accelerator(draw: Random) -> Accelerator:
    """A GPU of some data sheet with other links, another memory bandwidth and nodes of another size."""
    found = accelerator(draw.choice([*data_sheets()]))
    inside, across = ((10 ** draw.uniform(-1, 1), 10 ** draw.uniform(-1, 1)) for _ in range(2))
    return replace(
        found,
        inside=scaled(found.inside, *inside),
        across=scaled(found.across, *across),
        memory_bandwidth_bytes_per_second=found.memory_bandwidth_bytes_per_second * 10 ** draw.uniform(-1, 1),
        gpus_per_node=draw.choice([1, 2, 4, 8, found.gpus_per_node]),
    )


def any_linear_attention(draw: Random, layers: int) -> GatedDeltaNet:
    """Heads of any widths that kernels take, in some of the layers, or in all."""
    key_heads = draw.choice([4, 8, 16])
    widths = draw.choice([32, 64, 128, 256]), draw.choice([32, 64, 128, 256])
    some = sorted(draw.sample(range(layers), draw.randint(1, layers)))
    return GatedDeltaNet(
        key_heads, key_heads * draw.choice([1, 2, 3]), *widths, draw.choice([2, 4]), (*some,)
    )


def any_shape(draw: Random) -> ModelShape:
    """A model of 2 to 64 layers and of 128 to 8192 numbers a token, with experts or without, and with linear
    attention or without."""
    heads, head_dim = draw.choice([4, 8, 16, 32, 64]), draw.choice([32, 64, 128])
    hidden, shared = heads * head_dim, draw.choice([0, 1])
    experts = Experts(
        draw.choice([8, 16, 64]),
        draw.choice([1, 2, 4, 8]),
        draw.choice([256, 2048]),
        shared_experts=shared,
        shared_ffn=1024 * shared,
    )
    layers = draw.choice([2, 3, 4, 8, 16, 32, 64])
    return ModelShape(
        "random",
        layers,
        hidden,
        heads,
        draw.choice([1, 2, 4]),
        head_dim,
        draw.choice([2, 4]) * hidden,
        draw.choice([256, 32000, 128256]),
        experts=draw.choice([None, None, experts]),
        linear=draw.choice([None, any_linear_attention(draw, layers)]),
        output_gate=draw.choice(["", "queries", "head"]),
    )


def any_stack(draw: Random, hardware: Accelerator) -> Stack:
    """A framework whose attention the GPU is known to run; half of them overlap what another may not."""
    attention = {"unfused", "masked", *(kind.partition(" ")[0] for kind in hardware.attention_fractions)}
    stack = draw.choice([stack for stack in FRAMEWORKS if stack.attention in attention])
    switches: dict[str, Any] = {name: draw.choice([False, True]) for name in OVERLAPS}
    return replace(stack, **switches) if draw.choice([False, True]) else stack


def any_job(draw: Random) -> TrainingJob:
    hardware = any_accelerator(draw)
    stack = any_stack(draw, hardware)
    sizes = draw.choice([256, 1024, 4096, 16384]), draw.choice([8, 32, 128, 256])
    return TrainingJob(any_shape(draw), hardware, stack, *sizes)


def any_plan(draw: Random, job: TrainingJob, schedules: list[str]) -> Plan:
    pp, tp = draw.choice([1, 2, 4]), draw.choice([1, 2, 4, 8])
    pipeline: dict[str, Any] = {}
    if pp > 1:
        schedule = draw.choice(schedules)
        chunks = RECIPES[schedule].chunks or draw.choice([2, 3])
        pipeline = {"pp": pp, "schedule": schedule, "chunks": chunks}
    return Plan(
        tp=tp,
        dp=draw.choice([1, 2, 4, 8, 16]),
        ep=draw.choice([1, 2, 4, 8]) if job.shape.experts else 1,
        cp=draw.choice([1, 1, 2, 4]),
        micro_batch=draw.choice([1, 2, 4]),
        zero=draw.choice([0, 1, 2, 3]),
        sequence_parallel=tp > 1 and draw.choice([False, True]),
        recompute=draw.choice(["none", "selective", "full"]),
        **pipeline,
    )


@st.composite
def plans(draw: Any, schedules: list[str] = SCHEDULES, **fixed: Any) -> tuple[TrainingJob, Plan]:
    """A job and a plan that is legal for it, with these fields."""
    chance = Random(draw(SEEDS))
    while True:
        job = any_job(chance)
        plan = replace(any_plan(chance, job, schedules), **fixed)
        if not list(why_not(job, plan)):
            return job, plan


def hybrids(shape: ModelShape) -> st.SearchStrategy[ModelShape]:
    """The model with linear attention of any sizes, in any of its layers, and with an output gate or none."""
    nets = SEEDS.map(lambda seed: any_linear_attention(Random(seed), shape.layers))
    return st.builds(
        lambda net, gate: replace(shape, linear=net, output_gate=gate),
        nets,
        st.sampled_from(["", "queries", "head"]),
    )
