"""The step of a pipeline: the schedule's own actions, and then each rank's gradients and optimizer.

Idea   The schedule is timed (ndparallel.pipeline.schedule_timer) on the seconds of its actions
       (ndparallel.planner.step.action_seconds). Where somebody asks where the time goes, it is timed a second
       time with messages that take no time: what that saves is waiting for messages, and the rest of the
       waiting is bubble and imbalance.
Limit  All microbatches are alike.

Glossary
    imbalance   what the pipeline rank that is done last waits for slower ones in a full pipeline: it grows
                with the microbatches
    bubble      what it waits besides, while the pipeline fills and drains: as long for any number of
                microbatches
    pace        seconds of a microbatch in a full pipeline
    tail        what a rank still does when its last action is done: see ndparallel.planner.step.tail
"""

from functools import cached_property

from ndparallel.pipeline.actions import Schedule
from ndparallel.pipeline.replay import Ends, Replay
from ndparallel.pipeline.rounds import ends_by_rounds
from ndparallel.pipeline.schedule_timer import ScheduleTimer
from ndparallel.pipeline.work import Work
from ndparallel.planner.layers.breakdown import TimeBreakdown, total
from ndparallel.planner.step.action_seconds import ActionSeconds, is_plain
from ndparallel.planner.step.paired import pairs_run, saved
from ndparallel.planner.step.searched_schedule import replay_of_step
from ndparallel.planner.step.tail import Tails
from ndparallel.planner.step.workload import Workload

UNLIKE = 0.01  # by which the stages between the first and the last differ where layers are not spread evenly


