"""Claims about disturbances: a slow GPU, a slow link and jitter cost exactly what they say, on every engine,
and change nothing else."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectives import ALGORITHMS, Group
from gpu import COMPUTE, GPU, Mailboxes, Operation
from ndparallel.base.errors import UserError
from ndparallel.collective.prices import closed_form_seconds, price
from ndparallel.hardware.disturbances import Disturbances
from ndparallel.hardware.pocket import POCKET
from ndparallel.lessons.main import main
from ndparallel.lessons.registry import load
from ndparallel.lessons.runner import Runner, entry_of
from ndparallel.training.job import Job
from tests.collective.test_lockstep import EXACT, in_lockstep
from tests.support.collective_programs import LINKS, Case, execute, hardware, sequences
from tests.support.common import SMALL, measured, run, strategy

JOB = Job(model=SMALL)
TWICE = Disturbances(slow_gpus=((2, 2.0),))


def seconds_of_compute(result):
    return sum(event[5] - event[4] for event in result.events if event[2] == COMPUTE)


def test_a_slow_gpu_computes_twice_as_long_the_others_as_before_and_all_compute_the_same_numbers():
    ddp = strategy("1d_data_parallel", "DDP ring")
    before, after = run(ddp, JOB, 4), run(ddp, JOB, 4, replace(POCKET, disturbances=TWICE))
    factors = [seconds_of_compute(b) / seconds_of_compute(a) for a, b in zip(before, after, strict=True)]
    assert factors == pytest.approx([1, 1, 2, 1], rel=1e-9)
    assert [result.value.losses for result in before] == [result.value.losses for result in after]


def test_what_a_slow_gpu_costs_ring_ddp_is_that_gpus_compute_and_a_pipeline_that_hides_some_of_it_less():
    """DDP waits for the slowest: its step grows by one GPU's compute. In a pipeline the other stages' bubbles
    take some of that in."""
    before, after = (
        measured("1d_data_parallel", "DDP ring", JOB, 4, replace(POCKET, disturbances=d))
        for d in (None, TWICE)
    )
    assert after.step_seconds - before.step_seconds == pytest.approx(before.compute_seconds, rel=0.02)
    job = Job(model=replace(SMALL, layers=4), microbatches=8)
    before, after = (
        measured("3d_pipeline_parallel", "1F1B", job, 4, replace(POCKET, disturbances=d))
        for d in (None, TWICE)
    )
    assert 0 < after.step_seconds - before.step_seconds < 0.9 * before.step_seconds


def test_over_a_slow_link_of_two_ranks_a_ring_sends_each_half_f_times_as_long():
    """2 (p-1) = 2 hops of a + f b / 2."""
    machine = replace(hardware(inside=(0.25, 1.0)), disturbances=Disturbances(slow_links=((1, 0, 3.0),)))
    (first, _) = execute(machine, Case("all_reduce", "ring", (0, 1), 2, "float64"))
    assert first.end_seconds == 2 * (0.25 + 3 * 16 / 2)


SLOW_LINKS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(4, 7), st.sampled_from([1.5, 4.0])), min_size=1, max_size=3
)


@given(sequences(most=2), LINKS, LINKS, SLOW_LINKS)
@settings(max_examples=60, deadline=None)
def test_lockstep_equals_the_executed_clock_on_slow_links(drawn, inside, across, slow_links):
    gpus_per_node, cases = drawn
    machine = replace(
        hardware(gpus_per_node, inside, across), disturbances=Disturbances(slow_links=tuple(slow_links))
    )
    _, times = in_lockstep(machine, cases)
    results = execute(machine, *cases)
    for member, rank in enumerate(cases[0].ranks):
        np.testing.assert_allclose(
            [time[member] for time in times], [time for _, time in results[rank].value], **EXACT
        )


def test_no_closed_form_is_a_price_where_a_slow_link_is_in_the_group_and_all_are_where_it_is_not():
    machine = replace(hardware(), disturbances=Disturbances(slow_links=((0, 5, 4.0),)))
    for collective, algorithm in (
        (collective, name) for collective, names in ALGORITHMS.items() for name in names
    ):
        here, elsewhere = Group("here", tuple(range(8))), Group("elsewhere", tuple(range(8, 16)))
        assert closed_form_seconds(collective, algorithm, here, machine, 1e6) is None
        assert closed_form_seconds(collective, algorithm, elsewhere, machine, 1e6) is not None
        assert price(collective, algorithm, here, machine, 10**6) > price(
            collective, algorithm, here, hardware(), 10**6
        ) * (1 - 1e-9)


# ----------------------------------------------------------------------------------------------------- jitter


def factors(disturbances, rank, stream, count):
    slowdown = disturbances.slowdown(rank)
    return [slowdown(stream) for _ in range(count)]


def test_jitter_is_lognormal_of_mean_1_with_the_spread_that_was_asked_for():
    drawn = np.log(factors(Disturbances(jitter=0.3), 0, COMPUTE, 20_000))
    variance = np.log(1 + 0.3**2)
    assert drawn.mean() == pytest.approx(-variance / 2, abs=4 * np.sqrt(variance / 20_000))
    assert drawn.std() == pytest.approx(np.sqrt(variance), rel=0.03)
    # no skew but the mean's
    assert np.mean(drawn**3) / drawn.std() ** 3 == pytest.approx(3 * drawn.mean() / drawn.std(), abs=0.1)


def test_jitter_depends_on_seed_rank_stream_and_number_and_on_nothing_else():
    keys = itertools.product((0, 1), (0, 1), (COMPUTE, "dp"))
    series = {
        (seed, rank, stream): tuple(factors(Disturbances(jitter=0.1, seed=seed), rank, stream, 300))
        for seed, rank, stream in keys
    }
    assert len(set(series.values())) == 8
    slowdown = Disturbances(jitter=0.1).slowdown(1)
    assert slowdown
    interleaved = [(slowdown(COMPUTE), slowdown("dp")) for _ in range(300)]
    assert list(zip(*interleaved)) == [series[0, 1, COMPUTE], series[0, 1, "dp"]]


def test_every_kernel_of_the_same_price_takes_its_own_time():
    gpu = GPU(0, replace(POCKET, disturbances=Disturbances(jitter=0.1)), Mailboxes().of(0))
    for _ in range(50):
        gpu.compute(Operation("work", flops=1e9))
    assert len({event[5] - event[4] for event in gpu.events}) == 50


# ------------------------------------------------------------------------------------------------ the options


def output(capsys, lesson, *options):
    assert main(load(lesson), [*options, "--timeline", "none"]) == 0
    return capsys.readouterr().out


ALL = ("--slow-gpu", "1:1.5", "--slow-link", "2-3:4", "--jitter", "10", "--batch", "4")
TWO = ("--strategy", "DDP ring", "--strategy", "FSDP prefetch")


def test_disturbed_runs_are_the_same_to_the_last_digit_on_both_engines(capsys):
    texts = {
        output(capsys, "1d_data_parallel", "--json", *ALL, *TWO, "--engine", engine)
        for engine in ("inline", "processes")
    }
    assert len(texts) == 1
    document = json.loads(texts.pop())
    assert document["hardware"]["disturbances"] == {
        "slow_gpus": [{"gpu": 1, "factor": 1.5}],
        "slow_links": [{"gpus": [2, 3], "factor": 4.0}],
        "jitter_percent": 10,
        "seed": 0,
    }
    assert all(row["step_seconds"] > row["undisturbed_step_seconds"] for row in document["strategies"])


def test_without_disturbances_the_json_has_no_word_of_them(capsys):
    assert "disturb" not in output(
        capsys, "1d_data_parallel", "--json", *TWO, "--engine", "inline", "--jitter", "0"
    )


def test_the_single_gpu_beside_a_strategy_is_not_disturbed_and_as_a_strategy_it_is(capsys):
    slow = ("--slow-gpu", "0:2", "--json", "--engine", "inline")
    (parallel,) = json.loads(output(capsys, "1d_data_parallel", *slow, "--strategy", "DDP ring"))[
        "strategies"
    ]
    (alone,) = json.loads(output(capsys, "0d_single_gpu", *slow, "--strategy", "single GPU"))["strategies"]
    baseline_seconds = parallel["speedup"] * parallel["step_seconds"]
    assert alone["step_seconds"] == pytest.approx(2 * baseline_seconds, rel=1e-12)
    assert alone["speedup"] == pytest.approx(0.5)


def test_the_table_says_who_suffers_most_and_which_slow_link_nobody_uses(capsys):
    text = " ".join(
        output(capsys, "1d_data_parallel", "--slow-link", "0-2:4", "--engine", "inline", *TWO).split()
    )
    assert "What it costs: link 0-2 4x slower." in text and "All take 1.00x as long." in text
    assert "No message goes over link 0-2, so that it slows nobody." in text
    text = output(
        capsys, "1d_data_parallel", "--slow-gpu", "0:2", "--engine", "inline", *TWO, "--strategy", "DDP naive"
    )
    assert "FSDP prefetch suffers most (1.99x), DDP naive least (1.8" in text


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("--slow-gpu", "9:2", "there is no GPU 9; what runs here has GPUs 0 to 3"),
        ("--slow-gpu", "two", "write RANK:FACTOR"),
        ("--slow-gpu", "1:0.5", "a number from 1 to 1,000,000"),
        ("--slow-gpu", "1:nan", "a number from 1 to 1,000,000"),
        ("--slow-gpu", "1", "a number from 1 to 1,000,000"),
        ("--slow-link", "0:2", "write A-B:FACTOR"),
        ("--slow-link", "1-1:2", "no link to itself"),
        ("--slow-link", "0-4:2", "there is no GPU 4"),
        ("--slow-link", "0-1:inf", "a number from 1 to 1,000,000"),
        ("--jitter", "nan", "give 0 to 1000"),
    ],
)
def test_what_is_no_disturbance_is_one_sentence(capsys, option, value, says):
    assert main(load("1d_data_parallel"), [option, value, "--engine", "inline", *TWO]) == 2
    captured = capsys.readouterr()
    assert (
        captured.out == ""
        and captured.err.count("\n") == 1
        and says in captured.err
        and value in captured.err
    )


def test_a_gpu_that_no_run_of_a_sweep_has_is_told_when_it_is_over():
    disturbed = Runner(replace(POCKET, disturbances=TWICE), "inline")
    with (
        pytest.raises(UserError, match="there is no GPU 2; what runs here has GPUs 0 to 1"),
        disturbed as runner,
    ):
        runner.measured(entry_of(strategy("1d_data_parallel", "DDP ring"), JOB, 2))
