"""The words of measured runs: frameworks, precisions, recomputation, schedules, ZeRO, in all their usual
spellings.

Idea   Sources write the same thing in many ways. Each function reads one field and says what it is in our
       names.
Limit  A word that is not known here stands for what is said nowhere: see the rules in cases.py. Of a run's
       software `not_known` says so; most others are refused in a file that is given (fields.py).
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from ndparallel.base.quantities import whole_number
from ndparallel.base.quoting import brief
from ndparallel.pipeline.catalog import RECIPES
from ndparallel.planner.launches import GRAPH_SCOPES, GRAPHS, graphs_of
from ndparallel.planner.software import FP8_PARAM_GATHER
from ndparallel.planner.stack import MODULES
from ndparallel.validation.hardware import number_in

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
RECOMPUTED = {"norm": "layernorm", "act": "moe_act", "attn": "core_attn", "attention": "core_attn"} | {
    module: module for module in MODULES
}
NOTHING = r"(none|no|not|off|false|null|without|w/o|n/a|unknown|disabled|0)\b|$"
UNSTATED = "unknown|n/a|$"
# frameworks that recompute a share of the layers where they say selective; which share, the run's settings
# say (fms_fsdp/policies/ac_handler.py)
SHARE_OF_LAYERS = "fms"
NOT_USED = rf"unfused|eager|{NOTHING}"
YES = r"(yes|true|on|enabled?|used?|with|fused)\b"
WHOLE_LAYERS = r"full|checkpoint|ckpt|recompu|remat|uniform|block|layer|\ball\b|yes|true|\bon\b|%|^\d"


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


def first_named(table: Iterable[tuple[str, Any]], words: str) -> Any:
    """Return what the first pattern of a table that is in the words stands for; None where none is."""
    return next((meant for pattern, meant in table if re.search(pattern, words)), None)


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


BITS = (  # of a number type: the first that is in the precision, so the shortest that is named
    ("fp8|float8|e4m3|fp4|int8", 8),
    ("16|half|amp|mixed", 16),
    ("tf32", 19),
    ("fp32|float32|single", 32),
)


def number_of_bits(precision: Any) -> int:
    """Return 8, 16, 19 (TF32) or 32: the shortest number type named for the layers' matmuls; 16 where none
    is."""
    return bits_named(precision) or 16


def bits_named(precision: Any) -> int | None:
    """Return the bits of the shortest number type that is named; None where none is."""
    return first_named(BITS, str(precision or "").lower())


NUMBER_WORDS = (  # the first that is in the precision
    ("nv ?fp4|fp4", "nvfp4"),
    ("mx-?fp8|fp8-mx$", "mxfp8"),
    ("block", "fp8-block"),
    ("row", "fp8-row"),
    ("current|fp8-cs|tensor.?wise", "fp8-current"),
    ("fp8|float8|e4m3|int8", "fp8"),
)
CURRENT = "bridge|titan"  # frameworks whose fp8 has the scales of the tensor itself, and not of a former step


def is_used(stated: Any, words_for_yes: str = "") -> bool | None:
    """Return whether a run uses what it says so of, or names; None where the word is not known."""
    if not isinstance(stated, str):
        return bool(stated)
    words = as_text(stated)
    if re.match(UNSTATED, words):
        return None
    return False if re.match(NOT_USED, words) else True if re.match(words_for_yes, words) else None


def weights_cast(stated: Any) -> tuple[str, ...] | None:
    """Return the types in which weights are kept alone; None where the word is not known."""
    used = is_used(stated, YES)
    return None if used is None else FP8_PARAM_GATHER if used else ()


def graphs_stated(stated: Any) -> str | None:
    """Return what CUDA graphs hold, by a word of ours, by Transformer Engine's scopes, or true for the whole
    step; None where the word is not known."""
    words = re.findall("[a-z_]+", str(stated).lower())
    if scopes := {*words} & {*GRAPH_SCOPES["router"]}:
        return graphs_of(scopes) or None
    held = [name for name in GRAPHS if name in words]
    used = is_used(stated, f"full|{YES}")
    return held[0] if held else None if used is None else "step" if used else ""


HABITS = (  # a field of a run's software, how a note says it, and what of a stack it changes
    ("tp_overlap", r"\btp\b.*\boverlap on", {"tp_overlap": "all"}),
    ("async_tp", r"async ?tp", {"tp_overlap": "products"}),  # PyTorch's name of its own
    # Transformer Engine's reads logits of 16 bits twice, writes their gradients, and reads and writes these
    # again to scale them (transformer_engine/common/triton/cross_entropy.py, until release 2.17)
    ("fused_loss", r"fused ce\b", {"logits_kept": 4, "logit_bytes": 10}),
)


def habits_of(software: Mapping[str, Any], note: Any, usual: Sequence[str]) -> dict[str, Any]:
    """Return fields of a stack that a run states of its software, or in its note; `usual` habits it has
    unless it states otherwise."""
    noted = str(note).lower()
    found: dict[str, Any] = {}
    for key, words, fields in HABITS:
        used = software.get(key)
        if used or (used is None and (key in usual or re.search(words, noted))):
            found |= fields
    return found


def stops_late(stack: str, precision: Any) -> bool:
    """Return whether recomputation runs to a layer's end, as in torch 1.13: LLM Foundry's runs in pure 16
    bits are of its tables of May 2023 (scripts/train/benchmarking/sweep.sh); from October on it had torch
    2.1."""
    return stack == "fsdp-2023" and "pure" in str(precision).lower()


def gradient_bytes(usual: int, framework: str, bits: int) -> int:
    """Return the bytes of a gradient: 2 in Megatron-Bridge's performance recipes, and in NeMo's in fewer than
    16 bits (grad_reduce_in_fp32 in megatron/bridge/perf_recipes/_common.py and in NeMo's
    scripts/performance/llm)."""
    return 2 if "bridge" in framework or ("nemo" in framework and bits < 16) else usual


DISPATCHER_WORDS = (  # the first that is in the word; a flexible one is DeepEP's, which is an all-to-all, too
    ("hybrid", "hybridep"),
    ("deepep|flex", "deepep"),
    ("allgather", "allgather"),
    ("alltoall|a2a", "alltoall"),
)


CONTEXT_PARALLEL_WORDS = (  # the first that is in the word: "a2a+p2p" is taken as a ring
    ("p2p|ring", "ring"),
    ("a2a|ulysses|alltoall", "all-to-all"),
    ("gather", "all-gather"),
)


def context_parallel_named(stated: Any) -> str | None:
    """Return our name of how a sequence is shared; None where the word is not known."""
    return first_named(CONTEXT_PARALLEL_WORDS, re.sub("[^a-z0-9]", "", str(stated).lower()))


def dispatcher_named(stated: Any) -> str | None:
    """Return our name of the dispatcher; None where the word is not known."""
    return first_named(DISPATCHER_WORDS, re.sub("[^a-z0-9]", "", str(stated).lower()))


SWITCHES = (  # of a stack
    "hides_dispatch",
    "fused_permutation",
    "fused_router",
    "fp32_router",
    "fused_mask",
    "fused_experts",
    "fp8_attention",
    "fp8_head",
)
STATED = {name: name for name in ("dispatcher", *SWITCHES)} | {  # a field of a run's, and the stack's
    "cuda_graphs": "graphs",
    "fp8_param_gather": "cast_weights",
}
SOFTWARE: Mapping[str, Callable[[Any], Any]] = {  # how a field of a run's software is read
    **dict.fromkeys((*SWITCHES, *(key for key, *_ in HABITS)), partial(is_used, words_for_yes=YES)),
    **dict.fromkeys(("flash_attention", "compiled"), is_used),  # whatever is named is used
    "cuda_graphs": graphs_stated,
    "fp8_param_gather": weights_cast,
    "dispatcher": dispatcher_named,
}


def read_software(software: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run's software in our words: None where a word is not known."""
    return {
        key: SOFTWARE[key](stated) if key in SOFTWARE and stated is not None else stated
        for key, stated in software.items()
    }


