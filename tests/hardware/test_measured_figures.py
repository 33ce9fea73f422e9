"""Figures that a machine's own file may hold beside a data sheet's: launches by mode, collectives with links
of their own, what they take from compute, and the optimizer's rate."""

from dataclasses import replace

import pytest

from ndparallel.base.errors import UserError
from ndparallel.hardware.accelerator import Accelerator, accelerator
from ndparallel.hardware.collective_links import on_links_of
from ndparallel.planner.groups import GroupLinks
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.layers.collective_time import START_SECONDS, collective_seconds
from ndparallel.planner.layers.pricing import Pricing
from ndparallel.planner.models.shape import ModelShape
from ndparallel.planner.prediction import predict
from ndparallel.planner.software import find_stack
from ndparallel.search.bounds.lower_bound import lower_bound

SMALL = ModelShape("small", layers=4, hidden=64, heads=1, kv_heads=1, ffn=176, vocab=256, head_dim=64)
GATHER = {"latency_inside": "100 us", "bandwidth_inside": "2 GB/s"}


def own(**figures) -> Accelerator:
    return accelerator("own", {"based_on": "h100", "latency_inside": "8 us", **figures})


def job(hardware: Accelerator, software: str = "pytorch", **changes) -> TrainingJob:
    return TrainingJob(SMALL, hardware, replace(find_stack(software), **changes), 64, 8)


@pytest.mark.parametrize(("mode", "software"), [("eager", "pytorch"), ("compiled", "pytorch-compiled")])
def test_a_plan_bound_by_launches_takes_the_seconds_of_its_mode(mode, software):
    """A layer so small takes what the CPU launches, whatever the GPU does meanwhile."""
    seconds = {"eager": "200 us", "compiled": "50 us"}
    once, twice = (
        Pricing(job(own(host_launch=given), software), Plan()).unit("dense").total.total
        for given in (seconds, seconds | {mode: f"{2 * float(seconds[mode].split()[0])} us"})
    )
    assert twice == pytest.approx(2 * once, rel=0.01)  # a launch in C++ is as quick as it was


def test_of_a_mode_without_a_figure_the_published_multiple_of_eager_counts():
    one, table = (job(own(host_launch=given), "pytorch-compiled") for given in ("40 us", {"eager": "40 us"}))
    assert predict(one, Plan(micro_batch=8)).seconds == predict(table, Plan(micro_batch=8)).seconds


def test_where_every_kernel_waits_for_its_launch_compiled_ones_wait_shorter():
    """On a CPU, kernel_overhead is the launch: a quarter of it is a quarter of a step of nothing else."""
    figures = {"host_launch": "0 s", "kernel_overhead": {"eager": "1 s", "compiled": "250 ms"}}
    eager, compiled = (job(own(**figures), launching=mode) for mode in ("eager", "compiled"))
    seconds = [Pricing(each, Plan()).unit("dense").total.total for each in (eager, compiled)]
    assert seconds[1] / seconds[0] == pytest.approx(0.25, rel=1e-3)


@pytest.mark.parametrize("key", ["latency_inside", "bandwidth_inside", "latency_across", "bandwidth_across"])
def test_what_was_not_measured_of_a_collectives_links_is_the_hardwares(key):
    def figures(machine):
        links = {"inside": machine.inside, "across": machine.across}
        return {
            f"{name.split('_')[0]}_{where}": value
            for where, link in links.items()
            for name, value in vars(link).items()
        }

    hardware = own(collectives={"all_gather": {key: "1 ms" if "latency" in key else "3 GB/s"}})
    measured = figures(on_links_of(hardware, "all_gather"))
    assert measured == pytest.approx(figures(hardware) | {key: 1e-3 if "latency" in key else 3e9})


def test_a_collective_that_was_measured_has_its_own_links_and_no_start_of_nccls():
    hardware, p, size = own(collectives={"all_gather": GATHER}), 4, 8e6
    links = GroupLinks(p, 1, hardware)
    ring = (p - 1) * (100e-6 + size / p / 2e9)
    assert collective_seconds("all_gather", size, links) == pytest.approx(ring)
    as_all = START_SECONDS + (p - 1) * (8e-6 + size / p / hardware.inside.bandwidth_bytes_per_second)
    assert collective_seconds("reduce_scatter", size, links) == pytest.approx(as_all)


def test_a_link_that_is_made_twice_as_fast_is_so_for_what_was_measured_on_it():
    hardware = own(collectives={"all_gather": GATHER | {"latency_inside": "1 ps"}})
    link = hardware.inside
    faster = replace(
        hardware, inside=replace(link, bandwidth_bytes_per_second=2 * link.bandwidth_bytes_per_second)
    )
    slow, fast = (
        collective_seconds("all_gather", 1e9, GroupLinks(8, 1, each)) for each in (hardware, faster)
    )
    assert slow / fast == pytest.approx(2)


def test_compute_beside_a_collective_is_so_much_slower_as_was_measured():
    plan = Plan(dp=8, micro_batch=1, zero=3)
    steps = [predict(job(own(slowdown=slowdown)), plan).seconds for slowdown in (0, 0.189, 5)]
    assert steps[0] < steps[1] < steps[2]
    assert predict(job(own()), plan).seconds == steps[1]
    for slowdown in (0, 5):
        assert lower_bound(job(own(slowdown=slowdown)), plan).seconds <= steps[0 if not slowdown else 2] * (
            1 + 1e-9
        )


def test_an_optimizer_that_reaches_half_of_memorys_rate_takes_twice_as_long():
    whole, half = (
        predict(
            job(own(optimizer_fraction=share, kernel_overhead="0 s")), Plan(micro_batch=8)
        ).step.breakdown["optimizer"]
        for share in (1, 0.5)
    )
    assert half == pytest.approx(2 * whole)


@pytest.mark.parametrize(
    ("figures", "sentence"),
    [
        ({"host_launch": {"compiled": "5 us"}}, "host_launch must say eager"),
        ({"host_launch": {"eager": "5 us", "graph": "1 us"}}, "'graph'"),
        ({"kernel_overhead": {"eager": "0 s"}}, "kernel_overhead.eager must be above 0"),
        ({"collectives": {"gather": GATHER}}, "'gather'"),
        ({"collectives": {"all_gather": {"latency": "1 us"}}}, "'latency'"),
        ({"collectives": {"all_gather": "1 GB/s"}}, "must be a table of collectives"),
        (
            {"collectives": {"all_gather": GATHER}, "latency_inside": "0 s"},
            "needs a link whose latency_inside",
        ),
        ({"slowdown": -1}, "slowdown must be a number from"),
    ],
)
def test_a_wrong_figure_is_one_sentence(figures, sentence):
    with pytest.raises(UserError, match=sentence):
        own(**figures)


@pytest.mark.parametrize("figure", ["slowdown", "optimizer_fraction"])
def test_nothing_is_slowed_down_or_sped_up_more_than_a_thousand_times(figure):
    assert own(**{figure: 1000})
    with pytest.raises(UserError, match=figure):
        own(**{figure: 1000.5})
