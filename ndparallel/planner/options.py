"""The job and the plan that the options of `plan` and `explain` describe.

Idea   Our names and Megatron's mean the same. What follows from the rest is derived: dp from the GPUs, the
       number of microbatches from the batch, a schedule's chunks from the schedule.
"""

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpu import Hardware
from ndparallel.base.errors import UserError, check_known, find_choice, unknown
from ndparallel.base.options import at_least_one
from ndparallel.base.quoting import brief
from ndparallel.base.words import listed, option_of
from ndparallel.hardware.accelerator import find_hardware
from ndparallel.parallel.context import CP_COMM_TYPES
from ndparallel.pipeline.catalog import RECIPES, default_schedule
from ndparallel.planner.fitted_software import software_on
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.legality import check, check_model
from ndparallel.planner.models.presets import find_model, from_flags
from ndparallel.planner.models.shape import ModelShape
from ndparallel.planner.option_groups import MODEL_FLAGS, OVERLAPS
from ndparallel.planner.plan_name import options_named
from ndparallel.planner.software import STACKS
from ndparallel.planner.stack import Stack
from ndparallel.planner.stages import split_of, stage_kinds
from ndparallel.planner.state_options import (
    STATE_DEFAULTS,
    recomputed_layers,
    recomputed_modules,
    states_from,
)

# the fields of a software stack that say whether communication of a group is beside compute; tp has words
HIDDEN_BY = {
    "dp": ("dp_overlap", "prefetch", "gathers_first"),
    "pp": ("pp_overlap",),
    "cp": ("cp_overlap",),
    "ep": ("hides_dispatch",),
}
SWITCHES_OF_MIXTURES = ("fused_permutation", "fused_router", "fp32_router")
# the defaults of all options, in one place: the parser leaves out what was not given
JOB_DEFAULTS: dict[str, Any] = {
    "model": None,
    **dict.fromkeys(MODEL_FLAGS),
    "hardware": "h100",
    "gpus": None,
    "sequence": 4096,
    "global_batch": None,
    "dtype": "bf16",
    "software": None,
    "flash_attention": None,
    "routing_imbalance": 1.0,
    "capacity_factor": None,
    "etp": None,
    "dispatcher": None,
    **dict.fromkeys(SWITCHES_OF_MIXTURES, False),
    "cuda_graphs": None,
    "context_parallel": None,
    "cp_comm_type": None,
    "overlap": None,
    **STATE_DEFAULTS,
}
PLAN_DEFAULTS: dict[str, Any] = {
    "tp": 1,
    "pp": 1,
    "dp": None,
    "ep": 1,
    "cp": 1,
    "micro_batch": 1,
    "chunks": None,
    "layers_per_stage": None,
    "schedule": None,
    "stage_layers": (),
    "zero": 0,
    "shards": 0,
    "sequence_parallel": None,
    "recompute": "none",
    "recompute_layers": 0,
    "recompute_method": "block",
    "recompute_modules": (),
}

OF_ROUTERS = ("capacity_factor", "etp", "dispatcher", *SWITCHES_OF_MIXTURES)


def with_defaults(arguments: argparse.Namespace) -> argparse.Namespace:
    """The options of job and plan, the defaults of those that were not given, and the names of those that
    were: `typed`."""
    given = vars(arguments) | plan_options_given(arguments)
    return argparse.Namespace(**JOB_DEFAULTS | PLAN_DEFAULTS | given, typed=frozenset(given))


def plan_options_given(arguments: argparse.Namespace) -> dict[str, Any]:
    """The options of the plan that were given one by one, or by the plan's name. Raises UserError for
    both."""
    given = {name: getattr(arguments, name) for name in PLAN_DEFAULTS if hasattr(arguments, name)}
    if (name := getattr(arguments, "plan", None)) is None:
        return given
    if given and given != options_named(name):
        options = ", --".join(given).replace("_", "-")
        raise UserError(f"--plan names the whole plan: leave it out, or --{options}.")
    return options_named(name)


