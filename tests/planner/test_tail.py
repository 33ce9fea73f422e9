"""Claims about which pipeline rank is done last."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ndparallel.hardware.accelerator import find_hardware
from ndparallel.pipeline.replay import Ends
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.models.shape import ModelShape
from ndparallel.planner.prediction import time_step, workload_of
from ndparallel.planner.software import find_stack
from ndparallel.planner.step.framework import FrameworkWorkload
from ndparallel.planner.step.stage_messages import tied_sum
from ndparallel.planner.step.tail import ROUNDING, Tails

LLAMA = ModelShape("llama", 32, 4096, 32, 8, 128, 14336, 128256)
SOFTWARE = ["megatron-core", "megatron-2022", "deepspeed", "torchtitan"]


def tails_of(plan: Plan, tied: bool, software: str, seed: int, spread: float) -> Tails:
    """Tails behind ends that are drawn: as if any schedule had been timed."""
    job = TrainingJob(
        replace(LLAMA, tied_embeddings=tied), find_hardware("h100"), find_stack(software), 4096, 256
    )
    draw = np.random.default_rng(seed)
    complete = draw.uniform(0, 1, plan.stages).tolist()
    last = [max(complete[stage] for stage in plan.layout.stages_of(rank)) for rank in range(plan.pp)]
    end = [moment + spread * later for moment, later in zip(last, draw.uniform(0, 1, plan.pp))]
    reduced = [moment + later for moment, later in zip(end, draw.uniform(-0.1, 0.1, plan.pp))]
    return Tails(workload_of(job, plan), Ends([0.0] * plan.pp, end, complete, reduced))


@given(
    st.sampled_from([2, 4, 8]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([(0, 8), (1, 8), (1, 2), (2, 4), (3, 8)]),
    st.booleans(),
    st.sampled_from(SOFTWARE),
    st.integers(0, 9999),
    st.sampled_from([0.0, 0.01, 1.0]),
)
def test_the_rank_that_is_done_last_is_found_without_the_tails_of_all(
    pp, chunks, sharding, tied, software, seed, spread
):
    zero, dp = sharding
    schedule = "interleaved" if chunks > 1 else "1f1b"
    plan = Plan(pp=pp, chunks=chunks, dp=dp, zero=zero, schedule=schedule)
    tails, every = (tails_of(plan, tied, software, seed, spread) for _ in range(2))
    at_most = [ROUNDING * every.at_most(rank) for rank in range(pp)]
    assert all(every[rank].total <= most for rank, most in enumerate(at_most))
    done = [end + every[rank].total for rank, end in enumerate(every.ends.end)]
    assert tails.last == np.argmax(done)
    assert tails[tails.last] == every[tails.last]


def test_ranks_that_end_long_before_the_last_are_not_timed():
    tails = tails_of(Plan(pp=4, dp=8, zero=1), False, "megatron-core", 0, 0.0)
    end = [9.0, 6.0, 3.0, 1.0]
    early = Tails(tails.work, tails.ends._replace(end=end, complete=end))
    assert early.last == 0
    assert len(early.known) == 1


def test_what_an_end_of_the_pipeline_waits_for_the_other_before_a_tied_table_is_summed_is_bubble():
    """The head, whose rank ends first, waits for the embedding: no link would make that shorter."""
    tails = tails_of(Plan(pp=4, dp=8, zero=1), True, "megatron-core", 0, 0.0)
    end = [9.0, 6.0, 3.0, 1.0]
    synced = Tails(tails.work, tails.ends._replace(end=end, complete=end)).synced
    spent = [synced[rank].spent for rank in (0, 3)]
    assert isinstance(tails.work, FrameworkWorkload)
    sums = tails.work.pricing.seconds_alone(tied_sum(tails.work.pricing))
    assert [each["pp"] for each in spent] == pytest.approx([sums, sums])
    assert spent[0]["bubble"] == 0
    assert spent[1]["bubble"] == pytest.approx(8, abs=0.1)


@pytest.mark.parametrize(
    ("plan", "is_beside"),
    [
        (Plan(dp=16, zero=0), False),
        (Plan(dp=16, zero=1), True),
        (Plan(dp=16, zero=2), True),
        (Plan(dp=4, pp=4, zero=1), False),
    ],
)
def test_deepspeed_reduces_gradients_beside_a_backward_pass_with_zero_and_without_a_pipeline(plan, is_beside):
    """allreduce_gradients and _configure_zero_optimizer in deepspeed/runtime/engine.py."""
    deepspeed = find_stack("deepspeed")
    said, beside, behind = (
        time_step(TrainingJob(LLAMA, find_hardware("h100"), stack, 4096, 256), plan).seconds
        for stack in (
            deepspeed,
            replace(deepspeed, dp_overlap_by_zero=False),
            replace(deepspeed, dp_overlap=False),
        )
    )
    assert beside < behind
    assert said == (beside if is_beside else behind)
