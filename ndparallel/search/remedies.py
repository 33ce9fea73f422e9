"""What would make it fit: of a plan that does not, or of a job no plan of which does.

Idea   Each remedy is tried by predicting it: alone, and where that is not enough, with full recomputation and
       microbatches of one sequence. Where plans are searched, the search is asked again with each, and what
       the software's framework cannot launch also of those that can.
Cost   memory first, and the step only of what fits.
Limit  Memory of the host is not counted, nor what fewer bits and adapters do to the loss.

Glossary
    kind   what a remedy changes besides time, cheapest first: nothing, the precision of the optimizer, what
           is trained (adapters instead of the model), the number of GPUs
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import gcd
from typing import Any

from ndparallel.base.errors import UserError
from ndparallel.base.words import count, listed
from ndparallel.engines.forking import map_in_forks
from ndparallel.launch_flags.frameworks import FRAMEWORKS, launched_by, whose
from ndparallel.launch_flags.megatron.rules import precision_aware
from ndparallel.parallel.divisibility import divisors
from ndparallel.pipeline.catalog import RECIPES, default_schedule
from ndparallel.planner.adapters import NF4_BITS, Adapters
from ndparallel.planner.changes import Change, Cluster, job_change, plan_change, tried
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.legality import spread_over
from ndparallel.planner.plan_name import name_of, plan_option
from ndparallel.planner.prediction import Prediction, legal_and_fits
from ndparallel.planner.software import ACCELERATE, ACCELERATE_SYNC
from ndparallel.planner.stack import MODULES
from ndparallel.search.fixed import ZERO
from ndparallel.search.search import best_of
from ndparallel.search.space import SearchSpace, expert_degrees, module_sets, shards_something
from ndparallel.search.timing_queue import EFFORT

REMEDY_KINDS = ("time alone", "precision", "what is trained", "GPUs")
TIME, PRECISION, TRAINED, GPUS = REMEDY_KINDS
RANK = 16  # of adapters
TIMES = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # so many times as many GPUs
MOST_GPUS_TRIED = 4096
NO_HEADROOM = "--headroom 0"


def offloaded(words: str, *what: str) -> Change:
    """The change that keeps just this on the host; of activations as large a share as there was."""

    def apply(job: TrainingJob, plan: Plan) -> Cluster:
        share = job.offload_share if "activations" in what else 1.0
        return replace(job, offload=what, offload_share=share), plan

    return Change(words, apply, f"--offload {','.join(what)}")


OPTIMIZER = offloaded("optimizer on the host", "optimizer")
ACTIVATIONS = offloaded("activations on the host", "activations")
BOTH = offloaded("both on the host", "optimizer", "activations")
STATES = offloaded("optimizer and weights on the host", "optimizer", "weights")
EIGHT_BITS = job_change("moments in 8 bits", "--moments 8bit", moments="8bit")
HALF = job_change("all states in 16 bits", "--half", half=True)


def summed(job: TrainingJob) -> TrainingJob:
    """The job where Accelerate sums gradients behind every microbatch, of which the last one else does."""
    if job.stack.name != ACCELERATE.name:
        return job
    return replace(job, stack=replace(job.stack, name=ACCELERATE_SYNC.name, whole_between=False))


SUMMED = Change(
    "gradients summed behind every microbatch",
    lambda job, plan: (summed(job), plan),
    f"--software {ACCELERATE_SYNC.name}",
)
JOBS: tuple[tuple[str, Change], ...] = (
    (TIME, SUMMED),
    (TIME, ACTIVATIONS),
    (TIME, OPTIMIZER),
    (TIME, BOTH),
    (TIME, STATES),
    (PRECISION, job_change("moments in 16 bits", "--moments bf16", moments="bf16")),
    (PRECISION, EIGHT_BITS),
    (PRECISION, HALF),
    (PRECISION, HALF + EIGHT_BITS),
    (PRECISION, HALF + OPTIMIZER),
    (TRAINED, job_change(f"LoRA of rank {RANK}", f"--lora {RANK}", adapters=Adapters(RANK))),
    (
        TRAINED,
        job_change(f"QLoRA of rank {RANK}", f"--qlora {RANK}", adapters=Adapters(RANK, base_bits=NF4_BITS)),
    ),
)
WIDER = {"tp": "tensor parallelism of", "cp": "context parallelism of", "pp": "a pipeline of"}
FULL = plan_change(
    "full recomputation", "--recompute full", recompute="full", recompute_layers=0, recompute_modules=()
)
SHARDED = plan_change("ZeRO-1", "--zero 1", zero=1)
ONE = plan_change("microbatches of 1", "--micro-batch 1", micro_batch=1)


@dataclass(frozen=True)
class Remedy:
    """A change that makes it fit, of one of REMEDY_KINDS, and what is predicted then. Its option takes the
    place of some that were typed: these are to be left out."""

    kind: str
    words: str
    option: str
    found: Prediction
    instead_of: tuple[str, ...] = ()

    @property
    def launched_by(self) -> list[str]:
        """The frameworks that can run it, that of its software first."""
        job = self.found.job
        return sorted(launched_by(job, self.found.plan), key=lambda name: name not in whose(job))

    def as_dict(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "change": self.words,
            "option": self.option,
            "instead_of": list(self.instead_of),
            "step_seconds": self.found.seconds,
            "memory_bytes": float(self.found.fullest.total),
            "tight": self.found.is_tight,
            "gpus": int(self.found.plan.gpus),
            "plan": name_of(self.found.plan),
            "launched_by": self.launched_by,
        }


def in_order(remedies: list[Remedy]) -> list[Remedy]:
    """Sort by kind, the quickest first; of more GPUs all their time counts."""
    return sorted(
        remedies, key=lambda one: (REMEDY_KINDS.index(one.kind), one.found.seconds * one.found.plan.gpus)
    )


# ------------------------------------------------------------------------------------------------ of one plan


def remedies_of_plan(job: TrainingJob, plan: Plan) -> list[Remedy]:
    """What makes a plan fit, one thing of it changed and all else as it is, or nearly so; and another plan of
    the job, on as many GPUs or the fewest on which one fits."""
    ways = [
        *((TIME, changes) for changes in ways_of(job, plan)),
        *((kind, [change]) for kind, change in JOBS),
    ]
    found = [one for kind, changes in ways for one in quickest(job, plan, kind, changes)]
    return in_order([*found, *another_plan(job, plan, [one.found.plan for one in found])])


def quickest(job: TrainingJob, plan: Plan, kind: str, changes: Iterable[Change]) -> list[Remedy]:
    """Try changes that are alike: the one that costs the least time, if any helps."""
    found = (remedy for change in changes for remedy in remedied(job, plan, kind, change))
    return sorted(found, key=lambda one: one.found.seconds)[:1]


def another_plan(job: TrainingJob, plan: Plan, known: Sequence[Plan]) -> list[Remedy]:
    """The search's plan by its name, unless it is known; where none leaves some memory free, one that does
    not, and the fewest GPUs on which one does."""
    roomy = SearchSpace(job, int(plan.gpus), {}, job.usable_bytes(), whose(job))
    full = replace(roomy, memory_bytes=job.hardware.memory_bytes)
    best = best_or_none(roomy)
    here = best or best_or_none(full)
    named = [Remedy(TIME, "another plan", "", here)] if here and here.plan not in known else []
    return [
        replace(one, option=f"{one.option} {plan_option(one.found.plan)}".strip())
        for one in (*named, *([] if best else more_gpus(roomy)))
    ]


def remedied(job: TrainingJob, plan: Plan, kind: str, change: Change) -> Iterator[Remedy]:
    """The change alone, or with the ZeRO that frameworks have it with; where that is not enough, with as much
    else as is not enough by itself."""
    for zero in zero_beside(job, plan, change):
        for beside in (zero, (*zero, FULL), (*zero, FULL, ONE)):
            whole = sum(beside, change)
            if beside and legal_and_fits(*sum(beside[1:], beside[0]).apply(job, plan)):
                return
            if found := tried(job, plan, [whole], legal_and_fits):
                yield Remedy(kind, whole.words, whole.option, found[0].found)
                return


def zero_beside(job: TrainingJob, plan: Plan, change: Change) -> list[tuple[Change, ...]]:
    """ZeRO-1, where a change takes it: without any ZeRO, and in place of FSDP where it is Megatron-Core's and
    launched so alone."""
    with_one = (change + SHARDED).apply(job, plan)
    if plan.zero == 1 or not precision_aware(with_one[0]):
        return [()]
    if plan.zero == 0:
        return [(SHARDED,)]
    return [(SHARDED,), ()] if launched_by(*with_one) == whose(job) == ["megatron"] else [()]


def ways_of(job: TrainingJob, plan: Plan) -> Iterator[list[Change]]:
    """What can be changed about this plan, by what is changed."""
    if plan.recompute != "full":
        yield [recomputing(modules) for modules in sets_of_modules(job)]
    yield [FULL]
    yield [
        plan_change(f"microbatches of {size}", f"--micro-batch {size}", micro_batch=size)
        for size in divisors(plan.micro_batch)[:-1]
    ]
    yield [*fewer_chunks(plan)]
    for stage in range(plan.zero + 1, 4 if shards_something(job, plan) else 0):
        yield [plan_change(f"ZeRO-{stage}" if stage < 3 else "FSDP", f"--zero {stage}", zero=stage)]
    yield from ([*wider(job, plan, name)] for name in WIDER)
    yield [*more_expert_ranks(job, plan)]
    if plan.tp > 1 and not plan.sequence_parallel:
        yield [plan_change("sequence parallelism", "--sequence-parallel", sequence_parallel=True)]


def sets_of_modules(job: TrainingJob) -> list[tuple[str, ...]]:
    """What selective recomputation may run again: the software's own, and what else it can be told."""
    single = [(name,) for name in MODULES] if job.stack.chooses_modules else []
    return [*dict.fromkeys([(), *module_sets(job), *single])]


