"""A DeepSpeed job as the job and the plan that it trains.

Idea   Its configuration (settings.py) says how states are sharded, what tensor and expert
       parallelism there is, and the batch. The program's arguments may name the model, its sequences, and
       recomputation, as transformers' and TRL's do.
Limit  What only the program knows is given beside the file (--model, --sequence, --set NAME=VALUE). Stages of
       a pipeline are read where the configuration names them.
"""

from dataclasses import replace
from typing import Any

from gpu import Hardware
from ndparallel.base.errors import UserError
from ndparallel.base.quoting import brief
from ndparallel.launch_flags import fields
from ndparallel.launch_flags.deepspeed.notes import notes_on_settings
from ndparallel.launch_flags.deepspeed.settings import filled, job_of, offloaded, optimizer_of
from ndparallel.launch_flags.frozen import frozen, release
from ndparallel.launch_flags.program.adapters import adapters_in
from ndparallel.launch_flags.program.words import (
    RECOMPUTES,
    sequence_of,
    shape_of,
    what_the_program_leaves,
)
from ndparallel.launch_flags.reading import NOTHING, Beside, Reading
from ndparallel.launch_flags.settings import Configuration, Settings, read_value
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.legality import check
from ndparallel.planner.models.shape import ModelShape
from ndparallel.planner.models.sizes import checked_size
from ndparallel.planner.software import DEEPSPEED
from ndparallel.planner.stack import Stack

ULYSSES = ("sequence_parallel_size", "context_parallel_size", "sequence_parallel_degree")
MICRO, BATCH, ACCUMULATION = fields.DEEPSPEED_MICRO, "train_batch_size", fields.DEEPSPEED_STEPS
DEGREES = fields.DEEPSPEED_DEGREES
STAGE, PREFETCH = fields.DEEPSPEED_ZERO, "zero_optimization.stage3_prefetch_bucket_size"


def read_deepspeed(text: str, hardware: Hardware, beside: Beside = NOTHING) -> Reading:
    """Read a configuration, a file of Accelerate's, or a script that launches DeepSpeed. The variables are
    arguments of the program too.

    Raises UserError, in a sentence, for what is none of these, contradicts itself, or cannot be trained.
    """
    found = job_of(text, beside.variables, beside.folder)
    settings = Settings(filled(found), frozen("deepspeed")["defaults"] | found.defaults)
    words = {name: read_value(value) for name, value in found.arguments.items()}
    shape = shape_of(found.arguments, beside)
    plan = plan_from(settings, words, found.gpus if beside.gpus is None else beside.gpus)
    optimizer = optimizer_of(settings, words)
    job = TrainingJob(
        shape,
        hardware,
        stack_from(settings, shape),
        sequence_of(words, beside.sequence),
        plan.dp * plan.micro_batch * accumulation(settings, plan),
        moments="8bit" if "8bit" in optimizer else "fp32",
        offload=offloaded(settings),
        adapters=beside.adapters or adapters_in(words),
    )
    checked_size(job.global_batch, "its batch")
    check(job, plan)
    by = f"{release('deepspeed')}{' under Accelerate' if found.defaults else ''}"
    unsaid = what_the_program_leaves(words, optimizer, job, plan, beside)
    return Reading(job, plan, (*notes_on_settings(settings, job, by), *unsaid))


def plan_from(settings: Settings, words: Configuration, gpus: int) -> Plan:
    """The plan that the configuration lays out. Raises UserError for degrees that do not divide the GPUs, or
    GPUs that nobody names."""
    if not gpus:
        raise UserError("how many GPUs? Its configuration does not say it: add --gpus.")
    tp = max(1, settings.number(DEGREES["tp"], 0))
    pp = 1 if settings.text(DEGREES["pp"]) == "auto" else settings.number(DEGREES["pp"])
    cp = ulysses(settings, words)
    if gpus % (tp * pp * cp):
        beside = f" x {DEGREES['cp']} {cp}" * (cp > 1)
        raise UserError(f"tp {tp} x pp {pp}{beside} does not divide {gpus} GPUs: change one.")
    ep = settings.number(DEGREES["ep"]) if settings.switch("expert_parallel.enabled") else 1
    plan = Plan(
        tp=tp,
        pp=pp,
        dp=gpus // (tp * pp * cp),
        ep=ep,
        cp=cp,
        zero=settings.number(STAGE, 0),
        recompute=recompute(settings, words, pp),
    )
    return replace(plan, micro_batch=micro_batch(settings, plan))


