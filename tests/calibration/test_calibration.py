"""The arithmetic of calibration, on measurements that were made up or recorded: no test measures."""

import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from ndparallel.base.errors import UserError
from ndparallel.calibration.kernels import Kernel, has_compiler
from ndparallel.calibration.links import BYTES, MeasuredTransfer
from ndparallel.calibration.steps import GRIDS, as_runs, grid, hardware_here, step_rows
from ndparallel.calibration.table import FittedLink, ThisMachine, fitted_link, flops, hardware_table, measured
from ndparallel.commands import calibrate
from ndparallel.commands.calibrate import set_threads, show
from ndparallel.commands.command_line import main
from ndparallel.hardware.accelerator import Accelerator, accelerator, find_hardware
from ndparallel.hardware.collective_links import on_links_of, slowdown_of
from ndparallel.hardware.figures import ACROSS_FRACTION
from ndparallel.model import costs
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.layers.pricing import Pricing
from ndparallel.planner.models.shape import ModelShape
from ndparallel.planner.prediction import predict
from ndparallel.planner.software import find_stack
from ndparallel.validation.cases import express
from ndparallel.validation.fields import unread

MACHINE = ThisMachine("here", memory_bytes=16 * 2**30)
RECORDED = json.loads(Path(__file__).with_name("recorded.json").read_text("utf-8"))
RATE, BANDWIDTH, LAUNCH = 80e9, 20e9, 2e-6  # of a machine that is made up


def made_up() -> dict[Kernel, list[float]]:
    """The kernels of a machine with one rate of matmuls, of which attention reaches half forward and a
    quarter backward, and bfloat16 twice."""
    samples = {}
    for dtype, rate in (("float32", RATE), ("bfloat16", 2 * RATE)):
        for shape in ((256, 64, 64), (512, 512, 512)):
            kernel = Kernel("matmul", dtype, shape)
            samples[kernel] = [flops(kernel) / rate]
    kernel = Kernel("attention forward", "float32", (1, 8, 256, 64))
    forward = flops(kernel) / (RATE / 2)
    samples |= {kernel: [forward], kernel._replace(kind="attention both"): [forward * (1 + 2.5 * 2)]}
    arrays = {"sum": 3, "silu": 2, "norm": 2}
    samples |= {
        Kernel(kind, "float32", (2**19,)): [number * 4 * 2**19 / BANDWIDTH] for kind, number in arrays.items()
    }
    samples[Kernel("optimizer", "float32", (2**20,))] = [2**20 * 28 / BANDWIDTH]
    return samples | {Kernel("launch", "float32", (100,)): [100 * LAUNCH]}


def recorded() -> dict[Kernel, list[float]]:
    return {
        Kernel(one["kind"], one["dtype"], tuple(one["shape"])): [one["seconds"]]
        for one in RECORDED["kernels"]
    }


def test_a_calibrated_machine_prices_a_kernel_at_what_was_measured():
    hardware = hardware_here(MACHINE, made_up())
    for dtype, rate in (("float32", RATE), ("bfloat16", 2 * RATE)):
        matmul = costs.matmul("", 512, 512, 512, dtype)
        assert hardware.seconds(matmul) == pytest.approx(matmul.flops / rate + LAUNCH, rel=1e-5)
    copy = costs.elementwise("", 2**19, 3)
    assert hardware.seconds(copy) == pytest.approx(copy.bytes / BANDWIDTH + LAUNCH, rel=1e-5)
    for direction, fraction in (("forward", 0.5), ("backward", 0.25)):
        assert dict(hardware.attention_fractions[f"flash2 {direction}"]) == pytest.approx({256.0: fraction})


def test_the_share_of_the_best_rate_rises_along_flops_as_it_was_measured():
    samples = made_up()
    small = Kernel("matmul", "float32", (256, 64, 64))
    samples[small] = [flops(small) / (RATE / 4)]
    hardware = hardware_here(MACHINE, samples)
    assert hardware.seconds(costs.matmul("", 256, 64, 64)) == pytest.approx(
        samples[small][0] / 3 + LAUNCH, rel=1e-5
    )


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_link_is_found_again_in_what_its_ring_took(ranks):
    latency, bandwidth = 8e-6, 5e9
    sizes = (2.0**10, 2.0**16, 2.0**22)
    ring = [(size, 2 * (ranks - 1) * (latency + size / (ranks * bandwidth))) for size in sizes]
    link = fitted_link(ring, ranks)
    assert link.latency_seconds == pytest.approx(latency)
    assert link.bandwidth_bytes_per_second == pytest.approx(bandwidth)


