"""What the guides of the frameworks say, walked for one job with the numbers at every branch, beside the best
plan that search finds.

Idea   A dense model: on one GPU, DP; under 10 billion parameters, FSDP; above, FSDP, with TP inside the
       node from 512 GPUs on, or TP and PP. A mixture of experts: EP first, inside the node or over several,
       as little TP as can be, then PP, and rows on their way beside another microbatch's compute where that
       saves much. Pipelines are interleaved, into more chunks where microbatches are
       few; long sequences take CP. Every branch names its guide.
Cost   that of a search.
Limit  Guides leave much open; where two ways are open, both are walked and the faster one is taken.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import gcd
from typing import Any

from gpu import si
from ndparallel.launch_flags.frameworks import FRAMEWORKS, launched_by, whose
from ndparallel.model.costs import RECOMPUTE
from ndparallel.parallel.divisibility import divisors
from ndparallel.pipeline.catalog import default_schedule
from ndparallel.planner.error_bar import PLANS_OF_ONE_JOB
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.legality import violations
from ndparallel.planner.prediction import Prediction, legal_and_fits, peak_memory, predict
from ndparallel.planner.stages import elements_of
from ndparallel.search.search import Found, search

SMALL, LARGE = 10e9, 100e9  # parameters
MANY_GPUS = 512  # from where on FSDP alone has too much to gather
STATE_BYTES = 18  # of a parameter in mixed precision: weight and gradient, master weight and two moments
SHARE_OF_SEQUENCE = 8_192  # tokens of a sequence that a rank should have at the most
NODES_OF_EXPERTS = (1, 2, 4, 8, 16, 32)  # that EP may reach over
LEAST_MICROBATCHES = 4  # for every pipeline rank


@dataclass(frozen=True)
class Guide:
    """Who gives a rule, and where."""

    name: str
    source: str


MEGATRON = Guide(
    "Megatron-Core",
    "NVIDIA/Megatron-LM, megatron/core/transformer/moe/README.md, Tuning Guide of Parallel Mappings",
)
PLAYBOOK = Guide(
    "Ultra-Scale Playbook",
    "huggingface.co/spaces/nanotron/ultrascale-playbook, Finding the Best Training Configuration",
)
TORCHTITAN = Guide(
    "torchtitan", "Liang et al. 2410.06511, section 3, and its recipes of Llama 3.1 8B, 70B and 405B"
)
BRIDGE = Guide(
    "Megatron-Bridge",
    "NVIDIA-NeMo/Megatron-Bridge, docs/performance-guide.md, Parallel Mapping Strategies",
)
EXPERTS = Guide(
    "Megatron-Core's MoE",
    "NVIDIA/Megatron-LM, megatron/core/transformer/moe/README.md, Communication Bottleneck",
)
GUIDES = (MEGATRON, PLAYBOOK, TORCHTITAN, BRIDGE, EXPERTS)


@dataclass(frozen=True)
class Branch:
    """One question, the numbers that answer it, what follows, and which guide says so."""

    question: str
    numbers: dict[str, float]
    follows: str
    guide: Guide

    def as_dict(self) -> dict[str, Any]:
        return vars(self) | {"guide": self.guide.name, "source": self.guide.source}


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
        """Share of the best plan's step by which the advised one is longer."""
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
    rules = Rules(job, gpus)
    plans = [plan for plan in rules.plans() if rules.holds(plan)]
    job = rules.job  # on the software as the guides switch it
    found = search(job, gpus, also=plans, tight=True)
    answers = sorted((predict(job, plan) for plan in plans), key=lambda each: each.seconds)
    return Advice(rules.branches, answers, found)


