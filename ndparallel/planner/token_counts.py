"""How many rows every rank of an executed run sent to every expert: what its router decided, for the planner
to follow.

Idea   A router's choices depend on the weights and on the text, which no planner knows. An executed run notes
       them (ndparallel.model.units.Routed); given the notes of one step, the planner predicts that step's
       clock to the last digit, and its memory to the byte where all shards are as large.
Limit  One step: its layers, microbatches and ranks. A shard counts as large as the largest, also on the rank
       with most rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ndparallel.base.errors import UserError

if TYPE_CHECKING:
    from ndparallel.model.units import Routed


@dataclass(frozen=True, eq=False)
class TokenCounts:
    """Rows by (layer, microbatch), by rank, by expert."""

    rows: Mapping[tuple[int, int], Mapping[int, Sequence[int]]]

    @classmethod
    def of_step(cls, routed: Sequence[Mapping[tuple[str, int], "Routed"]]) -> "TokenCounts":
        """Count what each rank noted of one step: `outcome.routed[step]` of
        ndparallel.training.replica.Outcome, rank by rank."""
        rows: dict[tuple[int, int], dict[int, Sequence[int]]] = {}
        for rank, noted in enumerate(routed):
            for (layer, microbatch), what in noted.items():
                rows.setdefault((int(layer.rpartition(".")[2]), microbatch), {})[rank] = what.sent_rows
        return cls(rows)

    def sent(
        self, layer: int, microbatch: int, world_size: int, ranks: Sequence[int] | np.ndarray, experts: int
    ) -> np.ndarray:
        """(world_size, experts), zeros but for `ranks`. Raises UserError for ranks that the counts do not
        tell of."""
        there = self.rows.get((layer, microbatch))
        if there is None:
            raise UserError(
                f"the token counts have no layer {layer}, microbatch {microbatch}: give those of a run of "
                "this job."
            )
        found = np.zeros((world_size, experts), int)
        for rank in map(int, ranks):
            found[rank] = whole(
                there.get(rank, ()), experts, f"layer {layer}, microbatch {microbatch}, rank {rank}"
            )
        return found


def whole(rows: Sequence[int], experts: int, where: str) -> Sequence[int]:
    if len(rows) != experts:
        raise UserError(
            f"the token counts have {len(rows)} experts for {where}, the job has {experts}: give those of a "
            "run of this job."
        )
    return rows
