"""N-D parallelism for training large models: real numbers and honest seconds, from one GPU to a cluster.

The names in `__all__` are the public API and keep their place when files move; `gpu` and `collectives` are
public modules of their own. A name is imported when it is first used, so that `import ndparallel` is quick.
"""

# ruff: noqa: I001, F401  gpu comes first: it sets one BLAS thread a GPU before numpy is imported
import gpu
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what the table below does, in words that type checkers read; a test holds them equal
    from collectives import Group as Group
    from gpu import (
        CLASSROOM as CLASSROOM,
        GPU as GPU,
        Hardware as Hardware,
        Link as Link,
        MismatchError as MismatchError,
        Operation as Operation,
        OutOfMemoryError as OutOfMemoryError,
    )
    from ndparallel.base.errors import UserError as UserError
    from ndparallel.drawing.lanes import timeline as timeline
    from ndparallel.drawing.memory import memory_history as memory_history
    from ndparallel.engines.launch import (
        DeadlockError as DeadlockError,
        RankError as RankError,
        RankResult as RankResult,
        Ranks as Ranks,
        launch as launch,
    )
    from ndparallel.hardware.accelerator import find_hardware as find_hardware
    from ndparallel.hardware.pocket import POCKET as POCKET
    from ndparallel.launch_flags.frameworks import emit as emit
    from ndparallel.lessons.lesson import Lesson as Lesson, Strategy as Strategy
    from ndparallel.lessons.table import run_lesson as run_lesson
    from ndparallel.lessons.registry import load as load_lesson
    from ndparallel.model.units import ModelConfig as ModelConfig
    from ndparallel.parallel.mesh import Mesh as Mesh
    from ndparallel.pipeline.catalog import build as build_schedule
    from ndparallel.pipeline.timing import time_schedule as time_schedule
    from ndparallel.pipeline.work import Work as Work
    from ndparallel.planner.fitted_software import software_on as software_on
    from ndparallel.planner.goodput import (
        FailureModel as FailureModel,
        best_interval as best_interval,
        duration as training_duration,
        expected_goodput as expected_goodput,
    )
    from ndparallel.planner.job import Plan as Plan, TrainingJob as TrainingJob
    from ndparallel.planner.models.presets import find_model as find_model
    from ndparallel.planner.options import plan_for as plan_for
    from ndparallel.planner.prediction import predict as predict
    from ndparallel.planner.software import find_stack as find_stack
    from ndparallel.search.search import search as search_plans
    from ndparallel.training.job import Job as Job

PUBLIC = {
    "CLASSROOM": "gpu:CLASSROOM",
    "DeadlockError": "ndparallel.engines.launch:DeadlockError",
    "FailureModel": "ndparallel.planner.goodput:FailureModel",
    "GPU": "gpu:GPU",
    "Group": "collectives:Group",
    "Hardware": "gpu:Hardware",
    "Job": "ndparallel.training.job:Job",
    "Lesson": "ndparallel.lessons.lesson:Lesson",
    "Link": "gpu:Link",
    "Mesh": "ndparallel.parallel.mesh:Mesh",
    "MismatchError": "gpu:MismatchError",
    "ModelConfig": "ndparallel.model.units:ModelConfig",
    "Operation": "gpu:Operation",
    "OutOfMemoryError": "gpu:OutOfMemoryError",
    "POCKET": "ndparallel.hardware.pocket:POCKET",
    "Plan": "ndparallel.planner.job:Plan",
    "RankError": "ndparallel.engines.launch:RankError",
    "RankResult": "ndparallel.engines.launch:RankResult",
    "Ranks": "ndparallel.engines.launch:Ranks",
    "Strategy": "ndparallel.lessons.lesson:Strategy",
    "TrainingJob": "ndparallel.planner.job:TrainingJob",
    "UserError": "ndparallel.base.errors:UserError",
    "Work": "ndparallel.pipeline.work:Work",
    "best_interval": "ndparallel.planner.goodput:best_interval",
    "build_schedule": "ndparallel.pipeline.catalog:build",
    "emit": "ndparallel.launch_flags.frameworks:emit",
    "expected_goodput": "ndparallel.planner.goodput:expected_goodput",
    "find_hardware": "ndparallel.hardware.accelerator:find_hardware",
    "find_model": "ndparallel.planner.models.presets:find_model",
    "find_stack": "ndparallel.planner.software:find_stack",
    "launch": "ndparallel.engines.launch:launch",
    "load_lesson": "ndparallel.lessons.registry:load",
    "memory_history": "ndparallel.drawing.memory:memory_history",
    "plan_for": "ndparallel.planner.options:plan_for",
    "predict": "ndparallel.planner.prediction:predict",
    "run_lesson": "ndparallel.lessons.table:run_lesson",
    "search_plans": "ndparallel.search.search:search",
    "software_on": "ndparallel.planner.fitted_software:software_on",
    "time_schedule": "ndparallel.pipeline.timing:time_schedule",
    "timeline": "ndparallel.drawing.lanes:timeline",
    "training_duration": "ndparallel.planner.goodput:duration",
}
__all__ = [*PUBLIC]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    """Import a public name on its first use, and with it the pictures that notebooks show and the algorithms
    of collective/algorithms.py, beside those of collectives.py."""
    if name not in PUBLIC:
        raise AttributeError(f"module 'ndparallel' has no attribute {name!r}")
    for registering in ("ndparallel.collective.algorithms", "ndparallel.drawing.notebook"):
        import_module(registering)
    module, _, attribute = PUBLIC[name].partition(":")
    globals()[name] = value = getattr(import_module(module), attribute)
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *PUBLIC])
