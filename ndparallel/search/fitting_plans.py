"""The plans of one job on so many GPUs that are legal and fit: the largest microbatch, the shortest pipeline,
as much TP, CP and EP as there is room for. Which of them to take is for others to say."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import gcd

from ndparallel.model.costs import RECOMPUTE
from ndparallel.parallel.divisibility import divisors
from ndparallel.pipeline.catalog import default_schedule
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.legality import violations
from ndparallel.planner.prediction import legal_and_fits

LEAST_MICROBATCHES = 4  # for every pipeline rank


@dataclass(frozen=True)
class FittingPlans:
    """What this job can run."""

    job: TrainingJob
    gpus: int

    @cached_property
    def memory_bytes(self) -> float:
        return self.job.usable_bytes()

    @property
    def node(self) -> int:
        return self.job.hardware.gpus_per_node

    def holds(self, plan: Plan) -> bool:
        return legal_and_fits(self.job, plan, self.memory_bytes)

    def can_be_cut(self, tp: int, cp: int = 1) -> bool:
        """Whether such degrees are legal, with as little ZeRO as the job can have."""
        zero = 3 if self.job.weights_away else 0
        return not any(violations(self.job, Plan(tp=tp, cp=cp, zero=zero)))

    def has_few_microbatches(self, plan: Plan) -> bool:
        return bool(plan.microbatches(self.job) < LEAST_MICROBATCHES * plan.pp)

    # ---- degrees

    def widest_tp(self) -> int:
        """As much TP as a node has GPUs, and the model heads for; 1 where no plan can be."""
        return max((tp for tp in divisors(gcd(self.node, self.gpus)) if self.can_be_cut(tp)), default=1)

    def cuts_sequences(self, tp: int) -> bool:
        return tp > 1 and self.job.stack.sequence_parallel

    def longest_context(self, tp: int, most: int) -> int:
        """As much CP beside this TP as can be, up to `most`."""
        some = [cp for cp in divisors(self.gpus // tp) if 1 < cp <= most]
        return max((cp for cp in some if self.can_be_cut(tp, cp)), default=1)

    def experts_within(self, plan: Plan, reach: int) -> int:
        """As much EP as `reach` GPUs have room for beside TP, and as divides experts and DP."""
        if not self.job.shape.experts:
            return 1
        common = gcd(self.job.shape.experts.experts, plan.dp)
        return max(ep for ep in divisors(common) if ep * plan.tp <= reach or ep == 1)

    # ---- without a pipeline

    def largest_microbatch(self, plan: Plan) -> Plan | None:
        """The plan with the largest microbatch that fits; where none does, recomputed."""
        share = self.job.global_batch // plan.dp
        for recompute in RECOMPUTE:
            some = [replace(plan, micro_batch=size, recompute=recompute) for size in divisors(share)]
            if able := [one for one in some if self.holds(one)]:
                return able[-1]
        return None

    # ---- with a pipeline

    def first_that_fits(self, plans: Sequence[Plan], reach: int = 1) -> Plan | None:
        """The first of these that fits in some pipeline, interleaved if that can be; EP and TP together
        within `reach` GPUs."""
        ways: tuple[Callable[[Plan], list[Plan]], ...] = (self.interleaved, lambda deep: [deep])
        found = (self.shortest_pipeline(plan, able, reach) for able, plan in product(ways, plans))
        return first_of(found)

    def shortest_pipeline(self, plan: Plan, able: Callable[[Plan], list[Plan]], reach: int) -> Plan | None:
        """The plan with the shortest pipeline that fits, in one of the ways that it is able to run."""
        rest = self.gpus // (plan.tp * plan.cp)
        deep = (replace(plan, pp=pp, dp=rest // pp) for pp in divisors(rest))
        whole = (replace(one, ep=self.experts_within(one, reach)) for one in deep)
        return first_of(way for one in whole for way in able(one) if self.holds(way))

    def interleaved(self, plan: Plan) -> list[Plan]:
        """The plan with several chunks, those in the middle first ("a middle value often gives the best
        balance"); the most of them first where microbatches are few ("when a global batch contains many
        micro-batches, using a smaller VPP size can improve performance")."""
        layers = self.job.shape.layers
        each = layers // plan.pp if layers % plan.pp == 0 else (layers + 2) // plan.pp
        legal = divisors(max(each, 1))[1:]
        first = len(legal) - 1 if self.has_few_microbatches(plan) else (len(legal) - 1) // 2
        ordered = sorted(legal, key=lambda chunks: abs(legal.index(chunks) - first))
        some = [replace(plan, chunks=chunks, schedule=default_schedule(chunks)) for chunks in ordered]
        return some if plan.pp > 1 else [plan]


def first_of(plans: Iterable[Plan | None]) -> Plan | None:
    return next(filter(None, plans), None)
