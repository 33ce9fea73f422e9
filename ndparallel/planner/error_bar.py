"""How sure a prediction is: the errors on measured runs, wider for a job that is unlike all of them.

Idea   The bar is where the errors of measured runs have their 68th percentile, all sources counting alike:
       runs of one source err alike. It is the same for every job that measured runs are like; each trait of
       a job (its GPU, software, number type, length of sequences ...) that no run has widens it, and a GPU of
       another generation most. Likeness of another kind does not count: runs with more of a job's traits say
       no more about its error, once their source is left out.
Limit  The runs are those of measured_runs.json here. Their errors lie beside them, as `ndparallel validate
       --write-errors` wrote them; a test holds the two together. `validate` leaves a run's own source out.
"""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import accumulate
from typing import Any

from ndparallel.base.words import count, listed
from ndparallel.hardware.accelerator import data_sheets
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.layers.pricing import Pricing

FEWEST = 4  # runs whose mean is known to half of their spread: 1 / sqrt(4)
# for each trait that no run has: of tenths the one under which measured errors are likeliest,
# when all runs of their source are left out (tests/validation/test_error_bars.py)
WIDER = 1.1
# for a GPU of a generation that no run has: the 68th percentile of the errors of runs that are predicted with
# the nearest preset of another generation, over that of the same runs as they are predicted: 1.1 of Ampere,
# 3.5 of Hopper, 5.7 of Blackwell, and the one in the middle
ANOTHER_GENERATION = 3.5
GENERATIONS = {
    "Ampere": ("A100", "A800"),
    "Hopper": ("H100", "H200", "H800", "H20", "GH200"),
    "Blackwell": ("B200", "B300", "GB200", "GB300"),
}
SPEEDS = ("GPU", "generation", "launches")  # traits that memory does not depend on
COARSE = ("generation", "GPUs", "tokens to a sequence")  # traits that many unlike runs have
ONE_BAR, TWO_BARS = 0.68, 0.95
STEP = 4  # numbers are alike between two powers of it
WAITS = 0.25  # share of a layer's passes, from which on launches count
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
    gpu, numbers = family(job.hardware.name), {"GPUs": plan.gpus, "tokens to a sequence": job.sequence}
    blocks = "context parallelism" + " by blocks" * job.stack.cp_merges
    present = {
        "experts": job.shape.experts is not None,
        "linear attention": job.shape.linear is not None,
        job.dtype: job.dtype != "bf16",
        f"ZeRO-{plan.zero}": plan.zero in (1, 2),
        "FSDP": plan.zero == 3,
        "asynchronous tensor parallelism": plan.tp > 1 and job.stack.tp_overlap == "products",
        "context parallelism": plan.cp > 1,
        f"{blocks} over {between(plan.cp)} ranks": plan.cp > 1,
        "a pipeline": plan.pp > 1,
        "several chunks": plan.chunks > 1,
        "a zero-bubble schedule": plan.schedule.startswith(("zb", "dual")),
        "recomputation": plan.recompute != "none",
        "offloading": bool(job.offload),
        "adapters": job.adapters is not None,
        f"moments in {job.moments}": job.moments != "fp32",
    }
    waits = {"launches": "launches that the GPU waits for"} if waits_for_launches(job, plan) > WAITS else {}
    return {
        "GPU": gpu,
        "generation": generation(gpu),
        "software": job.stack.name.removesuffix("-compiled"),
        **{what: f"{between(number)} {what}" for what, number in numbers.items()},
        **waits,
        **{name: name for name, has in present.items() if has},
    }


def between(number: int) -> str:
    """The two powers of STEP that a number lies between."""
    least = STEP ** int(math.log(number, STEP) + 1e-9)
    return f"{least:,} to {STEP * least - 1:,}"


def waits_for_launches(job: TrainingJob, plan: Plan) -> float:
    """The share of a layer's passes that its GPU waits for the CPU to launch kernels."""
    last = job.shape.layers - 1
    seconds = Pricing(job, plan).unit(job.shape.kind(last)).total
    return float(seconds["launch"] / seconds.total)


