"""What the guides of the frameworks say, walked for one job with the numbers at every branch, beside the best
plan that search finds.

Idea   The guides' rules (ndparallel.search.guide_rules) end in plans; the fastest of those that fit is what
       they advise, and a search says how far it is from the best. The search is that of `ndparallel plan`:
       what its frameworks cannot launch is no answer of it, though a guide may end there.
Cost   that of a search.
"""

from dataclasses import dataclass
from typing import Any

from ndparallel.launch_flags.frameworks import launched_by, one_has, with_own_jobs
from ndparallel.planner.job import TrainingJob
from ndparallel.planner.prediction import Prediction, predict
from ndparallel.search.guide_rules import GuideRules
from ndparallel.search.guides import Branch
from ndparallel.search.search import Found, check_job, launchers, search


@dataclass(frozen=True)
class Advice:
    """The branches that were walked, the plans that they end in and that are legal and fit, fastest first,
    and the best by search."""

    branches: list[Branch]
    ways: list[Prediction]
    found: Found

    @property
    def advised(self) -> Prediction | None:
        return self.ways[0] if self.ways else None

    @property
    def longer_than_best(self) -> float | None:
        """Share of the best plan's step by which the advised one is longer; below 0 where it is shorter, and
        cannot be launched."""
        return self.advised.seconds / self.found.best.seconds - 1 if self.advised else None

    def as_dict(self) -> dict[str, Any]:
        longer = self.longer_than_best
        return {
            "branches": [branch.as_dict() for branch in self.branches],
            "advised": launchable(self.advised) if self.advised else None,
            "ways": [launchable(way) for way in self.ways],
            "best": launchable(self.found.best),
            "hides_dispatch": self.found.job.stack.hides_dispatch,
            "longer_than_best_ratio": longer,
            "left_on_the_table_ratio": longer and longer / (1 + longer),  # the same, of the advised step
            **self.found.counts(),
        }


def launchable(found: Prediction) -> dict[str, Any]:
    """A prediction in JSON's types, with who can launch its plan."""
    return found.as_dict() | {"launched_by": launched_by(found.job, found.plan)}


def advise(job: TrainingJob, gpus: int) -> Advice:
    """Follow the rules for `gpus` GPUs, and search. Raises UserError where no plan is legal and fits."""
    check_job(job, gpus)
    rules = GuideRules(job, gpus)
    plans = [plan for plan in rules.plans() if rules.fitting.holds(plan)]
    job = rules.job  # on the software as the guides switch it
    frameworks = with_own_jobs(launchers(job, {}), job)
    found = search(job, gpus, also=[plan for plan in plans if one_has(frameworks, plan)], tight=True)
    answers = sorted((predict(job, plan) for plan in plans), key=lambda each: each.seconds)
    return Advice(rules.branches, answers, found)