class PipelineTimer(ScheduleTimer):
    """Times one workload on the seconds of its actions, in four stages, each once, when it is asked for,
    from those above it."""

    def __init__(self, work: Workload) -> None:
        plan = work.plan
        super().__init__(plan.schedule, plan.pp, plan.chunks, plan.microbatches(work.job))
        self.plan, self.work, self.actions = plan, work, ActionSeconds(work)

    # ---- 1. when each rank ends its last action

    @cached_property
    def whole(self) -> Replay:
        """The replay of all of a step's microbatches."""
        durations = self.actions.durations if self.plan.recipe.is_searched else None
        return replay_of_step(self.plan, self.microbatches, durations)

    @cached_property
    def ends(self) -> Ends:
        return self.ends_of(self.actions.durations)

    def ends_of(self, durations: Work) -> Ends:
        """When each rank ends its last action. Where a searched schedule's steps follow without a stop, that
        is the end of its own span (2401.10241, section 4)."""
        if not self.plan.recipe.is_searched:
            return self.ends_after_rounds(durations)
        ends = ends_by_rounds(self.whole, durations)
        span = ends.longest_span
        later = [span - end for end in ends.end]
        complete = [
            moment + later[self.plan.layout.rank(stage)] for stage, moment in enumerate(ends.complete)
        ]
        reduced = [moment + wait for moment, wait in zip(ends.reduced, later)]
        return Ends(ends.start, [span] * self.plan.pp, complete, reduced)

    # ---- 2. the rank that is done last

    @cached_property
    def tails(self) -> Tails:
        return Tails(self.work, self.ends)

    @cached_property
    def last(self) -> int:
        return self.tails.last

    @cached_property
    def busy(self) -> TimeBreakdown:
        """Seconds of the last rank's passes in a step, by kind, without what pairs hide."""
        forward, *backward = self.work.columns
        passes = (forward, self.work.whole_backward) if self.work.whole_backward else (forward, *backward)
        stages = self.plan.layout.stages_of(self.last)
        alone = total(column[stage] for column in passes for stage in stages)
        alone = alone.times(self.microbatches)
        if not self.actions.pairs:
            return alone
        few, more, rounds = self.rounds
        hidden = [
            saved(*self.actions.passes_of(pair)).times(-times)
            for pair, times in pairs_run(few.schedule, more.schedule, rounds, self.last).items()
        ]
        return total((alone, *hidden))

    # ---- 3. the pace of a full pipeline, and the same step without messages

    @property
    def busiest_sets_pace(self) -> bool:
        """Whether a full pipeline without messages goes at the busiest rank's pace. It may be slower where a
        schedule parts backward passes, as its order is made for F, I and W that take as long as one another;
        and where some of a rank's stages have more to do than others, as ranks that are all as busy wait for
        one another. The first and the last stage always differ."""
        inner = self.actions.work_by_stage[1:-1]
        unlike = self.plan.chunks > 1 and max(inner) > min(inner) * (1 + UNLIKE)
        return not (self.plan.recipe.splits or unlike)

    @property
    def last_never_waits(self) -> bool:
        """Whether 1F1B's last rank, without messages, works without a stop from its first microbatch on. As
        the busiest it sends gradients up at its own pace, which leaves every rank time for the next forward
        pass; and the first gradient comes behind the forward passes before it, if none is long."""
        longest_forward, work = max(self.actions.by_stage[0]), self.actions.work_by_rank
        return is_plain(self.plan) and work[-1] == max(work) and longest_forward <= min(work)

    @cached_property
    def without_messages(self) -> tuple[float, float]:
        """When the last rank would end if messages took no time, and the pipeline's pace then: timed where it
        is not the busiest rank's."""
        busiest = max(self.actions.work_by_rank)
        if self.plan.recipe.is_searched:
            return ends_by_rounds(self.whole, self.actions.silent).longest_span, busiest
        if self.busiest_sets_pace:
            # of as few microbatches as leave whole rounds
            few = min(self.microbatches, self.per_round + self.microbatches % self.per_round)
            timed = 1 if self.last_never_waits else few
            end = self.replay(timed).ends(self.actions.silent).end[self.last]
            return end + (self.microbatches - timed) * busiest, busiest
        if paced := self.paced(self.actions.silent):
            return paced[0].end[self.last], paced[1]
        shorter, longer, rounds = self.rounds
        longer = longer if rounds else self.replay(self.microbatches + self.per_round)
        before, after = (replay.ends(self.actions.silent).end[self.last] for replay in (shorter, longer))
        pace = max(busiest, (after - before) / self.per_round)
        return before + rounds * self.per_round * pace, pace

    # ---- 4. the step, and where its time goes

    @cached_property
    def acting(self) -> float:
        """When the last rank ends its last action. Rounds that are not timed one by one may fall short of its
        work by some thousandths."""
        return max(self.ends.end[self.last], float(self.busy.total))

    @cached_property
    def seconds(self) -> float:
        """Seconds of the step."""
        return self.acting + float(self.tails[self.last].total)

    def breakdown(self) -> TimeBreakdown:
        """Seconds of the rank that is done last, by kind. Of what it waits, the imbalance is what it would
        wait were the pipeline always full: as long as a full round takes more than its own work of one."""
        end, (silent_end, pace) = self.ends.end[self.last], self.without_messages
        unreduced_end = self.ends_of(self.actions.unreduced).end[self.last] if self.plan.zero == 2 else end
        found, bubble = TimeBreakdown(), self.acting - float(self.busy.total)
        for kind, seconds in (
            ("dp", end - unreduced_end),  # for gradients that are reduced after every microbatch
            ("pp", unreduced_end - silent_end),
            ("imbalance", self.microbatches * (pace - self.actions.work_by_rank[self.last])),
        ):
            found[kind] = min(bubble, max(0.0, seconds))
            bubble -= found[kind]
        return self.busy + self.tails[self.last] + found + TimeBreakdown(bubble=bubble)

    @property
    def busiest(self) -> int:
        return self.actions.work_by_rank.index(max(self.actions.work_by_rank))


def schedule_of(work: Workload) -> Schedule:
    """The schedule of all of a step's microbatches."""
    return PipelineTimer(work).whole.schedule
