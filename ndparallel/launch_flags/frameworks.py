"""The training frameworks that can launch a plan: one record for each, and all that ask find it here.

Idea   `--emit` and `ndparallel flags` offer what is in `FRAMEWORKS`; the search leaves out what a record
       cannot launch; docs/extending.md adds one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ndparallel.launch_flags import fields
from ndparallel.launch_flags.frozen import frozen, title
from ndparallel.launch_flags.megatron import emit_megatron
from ndparallel.launch_flags.read_megatron import Reading, read_megatron
from ndparallel.launch_flags.torchtitan import emit_torchtitan
from ndparallel.pipeline.catalog import names_in
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.software import find_stack

Row = tuple[str, str, str]  # what has the field, the field, what it becomes


@dataclass(frozen=True)
class Framework:
    """A launch format. `emit` raises UserError for what the framework cannot run, and `read` for what is no
    script of it; a plan is searched among the values that `can_launch` names for its fields."""

    name: str  # of --emit and `ndparallel flags`
    emit: Callable[[TrainingJob, Plan], str]
    can_launch: Callable[[], Mapping[str, tuple]]
    frozen: Callable[[], Mapping[str, Any]]  # "framework", "version", "source" and the names of that release
    rows: Callable[[], Sequence[Row]]
    software: str | None = None  # the stack that is priced where --software names none
    read: Callable[..., Reading] | None = None

    @property
    def release(self) -> str:
        """The framework with its version, as "Megatron-Core 0.19.2"."""
        return title(self.frozen())

    def priced(self, job: TrainingJob) -> TrainingJob:
        """The job on the framework's own software; how keys and values travel stays as it was asked for."""
        if self.software is None:
            return job
        return replace(job, stack=replace(find_stack(self.software), cp_gathers=job.stack.cp_gathers))


MEGATRON = Framework(
    "megatron",
    emit_megatron,
    can_launch=lambda: {"schedule": tuple(names_in("megatron")), "zero": (0, 1, 3)},
    frozen=partial(frozen, "megatron"),
    rows=fields.megatron_rows,
    read=read_megatron,
)
TORCHTITAN = Framework(
    "torchtitan",
    emit_torchtitan,
    can_launch=lambda: {"schedule": tuple(names_in("torchtitan")), "zero": (0, 2, 3)},
    frozen=partial(frozen, "torchtitan"),
    rows=fields.torchtitan_rows,
    software="torchtitan",
)
FRAMEWORKS = {framework.name: framework for framework in (MEGATRON, TORCHTITAN)}
