"""The rules of thumb that circulate, walked for one job with the numbers at every branch, beside the best
plan that search finds.

Idea   "Fits on one GPU: DP. Under 10 billion parameters: DP or FSDP. 10 to 100: FSDP, or TP and PP. Above:
       all three, TP within the node, then PP, then DP; EP for experts, sequence or context parallelism for
       long sequences, 4 to 8 microbatches for every pipeline rank, virtual stages from PP 4 on; TP where a
       layer does not fit." Followed to the letter, they make a plan, and it has a price.
Cost   that of a search.
Limit  Folklore has many tellings; this one is stated here, and where it leaves two ways open, both are walked
       and the faster one is taken.
"""

from concurrent.futures import Executor
from dataclasses import dataclass, replace
from math import gcd
from typing import Any

from gpu import si
from ndparallel.pipeline.catalog import default_schedule
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.legality import violations
from ndparallel.planner.models.sizes import divisors
from ndparallel.planner.prediction import Prediction, fits, peak_memory, predict
from ndparallel.planner.stages import elements_of
from ndparallel.search.search import Found, search

SMALL, LARGE = 10e9, 100e9  # parameters
STATE_BYTES = 18  # of a parameter in mixed precision: weight and gradient, master weight and two moments
# tokens: from where on context parallelism, and how many each rank should have
LONG_SEQUENCE, SHARE_OF_SEQUENCE = 32_768, 8_192
MICROBATCHES = (4, 8)  # for every pipeline rank
VIRTUAL_FROM = 4  # pipeline ranks


@dataclass(frozen=True)
class Branch:
    """One question, the numbers that answer it, and what follows."""

    question: str
    numbers: dict[str, float]
    follows: str


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
    def left_on_the_table(self) -> float | None:
        """Share of the advised step that the best plan saves."""
        return 1 - self.found.best.seconds / self.advised.seconds if self.advised else None

    def as_dict(self) -> dict[str, Any]:
        return {
            "branches": [vars(branch) for branch in self.branches],
            "advised": self.advised.as_dict() if self.advised else None,
            "ways": [way.as_dict() for way in self.ways],
            "best": self.found.best.as_dict(),
            "left_on_the_table_ratio": self.left_on_the_table,
        }


def advise(job: TrainingJob, gpus: int, executor: Executor | None = None) -> Advice:
    """Walk the rules for `gpus` GPUs, and search. Raises UserError where no plan at all is legal and fits."""
    walk = Walk(job, gpus)
    plans = [plan for plan in walk.plans() if not any(violations(job, plan)) and fits(job, plan)]
    found = search(job, gpus, also=plans, executor=executor)
    answers = sorted((predict(job, plan) for plan in plans), key=lambda each: each.seconds)
    return Advice(walk.branches, answers, found)


