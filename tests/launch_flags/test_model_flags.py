"""Claims about a model's flags: what config.json says is written and read back, or named, or refused."""

import re
from dataclasses import replace
from typing import Any

import pytest

from ndparallel.base.errors import UserError
from ndparallel.launch_flags.megatron.read import read_megatron
from ndparallel.launch_flags.megatron.read_model import layer_list
from ndparallel.launch_flags.megatron.write import emit_megatron
from ndparallel.launch_flags.reading import Beside
from ndparallel.planner.job import Plan
from ndparallel.planner.models.constants import Constants
from ndparallel.planner.models.huggingface.layernorm_families import JAIS2, NEMOTRON
from ndparallel.planner.models.huggingface.read import shape_of
from ndparallel.planner.models.presets import preset, presets
from ndparallel.planner.models.shape import ModelShape
from ndparallel.planner.models.sizes import LARGEST
from tests.launch_flags.test_flags import H100, job_of, plain

WHOLE_AND_WINDOWS = ModelShape("m", 6, 64, 4, 4, 16, 128, 512, window=100, whole_layers=(2, 5))


def test_windows_are_written_as_megatron_counts_them_and_read_back():
    """It counts the tokens on the left of a query's own, and says 1 for a layer with a window."""
    script = emit_megatron(replace(job_of(), shape=WHOLE_AND_WINDOWS), Plan(dp=8))
    assert '--window-size 99,0 \\\n  --window-attn-skip-freq "([1]*2+[0]*1)*2"' in script
    assert plain(read_megatron(script, H100).job.shape) == plain(WHOLE_AND_WINDOWS)
    every = script.replace('"([1]*2+[0]*1)*2"', "3")
    assert plain(read_megatron(every, H100).job.shape) == plain(WHOLE_AND_WINDOWS)


def test_linear_attention_is_written_by_layer_and_read_back():
    script = emit_megatron(job_of("qwen3.5-27b"), Plan(dp=8))
    assert (
        "--linear-num-value-heads 48 \\\n" in script
        and '--linear-attention-freq "([1]*3+[0]*1)*16"' in script
    )
    assert plain(read_megatron(script, H100).job.shape) == plain(preset("qwen3.5-27b"))
    every_fourth = script.replace('"([1]*3+[0]*1)*16"', "4").replace("gated_delta_net", "gdn")
    assert plain(read_megatron(every_fourth, H100).job.shape) == plain(preset("qwen3.5-27b"))


@pytest.mark.parametrize("text", ["[0]*4096+[1]", "[0, 1]*9999999", "([0]*99999)*99999"])
def test_a_list_of_layers_ends_one_behind_the_most_that_a_model_has(text):
    """So it is refused, and takes no memory."""
    assert len(layer_list(text)) == LARGEST["layers"] + 1


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (("gated_delta_net", "dsa"), "--experimental-attention-variant dsa makes another model"),
        (
            ("--linear-attention-freq", "--rotary-seq-len-interpolation-factor"),
            "without --linear-attention-freq",
        ),
        (('"([1]*3+[0]*1)*16"', '"([1]*3+[0]*1)*4"'), "a list of 64 zeros and ones"),
        (("--linear-num-key-heads 16", "--linear-num-key-heads 15"), "15 heads of keys cannot serve 48"),
    ],
)
def test_linear_attention_that_cannot_be_is_refused(changed, said):
    script = emit_megatron(job_of("qwen3.5-27b"), Plan(dp=8))
    assert changed[0] in script
    with pytest.raises(UserError, match=re.escape(said)):
        read_megatron(script.replace(*changed), H100)


def test_a_heads_width_may_be_given_where_heads_do_not_divide_the_residual():
    """As in GLM-4.5: 96 heads of 128 beside a width of 5120."""
    shape = ModelShape("m", 2, 5120, 96, 8, 128, 1536, 512)
    found = read_megatron(emit_megatron(replace(job_of(), shape=shape), Plan(dp=8)), H100).job.shape
    assert (found.heads, found.head_dim) == (96, 128)


