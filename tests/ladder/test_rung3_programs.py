"""Rung 3 of what frameworks do and no lesson does: rank programs of these tests, in the lessons' words, take
the seconds and bytes that the planner says."""

from typing import Any

import pytest

from gpu import GPU
from ndparallel.engines.launch import launch
from ndparallel.model.units import ModelConfig
from ndparallel.parallel.mesh import Mesh
from ndparallel.training.buckets import ShardedGradients, ShardedOptimizer
from ndparallel.training.job import Job
from ndparallel.training.replica import Outcome, Replica
from tests.ladder.test_rung3_scale import ROOMY, assert_predicted, planned


def zero1_gathers_first(gpu: GPU, job: Job) -> Outcome:
    """ZeRO-1 whose weights come beside the next forward pass (Megatron-Core's overlap_param_gather)."""
    replica = Replica(gpu, job, ShardedOptimizer, job.bucket_mb)
    buckets: list[Any] = replica.buckets
    for microbatches in replica.steps():
        coming = [bucket.all_gather(async_op=True) for bucket in reversed(buckets)]
        for microbatch in microbatches:
            x, handles = replica.tokens[microbatch], []
            for number, bucket in enumerate(reversed(buckets)):
                if microbatch == microbatches[0]:
                    coming[number].wait()
                x = bucket.forward(x, microbatch)
            gradient = None
            for bucket in buckets:
                gradient = bucket.backward(gradient, microbatch)
                if microbatch == microbatches[-1]:
                    handles.append(bucket.reduce_scatter(async_op=True))
        for handle in handles:
            handle.wait()
        replica.optimizer_step()
    return replica.outcome


def zero2_in_turn(gpu: GPU, job: Job) -> Outcome:
    """ZeRO-2 that stands still while a bucket's gradients travel."""
    replica = Replica(gpu, job, ShardedGradients, job.bucket_mb)
    buckets: list[Any] = replica.buckets
    for microbatches in replica.steps():
        for microbatch in microbatches:
            replica.forward(microbatch)
            gradient = None
            for bucket in buckets:
                bucket.allocate_gradients()
                gradient = bucket.backward(gradient, microbatch)
                bucket.reduce_scatter()
        replica.optimizer_step()
        for bucket in buckets:
            bucket.all_gather()
    return replica.outcome


def assert_program(program, gpus: int, microbatches: int, **software) -> None:
    job = Job(model=ModelConfig(layers=8), mesh=Mesh(dp=gpus), batch=16, microbatches=microbatches)
    results = launch(program, gpus, ROOMY, job, engine="inline", keep_events=False)
    assert_predicted(results, *planned(job, ROOMY, **software))


@pytest.mark.parametrize("microbatches", [1, 2])
@pytest.mark.parametrize("gpus", [4, 8])
def test_zero_1s_weights_come_beside_the_next_forward_pass(gpus, microbatches):
    assert_program(zero1_gathers_first, gpus, microbatches, zero=1, gathers_first=True)


@pytest.mark.parametrize("microbatches", [1, 2])
@pytest.mark.parametrize("gpus", [4, 8])
def test_zero_2_without_overlap_waits_for_every_bucket(gpus, microbatches):
    assert_program(zero2_in_turn, gpus, microbatches, zero=2, dp_overlap=False)
