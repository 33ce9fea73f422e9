"""Measured training runs that others published, read as jobs and plans.

Idea   A file lists runs in one format, each with its source. What a run does not state is filled by a rule, the same for all.
Limit  Only what the format can say: a run whose GPU or framework is unknown here cannot be expressed, and says so.

The rules for what is not stated
    vocabulary            32,000, SentencePiece's usual size
    sequence parallelism  used with tensor parallelism by Megatron-Core, NeMo and torchtitan
    microbatch            1 sequence
    chunks                1; where the schedule is interleaved, one layer to a chunk
    recompute             none
    schedule              1F1B, interleaved with several chunks
    weights in 16 bits    where the precision says "pure", or on PyTorch without FSDP (one data-parallel rank)
    head width            hidden / heads; 128 in a mixture of experts
    model FLOPs           6 for each parameter but the embedding's and 6 * layers * hidden * sequence (causal) for each token
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

from ndparallel.errors import UserError
from ndparallel.hardware import Accelerator, accelerator, data_sheets
from ndparallel.planner.flops import model_flops
from ndparallel.planner.plan import Job, Plan
from ndparallel.planner.shape import Experts, ModelShape
from ndparallel.planner.stack import MODULES, STACKS, Stack

UNSTATED_VOCABULARY = 32_000
PRESETS = {"V100": "v100", "A100": "a100-80", "H100": "h100", "H200": "h200", "B200": "b200", "GB200": "gb200"}
FRAMEWORKS = (  # the first whose words are all in the framework's name; None stands for compiled or not
    (("deepspeed", "2021"), "deepspeed-2021"),
    (("megatron", "2021"), "megatron-2021"),
    (("megatron", "2022"), "megatron-2022"),
    (("megatron", "2023"), "megatron-2022"),
    (("nemo",), "nemo"),
    (("megatron-core",), "megatron-core"),
    (("in-house",), "megatron-core"),
    (("llm-foundry",), "fsdp-2023"),
    (("torchtitan",), "torchtitan"),
    (("pytorch",), "pytorch"),
)
RECOMPUTED = {"norm": "layernorm", "act": "moe_act", "attn": "core_attn"} | {module: module for module in MODULES}
SCHEDULES = {"zb-2p": "zb-2p", "zb-1p": "zb-1p", "1f1b-i": "interleaved", "zb-v": "zb-v", "gpipe": "gpipe"}


@dataclass(frozen=True)
class Case:
    """One measured run; `measured_seconds` of a step, or of one layer's passes where `one_layer`; memory in bytes or None."""

    name: str
    job: Job
    plan: Plan
    measured_seconds: float
    measured_bytes: float | None
    one_layer: bool
    source: str


def read_cases(path: Path | None = None) -> list[dict[str, Any]]:
    """The runs of a file, by default of the project's own collection."""
    file = path or resources.files("ndparallel.planner") / "measured_runs.json"
    try:
        cases = json.loads(file.read_text("utf-8"))
    except (ValueError, RecursionError) as error:  # json's and Unicode's
        raise UserError(f"{file} is not JSON: {error}.") from None
    if not isinstance(cases, list) or not all(isinstance(case, dict) for case in cases):
        raise UserError(f"{file} must hold a list of runs, each a table of keys and values, as ndparallel/planner/measured_runs.json does.")
    return cases


def express(run: Mapping[str, Any]) -> Case:
    """Read one run. Raises UserError, saying why, where it cannot be expressed."""
    stack = stack_of(run["software"])
    plan = plan_of(run, stack)
    if modules := modules_of(run["recompute"]):
        stack = replace(stack, selective=modules)
    precision = str(run["precision"]).lower()
    half = "pure" in precision or (stack.name.startswith("pytorch") and plan.dp == 1)
    job = Job(shape_of(run), hardware_of(run["hardware"]), stack, run["batch"]["sequence"], run["batch"]["global"], half)
    seconds, one_layer = measured_seconds(run, job)
    return Case(run["id"], job, plan, seconds, measured_bytes(run["measured"]), one_layer, run["source"])


