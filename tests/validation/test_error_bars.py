"""Claims about the constants of the error bar, on the errors of all public runs."""

import re
from dataclasses import replace
from math import log
from statistics import median

import pytest

from ndparallel.hardware.accelerator import data_sheets, find_hardware
from ndparallel.planner import error_bar
from ndparallel.planner.error_bar import ONE_BAR, known_errors, of_prediction, percentile, weighted_errors
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.models.presets import find_model
from ndparallel.planner.software import STACKS
from ndparallel.validation import hardware
from ndparallel.validation.cases import read_cases
from ndparallel.validation.validate import result_of

RUNS = known_errors()
EVERY = 2  # runs are predicted again: neighbours are of one sweep
JOB = TrainingJob(find_model("llama-3-8b"), find_hardware("h100"), STACKS["megatron-core"], 8192, 64)


def held_out(wider: float) -> list[tuple[float, float]]:
    """Errors, and the bars that the runs of other sources make."""
    pairs = []
    for source in {run["source"] for run in RUNS}:
        others = [run for run in RUNS if run["source"] != source]
        base, seen = (
            percentile(weighted_errors(others, "step_error"), ONE_BAR),
            {t for run in others for t in run["traits"]},
        )
        pairs += [
            (of_prediction(run["step_error"]), base * wider ** len({*run["traits"]} - seen))
            for run in RUNS
            if run["source"] == source
        ]
    return pairs


def likelihood(pairs: list[tuple[float, float]]) -> float:
    """The mean logarithm of a normal density, but for a constant."""
    return sum(-log(bar) - (error / bar) ** 2 / 2 for error, bar in pairs) / len(pairs)


def test_a_trait_that_no_run_has_widens_a_bar_as_makes_the_errors_of_other_sources_likeliest():
    by_widening = {wider: likelihood(held_out(wider)) for wider in (1.0, 1.1, 1.2, 1.3)}
    assert max(by_widening, key=lambda wider: by_widening[wider]) == error_bar.WIDER


def test_a_bar_holds_two_thirds_of_the_runs_of_other_sources_and_two_nearly_all():
    pairs = held_out(error_bar.WIDER)
    inside = [sum(error <= bars * bar for error, bar in pairs) / len(pairs) for bars in (1, 2)]
    assert 0.6 <= inside[0] <= 0.78 and 0.9 <= inside[1] <= 0.98


# what the presets of a generation are called
SHEETS = {"Ampere": r"a\d|rtx-30", "Hopper": r"h\d|gh200|l4|rtx-40", "Blackwell": r"g?b[23]00"}


@pytest.mark.parametrize(("generation", "times"), [("Ampere", 1.1), ("Hopper", 3.5), ("Blackwell", 5.7)])
def test_a_gpu_of_another_generation_is_predicted_so_much_worse(generation, times, monkeypatch):
    """Runs are predicted as on a GPU that no preset knows, by its data sheet and what is known of other
    generations."""
    own = {run["id"] for run in RUNS if generation in run["traits"]}
    chosen = [run for run in read_cases() if run["id"] in own and run["hardware"].get("peak_bf16_tflops")]
    some = chosen[:: EVERY if len(chosen) > 20 else 1]
    known = percentile_68(some)
    sheets = data_sheets()
    others = {name: sheet for name, sheet in sheets.items() if not re.match(SHEETS[generation], name)}
    monkeypatch.setattr(hardware, "known_gpu", lambda name: None)
    monkeypatch.setattr(hardware, "data_sheets", lambda: others)
    assert percentile_68(some) / known == pytest.approx(times, rel=0.25)
    assert median((1.1, 3.5, 5.7)) == error_bar.ANOTHER_GENERATION


def percentile_68(runs) -> float:
    results = map(result_of, runs)
    errors = sorted(of_prediction(one.step_error) for one in results if one.step_error is not None)
    return errors[int(0.68 * len(errors))]


def test_a_job_that_is_unlike_all_measured_ones_has_a_wider_bar_and_says_in_what():
    plan = Plan(tp=2, dp=4)
    usual = error_bar.error_bar(JOB, plan)
    assert "wider" not in usual.sentence
    unlike = {
        "offloading": replace(JOB, offload=("optimizer",)),
        "moments in 8bit": replace(JOB, moments="8bit"),
        "1,048,576 to 4,194,303 tokens": replace(JOB, sequence=2**20),
        "MI300X": replace(JOB, hardware=find_hardware("mi300x")),
    }
    for words, job in unlike.items():
        found = error_bar.error_bar(job, plan)
        assert words in found.sentence
        times = error_bar.ANOTHER_GENERATION if words == "MI300X" else error_bar.WIDER
        assert found.fraction == pytest.approx(times * usual.fraction)
    both = error_bar.error_bar(replace(unlike["MI300X"], moments="8bit"), plan)
    assert both.fraction == pytest.approx(error_bar.ANOTHER_GENERATION * error_bar.WIDER * usual.fraction)
    memory = [error_bar.error_bar(job, plan, of="memory_error") for job in (JOB, unlike["MI300X"])]
    assert memory[0].fraction == memory[1].fraction, "memory does not depend on the GPU's generation"


@pytest.mark.parametrize(("runs", "usual"), [(3, {}), (4, {"a pipeline": (0.25, 4)})])
def test_what_four_runs_of_a_trait_have_in_common_is_its_usual_error(runs, usual, monkeypatch):
    known = [{"traits": ["a pipeline"], "step_error": error} for error in (0.1, 0.2, 0.3, 0.4)]
    monkeypatch.setattr(error_bar, "known_errors", lambda: known[:runs])
    found = error_bar.usual_errors(JOB, Plan(pp=2, dp=4, schedule="1f1b"))
    assert found == {trait: pytest.approx(numbers) for trait, numbers in usual.items()}


def test_a_percentile_is_the_first_error_at_which_its_share_of_the_weights_is_reached():
    errors = [(0.1, 0.5), (0.2, 0.25), (0.3, 0.125), (0.4, 0.125)]
    assert [percentile(errors, share) for share in (0.5, 0.51, 0.75, 0.8, 1.0)] == [0.1, 0.2, 0.2, 0.3, 0.4]


def test_all_sources_count_alike_however_many_runs_they_have():
    known = [{"source": source, "step_error": 1.0} for source in ("a", "b", "b", "b", "b")]
    assert weighted_errors(known, "step_error") == [(0.5, 0.25)] * 4 + [(0.5, 1.0)]


def test_the_lessons_own_runs_are_exact():
    pocket = replace(JOB, hardware=find_hardware("pocket"), stack=STACKS["pocket"])
    assert error_bar.error_bar(pocket, Plan(dp=8)).fraction == 0
