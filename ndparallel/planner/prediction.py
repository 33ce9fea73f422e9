"""All that `ndparallel plan` answers about one plan: time and where it goes, memory, utilisation, the error
to expect.

Idea   Everything follows from the step, the memory of every pipeline rank, and the definitions of MFU and HFU
       in flops.py.

Glossary: see `ndparallel.planner.job`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from ndparallel.base.errors import UserError
from ndparallel.planner.error_bar import ErrorBar, error_bar
from ndparallel.planner.job import TOGETHER, Plan, TrainingJob
from ndparallel.planner.layers.flops import model_flops, recomputed_flops
from ndparallel.planner.legality import check, violations
from ndparallel.planner.memory.in_flight import in_flight_by_rank
from ndparallel.planner.memory.states import checkpoint_bytes
from ndparallel.planner.memory.total import (
    STAGE_MEMORY_KINDS,
    StageMemory,
    memory_by_rank,
    most_on_host,
)
from ndparallel.planner.plan_name import name_of
from ndparallel.planner.step.framework import FrameworkWorkload, framework_workload
from ndparallel.planner.step.pipeline import PipelineTimer
from ndparallel.planner.step.pipeline_journal import framework_sharing
from ndparallel.planner.step.step import Step, time_workload

if TYPE_CHECKING:
    from ndparallel.planner.lesson_runs.workload import ExecutedWorkload

AnyWorkload: TypeAlias = "FrameworkWorkload | ExecutedWorkload"

DAY = 86_400
PLAN_FIELDS = (
    "tp",
    "pp",
    "dp",
    "ep",
    "cp",
    "chunks",
    "micro_batch",
    "schedule",
    "zero",
    "shards",
    "sequence_parallel",
    "recompute",
    "recompute_layers",
)


@dataclass(frozen=True)
class Prediction:
    """What one plan of one job takes: its workload, the step that was timed, the memory of every pipeline
    rank."""

    job: TrainingJob
    work: AnyWorkload
    step: Step
    memory: list[StageMemory]

    def __reduce__(self) -> tuple:
        """Travel to another process as job and plan, from which the same is predicted again."""
        return predicted_again, (self.job, self.plan)

    @property
    def plan(self) -> Plan:
        return self.work.plan

    @property
    def name(self) -> str:
        """The plan's name, which `plan_for` and --plan read."""
        return name_of(self.plan)

    @property
    def seconds(self) -> float:
        return self.step.seconds

    @property
    def microbatches(self) -> int:
        """Microbatches of one data-parallel rank."""
        return int(self.plan.microbatches(self.job))

    @property
    def tokens(self) -> int:
        """Tokens of one step."""
        return self.job.global_batch * self.job.sequence

    @property
    def tokens_per_second_per_gpu(self) -> float:
        return self.tokens / self.seconds / self.plan.gpus

    @property
    def flops_per_second_per_gpu(self) -> float:
        """Model FLOPs: what the mathematics needs."""
        return model_flops(self.job) / self.seconds / self.plan.gpus

    @property
    def mfu(self) -> float:
        return self.flops_per_second_per_gpu / self.job.peak

    @property
    def hfu(self) -> float:
        again = recomputed_flops(self.job, self.plan) / self.seconds / self.plan.gpus
        return self.mfu + again / self.job.peak

    @cached_property
    def sharing_seconds(self) -> float:
        """What the step would take longer if collectives and messages of several groups shared a GPU's ports,
        as --contention replays the lessons' runs. It is not in `seconds`, as a replay takes up to ten seconds
        where layers exchange much across nodes."""
        return answers_for(self.work).sharing(self.work)

    @property
    def fullest(self) -> StageMemory:
        return max(self.memory, key=lambda memory: memory.total)

    @property
    def missing_bytes(self) -> float:
        """What the fullest GPU lacks; below 0, what it has left."""
        return float(self.fullest.total - self.job.hardware.memory_bytes)

    @cached_property
    def error_bar(self) -> ErrorBar:
        return error_bar(self.job, self.plan)

    @cached_property
    def memory_bar(self) -> ErrorBar:
        return error_bar(self.job, self.plan, of="memory_error")

    @property
    def checkpoint_bytes(self) -> float:
        """Bytes of what a checkpoint keeps of the whole model."""
        return checkpoint_bytes(self.job)

    @cached_property
    def host_state_bytes(self) -> float:
        """Bytes of states that a host keeps for the GPU that leaves most to it."""
        return most_on_host(self.job, self.plan) if {*TOGETHER} & {*self.job.offload} else 0.0

    @property
    def doubtful_bytes(self) -> float:
        """Bytes by which the memory may be above the predicted one: its error bar."""
        return float(self.fullest.total) * self.memory_bar.fraction

    @property
    def is_tight(self) -> bool:
        """Whether it fits as predicted, and does not one error bar above."""
        return -self.doubtful_bytes < self.missing_bytes <= 0

    def days(self, tokens: float) -> float:
        return tokens / self.tokens * self.seconds / DAY

    def cost(self, tokens: float, price_per_gpu_hour: float) -> float:
        """What these tokens cost, in the price's currency, where nothing fails."""
        return self.days(tokens) * 24 * self.plan.gpus * price_per_gpu_hour

    def training(self, tokens: float, price_per_gpu_hour: float | None = None) -> dict[str, float]:
        """How long so many tokens take, and what they cost, in JSON's types."""
        cost = {} if price_per_gpu_hour is None else {"cost": self.cost(tokens, price_per_gpu_hour)}
        return {"days": self.days(tokens), "tokens": tokens} | cost

    def as_dict(self) -> dict[str, Any]:
        """Tell it in JSON's types, with the stable keys."""
        return {
            "step_seconds": self.seconds,
            "breakdown_seconds": {kind: float(seconds) for kind, seconds in self.step.breakdown.items()},
            "launch_wait_seconds": self.step.launch_seconds,
            "breakdown_of_pipeline_rank": self.step.rank,
            "busiest_pipeline_rank": self.step.busiest,
            "tokens_per_second_per_gpu": self.tokens_per_second_per_gpu,
            "tflops_per_gpu": self.flops_per_second_per_gpu / 1e12,
            "mfu": self.mfu,
            "peak_flops_per_second": self.job.peak,
            "hfu": self.hfu,
            "parameters": self.job.shape.parameters().total,
            "memory_bytes_per_stage": [stage_bytes(memory) for memory in self.memory],
            # what PyTorch prints of the fullest GPU
            "memory_allocated_bytes": float(self.fullest.allocated),
            "memory_reserved_bytes": float(self.fullest.reserved),
            "host_state_bytes_per_gpu": self.host_state_bytes,
            "fits": self.missing_bytes <= 0,
            "tight": self.is_tight,
            "memory_error_bar": self.memory_bar.fraction,
            "error_bar": self.error_bar.fraction,
            "gpus": int(self.plan.gpus),
            "microbatches": self.microbatches,
            "name": self.name,
            "plan": {name: getattr(self.plan, name) for name in PLAN_FIELDS}
            | {"recompute_modules": [*self.plan.recompute_modules]},
            "etp": int(self.plan.etp(self.job.stack)),
        }