def job_and_plan(arguments: argparse.Namespace) -> tuple[TrainingJob, Plan]:
    """The job and the plan that the options describe, with their defaults. Raises UserError, with the nearest
    legal value, where they cannot be."""
    job = job_from(arguments)
    return job, plan_from(arguments, job)


def plan_from(arguments: argparse.Namespace, job: TrainingJob) -> Plan:
    """The plan that the options describe, for this job."""
    return plan_for(job, arguments.gpus, **{name: getattr(arguments, name) for name in PLAN_DEFAULTS})


def plan_for(job: TrainingJob, gpus: int, name: str | None = None, **fields: Any) -> Plan:
    """The plan that `ndparallel plan` prices for this job on so many GPUs.

    name: the whole plan by its name, as "TP8xPP4xDP2,zero1,sp,mbs1"; or its fields one by one, as tp=8,
    pp=4. A field that is left out follows as for the command: dp from the GPUs, schedule and chunks from
    each other, sequence parallelism from the job's software. Plan's own defaults know no job, and are
    without sequence parallelism. Raises UserError, with the nearest legal value, where the plan cannot be.
    """
    for field in fields:
        check_known("field of a plan", field, PLAN_DEFAULTS)
    given = plan_options_given(argparse.Namespace(**fields, plan=name))
    asked = argparse.Namespace(**PLAN_DEFAULTS | given, gpus=gpus)
    check_given(asked)
    plan = unchecked_plan(asked, job)
    check(job, plan)
    return plan


def job_from(arguments: argparse.Namespace) -> TrainingJob:
    """The job that the options describe."""
    shape = shape_from(arguments)
    at_least_one(arguments, "gpus", "sequence", "global_batch")
    needed = {
        "--gpus, GPUs in all": arguments.gpus,
        "--global-batch, sequences in a step": arguments.global_batch,
    }
    if missing := [words for words, given in needed.items() if given is None]:
        raise UserError(f"the job also needs {'; and '.join(missing)}.")
    if arguments.software == "":
        raise unknown("software", "", STACKS)
    hardware = find_hardware(arguments.hardware)
    job = TrainingJob(
        shape, hardware, stack_from(arguments, hardware, shape), arguments.sequence, arguments.global_batch
    )
    return replace(
        job, dtype=arguments.dtype, **routing_from(arguments, job.shape), **states_from(arguments, job)
    )


def check_given(arguments: argparse.Namespace) -> None:
    """Raise UserError for what stands for a default where it is left out of a plan, and for nothing where it
    is given."""
    at_least_one(arguments, "gpus", "tp", "pp", "cp", "ep", "dp", "chunks", "micro_batch")
    if arguments.shards < 0:
        raise UserError(f"--shards is {arguments.shards}; it must be 0 (all of dp) or more.")


def shape_from(arguments: argparse.Namespace) -> ModelShape:
    flags = {name: getattr(arguments, name) for name in MODEL_FLAGS if getattr(arguments, name) is not None}
    if arguments.model and flags:
        words = ", ".join(map(option_of, flags))
        raise UserError(f"--model {arguments.model} has its sizes already: leave out {words}.")
    if isinstance(arguments.model, ModelShape):  # read already
        return arguments.model
    if arguments.model:
        return find_model(arguments.model)
    if not flags:
        raise UserError(
            "which model? Name a preset, as --model llama-3-8b, or a config.json; or give --layers, "
            "--hidden, --heads, --ffn and --vocab."
        )
    check_experts_given(flags)
    needed: dict[str, Any] = {name: flags.get(name) for name in ("layers", "hidden", "heads", "ffn", "vocab")}
    return from_flags(**needed | flags)


