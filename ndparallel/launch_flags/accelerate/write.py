"""`--emit accelerate`: the launch script of Hugging Face's Accelerate for a job and a plan, with its file of
`accelerate config` in it.

Idea   Accelerate wraps a program that has the model, as DeepSpeed does. So the script writes the file, and
       adds to the program's arguments those that have to say the same, by the names of transformers'
       TrainingArguments. Data are parallel by FSDP2 (accelerate/utils/fsdp_utils.py), over some of the ranks
       or all; sequences by torch's context parallelism, over whose ranks FSDP shards too
       (accelerate/parallelism_config.py). Whole layers are recomputed, or none (fsdp2_apply_ac).
Limit  No tensor parallelism: transformers has its own for each model, which is not priced. FSDP1, which a
       file may ask for, is written back as FSDP1.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from ndparallel.launch_flags import fields
from ndparallel.launch_flags.nodes import full_nodes
from ndparallel.launch_flags.rules import (
    SOME_LAYERS,
    LaunchRule,
    has_no,
    recomputes_some_layers,
    refuse,
    refuse_other_software,
    refuse_other_switches,
    rule_maker,
)
from ndparallel.launch_flags.script_text import note_on_imbalance, opening, programs_part, wrapping_script
from ndparallel.planner.describe import state_words
from ndparallel.planner.job import TOGETHER, Plan, TrainingJob
from ndparallel.planner.legality import check

STACKS = ("accelerate", "accelerate-sync-each-batch")
FILE = "accelerate_by_ndparallel.yaml"  # that the script writes: no name that a user may have given
# of its software: what keys choose
FREE = ("attention", "context_parallel", "reshards", "sharding")
ON_NODES = (
    '--machine_rank "$MACHINE_RANK" --main_process_ip "$MASTER_ADDR" --main_process_port "$MASTER_PORT"'
)


def emit_accelerate(job: TrainingJob, plan: Plan) -> str:
    """A shell script that launches this plan. Raises UserError, saying what, for what Accelerate does not
    have."""
    check(job, plan)
    refuse_other_software(job, "accelerate", STACKS)
    refuse(RULES, job, plan)
    refuse_other_states(job)
    refuse_other_switches(job, "accelerate", FREE)
    nodes, _ = full_nodes(job, plan)
    settings = yaml_lines(in_tables(dict(configuration(job, plan))))
    command = [f"accelerate launch --config_file {FILE}", *[ON_NODES] * (nodes > 1), '"$@"']
    return wrapping_script(remarks(job, plan), FILE, settings, command, arguments_of(job, plan))


def remarks(job: TrainingJob, plan: Plan) -> Iterator[str]:
    """What a reader of the script wants to know and no key says."""
    yield from opening(job, plan, "accelerate")
    yield from programs_part(job, by_transformers=True)
    if job.half:
        yield "It loads the model in bfloat16, and keeps no weights in float32."
    if plan.cp > 1:
        yield "Its attention is torch's (attn_implementation sdpa), with a causal mask and no other."
    if job.adapters:
        lora = " ".join(state_words(replace(job, half=False, offload=(), moments="fp32")))
        yield f"It trains {lora}, which no key says."
        if job.adapters.quantized:
            yield "Its frozen weights are sharded with bnb_4bit_quant_storage=torch.bfloat16 alone."
    if not job.stack.flash:
        yield "Its attention is not fused (attn_implementation eager)."
    yield from note_on_imbalance(job)
    if job.states_away:
        yield "The host steps: OMP_NUM_THREADS is the host's cores for each GPU."
    if plan.gpus > full_nodes(job, plan)[1]:
        yield (
            "It runs on every node, with MACHINE_RANK from 0 on, and the first one's MASTER_ADDR and "
            "MASTER_PORT."
        )


def configuration(job: TrainingJob, plan: Plan) -> Iterator[tuple[str, Any]]:
    """Options of `accelerate launch` with their values."""
    yield "compute_environment", "LOCAL_MACHINE"
    yield "distributed_type", "FSDP"
    yield "mixed_precision", "'no'" if job.half else "bf16"
    yield "num_machines", full_nodes(job, plan)[0]
    yield "num_processes", int(plan.gpus)
    version = fields.ACCELERATE_VERSIONS[job.stack.sharding]
    yield fields.ACCELERATE_VERSION, version
    yield fields.ACCELERATE_WRAP, "TRANSFORMER_BASED_WRAP"
    reshards = plan.zero == 3 and job.stack.reshards
    yield from sharding(reshards, version)
    yield fields.ACCELERATE_RECOMPUTE, plan.recompute == "full"
    yield fields.ACCELERATE_HOST, job.states_away
    yield from parallelism(job, plan)


def sharding(reshards: bool, version: int) -> Iterator[tuple[str, Any]]:
    """Whether weights are freed behind the forward pass, in the words of FSDP2 or FSDP1."""
    if version == 2:
        yield fields.ACCELERATE_RESHARD, reshards
    else:
        yield fields.ACCELERATE_STRATEGY, "FULL_SHARD" if reshards else "SHARD_GRAD_OP"


def parallelism(job: TrainingJob, plan: Plan) -> Iterator[tuple[str, Any]]:
    """The degrees, where there is more than FSDP over all ranks."""
    shards = plan.shards if plan.zero == 3 and plan.shards else plan.dp * plan.cp
    if shards == plan.dp and plan.cp == 1:
        return
    yield fields.ACCELERATE_REPLICAS, int(plan.dp * plan.cp // shards)
    yield fields.ACCELERATE_SHARDS, int(shards // plan.cp)
    for name, key in fields.ACCELERATE_DEGREES.items():
        yield key, int(getattr(plan, name))
    if plan.cp > 1:
        yield fields.ACCELERATE_WAY, fields.ACCELERATE_WAYS[job.stack.context_parallel]


def arguments_of(job: TrainingJob, plan: Plan) -> Iterator[tuple[str, str]]:
    """The program's arguments, which transformers takes before the file's."""
    yield fields.TRANSFORMERS_MICRO, f"{plan.micro_batch}"
    yield fields.TRANSFORMERS_STEPS, f"{plan.microbatches(job)}"
    yield "bf16", f"{not job.half}".lower()
    yield fields.TRANSFORMERS_RECOMPUTE, "false"  # FSDP's own, if any
    if not job.stack.whole_between:
        every = '{"gradient_accumulation_kwargs": {"sync_each_batch": true}}'
        yield fields.TRANSFORMERS_ACCELERATOR, f"'{every}'"


def in_tables(options: dict[str, Any]) -> dict[str, Any]:
    """Options in the file's tables, which their names begin with."""
    tables: dict[str, Any] = {}
    for name, value in options.items():
        starts = (start for start in fields.ACCELERATE_TABLES if name.startswith(start))
        table = (
            tables.setdefault(fields.ACCELERATE_TABLES[start], {}) if (start := next(starts, "")) else tables
        )
        table[name] = value
    return tables


