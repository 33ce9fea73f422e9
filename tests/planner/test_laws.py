"""Laws that hold for every legal plan of every job: of hardware, of memory, and of how a job is written."""

import json
from collections.abc import Iterable
from dataclasses import replace
from functools import reduce
from itertools import pairwise
from math import fsum
from operator import add
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ndparallel.commands.command_line import main
from ndparallel.hardware.accelerator import Accelerator, data_sheets
from ndparallel.hardware.accelerator import accelerator as read_accelerator
from ndparallel.pipeline.catalog import RECIPES
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.layers.pricing import Pricing
from ndparallel.planner.legality import why_not
from ndparallel.planner.models.presets import find_model
from ndparallel.planner.picture import MOST_MICROBATCHES, timeline_of
from ndparallel.planner.prediction import predict, time_step
from ndparallel.planner.software import find_stack
from ndparallel.search.bounds.lower_bound import lower_bound
from tests.support.accelerators import accelerator
from tests.support.random_plans import SCHEDULES, plans, scaled

ROUNDING = 1e-9
UNPAIRED = [name for name in SCHEDULES if name != "dualpipev"]
UNSPLIT = [name for name in SCHEDULES if not RECIPES[name].splits]


def more_of_each(hardware: Accelerator, factor: float) -> list[Accelerator]:
    """The hardware with more FLOP/s, more bandwidth of one kind, or less latency of one kind."""
    peaks = {dtype: rate * factor for dtype, rate in hardware.peak_flops_per_second.items()}
    memory = hardware.memory_bandwidth_bytes_per_second * factor
    return [
        replace(hardware, peak_flops_per_second=peaks),
        replace(hardware, memory_bandwidth_bytes_per_second=memory),
        replace(hardware, inside=scaled(hardware.inside, bandwidth=factor)),
        replace(hardware, across=scaled(hardware.across, bandwidth=factor)),
        replace(hardware, inside=scaled(hardware.inside, latency=1 / factor)),
        replace(hardware, across=scaled(hardware.across, latency=1 / factor)),
    ]


def worst_of(job: TrainingJob, plan: Plan, factor: float) -> float:
    """The longest step on better hardware, in steps on the job's own."""
    assert isinstance(job.hardware, Accelerator)
    better = [replace(job, hardware=hardware) for hardware in more_of_each(job.hardware, factor)]
    return max(time_step(each, plan).seconds for each in better) / time_step(job, plan).seconds


def without_launches(job: TrainingJob) -> TrainingJob:
    assert isinstance(job.hardware, Accelerator)
    return replace(job, hardware=replace(job.hardware, host_launch_seconds=0.0))


# ------------------------------------------------------------------------------------------------- hardware


@settings(max_examples=40)
@given(plans(schedules=UNSPLIT), st.floats(1, 10))
def test_better_hardware_never_makes_a_step_longer(there, factor):
    job, plan = there
    assert worst_of(without_launches(job), plan, factor) <= 1 + ROUNDING


@settings(max_examples=40)
@given(plans(schedules=UNPAIRED), st.floats(1, 10))
def test_nor_does_it_by_more_than_a_hundredth_where_launches_bound_passes_or_schedules_split_them(
    there, factor
):
    """The next tests show why it may be longer at all."""
    job, plan = there
    assert worst_of(job, plan, factor) <= 1.01


def test_where_launches_bound_a_product_faster_memory_shows_more_of_the_sum_beside_it():
    """The gradient of the head's weights takes as long as its launches, whatever the GPU needs; and the sum
    over tp hides behind what the GPU needs alone."""
    gpu = accelerator("gb300")
    hardware = replace(gpu, inside=scaled(gpu.inside, latency=5))
    sizes: dict[str, Any] = {"layers": 4, "hidden": 1024, "heads": 8, "kv_heads": 1, "ffn": 2048}
    shape = replace(find_model("llama-3-8b"), **sizes)
    job, plan = TrainingJob(shape, hardware, find_stack("megatron-core"), 256, 32), Plan(tp=8, cp=4)
    assert 1 + ROUNDING < worst_of(job, plan, 3) < 1.001
    assert worst_of(without_launches(job), plan, 3) <= 1 + ROUNDING


def test_where_a_schedule_splits_passes_faster_products_make_the_first_half_longer():
    """The sum over tp hides behind the weights' gradients, and shows in the half that others wait for. All
    of a microbatch is shorter."""
    gpu = accelerator("h20")
    slow_links = replace(gpu, inside=scaled(gpu.inside, bandwidth=0.1))
    plan = Plan(tp=8, pp=2, dp=2, schedule="zb-h1", sequence_parallel=True)
    (inputs, every), (more, fewer) = (
        backward_and_all(TrainingJob(find_model("llama-3-8b"), each, find_stack("nemo"), 1024, 32), plan)
        for each in (slow_links, more_of_each(slow_links, 2)[0])
    )
    assert more > inputs and fewer < every


