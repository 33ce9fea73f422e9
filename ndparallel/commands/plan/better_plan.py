"""What would be better than the plan of a launch script: what the search takes, of the plans that the
framework can launch.

Cost   One search of the same job on the same GPUs.
"""

from typing import Any

from gpu import si
from ndparallel.base.errors import UserError
from ndparallel.base.words import compare_durations
from ndparallel.launch_flags.frameworks import Framework
from ndparallel.planner.plan_name import name_of
from ndparallel.planner.prediction import Prediction
from ndparallel.results.progress import progress
from ndparallel.search.kinds import margin
from ndparallel.search.search import search_whole_too
from ndparallel.search.tables import effort_words


def comparison(found: Prediction, framework: Framework) -> tuple[dict[str, Any], list[str]]:
    """The better plan for JSON, and in a sentence; null where nothing is better."""
    with progress() as announce:
        announce(effort_words(int(found.plan.gpus)))
        best = better(found, framework)
    return {"better": best and best.as_dict()}, [sentence(found, best, framework)]


def better(found: Prediction, framework: Framework) -> Prediction | None:
    """The plan to take of those that the framework can launch, if predictions can tell that it is faster than
    what was found, or if that does not fit."""
    try:
        names, gpus = [framework.name], int(found.plan.gpus)
        searched = search_whole_too(found.job, gpus, frameworks=names, also=[found.plan], kinds=True)
    except UserError:  # no plan fits
        return None
    faster = found.seconds > searched.best.seconds * (1 + margin(found.job, searched.best.plan))
    return searched.recommended if faster or found.missing_bytes > 0 else None


def sentence(found: Prediction, best: Prediction | None, framework: Framework) -> str:
    if best is None:
        return (
            f"The search finds no plan that {framework.release} can launch and that is faster by more than "
            "predictions can tell apart, and fits."
        )
    gain = compare_durations(best.seconds, found.seconds).removeprefix("takes ")
    fits = ", and fits" if found.missing_bytes > 0 else ""
    return (
        f"Of the plans that {framework.release} can launch, the search's choice takes "
        f"{si(best.seconds, 's')}, {gain}{fits}: {name_of(best.plan)}{beside(found, best)}."
    )


def beside(found: Prediction, best: Prediction) -> str:
    """Say that tp cuts no expert of the better plan, where it cuts those of the other; "" else."""
    return ", where tp cuts no expert" * (best.plan.tp > 1 and best.job.stack != found.job.stack)
