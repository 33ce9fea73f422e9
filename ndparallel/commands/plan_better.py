"""What would be better than the plan of a launch script: the search's best, of those that the framework can
launch.

Cost   One search of the same job on the same GPUs.
"""

from typing import Any

from gpu import si
from ndparallel.base.errors import UserError
from ndparallel.base.words import duration
from ndparallel.launch_flags.frameworks import Framework
from ndparallel.planner.describe import plan_words
from ndparallel.planner.prediction import Prediction
from ndparallel.results.printing import progress
from ndparallel.search.search import search
from ndparallel.search.tables import effort_words


def comparison(found: Prediction, framework: Framework) -> tuple[dict[str, Any], list[str]]:
    """For JSON, and in a sentence; null where nothing is better."""
    with progress() as announce:
        announce(effort_words(int(found.plan.gpus)))
        best = better(found, framework)
    return {"better": best and best.as_dict()}, [sentence(found, best, framework)]


def better(found: Prediction, framework: Framework) -> Prediction | None:
    """The fastest plan that the framework can launch, if it is faster than what was found, or that does not
    fit."""
    try:
        schedules = {"schedule": framework.can_launch()["schedule"]}
        ranked = search(found.job, int(found.plan.gpus), schedules, also=[found.plan]).answers
    except UserError:  # no plan fits
        return None
    best = next((one for one in ranked if can_launch(one, framework)), None)
    return best if best and (best.seconds < found.seconds or found.missing_bytes > 0) else None


def can_launch(found: Prediction, framework: Framework) -> bool:
    try:
        return bool(framework.emit(found.job, found.plan))
    except UserError:
        return False


def sentence(found: Prediction, best: Prediction | None, framework: Framework) -> str:
    if best is None:
        return f"The search finds no plan that {framework.release} can launch and that is faster and fits."
    gain = duration(best.seconds, found.seconds).removeprefix("takes ")
    fits = ", and fits" if found.missing_bytes > 0 else ""
    plan = plan_words(best.plan)
    return (
        f"Of the plans that {framework.release} can launch, the search's best takes "
        f"{si(best.seconds, 's')}, {gain}{fits}: {plan}."
    )