def test_a_router_keeps_a_token_to_groups_of_experts_where_the_flags_say_so():
    script = emit_megatron(job_of("deepseek-v3"), Plan(dp=8))
    limit = "--moe-router-num-groups 8 --moe-router-group-topk 4"
    limits = {(8, 4): script, (1, 1): script.replace(limit, "")}
    for expected, text in limits.items():
        experts = read_megatron(text, H100).job.shape.experts
        assert experts and (experts.groups, experts.top_groups) == expected


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"norms": "both"}, "norms behind attention and MLP"),
        ({"norms": "shared", "parallel": True}, "read the same input"),
        ({"qk_norm": "width"}, "a norm over all heads"),
        ({"embedding_norm": True}, "a norm of the embedding"),
        ({"biases": ("head",)}, "a bias of the head"),
        ({"position": "alibi"}, "position alibi"),
    ],
)
def test_layers_that_megatron_does_not_have_are_refused(changes, said):
    shape = replace(WHOLE_AND_WINDOWS, **changes)
    with pytest.raises(UserError, match=said):
        emit_megatron(replace(job_of(), shape=shape), Plan(dp=8))


def emitted(config: dict[str, Any]) -> str:
    shape = shape_of(preset_entries("llama-3-8b") | config, "m", "")
    return emit_megatron(replace(job_of(), shape=shape), Plan(dp=8))


def preset_entries(name: str) -> dict[str, Any]:
    return presets()[name]["config"]


