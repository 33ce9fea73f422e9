"""Which plans can be: every rule is a sentence, with the nearest values that obey it.

Idea   A rule says what must divide what, or what goes with what; what a mesh can cut is asked of
       ndparallel/parallel/divisibility.py, as the lessons do. `violations` gives all that a plan breaks,
       `why_not` their sentences; `check` raises the first.
Limit  Memory is not a rule: a plan that does not fit is priced, and said not to fit.
"""

from collections.abc import Iterator
from math import gcd, lcm

from ndparallel.base.errors import UserError, fault_of_whole, unknown
from ndparallel.base.words import count, listed, option_of
from ndparallel.hardware.accelerator import Accelerator
from ndparallel.model.costs import RECOMPUTE
from ndparallel.parallel.divisibility import MOST_STAGES_ABOVE_LAYERS, can_fill, expert_rules
from ndparallel.pipeline.catalog import RECIPES, check_sizes, default_schedule
from ndparallel.planner.job import WEIGHTS_LEAVE, Plan, TrainingJob
from ndparallel.planner.model_cuts import (
    Violation,
    divisibility_violations,
    model_violations,
    width_violations,
)
from ndparallel.planner.models.sizes import near_divisors
from ndparallel.planner.number_types import NUMBER_TYPES, NumberType
from ndparallel.planner.stack import MODULES

DTYPES = tuple(NUMBER_TYPES)
DTYPE_SPELLINGS = {"bfloat16": "bf16"}


def check(job: TrainingJob, plan: Plan) -> None:
    """Raise UserError with the first rule that the plan breaks."""
    for reason in why_not(job, plan):
        raise UserError(reason)


def check_model(job: TrainingJob, plan: Plan) -> None:
    """Raise UserError with the first rule of the model's that the plan breaks, whatever its dp."""
    for reason in [*below_one(job, plan)] or model_violations(job, plan):
        raise UserError(reason.sentence)


def why_not(job: TrainingJob, plan: Plan) -> Iterator[str]:
    """A sentence for every rule that the plan breaks."""
    return (reason.sentence for reason in violations(job, plan))


def is_folded(plan: Plan) -> bool:
    """Whether ep spreads experts over tp and cp ranks too (MoE Parallel Folding, Liu et al. 2504.14960)."""
    return plan.dp % plan.ep > 0


def violations(job: TrainingJob, plan: Plan) -> Iterator[Violation]:
    """Every rule that the plan breaks."""
    if impossible := list(below_one(job, plan)):
        yield from impossible
        return
    yield from word_violations(job, plan)
    yield from model_violations(job, plan)
    yield from expert_violations(job, plan)
    yield from batch_violations(job, plan)
    yield from shards_violations(job, plan)
    yield from offload_violations(job, plan)
    yield from reduction_violations(job, plan)
    yield from pipeline_violations(job, plan)


def below_one(job: TrainingJob, plan: Plan) -> Iterator[Violation]:
    degrees = {name: getattr(plan, name) for name in ("tp", "pp", "dp", "ep", "cp", "chunks", "micro_batch")}
    for name, value in (degrees | {"sequence": job.sequence, "global_batch": job.global_batch}).items():
        if why := fault_of_whole(option_of(name), value):
            yield Violation("degrees below 1", why)


def word_violations(job: TrainingJob, plan: Plan) -> Iterator[Violation]:
    if plan.recompute not in RECOMPUTE:
        yield Violation("unknown words", str(unknown("recompute", plan.recompute, RECOMPUTE)))
    if plan.schedule not in RECIPES:
        yield Violation("unknown words", str(unknown("schedule", plan.schedule, RECIPES)))
    if plan.zero not in (0, 1, 2, 3):
        why = (
            f"zero is {plan.zero}; it can be 0 (nothing), 1 (optimizer), 2 (and gradients), 3 (and weights: "
            "FSDP)."
        )
        yield Violation("unknown words", why)
    if plan.recompute_modules:
        yield from module_violations(plan)
    kind = NUMBER_TYPES[job.dtype]
    if isinstance(job.hardware, Accelerator) and not is_multiplied(job.hardware, kind):
        has = [name for name, kind in NUMBER_TYPES.items() if is_multiplied(job.hardware, kind)]
        why = f"{job.hardware.name} does not multiply {kind.needs}: of --dtype it has {listed(has)}."
        yield Violation("hardware without the dtype", why)
    yield from width_violations(job)


