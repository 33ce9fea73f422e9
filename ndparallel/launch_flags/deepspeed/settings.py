"""What a DeepSpeed job sets, from wherever it is written.

Idea   A configuration is JSON. A command names it, or a file of Accelerate's that says the same in its own
       words, or a file of the program's arguments, as LLaMA-Factory and axolotl take one. What stands there
       as "auto" the arguments say, by the names that transformers' TrainingArguments have.
Limit  JSON may have comments (hjson.py), but no words without quotes.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ndparallel.base.errors import UserError
from ndparallel.base.quoting import brief
from ndparallel.base.words import option_of
from ndparallel.launch_flags import fields
from ndparallel.launch_flags.deepspeed.hjson import plain_json
from ndparallel.launch_flags.launcher import gpus_started, launcher_and_program, slots_in
from ndparallel.launch_flags.program.arguments import (
    Files,
    accelerates,
    arguments_of,
    file_of_arguments,
    programs_arguments,
    script_and_files,
    without_documents,
    words_in,
)
from ndparallel.launch_flags.settings import Configuration, Settings, flat, read_value
from ndparallel.launch_flags.shell.slurm import whole

ARGUMENTS = {  # of transformers' TrainingArguments, that fill what is "auto" (integrations/deepspeed.py)
    fields.TRANSFORMERS_MICRO: fields.DEEPSPEED_MICRO,
    fields.DEEPSPEED_STEPS: fields.DEEPSPEED_STEPS,
    "bf16": "bf16.enabled",
    "fp16": "fp16.enabled",
}
CONFIGS = ("deepspeed_config", "deepspeed")  # arguments that name the configuration
ACCELERATE = re.compile(r"^(?:distributed_type|deepspeed_config)[ \t]*:", re.MULTILINE)
PROGRAMS = re.compile(r"^deepspeed[ \t]*:", re.MULTILINE)  # a file of a program's arguments
SWIFT = re.compile(r"zero(?P<stage>[0-3])(?P<host>_offload)?")  # ms-swift's own files, in its swift/config
OPTIONS_OF_ACCELERATE = {"config_file", "use_deepspeed", "deepspeed_config_file"}
OF_ACCELERATE = {
    "zero_stage": fields.DEEPSPEED_ZERO,
    "offload_optimizer_device": fields.DEEPSPEED_HOST,
    "offload_param_device": fields.DEEPSPEED_WEIGHTS,
    fields.DEEPSPEED_STEPS: fields.DEEPSPEED_STEPS,
    "parallelism_config_sp_size": "sequence_parallel_size",
}
ITS_DEFAULTS = {fields.DEEPSPEED_ZERO: 2}  # DeepSpeedPlugin.__post_init__ in accelerate/utils/dataclasses.py
OLDER_SWITCHES: dict[str, tuple[str, dict[bool, Any]]] = {  # what they are today, and its values
    "zero_optimization.cpu_offload": (fields.DEEPSPEED_HOST, {True: "cpu"}),
    "zero_optimization.cpu_offload_param": (fields.DEEPSPEED_WEIGHTS, {True: "cpu"}),
    "zero_optimization": (fields.DEEPSPEED_ZERO, {True: 1, False: 0}),
}
TABLES = (
    *("zero_optimization", "bf16", "fp16", "optimizer", "tensor_parallel", "expert_parallel", "pipeline"),
    *("activation_checkpointing", "zero_optimization.offload_optimizer", "zero_optimization.offload_param"),
)
DEVICES = (None, "none", "cpu", "nvme")  # deepspeed/runtime/zero/offload_config.py
MEGATRON = ("num_layers", "tensor_model_parallel_size")  # arguments of Megatron-DeepSpeed's programs


class DeepspeedJob(NamedTuple):
    """A configuration, the program's arguments by their names, how many GPUs are launched, 0 where nobody
    says, and what Accelerate takes for settings that are missing."""

    config: Configuration
    arguments: dict[str, str]
    gpus: int
    defaults: Mapping[str, Any] = {}


def job_of(text: str, variables: Mapping[str, str], folder: Path | None) -> DeepspeedJob:
    """Read a configuration, a file of Accelerate's or of a program's arguments, or a script, whose last
    command that launches DeepSpeed counts; of `variables` those with names are arguments of the program too.
    Raises UserError for what is none of these."""
    own = {name: value for name, value in variables.items() if not name.isdecimal()}
    if plain_json(text).lstrip().startswith("{"):
        found = DeepspeedJob(of_json(text), {}, 0)
    elif ACCELERATE.search(alone := without_documents(text)[0]):
        found = of_accelerate(accelerates(text), Files(folder))
    elif PROGRAMS.search(alone):
        words = words_in(text)
        found = DeepspeedJob(named(words.get("deepspeed", ""), Files(folder)), words, 0)
    else:
        found = of_script(text, variables, folder)
    return found._replace(arguments=found.arguments | own)


def filled(job: DeepspeedJob) -> Configuration:
    """The configuration with today's names, and what is "auto" as the arguments have it; the bucket's size
    follows from the model's. Raises UserError where the two contradict one another, as transformers does."""
    own = (fields.DEEPSPEED_BUCKET,)
    found = {key: value for key, value in renamed(job.config).items() if value != "auto" or key in own}
    for argument, key in ARGUMENTS.items():
        if argument not in job.arguments:
            continue
        if "$" in (word := job.arguments[argument]):
            raise UserError(
                f"--{argument} is {brief(word)}, which is not known here: add --set {argument}=N."
            )
        value = read_value(word)
        if found.setdefault(key, value) != value:
            raise UserError(
                f"{key} is {brief(found[key])} in its configuration, and --{argument} {brief(value)}: "
                "transformers refuses that; make them equal, or write auto."
            )
    refuse_what_it_refuses(found)
    return found