GPT_OSS = {
    **{"model_type": "gpt_oss", "num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 8},
    **{"num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 64, "vocab_size": 512},
    **{"num_local_experts": 8, "num_experts_per_tok": 4, "sliding_window": 128, "hidden_act": "silu"},
    **{"rope_theta": 150000, "rms_norm_eps": 1e-05, "router_aux_loss_coef": 0.9},
    "rope_scaling": {
        **{"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "rope_type": "yarn"},
        **{"original_max_position_embeddings": 4096, "truncate": False},
    },
}
LLAMA_3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_type": "llama3"}
LLAMA_3 |= {"original_max_position_embeddings": 8192}


@pytest.mark.parametrize(
    "config, written",
    [
        (
            {},
            "--norm-epsilon 1e-05 \\\n  --rotary-base 500000 \\\n  --use-rope-scaling --rope-scaling-factor"
            " 8",
        ),
        ({"rope_scaling": None, "rope_parameters": LLAMA_3}, "--use-rope-scaling --rope-scaling-factor 8"),
        ({"rope_theta": 1e6, "rms_norm_eps": 1e-6}, "--norm-epsilon 1e-06 \\\n  --rotary-base 1000000"),
        ({"partial_rotary_factor": 0.5}, "--rotary-percent 0.5"),
        (
            {"rope_theta": None},
            "# Not said by the model, so as Megatron-Core 0.19.2 has it: the rotary base (10000).",
        ),
        (
            {"rope_scaling": LLAMA_3 | {"low_freq_factor": 2}},
            "rope_scaling type llama3, factor 8.0, low_freq",
        ),
        (
            {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
            "rope_scaling type dynamic, factor 2.0: mend",
        ),
        (
            {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}},
            "--position-embedding-type yarn",
        ),
        (
            {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}},
            "--rotary-scaling-factor 4 --yarn-original-max-position-embeddings 32768",
        ),
        (
            {"rope_scaling": {"type": "yarn", "factor": 4.0, "attention_factor": 2.0}},
            "rope_scaling type yarn, factor 4.0, attention_factor 2.0: mend",
        ),
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, "--rotary-seq-len-interpolation-factor 4"),
        ({"rope_scaling": {"type": "linear", "factor": 2.5}}, "rope_scaling type linear, factor 2.5: mend"),
        (
            {"rope_scaling": {"type": "linear", "factor": float("inf")}},
            "rope_scaling type linear, factor inf",
        ),
        (
            {
                "rope_parameters": {"full_attention": {"rope_theta": 5e5}, "sliding_attention": {}},
                "rope_scaling": None,
            },
            "its config says of rope_parameters of each kind of layer: mend",
        ),
        (
            {"rope_scaling": {"type": "linear", "factor": 4.0, "llama_4_scaling_beta": 0.1}},
            "its config says of llama_4_scaling_beta 0.1: mend",
        ),
        ({"no_rope_layer_interval": 16}, '--no-rope-freq "([0]*15+[1]*1)*2"'),
        ({"no_rope_layers": [0] + [1] * 31}, '--no-rope-freq "([1]*1+[0]*31)"'),
        (
            {"logits_scaling": 16.0, "embedding_multiplier": 1.0},
            "its config says of logits_scaling 16.0: mend",
        ),
    ],
)
def test_what_config_json_says_is_a_flag_or_a_line_of_the_header(config, written):
    assert written in emitted(config)


@pytest.mark.parametrize(
    "name, written",
    [
        ("deepseek-v3", "--rope-type yarn \\\n  --rotary-scaling-factor 40 --mscale 1 --mscale-all-dim 1"),
        ("deepseek-v3", "--moe-router-num-groups 8 --moe-router-group-topk 4"),
        ("deepseek-v3", "--moe-router-topk-scaling-factor 2.5"),
        ("deepseek-v2", "--moe-router-pre-softmax"),
        ("deepseek-v2", "--moe-router-load-balancing-type seq_aux_loss --moe-aux-loss-coeff 0.001"),
        ("qwen2-57b-a14b", "--moe-router-pre-softmax"),
        ("mixtral-8x7b", "--moe-router-load-balancing-type aux_loss --moe-aux-loss-coeff 0.02"),
    ],
)
def test_router_and_positions_are_written_as_the_file_has_them(name, written):
    assert written in emit_megatron(job_of(name), Plan(dp=8))


@pytest.mark.parametrize(
    ("name", "so"),
    [("nemotron-4-340b", True), ("qwen3-next-80b-a3b", True), ("qwen3.5-27b", True), ("qwen3-32b", False)],
)
def test_norms_that_multiply_by_1_and_their_weight_are_written_and_read_back(name, so):
    """Their modeling files in transformers; layernorm_zero_centered_gamma of Megatron-Bridge's recipes."""
    script = emit_megatron(job_of(name, batch=8), Plan(dp=8))
    assert ("--apply-layernorm-1p" in script) == so
    assert read_megatron(script, H100).job.shape.constants.zero_centered == so


def test_jais2_has_nemotrons_layers_with_plain_norms():
    """Jais2DecoderLayer in models/jais2/modular_jais2.py of transformers."""
    assert JAIS2.constants == {} and NEMOTRON.constants == {"zero_centered": True}


def test_gpt_oss_is_written_with_its_sinks_activation_and_positions_and_read_back():
    shape = shape_of(GPT_OSS, "m", "")
    script = emit_megatron(replace(job_of(), shape=shape), Plan(dp=8))
    for flags in (
        "--quick-geglu --glu-linear-offset 1 --activation-func-clamp-value 7",
        "--position-embedding-type yarn",
        "--softmax-type learnable",
        "--no-bias-dropout-fusion",
        "--yarn-beta-fast 32 --yarn-beta-slow 1 \\\n  --no-yarn-correction-range-round-to-int",
    ):
        assert f"  {flags} \\\n" in script or f" {flags}" in script
    assert not {"--swiglu", "--moe-router-enable-expert-bias", "--disable-bias-linear"} & {*script.split()}
    found = read_megatron(script, H100)
    assert plain(found.job.shape) == plain(shape)
    assert emit_megatron(found.job, found.plan).splitlines()[2:] == script.splitlines()[2:]


def test_sinks_leave_use_flash_attn_to_transformer_engine_which_takes_cudnn_for_them():
    script = emit_megatron(replace(job_of(), shape=shape_of(GPT_OSS, "m", "")), Plan(dp=8))
    assert read_megatron(f"{script.rstrip()} --use-flash-attn", H100).job.stack.attention == "cudnn"


def test_one_expert_for_a_token_is_chosen_behind_the_softmax_also_where_the_router_has_a_bias():
    """megatron/core/transformer/transformer_config.py stops at --moe-router-topk 1 without it."""
    shape = shape_of(GPT_OSS | {"num_experts_per_tok": 1}, "m", "")
    assert "--moe-router-pre-softmax" in emit_megatron(replace(job_of(), shape=shape), Plan(dp=8))


@pytest.mark.parametrize(
    "job, plan, said",
    [
        ({}, {"cp": 2}, "attention with sinks over cp ranks, but by all-to-all; take --context-parallel all"),
        ({"attention": "flash2"}, {}, "attention with sinks by FlashAttention"),
    ],
)
def test_sinks_are_refused_where_transformer_engine_has_no_kernel_for_them(job, plan, said):
    asked = job_of()
    asked = replace(asked, shape=shape_of(GPT_OSS, "m", ""), stack=replace(asked.stack, **job))
    with pytest.raises(UserError, match=said):
        emit_megatron(asked, Plan(dp=8, **plan))


def test_sinks_go_over_cp_ranks_by_all_to_all():
    """attn_forward_func_with_cp in Transformer Engine's context_parallel.py."""
    asked = replace(job_of(), shape=shape_of(GPT_OSS, "m", ""))
    asked = replace(asked, stack=replace(asked.stack, context_parallel="all-to-all"))
    assert "--cp-comm-type a2a" in emit_megatron(asked, Plan(dp=8, cp=2))


@pytest.mark.parametrize(
    "scaling",
    [
        {"type": "linear", "factor": 4.0},
        {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096},
    ],
)
def test_how_positions_are_stretched_is_read_back(scaling):
    config = {"rope_scaling": scaling, "no_rope_layer_interval": 4}
    script = emitted(config)
    found = read_megatron(script, H100).job.shape.constants
    assert found.scaling == scaling and found.unrotated == tuple(range(3, 32, 4))
    every = re.sub(r'--no-rope-freq "[^"]*"', "--no-rope-freq 4", script)
    assert every != script and read_megatron(every, H100).job.shape.constants.unrotated == found.unrotated


def test_llama_4_has_experts_beside_dense_layers_and_a_sigmoid_on_their_input():
    """Llama4Router and Llama4TextMoe in modeling_llama4.py of transformers; moe_apply_probs_on_input in
    megatron/core/transformer/moe/experts.py."""
    job = replace(job_of("llama-4-maverick"), sequence=8192)
    script = emit_megatron(job, Plan(dp=8))
    for flags in (
        "--ffn-hidden-size 16384",
        "--num-experts 128 \\\n  --moe-router-topk 1 \\\n  --moe-ffn-hidden-size 8192",
        '--moe-layer-freq "([0]*1+[1]*1)*24"',
        "--moe-shared-expert-intermediate-size 8192",
        '--no-rope-freq "([0]*3+[1]*1)*12"',
        "--moe-router-score-function sigmoid \\\n  --moe-apply-probs-on-input",
    ):
        assert flags in script
    assert "pre-softmax" not in script and "expert-bias" not in script and "window" not in script
    assert "attn_scale 0.1; floor_scale 8192" in script
    found = read_megatron(script, H100).job.shape
    assert replace(plain(found), window=8192, chunked=True, whole_layers=tuple(range(3, 48, 4))) == plain(
        job.shape
    )
    assert (found.constants.scores, found.constants.scaled_inputs) == ("sigmoid", True)


@pytest.mark.parametrize(
    "model_type, changes, what",
    [
        ("olmo", {}, "a layernorm without a shift"),
        ("nanochat", {"hidden_act": "relu2"}, "a norm of the embedding"),
        ("hunyuan_v1_dense", {}, "norms of queries and keys behind their rotation"),
        (
            "ernie4_5_moe",
            {"moe_num_experts": 8, "moe_k": 2, "moe_intermediate_size": 64, "moe_num_shared_experts": 1},
            "a softmax router with numbers that balance the load",
        ),
        (
            "dots1",
            {
                "n_routed_experts": 8,
                "num_experts_per_tok": 2,
                "moe_intermediate_size": 64,
                "n_shared_experts": 1,
                "n_group": 1,
                "topk_group": 1,
                "norm_topk_prob": False,
            },
            "sigmoids of a router whose sum is not made 1",
        ),
    ],
)
def test_what_megatron_would_build_otherwise_is_refused(model_type, changes, what):
    shape = shape_of(preset_entries("llama-3-8b") | {"model_type": model_type} | changes, "m", "")
    with pytest.raises(UserError, match=what):
        emit_megatron(replace(job_of(), shape=shape), Plan(dp=8))


def test_layers_of_exaone_without_a_window_have_no_positions():
    """ExaoneMoeAttention in modeling_exaone_moe.py of transformers 5.23.0."""
    sizes = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "num_shared_experts": 1}
    entries = (
        preset_entries("llama-3-8b") | {"model_type": "exaone_moe", "n_group": 1, "topk_group": 1} | sizes
    )
    shape = shape_of(entries | {"sliding_window": 128}, "m", "")
    script = emit_megatron(replace(job_of(), shape=shape), Plan(dp=8))
    assert '--no-rope-freq "([0]*3+[1]*1)*8"' in script
    assert '--window-size 127,0 \\\n  --window-attn-skip-freq "([1]*3+[0]*1)*8"' in script
    assert not shape_of(entries | {"sliding_window": None}, "m", "").constants.unrotated