class Rules:
    """One job on its way through the rules. `branches` grows as questions are asked, each of them once; the
    `job` is switched to what a guide says of its software."""

    def __init__(self, job: TrainingJob, gpus: int):
        self.job, self.gpus, self.branches = job, gpus, list[Branch]()
        self.parameters = job.shape.parameters().total
        self.node, self.memory_bytes = job.hardware.gpus_per_node, job.usable_bytes()

    def ask(self, guide: Guide, question: str, follows: str, **numbers: float) -> None:
        if question not in [branch.question for branch in self.branches]:
            self.branches.append(Branch(question, numbers, follows, guide))

    def plans(self) -> list[Plan]:
        """What the rules end in: a plan for each of the ways that they leave open."""
        if self.fits_on_one():
            return [self.data_parallel(zero=0)]
        if experts := self.job.shape.experts:
            return [self.mixture(experts.experts), *self.sharded()]
        if not self.largest_layer_fits():
            return [self.three_dimensions()]
        billions = f"{self.parameters / 1e9:.4g}"
        if self.parameters < SMALL:
            question, follows = "under 10 billion parameters?", "yes: FSDP, sharded data parallelism"
            self.ask(PLAYBOOK, question, follows, parameters=self.parameters)
            return [self.data_parallel(zero=3)]
        if self.parameters < LARGE:
            question, follows = f"10 to 100 billion parameters? {billions}", "yes: FSDP, or TP and PP"
            self.ask(PLAYBOOK, question, follows, parameters=self.parameters)
            return [*self.sharded(), self.three_dimensions()]
        question, follows = f"over 100 billion parameters? {billions}", "yes: 3D, TP and PP and DP"
        self.ask(PLAYBOOK, question, follows, parameters=self.parameters)
        return [self.three_dimensions()]

    # ---- questions

    def fits_on_one(self) -> bool:
        need, has = float(peak_memory(self.job, Plan(dp=self.gpus)).total), self.memory_bytes
        yes = need <= has
        follows = "yes: DP" if yes else "no: states have to be cut"
        question = f"fits on one GPU? {si(need, 'B')} of {si(has, 'B')}"
        self.ask(PLAYBOOK, question, follows, needed_bytes=need, memory_bytes=has)
        return yes

    def largest_layer_fits(self) -> bool:
        elements = max(float(sum(elements_of(self.job, Plan(), kind))) for kind in ("dense", "embedding"))
        need, has = elements * STATE_BYTES, self.memory_bytes
        follows = "yes: TP is not forced" if need <= has else "no: TP has to cut it"
        question = f"largest layer fits? {si(need, 'B')} of {si(has, 'B')}"
        self.ask(PLAYBOOK, question, follows, needed_bytes=need, memory_bytes=has)
        return need <= has

    # ---- the ways of data parallelism

    def sharded(self) -> list[Plan]:
        """FSDP alone; on many GPUs with TP inside the node too."""
        if self.gpus < MANY_GPUS:
            return [self.data_parallel(zero=3)]
        tp = self.within_node()
        question = f"FSDP over {MANY_GPUS} GPUs and more?"
        self.ask(TORCHTITAN, question, f"with TP{tp} inside the node", gpus=self.gpus, tp=tp)
        return [self.data_parallel(zero=3), self.data_parallel(zero=3, tp=tp)]

    def data_parallel(self, zero: int, tp: int = 1) -> Plan:
        """DP or FSDP over all GPUs; where there are more of them than sequences, TP takes the rest."""
        batch, wanted = self.job.global_batch, divisors(self.gpus)
        enough = next((each for each in wanted if each >= tp and batch % (self.gpus // each) == 0), self.gpus)
        if enough > tp:
            ranks = self.gpus // enough
            follows = f"no: TP{enough}, so that {ranks} share{'s' * (ranks == 1)} the batch"
            self.ask(PLAYBOOK, "a sequence for every GPU?", follows, sequences=batch)
        cut = self.cuts_sequences(enough)
        plan = Plan(tp=enough, dp=self.gpus // enough, zero=zero, sequence_parallel=cut)
        return self.filled(replace(plan, ep=self.experts_within(plan, self.node)))

    def filled(self, plan: Plan) -> Plan:
        """The largest microbatch that fits; where none does, recomputation."""
        share, way = self.job.global_batch // plan.dp, ("DP", "DP and ZeRO-1", "", "FSDP")[plan.zero]
        question = f"largest microbatch for {f'TP{plan.tp} and ' * (plan.tp > 1)}{way}?"
        for recompute in RECOMPUTE:
            some = [replace(plan, micro_batch=size, recompute=recompute) for size in divisors(share)]
            if able := [one for one in some if self.holds(one)]:
                size = able[-1].micro_batch
                self.ask(TORCHTITAN, question, f"{size}{again(recompute)}", micro_batch=size)
                return able[-1]
        broken = next(violations(self.job, plan), None)
        self.ask(TORCHTITAN, question, f"none: {broken.rule}" if broken else "none fits", micro_batch=0)
        return plan

    # ---- the ways with a pipeline

    def three_dimensions(self) -> Plan:
        """TP as far as the node goes, then PP; long sequences are cut by as much CP as they need, or twice as
        much."""
        tp = self.within_node()
        cut = self.cuts_sequences(tp)
        plans = [Plan(tp=tp, cp=cp, zero=1, sequence_parallel=cut) for cp in self.contexts(tp)]
        found = {
            f"CP{plan.cp}": self.first_that_fits([replace(plan, recompute=kind) for kind in RECOMPUTE])
            for plan in plans
        }
        return self.quickest(MEGATRON, "how much CP?", found) or self.no_pipeline_fits(plans[0])

    def mixture(self, experts: int) -> Plan:
        """EP inside the node or over several, then PP until it fits, and TP only where no pipeline is long
        enough."""
        plan = Plan(cp=self.context(1), zero=1)
        wider = divisors(gcd(self.node, self.gpus // plan.cp))
        some = [
            replace(plan, tp=tp, recompute=recompute, sequence_parallel=self.cuts_sequences(tp))
            for tp in wider
            for recompute in (RECOMPUTE if tp == wider[-1] else RECOMPUTE[:2])
        ]
        reaches = (self.first_that_fits(some, self.node * nodes) for nodes in NODES_OF_EXPERTS)
        found = self.named([one for one in reaches if one])
        take = self.quickest(BRIDGE if len(found) > 1 else MEGATRON, f"{experts} experts?", found)
        if not take:
            return self.no_pipeline_fits(plan)
        self.ask(MEGATRON, "TP beside it?", f"TP{take.tp}" if take.tp > 1 else "no", tp=take.tp)
        self.hide_rows(take)
        return take

    def hide_rows(self, plan: Plan) -> None:
        """Let rows travel beside another microbatch's compute, where Megatron-Core can do that with this plan
        and predictions can tell the difference."""
        hiding = replace(self.job, stack=replace(self.job.stack, hides_dispatch=True))
        if "megatron" not in whose(self.job) or not FRAMEWORKS["megatron"].has(hiding, plan):
            return
        shown, hidden = (predict(job, plan).seconds for job in (self.job, hiding))
        if hidden * (1 + PLANS_OF_ONE_JOB) >= shown:
            return
        lacking = float(peak_memory(hiding, plan).total) - self.memory_bytes
        follows = f"yes: --overlap ep, {si(hidden, 's')} a step; without {si(shown, 's')}"
        if lacking > 0:
            follows = f"no: a step of {si(hidden, 's')}, but it lacks {si(lacking, 'B')}"
        question = "all-to-alls behind another microbatch?"
        self.ask(EXPERTS, question, follows, hidden_seconds=hidden, shown_seconds=shown)
        self.job = self.job if lacking > 0 else hiding

    def named(self, plans: Sequence[Plan]) -> dict[str, Plan]:
        """The plans by their EP, and where that is another's too, by more of them."""
        found: dict[str, Plan] = {}
        for plan in plans:
            name = f"EP{plan.ep} {self.where(plan)}"
            taken = found.get(name, plan) != plan
            found[name + f" with TP{plan.tp} and PP{plan.pp}" * taken] = plan
        return found

    def where(self, plan: Plan) -> str:
        return "inside the node" if plan.ep * plan.tp <= self.node else "over nodes"

    def quickest(self, guide: Guide, question: str, ways: Mapping[str, Plan | None]) -> Plan | None:
        """The first of the ways that a guide leaves open of which predictions cannot say that another is
        quicker, with the questions that led to it; None where none fits."""
        plans = {name: self.filled(plan) if plan.pp == 1 else plan for name, plan in ways.items() if plan}
        if not plans:
            return None
        seconds = {name: predict(self.job, plan).seconds for name, plan in plans.items()}
        longest = min(seconds.values()) * (1 + PLANS_OF_ONE_JOB)
        first = next(name for name, each in seconds.items() if each <= longest)
        others = [f"{name} {si(each, 's')}" for name, each in seconds.items() if name != first]
        follows = f"{first}, {si(seconds[first], 's')} a step; {', '.join(others)}" if others else first
        self.ask(
            guide, question, follows, **{f"{name.lower()}_seconds": each for name, each in seconds.items()}
        )
        return self.ask_pipeline(plans[first])

    def first_that_fits(self, plans: Sequence[Plan], reach: int = 1) -> Plan | None:
        """The first of these that fits in some pipeline, interleaved if that can be; EP and TP together
        within `reach` GPUs."""
        for able, plan in product((self.interleaved, lambda deep: [deep]), plans):
            if found := self.shortest(plan, able, reach):
                return found
        return None

    def no_pipeline_fits(self, plan: Plan) -> Plan:
        """A plan that does not fit."""
        self.ask(MEGATRON, "how much PP until it fits?", "no pipeline is long enough", pp=self.gpus)
        return replace(plan, pp=self.gpus // (plan.tp * plan.cp))

    def shortest(self, plan: Plan, able: Callable[[Plan], list[Plan]], reach: int) -> Plan | None:
        """The plan with the shortest pipeline that fits, in one of the ways that it is able to run."""
        rest = self.gpus // (plan.tp * plan.cp)
        for pp in divisors(rest):
            deep = replace(plan, pp=pp, dp=rest // pp)
            ways = able(replace(deep, ep=self.experts_within(deep, reach)))
            if found := next((way for way in ways if self.holds(way)), None):
                return found
        return None

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

    def ask_pipeline(self, plan: Plan) -> Plan:
        """Return the plan, with the questions that lead to its pipeline asked."""
        left = f"PP{plan.pp}, and DP{plan.dp} is what is left{again(plan.recompute)}"
        self.ask(MEGATRON, "how much PP until it fits?", left, pp=plan.pp, dp=plan.dp)
        if plan.pp == 1:
            return plan
        number, few = int(plan.microbatches(self.job)), self.has_few_microbatches(plan)
        follows = f"{number}{', too few for a small bubble' * few}"
        least = LEAST_MICROBATCHES * plan.pp
        self.ask(PLAYBOOK, f"{least} microbatches or more?", follows, microbatches=number)
        follows = f"{plan.chunks} chunks" if plan.chunks > 1 else "no number of chunks fits"
        guide = BRIDGE if few else MEGATRON
        self.ask(guide, f"interleave PP{plan.pp}?", follows, pp=plan.pp, chunks=plan.chunks)
        return plan

    def has_few_microbatches(self, plan: Plan) -> bool:
        return bool(plan.microbatches(self.job) < LEAST_MICROBATCHES * plan.pp)

    def within_node(self) -> int:
        """As much TP as a node has GPUs, and the model heads for."""
        wanted = divisors(gcd(self.node, self.gpus))
        tp = [each for each in wanted if not any(violations(self.job, Plan(tp=each)))][-1]
        question = f"TP within the node? {self.node} GPUs a node"
        self.ask(PLAYBOOK, question, f"TP{tp}", gpus_per_node=self.node, tp=tp)
        return tp

    def cuts_sequences(self, tp: int) -> bool:
        return tp > 1 and self.job.stack.sequence_parallel

    def context(self, tp: int) -> int:
        """CP until no rank has more than SHARE_OF_SEQUENCE tokens."""
        wanted = self.job.sequence // SHARE_OF_SEQUENCE
        legal = [
            cp
            for cp in divisors(self.gpus // tp)
            if cp <= max(wanted, 1) and not any(violations(self.job, Plan(tp=tp, cp=cp)))
        ]
        cp = legal[-1]
        follows = f"yes: CP{cp}" if cp > 1 else "not by themselves"
        self.ask(
            MEGATRON,
            f"sequences that need CP? {self.job.sequence} tokens",
            follows,
            sequence=self.job.sequence,
            cp=cp,
        )
        return cp

    def contexts(self, tp: int) -> list[int]:
        """As much CP as a long sequence needs, and twice as much: both "CP: sequence length >= 8K tokens"."""
        cp = self.context(tp)
        twice = Plan(tp=tp, cp=2 * cp)
        able = self.gpus % (2 * cp * tp) == 0 and not any(violations(self.job, twice))
        return [cp, 2 * cp] if self.job.sequence >= SHARE_OF_SEQUENCE and able else [cp]

    def experts_within(self, plan: Plan, reach: int) -> int:
        """As much EP as `reach` GPUs have room for beside TP, and as divides experts and DP."""
        if not self.job.shape.experts:
            return 1
        common = gcd(self.job.shape.experts.experts, plan.dp)
        return max(ep for ep in divisors(common) if ep * plan.tp <= reach or ep == 1)

    def holds(self, plan: Plan) -> bool:
        return legal_and_fits(self.job, plan, self.memory_bytes)


def again(recompute: str) -> str:
    return "" if recompute == "none" else f", with {recompute} recomputation"
