"""Claims about the seconds of a step, for one plan and for thousands."""

import pickle
from dataclasses import replace
from itertools import pairwise
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ndparallel.base.errors import UserError
from ndparallel.hardware.accelerator import find_hardware
from ndparallel.pipeline import schedule_timer
from ndparallel.pipeline.catalog import RECIPES
from ndparallel.pipeline.replay import Ends, Replay
from ndparallel.pipeline.steps import Durations
from ndparallel.pipeline.timing import time_schedule
from ndparallel.pipeline.work import Reduction, Work
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.models.presets import find_model
from ndparallel.planner.models.shape import ModelShape
from ndparallel.planner.picture import timeline_of
from ndparallel.planner.prediction import memory_of, predict, time_step, workload_of
from ndparallel.planner.software import find_stack
from ndparallel.planner.stages import elements_of, layers_by_stage
from ndparallel.planner.step.framework import framework_workload, slowest_of
from ndparallel.planner.step.pipeline import PipelineTimer
from ndparallel.search.bounds.lower_bound import lower_bound
from ndparallel.validation.cases import express, read_cases
from ndparallel.validation.validate import summary, validate
from tests.support.accelerators import accelerator

TIMED = ["1f1b", "interleaved", "gpipe", "zb-h1", "zb-v", "dualpipev"]
LLAMA = ModelShape("llama", 32, 4096, 32, 8, 128, 14336, 128256)


def job(**changes):
    return replace(
        TrainingJob(LLAMA, find_hardware("h100"), find_stack("megatron-core"), 4096, 256), **changes
    )


def test_the_parts_of_a_step_add_up_and_none_is_negative():
    for plan in (
        Plan(tp=2, pp=4, dp=4),
        Plan(dp=8, zero=3),
        Plan(tp=2, pp=2, chunks=4, dp=2, cp=2, schedule="interleaved", zero=1),
    ):
        step = time_step(job(), plan)
        assert min(step.breakdown.values()) >= 0
        assert step.seconds == pytest.approx(sum(step.breakdown.values()))


def test_without_a_pipeline_its_only_rank_is_the_last_and_the_busiest():
    step = time_step(job(), Plan(dp=8, zero=3))
    assert (step.rank, step.busiest) == (0, 0)


@pytest.mark.parametrize(("place", "alike"), [(0, True), (7, True), (1, False), (6, False)])
def test_a_pipeline_goes_at_the_busiest_ranks_pace_where_all_inner_stages_are_alike(place, alike):
    """One of eight stages is longer."""
    layers = [4 + (stage == place) for stage in range(8)]
    plan = Plan(pp=2, chunks=4, schedule="interleaved", stage_layers=(*layers,))
    timer = PipelineTimer(workload_of(job(shape=replace(LLAMA, layers=33)), plan))
    assert timer.busiest_sets_pace == alike


def test_a_very_long_pipeline_without_messages_ends_no_later_than_with_them():
    timer = PipelineTimer(workload_of(job(global_batch=1024), Plan(pp=4, chunks=2, schedule="zb-v")))
    assert timer.paced(timer.actions.silent) is None and timer.rounds[2] > 0
    end, pace = timer.without_messages
    assert end <= timer.ends.end[timer.last] and pace == pytest.approx(max(timer.actions.work_by_rank))


def test_no_part_of_a_published_run_is_negative():
    """Of ranks that are alike none waits for another: sums in another order left -1e-16 s of bubble."""
    for run in map(express, read_cases()[::4]):
        assert min(time_step(run.job, run.plan).breakdown.values()) >= 0, run


def test_a_layer_count_that_stages_do_not_divide_counts_embedding_and_head_as_layers():
    # Llama 3 405B, 2407.21783
    assert layers_by_stage(126, 16)[:2] == [7, 8] and layers_by_stage(126, 16)[-1] == 7
    assert layers_by_stage(96, 8) == [12] * 8


