"""The screen "Cluster": one plan of a real model on real GPUs, what it costs, and what would change it.

Idea   The set-up is a command line of `ndparallel plan`, read by its own parser; the prediction, its
       sentences and the launch scripts are the command's. The search has a process of its own (finding.py).
Limit  A config.json travels in the page's address, so that a link restores it: MOST_CONFIG characters.
"""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from gpu import si
from ndparallel.base.errors import UserError, refusal_of
from ndparallel.base.options import Parser
from ndparallel.base.words import change_in, three_digits
from ndparallel.explorer.lanes import lanes
from ndparallel.explorer.setup import Control, checked, command, controls_and_reason, words
from ndparallel.hardware.accelerator import data_sheets
from ndparallel.launch_flags.frameworks import FRAMEWORKS
from ndparallel.model.costs import RECOMPUTE
from ndparallel.pipeline.catalog import RECIPES
from ndparallel.planner.describe import headline, parts, plan_words, sentences
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.legality import DTYPES
from ndparallel.planner.memory.total import STAGE_MEMORY_KINDS, StageMemory
from ndparallel.planner.models.huggingface.read import shape_of
from ndparallel.planner.models.presets import presets
from ndparallel.planner.models.shape import ModelShape
from ndparallel.planner.option_groups import add_job_options, add_plan_options
from ndparallel.planner.options import job_and_plan, job_from, with_defaults
from ndparallel.planner.picture import shown_ranks, timeline_of
from ndparallel.planner.prediction import Prediction, predict
from ndparallel.planner.software import STACKS
from ndparallel.search.search import MOST_GPUS, MOST_OF_A_BATCH
from ndparallel.search.what_if import changed_plan

PROGRAM = "ndparallel plan"
JOB, PLAN, CHANGE = "the job", "the plan", "what if"
DROPPED, MOST_CONFIG = "config.json", 20_000
TOKENS = 1e12
DEGREE_STOPS = (1, 2, 4, 8, 16, 32, 64)
CHANGES = (
    "nothing",
    "bandwidth_across*2",
    "bandwidth_across/2",
    "bandwidth_inside*2",
    "latency_across=0",
    "memory_bandwidth*2",
    "peak*2",
    "sequence*2",
    "global_batch*2",
    "gpus*2",
)
THE_JOB = (
    Control(
        "model", "--model", tuple(presets()), "llama-3-70b", "a preset, or a config.json dropped in", JOB
    ),
    Control(
        "hardware", "--hardware", tuple(data_sheets()), "h100", "the GPU and its links", JOB, usual="h100"
    ),
    Control("gpus", "--gpus", (), 512, "GPUs in all", JOB, most=MOST_GPUS),
    Control("global_batch", "--global-batch", (), 512, "sequences in a step", JOB, most=MOST_OF_A_BATCH),
    Control(
        "sequence", "--sequence", (), 8192, "tokens in a sequence", JOB, usual=4096, most=MOST_OF_A_BATCH
    ),
    Control("dtype", "--dtype", DTYPES, "bf16", "of the layers' matmuls", JOB, usual="bf16"),
    Control("software", "--software", ("usual", *STACKS), "usual", "what runs it", JOB, usual="usual"),
)
THE_PLAN = (
    Control("tp", "--tp", DEGREE_STOPS[:5], 8, "tensor parallel", PLAN, most=1024),
    Control("pp", "--pp", DEGREE_STOPS, 4, "pipeline parallel", PLAN, usual=1, most=1024),
    Control("cp", "--cp", DEGREE_STOPS, 1, "context parallel", PLAN, usual=1, most=1024),
    Control("ep", "--ep", DEGREE_STOPS, 1, "expert parallel", PLAN, usual=1, most=1024),
    Control("zero", "--zero", (0, 1, 2, 3), 1, "what data parallelism shards; 3 is FSDP", PLAN, usual=0),
    Control(
        "shards",
        "--shards",
        (0, 4, 8, 16, 32, 64),
        0,
        "of ZeRO-3: over so many ranks, and replicated; 0 is all",
        PLAN,
        usual=0,
        most=4096,
    ),
    Control(
        "sequence_parallel",
        "",
        ("usual", "--sequence-parallel", "--no-sequence-parallel"),
        "usual",
        "norms and residuals are cut beside tp",
        PLAN,
        usual="usual",
    ),
    Control(
        "micro_batch",
        "--micro-batch",
        DEGREE_STOPS[:5],
        1,
        "sequences in a microbatch",
        PLAN,
        usual=1,
        most=4096,
    ),
    Control("schedule", "--schedule", tuple(RECIPES), "1f1b", "of the pipeline", PLAN, usual="1f1b"),
    Control(
        "chunks",
        "--chunks",
        (0, 1, 2, 4, 5, 8),
        0,
        "stages of a GPU; 0 is as many as usual",
        PLAN,
        usual=0,
        most=1024,
    ),
    Control(
        "recompute",
        "--recompute",
        RECOMPUTE,
        "none",
        "what runs again in the backward pass",
        PLAN,
        usual="none",
    ),
)
CONTROLS = (
    *THE_JOB,
    *THE_PLAN,
    Control(
        "what_if",
        "--what-if",
        CHANGES,
        CHANGES[0],
        "one thing more, and all else stays",
        CHANGE,
        usual=CHANGES[0],
    ),
)