def not_known(software: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a sentence for each word of a run's software that is not known."""
    known = read_software(software) | {"framework": stack_of_framework(as_text(software.get("framework")))}
    return tuple(
        f"its {key} {brief(stated)} is not known here, and counts as not stated."
        for key, stated in software.items()
        if known[key] is None and not re.match(NOTHING, as_text(stated))
    )


def drops_tokens(stated: Any, note: Any) -> float | None:
    """Return the capacity factor of a mixture that drops tokens: as stated, or 1 where the note says so
    (Megatron-Bridge, training/utils/moe_token_drop.py); None of one that drops none."""
    if stated is not None:
        return number_in(stated) or None
    return 1.0 if re.search("token.?drop", str(note).lower()) else None


def cuts_experts(stated: Any, framework: str, tp: int, ep: int) -> bool:
    """Return whether tp cuts experts, too: Megatron-Core's expert tensor parallelism is tp where nobody says
    otherwise (megatron/core/parallel_state.py). Recipes with DeepEP or a hybrid dispatcher say otherwise."""
    return stated in (None, tp) and tp > 1 and ep > 1 and bool(re.search("nemo|megatron", framework))


def number_type_of(precision: Any, framework: str) -> str:
    """Return our name of the number type that the layers' matmuls take."""
    if number_of_bits(precision) != 8:
        return "bf16"
    name = first_named(NUMBER_WORDS, str(precision).lower())
    return "fp8-current" if name == "fp8" and re.search(CURRENT, framework) else name


def zero_stage(stated: Any, framework: str) -> int:
    """Return ZeRO's stage, 0 to 3; where none is stated, what the framework's name implies."""
    if isinstance(stated, int):
        return int(stated)
    if stated is not None and re.search(r"no reshard|grad_op|opt\+grad", str(stated).lower()):
        return 2
    return stage_named(framework if stated is None else str(stated).lower()) or 0


def stage_named(words: str) -> int | None:
    """Return the stage of ZeRO that words name; None where they name none."""
    if found := re.search(r"(?:zero|stage|^)[- _]?([0-3])", words):
        return int(found[1])
    if re.search(rf"{SHARDED}|hsdp|full.?shard|hybrid|zero\+\+", words):
        return 3
    return 1 if "optim" in words else None


def shards_of(parallel: dict[str, Any], gpus_per_node: int) -> int:
    """Return the ranks that weights are sharded over where they are replicated besides (HSDP): the stated
    number, or a node; 0 for all."""
    numbers = (int(number_in(parallel.get(key))) for key in ("shards", "dp_shard", "hsdp_shard"))
    stated, words = next(filter(None, numbers), 0), str(parallel.get("zero")).lower()
    if stated or not re.search("hsdp|hybrid", words):
        return stated
    return next(map(whole_number, re.findall(r"\d+", words)), gpus_per_node)


def schedule_named(stated: str | None) -> str | None:
    """Return our name of the schedule, or None where the word names none."""
    words = re.sub(r"[^a-z0-9]", "", str(stated or "").lower())
    meant = [name for name, recipe in RECIPES.items() if re.search(recipe.spelled, words)]
    return meant[-1] if meant else None


# ---------------------------------------------------------------------------------------------- recomputation


def recompute_of(stated: Any, layers: int) -> tuple[str, int]:
    """Return none, selective or full; with full also how many of a stage's `layers` are recomputed, 0 for
    all."""
    kind = recompute_named(stated) or "none"
    return kind, recomputed_layers(as_text(stated), layers) if kind == "full" else 0


def recompute_named(stated: Any) -> str | None:
    """Return none, selective or full; None where the words say none of them."""
    words = as_text(stated)
    if modules_of(stated) or re.search("selective|op.level|^sac", words):
        return "selective"
    if re.match(NOTHING, words):
        return "none"
    return "full" if re.search(WHOLE_LAYERS, words) else None


def states_recomputation(run: Mapping[str, Any]) -> bool:
    """Return whether a run says what it computes again, if only that it is nothing."""
    stated, framework = run.get("recompute"), str((run.get("software") or {}).get("framework")).lower()
    unsaid = f"{UNSTATED}|selective$" if re.search(SHARE_OF_LAYERS, framework) else UNSTATED
    return stated is not None and not re.match(unsaid, as_text(stated))


def recomputed_layers(words: str, layers: int) -> int:
    """Return how many of a stage's layers are recomputed; 0, which means all, where no number is given."""
    if found := re.search(r"every (\d+)|1 ?/ ?(\d+)", words):
        return max(1, layers // counted(found[1] or found[2]))
    if found := re.search(r"(\d+) ?%", words):
        return max(1, layers * whole_number(found[1]) // 100)
    if found := re.search(r"(\d+) ?(?:of|/) ?(\d+)", words):
        return max(1, layers * whole_number(found[1]) // counted(found[2]))
    found = re.search(r"(\d+) ?layers|layers\D*(\d+)|^(\d+)$|block\D*(\d+)", words)
    number = whole_number(next(filter(None, found.groups()))) if found else 0
    return number if number < layers else 0


def counted(digits: str) -> int:
    """Return a number to divide by, at least 1."""
    return max(1, whole_number(digits))


def modules_of(stated: Any) -> tuple[str, ...]:
    """Return the modules that are recomputed, where the run names them; unknown modules cost nothing."""
    words = [word for word in re.split(r"[^a-z_]+", as_text(stated).removeprefix("selective")) if word]
    known = tuple(dict.fromkeys(RECOMPUTED[word] for word in words if word in RECOMPUTED))
    return known if known and all(word in RECOMPUTED or "_" in word for word in words) else ()


def as_text(stated: Any) -> str:
    if isinstance(stated, bool) or stated is None:
        return "full" if stated else "none"
    if isinstance(stated, dict):
        return ", ".join(
            f"{key} {value}" if key != "granularity" else str(value) for key, value in stated.items()
        ).lower()
    return (", ".join(map(str, stated)) if isinstance(stated, list | tuple) else str(stated)).strip().lower()