def is_multiplied(hardware: Accelerator, kind: NumberType) -> bool:
    """Whether a GPU multiplies numbers of this type."""
    return not kind.needs or kind.needs in hardware.peak_flops_per_second


def module_violations(plan: Plan) -> Iterator[Violation]:
    for module in plan.recompute_modules:
        if module not in MODULES:
            why = str(unknown("module of selective recomputation", module, MODULES))
            yield Violation("unknown words", why)
    if plan.recompute != "selective":
        why = (
            f"recompute_modules is of selective recomputation, and recompute is {plan.recompute}: leave it "
            "out, or take selective."
        )
        yield Violation("modules without selective recomputation", why)


def expert_violations(job: TrainingJob, plan: Plan) -> Iterator[Violation]:
    some = job.shape.experts
    if plan.ep == 1:
        return
    if some is None:
        yield Violation(
            "no experts for ep",
            f"{job.shape.name} has no experts for ep={plan.ep} ranks to share; ep must be 1.",
        )
        return
    ranks, whose = spread_over(job, plan)
    yield from divisibility_violations("ep", plan.ep, expert_rules(some.experts), ranks)
    if ranks % plan.ep:
        near = near_divisors(gcd(ranks, some.experts), plan.ep)
        yield Violation(
            "ranks not divisible by ep",
            f"ep={plan.ep} does not divide {whose} are spread over; nearest: {near}.",
        )


def spread_over(job: TrainingJob, plan: Plan) -> tuple[int, str]:
    """How many ranks of a stage have other experts or hold the same ones, and which ranks they are."""
    ranks = plan.cp * plan.dp
    if job.stack.expert_tp:
        return ranks, f"cp*dp = {ranks}, whose ranks experts that tp cuts"
    return plan.tp * ranks, f"tp*cp*dp = {plan.tp * ranks}, whose ranks the experts"


def shards_violations(job: TrainingJob, plan: Plan) -> Iterator[Violation]:
    if not plan.shards:
        return
    if plan.zero != 3:
        why = f"{plan.shards} shards are of ZeRO-3, and zero is {plan.zero}: leave them out, or take zero 3."
        yield Violation("shards without ZeRO-3", why)
    elif (plan.dp * plan.cp) % plan.shards:
        near = near_divisors(plan.dp * plan.cp, plan.shards)
        yield Violation(
            "ranks not divisible by shards",
            f"{plan.shards} shards do not divide dp*cp = {plan.dp * plan.cp}; nearest: {near}.",
        )
    elif plan.expert_ranks(job.stack) % 1:
        parts = plan.expert_parts(job.stack)
        yield Violation(
            "shards not divisible by ep",
            f"tp*shards = {plan.tp * plan.shards} ranks share the states of all experts, which ep={plan.ep} "
            f"cuts into {parts} parts: take a multiple of {lcm(parts, plan.tp) // plan.tp} shards.",
        )


def offload_violations(job: TrainingJob, plan: Plan) -> Iterator[Violation]:
    if not job.weights_away:
        return
    if job.stack.sharding not in WEIGHTS_LEAVE:
        yield Violation(
            "weights on the host",
            "weights on the host are priced for DeepSpeed's ZeRO-3 and PyTorch's FSDP2 alone, and not for "
            f"{job.stack.name}: take --software deepspeed or torchtitan, or leave them out of --offload.",
        )
    elif plan.zero != 3:
        why = f"only ZeRO-3 keeps weights on the host, and zero is {plan.zero}: take zero 3."
        yield Violation("weights on the host without ZeRO-3", why)
    elif job.states_away and "optimizer" not in job.offload:
        yield Violation(
            "weights alone on the host",
            f"{job.stack.name} keeps the optimizer on the host, too, where weights are (FSDP2's "
            "CPUOffloadPolicy): take --offload optimizer,weights.",
        )


