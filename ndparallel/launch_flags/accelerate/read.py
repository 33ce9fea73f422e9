"""A job under Hugging Face's Accelerate as the job and the plan that it trains.

Idea   A file of `accelerate config`, or a command (`accelerate launch`) that names one, says how FSDP shards
       states and how many GPUs there are; the program's arguments say the model, its sequences and the batch,
       as transformers' and TRL's do.
Limit  What only the program knows is given beside the file (--model, --sequence, --set NAME=VALUE). Of
       Accelerate's ways FSDP is read here, and DeepSpeed by deepspeed/read.py.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from gpu import Hardware
from ndparallel.base.errors import UserError, check_known, unknown
from ndparallel.base.quoting import brief
from ndparallel.hardware.accelerator import host_size
from ndparallel.launch_flags import fields
from ndparallel.launch_flags.accelerate.write import STACKS
from ndparallel.launch_flags.frozen import frozen, note_on_defaults, release
from ndparallel.launch_flags.launcher import gpus_started, launcher_and_program
from ndparallel.launch_flags.program.adapters import adapters_in
from ndparallel.launch_flags.program.arguments import (
    EMPTY,
    Files,
    accelerates,
    arguments_of,
    programs_arguments,
    script_and_files,
    without_documents,
    words_in,
)
from ndparallel.launch_flags.program.fsdp import MIXED, asks_for_fsdp, of_file, of_program
from ndparallel.launch_flags.program.words import (
    RECOMPUTES,
    sequence_of,
    shape_of,
    what_the_program_leaves,
)
from ndparallel.launch_flags.reading import NOTHING, Beside, Reading
from ndparallel.launch_flags.settings import Configuration, Settings, notes_on_keys, read_value
from ndparallel.planner.job import TOGETHER, Plan, TrainingJob
from ndparallel.planner.legality import check, reduces_once
from ndparallel.planner.models.sizes import checked_size
from ndparallel.planner.software import find_stack
from ndparallel.planner.stack import Stack

OWN_FILE = re.compile(r"^distributed_type[ \t]*:", re.MULTILINE)
SYNCS = re.compile(r"sync_each_batch\W*true", re.IGNORECASE)
WAYS = {  # options of a command, by their distributed_type
    "use_fsdp": "FSDP",
    "use_deepspeed": "DEEPSPEED",
    "use_megatron_lm": "MEGATRON_LM",
    "multi_gpu": "MULTI_GPU",
}
NAMES = {"config_file", *WAYS}  # by which a command is Accelerate's
INSTEAD = {
    "DEEPSPEED": "take --from-deepspeed",
    "MULTI_GPU": "plan it by options, as --software pytorch --zero 0",
    "NO": "plan one GPU by options, as --software pytorch --gpus 1",
    "MEGATRON_LM": "plan it by options, as --software megatron-core --tp 8",
}
STRATEGIES = {  # of FSDP1: ZeRO's stage, and whether the ranks of a node share the states, and not all
    "FULL_SHARD": (3, False),
    "SHARD_GRAD_OP": (2, False),
    "HYBRID_SHARD": (3, True),
    "HYBRID_SHARD_ZERO2": (2, True),
}
NUMBERED = {
    "1": "FULL_SHARD",
    "2": "SHARD_GRAD_OP",
    "3": "NO_SHARD",
    "4": "HYBRID_SHARD",
    "5": "HYBRID_SHARD_ZERO2",
}
PRECISIONS = (*MIXED, "no")
REFUSED = {  # degrees that are not read, with the reason
    "parallelism_config_tp_size": "each model's own tensor parallelism in transformers is not priced",
    "parallelism_config_sp_size": "it is Ulysses under DeepSpeed: take --from-deepspeed",
    "parallelism_config_ep_size": "Axolotl's own expert parallelism is not priced",
}
NOT_MODELLED = {  # options: what is priced without a word, and what in place of others
    "fsdp_auto_wrap_policy": (("TRANSFORMER_BASED_WRAP",), "each layer is a unit of FSDP"),
    "fsdp_activation_checkpointing_offload": ((False,), "what recomputation keeps stays on the GPU"),
    "fsdp_ignored_modules": ((None,), "all weights are sharded"),
    "dynamo_backend": (("no", "NO", None), "layers are eager"),
}
MICRO, STEPS = fields.TRANSFORMERS_MICRO, fields.TRANSFORMERS_STEPS
OWN_MICRO = 8  # transformers' default of per_device_train_batch_size
VERSION, STRATEGY, RESHARD = fields.ACCELERATE_VERSION, fields.ACCELERATE_STRATEGY, fields.ACCELERATE_RESHARD
CP, REPLICAS, SHARDS = fields.ACCELERATE_DEGREES["cp"], fields.ACCELERATE_REPLICAS, fields.ACCELERATE_SHARDS


class AccelerateJob(NamedTuple):
    """Options of `accelerate launch`, and the program's arguments, by their names."""

    options: Configuration
    arguments: dict[str, str]


