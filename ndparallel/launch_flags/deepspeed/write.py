"""`--emit deepspeed`: the launch script of DeepSpeed for a job and a plan, with its configuration in it.

Idea   DeepSpeed wraps a program that has the model. So the script writes the configuration, and adds to the
       program's arguments those that have to say the same, by the names of transformers' TrainingArguments; a
       pipeline is built by the program itself, and a comment says how.
       Its pipeline runs 1F1B of one chunk (runtime/pipe/schedule.py, TrainSchedule.steps), with gradients and
       weights that are not sharded (runtime/pipe/engine.py, PipelineEngine.__init__). Tensor
       parallelism (AutoTP) goes with every level of ZeRO (runtime/engine.py,
       _configure_tensor_parallel_states), and cuts no sequences. Experts (AutoEP) may be sharded as weights
       without it (_validate_zero3_moe_compatibility); with it they take neither ZeRO-3 nor a pipeline nor an
       optimizer on the host (module_inject/auto_ep_folding.py, validate_folding_global). Context parallelism
       is Ulysses', beside data parallelism alone (runtime/sequence_parallel/parallel_state_sp.py), and beside
       experts without ZeRO-3 (_validate_zero3_moe_compatibility). Whole layers are
       recomputed, or none (runtime/pipe/module.py, PipelineModule.forward). An optimizer on the host is
       ZeRO's (docs/_pages/config-json.md, Optimizer offloading).
Limit  ZeRO++'s shards inside a node are left out.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from ndparallel.launch_flags import fields
from ndparallel.launch_flags.nodes import full_nodes
from ndparallel.launch_flags.rules import (
    SOME_LAYERS,
    has_no,
    is_none_of,
    recomputes_some_layers,
    refuse,
    refuse_other_software,
    refuse_other_switches,
    rule_maker,
)
from ndparallel.launch_flags.script_text import note_on_imbalance, opening, programs_part, wrapping_script
from ndparallel.pipeline.catalog import names_in
from ndparallel.planner.describe import state_words
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.legality import check
from ndparallel.planner.software import find_stack

STACKS = ("deepspeed",)
FILE = "deepspeed_by_ndparallel.json"  # that the script writes: no name that a user may have given to another
# of a software stack: what keys choose, or the program
FREE = ("attention", "dp_overlap", "prefetch", *fields.DEEPSPEED_SIZES)
FOUND_EXPERTS = "Mixtral, Qwen3-MoE, Qwen3.5-MoE, DeepSeek-V2 and DeepSeek-V3"


def emit_deepspeed(job: TrainingJob, plan: Plan) -> str:
    """A shell script that launches this plan. Raises UserError, saying what, for what DeepSpeed does not
    have."""
    check(job, plan)
    refuse_other_software(job, "deepspeed", STACKS)
    refuse(RULES, job, plan)
    refuse_other_states(job)
    refuse_other_switches(job, "deepspeed", free_switches(plan))
    nodes, each = full_nodes(job, plan)
    settings = json.dumps(nested(dict(configuration(job, plan))), indent=2)
    command = f'deepspeed --num_nodes {nodes} --num_gpus {each} "$@"'
    return wrapping_script(remarks(job, plan), FILE, [settings], [command], arguments_of(job, plan))


def free_switches(plan: Plan) -> tuple[str, ...]:
    """Switches of the software that keys or the program choose, or that do nothing without ZeRO-1."""
    return (*FREE, *(("gathers_first",) if plan.zero != 1 else ()))


def by_transformers(plan: Plan) -> bool:
    """Whether the program is one that takes transformers' TrainingArguments."""
    return plan.pp == 1


