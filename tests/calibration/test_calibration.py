"""The arithmetic of calibration, on measurements that were made up or recorded: no test measures."""

import importlib.util
import json
from itertools import count
from pathlib import Path

import pytest

from ndparallel.base.errors import UserError
from ndparallel.calibration.kernels import Kernel
from ndparallel.calibration.steps import GRIDS, as_runs, hardware_here, rows
from ndparallel.calibration.table import FittedLink, ThisMachine, fitted_link, flops, hardware_table, measured
from ndparallel.calibration.timing import check_spread, measure_in_turn, median, spread
from ndparallel.commands.command_line import main
from ndparallel.hardware.accelerator import find_hardware
from ndparallel.model import costs
from ndparallel.validation.cases import express

MACHINE = ThisMachine("here", memory_bytes=16 * 2**30, multiprocessors=1)
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
    links = {"inside": FittedLink(8e-6, 5e9)}
    table = hardware_table(MACHINE, made_up(), links) | {"measured": {"kernels": measured(made_up())}}
    path = tmp_path / "here.json"
    path.write_text(json.dumps(table), "utf-8")
    hardware = find_hardware(str(path))
    assert hardware.inside.bandwidth_bytes_per_second == pytest.approx(5e9, rel=1e-5)
    assert hardware.across.bandwidth_bytes_per_second < 1e3  # not measured, and no plan can hide it
    words = "--layers 2 --hidden 128 --heads 2 --ffn 352 --vocab 256 --gpus 1 --global-batch 2 --sequence 256"
    assert main(["plan", *words.split(), "--tp", "1", "--hardware", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)


def errors(kernels: dict[Kernel, list[float]]) -> list[float]:
    """How far the recorded steps' predictions are off."""
    seconds = {one["name"]: one["measured_seconds"] for one in RECORDED["runs"]}
    found = rows(MACHINE, kernels | {case: [seconds[str(case)]] for case in GRIDS["cpu"]})
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
    found = rows(MACHINE, recorded() | {case: [0.1]})
    (run,) = as_runs(found, MACHINE, recorded())
    assert express(run).measured_seconds == 0.1
    assert express(run).job.shape.hidden == case.hidden


# ----------------------------------------------------------------------------------------------------- timing


class Clock:
    """A clock that moves when something runs."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def runs(self, seconds):
        def run() -> None:
            self.now += next(seconds)

        return run


def test_everything_is_measured_once_in_every_round_and_what_is_short_often():
    clock = Clock()
    order: list[str] = []
    slow, quick = clock.runs(iter(lambda: 1.0, 0)), clock.runs(iter(lambda: 0.125, 0))
    runs = {"slow": slow, "quick": quick}
    samples = measure_in_turn(runs, 3, 1.0, clock, order.append)
    assert samples == {"slow": [1.0] * 3, "quick": [0.125] * 3}
    assert [words.split(",")[0] for words in order[2:]] == ["slow", "quick"] * 3


def test_a_machine_that_drifts_drifts_under_all_that_is_measured():
    clock = Clock()
    speed = (1.0 + number / 100 for number in count())  # ever slower

    def run() -> None:
        clock.now += next(speed)

    samples = measure_in_turn({"a": run, "b": run}, 9, 0.0, clock, lambda words: None)
    assert median(samples["a"]) / median(samples["b"]) == pytest.approx(1, abs=0.02)


def test_spread_is_the_distance_of_the_quartiles_in_the_median():
    assert spread([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(2 / 3)
    assert spread([2.0] * 7) == 0


def test_a_machine_whose_measurements_spread_too_far_is_refused_with_the_worst_kernel():
    with pytest.raises(UserError, match="matmul 8 x 8 x 8 in float32 spread by 40%"):
        check_spread({str(Kernel("matmul", "float32", (8, 8, 8))): 0.4, "sum": 0.1})
    check_spread({"sum": 0.25})


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="torch is installed")
@pytest.mark.parametrize("command", [["calibrate"], ["validate", "--here"]])
def test_without_torch_one_sentence_says_how_to_get_it(command, capsys):
    assert main(command) == 2
    assert "pip install 'ndparallel[torch]'" in capsys.readouterr().err


def test_steps_of_several_processes_are_refused(monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["validate", "--here"]) == 2
    assert "start it without torchrun" in capsys.readouterr().err


def test_how_to_measure_is_refused_where_nothing_is_measured(capsys):
    assert main(["validate", "--cpu-time"]) == 2
    assert "give --here too" in capsys.readouterr().err
