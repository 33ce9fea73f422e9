"""What reading a launch script takes, and gives."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from ndparallel.planner.adapters import Adapters
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.models.shape import ModelShape


@dataclass(frozen=True)
class Beside:
    """What is given beside a script. `gpus`, `vocab`, `model`, `sequence` and `adapters` stand in for what it
    does not say, or overrule it; `variables` are set from outside, the script's own arguments by their
    numbers. `name` is its file's, and files that it names are looked for in its `folder`."""

    gpus: int | None = None
    vocab: int | None = None
    model: str | ModelShape | None = None
    sequence: int | None = None
    adapters: Adapters | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    name: str = ""
    folder: Path | None = None

    def with_vocab(self, shape: ModelShape) -> ModelShape:
        """The model with the vocabulary that is given."""
        return replace(shape, vocab=self.vocab) if self.vocab else shape


NOTHING = Beside()


@dataclass(frozen=True)
class Reading:
    """What a launch script trains, and sentences about what was assumed and what was left out."""

    job: TrainingJob
    plan: Plan
    notes: tuple[str, ...]