def recomputing(modules: tuple[str, ...]) -> Change:
    """Selective recomputation of these modules, or of the software's own."""
    option = "--recompute selective" + f" --recompute-modules {' '.join(modules)}" * bool(modules)
    words = f"selective recomputation of {listed(modules)}" if modules else "selective recomputation"
    return plan_change(words, option, recompute="selective", recompute_modules=modules)


def fewer_chunks(plan: Plan) -> Iterator[Change]:
    """The schedule with fewer chunks on a rank, where it takes any number; with one, the usual schedule."""
    if RECIPES[plan.schedule].chunks or plan.stage_layers:
        return
    for chunks in divisors(plan.chunks)[:-1]:
        schedule = plan.schedule if chunks > 1 else default_schedule(1)
        option = f"--chunks {chunks}" + f" --schedule {schedule}" * (chunks == 1)
        words = count(chunks, "chunk") + " on a pipeline rank"
        yield plan_change(words, option, chunks=chunks, schedule=schedule)


def wider(job: TrainingJob, plan: Plan, name: str) -> Iterator[Change]:
    """One degree times what it takes of data parallelism; TP inside the node alone."""
    for times in divisors(plan.dp)[1:]:
        degree = getattr(plan, name) * times
        if name == "tp" and degree > job.hardware.gpus_per_node:
            return
        fields: dict[str, Any] = {name: degree, "dp": plan.dp // times}
        if name == "tp" and plan.tp == 1:
            fields["sequence_parallel"] = job.stack.sequence_parallel
        ranks, _ = spread_over(job, replace(plan, **fields))
        for ep in dict.fromkeys(gcd(plan.ep, most) for most in (ranks, plan.dp // times)):
            option = f"--{name} {degree}" + f" --ep {ep}" * (ep < plan.ep)
            yield plan_change(f"{WIDER[name]} {degree}", option, ep=ep, **fields)


def more_expert_ranks(job: TrainingJob, plan: Plan) -> Iterator[Change]:
    """Fewer experts on each GPU."""
    for ep in expert_degrees(job, plan, {}):
        if ep > plan.ep and ep % plan.ep == 0:
            yield plan_change(f"expert parallelism of {ep}", f"--ep {ep}", ep=ep)


# ------------------------------------------------------------------------------------------------ of a search


def remedies_of_search(space: SearchSpace) -> list[Remedy]:
    """What makes some plan of a space's job fit, and the fewest GPUs on which one does; each with its fastest
    plan."""
    asked = [(kind, change, *each) for kind, change in JOBS for each in changed_spaces(change, space)]
    bests = map_in_forks(best_or_none, [changed for *_, changed in asked])
    found = [
        Remedy(kind, change.words, option, best)
        for (kind, change, option, _), best in zip(asked, bests)
        if best
    ]
    return in_order([*launched_first(found), *with_all_memory(space), *more_gpus(space)])


def changed_spaces(change: Change, space: SearchSpace) -> list[tuple[str, SearchSpace]]:
    """The space with its job changed, and the option for it; where its frameworks take no such job, those of
    others, too."""
    job, _ = change.apply(space.job, Plan())
    if job == space.job:
        return []
    return [(change.option, replace(space, job=job)), *by_others(change, space, job)]


def by_others(change: Change, space: SearchSpace, job: TrainingJob) -> list[tuple[str, SearchSpace]]:
    """Where no framework of the space takes such a job, those that do, each on its own software."""
    simple = [Plan(dp=space.gpus, zero=zero) for zero in ZERO]
    taking = dict.fromkeys(name for plan in simple for name in launched_by(job, plan))
    if not taking or {*taking} & {*space.frameworks}:
        return []
    return [
        (
            f"{change.option} --framework {name}",
            replace(space, job=FRAMEWORKS[name].priced(job), frameworks=[name]),
        )
        for name in taking
    ]


def launched_first(remedies: list[Remedy]) -> list[Remedy]:
    """The quickest plan of each change that can be launched, or where none can the quickest."""
    ranked = sorted(remedies, key=lambda one: (not one.launched_by, one.found.seconds))
    return [*{one.words: one for one in reversed(ranked)}.values()]


def with_all_memory(space: SearchSpace) -> list[Remedy]:
    """A plan that leaves no memory free where a search would have some left."""
    memory = space.job.hardware.memory_bytes
    best = best_or_none(replace(space, memory_bytes=memory)) if space.memory_bytes < memory else None
    return [Remedy(TIME, "no memory left free", NO_HEADROOM, best)] if best else []


def best_or_none(space: SearchSpace) -> Prediction | None:
    try:
        return best_of(space, EFFORT // 10)
    except UserError:
        return None


def more_gpus(space: SearchSpace) -> list[Remedy]:
    """The fewest of some multiples of the GPUs on which a plan fits; none where that is out of reach."""
    for number in (space.gpus * times for times in TIMES):
        if number <= MOST_GPUS_TRIED and (best := best_or_none(replace(space, gpus=number))):
            return [Remedy(GPUS, f"{number} GPUs", f"--gpus {number}", best)]
    return []
