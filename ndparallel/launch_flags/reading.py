"""What reading a launch script gives."""

from dataclasses import dataclass

from ndparallel.planner.job import Plan, TrainingJob


@dataclass(frozen=True)
class Reading:
    """What a launch script trains, and sentences about what was assumed and what was left out."""

    job: TrainingJob
    plan: Plan
    notes: tuple[str, ...]