def backward_and_all(job: TrainingJob, plan: Plan) -> tuple[float, float]:
    """Seconds of a layer's I, and of its F, I and W."""
    unit = Pricing(without_launches(job), plan).unit("dense")
    parts = unit.forward.total, unit.backward_input.total, unit.backward_weight.total
    return parts[1], sum(parts)


@settings(max_examples=40)
@given(plans(tp=1, pp=1, cp=1, ep=1, chunks=1, schedule="1f1b", sequence_parallel=False, zero=0))
def test_twice_the_gpus_on_twice_the_batch_never_take_less_than_one_gpu_that_sums_nothing(there):
    job, plan = there
    one, two = replace(plan, dp=1), replace(plan, dp=2)
    twice = replace(job, global_batch=2 * job.global_batch)
    assert time_step(twice, two).seconds >= time_step(job, one).seconds * (1 - ROUNDING)


# ----------------------------------------------------------------------------------------------- the pipeline


@settings(max_examples=40)
@given(plans(schedules=["1f1b"], pp=4, micro_batch=2))
def test_more_microbatches_of_one_batch_never_raise_the_share_of_1f1bs_bubble(there):
    job, plan = there
    shares = [
        step.breakdown["bubble"] / step.seconds
        for step in (time_step(job, replace(plan, micro_batch=size)) for size in (2, 1))
    ]
    assert shares[1] <= shares[0] + ROUNDING


@settings(max_examples=60)
@given(plans())
def test_a_bound_of_the_search_is_never_above_the_step_that_it_bounds(there):
    job, plan = there
    assert 0 < lower_bound(job, plan).seconds[0] <= time_step(job, plan).seconds * (1 + ROUNDING)


@settings(max_examples=100)
@given(plans())
def test_a_picture_ends_when_the_step_does(there):
    found = predict(*there)
    if found.plan.pp > 1 or found.microbatches <= MOST_MICROBATCHES:
        assert timeline_of(found).seconds == pytest.approx(found.seconds, rel=1e-9)