def test_a_last_stage_may_have_the_head_alone_which_is_longer_than_a_layer():
    """With a layer beside it the last rank of Llama 3 8B is the busiest. Gemma 2 9B's stages of 6 layers
    leave room for it, and the steps are alike."""
    of_llama, of_gemma = [*[3] * 10, 2, 0], [*[6] * 7, 0]
    assert (layers_by_stage(32, 12), layers_by_stage(42, 8)) == (of_llama, of_gemma)
    plan = Plan(tp=4, pp=4, dp=2, chunks=3, schedule="interleaved")
    beside = replace(plan, stage_layers=(*[3] * 10, 1, 1))
    llama = job(shape=find_model("llama-3-8b"), global_batch=8)
    assert time_step(llama, beside).seconds > 1.05 * time_step(llama, plan).seconds
    gemma, plan = job(shape=find_model("gemma-2-9b")), Plan(tp=8, pp=8)
    beside = replace(plan, stage_layers=(*[6] * 6, 5, 1))
    assert time_step(gemma, beside).seconds == pytest.approx(time_step(gemma, plan).seconds, rel=2e-3)


def test_a_plan_says_how_many_layers_each_stage_has():
    """A last stage with fewer layers, as DeepSeek-V3's, makes room for the head: the step is shorter."""
    plan = Plan(pp=4, dp=2)
    even, uneven = (replace(plan, stage_layers=layers) for layers in ((8, 8, 8, 8), (9, 9, 9, 5)))
    assert time_step(job(), even).seconds == time_step(job(), plan).seconds
    assert time_step(job(), uneven).seconds < time_step(job(), plan).seconds
    last = [memory_of(framework_workload(job(), one))[-1] for one in (even, uneven)]
    layer = LLAMA.parameters().attention + LLAMA.parameters().dense_mlp + LLAMA.parameters().layer_norms
    assert last[0].weights - last[1].weights == 3 * layer * 2
    with pytest.raises(UserError, match="8, 8, 8 and 7 layers are not"):
        predict(job(), replace(plan, stage_layers=(8, 8, 8, 7)))


@pytest.mark.parametrize(
    ("schedule", "forward", "backward_input", "backward_weight", "ends"),
    [
        (
            "1f1b",
            [1, 2],
            [0.5, 1.5],
            [0.5, 0.5],
            [26, 25],
        ),  # a second more for what comes up from the second rank
        ("1f1b", [3, 1], [3, 1], [0, 0], [36, 13]),  # the first rank's own work
        ("zb-h1", [1, 3], [1, 3], [0.5, 2], [38, 49]),  # weights of the second rank that nobody waits for
    ],
)
def test_a_pipeline_ends_no_sooner_than_work_and_the_last_gradients_allow(
    schedule, forward, backward_input, backward_weight, ends
):
    """The second rank starts at 1 s."""
    timer = schedule_timer.ScheduleTimer(schedule, 2, 1, 6)
    work = Work(forward, backward_input, backward_weight)
    assert timer.soonest_ends([0.0, 1.0], work) == ends
    assert all(np.array(timer.ends_after_rounds(work).end) >= ends)


def extrapolated(timer: schedule_timer.ScheduleTimer, work: Work) -> Ends:
    """The ends of a step as if it were very long, and its rounds not alike."""
    with mock.patch.object(schedule_timer, "WHOLE", 0), mock.patch.object(timer, "paced", return_value=None):
        return timer.ends_after_rounds(work)


def test_no_extrapolated_end_is_sooner_than_work_and_the_last_gradients_allow():
    """Two short steps of a breadth-first schedule alone say 654 and 652 s."""
    work = Work([10, 10, 1, 1], [2, 20, 20, 2], 0.0, reductions=[Reduction(0.0, 0.0, 0.0)] * 4)
    timer = schedule_timer.ScheduleTimer("looped-bfs", 2, 2, 20)
    found, exact = extrapolated(timer, work), timer.replay(20).ends(work)
    assert found.end == found.reduced == exact.end == [672, 670]
    assert found.complete[:2] == exact.complete[:2] == [672, 670]