@dataclass(frozen=True)
class PlanQuestion:
    """What the page asks: the controls as they may be set here, where they stand, and a model that was
    dropped in."""

    controls: Sequence[Control]
    setup: dict[str, Any]
    model: ModelShape | None

    @property
    def job(self) -> TrainingJob:
        """The job alone, for a search. Raises UserError where there is none."""
        return job_from(self.arguments(THE_JOB, self.setup))

    def command(self, controls: Sequence[Control], *more: str) -> str:
        return " ".join([command(PROGRAM, controls, self.setup), *more])

    def job_and_plan(self, setup: Mapping[str, Any]) -> tuple[TrainingJob, Plan]:
        """The job and the plan of the controls. Raises UserError as the command does."""
        return job_and_plan(self.arguments(CONTROLS[:-1], setup))

    def arguments(self, controls: Sequence[Control], setup: Mapping[str, Any]) -> argparse.Namespace:
        given = with_defaults(parser().parse_args(words(controls, setup)))
        return argparse.Namespace(**vars(given) | ({"model": self.model} if self.model else {}))

    def refusal(self, setup: Mapping[str, Any]) -> str:
        """Say why a plan cannot be; nothing where it can."""
        return refusal_of(lambda: self.changed(*self.job_and_plan(setup), setup["what_if"]))

    def changed(self, job: TrainingJob, plan: Plan, change: str) -> tuple[TrainingJob, Plan]:
        return (job, plan) if change == CHANGES[0] else changed_plan(job, plan, change)


@cache
def parser() -> Parser:
    parser = Parser(prog=PROGRAM)
    add_job_options(parser)
    add_plan_options(parser)
    return parser


def question_of(given: Mapping[str, Any]) -> PlanQuestion:
    """Check what the page sent. Raises UserError for a value that cannot be set, or a config.json that is
    none."""
    text = str(given.get("config", ""))
    setup = {name: value for name, value in given.items() if name != "config"}
    controls = list(CONTROLS)
    if text:
        controls[0] = replace(controls[0], stops=(*controls[0].stops, DROPPED))
    found = checked(controls, setup)
    return PlanQuestion(controls, found, model_in(text) if found["model"] == DROPPED else None)


def model_in(text: str) -> ModelShape:
    if len(text) > MOST_CONFIG:
        raise UserError(f"this {DROPPED} has {len(text):,} characters; at most {MOST_CONFIG:,} are read.")
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError):
        raise UserError(f"this {DROPPED} is not JSON.") from None
    if not isinstance(entries, dict):
        raise UserError(f"this {DROPPED} is no object with keys.")
    try:
        return shape_of(entries, DROPPED, DROPPED)
    except UserError as error:
        raise UserError(f"{DROPPED}: {error}") from None


def answer(given: Mapping[str, Any]) -> dict[str, Any]:
    """Predict one plan. What cannot be says why, and shows what else could be set."""
    asked = question_of(given)
    head = {
        "command": asked.command(CONTROLS),
        "search": asked.command(THE_JOB),
        **controls_and_reason(asked.controls, asked.setup, asked.refusal),
    }
    if "reason" in head:
        return head
    job, plan = asked.job_and_plan(asked.setup)
    found = predict(job, plan)
    return head | {
        "row": found.as_dict() | {"days": found.days(TOKENS), "tokens": TOKENS},
        "cells": cells(found),
        "headline": f"{job.shape.name}: {headline(found)}",
        "parts": [part_of(found, name, seconds) for name, seconds in parts(found)],
        "memory": memory(found),
        "remarks": [with_sign(sentence) for sentence in (*sentences(found, TOKENS), *job.shape.notes)],
        "timeline": lanes(timeline_of(found), "rank" if found.plan.pp > 1 else "GPU"),
        "what_if": change_of(asked, found),
        "launch": {name: launch(name, asked, found) for name in FRAMEWORKS},
    }