def ulysses(settings: Settings, words: Configuration) -> int:
    """Ranks that share a sequence: as the configuration says, or the program's arguments. Raises UserError
    where the two differ, or for no whole number."""
    named = {name: words[name] for name in ULYSSES if words.get(name, 1) not in (0, 1)}
    key = settings.number(DEGREES["cp"])
    for name, degree in named.items():
        if type(degree) is not int or degree < 1:
            raise UserError(f"--{name} {brief(degree)}: give a whole number from 1 on.")
        if key not in (1, degree):
            raise UserError(f"--{name} {degree} differs from {DEGREES['cp']} = {key}: change one.")
    return max(key, *named.values(), 1)


def recompute(settings: Settings, words: Configuration, pp: int) -> str:
    """Whole layers, or nothing."""
    interval = settings.number(fields.DEEPSPEED_INTERVAL, 0) if pp > 1 else 0
    return "full" if interval or any(words.get(name) is True for name in RECOMPUTES) else "none"


def ranks(plan: Plan) -> int:
    """Those that DeepSpeed divides train_batch_size by: tp's too, of which it hears later (DeepSpeedConfig in
    deepspeed/runtime/config.py)."""
    return plan.dp if plan.pp > 1 else plan.dp * plan.tp


def micro_batch(settings: Settings, plan: Plan) -> int:
    """Sequences of one forward pass (_set_batch_related_parameters in deepspeed/runtime/config.py). Raises
    UserError where nothing says it."""
    if settings.value(MICRO) is not None:
        return settings.number(MICRO)
    if settings.value(BATCH) is None:
        raise UserError(
            f"{MICRO} is not given, or auto: add --set per_device_train_batch_size=N (transformers' own "
            "default is 8)."
        )
    return divided(settings, ranks(plan) * settings.number(ACCUMULATION))


def accumulation(settings: Settings, plan: Plan) -> int:
    """Forward passes of a step."""
    if settings.value(BATCH) is None or ACCUMULATION in settings.given:
        steps = settings.number(ACCUMULATION)
    else:
        steps = divided(settings, ranks(plan) * plan.micro_batch)
    batch, made = settings.value(BATCH), ranks(plan) * plan.micro_batch * steps
    if batch not in (None, made):
        raise UserError(
            f"{BATCH} is {batch}, and {ranks(plan)} ranks times {MICRO} {plan.micro_batch} times "
            f"{ACCUMULATION} {steps} make {made}: leave {BATCH} out."
        )
    return steps


def divided(settings: Settings, by: int) -> int:
    """A part of train_batch_size. Raises UserError where it is none."""
    if (batch := settings.number(BATCH)) % by:
        raise UserError(f"{BATCH} {batch} is no multiple of {by}: change it, or add --gpus.")
    return batch // by


def stack_from(settings: Settings, shape: ModelShape) -> Stack:
    """DeepSpeed, what travels beside compute (overlap_comm_valid in deepspeed/runtime/zero/config.py), and
    the sizes of what its memory holds for a while."""
    asked = settings.value(fields.DEEPSPEED_BESIDE)
    beside = settings.number(STAGE, 0) == 3 if asked is None else settings.switch(fields.DEEPSPEED_BESIDE)
    bucket, keys = fields.DEEPSPEED_BUCKET, fields.DEEPSPEED_SIZES
    sizes: dict[str, Any] = {
        name: size_of(settings, key, shape.hidden, key == bucket) for name, key in keys.items()
    }
    if not size_of(settings, PREFETCH, shape.hidden):  # nothing is gathered ahead
        sizes["live_weights"] = 0.0
    ahead = bool(beside and sizes["live_weights"])
    return replace(DEEPSPEED, dp_overlap=beside, prefetch=ahead, **sizes)


def size_of(settings: Settings, key: str, hidden: int, least: int = 0) -> float:
    """A number of weights or gradients; "auto" is the model's width, squared, for the buffer of gradients
    (trainer_config_finalize in transformers/integrations/deepspeed.py). Raises UserError for none."""
    size = hidden**2 if (given := settings.value(key)) == "auto" else given
    if type(size) not in (int, float) or not least <= size < 1e15:
        raise UserError(f"{key} = {brief(size)}: give a number from {least:d} on, or auto.")
    return float(size)
