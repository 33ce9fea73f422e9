"""=0D: what a run is held against one GPU's by, and what each of its parts finds."""

from dataclasses import replace

import numpy as np
import pytest

from gpu import GPU
from ndparallel.hardware.pocket import POCKET
from ndparallel.lessons.lesson import Strategy
from ndparallel.lessons.registry import load
from ndparallel.lessons.runner import Runner, entry_of
from ndparallel.lessons.table import make_report
from ndparallel.parallel.mesh import Mesh
from ndparallel.results.against_one_gpu import WEIGHT_TOLERANCE
from ndparallel.training.buckets import ShardedOptimizer
from ndparallel.training.gradient_check import TOLERANCE
from ndparallel.training.job import Job
from ndparallel.training.replica import Outcome, Replica
from tests.support.common import SMALL, names, on_mesh, strategy

ROOMY = replace(POCKET, memory_bytes=1e9)
SPARSE = SMALL.replace(layers=4, experts=4, expert_ffn=8, balance_loss=0.7)


def reported(chosen: Strategy, job: Job, gpus: int):
    """The report of one strategy's run, and its row."""
    with Runner(ROOMY, "inline") as runner:
        entry = entry_of(chosen, job, gpus)
        row, _ = runner.measured(entry)
        return make_report(
            "test", entry.job, ROOMY, [row], runner.reference(entry.job), runner.rounding(entry.job)
        ), row


def steps_twice(gpu: GPU, job: Job) -> Outcome:
    """DDP whose optimizer takes the first gradients once more than it should."""
    replica = Replica(gpu, job)
    for microbatches in replica.steps():
        for microbatch in microbatches:
            replica.forward(microbatch)
            replica.backward(microbatch)
        for bucket in replica.buckets:
            bucket.all_reduce()
        replica.optimizer_step()
        replica.optimizer_step()
    return replica.outcome


def forgets_to_gather(gpu: GPU, job: Job) -> Outcome:
    """ZeRO-1 that leaves the weights as each rank has stepped them."""
    replica = Replica(gpu, job, ShardedOptimizer)
    for microbatches in replica.steps():
        for microbatch in microbatches:
            replica.forward(microbatch)
            replica.backward(microbatch)
        for bucket in replica.parts:
            assert isinstance(bucket, ShardedOptimizer)
            bucket.reduce_scatter()
        replica.optimizer_step()
    return replica.outcome


HELD = [("float32", "sgd"), ("float64", "sgd"), ("float64", "adamw"), ("float32", "adamw")]


@pytest.mark.parametrize(("dtype", "optimizer"), [*HELD, ("bfloat16", "adamw")])
@pytest.mark.parametrize("wrong", [steps_twice, forgets_to_gather])
def test_right_gradients_and_wrong_weights_are_not_equal(wrong, dtype, optimizer):
    job = Job(model=SMALL, dtype=dtype, optimizer=optimizer)
    report, row = reported(Strategy("wrong", wrong, lambda gpus: Mesh(dp=gpus)), job, 4)
    (one,) = report.against_one_gpu
    assert row.max_gradient_difference <= report.tolerance.relative < one.difference
    assert not report.equal()
    assert any("its stepped weights differ by" in remark for remark in report.remarks())


def test_adamw_in_float32_moves_single_weights_otherwise_and_tensors_alike():
    """Where a gradient is nearly zero, rounding decides which way its weight goes."""
    report, row = reported(strategy("4d_combined", "with experts, EP"), Job(), 8)
    assert row.max_weight_difference > 100 * WEIGHT_TOLERANCE["float32", "sgd"].most
    assert row.weight_step_difference < 0.01 and report.equal()


@pytest.mark.parametrize(
    ("lesson", "dtype", "optimizer"),
    [("1d_data_parallel", *HELD[0]), ("4d_combined", *HELD[1]), ("4d_combined", *HELD[-1])],
)
def test_the_weights_of_every_strategy_are_one_gpus_after_three_steps(lesson, dtype, optimizer):
    model = SMALL.replace(layers=8, heads=8, kv_heads=8, ffn=32)
    job = Job(model=model, steps=3, dtype=dtype, optimizer=optimizer)
    for name in names(lesson):
        report, row = reported(strategy(lesson, name), job, load(lesson).gpus)
        assert report.equal() and row.max_weight_difference is not None, name


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_gradient_that_is_zero_but_for_rounding_is_held_to_the_size_of_the_largest(dtype):
    """A router that sends a token to one expert learns from their balance alone, which is perfect
    in two of these layers, as in a fuzz that found them unequal."""
    model = SMALL.replace(layers=5, hidden=8, heads=2, ffn=8, sequence=12, experts=2, expert_ffn=44, top_k=1)
    job = Job(model, Mesh(cp=2), batch=1, dtype=dtype)
    report, row = reported(on_mesh("4d_combined", "DP only", job.mesh), job, 2)
    assert report.equal() and row.max_gradient_difference < TOLERANCE[dtype]


def test_the_largest_difference_of_a_loss_is_told_step_by_step():
    report, row = reported(strategy("1d_data_parallel", "DDP ring"), Job(model=SMALL, steps=3), 4)
    assert row.baseline
    pairs = zip(row.losses, row.baseline.losses, strict=True)
    largest = max(abs(loss / alone - 1) for loss, alone in pairs)
    assert report.against_one_gpu[0].max_loss_difference == pytest.approx(largest, rel=1e-6)


@pytest.mark.parametrize("mesh", [Mesh(), Mesh(tp=2, pp=2, dp=2, ep=2), Mesh(cp=2, dp=2)], ids=repr)
def test_the_printed_loss_falls_by_what_its_gradients_promise(mesh, tmp_path):
    """One small step of SGD on one batch lowers the loss by the learning rate times the gradients' squares:
    of all that the gradients contain, the experts' balance loss too."""
    text, rate = tmp_path / "one batch.txt", 1e-6
    text.write_bytes(bytes(np.random.default_rng(1).integers(0, 256, 8 * SPARSE.sequence + 1, np.uint8)))
    job = Job(model=SPARSE, steps=2, dtype="float64", optimizer="sgd", learning_rate=rate, text=str(text))
    chosen = on_mesh("4d_combined", "DP only", mesh)
    with Runner(ROOMY, "inline") as runner:
        row, _ = runner.measured(entry_of(chosen, job.replace(microbatches=2), mesh.world_size))
        gradients = runner.reference(job).gradients
    promised = rate * sum(float(np.sum(gradient**2)) for gradient in gradients.values())
    assert row.losses[0] - row.losses[1] == pytest.approx(promised, rel=1e-4)