def refuse_what_it_refuses(config: Configuration) -> None:
    """Raise UserError for values that DeepSpeed stops at, or would take for others."""
    for key in TABLES:
        if config.get(key) is not None:
            raise UserError(f"{key} = {brief(config[key])}: it is a table, {{...}}.")
    for key in OLDER_SWITCHES:
        if config.get(key) is not None:
            raise UserError(f"{key} = {brief(config[key])}: it is true or false.")
    for key in (fields.DEEPSPEED_HOST, fields.DEEPSPEED_WEIGHTS):
        if (device := config.get(key)) not in DEVICES:
            raise UserError(f"{key} = {brief(device)}: it is none, cpu or nvme.")
    if config.get("bf16.enabled") is True is config.get("fp16.enabled"):
        raise UserError("bf16.enabled and fp16.enabled are both true, which DeepSpeed refuses: keep one.")


def renamed(config: Configuration) -> Configuration:
    found = {key.replace("bfloat16.", "bf16."): value for key, value in config.items()}
    for key, (now, values) in OLDER_SWITCHES.items():
        if isinstance(value := found.get(key), bool):
            del found[key]
            found |= {now: values[value]} if value in values else {}
    return found


def optimizer_of(settings: Settings, words: Configuration) -> str:
    """The optimizer's name: of two, the configuration's counts (deepspeed_optim_sched in
    transformers/integrations/deepspeed.py). One in 8 bits is DeepSpeedCPUAdam on the host
    (map_pytorch_optim_to_deepspeed in accelerate/utils/deepspeed.py)."""
    own, asked = settings.value("optimizer.type"), str(words.get("optim") or "adamw")
    replaced = "optimizer" in offloaded(settings) and settings.given.get("zero_force_ds_cpu_optimizer", True)
    return str(own or ("adamw" if replaced and "8bit" in asked else asked))


def offloaded(settings: Settings) -> tuple[str, ...]:
    """What is on the host: the optimizer if there is ZeRO, weights if it is ZeRO-3."""
    zero = settings.number(fields.DEEPSPEED_ZERO, 0)
    asked = {"optimizer": (fields.DEEPSPEED_HOST, zero > 0), "weights": (fields.DEEPSPEED_WEIGHTS, zero == 3)}
    return tuple(
        word for word, (key, can) in asked.items() if can and settings.text(key) not in ("none", "None")
    )


# -------------------------------------------------------------------------------------------- kinds of files