def remarks(job: TrainingJob, plan: Plan) -> Iterator[str]:
    """What a reader of the script wants to know and no key says."""
    yield from opening(job, plan, "deepspeed")
    yield from programs_part(job, by_transformers(plan))
    if plan.pp > 1:
        again = f", activation_checkpoint_interval={int(plan.recompute == 'full')}"
        yield f"It builds the pipeline itself: PipelineModule(layers, num_stages={plan.pp}{again})."
    if plan.cp > 1:
        by_trainer = f'ParallelismConfig(sp_backend="deepspeed", sp_size={plan.cp}) in TrainingArguments'
        yield f"It sets Ulysses up: {by_trainer}."
    if plan.ep > 1:
        yield f"AutoEP knows the experts of {FOUND_EXPERTS}; those of others are named in expert_parallel."
    if job.adapters:
        lora = " ".join(state_words(replace(job, offload=(), moments="fp32")))
        yield f"It trains {lora}, which no key says."
    if not job.stack.flash:
        yield "Its attention is not fused."
    yield from note_on_imbalance(job)
    if "optimizer" in job.offload and not by_transformers(plan):
        yield "The optimizer's learning rate is DeepSpeed's own, 0.001: give it params."
    if plan.gpus > full_nodes(job, plan)[1]:
        yield "The hosts are listed in /job/hostfile, or in the file of --hostfile."


def configuration(job: TrainingJob, plan: Plan) -> Iterator[tuple[str, Any]]:
    """Keys of the configuration with their values. train_batch_size is left out: DeepSpeed counts tp ranks in
    it, too."""
    yield fields.DEEPSPEED_MICRO, int(plan.micro_batch)
    yield fields.DEEPSPEED_STEPS, int(plan.microbatches(job))
    yield "bf16.enabled", True
    yield fields.DEEPSPEED_ZERO, plan.zero
    if plan.zero:
        yield fields.DEEPSPEED_BESIDE, job.stack.running(plan.zero, plan.pp).dp_overlap
        yield from sizes(job, plan)
    for name, key in fields.DEEPSPEED_DEGREES.items():
        if (degree := int(getattr(plan, name))) > 1:
            yield key, degree
    if plan.ep > 1:
        yield "expert_parallel.enabled", True
    if plan.pp > 1 and plan.recompute == "full":
        yield fields.DEEPSPEED_INTERVAL, 1
    if "optimizer" in job.offload:
        yield from on_host(fields.DEEPSPEED_HOST)
        yield "optimizer.type", "AdamW"
        yield from params(plan)
    if job.weights_away:
        yield from on_host(fields.DEEPSPEED_WEIGHTS)
    if job.moments == "8bit":
        yield "zero_allow_untested_optimizer", True


def on_host(device: str) -> Iterator[tuple[str, Any]]:
    """What is on the host, in pages that are copied at the link's full rate."""
    yield device, "cpu"
    yield device.replace("device", "pin_memory"), True


def sizes(job: TrainingJob, plan: Plan) -> Iterator[tuple[str, int]]:
    """What is set of its memory, and not as DeepSpeed has it by itself."""
    own = find_stack(job.stack.name)
    for name, key in fields.DEEPSPEED_SIZES.items():
        size = getattr(job.stack, name)
        if size != getattr(own, name) and (plan.zero == 3 or key == fields.DEEPSPEED_BUCKET and size):
            yield key, int(size)


def params(plan: Plan) -> Iterator[tuple[str, str]]:
    """What transformers fills in for an optimizer that DeepSpeed makes."""
    if by_transformers(plan):
        yield from ((f"optimizer.params.{name}", "auto") for name in ("lr", "betas", "eps", "weight_decay"))


def arguments_of(job: TrainingJob, plan: Plan) -> Iterator[tuple[str, str]]:
    """The program's arguments that name the configuration, and that transformers compares with it."""
    if not by_transformers(plan):
        yield "deepspeed --deepspeed_config", FILE
        return
    yield "deepspeed", FILE
    yield fields.TRANSFORMERS_MICRO, f"{plan.micro_batch}"
    yield fields.TRANSFORMERS_STEPS, f"{plan.microbatches(job)}"
    yield "bf16", "true"
    yield fields.TRANSFORMERS_RECOMPUTE, f"{plan.recompute == 'full'}".lower()
    if optimizer := fields.TRANSFORMERS_MOMENTS[job.moments]:
        yield "optim", optimizer


