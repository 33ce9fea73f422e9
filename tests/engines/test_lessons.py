"""Every strategy of every lesson is the same on processes and on inline: its JSON to the last byte, its
events, clocks, memory and journals."""

import gc

import pytest

from gpu import GPU
from ndparallel.base.json_text import json_text
from ndparallel.engines.inline import InlineRank
from ndparallel.hardware.pocket import POCKET
from ndparallel.lessons.registry import LESSONS, load
from ndparallel.lessons.table import run_lesson
from ndparallel.model.units import ModelConfig, Unit
from ndparallel.training.job import Job
from tests.support.common import SMALL, run, strategy

MODEL = ModelConfig(layers=2, hidden=16, heads=8, kv_heads=4, ffn=16, sequence=16)
LAYERS = {"3d_pipeline_parallel": 8, "4d_combined": 8}  # enough to fill their stages


@pytest.mark.parametrize("name", LESSONS)
def test_every_strategy_is_the_same_on_both_engines(name):
    lesson = load(name)
    job = Job(**{"model": MODEL.replace(layers=LAYERS.get(name, 2))} | lesson.defaults)
    one, other = (
        run_lesson(lesson, job, POCKET, lesson.gpus, [], engine, contention=True)
        for engine in ("inline", "processes")
    )
    assert json_text(one.report.as_dict()) == json_text(other.report.as_dict())
    assert all(row.step_seconds for row in one.report.strategies)
    for ran, results in one.results.items():
        for here, there in zip(results, other.results[ran], strict=True):
            assert here._replace(value=None) == there._replace(value=None), ran


@pytest.mark.parametrize(
    ("lesson", "name", "gpus"),
    [("1d_data_parallel", "FSDP prefetch", 4), ("4d_combined", "with experts, EP", 8)],
)
def test_a_strategy_leaves_no_circle_that_only_the_garbage_collector_could_set_free(lesson, name, gpus):
    job = Job(**{"model": SMALL.replace(layers=4)} | load(lesson).defaults)
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        run(strategy(lesson, name), job, gpus)
        gc.collect()
        assert not [left for left in gc.garbage if isinstance(left, GPU | Unit | InlineRank)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