def stage_bytes(memory: StageMemory) -> dict[str, float]:
    return {name: float(getattr(memory, name)) for name in ("total", *STAGE_MEMORY_KINDS)}


def predict(job: TrainingJob, plan: Plan) -> Prediction:
    """Predict one plan. Raises UserError, with the nearest legal value, for a plan that cannot be."""
    if isinstance(plan, str):
        raise UserError(f"plan is the name {plan!r}: give plan_for(job, gpus, {plan!r}).")
    check(job, plan)
    return prediction_of(job, workload_of(job, plan))


def prediction_of(job: TrainingJob, work: AnyWorkload) -> Prediction:
    """The prediction of a workload."""
    return Prediction(job, work, step_of(work), memory_of(work))


def predicted_again(job: TrainingJob, plan: Plan) -> Prediction:
    """The prediction of a plan that was predicted before."""
    return prediction_of(job, workload_of(job, plan))


def time_step(job: TrainingJob, plan: Plan) -> Step:
    """Time one plan."""
    return step_of(workload_of(job, plan))


def peak_memory(job: TrainingJob, plan: Plan) -> StageMemory:
    """The memory of the fullest pipeline rank."""
    return max(memory_of(workload_of(job, plan)), key=lambda memory: memory.total)


def legal_and_fits(job: TrainingJob, plan: Plan, memory_bytes: float | None = None) -> bool:
    """Whether a plan is legal, and holds no more than these bytes on a GPU (default: all of its memory)."""
    most = job.hardware.memory_bytes if memory_bytes is None else memory_bytes
    return not any(violations(job, plan)) and float(peak_memory(job, plan).total) <= most


# ----------------------------------------------------------- a real framework's plan, or the lessons' own run


def workload_of(job: TrainingJob, plan: Plan) -> AnyWorkload:
    """What the plan's ranks do in a step."""
    if not job.stack.executed:
        return framework_workload(job, plan)
    from ndparallel.planner.lesson_runs.workload import ExecutedWorkload

    return ExecutedWorkload(job, plan)


class Answers(NamedTuple):
    """What answers for one kind of workload: its step, its memory by rank, and what shared ports add."""

    step: Callable[[Any], Step]
    memory: Callable[[Any], list[StageMemory]]
    sharing: Callable[[Any], float]


def answers_for(work: AnyWorkload) -> Answers:
    if isinstance(work, FrameworkWorkload):
        return Answers(time_workload, framework_memory, framework_sharing)
    from ndparallel.planner.lesson_runs.journal import executed_sharing
    from ndparallel.planner.lesson_runs.step import executed_memory, executed_step

    return Answers(executed_step, executed_memory, executed_sharing)


def step_of(work: AnyWorkload) -> Step:
    """Time a workload."""
    return answers_for(work).step(work)


def memory_of(work: AnyWorkload) -> list[StageMemory]:
    """The memory of every pipeline rank at its peak."""
    return answers_for(work).memory(work)


def framework_memory(work: FrameworkWorkload) -> list[StageMemory]:
    return memory_by_rank(work.job, work.plan, in_flight(work))


def in_flight(work: FrameworkWorkload) -> list[float]:
    """Chunks that each pipeline rank keeps at the most. A searched schedule depends on seconds."""
    if work.plan.pp > 1 and work.plan.recipe.is_searched:
        return PipelineTimer(work).whole.peaks
    return in_flight_by_rank(work.job, work.plan)