def check_experts_given(flags: Mapping[str, Any]) -> None:
    """Raise UserError for experts without what they need."""
    needed = {"expert_ffn": "the width of one", "top_k": "those that a token goes to"}
    if flags.get("experts") and (lacks := [name for name in needed if name not in flags]):
        words = "; and ".join(f"{option_of(name)}, {needed[name]}" for name in lacks)
        raise UserError(f"--experts needs {words}.")


def routing_from(arguments: argparse.Namespace, shape: ModelShape) -> dict[str, Any]:
    """How evenly a router spreads its tokens. Raises UserError where the model has none."""
    imbalance, capacity = arguments.routing_imbalance, arguments.capacity_factor
    given = [name for name in OF_ROUTERS if getattr(arguments, name, None)]
    given += ["routing_imbalance"] * (imbalance != 1)
    if shape.experts is None and given:
        raise UserError(
            f"{shape.name} has no experts to route to: leave out {listed([*map(option_of, given)])}."
        )
    return {"routing_imbalance": imbalance, "capacity_factor": capacity}


def stack_from(arguments: argparse.Namespace, hardware: Hardware, shape: ModelShape) -> Stack:
    name = arguments.software or ("pocket" if hardware.name == "pocket" else "megatron-core")
    stack = software_on(name, hardware, shape)
    if arguments.flash_attention not in (None, stack.flash):
        stack = replace(stack, attention="flash2" if arguments.flash_attention else "unfused")
    stack = replace(travelling(stack, arguments), **switches_from(arguments, stack))
    if arguments.overlap is None:
        return stack
    if stack.grid:
        raise UserError(
            "--overlap is of other software: the lessons' own runs overlap what 4d_combined.py does. Leave "
            "it out."
        )
    return overlapping(stack, arguments.overlap)


def switches_from(arguments: argparse.Namespace, stack: Stack) -> dict[str, Any]:
    """The switches of the software that are given. Raises UserError for those that the lessons' own lacks."""
    words = {"dispatcher": arguments.dispatcher, "graphs": arguments.cuda_graphs}
    given: dict[str, Any] = {name: word.replace("none", "") for name, word in words.items() if word}
    given |= {name: True for name in SWITCHES_OF_MIXTURES if getattr(arguments, name)}
    if given and stack.executed:
        raise UserError(
            "--dispatcher, --fused-permutation, --fused-router, --fp32-router and --cuda-graphs are of other "
            "software than the lessons' own: leave them out."
        )
    return given | ({"expert_tp": arguments.etp == "tp"} if arguments.etp else {})


def travelling(stack: Stack, arguments: argparse.Namespace) -> Stack:
    """The stack with keys and values travelling as it is asked for."""
    asked = arguments.context_parallel or CP_COMM_TYPES.get(arguments.cp_comm_type)
    return replace(stack, context_parallel=asked) if asked else stack


def overlapping(stack: Stack, words: str) -> Stack:
    """The stack with just these groups' communication beside compute."""
    wanted = {word.strip() for word in words.split(",")} - {"none", ""}
    if unknown_groups := wanted - {*OVERLAPS}:
        raise UserError(
            f"--overlap {words}: {', '.join(sorted(unknown_groups))} cannot be overlapped; choose from "
            f"{', '.join(OVERLAPS)}, or none."
        )
    tp = ("backward" if stack.tp_overlap == "none" else stack.tp_overlap) if "tp" in wanted else "none"
    switches: dict[str, Any] = {
        field: group in wanted for group, fields in HIDDEN_BY.items() for field in fields
    }
    return replace(stack, tp_overlap=tp, **switches)


def overlapped(stack: Stack) -> str:
    """The groups whose communication is beside compute, as --overlap names them."""
    tp = ["tp"] * (stack.tp_overlap != "none")
    others = [group for group, (field, *_) in HIDDEN_BY.items() if getattr(stack, field)]
    return ",".join([*tp, *others]) or "none"