def read_accelerate(text: str, hardware: Hardware, beside: Beside = NOTHING) -> Reading:
    """Read a file of `accelerate config`, or a script that launches a program with one. The variables are
    arguments of the program too.

    Raises UserError, in a sentence, for what is none of these, for another way than FSDP, or for what cannot
    be trained.
    """
    found = job_of(text, beside.variables, beside.folder)
    settings = Settings(found.options, frozen("accelerate")["defaults"])
    refuse_other_ways(settings)
    words = {name: read_value(value) for name, value in found.arguments.items()}
    gpus = beside.gpus or settings.number("num_processes", 0) or degrees_of_fsdp2(settings)
    plan = plan_from(settings, words, hardware, gpus)
    shape, steps = shape_of(found.arguments, beside), number_of(words, STEPS, 1)
    job = TrainingJob(
        shape,
        hardware,
        stack_from(settings, plan, words),
        sequence_of(words, beside.sequence),
        plan.dp * plan.micro_batch * steps,
        half=settings.text("mixed_precision") == "no" and not any(words.get(name) is True for name in MIXED),
        offload=TOGETHER if settings.switch(fields.ACCELERATE_HOST) else (),
        adapters=beside.adapters or adapters_in(words),
    )
    job, plan = kept_whole(job, plan)
    checked_size(job.global_batch, "its batch")
    check(job, plan)
    optimizer = str(words.get("optim") or "adamw")
    unsaid = what_the_program_leaves(words, optimizer, job, plan, beside)
    return Reading(job, plan, (*notes_on_settings(settings, job, words), *unsaid))


def kept_whole(job: TrainingJob, plan: Plan) -> tuple[TrainingJob, Plan]:
    """What frees no weights behind the forward pass, as ZeRO-2, or as ZeRO-3 that gathers once: where
    gradients stay whole until the last of several microbatches, not all ranks share the states, or the host
    keeps them."""
    if plan.zero == 3 or not (reduces_once(job, plan) or plan.shards or job.weights_away):
        return job, plan
    return replace(job, stack=replace(job.stack, reshards=False)), replace(plan, zero=3)


# ------------------------------------------------------------------------------------------- where it stands


def job_of(text: str, variables: Mapping[str, str], folder: Path | None) -> AccelerateJob:
    """Read a file of `accelerate config`, or a script, whose last command with one counts; of `variables`
    those with names are arguments of the program too. Raises UserError for what is none of these."""
    own = {name: value for name, value in variables.items() if not name.isdecimal()}
    alone = without_documents(text)[0]
    if OWN_FILE.search(alone):
        return AccelerateJob(options_of(accelerates(text)), own)
    if asks_for_fsdp(alone):
        return AccelerateJob(options_of(of_file(text)), words_in(text) | own)
    script, files = script_and_files(text, variables, folder)
    found = (of_command(words, script.variables, files) for words in script.commands[::-1])
    if not (job := next(filter(None, found), None)):
        raise UserError(
            "it is no file of `accelerate config` (YAML), and no command that names one with --config_file, "
            "or says --use_fsdp, or --fsdp to its program."
        )
    return job._replace(arguments=job.arguments | own)


