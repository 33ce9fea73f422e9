"""The training frameworks that can launch a plan: one record for each, and all that ask find it here.

Idea   `--emit` and `ndparallel flags` offer what is in `FRAMEWORKS`; the search leaves out what no record of
       its software can launch; docs/extending.md adds one.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from gpu import Hardware
from ndparallel.base.errors import UserError, check_known, refusal_of
from ndparallel.base.words import option_of
from ndparallel.hardware.architecture import has_bf16
from ndparallel.launch_flags import tables
from ndparallel.launch_flags.accelerate import write as accelerate
from ndparallel.launch_flags.accelerate.read import read_accelerate
from ndparallel.launch_flags.deepspeed import write as deepspeed
from ndparallel.launch_flags.deepspeed.read import read_deepspeed
from ndparallel.launch_flags.frozen import frozen, title
from ndparallel.launch_flags.megatron import rules as megatron_rules
from ndparallel.launch_flags.megatron.read import read_megatron
from ndparallel.launch_flags.megatron.write import emit_megatron
from ndparallel.launch_flags.reading import Beside, Reading
from ndparallel.launch_flags.rules import (
    LaunchRule,
    is_none_of,
    obeyed,
    recomputes_some_layers,
    refuse,
    refuse_beyond_positions,
)
from ndparallel.launch_flags.torchtitan import rules as torchtitan_rules
from ndparallel.launch_flags.torchtitan import write as torchtitan
from ndparallel.launch_flags.torchtitan.read import read_torchtitan
from ndparallel.pipeline.catalog import names_in
from ndparallel.planner.fitted_software import software_on
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.software import STACKS

# switches of the software that a user sets beside a plan
CHOSEN = ("context_parallel", "selective", "hides_dispatch", "graphs")
Row = tuple[str, str, str]  # what has the field, the field, what it becomes


@dataclass(frozen=True)
class Framework:
    """A launch format. `emit` raises UserError for what the framework cannot run, and `read` for what is no
    script of it. A plan is searched among the values that `can_launch` names for its fields, and must obey
    `rules`, which say what does not go together."""

    name: str  # of --framework, --emit and `ndparallel flags`
    emit: Callable[[TrainingJob, Plan], str]
    can_launch: Callable[[], Mapping[str, tuple]]
    frozen: Callable[[], Mapping[str, Any]]  # "framework", "version", "source" and the names of that release
    rows: Callable[[], Sequence[Row]]
    rules: Sequence[LaunchRule] = ()
    software: Sequence[str] = ()  # its stacks; the first is priced where --software names none
    read: Callable[[str, Hardware, Beside], Reading] | None = None
    asks: Sequence[str] = ()  # options that its scripts leave to the program: they are given beside one

    @property
    def release(self) -> str:
        """The framework with its version, as "Megatron-Core 0.19.2"."""
        return title(self.frozen())

    def priced(self, job: TrainingJob) -> TrainingJob:
        """The job on the framework's own software, with those of its switches that are a plan's choice."""
        if not self.software or job.stack.name in self.software or job.stack.executed:
            return job
        name, given = job.stack.name, (job.hardware, job.shape)
        before = software_on(name, *given) if name in STACKS else job.stack
        chosen = {
            name: value for name in CHOSEN if (value := getattr(job.stack, name)) != getattr(before, name)
        }
        return replace(job, stack=replace(software_on(self.software[0], *given), **chosen))

    def has(self, job: TrainingJob, plans: Plan) -> np.ndarray:
        """Which plans it can run. Their fields may be arrays, all but the schedule; chunks on an axis before
        that of the others are all tried."""
        able = np.ones(np.shape(plans.tp), dtype=bool)
        for name in self.can_launch():
            able = able & self.has_value(name, plans)
        return able & obeyed(self.rules, self.priced(job), plans) if able.any() else able

    def has_value(self, name: str, plans: Plan) -> Any:
        """Whether it has the plans' value of a field of `can_launch`; without a pipeline there is no
        schedule."""
        idle = name == "schedule" and np.asarray(plans.pp) == 1
        return idle | ~is_none_of(self.can_launch()[name], getattr(plans, name))

    def written(self, job: TrainingJob, plan: Plan) -> str:
        """The launch script or recipe. Raises UserError, saying what, for what the framework cannot run."""
        self.refuse_without_bf16(job)
        text = self.emit(job, plan)
        refuse_beyond_positions(job)
        for name, values in self.can_launch().items():
            if not self.has_value(name, plan):
                known = " or ".join(map(str, values))
                raise UserError(
                    f"{self.release} has no {option_of(name)} {getattr(plan, name)}; take {known}."
                )
        return text

    @property
    def has_some_layers(self) -> bool:
        """Whether it can recompute some layers of a stage, and keep the others."""
        return all(rule.breaks is not recomputes_some_layers for rule in self.rules)

    def refuse_without_bf16(self, job: TrainingJob) -> None:
        """Raise UserError for a GPU that lacks what all scripts here ask for, and which is priced by fp16."""
        if not has_bf16(job.hardware):
            raise UserError(
                f"scripts for {self.release} are in bf16 here, which {job.hardware.name} does not have: the "
                "plan takes fp16's rate, and fp16 with its loss scaling is not written."
            )

    def refusal(self, job: TrainingJob, plan: Plan) -> str:
        """Why it cannot run this plan, whatever software it was priced for; "" where it can."""
        job = self.priced(job)
        return refusal_of(refuse, self.rules, job, plan) or refusal_of(self.written, job, plan)


MEGATRON = Framework(
    "megatron",
    emit_megatron,
    can_launch=lambda: {"schedule": tuple(names_in("megatron"))},
    frozen=partial(frozen, "megatron"),
    rows=tables.megatron_rows,
    rules=megatron_rules.RULES,
    software=("megatron-core", "nemo"),
    read=read_megatron,
)
TORCHTITAN = Framework(
    "torchtitan",
    torchtitan.emit_torchtitan,
    can_launch=lambda: {"schedule": tuple(names_in("torchtitan")), "zero": (0, 2, 3)},
    frozen=partial(frozen, "torchtitan"),
    rows=tables.torchtitan_rows,
    rules=torchtitan_rules.RULES,
    software=torchtitan.STACKS,
    read=read_torchtitan,
)
DEEPSPEED = Framework(
    "deepspeed",
    deepspeed.emit_deepspeed,
    can_launch=lambda: {
        "schedule": tuple(names_in("deepspeed")),
        "shards": (0,),
        "recompute": ("none", "full"),
        "sequence_parallel": (False,),
    },
    frozen=partial(frozen, "deepspeed"),
    rows=tables.deepspeed_rows,
    rules=deepspeed.RULES,
    software=deepspeed.STACKS,
    read=read_deepspeed,
    asks=("model", "sequence", "lora", "qlora", "lora_on"),
)
ACCELERATE = Framework(
    "accelerate",
    accelerate.emit_accelerate,
    can_launch=lambda: {"schedule": (), "zero": (2, 3), "recompute": ("none", "full")},
    frozen=partial(frozen, "accelerate"),
    rows=tables.accelerate_rows,
    rules=accelerate.RULES,
    software=accelerate.STACKS,
    read=read_accelerate,
    asks=DEEPSPEED.asks,
)
FRAMEWORKS = {framework.name: framework for framework in (MEGATRON, TORCHTITAN, DEEPSPEED, ACCELERATE)}


def emit(framework: str, job: TrainingJob, plan: Plan) -> str:
    """The launch script or recipe of a plan, as `ndparallel plan --emit` prints it. Raises UserError for a
    framework that none is written for, and, saying what, for what the framework cannot run."""
    check_known("launch format", framework, FRAMEWORKS)
    return FRAMEWORKS[framework].written(job, plan)


def whose(job: TrainingJob) -> list[str]:
    """The frameworks whose software is priced; all where it is nobody's."""
    return [framework.name for framework in owners(job)] or [*FRAMEWORKS]


