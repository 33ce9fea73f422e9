"""Kernels and steps run where torch is: what they measure is a file of hardware, whatever the seconds."""

from typing import Any

import pytest

from ndparallel.calibration.kernels import SIZES, Sizes, clock_of, kernels, load_torch
from ndparallel.calibration.steps import GRIDS, StepCase, hardware_here, script, step_rows, steps
from ndparallel.calibration.table import ThisMachine
from ndparallel.calibration.timing import Budget, Repeated, Sampler, Windows, measure_in_turn
from tests.in_pytorch import needs_torch

pytestmark = needs_torch

SMALL = Sizes(("float32", "bfloat16"), ((8, 16, 16), (16, 32, 32)), (16, 32), 16, 1024, 1024)
MACHINE = ThisMachine("here", 2**30)


@pytest.fixture
def torch() -> Any:
    """Imported by the test alone: every process of pytest imports this file, and torch takes it seconds."""
    return load_torch()


def test_what_a_device_measures_makes_hardware_and_predicts_a_step(torch, monkeypatch):
    monkeypatch.setitem(SIZES, "cpu", SMALL)
    monkeypatch.setitem(GRIDS, "cpu", (StepCase(1, 64, 16, 1),))
    clock = clock_of(torch, cpu_time=False)
    samplers: dict[Any, Sampler] = {
        key: Repeated(run, Windows(1, 0.0), clock) for key, run in kernels(torch, SMALL).items()
    }
    in_turn = samplers | steps(torch, SMALL, clock)
    samples = measure_in_turn(in_turn, 3, Budget(300), lambda words: None)
    hardware = hardware_here(MACHINE, samples)
    assert (
        set(hardware.gains) == {"tf32", "bf16"} and len(hardware.attention_fractions["flash2 backward"]) == 2
    )
    (row,) = step_rows(MACHINE, samples)
    assert row.measured_seconds > 0 and row.predicted_seconds > 0


def test_a_step_trains_the_model_that_is_predicted(torch):
    case = StepCase(2, 128, 32, 1)
    written = script("model.py")
    model = written.Transformer(written.Config(**case.sizes, sequence=case.sequence))
    assert len(model.layers) == 2 and model.embedding.table.weight.shape == (256, 128)
    assert model.layers["0"].attention.k.weight.shape == (64, 128)