@settings(max_examples=15)
@given(plans())
def test_no_second_and_no_byte_depends_on_how_a_python_adds_floats(there):
    """From 3.12 on `sum` carries along what each addition loses: nearly what fsum does."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("builtins.sum", the_same_in_every_python)
        predict(*there)


def the_same_in_every_python(numbers: Iterable[Any], /, start: Any = 0) -> Any:
    numbers = [start, *numbers]
    found = reduce(add, numbers)
    assert type(found) is not float or found == fsum(numbers)
    return found


# ------------------------------------------------------------------------------------------------- the memory


def by(job: TrainingJob, plan: Plan, field: str, values: tuple[Any, ...]) -> dict[Any, Plan]:
    """The plan with each of these values that is legal."""
    each = {value: replace(plan, **{field: value}) for value in values}
    return {value: one for value, one in each.items() if not list(why_not(job, one))}


@settings(max_examples=60)
@given(plans(zero=0))
def test_a_stage_of_zero_more_never_holds_more_on_any_rank(there):
    """Into its buffers FSDP gathers what a lower stage holds whole. DeepSpeed casts gradients while it steps:
    each without ZeRO, all at once with it."""
    job, plan = there
    by_rank = zip(*(predict(job, one).memory for one in by(job, plan, "zero", (0, 1, 2, 3)).values()))
    casts, shares = job.stack.casts_gradients, plan.dp * plan.cp > 1
    for held in by_rank:
        states = [one.weights + one.optimizer + one.gradients * (not casts) for one in held]
        others = [one.total - one.buffers - one.free_blocks for one in held[:3]] * shares
        for some in (states, others):
            assert all(more <= before * (1 + ROUNDING) for before, more in pairwise(some))


@settings(max_examples=60)
@given(plans(schedules=UNPAIRED))
def test_recomputation_never_raises_any_ranks_memory_and_never_lowers_flops_or_seconds(there):
    job, plan = there
    none, *others = (
        predict(job, one) for one in by(job, plan, "recompute", ("none", "selective", "full")).values()
    )
    for some in others:
        assert all(less.total <= more.total * (1 + ROUNDING) for less, more in zip(some.memory, none.memory))
        assert some.seconds >= none.seconds * (1 - ROUNDING)
        assert some.hfu * some.seconds >= none.hfu * none.seconds * (1 - ROUNDING)


@settings(max_examples=60)
@given(plans())
def test_seconds_and_bytes_are_the_sums_of_the_parts_that_are_printed(there):
    found = predict(*there).as_dict()
    assert sum(found["breakdown_seconds"].values()) == pytest.approx(found["step_seconds"])
    for stage in found["memory_bytes_per_stage"]:
        assert sum(stage.values()) == pytest.approx(2 * stage["total"])
    fullest = max(stage["total"] for stage in found["memory_bytes_per_stage"])
    assert found["memory_allocated_bytes"] <= found["memory_reserved_bytes"] <= fullest


# ------------------------------------------------------------------------------ how a job and a plan are said

UNITS = {"TB/s": 1e12, "GB/s": 1e9, "MB/s": 1e6, "Gbit/s": 1e9 / 8}
LINKS = {"memory_bandwidth": 3.35e12, "bandwidth_inside": 450e9, "bandwidth_across": 50e9}


@settings(max_examples=20)
@given(st.permutations([*LINKS]), st.lists(st.sampled_from([*UNITS]), min_size=3, max_size=3))
def test_neither_the_order_of_a_files_keys_nor_their_units_change_the_hardware(keys, units):
    said = {key: f"{LINKS[key] / UNITS[unit]!r} {unit}" for key, unit in zip(keys, units)}
    read, plain = (
        read_accelerator("h100", data_sheets()["h100"] | table)
        for table in (said, {key: f"{rate!r} B/s" for key, rate in LINKS.items()})
    )
    assert read.inside.bandwidth_bytes_per_second == pytest.approx(plain.inside.bandwidth_bytes_per_second)
    job, plan = TrainingJob(find_model("llama-3-8b"), plain, find_stack("nemo"), 4096, 64), Plan(tp=2, dp=8)
    seconds = [time_step(replace(job, hardware=each), plan).seconds for each in (read, plain)]
    assert seconds[0] == pytest.approx(seconds[1], rel=1e-12)


OPTIONS = {"--gpus": 16, "--global-batch": 32, "--tp": 2, "--zero": 1, "--recompute": "full"}


@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.permutations([*OPTIONS]))
def test_the_order_of_options_does_not_change_a_prediction(capsys, order):
    def said(options):
        words = (str(word) for option in options for word in (option, OPTIONS[option]))
        assert main(["plan", "--model", "llama-3-8b", "--json", *words]) == 0
        return json.loads(capsys.readouterr().out)

    assert said(order) == said(OPTIONS)


ROUND_TRIPS = [
    "--model llama-3-8b --tp 2 --pp 2 --zero 1",
    "--model llama-3-70b --tp 2 --pp 4 --chunks 5 --zero 1 --recompute full --micro-batch 2",
    "--model mixtral-8x7b --tp 2 --ep 8 --zero 1 --pp 2",
    "--model llama-2-70b --tp 2 --pp 4 --cp 2",
    "--model llama-3-70b --tp 8 --zero 1",  # whose vocabulary is padded
]


@pytest.mark.parametrize("options", ROUND_TRIPS)
def test_a_plans_json_as_a_measured_run_is_predicted_to_the_same_seconds(options, capsys, tmp_path):
    job = "--gpus 64 --global-batch 64 --sequence 4096 --software megatron-core --hardware h100 --json"
    assert main(["plan", *options.split(), *job.split()]) == 0
    told = json.loads(capsys.readouterr().out)
    (file := tmp_path / "runs.json").write_text(json.dumps([as_run(options.split()[1], told)]))
    assert main(["validate", "--cases", str(file), "--json"]) == 0
    (run,) = json.loads(capsys.readouterr().out)["cases"]
    assert run["predicted_seconds"] == pytest.approx(told["step_seconds"], rel=1e-12)


def as_run(model: str, told: dict[str, Any]) -> dict[str, Any]:
    """What `plan --json` tells, as a run that was measured to take as long."""
    plan, shape = told["plan"], find_model(model)
    return {
        "id": model,
        "gpus": told["gpus"],
        "hardware": {"gpu": "H100-80GB-SXM"},
        "software": {"framework": "Megatron-Core"},
        "model": {"name": model, "layers": shape.layers, "vocab": shape.vocab},
        "parallel": {axis: plan[axis] for axis in ("tp", "pp", "dp", "ep", "cp", "zero")}
        | {"vp": plan["chunks"], "sp": plan["sequence_parallel"], "schedule": plan["schedule"]},
        "batch": {"micro": plan["micro_batch"], "global": 64, "sequence": 4096},
        "recompute": plan["recompute"],
        "precision": "bf16",
        "measured": {"step_seconds": told["step_seconds"]},
    }
