"""The order of speeds that this project teaches, as one table of chains, each from slow to fast.

Between two strategies of a chain stands the least ratio of their steps: `"DDP ring", 1.01, "DDP overlapped"`
claims that the second is at least 1.01 times as fast as the first. The work is the same all along a chain.
On pocket every strategy is executed, with real numbers. On H100s the planner prices models that people train:
the lessons' model of width 32 is bound by launches there, and has no order.
"""

from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest

from ndparallel.hardware.accelerator import find_hardware
from ndparallel.hardware.pocket import POCKET
from ndparallel.lessons.lesson import Lesson, Strategy
from ndparallel.lessons.registry import LESSONS, load
from ndparallel.parallel.mesh import Mesh
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.models.presets import find_model
from ndparallel.planner.prediction import peak_memory, time_step
from ndparallel.planner.software import STACKS
from ndparallel.training.job import Job
from tests.support.common import run

Chain = tuple[str | float, ...]  # name, ratio, name, ratio, name ...

EXECUTED: dict[str, Chain] = {
    "1D": ("single GPU", 3.5, "DDP naive", 1.07, "DDP ring", 1.01, "DDP overlapped", 1.01, "FSDP prefetch"),
    "1D, the optimizer's shard": ("DDP overlapped", 1.009, "ZeRO-1 overlapped", 1.003, "FSDP prefetch"),
    "1D, a gather that hides": ("ZeRO-1", 1.007, "ZeRO-1 overlapped"),
    "1D, FSDP": ("FSDP", 1.03, "FSDP prefetch", 1.0005, "FSDP no reshard"),
    "2D": ("single GPU", 1.6, "TP across nodes", 1.8, "TP", 1.03, "TP + SP", 1.02, "TP overlapped"),
    "2D, what hides": ("TP", 1.04, "TP in parts", 1.003, "TP overlapped"),
    "2D, what hides under sequence parallelism": ("TP + SP regather", 1.05, "SP regather overlapped"),
    "2D, two layers": ("MLP, columns twice", 1.15, "MLP, columns then rows", 1.07, "MLP, sum beside weights"),
    "3D": ("naive", 2.5, "1F1B", 1.1, "interleaved", 1.03, "ZB-H1", 1.06, "ZB-V"),
    "3D, all forwards first": ("naive", 2.5, "GPipe", 1.1, "interleaved", 1.1, "DualPipeV"),
    "4D, the order of the axes": ("TP outermost", 1.3, "TP2 x PP2 x DP2"),
    "4D, all layouts of 8 GPUs": (
        *("TP8", 1.7, "PP8", 1.15, "PP4 x DP2", 1.1, "TP2 x PP4", 1.04, "PP2 x DP4", 1.04, "TP4 x PP2"),
        *(1.02, "TP2 x PP2 x DP2", 1.05, "TP4 x DP2", 1.1, "TP2 x DP4", 1.03, "DP8"),
    ),
    "all dimensions on 4 GPUs": (
        *("naive", 1.6, "TP across nodes", 1.4, "1F1B", 1.2, "ZB-V", 1.01, "TP", 1.05, "DDP naive"),
        *(1.07, "DDP ring", 1.01, "DDP overlapped", 1.01, "FSDP prefetch"),
    ),
    "CP": ("single GPU", 3, "CP across nodes", 1.1, "CP gathered", 1.01, "CP"),
    "CP, attention alone": (
        *("attention, ring in order", 1.6, "attention, ring zigzag", 1.02, "attention, gathered"),
        *(1.03, "attention, overlapped"),
    ),
    "EP": ("single GPU", 2.4, "EP across nodes", 1.15, "EP", 1.1, "DP with experts"),
    "EP, experts alone": (
        *("experts, skewed", 1.5, "experts, ep divides dp", 1.02, "experts, divided"),
        *(1.03, "experts, overlapped"),
    ),
    "4 GPUs and 8": ("FSDP prefetch", 1.4, "TP2 x PP2 x DP2", 1.05, "TP x FSDP", 1.1, "DP8"),
}