@pytest.mark.parametrize("latency", [0.3, 1.3, 2.7])
@pytest.mark.parametrize("microbatches", [30, 31])
def test_rounds_of_two_microbatches_pace_a_1f1b_that_waits_for_messages(microbatches, latency):
    timer, work = schedule_timer.ScheduleTimer("1f1b", 4, 1, microbatches), Work(latency=latency)
    paced = timer.paced(work)
    assert paced and paced[0].end == pytest.approx(timer.replay(microbatches).ends(work).end, rel=1e-12)


@pytest.mark.parametrize("microbatches", [14, 64])  # 14 are no more than the two short steps have
@pytest.mark.parametrize(("schedule", "chunks"), [("1f1b", 1), ("interleaved", 2), ("zb-h1", 1)])
def test_a_very_long_step_of_even_stages_is_extrapolated_exactly(schedule, chunks, microbatches):
    work = Work(1.0, 1.5, 0.5, latency=0.1)
    timer = schedule_timer.ScheduleTimer(schedule, 4, chunks, microbatches)
    found, exact = extrapolated(timer, work), timer.replay(microbatches).ends(work)
    assert found.end == pytest.approx(exact.end, rel=1e-12)
    assert found.complete == pytest.approx(exact.complete, rel=1e-12)


def test_the_bubble_of_1f1b_is_p_minus_1_microbatches_where_stages_are_equal():
    even = replace(LLAMA, vocab=1)
    step = time_step(job(shape=even), Plan(pp=4, micro_batch=2))
    one = (step.breakdown["compute"] / 128) * 3
    assert step.breakdown["bubble"] == pytest.approx(one, rel=0.05)


def test_closed_forms_agree_with_the_timed_schedule_within_10_percent():
    for plan in (
        Plan(tp=4, pp=4, dp=2, zero=1),
        Plan(pp=8, dp=2, chunks=2, schedule="interleaved"),
        Plan(dp=16, zero=3),
        Plan(tp=8, dp=2),
    ):
        assert float(lower_bound(job(), plan).seconds[0]) == pytest.approx(
            time_step(job(), plan).seconds, rel=0.1
        )


