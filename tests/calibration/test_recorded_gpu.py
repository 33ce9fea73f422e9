"""Steps and kernels of one NVIDIA H200, recorded by `ndparallel validate --here`, held against the preset: no
test measures."""

import json
import re
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from ndparallel.calibration import steps
from ndparallel.calibration.kernels import SIZES
from ndparallel.calibration.steps import StepCase, StepRow, step_rows
from ndparallel.calibration.table import ThisMachine
from ndparallel.commands.validate.here import cells
from ndparallel.hardware.accelerator import preset_of
from ndparallel.model import costs

RECORDED = json.loads(Path(__file__).with_name("recorded_h200.json").read_text("utf-8"))
H200 = ThisMachine("here", 143771 * 2**20, is_gpu=True)
HEAD = 64  # of the steps that were recorded
PAGE = (Path(__file__).resolve().parents[2] / "docs" / "calibration.md").read_text("utf-8")


def rows() -> list[StepRow]:
    """The recorded steps, predicted from the preset's figures."""
    cases = [
        StepCase(4, hidden, sequence, 16384 // sequence, head=HEAD)
        for hidden in (1024, 2048, 4096)
        for sequence in (512, 2048, 8192)
    ]
    samples = {
        case: [run["measured_seconds"]]
        for case, run in zip(cases, RECORDED["runs"])
        if str(case) == run["name"]
    }
    assert len(samples) == len(RECORDED["runs"]) == 9
    return step_rows(H200, samples, preset_of("h200"))


def mean_error(found: list[StepRow]) -> float:
    return fmean(abs(row.error) for row in found)


def test_an_h200s_steps_are_predicted_from_its_preset_within_4_percent_in_the_mean():
    found = rows()
    assert mean_error(found) < 0.04 and max(abs(row.error) for row in found) < 0.08


def test_flash_attention_2_would_make_the_longest_sequences_a_seventh_too_slow(monkeypatch):
    """torch 2.11 calls cuDNN's attention on this GPU: the kernel alone is changed here."""
    cudnn, eager_stack = rows(), steps.eager_stack
    monkeypatch.setattr(steps, "eager_stack", lambda this: replace(eager_stack(this), attention="flash2"))
    flash2 = rows()
    assert mean_error(flash2) > 2 * mean_error(cudnn)
    longest = [row.error for row in flash2 if row.name.endswith("8192")]
    assert len(longest) == 3 and min(longest) > 0.14
    assert max(row.error for row in cudnn if row.name.endswith("8192")) < 0.08
    assert f"The mean error is {mean_error(cudnn):.1%}." in PAGE
    assert f"it was {mean_error(flash2):.1%}, and all sequences of 8,192 tokens were too slow" in PAGE
    assert f"by {min(longest):.0%} to {max(longest):.0%}." in PAGE


def seconds(kind: str) -> dict[tuple[int, ...], float]:
    return {
        tuple(one["shape"]): one["seconds"]
        for one in RECORDED["kernels"]
        if (one["kind"], one["dtype"]) == (kind, "bfloat16")
    }


def test_one_short_sequence_of_attention_takes_as_long_as_its_launch():
    """Four times the length, sixteen times the work, and a third more time: so a GPU is measured on as many
    tokens as a step has, from a graph."""
    forward = seconds("attention forward")
    assert forward[1, 8, 2048, 128] < 1.4 * forward[1, 8, 512, 128]
    assert forward[1, 8, 8192, 128] > 8 * forward[1, 8, 2048, 128]
    narrow = seconds("matmul")
    assert narrow[4096, 512, 512] > narrow[4096, 2048, 2048]
    assert SIZES["cuda"].tokens == 16384


def test_the_page_shows_the_recorded_steps_as_they_are_predicted_now():
    shown = [[cell for cell in re.split(r"  +", line) if cell] for line in PAGE.splitlines()]
    spread = {run["name"]: run["spread"] for run in RECORDED["runs"]}
    for row in rows():
        assert [*cells(replace(row, spread=spread[row.name]))] in shown


def test_the_page_shows_what_kernels_took():
    attention, products = seconds("attention forward"), seconds("matmul")
    ((elements,), summed), ((chain,), launched) = (*seconds("sum").items(), *seconds("launch").items())
    assert f"Attention of one sequence of 1,024 tokens took {attention[1, 8, 1024, 128] * 1e6:.0f} us" in PAGE
    narrow, wide = (products[4096, size, size] * 1e6 for size in (512, 2048))
    assert f"took {narrow:.0f} us, and those of 4096 x 2048 x 2048 {wide:.0f} us." in PAGE
    assert f"moved {3 * 2 * elements / summed / 1e12:.2f} TB/s" in PAGE
    assert f"{launched / chain * 1e6:.1f} us on this machine's CPU" in PAGE
    for size, shape in (("4096", (4096,) * 3), ("8192", (8192,) * 3)):
        priced = 3 * preset_of("h200").seconds(costs.matmul("", *shape, "bfloat16"))
        assert f"{size} x {size} x {size}" in PAGE and f"{priced / products[shape] - 1:.0%}" in PAGE
