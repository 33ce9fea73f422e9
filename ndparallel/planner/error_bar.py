"""How sure a prediction is: the errors on measured runs that are like it, and wider where none is.

Idea   A job has traits (its GPU, its software, experts, FSDP, a pipeline ...). Runs that share GPU family and
       software are comparable; the bar is the root mean square of their errors. Every trait that no run has
       widens it by half.
Limit  The runs are those of measured_runs.json here. Their errors lie beside them, as `ndparallel validate
       --write-errors` wrote them; a test holds the two together.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from math import sqrt
from typing import Any

from ndparallel.base.words import count, listed
from ndparallel.hardware.accelerator import data_sheets
from ndparallel.planner.job import Plan, TrainingJob

FEWEST = 4  # runs that make a bar
WIDER = 1.5
LARGE = 1024  # GPUs
# what comparable runs share, where not both: software says what is kept, GPUs how quick they are
FIRST = {"step_error": ("GPU", "software"), "memory_error": ("software", "GPU")}
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
        f"more than {LARGE} GPUs": plan.gpus > LARGE,
    }
    return {"GPU": family(job.hardware.name), "software": job.stack.name.split("-")[0]} | {
        name: name for name, has in present.items() if has
    }


def family(gpu: str) -> str:
    """A100, H100, B200: the same chip in all its forms."""
    # gb200 before b200
    chips = sorted({sheet.partition("-")[0] for sheet in data_sheets()}, key=len, reverse=True)
    return next((chip.upper() for chip in chips if chip in gpu.lower()), gpu)


def error_bar(job: TrainingJob, plan: Plan, without: str = "", of: str = "step_error") -> ErrorBar:
    """The relative error to expect, of the step or `of` the memory, and a sentence on it; `without` leaves
    the runs of one source out."""
    if job.stack.executed:
        return ErrorBar(0.0, "by the clock of the lessons' own runs, which tests hold it to.")
    mine, runs = traits(job, plan), [run for run in known_errors() if run["source"] != without and of in run]
    comparable, what = alike(mine, runs, FIRST[of])
    fraction = sqrt(sum(run[of] ** 2 for run in comparable) / len(comparable))
    strange = [trait for trait in mine.values() if all(trait not in run["traits"] for run in runs)]
    fraction *= WIDER ** len(strange)
    sentence = f"+- {fraction:.0%}, from {count(len(comparable), 'measured run')} {what}"
    return ErrorBar(
        fraction,
        f"{sentence}; wider, because no measured run has {listed(strange)}." if strange else f"{sentence}.",
    )


def alike(
    mine: dict[str, str], runs: Sequence[dict[str, Any]], first: tuple[str, str] = ("GPU", "software")
) -> tuple[Sequence[dict[str, Any]], str]:
    """The runs with the same GPU and software; where there are too few, with one of them, in that order; else
    all."""
    wanted = [(set(first), "on this GPU and software"), *(({kind}, f"on this {kind}") for kind in first)]
    for kinds, what in wanted:
        found = [run for run in runs if {mine[kind] for kind in kinds} <= set(run["traits"])]
        if len(found) >= FEWEST:
            return found, what
    return runs, "of all kinds"


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