def nested(settings: dict[str, Any]) -> dict[str, Any]:
    """The tables that dotted names stand for."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        *above, name = key.split(".")
        table = found
        for each in above:
            table = table.setdefault(each, {})
        table[name] = value
    return found


def refuse_other_states(job: TrainingJob) -> None:
    """Raise UserError for what DeepSpeed keeps or drops in no other way."""
    known = replace(
        job,
        adapters=None,
        moments="fp32" if job.moments in fields.TRANSFORMERS_MOMENTS else job.moments,
        offload=tuple(word for word in job.offload if word == "activations"),
    )
    if words := state_words(known):
        raise deepspeed_lacks(f"{' or '.join(words)} as the plan counts them", "leave that out")
    if job.dtype != "bf16":
        raise deepspeed_lacks(f"layers in {job.dtype}", "take --dtype bf16")
    if job.capacity_factor is not None:
        raise deepspeed_lacks("capacity factor of AutoEP's experts", "leave --capacity-factor out")


deepspeed_lacks = partial(has_no, "deepspeed")
never = rule_maker(deepspeed_lacks)
RULES = (
    never(SOME_LAYERS, "recompute all layers, or none", recomputes_some_layers),
    never(
        "schedule {plan.schedule}",
        "it has 1f1b",
        lambda job, plan: (plan.pp > 1) & is_none_of(names_in("deepspeed"), plan.schedule),
    ),
    never(
        "ZeRO-{plan.zero} in a pipeline",
        "take --zero 0 or 1",
        lambda job, plan: (plan.pp > 1) & (plan.zero >= 2),
    ),
    never(
        "Ulysses over cp={plan.cp} beside tp={plan.tp} and pp={plan.pp}",
        "take --tp 1 --pp 1",
        lambda job, plan: (plan.cp > 1) & ((plan.tp > 1) | (plan.pp > 1)),
    ),
    never(  # get_shard_size in deepspeed/module_inject/tp_shard.py leaves the other ranks none
        "attention for tp={plan.tp}, more ranks than {job.shape.kv_heads} KV heads",
        "take at most --tp {job.shape.kv_heads}",
        lambda job, plan: plan.tp > job.shape.kv_heads,
    ),
    never(
        "ZeRO-3 of experts that ep ranks share beside Ulysses over cp={plan.cp}",
        "take --zero 0, 1 or 2",
        lambda job, plan: (plan.cp > 1) & (plan.ep > 1) & (plan.zero == 3),
    ),
    never(
        "ZeRO-3 of experts that ep ranks share with tp={plan.tp}",
        "take --zero 0, 1 or 2, or --tp 1",
        lambda job, plan: (plan.ep > 1) & (plan.tp > 1) & (plan.zero == 3),
    ),
    never(
        "pipeline of experts that ep ranks share with tp={plan.tp}",
        "take --tp 1",
        lambda job, plan: (plan.ep > 1) & (plan.tp > 1) & (plan.pp > 1),
    ),
    never(
        "optimizer on the host without ZeRO",
        "take --zero 1",
        lambda job, plan: "optimizer" in job.offload and (plan.zero == 0),
    ),
    never(
        "optimizer on the host beside experts that ep ranks share with tp={plan.tp}",
        "take --tp 1",
        lambda job, plan: "optimizer" in job.offload and (plan.ep > 1) & (plan.tp > 1),
    ),
    never(
        "moments in 8 bits on the host, where its own AdamW runs",
        "leave one of the two out",
        lambda job, plan: "optimizer" in job.offload and job.moments == "8bit",
    ),
    never(
        "moments in 8 bits in a pipeline, whose program makes its own optimizer",
        "leave --moments 8bit out, or take --pp 1",
        lambda job, plan: job.moments == "8bit" and (plan.pp > 1),
    ),
    never(  # overlap_comm in deepspeed/runtime/zero/stage3.py
        "key for ZeRO-3's weights beside compute where its gradients are not, or the other way round",
        "add dp to --overlap, or take --overlap none",
        lambda job, plan: (
            (job.stack.prefetch != bool(job.stack.dp_overlap and job.stack.live_weights)) & (plan.zero == 3)
        ),
    ),
    never(
        "rows beside another microbatch",
        "leave ep out of --overlap",
        lambda job, plan: plan.sends_rows_beside(job.stack),
    ),
)
