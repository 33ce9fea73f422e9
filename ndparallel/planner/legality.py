"""Which plans can be: every rule is a sentence, with the nearest values that obey it.

Idea   A rule says what must divide what, or what goes with what. `why_not` gives all that a plan breaks; `check` raises the first.
Limit  Memory is not a rule: a plan that does not fit is priced, and said not to fit.
"""

from collections.abc import Iterator

from ndparallel.errors import UserError, unknown
from ndparallel.hardware import Accelerator
from ndparallel.pipeline.catalog import RECIPES, check_sizes
from ndparallel.planner.plan import Job, Plan
from ndparallel.planner.sizes import near_divisors
from ndparallel.planner.step import AUTOMATIC
from ndparallel.units import RECOMPUTE

DTYPES = ("bf16", "fp8")
SCHEDULES = (*RECIPES, *AUTOMATIC)


def check(job: Job, plan: Plan) -> None:
    """Raise UserError with the first rule that the plan breaks."""
    for reason in why_not(job, plan):
        raise UserError(reason)


def why_not(job: Job, plan: Plan) -> Iterator[str]:
    """A sentence for every rule that the plan breaks."""
    if impossible := list(below_one(job, plan)):
        yield from impossible
        return
    yield from wrong_words(job, plan)
    yield from uncut_model(job, plan)
    yield from uncut_experts(job, plan)
    yield from uncut_batch(job, plan)
    yield from wrong_pipeline(job, plan)


def below_one(job: Job, plan: Plan) -> Iterator[str]:
    degrees = {name: getattr(plan, name) for name in ("tp", "pp", "dp", "ep", "cp", "chunks", "micro_batch")}
    for name, value in (degrees | {"sequence": job.sequence, "global_batch": job.global_batch}).items():
        if value < 1:
            yield f"{name} is {value}; it must be at least 1."


def wrong_words(job: Job, plan: Plan) -> Iterator[str]:
    if plan.recompute not in RECOMPUTE:
        yield str(unknown("recompute", plan.recompute, RECOMPUTE))
    if plan.schedule not in SCHEDULES:
        yield str(unknown("schedule", plan.schedule, SCHEDULES))
    if plan.zero not in (0, 1, 2, 3):
        yield f"zero is {plan.zero}; it can be 0 (nothing), 1 (optimizer), 2 (and gradients), 3 (and weights: FSDP)."
    if isinstance(job.hardware, Accelerator) and job.dtype == "fp8" and "fp8" not in job.hardware.peak_flops_per_second:
        yield f"{job.hardware.name} does not multiply fp8: it has {', '.join(job.hardware.peak_flops_per_second)}."


def uncut_model(job: Job, plan: Plan) -> Iterator[str]:
    shape, tp = job.shape, plan.tp
    if shape.heads % tp:
        yield f"tp={tp} cannot cut {shape.heads} heads; nearest: {near_divisors(shape.heads, tp)}."
    elif shape.kv_heads % tp and tp % shape.kv_heads:
        yield f"tp={tp} cannot share {shape.kv_heads} KV heads; nearest: {near_divisors(shape.kv_heads, tp)}."
    if shape.moe_layers < shape.layers and shape.ffn % tp:
        yield f"tp={tp} cannot cut an MLP of {shape.ffn}; nearest: {near_divisors(shape.ffn, tp)}."
    if job.sequence % (2 * plan.cp) and plan.cp > 1:
        yield f"cp={plan.cp} cuts a sequence in {2 * plan.cp} parts, which {job.sequence} tokens are not a multiple of."
    elif plan.sequence_parallel and (job.sequence // plan.cp) % tp:
        yield f"sequence parallelism cannot cut {job.sequence // plan.cp} tokens over tp={tp}; nearest: {near_divisors(job.sequence, tp)}."


def uncut_experts(job: Job, plan: Plan) -> Iterator[str]:
    some, ranks = job.shape.experts, plan.tp * plan.cp * plan.dp
    if plan.ep == 1:
        return
    if some is None:
        yield f"{job.shape.name} has no experts for ep={plan.ep} ranks to share; ep must be 1."
    elif some.experts % plan.ep:
        yield f"ep={plan.ep} cannot share {some.experts} experts evenly; nearest: {near_divisors(some.experts, plan.ep)}."
    elif ranks % plan.ep:
        near = near_divisors(ranks, plan.ep)
        yield f"ep={plan.ep} does not divide tp*cp*dp = {ranks}, whose ranks the experts are spread over; nearest: {near}."


def uncut_batch(job: Job, plan: Plan) -> Iterator[str]:
    parts = plan.dp * plan.micro_batch
    if job.global_batch % parts:
        near = max(parts, round(job.global_batch / parts) * parts)
        yield (
            f"a global batch of {job.global_batch} cannot be cut into dp={plan.dp} parts of whole microbatches of {plan.micro_batch}; "
            f"the nearest batch that can is {near}."
        )
    if plan.shards and (plan.dp * plan.cp) % plan.shards:
        yield f"{plan.shards} shards do not divide dp*cp = {plan.dp * plan.cp}; nearest: {near_divisors(plan.dp * plan.cp, plan.shards)}."


def wrong_pipeline(job: Job, plan: Plan) -> Iterator[str]:
    layers, made_of = job.shape.layers, f"pp={plan.pp}, chunks={plan.chunks}"
    if plan.stages > layers:
        yield f"{layers} layers cannot fill {plan.stages} stages ({made_of}); take at most {layers}."
    elif plan.pp > 1 and plan.schedule in SCHEDULES and job.global_batch % (plan.dp * plan.micro_batch) == 0:
        name = plan.schedule if plan.schedule in RECIPES else "searched"
        try:
            check_sizes(name, plan.pp, plan.microbatches(job), plan.chunks)
        except UserError as reason:
            yield str(reason)
    elif plan.pp == 1 and plan.chunks > 1:
        yield f"chunks={plan.chunks} are parts of a pipeline rank, and pp is 1: choose chunks=1, or pp from 2 on."