def of_json(text: str) -> Configuration:
    """The fields of a configuration. Raises UserError for what is none."""
    try:
        config = json.loads(plain_json(text), object_pairs_hook=once)
    except RecursionError:
        raise UserError("its configuration is nested too deeply.") from None
    except json.JSONDecodeError as error:
        raise UserError(f"line {error.lineno} is no JSON: {error.msg}.") from None
    if not isinstance(config, dict):
        raise UserError("its configuration is no JSON object, {...}.")
    return flat(config)


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Raise UserError for a name that stands twice, as DeepSpeed does. A dot in a name leads to no table."""
    table = {name.replace(".", " . "): value for name, value in pairs}
    if len(table) < len(pairs):
        names = [name for name, _ in pairs]
        raise UserError(f"{brief(max(names, key=names.count))} stands twice in its configuration: keep one.")
    return table


def of_accelerate(options: Mapping[str, Any], files: Files) -> DeepspeedJob:
    """What options of `accelerate launch` stand for. Raises UserError for another way than DeepSpeed."""
    if (way := str(options.get("distributed_type", "DEEPSPEED"))) != "DEEPSPEED":
        instead = ": take --from-accelerate" * (way == "FSDP")
        raise UserError(f"distributed_type {brief(way)} is not read, only DEEPSPEED{instead}.")
    config = {key: read_value(str(options[name])) for name, key in OF_ACCELERATE.items() if name in options}
    if file := options.get("deepspeed_config_file"):
        own = named(str(file), files)
        if not any(key.startswith("zero_optimization") for key in own):
            raise UserError(f"{brief(str(file))} has no zero_optimization, which Accelerate asks for.")
        config |= {key: value for key, value in own.items() if value != "auto"}
    precision = str(options.get("mixed_precision", ""))
    return DeepspeedJob(
        config,
        {precision: "true"} if precision in ARGUMENTS else {},
        whole(str(options.get("num_processes", ""))),
        {} if file else ITS_DEFAULTS,
    )


def of_script(text: str, variables: Mapping[str, str], folder: Path | None) -> DeepspeedJob:
    """The last command that launches DeepSpeed. Raises UserError where there is none, or its configuration is
    not found."""
    script, files = script_and_files(text, variables, folder)
    for words in script.commands[::-1]:
        if found := of_command(words, script.variables, files):
            return found
    for words in script.commands:  # a file of arguments that is missing may name the configuration
        if file := file_of_arguments(launcher_and_program(words)[1]):
            files.text(file, "its arguments")
    raise UserError(
        "it is no configuration of DeepSpeed (JSON), no file of Accelerate's, and no command that names one "
        "with --deepspeed, --deepspeed_config or --config_file."
    )


def of_command(words: list[str], variables: Mapping[str, list[str]], files: Files) -> DeepspeedJob | None:
    """What a command that launches DeepSpeed sets; None for any other."""
    launcher, program = launcher_and_program(words)
    launcher = launcher or words  # its program has no name here
    arguments, own = programs_arguments(program, files), arguments_of(launcher)
    if file := own.get("config_file"):
        own = accelerates(files.text(file)) | own
    if own.keys() & OPTIONS_OF_ACCELERATE:
        found = of_accelerate(own, files)
        return found._replace(arguments=found.arguments | arguments)
    named_files = (arguments[name] for name in CONFIGS if arguments.get(name, "true") != "true")
    if not (file := next(named_files, "")):
        return None
    refuse_megatrons(arguments)
    config = named(file, files)
    return DeepspeedJob(config, arguments, gpus_of(launcher, own, variables))


def gpus_of(launcher: list[str], own: Mapping[str, str], variables: Mapping[str, list[str]]) -> int:
    """The GPUs that a launcher starts, ms-swift's by variables, DeepSpeed's those that are visible where it
    is told no others (main in deepspeed/launcher/runner.py); 0 where the file does not say."""
    known = {name: " ".join(value) for name, value in variables.items()}
    if found := whole(own.get("num_processes")) or gpus_started(launcher, variables):
        return found
    if launcher[0] == "deepspeed" and not own.keys() & {"num_gpus", "num_nodes", "include", "exclude"}:
        return slots_in(f"localhost:{known.get('CUDA_VISIBLE_DEVICES', '')}")
    return whole(known.get("NPROC_PER_NODE")) * whole(known.get("NNODES", "1"))


def refuse_megatrons(arguments: Mapping[str, str]) -> None:
    if found := [name for name in MEGATRON if name in arguments]:
        raise UserError(f"{option_of(found[0])} is Megatron's: take --from-megatron.")


def named(file: str, files: Files) -> Configuration:
    """The configuration in a file, or of ms-swift's by their names. Raises UserError where there is none."""
    if not (own := SWIFT.fullmatch(file)):
        return of_json(files.text(file))
    stage, host = int(own["stage"]), "cpu" if own["host"] else "none"
    config = {fields.DEEPSPEED_ZERO: stage, fields.DEEPSPEED_BESIDE: False, fields.DEEPSPEED_HOST: host}
    return config | ({fields.DEEPSPEED_WEIGHTS: host} if stage == 3 else {})
