"""The options of `plan` and `explain`, and the job and the plan that they describe.

Idea   Our names and Megatron's mean the same. What follows from the rest is derived: dp from the GPUs, the number of microbatches from the
       batch, a schedule's chunks from the schedule.
"""

import argparse
from dataclasses import replace
from typing import Any

from gpu import Hardware
from ndparallel.errors import UserError
from ndparallel.hardware import find_hardware
from ndparallel.pipeline.catalog import RECIPES
from ndparallel.planner.legality import DTYPES, SCHEDULES, check
from ndparallel.planner.models import find_model, from_flags
from ndparallel.planner.plan import Job, Plan
from ndparallel.planner.shape import ModelShape
from ndparallel.planner.stack import STACKS, Stack, find_stack
from ndparallel.units import RECOMPUTE

MODEL_FLAGS = {  # our name: Megatron's, meaning
    "layers": ("--num-layers", "layers"),
    "hidden": ("--hidden-size", "width of the residual stream"),
    "heads": ("--num-attention-heads", "attention heads"),
    "kv_heads": ("--num-query-groups", "heads of keys and values (default: heads)"),
    "head_dim": ("--kv-channels", "width of a head (default: hidden / heads)"),
    "ffn": ("--ffn-hidden-size", "width of the MLP"),
    "vocab": ("--vocab-size", "vocabulary"),
    "experts": ("--num-experts", "experts of a layer"),
    "top_k": ("--moe-router-topk", "experts that a token goes to"),
    "expert_ffn": ("--moe-ffn-hidden-size", "width of an expert"),
}
OVERLAPS = ("tp", "dp", "pp", "cp")


def add_job_options(parser: argparse.ArgumentParser) -> None:
    job = parser.add_argument_group("the job")
    job.add_argument("--model", metavar="NAME|FILE", help="a preset, or a Hugging Face config.json; or its sizes, one by one:")
    for name, (megatron, meaning) in MODEL_FLAGS.items():
        job.add_argument(f"--{name.replace('_', '-')}", megatron, type=int, metavar="N", help=meaning)
    job.add_argument("--hardware", default="h100", metavar="NAME|FILE", help="a preset, or a JSON or TOML file (default h100)")
    job.add_argument("--gpus", "--world-size", type=int, required=True, metavar="N", help="GPUs in all")
    job.add_argument("--sequence", "--seq-length", type=int, default=4096, metavar="N", help="tokens in a sequence (default 4096)")
    job.add_argument("--global-batch", "--global-batch-size", type=int, required=True, metavar="N", help="sequences in a step")
    job.add_argument("--dtype", choices=DTYPES, default="bf16", help="of the layers' matmuls (default bf16)")
    job.add_argument("--fp8-format", dest="dtype", action="store_const", const="fp8", help=argparse.SUPPRESS)
    job.add_argument("--software", metavar="NAME", help=f"one of {', '.join(STACKS)} (default megatron-core; pocket on pocket)")
    flash = job.add_mutually_exclusive_group()
    flash.add_argument("--flash-attention", "--use-flash-attn", action="store_true", default=None, help="fused attention")
    flash.add_argument("--no-flash-attention", dest="flash_attention", action="store_false", help="scores go through memory")
    job.add_argument(
        "--overlap", metavar="LIST", help=f"what hides behind compute, of {','.join(OVERLAPS)}; or none (default: the software's)"
    )


def add_plan_options(parser: argparse.ArgumentParser) -> None:
    plan = parser.add_argument_group("the plan")
    number: dict[str, Any] = {"type": int, "metavar": "N"}
    plan.add_argument("--tp", "--tensor-model-parallel-size", default=1, help="tensor parallelism (default 1)", **number)
    plan.add_argument("--pp", "--pipeline-model-parallel-size", default=1, help="pipeline ranks (default 1)", **number)
    plan.add_argument("--dp", help="data parallelism (default: what the GPUs leave)", **number)
    plan.add_argument("--ep", "--expert-model-parallel-size", default=1, help="expert parallelism, within tp*cp*dp (default 1)", **number)
    plan.add_argument("--cp", "--context-parallel-size", default=1, help="context parallelism (default 1)", **number)
    plan.add_argument("--micro-batch", "--micro-batch-size", default=1, help="sequences in a microbatch (default 1)", **number)
    plan.add_argument("--chunks", help="stages of a pipeline rank (default: the schedule's)", **number)
    plan.add_argument("--num-layers-per-virtual-pipeline-stage", dest="layers_per_stage", help="the same, by the layers of one", **number)
    plan.add_argument("--schedule", metavar="NAME", help=f"one of {', '.join(SCHEDULES)} (default 1f1b; interleaved with chunks)")
    plan.add_argument("--zero", type=int, default=0, metavar="0-3", help="what dp shards: optimizer, gradients, weights (3: FSDP)")
    plan.add_argument("--use-distributed-optimizer", dest="zero", action="store_const", const=1, help="the same as --zero 1")
    plan.add_argument("--shards", default=0, help="of --zero 3: shard over so many ranks and replicate (HSDP)", **number)
    plan.add_argument("--sequence-parallel", action=argparse.BooleanOptionalAction, help="(default: the software's, with tp)")
    plan.add_argument(
        "--recompute", "--recompute-granularity", choices=RECOMPUTE, default="none", help="in the backward pass (default none)"
    )
    plan.add_argument("--recompute-activations", dest="recompute", action="store_const", const="selective", help="--recompute selective")