def of_command(words: list[str], variables: Mapping[str, list[str]], files: Files) -> AccelerateJob | None:
    """What an `accelerate launch` sets, by itself and by its file, or a program's --fsdp; None for any other
    command."""
    launcher, program = launcher_and_program(words)
    own = arguments_of(launcher or words)
    arguments = programs_arguments(program, files)
    asked = of_program(arguments, program, files)  # which counts for more than the launcher's
    if any("accelerate" in word for word in words[:3]) and own.keys() & NAMES:
        return AccelerateJob(options_of(launched_with(own, asked, files)), arguments)
    gpus = own.get("num_processes") or str(gpus_started(launcher or words, variables))
    return AccelerateJob(options_of(asked | {"num_processes": gpus}), arguments) if asked else None


def launched_with(own: Mapping[str, str], asked: Mapping[str, Any], files: Files) -> dict[str, Any]:
    """What `accelerate launch` sets: by its file or its switches, by its `own` options, and last by what is
    `asked` for in the program's arguments."""
    way = next((WAYS[name] for name in WAYS if name in own), "NO")
    file = accelerates(files.text(own["config_file"])) if "config_file" in own else {"distributed_type": way}
    known = {*frozen("accelerate")["keys"]} - NAMES
    options = {name: value for name, value in own.items() if name in known}
    programs = asked if way == "MULTI_GPU" else {name: asked[name] for name in asked if "fsdp_" in name}
    return {**file, **options, **programs}


def options_of(said: Mapping[str, Any]) -> Configuration:
    """Options with their values; in the table of FSDP older files leave fsdp_ out of names."""
    known = frozen("accelerate")["keys"]
    named = {
        f"fsdp_{name}" if f"fsdp_{name}" in known and name not in known else name: value
        for name, value in said.items()
    }
    return {
        name: read_value(value)
        for name, value in named.items()
        if isinstance(value, str) and value not in EMPTY
    }


def refuse_other_ways(settings: Settings) -> None:
    """Raise UserError for what is not FSDP, or not priced."""
    if (way := settings.text("distributed_type")) != "FSDP":
        instead = f": {INSTEAD[way]}" if way in INSTEAD else ""
        raise UserError(f"distributed_type {brief(way)} is not read here, only FSDP{instead}.")
    if (precision := settings.text("mixed_precision")) not in PRECISIONS:
        raise UserError(f"mixed_precision {brief(precision)} is not read, only {', '.join(PRECISIONS)}.")
    if is_fsdp1(settings) and settings.switch(fields.ACCELERATE_HOST):
        raise UserError(f"{fields.ACCELERATE_HOST} is priced with {VERSION} 2 alone, and not 1.")
    for key, why in REFUSED.items():
        if key in settings.given and settings.number(key) > 1:
            raise UserError(f"{key} {settings.number(key)} is not read: {why}.")


# -------------------------------------------------------------------------------------------------- the plan


def number_of(words: Configuration, name: str, default: int) -> int:
    """A whole number of the program's arguments. Raises UserError for another value."""
    value = words.get(name, default)
    if type(value) is not int or value < 1:
        raise UserError(f"--{name} {brief(value)}: give a whole number from 1 on (--set {name}=N).")
    return value


def plan_from(settings: Settings, words: Configuration, hardware: Hardware, gpus: int) -> Plan:
    """The plan that the options lay out. Raises UserError for degrees that do not make the GPUs, or GPUs that
    nobody names."""
    if not gpus:
        raise UserError("how many GPUs? Its file does not say it (num_processes): add --gpus.")
    cp = settings.number(CP)
    zero, shards = of_fsdp1(settings, hardware, gpus) if is_fsdp1(settings) else of_fsdp2(settings, gpus)
    again = settings.switch(fields.ACCELERATE_RECOMPUTE) or any(
        words.get(name) is True for name in RECOMPUTES
    )
    return Plan(
        dp=gpus // cp,
        cp=cp,
        zero=zero,
        shards=shards,
        micro_batch=number_of(words, MICRO, OWN_MICRO),
        recompute="full" if again else "none",
    )