def yaml_lines(table: dict[str, Any], indent: str = "") -> Iterator[str]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield f"{indent}{name}:"
            yield from yaml_lines(value, f"{indent}  ")
        else:
            yield f"{indent}{name}: {str(value).lower() if isinstance(value, bool) else value}"


def refuse_other_states(job: TrainingJob) -> None:
    """Raise UserError for what Accelerate keeps or drops in no other way."""
    if job.offload and {*job.offload} != {*TOGETHER}:
        raise accelerate_lacks(
            f"{' and '.join(job.offload)} alone on the host",
            f"its {fields.ACCELERATE_HOST} moves weights, gradients and optimizer: take --offload "
            "optimizer,weights with --zero 3, or leave --offload out",
        )
    if words := state_words(replace(job, adapters=None, half=False, offload=())):
        raise accelerate_lacks(f"{' or '.join(words)} beside FSDP", "leave that out")
    if job.dtype != "bf16":
        raise accelerate_lacks(f"layers in {job.dtype} that are priced here", "take --dtype bf16")
    if job.capacity_factor is not None:
        raise accelerate_lacks("capacity factor", "leave --capacity-factor out")


accelerate_lacks = partial(has_no, "accelerate")
never = rule_maker(accelerate_lacks)
RULES = (
    never(SOME_LAYERS, "recompute all layers, or none", recomputes_some_layers),
    never("pipeline", "take --pp 1", lambda job, plan: plan.pp > 1),
    never(
        "tensor parallelism that is priced here: each model has its own in transformers",
        "take --tp 1",
        lambda job, plan: plan.tp > 1,
    ),
    never(
        "expert parallelism that is priced here: each model has its own in transformers",
        "take --ep 1",
        lambda job, plan: plan.ep > 1,
    ),
    never(
        "ZeRO-{plan.zero} that is priced here: without FSDP its layers are cast by torch.autocast",
        "take --zero 2 or 3",
        lambda job, plan: plan.zero < 2,
    ),
    never(
        "{plan.shards} shards with cp={plan.cp}",
        "take a multiple of {plan.cp}",
        lambda job, plan: (plan.zero == 3) & (plan.shards % plan.cp > 0),
    ),
    LaunchRule(
        lambda job, plan: (plan.zero == 3) & (plan.cp > 1) & (plan.shards == plan.cp) & (plan.dp > 1),
        lambda job, plan: accelerate_lacks(
            f"replicas of weights that cp={plan.cp} ranks alone share", f"take --shards {2 * plan.cp} or more"
        ),
    ),
    never(
        "degrees beside fsdp_version 1",
        "take fsdp_version 2",
        lambda job, plan: (
            job.stack.sharding == "fsdp1" and (plan.cp > 1) | (plan.zero == 3) & (plan.shards > 0)
        ),
    ),
    never(
        "context parallelism by {job.stack.context_parallel} beside FSDP",
        "take --context-parallel all-gather or ring",
        lambda job, plan: (plan.cp > 1) & (job.stack.context_parallel not in fields.ACCELERATE_WAYS),
    ),
)
