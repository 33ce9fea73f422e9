"""How sure a prediction is: the errors on measured runs, which count for more the more they are like it.

Idea   A job has traits (its GPU, its software, number type, experts, FSDP, short kernels ...). Every measured
       run counts with a weight that shrinks with each trait that only one of the two has, and runs of one
       source share theirs. The bar is where the weighted errors have their 68th percentile, or half of the
       95th: the mean of both, so that one bar holds two thirds of such runs and two bars nearly all. Every
       trait that no run has widens it.
Limit  The runs are those of measured_runs.json here. Their errors lie beside them, as `ndparallel validate
       --write-errors` wrote them; a test holds the two together. `validate` leaves a run's own source out.
"""

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from math import sqrt
from typing import Any

from ndparallel.base.words import count, listed
from ndparallel.hardware.accelerator import data_sheets
from ndparallel.planner.job import Plan, TrainingJob

FEWEST = 4  # runs whose mean is known to half of their spread: 1 / sqrt(4)
# what a run's weight is multiplied by for each trait that only one of two runs has: of tenths below 1 the one
# under which measured errors are likeliest, when all runs of their source are left out
# (tests/validation/test_error_bars.py)
NEARER = 0.9
# for each trait that no run has: of the median trait, the 68th percentile of errors over bars when all runs
# that have it are left out (the same tests)
WIDER = 1.05
ONE_BAR, TWO_BARS = 0.68, 0.95
LARGE = 1024  # GPUs
SHORT, LONG = 2048, 8192  # tokens: below, and above, most runs were not measured
SMALL_LAYER = 1.5e12  # FLOPs of a layer's forward pass, below which launches count
# by how much the errors of two measured plans of one job on as many GPUs differ: the median pair of the
# median job (tests/search/test_kinds.py)
PLANS_OF_ONE_JOB = 0.05
ERRORS = resources.files("ndparallel.planner") / "known_errors.json"


@dataclass(frozen=True)
class ErrorBar:
    """A relative error, and where it comes from."""

    fraction: float
    sentence: str


def traits(job: TrainingJob, plan: Plan) -> dict[str, str]:
    """What a run is like, by kind of trait."""
    present = {
        "experts": job.shape.experts is not None,
        job.dtype: job.dtype != "bf16",
        "FSDP": plan.zero == 3,
        "context parallelism": plan.cp > 1,
        "a pipeline": plan.pp > 1,
        "a zero-bubble schedule": plan.schedule.startswith(("zb", "dual")),
        "recomputation": plan.recompute != "none",
        "short sequences": job.sequence < SHORT,
        "long sequences": job.sequence > LONG,
        "short kernels": layer_flops(job, plan) < SMALL_LAYER,
        f"more than {LARGE} GPUs": plan.gpus > LARGE,
    }
    return {"GPU": family(job.hardware.name), "software": job.stack.name.split("-")[0]} | {
        name: name for name, has in present.items() if has
    }


def layer_flops(job: TrainingJob, plan: Plan) -> float:
    """FLOPs of a usual layer of that width in a microbatch's forward pass: 24 for each token and hidden^2."""
    rows = plan.micro_batch * job.sequence / plan.cp
    return float(24 * rows * job.shape.hidden**2 / plan.tp)


def family(gpu: str) -> str:
    """A100, H100, B200: the same chip in all its forms."""
    # gb200 before b200
    chips = sorted({sheet.partition("-")[0] for sheet in data_sheets()}, key=len, reverse=True)
    return next((chip.upper() for chip in chips if chip in gpu.lower()), gpu)


def error_bar(job: TrainingJob, plan: Plan, without: str = "", of: str = "step_error") -> ErrorBar:
    """The relative error to expect, of the step or `of` the memory, as a share of the prediction, and a
    sentence on it; `without` leaves the runs of one source out."""
    if job.stack.executed:
        return ErrorBar(0.0, "by the clock of the lessons' own runs, which tests hold it to.")
    mine = frozenset(traits(job, plan).values())
    runs = [run for run in known_errors() if run["source"] != without and of in run]
    unmeasured = sorted(trait for trait in mine if all(trait not in run["traits"] for run in runs))
    fraction = bar_of(weighted_errors(mine, runs, of)) * WIDER ** len(unmeasured)
    alike = sum(len(mine ^ set(run["traits"])) <= 1 for run in runs)
    missing = f"; wider, because no measured run has {listed(unmeasured)}" if unmeasured else ""
    return ErrorBar(
        fraction,
        f"+- {fraction:.0%}, from {count(len(runs), 'measured run')}, "
        f"{alike or 'none'} of them much like this one{missing}.",
    )


def weighted_errors(
    mine: frozenset[str], runs: Sequence[dict[str, Any]], of: str
) -> list[tuple[float, float]]:
    """Errors, as shares of the prediction, with their weights, the smallest first; the weights of a source's
    runs add up to the square root of what they would be one by one."""
    weights = [NEARER ** len(mine ^ set(run["traits"])) for run in runs]
    by_source: dict[str, float] = defaultdict(float)
    for run, weight in zip(runs, weights):
        by_source[run["source"]] += weight
    pairs = zip(runs, weights)
    return sorted((of_prediction(run[of]), weight / sqrt(by_source[run["source"]])) for run, weight in pairs)


def of_prediction(error: float) -> float:
    """The absolute error of a prediction as a share of it, from its error as a share of what was measured."""
    return abs(1 / (1 + error) - 1)


def bar_of(errors: Sequence[tuple[float, float]]) -> float:
    """The mean of the 68th percentile and half of the 95th."""
    return (percentile(errors, ONE_BAR) + percentile(errors, TWO_BARS) / 2) / 2


def percentile(errors: Sequence[tuple[float, float]], share: float) -> float:
    """The smallest error at which that share of the weights is reached."""
    whole, reached = share * sum(weight for _, weight in errors), 0.0
    for error, weight in errors:
        reached += weight
        if reached >= whole:
            return error
    return errors[-1][0]


@cache
def known_errors() -> list[dict[str, Any]]:
    return json.loads(ERRORS.read_text("utf-8"))


def usual_errors(job: TrainingJob, plan: Plan) -> dict[str, tuple[float, int]]:
    """By trait of this run: the mean error of the measured runs that have it, above 0 where they were
    predicted too slow, and how many they are; of traits with enough of them."""
    found = {}
    for trait in traits(job, plan).values():
        errors = [run["step_error"] for run in known_errors() if trait in run["traits"]]
        if len(errors) >= FEWEST:
            found[trait] = sum(errors) / len(errors), len(errors)
    return found


def source_of(words: str) -> str:
    """Who published a run: the first word of where it stands, a paper or a repository."""
    return words.split(" ")[0].rstrip(",;")


def entry(
    name: str,
    job: TrainingJob,
    plan: Plan,
    step_error: float,
    source: str,
    memory_error: float | None = None,
) -> dict[str, Any]:
    """One run in known_errors.json; errors are rounded to what matters."""
    run = {
        "id": name,
        "source": source_of(source),
        "traits": list(traits(job, plan).values()),
        "step_error": round(step_error, 3),
    }
    return run if memory_error is None else run | {"memory_error": round(memory_error, 3)}