def test_the_file_is_hardware_with_the_links_that_were_measured(tmp_path, capsys):
    links = {("all_reduce", "inside"): FittedLink(8e-6, 5e9), ("all_gather", "inside"): FittedLink(4e-6, 9e9)}
    table = hardware_table(MACHINE, made_up(), links, slowdown=0.5) | {
        "measured": {"kernels": measured(made_up())}
    }
    path = tmp_path / "here.json"
    path.write_text(json.dumps(table), "utf-8")
    hardware = find_hardware(str(path))
    assert hardware.inside.bandwidth_bytes_per_second == pytest.approx(5e9, rel=1e-5)
    gather = on_links_of(hardware, "all_gather")
    assert gather and gather.inside.latency_seconds == pytest.approx(4e-6)
    assert gather.inside.bandwidth_bytes_per_second == pytest.approx(9e9, rel=1e-5)
    assert slowdown_of(hardware) == 0.5
    assert hardware.across.bandwidth_bytes_per_second < 1e3  # not measured, and no plan can hide it
    words = "--layers 2 --hidden 128 --heads 2 --ffn 352 --vocab 256 --gpus 1 --global-batch 2 --sequence 256"
    assert main(["plan", *words.split(), "--tp", "1", "--hardware", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)


def launches(**modes: float) -> dict[Kernel, list[float]]:
    """A chain of 50 launches, by mode."""
    return {Kernel(f"launch {mode}", "float32", (50,)): [50 * taken] for mode, taken in modes.items()}


@pytest.mark.parametrize(("software", "share"), [("pytorch", 1.0), ("pytorch-compiled", 0.3)])
def test_a_plan_bound_by_launches_takes_what_was_measured_of_its_mode(software, share):
    """A GPU whose eager launch takes 2 ms in a step, and a compiled one three tenths of it."""
    samples = made_up() | launches(eager=1e-3, compiled=0.3e-3, graph=1e-6)
    samples[Kernel("launch", "float32", (100,))] = [100 * 2e-3]
    hardware = hardware_here(replace(MACHINE, is_gpu=True), samples)
    assert hardware.kernel_overhead_seconds == pytest.approx(1e-6)
    shape = ModelShape("small", layers=1, hidden=64, heads=1, kv_heads=1, ffn=176, vocab=256, head_dim=64)
    job = TrainingJob(shape, hardware, find_stack(software), 64, 1)
    layer = Pricing(job, Plan()).unit("dense").forward
    of_eager = replace(hardware, host_launch_seconds=1.0, host_launch_multiples={"compiled": 1.0})
    number = Pricing(replace(job, hardware=of_eager), Plan()).unit("dense").forward.launch_seconds
    assert layer.total == pytest.approx(number * share * 2e-3)


def test_on_a_cpu_a_launch_is_an_overhead_of_its_mode():
    hardware = hardware_here(MACHINE, made_up() | launches(eager=4e-6, compiled=1e-6))
    assert hardware.kernel_overhead_seconds == pytest.approx(LAUNCH)
    assert hardware.kernel_overhead_multiples == {"compiled": pytest.approx(0.25)}
    assert hardware.host_launch_seconds == 0


OTHERS = {  # values beside those that a file has
    "memory_bandwidth": "1 GB/s",
    "optimizer_fraction": 0.01,
    "kernel_overhead": {"eager": "1 ms"},
    "efficiency": [[1.0, 0.01]],
    "collectives": {"all_gather": {"latency_inside": "1 s"}},
    "slowdown": 50,
    "bandwidth_inside": "1 MB/s",
    "latency_inside": "1 ms",
}


@pytest.mark.parametrize("key", OTHERS)
def test_a_rate_that_calibrate_writes_moves_a_prediction(key):
    links = {
        (kind, "inside"): FittedLink(8e-6, 5e9) for kind in ("all_reduce", "all_gather", "reduce_scatter")
    }
    table = hardware_table(replace(MACHINE, gpus_per_node=2), made_up(), links, slowdown=0.5)
    shape = ModelShape("small", layers=4, hidden=256, heads=4, kv_heads=4, ffn=704, vocab=256, head_dim=64)
    del table["name"]
    if key.endswith("inside"):  # what has no links of its own has these
        table["collectives"] = {}
    jobs = [
        TrainingJob(shape, accelerator("here", each), find_stack("pytorch"), 256, 2)
        for each in (table, table | {key: OTHERS[key]})
    ]
    steps = [predict(job, Plan(dp=2, zero=3)).seconds for job in jobs]
    assert steps[1] > 1.001 * steps[0]


def errors(kernels: dict[Kernel, list[float]]) -> list[float]:
    """How far the recorded steps' predictions are off."""
    seconds = {one["name"]: one["measured_seconds"] for one in RECORDED["runs"]}
    found = step_rows(MACHINE, kernels | {case: [seconds[str(case)]] for case in GRIDS["cpu"]})
    return [abs(row.error) for row in found]


def test_recorded_steps_are_predicted_from_recorded_kernels_within_15_percent_in_the_mean():
    found = errors(recorded())
    assert len(found) == 5 and sum(found) / len(found) < 0.15 and max(found) < 0.25


def test_matmul_and_attention_alone_predict_a_step_worse():
    free = {
        kernel: samples if kernel.kind.startswith(("matmul", "attention")) else [1e-12]
        for kernel, samples in recorded().items()
    }
    assert sum(errors(free)) > 1.4 * sum(errors(recorded()))


def test_saved_steps_are_runs_that_validate_reads():
    case = GRIDS["cpu"][0]
    found = step_rows(MACHINE, recorded() | {case: [0.1]})
    (run,) = as_runs(found, MACHINE, recorded())
    assert unread(run) == []
    assert express(run).measured_seconds == 0.1
    assert express(run).job.shape.hidden == case.hidden


# ------------------------------------------------------------------------------------------ several processes

RING = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}  # times round, of a ring of two