def is_fsdp1(settings: Settings) -> bool:
    """Whether FSDP is torch's first."""
    return settings.number(VERSION) == 1


def of_fsdp1(settings: Settings, hardware: Hardware, gpus: int) -> tuple[int, int]:
    """FSDP1's ZeRO stage, and over how many ranks states are shared, 0 for all. Raises UserError for degrees
    beside it, which Accelerate refuses, or another strategy."""
    if degrees := [key for key in (CP, REPLICAS, SHARDS) if settings.number(key) > 1]:
        raise UserError(f"{degrees[0]} beside {VERSION} 1, which Accelerate refuses: take {VERSION} 2.")
    word = settings.text(STRATEGY)
    name = NUMBERED.get(word, word.upper())
    check_known(STRATEGY, name, STRATEGIES)
    zero, in_node = STRATEGIES[name]
    return zero, host_size(hardware) if in_node and gpus > host_size(hardware) else 0


def degrees_of_fsdp2(settings: Settings) -> int:
    """GPUs that the degrees make, which Accelerate asks for; 0 where none is given."""
    degrees = prod(settings.number(key) for key in (CP, REPLICAS, SHARDS))
    return degrees if degrees > 1 else 0


def of_fsdp2(settings: Settings, gpus: int) -> tuple[int, int]:
    """The same of FSDP2, whose degrees must make the GPUs, if there are any."""
    cp, replicas, shards = (settings.number(key) for key in (CP, REPLICAS, SHARDS))
    if (degrees := degrees_of_fsdp2(settings)) not in (0, gpus):
        raise UserError(
            f"{CP} {cp}, {REPLICAS} {replicas} and {SHARDS} {shards} make {degrees} GPUs, and there are "
            f"{gpus}: change one."
        )
    return 3 if settings.switch(RESHARD) else 2, shards * cp if replicas > 1 else 0


def stack_from(settings: Settings, plan: Plan, words: Configuration) -> Stack:
    """Accelerate, with FSDP of its version, whether every microbatch sums gradients, and the way in which
    keys and values travel over cp. Raises UserError for another."""
    versions = {number: name for name, number in fields.ACCELERATE_VERSIONS.items()}
    ways = {word: name for name, word in fields.ACCELERATE_WAYS.items()}
    if (number := settings.number(VERSION)) not in versions:
        raise unknown(VERSION, f"{number}", map(str, versions))
    sums = SYNCS.search(str(words.get(fields.TRANSFORMERS_ACCELERATOR)))
    found = replace(find_stack(STACKS[bool(sums)]), sharding=versions[number])
    if plan.cp == 1:
        return found
    return replace(found, context_parallel=settings.word(fields.ACCELERATE_WAY, ways))


# ----------------------------------------------------------------------------------------------------- notes


def notes_on_settings(settings: Settings, job: TrainingJob, words: Configuration) -> Iterator[str]:
    """Sentences about what was assumed, what is not modelled, and what was passed over."""
    known = frozen("accelerate")["keys"]
    lacking = [name for name in settings.given if name not in known]
    yield from notes_on_keys("accelerate", settings.given, lacking, NOT_MODELLED)
    if settings.text("mixed_precision") == "fp16":
        yield "mixed_precision fp16 is priced as bf16."
    if job.half:
        yield "mixed_precision no: weights, gradients and moments are taken to have the model's 16 bits."
    if is_fsdp1(settings) and settings.given.get(RESHARD, True) not in (True, settings.text(STRATEGY)):
        yield f"{RESHARD} is of no effect with {VERSION} 1: {STRATEGY} is."
    if MICRO not in words:
        yield f"No argument says --{MICRO}: {OWN_MICRO}, as transformers has it (--set {MICRO}=N)."
    said = (VERSION, STRATEGY if is_fsdp1(settings) else RESHARD)
    assumed = (f"{key} {settings.assumed[key]}" for key in said if key in settings.assumed)
    yield from note_on_defaults(release("accelerate"), assumed)
