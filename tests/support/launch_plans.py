"""Plans of many kinds that Megatron-Core can launch: dense and with experts, latent attention, windows,
prediction layers, sinks, layers without positions, every axis, every stage of ZeRO."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product

from ndparallel.base.errors import UserError
from ndparallel.hardware.accelerator import find_hardware
from ndparallel.launch_flags.megatron.write import emit_megatron
from ndparallel.launch_flags.torchtitan.models import MODELS as MODELS_OF_TORCHTITAN
from ndparallel.launch_flags.torchtitan.write import emit_torchtitan
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.legality import why_not
from ndparallel.planner.models.huggingface.read import shape_of
from ndparallel.planner.models.presets import find_model
from ndparallel.planner.software import find_stack

MODELS = (
    *("gpt2-xl", "megatron-22b", "llama-3-8b", "llama-3-405b", "mistral-7b", "qwen2-7b", "qwen3-32b"),
    *("mixtral-8x7b", "qwen2-57b-a14b", "qwen3-30b-a3b", "deepseek-v2-lite", "deepseek-v2", "deepseek-v3"),
    *("gpt-oss-20b", "llama-4-maverick"),
)
ENTRIES = {  # of models that are no presets
    "glm-4.7-flash": {
        **{"model_type": "glm4_moe_lite", "num_hidden_layers": 47, "hidden_size": 2048, "hidden_act": "silu"},
        **{
            "num_attention_heads": 20,
            "intermediate_size": 10240,
            "vocab_size": 154880,
            "n_shared_experts": 1,
        },
        **{"moe_intermediate_size": 1536, "n_routed_experts": 64, "num_experts_per_tok": 4, "n_group": 1},
        **{"topk_group": 1, "q_lora_rank": 768, "kv_lora_rank": 512, "qk_nope_head_dim": 192},
        **{"qk_rope_head_dim": 64, "v_head_dim": 256},
    },
    "llama4 with positions in all layers": {
        **{"model_type": "llama4_text", "num_hidden_layers": 4, "hidden_size": 512, "num_attention_heads": 8},
        **{"num_key_value_heads": 4, "intermediate_size": 256, "intermediate_size_mlp": 512},
        **{"vocab_size": 1024, "hidden_act": "silu", "num_local_experts": 8, "num_experts_per_tok": 1},
        **{"no_rope_layers": [1, 1, 1, 1], "interleave_moe_layer_step": 2},
    },
    "smollm3": {
        **{"model_type": "smollm3", "num_hidden_layers": 36, "hidden_size": 2048, "num_attention_heads": 16},
        **{"num_key_value_heads": 4, "intermediate_size": 11008, "vocab_size": 128256, "hidden_act": "silu"},
        **{"no_rope_layer_interval": 4, "rope_scaling": {"type": "linear", "factor": 2.0}},
    },
}
PLANS = (
    Plan(dp=8),
    Plan(tp=2, pp=2, dp=4, zero=1, sequence_parallel=True),
    Plan(tp=2, cp=2, dp=4, zero=1, sequence_parallel=True, recompute="selective"),
    Plan(pp=4, dp=8, chunks=2, zero=1, schedule="interleaved", recompute="full", recompute_layers=1),
    Plan(dp=16, zero=3),
    Plan(dp=16, zero=3, shards=8, recompute="full"),
    Plan(dp=16, zero=2, micro_batch=2),
    Plan(tp=4, pp=3, dp=2, zero=1, sequence_parallel=True),
    Plan(pp=2, dp=8, zero=3),
)


MOSTLY_BF16 = (*3 * ["bf16"], "fp8", *3 * ["bf16"])


def jobs_and_plans(
    most: int, hardware: str = "h100", dtypes: Sequence[str] = MOSTLY_BF16
) -> Iterator[tuple[str, TrainingJob, Plan]]:
    """Up to `most` of them, each with its name, the models, the plans and the types of numbers in turn."""
    kept = 0
    for turn, (place, model) in product(range(len(PLANS)), enumerate((*MODELS, *ENTRIES))):
        plan = PLANS[(turn + place) % len(PLANS)]
        shape = shape_of(ENTRIES[model], model, "") if model in ENTRIES else find_model(model)
        plan = replace(plan, ep=4 if shape.experts and plan.dp % 4 == 0 else 1)
        sequence = 1024 if shape.position == "learned" else 4096
        batch = plan.dp * plan.micro_batch * 12
        job = TrainingJob(shape, find_hardware(hardware), find_stack("megatron-core"), sequence, batch)
        job = replace(job, dtype=dtypes[kept % len(dtypes)])
        if kept < most and not [*why_not(job, plan)] and can_be_emitted(emit_megatron, job, plan):
            kept += 1
            yield f"{model} {plan}", job, plan


def recipes() -> Iterator[tuple[str, TrainingJob, Plan]]:
    """Every model that torchtitan has, on up to four plans each."""
    plans = (
        Plan(dp=8, zero=3),
        Plan(tp=2, dp=4, zero=2, sequence_parallel=True),
        Plan(pp=4, dp=4, chunks=2, zero=3, schedule="zb-v"),
        Plan(dp=8, ep=4, zero=3),
        Plan(tp=2, dp=8, ep=4, sequence_parallel=True),
    )
    stack = find_stack("torchtitan")
    for model, plan in product(MODELS_OF_TORCHTITAN, plans):
        shape = replace(find_model(model), prediction_layers=0)  # which our parameters leave out
        plan = replace(plan, ep=2) if shape.experts and plan.zero == 2 else plan
        job = TrainingJob(shape, find_hardware("h100"), stack, 4096, 64)
        if can_be_emitted(emit_torchtitan, job, plan):
            yield f"{model} {plan}", job, plan


def can_be_emitted(emit: Callable[[TrainingJob, Plan], str], job: TrainingJob, plan: Plan) -> bool:
    try:
        return bool(emit(job, plan))
    except UserError:
        return False
