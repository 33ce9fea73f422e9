"""The plan that the settings of a torchtitan job lay out.

Idea   Degrees are numbers; what a stage holds is named module by module, or follows from the layers.
"""

from dataclasses import replace
from typing import Any

from ndparallel.base.errors import UserError, unknown
from ndparallel.base.quoting import brief
from ndparallel.launch_flags import fields
from ndparallel.launch_flags.torchtitan.settings import TorchtitanSettings
from ndparallel.pipeline.catalog import RECIPES, names_in
from ndparallel.planner.job import Plan
from ndparallel.planner.models.shape import ModelShape
from ndparallel.planner.stages import layers_by_stage

RESHARD = "parallelism.fsdp_reshard_after_forward"
MICROBATCH = "parallelism.pipeline_parallel_microbatch_size"
LOCAL_BATCH = "training.local_batch_size"
STAGES = "parallelism.module_fqns_per_model_part"
SHARDS = "parallelism.data_parallel_shard_degree"


def plan_from(settings: TorchtitanSettings, shape: ModelShape, gpus: int) -> Plan:
    degrees: dict[str, Any] = {name: settings.number(key) for name, key in fields.TITAN_DEGREES.items()}
    degrees |= {} if shape.experts else {"ep": 1}
    shards, replicas = data_degrees(settings, degrees["tp"] * degrees["pp"] * degrees["cp"], gpus)
    sharded, dp = shards * degrees["cp"], shards * replicas
    reshard = settings.word(
        RESHARD, {"default": 3, **{word: zero for zero, word in fields.TITAN_RESHARD.items()}}
    )
    as_zero_3 = degrees["pp"] > 1 or replicas > 1 or asks_for_host(settings)
    zero = 0 if sharded == 1 < replicas else 3 if as_zero_3 else reshard
    plan = Plan(
        **degrees,
        dp=dp,
        zero=zero,
        shards=sharded if zero == 3 and replicas > 1 else 0,
        sequence_parallel=settings.switch("parallelism.enable_sequence_parallel") and degrees["tp"] > 1,
        micro_batch=settings.number(MICROBATCH if degrees["pp"] > 1 else LOCAL_BATCH),
    )
    plan = with_recomputation(settings, plan, shape)
    return with_schedule(settings, plan, shape) if plan.pp > 1 else plan


def asks_for_host(settings: TorchtitanSettings) -> bool:
    """Whether the host keeps all states."""
    return fields.TITAN_HOST in settings.given and settings.switch(fields.TITAN_HOST)


def data_degrees(settings: TorchtitanSettings, others: int, gpus: int) -> tuple[int, int]:
    """Ranks that share weights, and their replicas; of shards -1 what the other degrees leave. Raises
    UserError where the degrees do not make up the GPUs."""
    shards, replicas = settings.number(SHARDS), settings.number("parallelism.data_parallel_replicate_degree")
    if shards == -1 and not gpus:
        raise UserError(f"how many GPUs? {SHARDS} is -1, what the others leave: add --gpus.")
    each = others * replicas
    if shards == -1 and (gpus < each or gpus % each):
        raise UserError(f"its degrees, {each} in all, do not divide {gpus} GPUs: change one.")
    if shards != -1 and gpus not in (0, each * shards):
        raise UserError(f"its degrees make up {each * shards} GPUs, and there are {gpus}: change one.")
    return gpus // each if shards == -1 else shards, replicas


def with_recomputation(settings: TorchtitanSettings, plan: Plan, shape: ModelShape) -> Plan:
    """The plan with what its activation checkpointing computes again: of every second layer, as older
    releases have it, the first half of a stage's."""
    policy = settings.value("activation_checkpoint")
    option = str(settings.given.get("activation_checkpoint.selective_ac_option", "op"))
    if policy == "SelectiveAC" and option.isdecimal() and int(option) > 0:
        layers = max(1, shape.layers // plan.pp // int(option))
        return replace(plan, recompute="full", recompute_layers=0 if option == "1" else layers)
    words = {value.partition(".")[0]: word for word, value in fields.TITAN_RECOMPUTE.items()}
    return replace(plan, recompute=words.get(str(policy), "none"))


def with_schedule(settings: TorchtitanSettings, plan: Plan, shape: ModelShape) -> Plan:
    """The plan with its schedule and what each stage holds."""
    own = {theirs.lower(): ours for ours, theirs in names_in("torchtitan").items()}
    named = settings.value("parallelism.pipeline_parallel_schedule")
    if str(named).lower() not in own:
        raise unknown("schedule of torchtitan", str(named), names_in("torchtitan").values())
    schedule = own[str(named).lower()]
    layers = stage_layers(settings, plan.pp, shape.layers, 1 if is_single(schedule) else 2)
    if len(layers) % plan.pp or is_single(schedule) != (len(layers) == plan.pp):
        raise UserError(f"{len(layers)} stages on {plan.pp} pipeline ranks are no {named}.")
    even = layers_by_stage(shape.layers, len(layers), shape.prediction_layers)
    return replace(
        plan,
        schedule=schedule,
        chunks=len(layers) // plan.pp,
        stage_layers=() if layers == even else tuple(layers),
    )


def is_single(schedule: str) -> bool:
    """Whether a pipeline rank holds one stage alone."""
    return RECIPES[schedule].chunks == 1


def stage_layers(settings: TorchtitanSettings, ranks: int, layers: int, chunks: int) -> list[int]:
    """Layers of each stage: those that are named, or as torchtitan deals them out, with embedding and head
    for so many (_generate_llm_fqn_per_model_part in torchtitan/distributed/pipeline_parallel.py)."""
    if named := settings.value(STAGES):
        return [named_layers(stage) for stage in (named if isinstance(named, list) else [named])]
    less = "parallelism.pipeline_parallel_{}_stage_less_layers"
    first, last = (settings.number(less.format(end), 0) for end in ("first", "last"))
    key = "parallelism.pipeline_parallel_layers_per_stage"
    each = 0 if settings.value(key) is None else settings.number(key)
    return dealt(layers, -(-(layers + first + last) // each) if each else ranks * chunks, first, last)


def named_layers(stage: Any) -> int:
    """Count the layers among a stage's modules. Raises UserError for what is no list of them."""
    if not isinstance(stage, list):
        raise UserError(f"{STAGES}: {brief(stage)} is no list of a stage's modules.")
    return sum(str(module).startswith("layers.") for module in stage)


def dealt(layers: int, stages: int, first: int, last: int) -> list[int]:
    """Deal out layers, the first and the last stage so many fewer. Raises UserError for too few of them."""
    each, more = divmod(layers + first + last, stages)
    if each < max(first, last, 1):
        raise UserError(
            f"{layers} layers are too few for {stages} stages, of which the first has {first} fewer and the "
            f"last {last}."
        )
    counts = [each + (stage < more) for stage in range(stages)]
    counts[0] -= first
    counts[-1] -= last
    return counts
