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
        "fp8": job.dtype == "fp8",
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


def error_bar(job: TrainingJob, plan: Plan, without: str = "") -> ErrorBar:
    """The relative error to expect, and a sentence on it; `without` leaves the runs of one source out."""
    if job.stack.executed:
        return ErrorBar(0.0, "by the clock of the lessons' own runs, which tests hold it to.")
    mine, runs = traits(job, plan), [run for run in known_errors() if run["source"] != without]
    comparable, what = alike(mine, runs)
    fraction = sqrt(sum(run["step_error"] ** 2 for run in comparable) / len(comparable))
    strange = [trait for trait in mine.values() if all(trait not in run["traits"] for run in runs)]
    fraction *= WIDER ** len(strange)
    sentence = f"+- {fraction:.0%}, from {count(len(comparable), 'measured run')} {what}"
    return ErrorBar(
        fraction,
        f"{sentence}; wider, because no measured run has {listed(strange)}." if strange else f"{sentence}.",
    )


def alike(mine: dict[str, str], runs: Sequence[dict[str, Any]]) -> tuple[Sequence[dict[str, Any]], str]:
    """The runs with the same GPU and software; where there are too few, with one of them; else all."""
    wanted = (({mine["GPU"], mine["software"]}, "on this GPU and software"), ({mine["GPU"]}, "on this GPU"))
    for need, what in (*wanted, ({mine["software"]}, "on this software")):
        found = [run for run in runs if need <= set(run["traits"])]
        if len(found) >= FEWEST:
            return found, what
    return runs, "of all kinds"


@cache
def known_errors() -> list[dict[str, Any]]:
    return json.loads(ERRORS.read_text("utf-8"))


def source_of(words: str) -> str:
    """Who published a run: the first word of where it stands, a paper or a repository."""
    return words.split(" ")[0].rstrip(",;")


def entry(name: str, job: TrainingJob, plan: Plan, step_error: float, source: str) -> dict[str, Any]:
    """One run in known_errors.json; errors are rounded to what matters."""
    return {
        "id": name,
        "source": source_of(source),
        "traits": list(traits(job, plan).values()),
        "step_error": round(step_error, 3),
    }