def test_megatron_has_no_chunks_and_norms_queries_and_keys_in_all_layers_or_none():
    scout = replace(job_of("llama-4-scout"), sequence=8192)
    with pytest.raises(UserError, match="norms of queries and keys in the layers with positions alone"):
        emit_megatron(scout, Plan(dp=8))
    with pytest.raises(
        UserError, match="no flags for attention in chunks; take a sequence of one chunk, at most 8192"
    ):
        emit_megatron(replace(job_of("llama-4-maverick"), sequence=8193), Plan(dp=8))
    turned = shape_of(presets()["llama-4-scout"]["config"] | {"no_rope_layers": [1] * 48}, "m", "")
    script = emit_megatron(replace(scout, shape=turned), Plan(dp=8))
    assert "--qk-l2-norm" in script and "--no-rope-freq" not in script
    assert read_megatron(script, H100).job.shape.qk_norm == "unscaled"
    assert turned.experts
    several = replace(turned, experts=replace(turned.experts, top_k=2))
    with pytest.raises(UserError, match="weights on the inputs of several experts"):
        emit_megatron(replace(scout, shape=several), Plan(dp=8))


def test_latent_attention_names_a_heads_width_where_heads_do_not_divide_the_residual():
    """As in GLM-4.7 Flash: Megatron-Core's own check of the other attention's width stopped its script."""
    shape = preset("deepseek-v2-lite")
    assert "--kv-channels" not in emit_megatron(replace(job_of(), shape=shape), Plan(dp=8))
    odd = replace(shape, heads=20, kv_heads=20)
    script = emit_megatron(replace(job_of(), shape=odd), Plan(dp=8))
    assert "--kv-channels 128" in script and plain(read_megatron(script, H100).job.shape) == plain(odd)


