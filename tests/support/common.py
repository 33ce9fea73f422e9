"""What many tests share: a small model, and a way to run a lesson's strategy and the single GPU's."""

from dataclasses import replace
from functools import lru_cache
from typing import Any

from gpu import Hardware
from ndparallel.engines.launch import RankResult, launch
from ndparallel.hardware.pocket import POCKET
from ndparallel.lessons.lesson import Strategy
from ndparallel.lessons.registry import load, single_gpu
from ndparallel.model.units import ModelConfig
from ndparallel.parallel.mesh import Mesh
from ndparallel.results.measure import measure
from ndparallel.training.gradient_check import (
    distances,
    gradient_difference,
    largest_difference,
    whole_tensors,
)
from ndparallel.training.job import Job

SMALL = ModelConfig(layers=3, hidden=16, heads=4, kv_heads=2, ffn=24, sequence=16)
CHUNKS = {"interleaved": 2, "looped-bfs": 2}  # stages of a rank, of schedules that leave it open
OWN_ORDERS = {"naive": "naive", "gpipe": "GPipe", "1f1b": "1F1B"}  # those that the 3D lesson writes out
TOLERANCE = {"float32": 1e-5, "float64": 1e-12}


def strategy(lesson: str, name: str) -> Strategy:
    return next(strategy for strategy in load(lesson).strategies if strategy.name == name)


def names(lesson: str) -> list[str]:
    return [strategy.name for strategy in load(lesson).strategies]


def on_mesh(lesson: str, name: str, mesh: Mesh) -> Strategy:
    """The strategy on this mesh, with the job's own settings in place of those that it brings."""
    return replace(strategy(lesson, name), mesh=lambda gpus: mesh, changes={})


def pipeline(schedule: str) -> Strategy:
    """3D's pipeline with this schedule."""
    changes = {"schedule": schedule, "stage_chunks": CHUNKS.get(schedule)}
    return replace(strategy("3d_pipeline_parallel", OWN_ORDERS.get(schedule, "ZB-V")), changes=changes)


def run(
    strategy: Strategy, job: Job, gpus: int, hardware: Hardware = POCKET, engine: str = "inline"
) -> list[RankResult]:
    job = strategy.job(job, gpus)
    return launch(strategy.program, job.mesh.world_size, hardware, job, engine=engine)


def reference(job: Job) -> RankResult:
    """The single GPU's run of the same work: in one piece, with all the memory it needs."""
    return run_alone(job.work)


@lru_cache(maxsize=64)
def run_alone(job: Job) -> RankResult:
    return run(single_gpu(), job, 1, replace(POCKET, memory_bytes=float("inf")))[0]


def loss_and_gradient_difference(results: list[RankResult], job: Job) -> tuple[float, float]:
    """How far a run is from the single GPU's: its first step's loss, relative, and its gradients."""
    expected = reference(job).value
    losses = [result.value.losses[0] for result in results if result.value.losses]
    loss = abs(sum(losses) / len(losses) - expected.losses[0]) / expected.losses[0]
    return loss, gradient_difference((result.value for result in results), whole_tensors(expected.gradients))


def difference_of_weights(results: list[RankResult], job: Job) -> float:
    right = whole_tensors(reference(job).value.weights)
    held = (holding for result in results for holding in result.value.weights)
    return largest_difference(distances(held, right), right)


def measured(lesson: str, name: str, job: Job, gpus: int, hardware: Hardware = POCKET) -> Any:
    """The measurement of a run that ends, so that none of its figures is None."""
    return measure(name, run(strategy(lesson, name), job, gpus, hardware), hardware, job.steps)