def generation(gpu: str) -> str:
    """Ampere, Hopper or Blackwell; of another GPU, its own name."""
    return next((name for name, chips in GENERATIONS.items() if gpu in chips), gpu)


def family(gpu: str) -> str:
    """A100, H100, B200: the same chip in all its forms."""
    # gb200 before b200
    chips = sorted({sheet.partition("-")[0] for sheet in data_sheets()}, key=len, reverse=True)
    return next((chip.upper() for chip in chips if chip in gpu.lower()), gpu)


def error_bar(
    job: TrainingJob, plan: Plan, without: str = "", of: str = "step_error", software: str = ""
) -> ErrorBar:
    """The relative error to expect, of the step or `of` the memory, as a share of the prediction, and a
    sentence on it; `without` leaves the runs of one source out. `software` is what the job's stack only
    stands for."""
    if job.stack.executed:
        return ErrorBar(0.0, "by the clock of the lessons' own runs, which tests hold it to.")
    mine, runs = traits(job, plan), [run for run in known_errors() if run["source"] != without and of in run]
    mine |= {"software": software} if software else {}
    measured = {trait for run in runs for trait in run["traits"]}
    speeds = () if of == "step_error" else SPEEDS
    unmeasured = {kind: trait for kind, trait in mine.items() if trait not in measured and kind not in speeds}
    fraction = percentile(weighted_errors(runs, of), ONE_BAR) * widening(unmeasured)
    names = sorted({*unmeasured.values()})
    missing = f"; wider, because no measured run has {listed(names)}" if names else ""
    return ErrorBar(fraction, f"+- {fraction:.0%}, from {count(len(runs), 'measured run')}{missing}.")


def widening(unmeasured: Mapping[str, str]) -> float:
    """How many times wider a bar is, by the kinds of traits that no run has."""
    if "generation" in unmeasured:
        return ANOTHER_GENERATION * WIDER ** (len(unmeasured) - len({*unmeasured} & {"GPU", "generation"}))
    return WIDER ** len(unmeasured)


def weighted_errors(runs: Sequence[dict[str, Any]], of: str) -> list[tuple[float, float]]:
    """Errors, as shares of the prediction, with their weights, the smallest first; the weights of a source's
    runs add up to 1."""
    by_source = Counter(run["source"] for run in runs)
    return sorted((of_prediction(run[of]), 1 / by_source[run["source"]]) for run in runs)


def of_prediction(error: float) -> float:
    """The absolute error of a prediction as a share of it, from its error as a share of what was measured."""
    return abs(1 / (1 + error) - 1)


def percentile(errors: Sequence[tuple[float, float]], share: float) -> float:
    """The smallest error at which that share of the weights is reached."""
    *_, whole = reached = [*accumulate(weight for _, weight in errors)]
    return next(error for (error, _), sum_so_far in zip(errors, reached) if sum_so_far >= share * whole)


@cache
def known_errors() -> list[dict[str, Any]]:
    return json.loads(ERRORS.read_text("utf-8"))


def usual_errors(job: TrainingJob, plan: Plan) -> dict[str, tuple[float, int]]:
    """The mean error of the measured runs that have a trait of this run, above 0 where they were predicted
    too slow, and how many they are; by trait, of those with enough runs."""
    found = {}
    for trait in [trait for kind, trait in traits(job, plan).items() if kind not in COARSE]:
        errors = [run["step_error"] for run in known_errors() if trait in run["traits"]]
        if len(errors) >= FEWEST:
            found[trait] = sum(errors) / len(errors), len(errors)
    return found


def source_of(words: str) -> str:
    """Who published a run: the first word of where it stands, a paper or a repository."""
    return words.split(" ")[0].rstrip(",;")


def entry(
    name: str, job: TrainingJob, plan: Plan, step_error: float, source: str, memory_error: float | None = None
) -> dict[str, Any]:
    """One run in known_errors.json; errors are rounded to what matters."""
    run = {
        "id": name,
        "source": source_of(source),
        "traits": list(traits(job, plan).values()),
        "step_error": round(step_error, 3),
    }
    return run if memory_error is None else run | {"memory_error": round(memory_error, 3)}
