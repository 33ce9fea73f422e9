"""When the ranks of a written schedule end, without timing every action of a long step.

Idea   Once a pipeline is full, every round of microbatches takes the same. So a short step is timed action by
       action, and the rounds between it and the real step are added (ndparallel.pipeline.rounds). Where they
       do not follow from it, all are timed; of a very long step two short ones, and what the longer one takes
       more is added.
Cost   A tenth of a microsecond for each action that is timed (ndparallel/pipeline/steps.py).
Limit  All microbatches are alike. A very long step whose rounds differ is right to some thousandths.

Glossary
    round   microbatches after which a full pipeline may do the same again: as many as there are ranks, or as
            are in a group
    pace    seconds of a microbatch in a full pipeline
"""

from collections.abc import Iterator
from functools import cached_property, lru_cache

from ndparallel.base.sums import sum_of
from ndparallel.pipeline.actions import Layout
from ndparallel.pipeline.replay import Ends, Replay, replay_of
from ndparallel.pipeline.rounds import round_seconds
from ndparallel.pipeline.schedules import RECIPES
from ndparallel.pipeline.work import Work
from ndparallel.pipeline.work_by_rank import busiest, longest_reducing, way_up, work_by_rank

FULL_ROUNDS = 3  # rounds of microbatches after which a pipeline is in its stride
WHOLE = 5000  # microbatches times stages of a step that is not very long: it takes some milliseconds
PERIOD = 2  # microbatches after which most full pipelines without groups do the same again


class ScheduleTimer:
    """Times one schedule on whatever seconds its actions take."""

    def __init__(self, schedule: str, ranks: int, chunks: int, microbatches: int) -> None:
        self.schedule, self.microbatches = schedule, microbatches
        self.recipe, self.ranks, self.chunks = RECIPES[schedule], ranks, chunks
        self.layout = Layout(self.recipe.layout, ranks, chunks)
        self.per_round = per_round(schedule, int(microbatches), int(ranks))

    @cached_property
    def rounds(self) -> tuple[Replay, Replay, float]:
        """The whole step, or the `short_steps` of a very long one."""
        if self.microbatches * self.layout.stages <= WHOLE:
            return self.replay(self.microbatches), self.replay(self.microbatches), 0.0
        return self.short_steps

    @cached_property
    def short_steps(self) -> tuple[Replay, Replay, float]:
        """Two short steps, one round apart, and how many rounds more than the first the real one has; the
        real one, twice, where it is as short."""
        few = FULL_ROUNDS * self.per_round + self.microbatches % self.per_round
        if self.microbatches <= few + self.per_round:
            return self.replay(self.microbatches), self.replay(self.microbatches), 0.0
        return self.replay(few), self.replay(few + self.per_round), (self.microbatches - few) / self.per_round

    def replay(self, microbatches: int) -> Replay:
        group = self.per_round if self.recipe.group else None
        return replay_of(self.schedule, self.ranks, microbatches, self.chunks, group)

    def full_steps(self) -> Iterator[tuple[Replay, Replay]]:
        """Short steps that fill the pipeline, each with one that has another round, the shortest first."""
        sizes = [(FULL_ROUNDS * self.per_round, self.per_round)]
        if not self.recipe.group:
            in_flight = int(self.recipe.peak_in_flight(self.microbatches, 0, self.ranks, self.chunks))
            sizes.insert(0, (in_flight + 2 * PERIOD, PERIOD))
        for full, period in sizes:
            few = full + (self.microbatches - full) % period
            if few < self.microbatches:
                yield self.replay(few), self.replay(few + period)

    def paced(self, durations: Work) -> tuple[Ends, float] | None:
        """The ends of all microbatches, and a full pipeline's pace, where all its rounds take the same."""
        for few, more in self.full_steps():
            if found := round_seconds(few, more, durations):
                (ends, seconds), timed = found, few.schedule.microbatches
                pace = seconds / (more.schedule.microbatches - timed)
                return ends.later((self.microbatches - timed) * pace), pace
        return None

    def exact_ends(self, durations: Work) -> Ends:
        """The ends of all microbatches, however long it takes to time them."""
        paced = self.paced(durations)
        return paced[0] if paced else self.replay(self.microbatches).ends(durations)

    def ends_after_rounds(self, durations: Work) -> Ends:
        """The ends of all microbatches: exact where rounds are all alike, or where there are few."""
        if paced := self.paced(durations):
            return paced[0]
        few, more, rounds = self.rounds
        before = few.ends(durations)
        return self.extrapolated(before, more.ends(durations), durations) if rounds else before

    def extrapolated(self, before: Ends, after: Ends, durations: Work) -> Ends:
        """Extrapolate each rank's end from the two short steps. A rank whose memory limits its lead runs at
        the busiest rank's pace in the end, so no round is quicker than that; and none ends before
        `soonest_ends`."""
        few, more, rounds = self.rounds
        least = busiest(few, durations) if few.peaks == more.peaks else 0.0
        least = self.per_round * max(least, longest_reducing(few, durations))
        end, complete, reduced = (
            [start + rounds * max(end - start, least) for start, end in zip(*moments)]
            for moments in zip(before[1:], after[1:])
        )
        soonest = self.soonest_ends(before.start, durations)
        lacks = [max(0.0, least - found) for least, found in zip(soonest, end)]
        return Ends(
            before.start,
            [found + lack for found, lack in zip(end, lacks)],
            [found + lacks[self.layout.rank(stage)] for stage, found in enumerate(complete)],
            [found + lack for found, lack in zip(reduced, lacks)],
        )

    def soonest_ends(self, start: list[float], durations: Work) -> list[float]:
        """When ranks that start so can end at the soonest: each does its own work on every microbatch, and
        the first one waits until the last gradients have come up from every other."""
        replay, splits = self.rounds[0], self.recipe.splits
        stages = [self.layout.stages_of(rank) for rank in range(self.ranks)]
        weights = durations.seconds_by_stage(self.layout.stages)["W"]
        up = way_up(replay, durations, "I" if splits else "B")
        own = [self.microbatches * each for each in work_by_rank(replay, durations)]
        left = [self.microbatches * splits * sum_of(weights[stage] for stage in held) for held in stages]
        first = max(
            begin + busy - later + up[min(held)] for begin, busy, later, held in zip(start, own, left, stages)
        )
        return [max(first, start[0] + own[0]), *(begin + busy for begin, busy in zip(start[1:], own[1:]))]


@lru_cache(maxsize=256)
def per_round(schedule: str, microbatches: int, ranks: int) -> int:
    """After how many microbatches a full pipeline does the same again."""
    return RECIPES[schedule].microbatches_per_round(microbatches, ranks)