def shape_of(run: Mapping[str, Any]) -> ModelShape:
    model = run["model"]
    gpt, experts = model.get("activation") == "gelu", model.get("experts")
    alibi = model["name"].startswith("mpt")
    return ModelShape(
        name=model["name"],
        layers=model["layers"],
        hidden=model["hidden"],
        heads=model["heads"],
        kv_heads=model.get("kv_heads") or model["heads"],
        head_dim=model.get("head_dim") or (128 if experts else model["hidden"] // model["heads"]),
        ffn=model["ffn"],
        vocab=UNSTATED_VOCABULARY if "vocab" in run["unknown"] else model["vocab"],
        activation="gelu" if gpt else "swiglu",
        norm="layernorm" if gpt else "rmsnorm",
        position="alibi" if alibi else "learned" if gpt else "rotary",
        positions=run["batch"]["sequence"] if gpt and not alibi else 0,
        biases=("qkv", "output", "mlp", "norm") if gpt and not alibi else (),
        tied_embeddings=gpt,
        experts=Experts(experts, model["topk"], model["moe_ffn"]) if experts else None,
    )


def hardware_of(hardware: Mapping[str, Any]) -> Accelerator:
    """The preset of the GPU's name with the run's own figures. Raises UserError for a GPU that no preset knows."""
    name = re.split(r"[-\s]", hardware["gpu"])[0]
    if name not in PRESETS:
        raise UserError(f"no preset knows the GPU {hardware['gpu']!r}; there are {', '.join(PRESETS)}.")
    watts = re.search(r"(\d+) W\b", hardware["gpu"])
    given = {
        "peak": {**data_sheets()[PRESETS[name]]["peak"], "bf16": hardware["peak_bf16_tflops"] * 1e12},
        "memory": hardware["memory_gb"] * 2**30,
        "memory_bandwidth": hardware["memory_bandwidth_gb_per_s"] * 1e9,
        "gpus_per_node": hardware["gpus_per_node"],
        "bandwidth_inside": hardware["intra_node_gb_per_s_per_gpu_each_way"] * 1e9,
        "bandwidth_across": hardware["inter_node_gbit_per_s_per_gpu"] * 1e9 / 8,
    }
    return accelerator(hardware["gpu"], given | {"based_on": PRESETS[name]} | ({"power_limit": float(watts[1])} if watts else {}))


def stack_of(software: Mapping[str, Any]) -> Stack:
    framework = software["framework"].lower()
    for words, name in FRAMEWORKS:
        if all(word in framework for word in words):
            compiled = f"{name}-compiled"
            return STACKS[compiled if software.get("compiled") and compiled in STACKS else name]
    raise UserError(f"no software stack stands for {software['framework']!r}; there are {', '.join(STACKS)}.")


def plan_of(run: Mapping[str, Any], stack: Stack) -> Plan:
    parallel = run["parallel"]
    words = str(parallel["schedule"] or "").lower()
    chunks = parallel["vp"] or (run["model"]["layers"] // parallel["pp"] + 1 if "interleaved" in words else 1)
    stated = parallel["sp"]
    sequence_parallel = stated if stated is not None else stack.sequence_parallel
    return Plan(
        **{axis: parallel[axis] for axis in ("tp", "pp", "dp", "ep", "cp")},
        chunks=chunks,
        micro_batch=run["batch"]["micro"] or 1,
        zero=parallel["zero"] if isinstance(parallel["zero"], int) else 2 if parallel["zero"] else 0,
        sequence_parallel=bool(sequence_parallel) and parallel["tp"] > 1,
        recompute=recompute_of(run["recompute"]),
        schedule=SCHEDULES.get(words, "interleaved" if chunks > 1 else "1f1b"),
    )


def recompute_of(stated: str | None) -> str:
    words = (stated or "none").lower()
    return "selective" if modules_of(stated) else next((kind for kind in ("full", "selective") if words.startswith(kind)), "none")


def modules_of(stated: str | None) -> tuple[str, ...]:
    """What runs again, where the run names modules and nothing else."""
    words = re.split(r"[,\s]+", (stated or "none").lower())
    return tuple(RECOMPUTED[word] for word in words) if all(word in RECOMPUTED for word in words) else ()


def measured_seconds(run: Mapping[str, Any], job: Job) -> tuple[float, bool]:
    """Seconds that the source gives or that follow from its figures, and whether they are one layer's."""
    measured = run["measured"]
    if "step_seconds" in measured:
        return measured["step_seconds"], False
    if "layer_total_ms" in measured:
        return measured["layer_total_ms"] / 1e3, True
    if "tflops_per_gpu" in measured:
        return model_flops(job) / (run["gpus"] * measured["tflops_per_gpu"] * 1e12), False
    raise UserError(f"{run['id']} states no seconds and nothing from which they follow.")


def measured_bytes(measured: Mapping[str, Any]) -> float | None:
    return measured["memory_gb"] * 1e9 if "memory_gb" in measured else measured["memory_gib"] * 2**30 if "memory_gib" in measured else None
