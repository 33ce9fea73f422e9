"""The frameworks of measured runs: the software stack that stands for one, its year, and the attention kernel
of that year."""

import re
from collections.abc import Mapping

from ndparallel.validation.words.text import first_named

DEEPSPEEDS_PIPELINE = "megatron.?deepspeed|neox"  # Megatron's layers in DeepSpeed's engine
TENSOR_PARALLEL = (
    "megatron|colossal|metaseq|mindspeed|intern|megascale|nanotron|"
    "alpa|oneflow|paddle|bmtrain|galvatron|axonn|vescale"
)
# frameworks that shard weights, where nobody says otherwise
SHARDED = "torchtitan|foundry|composer|maxtext|fsdp"
Stacks = str | Mapping[int, str]  # one, or by year: the last year of each
FRAMEWORKS: tuple[tuple[str, Stacks], ...] = (  # the first that is in the framework's name
    ("nemo", "nemo"),
    (DEEPSPEEDS_PIPELINE, {2021: "megatron-2021", 9999: "megatron-2022"}),
    (r"megatron.?core|mcore|core[ _][rv]?\d|in.house|llm\.c", "megatron-core"),
    (TENSOR_PARALLEL, {2021: "megatron-2021", 2023: "megatron-2022", 9999: "megatron-core"}),
    ("deepspeed|zero", {2021: "deepspeed-2021", 9999: "deepspeed"}),
    ("foundry|composer|mosaic|fairscale", "fsdp-2023"),
    ("titan", "torchtitan"),
    ("jax|maxtext|xla|t5x|levanter|easylm|praxis|pax", "torchtitan-compiled"),
    ("hugging|^hf|accelerate|transformers|axolotl|trl|unsloth", "accelerate"),
    ("torch|lightning|fabric|litgpt|nanogpt|olmo|fsdp|ddp", "pytorch"),
)
FIRST_FLASH2 = 2023  # arXiv:2307.08691
NEW_CUDNN = 2026
TORCHS_CUDNN = 2026  # torch 2.11 (ndparallel/planner/software.py); before, torch called FlashAttention 2
OF_TORCH = "pytorch|deepspeed|accelerate"  # stacks whose attention torch chooses


def year_in(framework: str) -> int | None:
    """Return the year that a framework's name states, by itself or in a release: 25.09 is of 2025."""
    found = re.search(r"\b(?:20)?([12]\d)(?:\.(?:0[1-9]|1[0-2])\b|\b(?<=20\d\d))", framework)
    return 2000 + int(found[1]) if found else None


def stack_name(framework: str, flash: bool | None, shards: bool) -> str:
    """Return the software stack that stands for a framework; an unknown framework is Megatron-Core, or
    PyTorch where weights are sharded. Accelerate without FSDP is PyTorch, too."""
    name = stack_of_framework(framework) or ("pytorch" if shards else "megatron-core")
    if name == "accelerate" and not shards:
        return "pytorch"
    if isinstance(name, str):
        return name
    return name[min(last for last in name if last >= assumed_year(framework, flash))]


def stack_of_framework(framework: str) -> Stacks | None:
    """Return the stack that stands for a framework, or those of its years; None where it is not known."""
    return first_named(FRAMEWORKS, framework)


def assumed_year(framework: str, flash: bool | None) -> int:
    """Return the software's year where a run states none: two years after FlashAttention 2, or the year
    before it where attention is stated as unfused."""
    return year_in(framework) or (FIRST_FLASH2 - 1 if flash is False else FIRST_FLASH2 + 2)


def attention_kernel(stack: str, used: str, flash: bool | None, year: int | None) -> str:
    """Return the attention kernel of the stack in the software's year, unless the run states that attention
    was fused or was not."""
    when = year or 0
    if used == "cudnn" and re.match(OF_TORCH, stack) and when < TORCHS_CUDNN:
        used = "flash2"
    if flash is False or (flash is None and used == "unfused"):
        return "unfused"
    if 0 < when < FIRST_FLASH2:
        return "flash1"
    if used == "cudnn":
        return "cudnn-2026" if when >= NEW_CUDNN else "cudnn"
    is_replaced = used in ("flash1", "triton") and when > FIRST_FLASH2
    return "flash2" if used == "unfused" or is_replaced else used
