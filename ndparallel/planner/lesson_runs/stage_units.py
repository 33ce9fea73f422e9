"""What the ranks of a pipeline stage hold in an executed run of the lessons: units, and their buckets.

Idea   Buckets are cut as ndparallel/training/buckets.py cuts them, and stages as ndparallel/model/stages.py
       does.

Glossary
    kind     of a unit: embedding, block or head
    run      units one after another that share buckets
    owners   ranks that average the same gradients: (of all but experts, of experts)
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from ndparallel.base.bfloat16 import wide_dtype
from ndparallel.model import costs
from ndparallel.model.routing import capacity
from ndparallel.model.stages import layers_per_stage
from ndparallel.model.units import ModelConfig, Unit
from ndparallel.parallel.mesh import Mesh
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.lesson_runs.cluster import LockstepMachine
from ndparallel.planner.lesson_runs.model import check_executed, config_of
from ndparallel.planner.lesson_runs.record import LessonRank
from ndparallel.planner.lesson_runs.routing import Routes
from ndparallel.planner.lesson_runs.vocabulary import VocabularyParts
from ndparallel.planner.step.streams import Item


@dataclass(frozen=True)
class StageUnits:
    """The units of one plan of a job of the lessons' model."""

    job: TrainingJob
    plan: Plan

    def __post_init__(self) -> None:
        check_executed(self.job, self.plan)

    @cached_property
    def config(self) -> ModelConfig:
        return config_of(self.job)

    @cached_property
    def mesh(self) -> Mesh:
        plan = self.plan
        return Mesh(plan.tp, plan.cp, plan.dp, plan.pp, plan.ep, etp=plan.etp(self.job.stack))

    @cached_property
    def machine(self) -> LockstepMachine:
        return LockstepMachine(self.job.hardware, self.mesh, self.itemsize)

    def stage_machine(self, rank: int) -> LockstepMachine:
        """The GPUs of one pipeline rank."""
        return replace(self.machine, stage=rank)

    @property
    def on_grid(self) -> bool:
        """Whether every GPU is timed. FSDP in a pipeline is: gathers wait for what other stages reduce."""
        return self.job.stack.grid or (self.plan.zero == 3 and self.plan.pp > 1)

    @property
    def itemsize(self) -> int:
        """Bytes of a weight, and of an activation."""
        return costs.itemsize(self.job.stack.dtype)

    @property
    def wide_dtype(self) -> str:
        """The dtype of masters and moments of weights, and of the global norm."""
        return wide_dtype(self.job.stack.dtype)

    @property
    def has_masters(self) -> bool:
        return self.wide_dtype != self.job.stack.dtype

    @property
    def gradient_dtype(self) -> str:
        """The dtype in which gradients are kept and summed."""
        in_two_bytes = self.has_masters and self.job.stack.gradient_bytes == self.itemsize
        return self.job.stack.dtype if in_two_bytes else self.wide_dtype

    @property
    def gradient_itemsize(self) -> int:
        return costs.itemsize(self.gradient_dtype)

    @property
    def sequence_parallel(self) -> str:
        if not self.plan.sequence_parallel:
            return "none"
        return "sp-regather" if self.job.stack.regathers else "sp"

    @cached_property
    def rank(self) -> LessonRank:
        """The class of ranks that all stand for."""
        plan, stack, config = self.plan, self.job.stack, self.config
        rank = LessonRank(
            config,
            replace(self.mesh, pp=1),
            plan.micro_batch,
            self.sequence_parallel,
            stack.context_parallel,
            stack.dtype,
            plan.recompute,
            stack.tp_parts,
            stack.tp_overlap,
        )
        return replace(rank, rows=self.rows_to_each_expert(rank)) if config.experts else rank

    def rows_to_each_expert(self, rank: LessonRank) -> float:
        """Return how many rows one rank sends: the mean, or what a full expert takes."""
        config, tokens = self.config, rank.tokens * rank.batch // self.plan.tp
        mean = tokens * config.top_k / config.experts
        return min(mean, capacity(self.job.capacity_factor, tokens, config.top_k, config.experts))

    @cached_property
    def vocabulary(self) -> VocabularyParts:
        return VocabularyParts(self.rank, self.on_grid)

    @property
    def units(self) -> dict[str, Unit]:
        """Units by kind, for their parameters; of ranks with the largest part of the vocabulary."""
        return self.vocabulary.units[0]

    @cached_property
    def kinds(self) -> list[tuple[str, ...]]:
        """The units of each stage, as ndparallel/model/stages.py spreads them."""
        kinds = [("block",) * count for count in layers_per_stage(self.config, self.plan.stages)]
        kinds[0] = ("embedding", *kinds[0])
        kinds[-1] = (*kinds[-1], "head")
        return kinds

    def layers(self, stage: int) -> range:
        """The model's layers on a stage, by number."""
        behind = sum(kinds.count("block") for kinds in self.kinds[:stage])
        return range(behind, behind + self.kinds[stage].count("block"))

    def routed_block(self, op: str, layer: int, microbatch: int, machine: LockstepMachine) -> list[Item]:
        """A block's pass on all ranks of the machine, with the rows that the run's own router sent."""
        assert self.job.token_counts
        sent = self.job.token_counts.sent(
            layer, microbatch, self.mesh.world_size, machine.members, self.config.experts
        )
        rows = Routes(self.mesh, machine.members, sent).rows
        return self.rank.items("block", op, rows)

    def runs(self, stage: int) -> list[list[str]]:
        """Runs of whole units of at least the stack's smallest bucket, the last unit's first. Without a
        grid FSDP gathers each unit by itself."""
        least = 0 if self.plan.zero == 3 and not self.on_grid else self.job.stack.bucket_bytes
        runs: list[list[str]] = [[]]
        for kind in reversed(self.kinds[stage]):
            if runs[-1] and self.whole(runs[-1]) >= least:
                runs.append([])
            runs[-1].insert(0, kind)
        return runs

    def whole(self, run: Sequence[str]) -> int:
        """Bytes of a run of units."""
        return sum(self.units[kind].nbytes for kind in run)

    @property
    def averaging_groups(self) -> tuple[str, str]:
        return "dp_cp" if self.plan.cp > 1 else "dp", "expert_dp"

    @property
    def owners(self) -> np.ndarray:
        """Ranks that average: (all but experts, experts)."""
        return np.array([self.plan.dp * self.plan.cp, self.mesh.expert_sizes["expert_dp"]])

    def parts(self, rank: int) -> list[tuple[Any, int]]:
        """Elements of each bucket of a pipeline rank, and which of the `owners` share them."""
        stages = reversed(self.plan.layout.stages_of(rank))
        runs = [run for stage in stages for run in self.runs(stage)]
        return [(size, kind) for run in runs for _, size, kind in self.vocabulary.parts(run)]