def unchecked_plan(arguments: argparse.Namespace, job: TrainingJob) -> Plan:
    tp, pp, cp = arguments.tp, arguments.pp, arguments.cp
    schedule, chunks = schedule_from(arguments, job, pp)
    sequence_parallel = (
        job.stack.sequence_parallel if arguments.sequence_parallel is None else arguments.sequence_parallel
    )
    plan = Plan(
        tp=tp,
        pp=pp,
        ep=arguments.ep,
        cp=cp,
        chunks=chunks,
        micro_batch=arguments.micro_batch,
        zero=arguments.zero,
        shards=arguments.shards,
        sequence_parallel=sequence_parallel and tp > 1,
        recompute=arguments.recompute,
        recompute_layers=recomputed_layers(arguments),
        recompute_modules=recomputed_modules(arguments, job.stack),
        schedule=schedule,
        stage_layers=stage_layers_from(arguments.stage_layers),
    )
    check_model(job, plan)  # before the GPUs are counted: a tp that the model cannot have needs no others
    if plan.stage_layers:
        stage_kinds(job, plan)  # which deal out all layers
    if plan.recompute_layers and plan.recompute_layers >= max(split_of(job.shape, plan)):
        plan = replace(plan, recompute_layers=0)  # all of them
    return replace(plan, dp=data_parallel(arguments, tp * pp * cp))


def data_parallel(arguments: argparse.Namespace, others: int) -> int:
    """What the GPUs leave for dp. Raises UserError where that is no whole number, or not what was asked
    for."""
    gpus, wanted = arguments.gpus, arguments.dp
    left, rest = divmod(gpus, others)
    if wanted is None and rest:
        near = [str(some * others) for some in (left, left + 1) if some]
        nearest = f"nearest {'are' if left else 'is'} {listed(near)}"
        raise UserError(f"{gpus} GPUs are no multiple of tp*pp*cp = {others}; the {nearest}.")
    if wanted is not None and wanted * others != gpus:
        leave = "" if rest else f"leave dp out (it is then {left}), or "
        made = f"tp*pp*cp = {others} times dp = {wanted} is {others * wanted} GPUs, not {gpus}"
        raise UserError(f"{made}: {leave}take --gpus {others * wanted}.")
    return left


def stage_layers_from(given: str | Sequence[int]) -> tuple[int, ...]:
    """How many layers each stage has. Raises UserError for words that are no list of numbers."""
    if not isinstance(given, str):  # of a plan's name
        return tuple(given)
    if not re.fullmatch(r"\d{1,6}(,\d{1,6})*", given):
        raise UserError(f"--stage-layers {brief(given)} is no list of whole numbers, as in 9,9,9,5.")
    return tuple(map(int, given.split(",")))


def schedule_from(arguments: argparse.Namespace, job: TrainingJob, pp: int) -> tuple[str, int]:
    """The schedule and its chunks. Where there is no pipeline it is the default, whichever is named: it is no
    part of the plan then, nor of its name."""
    chunks, given = chunks_from(arguments, job.shape.layers, pp), arguments.schedule
    name = default_schedule(chunks or 1) if given is None else find_choice("schedule", given, RECIPES)
    if pp == 1:
        return (name, chunks) if chunks and chunks > 1 else (default_schedule(1), 1)
    return name, chunks or RECIPES[name].default_chunks


def chunks_from(arguments: argparse.Namespace, layers: int, pp: int) -> int | None:
    """Chunks of a pipeline rank, by their number or by the layers of one; None where neither is given. Raises
    UserError for both, and for layers that cannot be dealt out."""
    if (each := arguments.layers_per_stage) is None:
        return arguments.chunks
    option = "--num-layers-per-virtual-pipeline-stage"
    if each < 1:
        raise UserError(f"{option} is {each}; it must be at least 1.")
    if arguments.chunks:
        raise UserError(f"--chunks and {option} say the same: choose one.")
    chunks, rest = divmod(layers, max(pp, 1) * each)
    if rest:
        raise UserError(f"{option} {each} does not deal {layers} layers out to pp={pp} ranks: take --chunks.")
    return chunks