def owners(job: TrainingJob) -> list[Framework]:
    """The frameworks whose software is priced; none where it is nobody's."""
    return [framework for framework in FRAMEWORKS.values() if job.stack.name in framework.software]


def own_refusal(job: TrainingJob, plan: Plan) -> str:
    """Why the framework whose software is priced cannot run the plan; "" where it can, or where it is none of
    FRAMEWORKS."""
    return " ".join(framework.refusal(job, plan) for framework in owners(job))


def values_of(names: Iterable[str]) -> dict[str, tuple]:
    """What at least one of these frameworks has, for the fields of a plan that all of them bound."""
    every = [FRAMEWORKS[name].can_launch() for name in names]
    shared = set.intersection(*(set(one) for one in every)) if every else set()
    return {field: tuple(dict.fromkeys(value for one in every for value in one[field])) for field in shared}


def with_own_jobs(names: Iterable[str], job: TrainingJob) -> list[tuple[Framework, TrainingJob]]:
    """These frameworks, each with the job on its own software."""
    return [(FRAMEWORKS[name], FRAMEWORKS[name].priced(job)) for name in names]


def one_has(frameworks: Sequence[tuple[Framework, TrainingJob]], plans: Plan) -> np.ndarray:
    """Which plans at least one of these frameworks can run; all of them where there is none."""
    able = np.full(np.shape(plans.tp), not frameworks)
    for framework, job in frameworks:
        if not able.all():
            able = able | framework.has(job, plans)
    return able


def launched_by(job: TrainingJob, plan: Plan) -> list[str]:
    """The frameworks that can run this plan."""
    return [name for name, framework in FRAMEWORKS.items() if not framework.refusal(job, plan)]
