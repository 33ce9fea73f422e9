"""The rules of the frameworks' guides, walked for one job.

Idea   A dense model: on one GPU, DP; under 10 billion parameters, FSDP; above, FSDP, with TP inside the
       node from 512 GPUs on, or TP and PP. A mixture of experts: EP first, inside the node or over several,
       as little TP as can be, then PP, and rows on their way beside another microbatch's compute where that
       saves much. Pipelines are interleaved, into more chunks where microbatches are few; long sequences
       take CP. Every branch names its guide.
Limit  Guides leave much open; where two ways are open, both are walked and the faster one is taken.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import gcd

from gpu import si
from ndparallel.base.words import listed
from ndparallel.launch_flags.untaken_options import with_rows_beside
from ndparallel.model.costs import RECOMPUTE
from ndparallel.parallel.divisibility import divisors
from ndparallel.planner.error_bar import PLANS_OF_ONE_JOB
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.legality import violations
from ndparallel.planner.prediction import peak_memory, predict
from ndparallel.planner.stages import elements_of
from ndparallel.search.fitting_plans import LEAST_MICROBATCHES, FittingPlans
from ndparallel.search.guides import BRIDGE, EXPERTS, MEGATRON, PLAYBOOK, TORCHTITAN, Branch, Guide

SMALL, LARGE = 10e9, 100e9  # parameters
MANY_GPUS = 512  # from where on FSDP alone has too much to gather
STATE_BYTES = 18  # of a parameter in mixed precision: weight and gradient, master weight and two moments
SHARE_OF_SEQUENCE = 8_192  # tokens of a sequence that a rank should have at the most
NODES_OF_EXPERTS = (1, 2, 4, 8, 16, 32)  # that EP may reach over


class GuideRules:
    """One job on its way through the rules. `branches` grows as questions are asked, each of them once;
    `fitting` plans are those of the job with its software as the guides switch it."""

    def __init__(self, job: TrainingJob, gpus: int):
        self.fitting, self.branches = FittingPlans(job, gpus), list[Branch]()
        self.gpus, self.parameters = gpus, job.shape.parameters().total

    @property
    def job(self) -> TrainingJob:
        return self.fitting.job

    def ask(self, guide: Guide, question: str, follows: str, **numbers: float) -> None:
        if question not in [branch.question for branch in self.branches]:
            self.branches.append(Branch(question, numbers, follows, guide))

    def plans(self) -> list[Plan]:
        """What the rules end in: a plan for each of the ways that they leave open."""
        if self.job.weights_away:  # which FSDP alone takes from there
            return self.sharded()
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
            return [self.data_parallel(zero=3), *self.with_context()]
        if self.parameters < LARGE:
            question, follows = f"10 to 100 billion parameters? {billions}", "yes: FSDP, or TP and PP"
            self.ask(PLAYBOOK, question, follows, parameters=self.parameters)
            return [*self.sharded(), self.three_dimensions()]
        question, follows = f"over 100 billion parameters? {billions}", "yes: 3D, TP and PP and DP"
        self.ask(PLAYBOOK, question, follows, parameters=self.parameters)
        return [self.three_dimensions()]

    # ---- questions

    def fits_on_one(self) -> bool:
        need, has = float(peak_memory(self.job, Plan(dp=self.gpus)).total), self.fitting.memory_bytes
        yes = need <= has
        follows = "yes: DP" if yes else "no: states have to be cut"
        question = f"fits on one GPU? {si(need, 'B')} of {si(has, 'B')}"
        self.ask(PLAYBOOK, question, follows, needed_bytes=need, memory_bytes=has)
        return yes

    def largest_layer_fits(self) -> bool:
        kinds = (*self.job.shape.layer_kinds, "embedding")
        elements = max(float(sum(elements_of(self.job, Plan(), kind))) for kind in kinds)
        need, has = elements * STATE_BYTES, self.fitting.memory_bytes
        follows = "yes: TP is not forced" if need <= has else "no: TP has to cut it"
        question = f"largest layer fits? {si(need, 'B')} of {si(has, 'B')}"
        self.ask(PLAYBOOK, question, follows, needed_bytes=need, memory_bytes=has)
        return need <= has

    # ---- the ways of data parallelism

    def sharded(self) -> list[Plan]:
        """FSDP alone; on many GPUs with TP inside the node too, and of long sequences with CP."""
        if self.gpus < MANY_GPUS:
            return [self.data_parallel(zero=3), *self.with_context()]
        tp = self.within_node()
        question = f"FSDP over {MANY_GPUS} GPUs and more?"
        self.ask(TORCHTITAN, question, f"with TP{tp} inside the node", gpus=self.gpus, tp=tp)
        return [self.data_parallel(zero=3), self.data_parallel(zero=3, tp=tp), *self.with_context()]

    def with_context(self) -> list[Plan]:
        """FSDP with CP, where sequences are so long that they need it."""
        if self.job.sequence <= SHARE_OF_SEQUENCE:
            return []
        cp = self.context(1, "CP beside FSDP")
        return [self.data_parallel(zero=3, cp=cp)] if cp > 1 else []

    def data_parallel(self, zero: int, tp: int = 1, cp: int = 1) -> Plan:
        """DP or FSDP over all GPUs, or over groups of them that share a sequence; where there are more of
        these than sequences, TP takes the rest."""
        batch, groups = self.job.global_batch, self.gpus // cp
        wider = (each for each in divisors(groups) if each >= tp and batch % (groups // each) == 0)
        enough = next(wider, groups)
        if enough > tp:
            ranks, whom = groups // enough, f"group of CP{cp}" if cp > 1 else "GPU"
            follows = f"no: TP{enough}, so that {ranks} share{'s' * (ranks == 1)} the batch"
            self.ask(PLAYBOOK, f"a sequence for every {whom}?", follows, sequences=batch)
        cut = self.fitting.cuts_sequences(enough)
        plan = Plan(tp=enough, cp=cp, dp=groups // enough, zero=zero, sequence_parallel=cut)
        return self.filled(replace(plan, ep=self.fitting.experts_within(plan, self.fitting.node)))

    def filled(self, plan: Plan) -> Plan:
        """The largest microbatch that fits; where none does, recomputation."""
        ways = [f"{name.upper()}{degree}" for name in ("tp", "cp") if (degree := getattr(plan, name)) > 1]
        ways.append(("DP", "ZeRO-1", "", "FSDP")[plan.zero])
        question = f"largest microbatch for {listed(ways)}?"
        if found := self.fitting.largest_microbatch(plan):
            follows = f"{found.micro_batch}{again(found.recompute)}"
            self.ask(TORCHTITAN, question, follows, micro_batch=found.micro_batch)
            return found
        broken = next(violations(self.job, plan), None)
        self.ask(TORCHTITAN, question, f"none: {broken.rule}" if broken else "none fits", micro_batch=0)
        return plan

    # ---- the ways with a pipeline

    def three_dimensions(self) -> Plan:
        """TP as far as the node goes, then PP; long sequences are cut by as much CP as they need, or twice as
        much."""
        tp, fitting = self.within_node(), self.fitting
        plans = [
            Plan(tp=tp, cp=cp, zero=1, sequence_parallel=fitting.cuts_sequences(tp))
            for cp in self.contexts(tp)
        ]
        found = {
            f"CP{plan.cp}": fitting.first_that_fits([replace(plan, recompute=word) for word in RECOMPUTE])
            for plan in plans
        }
        return self.quickest(MEGATRON, "how much CP?", found) or self.no_pipeline_fits(plans[0])

    def mixture(self, experts: int) -> Plan:
        """EP inside the node or over several, then PP until it fits, and TP only where no pipeline is long
        enough. All is computed again with less TP only where nothing else fits."""
        plan, fitting = Plan(cp=self.context(1), zero=1), self.fitting
        wider = [
            replace(plan, tp=tp, sequence_parallel=fitting.cuts_sequences(tp))
            for tp in divisors(gcd(fitting.node, self.gpus // plan.cp))
        ]
        some = [replace(one, recompute=words) for one in wider for words in RECOMPUTE[:2]]
        full = [replace(one, recompute="full") for one in wider]
        found = self.reaching([*some, full[-1]]) or self.reaching(full)
        take = self.quickest(BRIDGE if len(found) > 1 else MEGATRON, f"{experts} experts?", found)
        if not take:
            return self.no_pipeline_fits(plan)
        self.ask(MEGATRON, "TP beside it?", f"TP{take.tp}" if take.tp > 1 else "no", tp=take.tp)
        self.hide_rows(take)
        return take

    def reaching(self, plans: Sequence[Plan]) -> dict[str, Plan]:
        """The first of these that fits for each number of nodes that EP may reach over."""
        nodes = [self.fitting.node * number for number in NODES_OF_EXPERTS]
        return self.named([one for reach in nodes if (one := self.fitting.first_that_fits(plans, reach))])

    def hide_rows(self, plan: Plan) -> None:
        """Let rows travel beside another microbatch's compute, where Megatron-Core can do that with this plan
        and predictions can tell the difference."""
        shown = predict(self.job, plan).seconds
        if not (found := with_rows_beside(self.job, plan, shown)):
            return
        hiding, hidden = found.job, found.seconds
        lacking = float(found.fullest.total) - self.fitting.memory_bytes
        follows = f"yes: --overlap ep, {si(hidden, 's')} a step; without {si(shown, 's')}"
        if lacking > 0:
            follows = f"no: a step of {si(hidden, 's')}, but it lacks {si(lacking, 'B')}"
        question = "all-to-alls behind another microbatch?"
        self.ask(EXPERTS, question, follows, hidden_seconds=hidden, shown_seconds=shown)
        if lacking <= 0:
            self.fitting = FittingPlans(hiding, self.gpus)

    def named(self, plans: Sequence[Plan]) -> dict[str, Plan]:
        """The plans by their EP, and where that is another's too, by more of them."""
        found: dict[str, Plan] = {}
        for plan in plans:
            name = f"EP{plan.ep} {self.where(plan)}"
            taken = found.get(name, plan) != plan
            found[name + f" with TP{plan.tp} and PP{plan.pp}" * taken] = plan
        return found

    def where(self, plan: Plan) -> str:
        return "inside the node" if plan.ep * plan.tp <= self.fitting.node else "over nodes"

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

    def no_pipeline_fits(self, plan: Plan) -> Plan:
        """A plan that does not fit."""
        self.ask(MEGATRON, "how much PP until it fits?", "no pipeline is long enough", pp=self.gpus)
        return replace(plan, pp=self.gpus // (plan.tp * plan.cp))

    def ask_pipeline(self, plan: Plan) -> Plan:
        """Return the plan, with the questions that lead to its pipeline asked."""
        left = f"PP{plan.pp}, and DP{plan.dp} is what is left{again(plan.recompute)}"
        self.ask(MEGATRON, "how much PP until it fits?", left, pp=plan.pp, dp=plan.dp)
        if plan.pp == 1:
            return plan
        number, few = int(plan.microbatches(self.job)), self.fitting.has_few_microbatches(plan)
        follows = f"{number}{', too few for a small bubble' * few}"
        least = LEAST_MICROBATCHES * plan.pp
        self.ask(PLAYBOOK, f"{least} microbatches or more?", follows, microbatches=number)
        follows = f"{plan.chunks} chunks" if plan.chunks > 1 else "no number of chunks fits"
        guide = BRIDGE if few else MEGATRON
        self.ask(guide, f"interleave PP{plan.pp}?", follows, pp=plan.pp, chunks=plan.chunks)
        return plan

    def within_node(self) -> int:
        """As much TP as a node has GPUs, and the model heads for."""
        tp, node = self.fitting.widest_tp(), self.fitting.node
        question = f"TP within the node? {node} GPUs a node"
        self.ask(PLAYBOOK, question, f"TP{tp}", gpus_per_node=node, tp=tp)
        return tp

    def context(self, tp: int, question: str = "sequences that need CP") -> int:
        """CP until no rank has more than SHARE_OF_SEQUENCE tokens."""
        sequence = self.job.sequence
        cp = self.fitting.longest_context(tp, sequence // SHARE_OF_SEQUENCE)
        follows = f"yes: CP{cp}" if cp > 1 else "not by themselves"
        self.ask(MEGATRON, f"{question}? {sequence} tokens", follows, sequence=sequence, cp=cp)
        return cp

    def contexts(self, tp: int) -> list[int]:
        """As much CP as a long sequence needs, and twice as much: both "CP: sequence length >= 8K tokens"."""
        cp = self.context(tp)
        able = self.gpus % (2 * cp * tp) == 0 and self.fitting.can_be_cut(tp, 2 * cp)
        return [cp, 2 * cp] if self.job.sequence >= SHARE_OF_SEQUENCE and able else [cp]


def again(recompute: str) -> str:
    return "" if recompute == "none" else f", with {recompute} recomputation"