def job_and_plan(arguments: argparse.Namespace) -> tuple[Job, Plan]:
    """What the options describe. Raises UserError, with the nearest legal value, where they cannot be."""
    job = job_from(arguments)
    plan = plan_from(arguments, job)
    check(job, plan)
    return job, plan


def job_from(arguments: argparse.Namespace) -> Job:
    """The job that the options describe."""
    hardware = find_hardware(arguments.hardware)
    job = Job(shape_from(arguments), hardware, stack_from(arguments, hardware), arguments.sequence, arguments.global_batch)
    return replace(job, dtype=arguments.dtype)


def shape_from(arguments: argparse.Namespace) -> ModelShape:
    flags = {name: getattr(arguments, name) for name in MODEL_FLAGS if getattr(arguments, name) is not None}
    if arguments.model and flags:
        raise UserError(f"--model {arguments.model} has its sizes already: leave out --{', --'.join(flags)}.")
    if arguments.model:
        return find_model(arguments.model)
    if not flags:
        raise UserError("which model? Name a preset or a config.json with --model, or give --layers, --hidden, --heads, --ffn and --vocab.")
    needed: dict[str, Any] = {name: flags.get(name) for name in ("layers", "hidden", "heads", "ffn", "vocab")}
    return from_flags(**needed | flags)


def stack_from(arguments: argparse.Namespace, hardware: Hardware) -> Stack:
    stack = find_stack(arguments.software or ("pocket" if hardware.name == "pocket" else "megatron-core"))
    if arguments.flash_attention is not None and arguments.flash_attention != stack.flash:
        stack = replace(stack, attention="flash2" if arguments.flash_attention else "unfused")
    return stack if arguments.overlap is None else overlapping(stack, arguments.overlap)


def overlapping(stack: Stack, words: str) -> Stack:
    """The stack with just these groups' communication beside compute."""
    wanted = {word.strip() for word in words.split(",")} - {"none", ""}
    if strange := wanted - {*OVERLAPS}:
        raise UserError(
            f"--overlap {words}: {', '.join(sorted(strange))} cannot be overlapped; choose from {', '.join(OVERLAPS)}, or none."
        )
    tp = ("backward" if stack.tp_overlap == "none" else stack.tp_overlap) if "tp" in wanted else "none"
    dp, pp, cp = (group in wanted for group in ("dp", "pp", "cp"))
    return replace(stack, tp_overlap=tp, dp_overlap=dp, prefetch=dp, gathers_first=dp, pp_overlap=pp, cp_overlap=cp)


def plan_from(arguments: argparse.Namespace, job: Job) -> Plan:
    tp, pp, cp = arguments.tp, arguments.pp, arguments.cp
    schedule, chunks = schedule_from(arguments, job, pp)
    sequence_parallel = job.stack.sequence_parallel if arguments.sequence_parallel is None else arguments.sequence_parallel
    return Plan(
        tp=tp,
        pp=pp,
        dp=data_parallel(arguments, tp * pp * cp),
        ep=arguments.ep,
        cp=cp,
        chunks=chunks,
        micro_batch=arguments.micro_batch,
        zero=arguments.zero,
        shards=arguments.shards,
        sequence_parallel=sequence_parallel and tp > 1,
        recompute=arguments.recompute,
        schedule=schedule,
    )


def data_parallel(arguments: argparse.Namespace, others: int) -> int:
    """What the GPUs leave for dp. Raises UserError where that is no whole number, or not what was asked for."""
    if min(others, arguments.gpus) < 1:
        raise UserError(f"{arguments.gpus} GPUs with tp={arguments.tp}, pp={arguments.pp}, cp={arguments.cp}: each is at least 1.")
    wanted = arguments.dp or arguments.gpus // others
    if wanted * others != arguments.gpus:
        near = max(others, round(arguments.gpus / others) * others)
        raise UserError(
            f"tp*pp*cp = {others} and dp={max(wanted, 1)} make {others * max(wanted, 1)} GPUs, not {arguments.gpus}; "
            f"the nearest number of GPUs that these degrees can fill is {near}."
        )
    return wanted


def schedule_from(arguments: argparse.Namespace, job: Job, pp: int) -> tuple[str, int]:
    chunks = arguments.chunks
    if arguments.layers_per_stage:
        chunks = max(1, job.shape.layers // (max(pp, 1) * arguments.layers_per_stage))
    name = arguments.schedule or ("interleaved" if (chunks or 1) > 1 else "1f1b")
    usual = RECIPES[name].default_chunks if name in RECIPES and pp > 1 else 1
    return name, chunks or usual
