"""Every legal plan of a job on so many GPUs, and why the others are none.

Idea   Degrees first: tp * cp * pp * dp makes the GPUs, ep divides the ranks that experts are spread over,
       microbatches divide what a data-parallel rank has. What they break is asked of the rules that
       `ndparallel plan` itself obeys. Then every word (recompute, zero, sequence parallelism) with every
       layout, then every schedule with every number of chunks.
Cost   some microseconds for every layout.
Limit  Left out is what only has another name: ZeRO that shards nothing (but the lowest stage that is asked
       for, and ZeRO-1 and 3 where frameworks ask for them), ZeRO-2 in a pipeline of FSDP, schedules without a
       pipeline, one chunk of interleaved (eager 1F1B) and of breadth-first (GPipe). Sharding over fewer
       ranks than there are (HSDP) fills 1, 2, 4, 8 ... nodes, if no number is asked for.
       Modules that run again are the CHEAP ones, and only where a plan lacks memory without, or its
       activations go to the host; some layers of a stage are those of some_layers.py. `outside` names what
       else is priced where it is asked for, and never searched.

Glossary
    layout   degrees and the size of a microbatch
    family   what all plans of one array share: the three words, and the shards of ZeRO-3
    fixed    see fixed.py
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations, product
from math import gcd
from typing import Any

import numpy as np

from ndparallel.base.words import listed
from ndparallel.launch_flags.frameworks import FRAMEWORKS, whose
from ndparallel.launch_flags.megatron.rules import precision_aware
from ndparallel.parallel.divisibility import MOST_STAGES_ABOVE_LAYERS, can_fill, divisors
from ndparallel.pipeline.catalog import RECIPES
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.legality import reduces_once, spread_over, violations
from ndparallel.planner.stack import ordered_modules
from ndparallel.search.bounds.plan_table import DEGREES
from ndparallel.search.fixed import WORDS, ZERO, Fixed, allowed, fixed_values

CHEAP = ("layernorm", "moe_act", "mla_up_proj", "mlp")  # modules, in their own order


@dataclass(frozen=True)
class SearchSpace:
    """The plans among which a search chooses: of a job on so many GPUs, with the fields that are fixed."""

    job: TrainingJob
    gpus: int
    fixed: Fixed
    memory_bytes: float  # that a plan may hold on a GPU
    frameworks: Sequence[str] = ()  # of which one can launch the plans; none: nobody need


def layouts(job: TrainingJob, gpus: int, fixed: Fixed, rejected: Counter[str]) -> np.ndarray:
    """All legal layouts, one a row, by DEGREES; `rejected` counts the others by the rule that they break."""
    zero = min(stages_of_zero(job))
    rows, broken = [], cache(lambda **degrees: next(violations(job, Plan(**degrees, zero=zero)), None))
    for tp, pp, dp, cp in meshes(gpus, fixed):
        reason = broken(tp=tp, cp=cp) or broken(tp=tp, pp=pp, dp=dp, cp=cp)  # most cannot be cut so
        if reason:
            rejected[reason.rule] += 1
        else:
            rows += [
                (tp, pp, dp, ep, cp, size)
                for ep in expert_degrees(job, Plan(tp=tp, dp=dp, cp=cp), fixed)
                for size in microbatches(job, dp, fixed)
            ]
    return np.array(rows, dtype=np.int64).reshape(-1, len(DEGREES))


def stages_of_zero(job: TrainingJob) -> Sequence[int]:
    """Those that the job can have."""
    return (3,) if job.weights_away else ZERO


def meshes(gpus: int, fixed: Fixed) -> Iterator[tuple[int, int, int, int]]:
    for tp in allowed(divisors(gpus), fixed, "tp"):
        for pp in allowed(divisors(gpus // tp), fixed, "pp"):
            for cp in allowed(divisors(gpus // (tp * pp)), fixed, "cp"):
                yield from ((tp, pp, dp, cp) for dp in allowed([gpus // (tp * pp * cp)], fixed, "dp"))


def expert_degrees(job: TrainingJob, cut: Plan, fixed: Fixed) -> list[int]:
    experts, (ranks, _) = job.shape.experts, spread_over(job, cut)
    return allowed(divisors(gcd(ranks, experts.experts)) if experts else [1], fixed, "ep")


def microbatches(job: TrainingJob, dp: int, fixed: Fixed) -> list[int]:
    return allowed(divisors(job.global_batch // dp), fixed, "micro_batch")


def families(
    table: np.ndarray, job: TrainingJob, fixed: Fixed, frameworks: Sequence[str] = ()
) -> Iterator[Plan]:
    """The layouts with every choice of the three words, as plans whose degrees are arrays; one of these
    frameworks is to launch them, or of the software's."""
    choices = {"zero": stages_of_zero(job), "sequence_parallel": WORDS["sequence_parallel"]}
    stages, cuts = (allowed(values, fixed, name) for name, values in choices.items())
    tp, plans = table[:, 0], Plan(**dict(zip(DEGREES, table.T)))
    named = named_so(job, plans, stages, frameworks)
    cuttable = (tp > 1) & (job.sequence // table[:, 4] % tp == 0)
    parts = [
        (zero, cut, shards, dict(zip(DEGREES, rows.T)))
        for zero, cut in product(stages, cuts)
        for shards, rows in by_shards(job, table[named[zero] & (cuttable | (not cut))], zero, fixed)
    ]
    for (recompute, modules), (zero, cut, shards, degrees) in product(recomputations(job, fixed), parts):
        again: dict[str, Any] = {"recompute": recompute, "recompute_modules": modules}
        yield Plan(**degrees, **again, zero=zero, shards=shards, sequence_parallel=cut)


def named_so(
    job: TrainingJob, plans: Plan, stages: Sequence[int], frameworks: Sequence[str]
) -> dict[int, np.ndarray]:
    """Which plans have each of these stages of ZeRO, and no other name that is searched."""
    shards, lowest, found = shards_something(job, plans), lowest_stage(job, plans, stages), {}
    for zero in stages:
        other = np.logical_not(reduces_once(job, replace(plans, zero=zero)))
        # which frameworks have with ZeRO-1 alone, or with ZeRO-3, or always
        over_one = job.weights_away or (zero == 3 and "torchtitan" in (frameworks or whose(job)))
        found[zero] = ((zero == lowest) | (zero == 1 and precision_aware(job)) | over_one | shards) & other
    return found


def shards_something(job: TrainingJob, plans: Plan) -> np.ndarray:
    """Which plans have states that several ranks hold, for ZeRO to shard: of all weights those of dp and cp,
    of experts that tp does not cut those of tp, too."""
    experts = (plans.expert_ranks(job.stack) > 1) & bool(job.shape.experts)
    return (plans.sharding_ranks > 1) | experts


def lowest_stage(job: TrainingJob, plans: Plan, stages: Sequence[int]) -> np.ndarray:
    """The stage of ZeRO that names plans of which it shards nothing: the lowest that they can have."""
    found = np.full(np.shape(plans.tp), max(stages, default=0))
    for stage in reversed(stages):
        found = np.where(reduces_once(job, replace(plans, zero=stage)), found, stage)
    return found


def recomputations(job: TrainingJob, fixed: Fixed) -> list[tuple[str, tuple[str, ...]]]:
    """What may run again: a word, with modules where they are not the software's own, which stand last."""
    words = allowed(WORDS["recompute"], fixed, "recompute")
    if given := ordered_modules(fixed.get("recompute_modules", ())):
        return [("selective", given if given != job.stack.selective else ())]
    sets = module_sets(job) if "selective" in words and "recompute" not in fixed else []
    return [(word, ()) for word in words] + [("selective", modules) for modules in sets]


def module_sets(job: TrainingJob) -> list[tuple[str, ...]]:
    """The modules whose recomputation frees most memory for its time, alone and together, where the software
    can choose them: those that the model has, all of them first."""
    if not job.stack.chooses_modules:
        return []
    shape = job.shape
    mixture = bool(shape.experts)
    has = {
        "layernorm": mixture or shape.latent,
        "moe_act": mixture,
        "mla_up_proj": shape.latent,
        "mlp": not mixture,
    }
    cheap = [name for name in CHEAP if has[name]]
    return [each for size in range(len(cheap), 0, -1) for each in combinations(cheap, size)]


def by_shards(
    job: TrainingJob, rows: np.ndarray, zero: int, fixed: Fixed
) -> Iterator[tuple[int, np.ndarray]]:
    """All layouts with shards over all of dp and cp; and of ZeRO-3 those of which fewer ranks hold all
    shards, with all experts, and the others replicas (HSDP): as many as are asked for, or those of a node,
    of 2, of 4, and so on."""
    tp, ranks = rows[:, 0], rows[:, DEGREES.index("dp")] * rows[:, DEGREES.index("cp")]
    parts = Plan(tp=tp, ep=rows[:, DEGREES.index("ep")]).expert_parts(job.stack)
    in_node = np.gcd(ranks, np.maximum(1, job.hardware.gpus_per_node // tp))
    given = "shards" in fixed
    for shards in fixed_values(fixed, "shards") if given else (0, *numbers_of_shards(in_node, ranks)):
        wanted = given or fills_nodes(shards, in_node) & (shards > 1) & (shards < ranks)
        whole = (zero == 3) & (ranks % max(1, shards) == 0) & (tp * shards % parts == 0)
        some_rows = rows[whole & wanted] if shards else rows
        if len(some_rows):
            yield shards, some_rows


def numbers_of_shards(in_node: np.ndarray, ranks: np.ndarray) -> list[int]:
    """Every number of ranks that fill 1, 2, 4, 8 ... nodes, of layouts that have so many in a node."""
    most = max(ranks.tolist(), default=0)
    return sorted({first << k for first in {*in_node.tolist()} for k in range((most // first).bit_length())})


def fills_nodes(shards: int, in_node: np.ndarray) -> np.ndarray:
    """Which layouts have so many ranks in 1, 2, 4, 8 ... nodes."""
    nodes = shards // in_node
    return (shards % in_node == 0) & (nodes & (nodes - 1) == 0)


def schedules(layers: int, pp: int, fixed: Fixed) -> list[tuple[str, int]]:
    """Every schedule of a pipeline with every number of chunks that has layers for its stages."""
    if pp == 1:
        return [(Plan.schedule, chunks) for chunks in allowed([1], fixed, "chunks")]
    every = [
        (name, chunks)
        for name in allowed(RECIPES, fixed, "schedule")
        if "schedule" in fixed or not RECIPES[name].by_name_only
        for chunks in allowed(chunks_of(name, (layers + MOST_STAGES_ABOVE_LAYERS) // pp), fixed, "chunks")
    ]
    return [(name, chunks) for name, chunks in every if can_fill(layers, pp * chunks)]


def chunks_of(name: str, most: int) -> Iterable[int]:
    only = RECIPES[name].chunks
    return [only] if only else range(RECIPES[name].least_chunks, most + 1)


def runs(job: TrainingJob, name: str, pp: int, microbatches: np.ndarray) -> np.ndarray:
    """Which numbers of microbatches a schedule can do."""
    return microbatches >= RECIPES[name].fewest_microbatches(pp, not job.stack.executed)


def chooses_layers(space: SearchSpace) -> bool:
    """Whether plans are searched that recompute some layers of a stage: both all and none can be, and a
    framework has it; none that has it trains adapters. Where activations go to the host a layer that runs
    again may make a step shorter, so that the fewest that fit need not be the fastest."""
    both = {"none", "full"} <= {*allowed(WORDS["recompute"], space.fixed, "recompute")}
    job = space.job
    able = [FRAMEWORKS[name].has_some_layers and not job.adapters for name in space.frameworks]
    return both and not job.activations_away and (any(able) or not able)


def outside(space: SearchSpace, beside: bool = False) -> str:
    """Name the options of a plan that no search sets; `beside` says that plans with the other kind of experts
    were searched, too."""
    job, fewest = space.job, chooses_layers(space)
    layers = " Of --recompute-layers the fewest that fit are tried: more take no less time." * fewest
    shards = "--shards over other than 1, 2, 4, 8 ... nodes"
    sets = [f"--recompute-modules beyond {listed(found[0])}"] if (found := module_sets(job)) else []
    options = listed([*["--recompute-layers"] * (not fewest), "--stage-layers", *sets, shards], "or")
    return f"No plan of the search has {options}.{layers}{other_experts(job, beside)}"


def other_experts(job: TrainingJob, beside: bool) -> str:
    """Say of plans whose experts are whole, where these have them cut over tp, or the other way round, how to
    search them, or that none is faster."""
    if not (job.shape.experts and (beside or "megatron" in whose(job))):
        return ""
    here, others, value = (
        ("Plans with tp cut each expert over it", "those that do not", "1")
        if job.stack.expert_tp
        else ("No plan cuts experts over tp", "those that do", "tp")
    )
    return f" {here}; " + (
        f"none of {others} is faster." if beside else f"--what-if etp={value} searches {others}."
    )


def at(plans: Plan, row: int, schedule: str, chunks: int, recompute_layers: int = 0) -> Plan:
    """One of an array of plans, with a schedule."""
    numbers: dict[str, Any] = {name: int(getattr(plans, name)[row]) for name in DEGREES}
    group: dict[str, Any] = {"schedule": schedule, "chunks": chunks, "recompute_layers": recompute_layers}
    return replace(plans, **numbers, **group)
