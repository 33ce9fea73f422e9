"""Claims about a model's flags: what config.json says is written and read back, or named, or refused."""

from dataclasses import replace
from typing import Any

import pytest

from ndparallel.base.errors import UserError
from ndparallel.launch_flags.megatron import emit_megatron
from ndparallel.launch_flags.read_megatron import read_megatron
from ndparallel.planner.job import Plan
from ndparallel.planner.models.constants import Constants
from ndparallel.planner.models.huggingface import shape_of
from ndparallel.planner.models.presets import preset, presets
from ndparallel.planner.models.shape import ModelShape
from tests.launch_flags.test_flags import H100, job_of, plain

WHOLE_AND_WINDOWS = ModelShape("m", 6, 64, 4, 4, 16, 128, 512, window=100, whole_layers=(2, 5))


def test_windows_are_written_as_megatron_counts_them_and_read_back():
    """It counts the tokens on the left of a query's own, and says 1 for a layer with a window."""
    script = emit_megatron(replace(job_of(), shape=WHOLE_AND_WINDOWS), Plan(dp=8))
    assert '--window-size 99,0 \\\n  --window-attn-skip-freq "([1]*2+[0]*1+[1]*2+[0]*1)"' in script
    assert plain(read_megatron(script, H100).job.shape) == plain(WHOLE_AND_WINDOWS)
    every = script.replace('"([1]*2+[0]*1+[1]*2+[0]*1)"', "3")
    assert plain(read_megatron(every, H100).job.shape) == plain(WHOLE_AND_WINDOWS)


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