PREDICTED: dict[str, Chain] = {
    "1D": ("3B on one GPU", 35, "DDP without overlap", 1.15, "DDP overlapped", 1.1, "FSDP prefetch"),
    "1D, FSDP": ("FSDP", 1.3, "FSDP prefetch", 1.01, "FSDP no reshard"),
    "2D": (
        *("TP, a GPU a node", 1.7, "TP over 2 nodes", 1.15, "TP in a node", 1.03),
        *("TP beside the backward pass", 1.1, "TP in parts"),
    ),
    "3D": ("naive", 3, "1f1b", 1.05, "interleaved", 1.04, "interleaved in 5", 1.015, "zb-v"),
    "3D, zero bubble": ("naive", 3, "1f1b", 1.05, "zb-h1", 1.015, "zb-h2", 1.03, "zb-v"),
    "all dimensions on 64 GPUs": (
        *("70B on one GPU", 11, "naive", 2.3, "TP16 x PP4", 1.15, "TP8 x PP8", 1.03, "TP8 x PP4", 1.04),
        "TP8 x PP2 x DP4",
    ),
}

# ------------------------------------------------------------------------------------------------- on pocket


@cache
def strategies() -> dict[str, tuple[Lesson, Strategy]]:
    """Every strategy of every lesson, and every dense layout of 8 GPUs, by name."""
    lessons = [load(name) for name in LESSONS]
    named = {strategy.name: (lesson, strategy) for lesson in lessons for strategy in lesson.strategies}
    combined, cube = named["TP2 x PP2 x DP2"]
    for mesh in layouts():
        named.setdefault(layout_name(mesh), (combined, laid_out(cube, mesh)))
    return named


def laid_out(strategy: Strategy, mesh: Mesh) -> Strategy:
    return replace(strategy, mesh=lambda gpus: mesh)