class Walk:
    """One job on its way through the rules. `branches` grows as questions are asked."""

    def __init__(self, job: TrainingJob, gpus: int):
        self.job, self.gpus, self.branches = job, gpus, list[Branch]()
        self.parameters = job.shape.parameters().total
        self.node = job.hardware.gpus_per_node

    def ask(self, question: str, follows: str, **numbers: float) -> None:
        self.branches.append(Branch(question, numbers, follows))

    def plans(self) -> list[Plan]:
        """What the rules end in: one plan, or two where they leave two ways open."""
        if self.fits_on_one():
            return [self.data_parallel(zero=0)]
        cut = not self.largest_layer_fits()
        billions = self.parameters / 1e9
        if cut:
            return [self.three_dimensions()]
        if self.parameters < SMALL:
            self.ask(
                "under 10 billion parameters?",
                "yes: FSDP, sharded data parallelism",
                parameters=self.parameters,
            )
            return [self.data_parallel(zero=3)]
        if self.parameters < LARGE:
            self.ask(
                f"10 to 100 billion parameters? {billions:.4g}",
                "yes: FSDP, or TP and PP",
                parameters=self.parameters,
            )
            return [self.data_parallel(zero=3), self.three_dimensions()]
        self.ask(
            f"over 100 billion parameters? {billions:.4g}",
            "yes: 3D, TP and PP and DP",
            parameters=self.parameters,
        )
        return [self.three_dimensions()]

    # ---- questions

    def fits_on_one(self) -> bool:
        need, has = float(peak_memory(self.job, Plan(dp=self.gpus)).total), self.job.hardware.memory_bytes
        yes = need <= has
        follows = "yes: DP" if yes else "no: states have to be cut"
        self.ask(
            f"fits on one GPU? {si(need, 'B')} of {si(has, 'B')}",
            follows,
            needed_bytes=need,
            memory_bytes=has,
        )
        return yes

    def largest_layer_fits(self) -> bool:
        kinds = ["dense", "experts"] if self.job.shape.experts else ["dense"]
        elements = max(float(sum(elements_of(self.job, Plan(), kind))) for kind in [*kinds, "embedding"])
        need, has = elements * STATE_BYTES, self.job.hardware.memory_bytes
        follows = "yes: TP is not forced" if need <= has else "no: TP has to cut it"
        self.ask(
            f"largest layer fits? {si(need, 'B')} of {si(has, 'B')}",
            follows,
            needed_bytes=need,
            memory_bytes=has,
        )
        return need <= has

    # ---- the ways

    def data_parallel(self, zero: int) -> Plan:
        """DP or FSDP over all GPUs; where there are more of them than sequences, TP takes the rest."""
        tp = next(
            (tp for tp in divisors(self.gpus) if self.job.global_batch % (self.gpus // tp) == 0), self.gpus
        )
        if tp > 1:
            self.ask(
                "a sequence for every GPU?",
                f"no: TP{tp}, so that {self.gpus // tp} share the batch",
                sequences=self.job.global_batch,
            )
        plan = Plan(tp=tp, dp=self.gpus // tp, zero=zero, sequence_parallel=self.cuts_sequences(tp))
        return self.with_experts(self.filled(plan))

    def three_dimensions(self) -> Plan:
        tp = self.within_node()
        cp = self.context(tp)
        plan = Plan(tp=tp, cp=cp, zero=1, sequence_parallel=self.cuts_sequences(tp))
        plan = self.with_experts(self.deep_enough(plan))
        return self.virtual(self.microbatched(plan))

    def cuts_sequences(self, tp: int) -> bool:
        return tp > 1 and self.job.stack.sequence_parallel

    def within_node(self) -> int:
        """As much TP as a node has GPUs, and the model heads for."""
        legal = [
            tp for tp in divisors(gcd(self.node, self.gpus)) if not any(violations(self.job, Plan(tp=tp)))
        ]
        self.ask(
            f"TP within the node? {self.node} GPUs a node",
            f"TP{legal[-1]}",
            gpus_per_node=self.node,
            tp=legal[-1],
        )
        return legal[-1]

    def context(self, tp: int) -> int:
        long = self.job.sequence >= LONG_SEQUENCE
        wanted = self.job.sequence // SHARE_OF_SEQUENCE if long else 1
        legal = [
            cp
            for cp in divisors(self.gpus // tp)
            if cp <= wanted and not any(violations(self.job, Plan(tp=tp, cp=cp)))
        ]
        follows = (
            f"yes: CP{legal[-1]}"
            if long
            else "no: sequence parallelism with TP will do"
            if self.cuts_sequences(tp)
            else "no"
        )
        self.ask(
            f"long sequences? {self.job.sequence} tokens", follows, sequence=self.job.sequence, cp=legal[-1]
        )
        return legal[-1]

    def deep_enough(self, plan: Plan) -> Plan:
        """The shortest pipeline that fits; recomputation only where no pipeline does without."""
        rest = self.gpus // (plan.tp * plan.cp)
        for recompute in ("none", "selective", "full"):
            for pp in divisors(rest):
                deep = replace(plan, pp=pp, dp=rest // pp, recompute=recompute)
                if not any(violations(self.job, deep)) and fits(self.job, deep):
                    again = "" if recompute == "none" else f", with {recompute} recomputation"
                    self.ask(
                        "how much PP until it fits?",
                        f"PP{pp}, and DP{deep.dp} is what is left{again}",
                        pp=pp,
                        dp=deep.dp,
                    )
                    return deep
        self.ask("how much PP until it fits?", "no pipeline is long enough", pp=rest)
        return replace(plan, pp=rest)

    def with_experts(self, plan: Plan) -> Plan:
        if not self.job.shape.experts:
            return plan
        experts = self.job.shape.experts.experts
        common = gcd(experts, plan.dp)
        ep = max(ep for ep in divisors(common) if ep * plan.tp <= self.node or ep == 1)
        ranks = f"DP{plan.dp}, beside TP{plan.tp}" if plan.tp > 1 else f"DP{plan.dp}"
        no = "it would leave the node" if common > 1 else "no number divides both"
        follows = f"EP{ep} within the node" if ep > 1 else f"no EP: {no}"
        self.ask(f"{experts} experts over {ranks}?", follows, experts=experts, dp=plan.dp, tp=plan.tp, ep=ep)
        return replace(plan, ep=ep)

    def microbatched(self, plan: Plan) -> Plan:
        """Large microbatches, but 4 to 8 of them for every pipeline rank."""
        low, high = (times * plan.pp for times in MICROBATCHES)
        share = max(1, self.job.global_batch // plan.dp)
        sizes = [size for size in divisors(share) if self.holds(replace(plan, micro_batch=size))] or [1]
        size = min(sizes, key=lambda size: (distance(share // size, low, high), -size))
        number = share // size
        follows = f"{number} microbatches of {size}" + (
            "" if low <= number <= high else ", as near as batch and memory allow"
        )
        self.ask(
            f"4 to 8 microbatches for each of PP{plan.pp}?", follows, microbatches=number, micro_batch=size
        )
        return replace(plan, micro_batch=size)

    def virtual(self, plan: Plan) -> Plan:
        if plan.pp < VIRTUAL_FROM:
            return plan
        chunks = next((chunks for chunks in divisors(self.job.shape.layers // plan.pp) if chunks > 1), 2)
        folded = replace(plan, chunks=chunks, schedule=default_schedule(chunks))
        able = self.holds(folded)
        follows = (
            f"{chunks} chunks, interleaved" if able else "not with these microbatches, layers or memory: 1F1B"
        )
        self.ask(
            f"virtual stages from PP{VIRTUAL_FROM} on? PP{plan.pp}",
            follows,
            pp=plan.pp,
            chunks=chunks if able else 1,
        )
        return folded if able else plan

    def filled(self, plan: Plan) -> Plan:
        """The largest microbatch that fits; where none does, recomputation."""
        share = max(1, self.job.global_batch // plan.dp)
        for recompute in ("none", "selective", "full"):
            some = [replace(plan, micro_batch=size, recompute=recompute) for size in divisors(share)]
            if able := [one for one in some if self.holds(one)]:
                again = "" if recompute == "none" else f", with {recompute} recomputation"
                self.ask(
                    "largest microbatch that fits?",
                    f"{able[-1].micro_batch}{again}",
                    micro_batch=able[-1].micro_batch,
                )
                return able[-1]
        self.ask("largest microbatch that fits?", "none", micro_batch=0)
        return plan

    def holds(self, plan: Plan) -> bool:
        return not any(violations(self.job, plan)) and fits(self.job, plan)


def distance(number: int, low: int, high: int) -> int:
    return max(low - number, number - high, 0)