def test_latent_attention_is_yarns_and_has_no_biases_of_keys_where_a_script_does_not_say_otherwise():
    """megatron/core/transformer/transformer_config.py, MLATransformerConfig.rope_type."""
    script = emit_megatron(job_of("deepseek-v3"), Plan(dp=8))
    silent = script.replace("  --rope-type yarn \\\n", "").replace("--disable-bias-linear", "--add-qkv-bias")
    found = read_megatron(silent, H100).job.shape
    assert silent.count("\n") == script.count("\n") - 1
    assert found.constants.scaling["type"] == "yarn" and found.constants.scaling["factor"] == 40
    assert found.biases == ("output", "mlp")
    assert "--disable-bias-linear" not in emit_megatron(replace(job_of(), shape=found), Plan(dp=8))


@pytest.mark.parametrize(
    "entries, said",
    [
        ({"no_rope_layers": [2]}, "no_rope_layers must be a list of zeros and ones"),
        ({"no_rope_layers": "x"}, "no_rope_layers must be a list"),
        ({"no_rope_layer_interval": 0}, "no_rope_layer_interval"),
        ({"swiglu_limit": "x"}, "swiglu_limit must be a number"),
    ],
)
def test_a_file_with_no_such_layers_is_refused_in_a_sentence(entries, said):
    with pytest.raises(UserError, match=said):
        emitted(entries)


