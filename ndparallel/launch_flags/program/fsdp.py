"""FSDP that a program's own arguments ask for, or its file of them, as options of `accelerate launch`.

Idea   transformers' TrainingArguments have `fsdp` and `fsdp_config` (_process_fsdp_args in
       transformers/training_args.py). Axolotl's files have the same, with a version and degrees beside them
       (setup_fsdp_envs and setup_parallelism_envs in axolotl/utils/trainer.py).
Limit  Axolotl's own ring attention is priced as torch's context parallelism.
"""

import re
from collections.abc import Mapping
from typing import Any

from ndparallel.base.errors import unknown
from ndparallel.launch_flags import fields
from ndparallel.launch_flags.program.arguments import EMPTY, Files, accelerates, file_of_arguments, words_in
from ndparallel.launch_flags.yaml_text import loaded, mapping

PROGRAMS_FILE = re.compile(r"^(?:fsdp|fsdp_config|fsdp_version)[ \t]*:", re.MULTILINE)
STRATEGIES = ("FULL_SHARD", "SHARD_GRAD_OP", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2")
WORDS = ("true", "auto_wrap")  # of --fsdp, that change nothing
MIXED = ("bf16", "fp16")
PRECISIONS = ("fp8", *MIXED)
OWN_WORDS = {"fsdp_cpu_offload": fields.ACCELERATE_HOST, "fsdp_fsdp_version": fields.ACCELERATE_VERSION}
AXOLOTL = {"base_model", "micro_batch_size"}
AXOLOTL_DEGREES = {
    "dp_shard_size": fields.ACCELERATE_SHARDS,
    "dp_replicate_size": fields.ACCELERATE_REPLICAS,
    "context_parallel_size": fields.ACCELERATE_DEGREES["cp"],
    "sequence_parallel_degree": fields.ACCELERATE_DEGREES["cp"],
    "tensor_parallel_size": "parallelism_config_tp_size",
    "expert_parallel_size": "parallelism_config_ep_size",
}
IDLE = {"fsdp_final_state_dict_type", "fsdp_limit_all_gathers", "fsdp_min_num_params", "fsdp_xla"}


def asks_for_fsdp(text: str) -> bool:
    """Whether a file of a program's arguments does."""
    return bool(PROGRAMS_FILE.search(text))


def of_program(arguments: Mapping[str, str], words: list[str], files: Files) -> dict[str, Any]:
    """The options for a command of a program: of its file of arguments, if that asks for FSDP, else of its
    --fsdp and --fsdp_config; nothing where neither does."""
    file = file_of_arguments(words)
    if file and asks_for_fsdp(text := files.get(file)):
        return of_file(text) | mixed(arguments)
    if "fsdp" not in arguments:
        return {}
    table = accelerates(files.text(arguments["fsdp_config"])) if "fsdp_config" in arguments else {}
    return options(arguments["fsdp"].split(), table, "2") | mixed(arguments)


def of_file(text: str) -> dict[str, Any]:
    """The options for a file of a program's arguments."""
    said = mapping({"the file": loaded(text)}, "the file")
    table, ways = mapping(said, "fsdp_config"), said.get("fsdp") or []
    if fields.ACCELERATE_VERSION in said:
        table = table | {"version": said[fields.ACCELERATE_VERSION]}
    words = ways.split() if isinstance(ways, str) else list(map(str, ways))
    if not AXOLOTL & said.keys():
        return options(words, table, "2") | mixed(words_in(text))
    degrees = {key: said[name] for name, key in AXOLOTL_DEGREES.items() if said.get(name) not in EMPTY}
    if said.get("sample_packing") != "true":
        degrees |= {fields.ACCELERATE_WAY: fields.ACCELERATE_WAYS["ring"]}
    return options(words, table, "1") | degrees | mixed(words_in(text))


def options(words: list[str], table: Mapping[str, Any], version: str) -> dict[str, Any]:
    """The options for words of --fsdp and a table of fsdp_config, with the program's own version of FSDP."""
    named = {f"fsdp_{name.removeprefix('fsdp_')}": value for name, value in table.items()}
    found = {OWN_WORDS.get(name, name): value for name, value in named.items() if name not in IDLE}
    version = str(found.setdefault(fields.ACCELERATE_VERSION, version))
    for word in words:
        if word == "offload":
            found[fields.ACCELERATE_HOST] = "true"
        elif word.upper() in STRATEGIES:
            own = {
                "1": {fields.ACCELERATE_STRATEGY: word.upper()},
                "2": {fields.ACCELERATE_RESHARD: f"{word == 'full_shard'}"},
            }
            found = own.get(version, {}) | found
        elif word not in WORDS:
            raise unknown("--fsdp", word, [*map(str.lower, STRATEGIES), "offload", "auto_wrap"])
    return {"distributed_type": "FSDP"} | found


def mixed(arguments: Mapping[str, str]) -> dict[str, str]:
    """The precision that the arguments ask for."""
    return {
        "mixed_precision": next((one for one in PRECISIONS if arguments.get(one, "").lower() == "true"), "no")
    }