def with_sign(sentence: str) -> str:
    """A sentence for the terminal, as the page shows it."""
    return sentence.replace("+- ", "±")


def cells(found: Prediction) -> dict[str, str]:
    """Return the prediction in a few numbers, as the page shows them."""
    return {
        "step": si(found.seconds, "s"),
        "error to expect": f"±{found.error_bar.fraction:.0%}",
        "tokens/s/GPU": f"{found.tokens_per_second_per_gpu:,.0f}",
        "MFU": f"{found.mfu:.1%}",
        "fullest GPU": si(float(found.fullest.total), "B") + ", tight" * found.is_tight,
        f"{TOKENS:.0e} tokens".replace("e+", "e"): f"{three_digits(found.days(TOKENS))} days",
    }


def part_of(found: Prediction, name: str, seconds: float) -> dict[str, Any]:
    return {"name": name, "seconds": seconds, "text": f"{si(seconds, 's')}, {seconds / found.seconds:.1%}"}


def memory(found: Prediction) -> dict[str, Any]:
    """Return what a GPU of every pipeline rank holds at its peak; of a long pipeline, of some ranks."""
    limit = found.job.hardware.memory_bytes
    return {
        "limit_bytes": limit,
        "limit": si(limit, "B"),
        "kinds": STAGE_MEMORY_KINDS,
        "ranks": [
            rank_memory(rank, found.memory[rank]) for rank in shown_ranks(len(found.memory), found.step.rank)
        ],
    }


def rank_memory(rank: int, held: StageMemory) -> dict[str, Any]:
    by_kind = [float(getattr(held, kind)) for kind in STAGE_MEMORY_KINDS]
    return {
        "rank": rank,
        "total": si(float(held.total), "B"),
        "by_kind": by_kind,
        "text": [f"{kind} {si(each, 'B')}" for kind, each in zip(STAGE_MEMORY_KINDS, by_kind) if each],
    }


def change_of(asked: PlanQuestion, found: Prediction) -> dict[str, Any] | None:
    """Return the same plan after the change that was asked for, and by how much it is slower or faster."""
    change = asked.setup["what_if"]
    if change == CHANGES[0]:
        return None
    now = predict(*asked.changed(found.job, found.plan, change))
    return {
        "change": change,
        "row": now.as_dict(),
        "cells": cells(now),
        "text": f"{change}: {si(now.seconds, 's')}, {change_in(now.seconds, found.seconds)}. "
        f"{plan_words(now.plan)}",
    }


def launch(name: str, asked: PlanQuestion, found: Prediction) -> dict[str, str]:
    """Return a framework's launch script, and the command that prints it; or why it has none."""
    framework = FRAMEWORKS[name]
    job = found.job if asked.setup["software"] != "usual" else framework.priced(found.job)
    head = {"title": framework.release, "command": asked.command(CONTROLS[:-1], "--emit", name)}
    try:
        return head | {"text": framework.written(job, found.plan)}
    except UserError as error:
        return head | {"reason": str(error)}


# ---------------------------------------------------------------------------------------------- plans found


def controls_of(job: TrainingJob, plan: Plan) -> dict[str, Any]:
    """Return where the controls of a plan stand."""
    usual_parallel = job.stack.sequence_parallel and plan.tp > 1
    values = {name: getattr(plan, name) for name in ("schedule", "recompute")} | {
        name: int(getattr(plan, name)) for name in ("tp", "pp", "cp", "ep", "zero", "shards", "micro_batch")
    }
    chunked = plan.chunks != RECIPES[plan.schedule].default_chunks
    words = "--sequence-parallel" if plan.sequence_parallel else "--no-sequence-parallel"
    return values | {
        "chunks": int(plan.chunks) * chunked,
        "sequence_parallel": "usual" if bool(plan.sequence_parallel) == usual_parallel else words,
    }


def rows_of(found: Sequence[Prediction]) -> Iterator[dict[str, Any]]:
    """Yield plans that were found: in words, in numbers, and as the controls that show them."""
    for each in found:
        yield {"plan": plan_words(each.plan), "cells": cells(each), "setup": controls_of(each.job, each.plan)}