def test_latent_attention_without_yarn_leaves_out_the_fusion_that_knows_no_other():
    """megatron/core/transformer/transformer_config.py, MLATransformerConfig.__post_init__."""
    shape = replace(preset("deepseek-v2-lite"), constants=Constants())
    assert "--rope-type rope --no-rope-fusion" in emit_megatron(replace(job_of(), shape=shape), Plan(dp=8))


@pytest.mark.parametrize("name", ["llama-3-8b", "mistral-7b", "qwen2-57b-a14b", "deepseek-v2", "deepseek-v3"])
def test_a_script_that_is_read_is_written_again_to_the_letter(name):
    script = emit_megatron(job_of(name), Plan(dp=8, zero=1))
    found = read_megatron(script, H100)
    again = emit_megatron(replace(found.job, shape=replace(found.job.shape, name=name)), found.plan)
    assert again == script


BARE = (
    "pretrain_gpt.py --num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 128"
    " --max-position-embeddings 128 --micro-batch-size 2 --num-experts 8 --expert-model-parallel-size 4"
    " --use-megatron-fsdp --tokenizer-type GPT2BPETokenizer"
)
DEFAULTS = {  # megatron/training/arguments.py, of Megatron-Core 0.19.2
    "--position-embedding-type": "learned_absolute",
    "--ffn-hidden-size": f"{4 * 64}",
    "--normalization": "LayerNorm",
    "--kv-channels": f"{64 // 4}",
    "--vocab-size": "50257",
    "--moe-router-topk": "2",
    "--moe-ffn-hidden-size": f"{4 * 64}",
    "--global-batch-size": f"{2 * 8}",
    "--bf16": "",
    "--hidden-dropout": "0.1",
    "--megatron-fsdp-main-grads-dtype": "auto",
    "--moe-token-dispatcher-type": "allgather",
}
ABSENCES = ["--swiglu", "--disable-bias-linear"]  # which no flag says


def assumed(notes: tuple[str, ...]) -> list[str]:
    (said,) = [note for note in notes if note.startswith("Not given")]
    return re.findall(r"--[a-z0-9-]+", said)


def test_what_a_bare_command_leaves_to_megatron_is_said_and_reads_the_same_when_it_is_given():
    bare = read_megatron(BARE, H100, Beside(8))
    assert sorted(assumed(bare.notes)) == sorted([*DEFAULTS, *ABSENCES])
    given = read_megatron(
        " ".join([BARE, *(f"{flag} {value}" for flag, value in DEFAULTS.items())]), H100, Beside(8)
    )
    assert sorted(assumed(given.notes)) == sorted(ABSENCES)
    assert (given.job, given.plan) == (bare.job, bare.plan)


@pytest.mark.parametrize("flag", DEFAULTS)
def test_each_default_is_said_where_it_alone_is_not_given(flag):
    others = " ".join(f"{other} {value}" for other, value in DEFAULTS.items() if other != flag)
    assert sorted(assumed(read_megatron(f"{BARE} {others}", H100, Beside(8)).notes)) == sorted(
        [flag, *ABSENCES]
    )


HEEDED = (  # what is so here with and without them
    "--reuse-grad-buf-for-mxfp8-param-ag",
    "--no-check-for-nan-in-loss-and-grad",
    "--attention-dropout 0.0",
    "--moe-router-dtype fp32",
    "--moe-grouped-gemm",
    "--moe-router-score-function sigmoid",
    "--expert-tensor-parallel-size 1",
    "--use-mcore-models",
)


@pytest.mark.parametrize("flag", HEEDED)
def test_a_flag_that_says_what_is_so_here_is_not_passed_over(flag):
    notes = read_megatron(f"{BARE} {flag}", H100, Beside(8)).notes
    assert not any(flag.split()[0] in note for note in notes)