def batch_violations(job: TrainingJob, plan: Plan) -> Iterator[Violation]:
    parts = plan.dp * plan.micro_batch
    if job.global_batch % parts:
        near = max(parts, round(job.global_batch / parts) * parts)
        yield Violation(
            "batch not divisible by dp and microbatch",
            f"a global batch of {job.global_batch} cannot be cut into dp={plan.dp} parts of whole "
            f"microbatches of {plan.micro_batch}; "
            f"the nearest batch that can is {near}.",
        )


def reduces_once(job: TrainingJob, plan: Plan):
    """Whether ZeRO-2 is FSDP that divides no gradients: in a pipeline, where it is the same as ZeRO-3, as
    weights and gradients stay whole until the step ends, whether fully_shard is told to reshard_after_forward
    or not (torch/distributed/pipelining/stage.py, backward_maybe_with_nosync); and where it syncs in the last
    of several microbatches alone."""
    stack, several = job.stack, plan.microbatches(job) > 1
    in_pipeline = stack.has_torch_fsdp and stack.whole_in_pipeline
    between = stack.has_torch_fsdp and stack.whole_between
    return (plan.zero == 2) & ((plan.pp > 1) & in_pipeline | several & between)


def reduction_violations(job: TrainingJob, plan: Plan) -> Iterator[Violation]:
    if not reduces_once(job, plan):
        return
    several = plan.microbatches(job)
    if plan.pp > 1:
        why = (
            f"in a pipeline {job.stack.name} keeps weights and gradients whole until the step ends, be zero "
            "2 or 3: take zero 3, which is priced so."
        )
        yield Violation("ZeRO-2 in a pipeline of FSDP", why)
    else:
        why = (
            f"{job.stack.name} keeps gradients whole until the last of {several} microbatches, "
            "where zero 2 would divide them after each: take zero 3, which is priced so, or one microbatch."
        )
        yield Violation("ZeRO-2 of FSDP with several microbatches", why)


def pipeline_violations(job: TrainingJob, plan: Plan) -> Iterator[Violation]:
    layers, made_of = job.shape.layers, f"pp={plan.pp}, chunks={plan.chunks}"
    if not can_fill(layers, plan.stages):
        most = layers + MOST_STAGES_ABOVE_LAYERS
        yield Violation(
            "more stages than layers",
            f"{layers} layers cannot fill {plan.stages} stages ({made_of}): with the embedding and the head "
            f"they fill at most {most}.",
        )
    elif plan.pp > 1 and plan.schedule in RECIPES and job.global_batch % (plan.dp * plan.micro_batch) == 0:
        try:
            check_chunks(plan)
            check_sizes(plan.schedule, plan.pp, plan.microbatches(job), plan.chunks)
            check_fewest(job, plan)
        except UserError as reason:
            yield Violation("schedule cannot do these microbatches and chunks", str(reason))
    elif plan.pp == 1 and plan.chunks > 1:
        why = (
            f"chunks={plan.chunks} are parts of a pipeline rank, and pp is 1: choose chunks=1, or pp from 2 "
            "on."
        )
        yield Violation("chunks without a pipeline", why)


def check_fewest(job: TrainingJob, plan: Plan) -> None:
    """Raise UserError where a schedule's published program takes more microbatches; the lessons' takes any
    number."""
    fewest = plan.recipe.fewest_microbatches(plan.pp, not job.stack.executed)
    if (microbatches := plan.microbatches(job)) < fewest:
        raise UserError(
            f"{plan.schedule} takes at least {fewest} microbatches with pp={plan.pp}, not {microbatches}: "
            "take smaller or more of them, fewer pipeline ranks, or another schedule."
        )


def check_chunks(plan: Plan) -> None:
    """Raise UserError where a schedule of several chunks is given one."""
    least = plan.recipe.least_chunks
    if not plan.recipe.chunks and plan.chunks < least:
        raise UserError(
            f"{plan.schedule} keeps at least {count(least, 'chunk')} per rank, not {plan.chunks}: take "
            f"{least}, or {default_schedule(plan.chunks)} with {plan.chunks}."
        )