def rung(latency: float, bandwidth: float) -> dict[MeasuredTransfer, list[float]]:
    """Collectives of two processes whose steps take the latency and half of the bytes."""
    return {
        MeasuredTransfer(kind, "inside", 2, size): [times * (latency + size / 2 / bandwidth)]
        for kind, times in RING.items()
        for size in BYTES
    }


def predicted_steps(latency: float, bandwidth: float) -> dict[str, float]:
    cases = {case: [1.0] for case in grid("cpu", 2)}
    here = replace(MACHINE, gpus_per_node=2)
    return {
        row.name: row.predicted_seconds
        for row in step_rows(here, recorded() | rung(latency, bandwidth) | cases)
    }


def test_a_step_of_two_processes_has_the_collectives_that_were_measured():
    """Data parallelism sums 4 bytes for each weight behind the backward pass; tensor parallelism sums 2 * 256
    tokens of 512 numbers four times a layer, and at both ends."""
    none, some = predicted_steps(1e-9, 1e18), predicted_steps(1e-9, 1e9)
    weights = (512 * (2 * 512 + 2 * 128) + 3 * 512 * 1408 + 2 * 512) * 2 + 2 * 256 * 512 + 512
    name = "DDP ring, 2 x 512, 2 x 256"
    assert some[name] - none[name] == pytest.approx(2 * 4 * weights / 2 / 1e9, rel=1e-3)
    name = "TP, 2 x 512, 2 x 256"
    assert some[name] - none[name] > 4 * 2 * (2 * 4 * 2 * 256 * 512 / 2 / 1e9)
    assert len(none) == 8


def test_steps_of_several_processes_are_saved_with_their_plan_and_their_links():
    (case, *_), here = grid("cpu", 2), replace(MACHINE, gpus_per_node=2)
    samples = recorded() | rung(1e-4, 1e9)
    (run,) = as_runs(step_rows(here, samples | {case: [0.1]}), here, samples, 2)
    assert unread(run) == []
    found = express(run)
    assert (found.plan.dp, found.job.global_batch, found.measured_seconds) == (2, 2, 0.1)
    assert found.job.hardware.inside.bandwidth_bytes_per_second == pytest.approx(1e9, rel=1e-3)