def layouts() -> list[Mesh]:
    powers = (1, 2, 4, 8)
    return [Mesh(tp=tp, pp=pp, dp=8 // (tp * pp)) for tp in powers for pp in powers if tp * pp <= 8]


def layout_name(mesh: Mesh) -> str:
    degrees = {"TP": mesh.tp, "PP": mesh.pp, "DP": mesh.dp}
    return " x ".join(f"{axis}{degree}" for axis, degree in degrees.items() if degree > 1)


@cache
def executed_seconds(name: str) -> float:
    """A step of the strategy on its lesson's GPUs, at the lesson's defaults."""
    lesson, strategy = strategies()[name]
    hardware = replace(POCKET, **strategy.hardware)
    return max(rank.end_seconds for rank in run(strategy, Job(**lesson.defaults), lesson.gpus, hardware))


# ------------------------------------------------------------------------------------------------- on H100s

H100 = find_hardware("h100")
TITAN, MEGATRON = STACKS["torchtitan-compiled"], STACKS["megatron-core"]
SMALL = TrainingJob(find_model("qwen2.5-3b"), H100, TITAN, sequence=4096, global_batch=64)
LARGE = TrainingJob(find_model("llama-3-70b"), H100, MEGATRON, sequence=8192, global_batch=32)
IN_TURN = replace(LARGE, stack=replace(MEGATRON, tp_overlap="none"))
GRID = Plan(tp=8, pp=4, dp=2, zero=1, sequence_parallel=True)
FSDP = Plan(dp=64, zero=3)
SCHEDULES = {"naive": 1, "1f1b": 1, "interleaved": 2, "zb-h1": 1, "zb-h2": 1, "zb-v": 2}  # and their chunks
PLANS: dict[str, tuple[TrainingJob, Plan]] = {
    "3B on one GPU": (SMALL, Plan()),
    "DDP without overlap": (replace(SMALL, stack=replace(TITAN, dp_overlap=False)), Plan(dp=64)),
    "DDP overlapped": (SMALL, Plan(dp=64)),
    "FSDP": (replace(SMALL, stack=replace(TITAN, prefetch=False)), FSDP),
    "FSDP prefetch": (SMALL, FSDP),
    "FSDP no reshard": (replace(SMALL, stack=replace(TITAN, reshards=False)), FSDP),
    "70B on one GPU": (LARGE, Plan()),
    "TP, a GPU a node": (replace(IN_TURN, hardware=replace(H100, gpus_per_node=1)), GRID),
    "TP over 2 nodes": (replace(IN_TURN, hardware=replace(H100, gpus_per_node=4)), GRID),
    "TP in a node": (IN_TURN, GRID),
    "TP beside the backward pass": (LARGE, GRID),
    "TP in parts": (replace(LARGE, stack=replace(MEGATRON, tp_overlap="all")), GRID),
    **{name: (LARGE, replace(GRID, schedule=name, chunks=chunks)) for name, chunks in SCHEDULES.items()},
    "interleaved in 5": (LARGE, replace(GRID, schedule="interleaved", chunks=5)),
    "TP16 x PP4": (LARGE, replace(GRID, tp=16, dp=1)),
    "TP8 x PP8": (LARGE, replace(GRID, pp=8, dp=1)),
    "TP8 x PP4": (LARGE, GRID),
    "TP8 x PP2 x DP4": (LARGE, replace(GRID, pp=2, dp=4)),
}


@cache
def predicted_seconds(name: str) -> float:
    return float(time_step(*PLANS[name]).seconds)


# ------------------------------------------------------------------------------------------------ the claims


def names(chain: Chain) -> list[str]:
    return [str(name) for name in chain[::2]]


def links(chains: dict[str, Chain]) -> list:
    """(slower, least ratio, faster) for all neighbours of all chains."""
    return [
        pytest.param(slower, ratio, faster, id=f"{title}: {slower} < {faster}")
        for title, chain in chains.items()
        for (slower, faster), ratio in zip(pairwise(names(chain)), chain[1::2], strict=True)
    ]


@pytest.mark.parametrize(("slower", "ratio", "faster"), links(EXECUTED))
def test_speedups_on_pocket_come_in_this_order(slower, ratio, faster):
    assert executed_seconds(slower) >= ratio * executed_seconds(faster)


@pytest.mark.parametrize(("slower", "ratio", "faster"), links(PREDICTED))
def test_speedups_on_h100s_come_in_this_order(slower, ratio, faster):
    assert predicted_seconds(slower) >= ratio * predicted_seconds(faster)


def test_every_ratio_of_a_chain_is_more_than_rounding():
    ratios = [ratio for chain in (EXECUTED | PREDICTED).values() for ratio in chain[1::2]]
    assert min(map(float, ratios)) > 1.0001


def test_all_layouts_of_8_gpus_are_in_one_chain():
    assert {*names(EXECUTED["4D, all layouts of 8 GPUs"])} == {layout_name(mesh) for mesh in layouts()}


def test_a_pipeline_without_a_schedule_is_as_slow_as_one_gpu_and_1f1b_as_fast_as_gpipe():
    """1F1B needs less memory, not less time: the last stage, which has the head, sets the pace of both."""
    assert executed_seconds("naive") == pytest.approx(executed_seconds("single GPU"), rel=0.01)
    assert executed_seconds("1F1B") == pytest.approx(executed_seconds("GPipe"), rel=1e-9)


def test_no_strategy_is_faster_than_its_gpus_together():
    alone = executed_seconds("single GPU")
    for name in {name for chain in EXECUTED.values() for name in names(chain)}:
        lesson, strategy = strategies()[name]
        if strategy.reference:  # another model, with less work
            continue
        gpus = strategy.job(Job(**lesson.defaults), lesson.gpus).mesh.world_size
        assert alone / executed_seconds(name) <= gpus, name


def test_the_plans_for_h100s_fit_into_their_memory_but_for_the_large_model_on_one():
    peaks = {name: float(peak_memory(*plan).total) for name, plan in PLANS.items()}
    assert {name for name, peak in peaks.items() if peak > H100.memory_bytes} == {"70B on one GPU"}