def test_an_array_of_plans_is_priced_as_one_by_one():
    """The last has no dp: nothing divides its gradients, not even in a kernel of no bytes."""
    tp, pp, micro = np.array([1, 2, 4, 8, 8]), np.array([4, 2, 2, 1, 4]), np.array([1, 2, 4, 2, 1])
    together = lower_bound(job(), Plan(tp=tp, pp=pp, dp=32 // (tp * pp), micro_batch=micro)).seconds
    alone = [
        lower_bound(job(), Plan(tp=t, pp=p, dp=32 // (t * p), micro_batch=m)).seconds[0]
        for t, p, m in zip(tp, pp, micro)
    ]
    assert together == pytest.approx(alone, rel=1e-12)


def test_more_gpus_wait_for_a_slower_slowest_one_and_one_waits_for_none():
    slow: list[Any] = [slowest_of(accelerator("h100"), gpus) for gpus in (1, 8, 64, 8192)]
    rates = [gpu.matmul_fraction for gpu in slow]
    assert rates[0] == accelerator("h100").matmul_fraction
    assert rates == sorted(rates, reverse=True)
    assert rates[3] > 0.9 * rates[0]


def test_a_run_that_cannot_be_expressed_says_why_and_counts_as_missed():
    run = read_cases()[0]
    unknown = [
        {**run, "hardware": {"gpu": "X1"}},
        {**run, "batch": {**run["batch"], "global": 500}},
        {"id": "empty"},
    ]
    answer = validate(unknown)
    assert (
        "'X1'" in answer[0].missed
        and "the nearest batch that can is 512" in answer[1].missed
        and "hardware" in answer[2].missed
    )
    assert summary(answer)["mean_absolute_step_error"] == 1.0


def test_a_step_of_a_published_run_is_explained_by_its_parts():
    run = next(run for run in read_cases() if run["id"] == "ptdp_t2_zero3_175B_1536")
    case = express(run)
    step = time_step(case.job, case.plan)
    # 144 TFLOP/s at 384 GPUs, 44 at 1536: communication bounds it
    assert step.breakdown["dp"] > 2.9 * step.breakdown["compute"]


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(TIMED),
    st.integers(2, 5),
    st.integers(0, 4),
    st.integers(0, 99),
    st.sampled_from([0.05, 0.1, 0.5]),
)
def test_rounds_that_differ_are_all_timed_and_of_a_very_long_step_some(schedule, pp, rest, seed, uneven):
    chunks = 1 if RECIPES[schedule].chunks == 1 else 2
    microbatches = 16 * pp + rest % pp
    plan = Plan(pp=pp, chunks=chunks, schedule=schedule)
    times = np.random.default_rng(seed).uniform(1 - uneven, 1 + uneven, (3, pp * chunks))
    timer, very_long = (PipelineTimer(workload_of(job(global_batch=microbatches), plan)) for _ in range(2))
    forward, backward_input, backward_weight = times.tolist()
    durations = Work(forward, backward_input, backward_weight, latency=0.1, wire=0.05)
    exact = [end[-1] for end in time_schedule(timer.whole.schedule, durations).end]
    assert timer.ends_after_rounds(durations).end == pytest.approx(exact, rel=1e-9)
    with mock.patch.object(schedule_timer, "WHOLE", 0):
        assert very_long.ends_after_rounds(durations).end == pytest.approx(exact, rel=1e-2)


@given(st.integers(2, 6), st.integers(1, 20), st.integers(0, 9999))
def test_one_microbatch_tells_a_silent_1f1b_whose_last_rank_never_waits(pp, microbatches, seed):
    """Ranks may be as unlike as can be: some forward passes take as long as another rank's microbatch."""
    timer = PipelineTimer(workload_of(job(global_batch=microbatches), Plan(pp=pp)))
    draw = np.random.default_rng(seed)
    forward, backward = draw.uniform(0, [[float(2 - draw.integers(2))], [1.0]], (2, pp))
    last = draw.uniform(0.8, 1.2) * max(forward + backward)  # the last rank may be the busiest
    backward[-1] = max(last - forward[-1], 0)
    timer.actions.by_stage, timer.last = (forward.tolist(), backward.tolist(), [0.0] * pp), 0
    if timer.last_never_waits:
        exact = timer.replay(microbatches).ends(timer.actions.silent).end[0]
        assert timer.without_messages[0] == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize(
    ("forward", "backward", "never"),
    [
        ([1, 1, 1, 2], [1, 1, 1, 1], True),
        ([2, 1, 1, 1], [2, 1, 1, 1], False),  # the first rank is the busiest
        ([0, 3, 0, 2], [3, 0, 0, 1], False),  # a forward pass is longer than another rank's microbatch
    ],
)
def test_1f1bs_last_rank_never_waits_if_it_is_the_busiest_and_no_forward_pass_is_long(
    forward, backward, never
):
    timer = PipelineTimer(workload_of(job(global_batch=6), Plan(pp=4)))
    timer.actions.by_stage = (forward, backward, [0.0] * 4)
    silent = timer.actions.silent
    one, all_of_them = (timer.replay(microbatches).ends(silent).end[0] for microbatches in (1, 6))
    assert timer.last_never_waits == never == (all_of_them == one + 5 * max(timer.actions.work_by_rank))


def test_of_very_many_microbatches_some_are_drawn_and_the_title_says_so():
    drawn = timeline_of(predict(job(global_batch=2**25), Plan(pp=4, dp=2, zero=1)))
    assert "16384 of its 16777216 microbatches" in drawn.name
    assert len(drawn.lanes[0].spans) < 2 * 16384 + 3


def test_a_fused_pair_is_drawn_as_its_two_one_after_the_other():
    spans = (
        timeline_of(predict(job(), Plan(pp=4, dp=2, chunks=2, schedule="dualpipev", zero=1))).lanes[0].spans
    )
    assert all(before.end <= after.start + 1e-12 for before, after in pairwise(spans)), (
        "nothing covers anything"
    )
    assert len({span.activity for span in spans[len(spans) // 3 : len(spans) // 2]}) > 1, (
        "forward and backward take turns"
    )


@pytest.mark.parametrize("stack", ["megatron-core", "pocket"])
def test_a_plans_picture_tells_the_halves_of_the_backward_pass_apart(stack):
    """Zero bubble (2401.10241) puts weights' gradients where ranks would wait; 1F1B has whole passes."""
    drawn = {}
    for schedule in ("1f1b", "zb-h1"):
        few = job(stack=find_stack(stack), global_batch=16)
        found = predict(few, Plan(pp=4, dp=2, schedule=schedule, zero=1))
        drawn[schedule] = {span.activity for span in timeline_of(found).lanes[0].spans}
    assert {"forward", "backward"} <= drawn["1f1b"] and not {"input", "weight"} & drawn["1f1b"]
    assert {"forward", "input", "weight"} <= drawn["zb-h1"] and "backward" not in drawn["zb-h1"]


def test_zero_2_reduces_every_microbatch_in_a_pipeline_and_zero_1_the_last_alone():
    plan = Plan(pp=2, dp=32, recompute="full")
    seconds = {
        (zero, batch): time_step(job(sequence=2048, global_batch=batch), replace(plan, zero=zero)).breakdown[
            "dp"
        ]
        for zero in (1, 2)
        for batch in (1024, 4096)
    }
    assert seconds[1, 4096] == pytest.approx(seconds[1, 1024])
    assert seconds[2, 4096] > 3 * seconds[2, 1024]


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "interleaved", "zb-h1", "zb-v", "dualpipev"])
@pytest.mark.parametrize("bandwidth", [1.0, 0.05])
def test_no_rank_ends_before_its_line_has_reduced_every_microbatch(schedule, bandwidth):
    hardware = find_hardware("h100")
    across = replace(
        hardware.across,
        bandwidth_bytes_per_second=bandwidth * hardware.across.bandwidth_bytes_per_second,
    )
    chunks = 1 if RECIPES[schedule].chunks == 1 else 2
    plan = Plan(tp=8, pp=4, dp=8, zero=2, schedule=schedule, chunks=chunks)
    there = job(hardware=replace(hardware, across=across), global_batch=256)
    gradients = elements_of(there, plan, "dense")[0] * there.stack.gradient_bytes * there.shape.layers / 4
    line = 7 / 8 * gradients / across.bandwidth_bytes_per_second
    step = predict(there, plan).seconds
    assert step > max(predict(there, replace(plan, zero=1)).seconds, 32 * line)
    assert lower_bound(there, plan).seconds[0] <= step


@pytest.mark.parametrize("zero", [1, 2])
def test_a_pipeline_is_timed_once_and_again_only_for_where_its_time_goes(monkeypatch, zero):
    timed: list[Durations] = []
    ends_of = Replay.ends_of

    def counted(replay, clocks, durations):
        timed.append(durations)
        return ends_of(replay, clocks, durations)

    monkeypatch.setattr(Replay, "ends_of", counted)
    step = time_step(job(), Plan(tp=8, pp=4, dp=2, zero=zero))
    assert len(timed) == 1
    assert sum(step.breakdown.values()) == pytest.approx(step.seconds, rel=1e-12)
    assert len(timed) == 1 + zero  # without messages; ZeRO-2 also without what it reduces


@pytest.mark.parametrize(
    "plan",
    [
        Plan(dp=4, zero=3),
        Plan(pp=4),
        Plan(pp=4, chunks=2, schedule="dualpipev"),
        Plan(pp=4, schedule="zb-2p"),
    ],
)
def test_a_prediction_travels_to_another_process_and_says_the_same_there(plan):
    found = predict(job(), plan)
    there = pickle.loads(pickle.dumps(found))
    assert there is not found and there.as_dict() == found.as_dict()


def test_a_prediction_of_the_lessons_own_runs_travels_too():
    found = predict(replace(job(), stack=find_stack("pocket")), Plan(dp=2))
    assert pickle.loads(pickle.dumps(found)).as_dict() == found.as_dict()
