"""Claims about sweeps, worked out by hand: what belongs to one, and what following the predictions costs."""

from copy import deepcopy

import pytest

from ndparallel.validation.cases import read_cases
from ndparallel.validation.result import Result
from ndparallel.validation.sweeps import LayoutSweep, as_json, sweeps_of

(RUN,) = [run for run in read_cases() if run["id"] == "dgxc2502_70b_bf16_64"]  # tp 4, pp 4, cp 2, dp 2
LAYOUTS = [{"tp": 4, "pp": 4}, {"tp": 8, "pp": 2}, {"tp": 2, "pp": 8}, {"tp": 8, "pp": 4}]


def laid_out(number: int) -> dict:
    run = deepcopy(RUN)
    run["parallel"] |= LAYOUTS[number] | {"vp": None}
    return run


def result(measured: float | None = 2.0, predicted: float = 1.0, flops: float = 1.0) -> Result:
    return Result("run", measured, predicted, model_flops=flops)


def layouts(runs: list[dict], results: list[Result]) -> list[int]:
    return [len(sweep.results) for sweep in sweeps_of(runs, results)]


def test_three_layouts_of_one_job_are_a_sweep_and_a_layout_counts_once():
    runs = [laid_out(number) for number in range(4)]
    assert layouts(runs, [result()] * 4) == [4]
    assert layouts(runs[:3], [result()] * 3) == [3] and layouts(runs[:2], [result()] * 2) == []
    again = [runs[0], *runs[:3]]
    (sweep,) = sweeps_of(again, [result(float(number)) for number in range(1, 5)])
    assert [one.measured_seconds for one in sweep.results] == [1.0, 3.0, 4.0]


@pytest.mark.parametrize(
    ("table", "key", "value"),
    [
        (None, "gpus", 128),
        (None, "precision", "fp8"),
        ("hardware", "gpu", "A100"),
        ("software", "framework", "torchtitan"),
        ("model", "layers", 40),
        ("batch", "global", 256),
        ("batch", "sequence", 4096),
        ("batch", "global", None),
    ],
)
def test_runs_of_another_job_are_of_another_sweep(table, key, value):
    runs = [laid_out(number) for number in range(4)]
    (runs[3] if table is None else runs[3][table])[key] = value
    assert layouts(runs, [result()] * 4) == [3]


@pytest.mark.parametrize("other", [result(measured=None), result(flops=0.0)])
def test_only_measured_steps_of_whole_models_are_layouts(other):
    assert layouts([laid_out(number) for number in range(4)], [result()] * 3 + [other]) == [3]


def test_what_is_said_of_all_sweeps_is_their_mean_their_most_and_how_many_lose_nothing():
    """In the first, 3 s are predicted to be the quickest, and 2 s are; in the second it is the quickest."""
    first = LayoutSweep([result(2.0, 9.0), result(3.0, 8.0), result(4.0, 8.5)])
    second = LayoutSweep([result(1.0, 1.0), result(2.0, 2.0), result(2.0, 3.0), result(3.0, 4.0)])
    assert as_json([first, second]) == {
        "sweeps": 2,
        "layouts": 7,
        "mean_regret": 0.25,
        "max_regret": 0.5,
        "mean_regret_of_a_guess": (0.5 + 1.0) / 2,
        "without_regret": 1,
    }
    assert as_json([]) is None
