"""What DeepSpeed and transformers make of launch scripts: `python deepspeed_parser.py ASKED ANSWERS`, where
each line of ASKED is JSON with "config", a configuration, "gpus" and "words", the program's arguments; or
"names", for the names that the release knows. ANSWERS gets a line for each.
"""

import json
import os
import sys
import tempfile
from typing import Any

from deepspeed.runtime import config as runtime
from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
from deepspeed.runtime.tensor_parallel.config import TPTrainingConfig
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
from deepspeed.runtime.zero.offload_config import (
    DeepSpeedZeroOffloadOptimizerConfig,
    DeepSpeedZeroOffloadParamConfig,
)

PARTS = {
    "zero_optimization": DeepSpeedZeroConfig,
    "zero_optimization.offload_optimizer": DeepSpeedZeroOffloadOptimizerConfig,
    "zero_optimization.offload_param": DeepSpeedZeroOffloadParamConfig,
    "tensor_parallel": TPTrainingConfig,
    "bf16": DeepSpeedBF16Config,
    "fp16": DeepSpeedFP16Config,
}


class Asked(dict):
    """A configuration that remembers what it is asked for."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.names: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        self.names.add(name)
        return super().get(name, default)

    def __contains__(self, name: object) -> bool:
        self.names.add(str(name))
        return super().__contains__(name)

    def keys(self) -> Any:
        return self


def names() -> list[str]:
    """Keys that a configuration is asked for, and the fields of its parts."""
    asked = Asked({"train_micro_batch_size_per_gpu": 1})
    runtime.DeepSpeedConfig(asked)
    fields = [
        f"{part}.{field.alias or name}"
        for part, model in PARTS.items()
        for name, field in model.model_fields.items()
    ]
    return sorted({*asked.names, *fields})


def read(config: dict[str, Any], gpus: int) -> dict[str, Any]:
    runtime.dist.get_rank, runtime.dist.get_world_size = (lambda *_: 0), (lambda *_: gpus)
    found = runtime.DeepSpeedConfig(config)
    return {
        "zero": int(found.zero_config.stage),
        "beside": bool(found.zero_config.overlap_comm),
        "bucket": found.zero_config.reduce_bucket_size,
        "tp": max(1, found.tensor_parallel_config.autotp_size),
        "ep": found.expert_parallel_config.autoep_size if found.expert_parallel_config.enabled else 1,
        "micro_batch": found.train_micro_batch_size_per_gpu,
        "steps": found.gradient_accumulation_steps,
        "bf16": found.bfloat16_config.enabled,
        "host": bool(found.zero_config.offload_optimizer),
    }


def parsed(config: dict[str, Any], words: list[str]) -> dict[str, Any]:
    """The program's arguments, as transformers reads them, and compares them with the configuration."""
    from transformers import HfArgumentParser, TrainingArguments

    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "config.json")
        with open(file, "w") as written:
            json.dump(config, written)
        own = ["--output_dir", folder, "--use_cpu", "true", "--report_to", "none"]
        words = [file if words[place - 1] == "--deepspeed" else word for place, word in enumerate(words)]
        (found,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses([*words, *own])
        found.hf_deepspeed_config.trainer_config_process(found)
    return {"recompute": found.gradient_checkpointing, "optim": str(found.optim)}


if __name__ == "__main__":
    asked, answers = sys.argv[1:]
    with open(asked) as lines, open(answers, "w") as said:
        for question in map(json.loads, lines):
            if "names" in question:
                answer: Any = names()
            else:
                answer = read(question["config"], question["gpus"])
                answer |= parsed(question["config"], question["words"])
            said.write(json.dumps(answer) + "\n")
