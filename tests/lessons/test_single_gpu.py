"""0D: what saves memory computes the same gradients, keeps the listed tensors, and costs the listed
operations."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from gpu import COMPUTE, Event
from ndparallel.drawing.activities import activity
from ndparallel.drawing.palette import RECOMPUTE
from ndparallel.hardware.pocket import POCKET
from ndparallel.lessons.main import main
from ndparallel.lessons.registry import load
from ndparallel.lessons.runner import baseline
from ndparallel.lessons.table import run_lesson
from ndparallel.parallel.mesh import Mesh
from ndparallel.training.job import Job
from tests.support import hand_count
from tests.support.common import SMALL, measured, names, reference, run, strategy

LESSON = "0d_single_gpu"
RECOMPUTED = {"selective recompute": "selective", "full recompute": "full"}
LAYOUTS = [{}, {"mesh": Mesh(tp=2)}, {"mesh": Mesh(tp=2), "sequence_parallel": "sp"}, {"microbatches": 2}]
DEFAULT = Job()
SIZES = hand_count.Sizes(DEFAULT.model, DEFAULT.batch)


def seconds(operations) -> float:
    return sum(float(POCKET.seconds(operation)) for operation in operations)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("recompute", RECOMPUTED.values())
def test_recomputing_leaves_loss_and_every_gradient_the_same_to_the_bit(recompute, layout, dtype):
    job = Job(model=SMALL, dtype=dtype, **layout)
    same = replace(strategy("2d_tensor_parallel", "TP"), mesh=lambda gpus: job.mesh, changes={})
    for kept, again in zip(run(same, job, 1), run(same, job.replace(recompute=recompute), 1), strict=True):
        assert kept.value.losses == again.value.losses
        for one, other in zip(kept.value.gradients, again.value.gradients, strict=True):
            np.testing.assert_array_equal(one.array, other.array)


@pytest.mark.parametrize(
    ("name", "again"),
    [
        ("selective recompute", hand_count.core_recompute(SIZES)),
        ("full recompute", hand_count.block(SIZES).forward),
    ],
)
def test_recomputing_costs_the_listed_operations_of_every_layer_once_more(name, again):
    plain, more = (measured(LESSON, which, DEFAULT, 1).step_seconds for which in ("single GPU", name))
    assert more - plain == pytest.approx(DEFAULT.model.layers * seconds(again), rel=1e-9)
    recomputed = [
        event
        for event in map(Event._make, run(strategy(LESSON, name), DEFAULT, 1)[0].events)
        if activity(event) == RECOMPUTE
    ]
    assert sum(event.end - event.start for event in recomputed) == pytest.approx(more - plain, rel=1e-9)
    assert all(event.kind == COMPUTE for event in recomputed)


def test_the_peak_is_what_all_layers_keep_or_their_inputs_and_one_layer_whole():
    """Tokens are one byte each; of full recomputation, the last layer is the fullest moment: its input is
    inside what it keeps."""
    layers, tokens = DEFAULT.model.layers, DEFAULT.batch * DEFAULT.model.sequence
    block = {name: hand_count.block_saved(SIZES, name) for name in ("none", "selective", "full")}
    head = hand_count.head_saved(SIZES)
    peaks = {
        name: measured(LESSON, name, DEFAULT, 1).peak_memory_bytes["activations"]
        for name in ("single GPU", *RECOMPUTED)
    }
    assert peaks["single GPU"] == 4 * (layers * block["none"] + head) + tokens
    assert peaks["selective recompute"] == 4 * (layers * block["selective"] + head) + tokens
    assert (
        peaks["full recompute"]
        == 4 * ((layers - 1) * block["full"] + max(block["none"], block["full"] + head)) + tokens
    )


def test_full_recomputation_costs_a_third_more_and_selective_far_less():
    """Forward is about a third of a step (2 FLOPs of 6); the head is not computed again."""
    steps = {name: measured(LESSON, name, DEFAULT, 1).step_seconds for name in names(LESSON)}
    plain = steps["single GPU"]
    assert 1.28 < steps["full recompute"] / plain < 4 / 3
    assert 1 < steps["selective recompute"] / plain < 1.05


def test_everything_is_held_against_the_gpu_that_forgets_nothing_and_takes_the_batch_whole():
    job = DEFAULT.replace(
        recompute="full",
        microbatches=4,
        mesh=Mesh(dp=2),
        sequence_parallel="sp",
        bucket_mb=3,
        steps=2,
        seed=5,
    )
    assert baseline(job).job == DEFAULT.replace(steps=2, seed=5)


def test_the_lesson_says_what_it_measured():
    lesson = load(LESSON)
    ran = run_lesson(lesson, DEFAULT, POCKET, 1, [], "inline")
    assert ran.report.equal() and [ran[name].max_gradient_difference for name in RECOMPUTED] == [0, 0]
    words = " ".join(lesson.notice(ran))
    kept = (
        ran["full recompute"].peak_memory_bytes["activations"] / reference(DEFAULT).peak_bytes["activations"]
    )
    assert f"Computing every layer twice keeps {kept:.0%} of the activations" in words
    assert "takes no more time" in words  # 0.06% longer in 4 parts, which is nothing


def test_more_than_twice_the_time_is_told_in_plain_digits(capsys):
    """On an H100 the kernels of this model take their launch, whatever their size: four microbatches, nearly
    four times the time."""
    assert main(load("0d_single_gpu"), ["--hardware", "h100", "--timeline", "none"]) == 0
    assert re.search(r"takes [23]\d\d% more time", " ".join(capsys.readouterr().out.split()))


def test_one_gpu_is_not_several(capsys):
    assert main(load("0d_single_gpu"), ["--gpus", "2"]) == 2
    assert "0D is one GPU, and --gpus asks for 2" in capsys.readouterr().err
    assert main(load("0d_single_gpu"), ["--help"]) == 0
    assert "--gpus " not in capsys.readouterr().out


def test_every_lesson_runs_the_single_gpu_by_its_name_too(capsys):
    named = ["--strategy", "single GPU", "--strategy", "GPipe", "--engine", "inline", "--json"]
    assert main(load("3d_pipeline_parallel"), named) == 0
    alone, gpipe = json.loads(capsys.readouterr().out)["strategies"]
    assert (alone["name"], alone["gpus"], alone["speedup"]) == ("single GPU", 1, 1)
    assert (gpipe["name"], gpipe["gpus"]) == ("GPipe", 4)


def test_a_batch_that_four_parts_cannot_share_is_not_said_to_be_too_large(capsys):
    assert main(load("0d_single_gpu"), ["--batch", "2", "--engine", "inline", "--timeline", "none"]) == 0
    out = capsys.readouterr().out
    assert (
        "4 microbatches has no numbers" in out
        and "does not fit" not in out
        and "keeps 15% of the activations" in out
    )
