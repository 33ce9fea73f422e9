"""What Accelerate and transformers make of launch scripts: `python accelerate_parser.py ASKED ANSWERS`, where
each line of ASKED is JSON with "file", of `accelerate config`, and "words", the program's arguments; with
"words" alone, for the FSDP that they ask for; or with "names", for the options and fields that the release
knows. ANSWERS gets a line for each.
"""

import dataclasses
import json
import os
import sys
import tempfile
from typing import Any
from unittest import mock

import torch
from accelerate.commands.config.config_args import ClusterConfig
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.parallelism_config import ParallelismConfig
from accelerate.utils import FullyShardedDataParallelPlugin
from accelerate.utils.launch import prepare_multi_gpu_env

WITHOUT_A_GPU = {"FSDP_SYNC_MODULE_STATES": "false", "FSDP_CPU_RAM_EFFICIENT_LOADING": "false"}
TABLES = ("fsdp_", "parallelism_config_", "dynamo_")


def names() -> list[str]:
    """Fields of the file, and the options that its tables hold."""
    options = {action.dest for action in launch_command_parser()._actions if action.dest.startswith(TABLES)}
    return sorted(options | {field.name for field in dataclasses.fields(ClusterConfig)})


def read(text: str, words: list[str]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "accelerate.yaml")
        with open(file, "w") as written:
            written.write(text)
        given, _, _ = _validate_launch_command(
            launch_command_parser().parse_args(["--config_file", file, "train.py"])
        )
        return launched(given) | parsed([*words, "--output_dir", folder])


def launched(given: Any) -> dict[str, Any]:
    """What its own objects take from the environment of a rank."""
    with mock.patch("accelerate.utils.launch.is_port_in_use", return_value=False):
        environment = prepare_multi_gpu_env(given)
    with mock.patch.dict(os.environ, environment | WITHOUT_A_GPU):
        plugin = FullyShardedDataParallelPlugin()
        degrees = ParallelismConfig() if given.use_parallelism_config else None
        cp = degrees.cp_handler if degrees else None
    if given.mixed_precision != "no":
        plugin.set_mixed_precision(given.mixed_precision)
    policy = plugin.mixed_precision_policy
    first = plugin.fsdp_version == 1
    return {
        "fsdp": given.use_fsdp,
        "version": plugin.fsdp_version,
        "reshards": str(plugin.sharding_strategy or plugin.reshard_after_forward)
        in ("ShardingStrategy.FULL_SHARD", "True"),
        "recompute": plugin.activation_checkpointing,
        "host": plugin.cpu_offload.offload_params if first else hasattr(plugin.cpu_offload, "pin_memory"),
        "reduced in 16 bits": bool(policy) and policy.reduce_dtype == torch.bfloat16,
        "processes": given.num_processes,
        "nodes": given.num_machines,
        "degrees": [degrees.dp_replicate_size, degrees.dp_shard_size, degrees.cp_size] if degrees else None,
        "way": cp.cp_comm_strategy if cp else None,
    }


def arguments(words: list[str]) -> Any:
    """The program's arguments, as transformers reads them."""
    from transformers import HfArgumentParser, TrainingArguments

    own = ["--use_cpu", "true", "--report_to", "none"]
    return HfArgumentParser(TrainingArguments).parse_args_into_dataclasses([*words, *own])[0]


def parsed(words: list[str]) -> dict[str, Any]:
    found = arguments(words)
    return {
        "micro_batch": found.per_device_train_batch_size,
        "steps": found.gradient_accumulation_steps,
        "bf16": found.bf16,
        "by transformers": found.gradient_checkpointing,
    }


def answer_to(question: dict[str, Any]) -> Any:
    if "names" in question:
        return names()
    if "file" in question:
        return read(question["file"], question["words"])
    return arguments(question["words"]).fsdp_plugin_args


if __name__ == "__main__":
    asked, answers = sys.argv[1:]
    with open(asked) as lines, open(answers, "w") as said:
        for question in map(json.loads, lines):
            said.write(json.dumps(answer_to(question)) + "\n")