def test_the_links_across_nodes_are_saved_in_the_bits_that_networks_are_sold_by():
    (case, *_), transfers = grid("cpu", 2), rung(1e-4, 1e9)
    samples = recorded() | {each._replace(where="across"): found for each, found in transfers.items()}
    (run,) = as_runs(step_rows(MACHINE, samples | {case: [0.1]}), MACHINE, samples, 2)
    assert run["hardware"]["inter_node_gbit_per_s_per_gpu"] == pytest.approx(8 / ACROSS_FRACTION, rel=1e-3)
    here, found = hardware_here(MACHINE, samples), express(run).job.hardware
    assert isinstance(found, Accelerator)
    assert found.across.bandwidth_bytes_per_second == pytest.approx(1e9, rel=1e-3)
    assert found.peak("bf16") == pytest.approx(here.peak("bf16"))
    assert found.memory_bandwidth_bytes_per_second == pytest.approx(here.memory_bandwidth_bytes_per_second)


# --------------------------------------------------------------------------------------------------- commands


@pytest.mark.parametrize("name", ["", "/", "a/b", "/tmp/x"])
def test_a_name_that_no_file_can_have_is_refused_before_anything_is_measured(name, capsys):
    assert main(["calibrate", "--name", name]) == 2
    assert f"--name {name!r} cannot be a file's name" in capsys.readouterr().err


@pytest.mark.parametrize("threads", [-1, 0, 99999])
def test_more_threads_than_processors_are_refused_where_torch_would_crash(threads):
    with pytest.raises(UserError, match=f"--threads {threads}: there are .*; choose 1 to"):
        set_threads(None, threads)


def test_what_was_measured_is_told_in_units_that_people_read(capsys):
    links = {("all_reduce", "inside"): FittedLink(8e-6, 5e9)}
    table = hardware_table(MACHINE, made_up(), links, slowdown=0.5)
    show(table | {"measured": {"kernels": measured(made_up())}}, Path("here.json"))
    told = " ".join(capsys.readouterr().out.split())
    assert "reach 80.0 GFLOP/s at their best; memory 17.2 GB, its bandwidth" in told
    assert "A launch takes 2.00 us eager." in told and "all_reduce 8.00 us 5.00 GB/s" in told


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="torch is installed")
@pytest.mark.parametrize("command", [["calibrate"], ["validate", "--here"]])
def test_without_torch_one_sentence_says_how_to_get_it(command, capsys):
    assert main(command) == 2
    assert "pip install 'ndparallel[torch]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--save", "x.json"], "give --here too"),
        (["--here", "--cases", "x.json"], "leave --cases, --runs and --write-errors out"),
        (["--here", "--write-errors"], "leave --cases, --runs and --write-errors out"),
        (["--write-errors", "--cases", "x.json"], "give it alone"),
        (["--hardware", "h200"], "give --here too"),
        (["--here", "--hardware", "pocket"], "--hardware pocket is the lessons' own"),
        (["--here", "--hardware", "h201"], "unknown hardware 'h201'"),
    ],
)
def test_options_that_would_be_ignored_are_refused(options, says, capsys):
    assert main(["validate", *options]) == 2
    assert says in capsys.readouterr().err


def test_processes_that_wait_for_one_another_have_no_cpu_time(monkeypatch, capsys):
    pytest.importorskip("torch")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["validate", "--here", "--cpu-time"]) == 2
    assert "leave out --cpu-time" in capsys.readouterr().err


def test_the_seconds_of_a_calibration_begin_when_torch_is_imported(monkeypatch, tmp_path):
    """On a cold disk the import alone takes as long as a quick calibration may."""
    order: list[str] = []

    def begin(seconds: float) -> None:
        order.append("seconds")
        raise UserError("enough")

    monkeypatch.setattr(calibrate, "load_torch", lambda: order.append("torch"))
    monkeypatch.setattr(calibrate, "Budget", begin)
    with pytest.raises(UserError, match="enough"):
        calibrate.run(SimpleNamespace(quick=True, out=tmp_path / "here.json", name="here"))  # type: ignore[arg-type]
    assert order == ["torch", "seconds"]


def test_compiled_launches_are_left_out_where_there_is_no_compiler(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", "g++")
    assert not has_compiler()
    (tmp_path / "g++").touch(mode=0o755)
    assert has_compiler()


def test_how_to_measure_is_refused_where_nothing_is_measured(capsys):
    assert main(["validate", "--cpu-time"]) == 2
    assert "give --here too" in capsys.readouterr().err
