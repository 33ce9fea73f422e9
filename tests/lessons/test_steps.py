"""Claims about `--steps`: all of them are run, and seconds and bytes are of one of them."""

from dataclasses import replace

import pytest

from ndparallel.hardware.pocket import POCKET
from ndparallel.lessons.registry import LESSONS, load
from ndparallel.lessons.runner import Runner, entry_of
from ndparallel.training.job import Job
from tests.support.common import SMALL, measured, names, run, strategy

ROOMY = replace(POCKET, memory_bytes=1e9)
MODEL = SMALL.replace(layers=8, hidden=32, heads=8, kv_heads=8, ffn=32)
EVERY = [(lesson, name) for lesson in LESSONS for name in names(lesson)]

# A rank that is done early begins its next step, and nothing holds it until the last one is done too:
RUN_AHEAD = {
    "DDP naive",  # the root sends the sums one after another
    "ZB-H1",  # rank 0 of a pipeline waits for the last gradients alone
    "ZB-V",
    "TP only",  # over two nodes the ring ends earlier for some than for others
}
# of which five steps are enough to learn something
RATES = {
    "2d_tensor_parallel": 10.0,
    "3d_pipeline_parallel": 10.0,
    "cp_context_parallel": 1e3,
    "ep_expert_parallel": 10.0,
}
ROUTED = {"with experts, EP", *names("ep_expert_parallel")}  # stepped routers send other rows elsewhere


def rows(lesson: str, name: str) -> list:
    """One step, and three."""
    gpus, defaults = 8 if lesson == "4d_combined" else 4, dict(load(lesson).defaults)
    jobs = [Job(model=MODEL, steps=steps, **defaults) for steps in (1, 3)]
    return [measured(lesson, name, job, gpus, ROOMY) for job in jobs]


@pytest.mark.parametrize(("lesson", "name"), [pair for pair in EVERY if pair[1] not in ROUTED])
def test_seconds_and_bytes_of_a_step_do_not_depend_on_how_many_there_are(lesson, name):
    one, three = rows(lesson, name)
    assert three.bytes_sent_per_gpu == pytest.approx(one.bytes_sent_per_gpu, rel=1e-12)
    assert three.bytes_sent_max == pytest.approx(one.bytes_sent_max, rel=1e-12)
    if name in RUN_AHEAD:
        assert 0.9 * one.step_seconds < three.step_seconds < one.step_seconds
    else:
        assert three.step_seconds == pytest.approx(one.step_seconds, rel=1e-12)
        assert three.compute_seconds == pytest.approx(one.compute_seconds, rel=1e-12)


@pytest.mark.parametrize(("lesson", "name"), [pair for pair in EVERY if strategy(*pair).reference])
def test_a_model_that_is_cut_by_hand_learns_in_every_cut_what_one_gpu_learns(lesson, name):
    cut, job = strategy(lesson, name), Job(model=SMALL, steps=5, dtype="float64", learning_rate=RATES[lesson])
    assert cut.reference
    alone = run(replace(cut, program=cut.reference, mesh=lambda gpus: job.mesh), job, 1)[0].value.losses
    found = [result.value.losses for result in run(cut, job, 4) if result.value.losses]
    means = [sum(losses) / len(found) for losses in zip(*found)]
    assert len(alone) == 5 and alone == sorted(alone, reverse=True) and alone[-1] < 0.9 * alone[0]
    assert means == pytest.approx(alone, rel=1e-12)


@pytest.mark.parametrize(("lesson", "name"), [pair for pair in EVERY if strategy(*pair).reference])
def test_the_loss_falls_by_what_gradients_written_by_hand_promise(lesson, name):
    """One small step lowers the loss by the rate times the gradients' squares."""
    cut, rate = strategy(lesson, name), 1e-4
    assert cut.reference
    job = cut.job(Job(model=SMALL, steps=2, dtype="float64", learning_rate=rate), 4).work
    (alone,) = run(replace(cut, program=cut.reference, mesh=lambda gpus: job.mesh, changes={}), job, 1)
    promised = rate * sum(float((held.array**2).sum()) for held in alone.value.gradients)
    assert alone.value.losses[0] - alone.value.losses[1] == pytest.approx(promised, rel=1e-4)


def test_the_loss_of_every_step_is_measured_and_is_one_gpus():
    job = Job(model=SMALL, steps=3, dtype="float64")
    with Runner(ROOMY, "inline") as runner:
        row, _ = runner.measured(entry_of(strategy("1d_data_parallel", "DDP ring"), job, 4))
    assert row.baseline and len(row.losses) == 3 and row.losses[-1] == row.loss
    assert row.losses == pytest.approx(row.baseline.losses, rel=1e-12)
