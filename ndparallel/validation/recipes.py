"""What a framework's recipes switch on, release by release, where a run does not say so.

Idea   A run of a release is a run of that release's recipe for its model, GPU and number type. One record
       each; of those that match a run the last counts. A run's own fields count before them.
Limit  Only what changes seconds here; offloading of some layers does, and cannot be said.

Where the switches come from: NVIDIA-NeMo/Megatron-Bridge, scripts/performance/configs (25.09: v0.1.0rc4;
25.11: v0.2.1; 26.02: v0.3.0; 26.04: v0.4.0; 26.06: v0.5.0) and src/megatron/bridge/perf_recipes (26.08:
v0.6.0): moe_flex_dispatcher_backend, cuda_graph_impl and cuda_graph_scope, moe_a2a_overlap,
cutedsl_fused_grouped_mlp, fp8_dot_product_attention, recompute_modules, tp_comm_overlap. All of them have
moe_permute_fusion, moe_router_fusion, average_in_collective and Transformer Engine's fused loss
(cross_entropy_fusion_impl). NVIDIA/dgxc-benchmarking, by the commit that a run's source names: of release
25.02 each model's configure.sh and yaml (NVTE_FUSED_ATTN, activations_checkpoint_granularity,
hidden_dropout, cross_entropy_loss_fusion, moe_expert_capacity_factor, grad_sync_dtype); of 25.05
scripts/performance of NeMo 6f2c6fd, which setup.sh names (cross_entropy_fusion_impl,
MegatronTokenDropCallback, grad_reduce_in_fp32). MooreThreads/SimuMax,
simu_tools/megatron_scripts/scripts, run_pretrain_llama3.sh and run_pretrain_deepseekv2.sh, which
docs/b200/b200_real_repro_guide.md names (--moe-token-dispatcher-type, --moe-permute-fusion,
--moe-expert-capacity-factor, and neither --overlap-grad-reduce nor --overlap-param-gather).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

LATEST = "99.99"


@dataclass(frozen=True)
class ReleaseSwitches:
    """Switches of one framework's recipes, from one release until another; the rest are patterns of what the
    run is like."""

    switches: Mapping[str, Any]
    since: str = ""
    until: str = LATEST
    model: str = ""
    gpu: str = ""
    dtype: str = ""
    recompute: str = ""  # modules
    capacity_factor: float | None = None  # of a mixture that drops tokens
    habits: tuple[str, ...] = ()  # as HABITS in words.py names them

    def matches(self, release: str, *run: str) -> bool:
        like = zip((self.model, self.gpu, self.dtype), run)
        return self.since <= release <= self.until and all(re.search(*pair) for pair in like)


GRACE, HOPPER, X86 = r"\bgb[23]00", r"h[12]00", r"\bb[23]00"
BLACKWELL = r"b[23]00"
DEEPSEEK, KIMI, QWEN, QWEN_30B, GPT_OSS = "deepseek", "kimi", "qwen3.235b", "qwen3.30b", "gpt.oss"
PLAIN = {"dispatcher": "alltoall", "graphs": ""}
HYBRID = {"dispatcher": "hybridep", "graphs": ""}
DEEPEP = {"dispatcher": "deepep", "graphs": ""}
ROUTER, PREPROCESS, STEP = ({"graphs": graphs} for graphs in ("router", "preprocess", "step"))
BESIDE = {"hides_dispatch": True}
FUSED = HYBRID | STEP | BESIDE | {"fused_experts": True}
FP8_ATTENTION = {"fp8_attention": True}

BRIDGE = PLAIN | {
    "fused_permutation": True,
    "fused_router": True,
    "gradient_bytes": 2,
    "scales_gradients": False,
}
# of all releases: tp_comm_overlap is off in nvfp4 and for DeepSeek and Kimi, and
# enable_megatron_core_experimental on for these two, whose providers have moe_router_dtype="fp32"
# (src/megatron/bridge/models/deepseek/deepseek_provider.py, kimi/kimi_provider.py; later the bridges there)
BRIDGE_ALWAYS: dict[str, dict[str, Any]] = {
    "nvfp4": {"tp_overlap": "backward"},
    "deepseek|kimi": {"tp_overlap": "backward", "fused_mask": True, "fp32_router": True},
}
RECIPES = (
    # ---- dense models
    ReleaseSwitches(STEP, "25.09", model="llama3.*8b", gpu=BLACKWELL),
    ReleaseSwitches({"graphs": ""}, "25.11", model="llama3.*8b", gpu=r"\bb[23]00|gb200", dtype="nvfp4"),
    ReleaseSwitches(STEP, "25.09", model="llama3.*70b", gpu=r"\bb200", dtype="bf16"),
    ReleaseSwitches(STEP, "25.09", "25.09", "llama3.*70b", GRACE, "bf16"),
    ReleaseSwitches(ROUTER, "26.06", model="llama3.*70b", gpu="gb200", dtype="nvfp4"),
    # ---- DeepSeek-V3
    ReleaseSwitches(DEEPEP | BESIDE, "25.09", "25.11", DEEPSEEK, HOPPER, recompute="mla_up_proj mlp"),
    ReleaseSwitches(HYBRID, "26.02", LATEST, DEEPSEEK, HOPPER, recompute="mla_up_proj mlp"),
    ReleaseSwitches(PLAIN, "25.09", "25.11", DEEPSEEK, X86, recompute="mla_up_proj"),
    ReleaseSwitches(HYBRID, "26.02", LATEST, DEEPSEEK, X86, recompute="mla_up_proj"),
    ReleaseSwitches(HYBRID | PREPROCESS, "25.11", "25.11", DEEPSEEK, "gb200", recompute="mla_up_proj"),
    ReleaseSwitches(HYBRID | ROUTER, "26.02", LATEST, DEEPSEEK, "gb200", recompute="mla_up_proj"),
    ReleaseSwitches(HYBRID | ROUTER, "26.04", LATEST, DEEPSEEK, "gb200", "fp|mx", recompute="mlp"),
    ReleaseSwitches(HYBRID | ROUTER, "25.11", "25.11", DEEPSEEK, "gb300", recompute="moe_act"),
    ReleaseSwitches(HYBRID, "26.02", LATEST, DEEPSEEK, "gb300", "fp|mx", recompute="mla_up_proj"),
    ReleaseSwitches(HYBRID | ROUTER, "26.02", LATEST, DEEPSEEK, "gb300", "bf16", recompute="moe_act"),
    ReleaseSwitches(
        FUSED | {"fp8_head": True}, "26.06", LATEST, DEEPSEEK, "gb200", "mx", recompute="mla_up_proj"
    ),
    ReleaseSwitches(FUSED | FP8_ATTENTION | {"fp8_head": True}, "26.06", LATEST, DEEPSEEK, "gb300", "mx"),
    ReleaseSwitches(HYBRID | ROUTER, "26.06", "26.06", DEEPSEEK, r"\bb300", recompute="mla_up_proj"),
    ReleaseSwitches(
        FUSED | FP8_ATTENTION | {"fp8_head": True},
        *("26.08", LATEST, DEEPSEEK, r"\bb300", "mx"),
        recompute="mla_up_proj",
    ),
    ReleaseSwitches(
        DEEPEP | ROUTER | BESIDE, "26.06", LATEST, DEEPSEEK, r"\bb200", "mx", recompute="mla_up_proj mlp"
    ),
    # ---- Kimi K2
    ReleaseSwitches(PLAIN, "26.02", LATEST, KIMI, r"h[12]00", recompute="mla_up_proj mlp"),
    ReleaseSwitches(PLAIN, "26.02", LATEST, KIMI, X86, recompute="mla_up_proj"),
    ReleaseSwitches(HYBRID | PREPROCESS, "26.02", LATEST, KIMI, "gb200", recompute="mla_up_proj"),
    ReleaseSwitches(HYBRID, "26.02", LATEST, KIMI, "gb300", recompute="mla_up_proj"),
    # ---- Qwen3 235B
    ReleaseSwitches(PLAIN | BESIDE, "25.11", LATEST, QWEN, HOPPER),
    ReleaseSwitches(PLAIN | BESIDE, "26.02", "26.02", QWEN, r"\bb300"),
    ReleaseSwitches(HYBRID, "26.06", LATEST, QWEN, r"\bb300"),
    ReleaseSwitches(PLAIN | STEP, "25.09", "25.09", QWEN, GRACE),
    ReleaseSwitches(HYBRID | ROUTER, "25.11", LATEST, QWEN, GRACE),
    ReleaseSwitches(HYBRID | PREPROCESS, "25.11", "25.11", QWEN, "gb300"),
    ReleaseSwitches(HYBRID | PREPROCESS, "26.02", "26.02", QWEN, "gb300", "bf16"),
    ReleaseSwitches(FUSED | FP8_ATTENTION, "26.06", LATEST, QWEN, GRACE, "mx"),
    ReleaseSwitches(FUSED | FP8_ATTENTION, "26.08", LATEST, QWEN, X86, "mx"),
    # ---- Qwen3 30B
    ReleaseSwitches(PLAIN | BESIDE, "25.11", "25.11", QWEN_30B, HOPPER),
    ReleaseSwitches(DEEPEP | BESIDE, "26.02", "26.02", QWEN_30B, HOPPER),
    ReleaseSwitches(PLAIN | BESIDE | PREPROCESS, "25.11", "25.11", QWEN_30B, HOPPER, "bf16"),
    ReleaseSwitches(DEEPEP | BESIDE | PREPROCESS, "26.02", "26.02", QWEN_30B, HOPPER, "bf16"),
    ReleaseSwitches(HYBRID, "26.04", LATEST, QWEN_30B, HOPPER),
    ReleaseSwitches(HYBRID | PREPROCESS, "26.04", "26.06", QWEN_30B, HOPPER, "bf16"),
    ReleaseSwitches(PLAIN | STEP, "25.09", "25.09", QWEN_30B, BLACKWELL),
    ReleaseSwitches(PLAIN | PREPROCESS, "25.11", "26.02", QWEN_30B, r"\bb200"),
    ReleaseSwitches(HYBRID | ROUTER, "26.04", LATEST, QWEN_30B, r"\bb200"),
    ReleaseSwitches(HYBRID | ROUTER, "25.11", LATEST, QWEN_30B, "gb200"),
    ReleaseSwitches(HYBRID | PREPROCESS, "25.11", LATEST, QWEN_30B, "gb200", "mx"),
    ReleaseSwitches(HYBRID | PREPROCESS, "25.11", LATEST, QWEN_30B, "b300"),
    ReleaseSwitches(FUSED | FP8_ATTENTION, "26.06", LATEST, QWEN_30B, "gb200|b300", "mx"),
    ReleaseSwitches(FUSED | FP8_ATTENTION, "26.08", LATEST, QWEN_30B, r"\bb200", "mx"),
    # ---- GPT-OSS 120B
    ReleaseSwitches(PLAIN, "25.11", LATEST, GPT_OSS, recompute="layernorm moe_act"),
    ReleaseSwitches(PLAIN | ROUTER, "25.11", LATEST, GPT_OSS, "b300"),
    ReleaseSwitches(HYBRID | ROUTER, "26.04", LATEST, GPT_OSS, r"\bb300"),
    ReleaseSwitches(HYBRID | BESIDE, "26.04", "26.04", GPT_OSS, "gb200", recompute="layernorm moe_act"),
    ReleaseSwitches(PLAIN | BESIDE, "26.06", LATEST, GPT_OSS, "gb200", recompute="layernorm moe_act"),
    ReleaseSwitches(FUSED | FP8_ATTENTION, "26.06", LATEST, GPT_OSS, GRACE, "mx"),
)


FLASH2, HALF_GRADIENTS = {"attention": "flash2"}, {"gradient_bytes": 2}
# of each logit: made float32 (6 bytes), its maximum (4), the difference (8), its exponential (8), the sum
# (4), the quotient (8); backward a product (8), made bf16 (6): core_v0.10.0,
# megatron/core/tensor_parallel/cross_entropy.py
PLAIN_LOSS = {"logit_bytes": 52}
DGXC_25_02 = (
    ReleaseSwitches(HALF_GRADIENTS),
    ReleaseSwitches(HALF_GRADIENTS | PLAIN_LOSS | {"dropout": True}, model="gpt3"),
    ReleaseSwitches({}, model="nemotron4.15b"),
    ReleaseSwitches(HALF_GRADIENTS | FLASH2, model="nemotron4.340b", recompute="core_attn"),
    ReleaseSwitches(PLAIN | HALF_GRADIENTS | PLAIN_LOSS | FLASH2, model="grok", capacity_factor=1.0),
)
DGXC_25_05 = (
    ReleaseSwitches({}, habits=("fused_loss",)),
    ReleaseSwitches(PLAIN | HALF_GRADIENTS, model="grok", capacity_factor=1.0, habits=("fused_loss",)),
)
DGXC = {"8f5cbb3": DGXC_25_02, "e8778d3": DGXC_25_05}  # by commit
NOTHING_BESIDE = {"dp_overlap": False, "gathers_first": False}
SIMUMAX = (
    ReleaseSwitches(NOTHING_BESIDE),
    ReleaseSwitches(
        NOTHING_BESIDE | PLAIN | {"fused_permutation": True}, model="deepseek", capacity_factor=1.0
    ),
)
# wheels for CUDA 12.8 (pyproject.toml, pytorch-cu128), whose cuDNN torch does not call unasked
# (check_prefer_cudnn_attention in aten/src/ATen/native/transformers/cuda/sdp_utils.cpp)
KEMPNER = ReleaseSwitches(FLASH2)
OTHERS = {
    "nemo / megatron-core": ReleaseSwitches({"dispatcher": "alltoall"}),  # of early 2025
    # yanring/Megatron-MoE-ModelZoo, model_configs/benchmarking, of May 2025
    "megatron-core moe": ReleaseSwitches({"fused_permutation": True}),
}
NOTHING = ReleaseSwitches({})


def recipe_of(framework: str, source: str, model: str, gpu: str, dtype: str) -> ReleaseSwitches:
    """The recipe of a run, by the words of its framework, source, model and GPU, and our name of its number
    type; one without switches where it has none here."""
    words, run = framework.lower(), (model.lower(), gpu.lower(), dtype)
    if commit := next((commit for commit in DGXC if f"dgxc-benchmarking git history {commit}" in source), ""):
        return last_of(DGXC[commit], LATEST, *run)
    if "KempnerInstitute/KempnerForge" in source:
        return KEMPNER
    if "MooreThreads/SimuMax" in source:
        return last_of(SIMUMAX, LATEST, *run)
    if release := re.search(r"bridge (\d\d\.\d\d)", words):
        return of_bridge(release[1], *run)
    return next((recipe for pattern, recipe in OTHERS.items() if re.search(pattern, words)), NOTHING)


def last_of(recipes: Sequence[ReleaseSwitches], release: str, *run: str) -> ReleaseSwitches:
    """The last recipe that is like the run."""
    return next((one for one in reversed(recipes) if one.matches(release, *run)), NOTHING)


def of_bridge(release: str, *run: str) -> ReleaseSwitches:
    """The recipe of one release of Megatron-Bridge, with what all of them have."""
    last = last_of(RECIPES, release, *run)
    usual: dict[str, Any] = dict(BRIDGE)
    for pattern, switches in BRIDGE_ALWAYS.items():
        usual |= switches if re.search(pattern, " ".join(run)) else {}
    return replace(last, switches=usual | dict(last.switches), habits=("fused_loss",))
