"""Kernels and steps run where torch is: what they measure is a file of hardware, whatever the seconds."""

from typing import Any

import pytest

from ndparallel.calibration.kernels import SIZES, Sizes, load_torch
from ndparallel.calibration.steps import GRIDS, StepCase, hardware_here, script, step_rows
from ndparallel.calibration.table import ThisMachine
from ndparallel.calibration.timing import Budget, Windows, measure_in_turn
from ndparallel.commands.validate import here
from ndparallel.hardware.accelerator import preset_of
from tests.in_pytorch import needs_torch

pytestmark = needs_torch

SMALL = Sizes(("float32", "bfloat16"), ((8, 16, 16), (16, 32, 32)), (16, 32), 32, 16, 1024, 1024)
MACHINE = ThisMachine("here", 2**30)


@pytest.fixture
def torch() -> Any:
    """Imported by the test alone: every process of pytest imports this file, and torch takes it seconds."""
    return load_torch()


def test_what_a_device_measures_makes_hardware_and_predicts_a_step(torch, monkeypatch):
    monkeypatch.setitem(SIZES, "cpu", SMALL)
    monkeypatch.setitem(GRIDS, "cpu", (StepCase(1, 64, 16, 1),))
    monkeypatch.setattr(here, "WINDOWS", Windows(1, 0.0))
    in_turn = here.samplers(torch, cpu_time=False, steps_alone=False)
    samples = measure_in_turn(in_turn, 3, Budget(300), lambda words: None)
    hardware = hardware_here(MACHINE, samples)
    assert (
        set(hardware.gains) == {"tf32", "bf16"} and len(hardware.attention_fractions["flash2 backward"]) == 2
    )
    (row,) = step_rows(MACHINE, samples)
    assert row.measured_seconds > 0 and row.predicted_seconds > 0


def test_where_hardware_is_named_steps_alone_are_measured(torch, monkeypatch):
    monkeypatch.setitem(GRIDS, "cpu", (StepCase(1, 64, 16, 1),))
    in_turn = here.samplers(torch, cpu_time=False, steps_alone=True)
    assert [*in_turn] == [*GRIDS["cpu"]]
    samples = measure_in_turn(in_turn, 3, Budget(300), lambda words: None)
    rows = [step_rows(MACHINE, samples, preset_of(name))[0] for name in ("a100-80", "h100")]
    assert rows[0].measured_seconds == rows[1].measured_seconds
    assert rows[0].predicted_seconds > rows[1].predicted_seconds > 0


def test_a_step_trains_the_model_that_is_predicted(torch):
    case = StepCase(2, 128, 32, 1)
    written = script("model.py")
    model = written.Transformer(written.Config(**case.sizes, sequence=case.sequence))
    assert len(model.layers) == 2 and model.embedding.table.weight.shape == (256, 128)
    assert model.layers["0"].attention.k.weight.shape == (64, 128)
