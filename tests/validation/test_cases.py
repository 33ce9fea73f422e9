"""Claims about measured runs that the collection does not have: other machines, frameworks and spellings, and
what a file lacks."""

import json
import re
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ndparallel.base.errors import UserError
from ndparallel.commands.validate import cells, relative, show
from ndparallel.hardware.accelerator import find_hardware
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.layers.pricing import Pricing
from ndparallel.planner.models.experts import Experts
from ndparallel.planner.models.presets import find_model
from ndparallel.planner.prediction import legal_and_fits, peak_memory, time_step
from ndparallel.planner.software import STACKS
from ndparallel.search.bounds.lower_bound import lower_bound
from ndparallel.validation import measured
from ndparallel.validation.cases import express, read_cases
from ndparallel.validation.hardware import hardware_of
from ndparallel.validation.model import shape_of, usual_ffn
from ndparallel.validation.result import Result
from ndparallel.validation.software import stack_of
from ndparallel.validation.validate import PAIRS, predicted_bytes, result_of, summary
from ndparallel.validation.words.frameworks import attention_kernel, stack_name
from ndparallel.validation.words.parallel import cuts_experts, schedule_named, zero_stage
from ndparallel.validation.words.recomputation import recompute_of, recomputed_layers
from ndparallel.validation.words.software import dispatcher_named, graphs_stated

DOCS = Path(__file__).resolve().parents[2] / "docs"
RUNS = {run["id"]: run for run in read_cases()}
LLAMA_70B = RUNS["dgxc2502_70b_bf16_64"]  # H100, tp 4, pp 4, cp 2, dp 2
GPT_22B = RUNS["kor_t5_22B_full"]
QWEN = RUNS["zoo_qwen235_4"]
V3 = TrainingJob(find_model("deepseek-v3"), find_hardware("h100"), STACKS["megatron-core"], 4096, 1024)


def changed(run: dict, **tables) -> dict:
    """The run with some entries of its tables, or of its own, changed."""
    result = deepcopy(run)
    for key, value in tables.items():
        result[key] = (
            {**result[key], **value}
            if isinstance(result.get(key), dict) and isinstance(value, dict)
            else value
        )
    return result


def seconds(run: dict) -> float:
    result = result_of(run)
    assert result.predicted_seconds, result.missed
    return result.predicted_seconds


def test_the_mean_says_how_many_runs_without_a_prediction_are_in_it(capsys):
    unknown = changed(LLAMA_70B, hardware={"gpu": "X1", "peak_bf16_tflops": None, "memory_gb": None})
    show([result_of(LLAMA_70B), result_of(unknown)], runs=False)
    said = " ".join(capsys.readouterr().out.split())
    assert "largest 100.0%. Runs without a prediction, here 1, count as 100%." in said
    assert "does not give its peak" in said and "peak and memory and" not in said
    show([result_of(LLAMA_70B)], runs=False)
    assert "without a prediction" not in capsys.readouterr().out


def test_a_row_has_the_errors_of_its_seconds_and_memory_and_the_bar_of_its_prediction():
    whole = Result("run", 10.0, 12.0, 80e9, 60e9, unstated=("cp",), error_bar=0.25)
    assert cells(whole) == ("run*", "10.0 s", "12.0 s", "+20.0%", "25%", "80.0 GB", "-25.0%")
    assert cells(Result("run", predicted_seconds=12.0)) == ("run", "-", "12.0 s", "-", "-", "-", "-")


def test_a_contrast_is_off_by_what_its_predicted_ratio_is_above_the_measured_one():
    assert relative({"measured_ratio": 0.8, "predicted_ratio": 1.0}) == "+25.0%"
    assert relative({"measured_ratio": 1.0, "predicted_ratio": 0.8}) == "-20.0%"


# --------------------------------------------------------------------------------------------------- machines


@pytest.mark.parametrize(
    ("name", "tflops", "gigabytes_per_second_inside"),
    [
        ("NVIDIA A100-SXM4-80GB", 312, 300),
        ("8xA800", 312, 200),
        ("H100 PCIe", 756, 64),
        ("H100 SXM5, 500 W limit", 989, 450),
        ("H20", 148, 450),
        ("AMD Instinct MI300X", 1307, 448),
        ("GB200 NVL72", 2500, 900),
        ("L40S", 362, 32),
    ],
)
def test_a_gpus_name_alone_stands_for_its_data_sheet(name, tflops, gigabytes_per_second_inside):
    gpu = hardware_of({"gpu": name})
    assert gpu.peak("bf16") == pytest.approx(tflops * 1e12)
    assert gpu.inside.bandwidth_bytes_per_second == pytest.approx(
        gigabytes_per_second_inside * gpu.inside_fraction * 1e9
    )


def test_a_gpu_that_nobody_knows_is_what_its_data_sheet_says():
    sheet = {key: value for key, value in LLAMA_70B["hardware"].items() if key != "gpu"}
    assert seconds(changed(LLAMA_70B, hardware=sheet | {"gpu": "X1"})) == pytest.approx(seconds(LLAMA_70B))
    with pytest.raises(UserError, match="'X1', and the run does not give its peak"):
        hardware_of({"gpu": "X1"})


def test_less_of_a_machine_takes_longer():
    usual = seconds(GPT_22B)
    for gpu in ("A800", "A100 PCIe"):
        assert (
            seconds(changed(GPT_22B, hardware={"gpu": gpu, "intra_node_gb_per_s_per_gpu_each_way": None}))
            > 1.02 * usual
        )
    assert seconds(changed(GPT_22B, hardware={"gpus_per_node": 4})) > 1.02 * usual, "tp=8 over two nodes"


def test_a_link_that_is_not_stated_is_the_presets():
    for nothing in (None, 0, "unknown"):
        assert seconds(changed(LLAMA_70B, hardware={"inter_node_gbit_per_s_per_gpu": nothing})) == seconds(
            LLAMA_70B
        )


# ------------------------------------------------------------------------------------------------------ words


@pytest.mark.parametrize(
    ("framework", "software"),
    [
        ("megatron-lm 2019", "megatron-2021"),
        ("megatron-deepspeed 2022", "megatron-2022"),
        ("megatron-lm", "megatron-core"),
        ("deepspeed zero-3 2023", "deepspeed"),
        ("gpt-neox 2024", "megatron-2022"),
        ("composer", "fsdp-2023"),
        ("maxtext", "torchtitan-compiled"),
        ("hugging face trainer", "pytorch"),
        ("something of our own", "megatron-core"),
    ],
)
def test_every_framework_has_software_that_stands_for_it(framework, software):
    assert stack_name(framework, None, shards=False) == software


def test_hugging_faces_trainer_shards_weights_by_accelerate():
    names = ("hugging face trainer", "accelerate fsdp", "trl sft", "pytorch fsdp")
    assert [stack_name(name, None, shards=True) for name in names] == [*["accelerate"] * 3, "pytorch"]


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (None, ("none", 0)),
        ("none (flash attention)", ("none", 0)),
        ("w/o recompute", ("none", 0)),
        ("cpu offload", ("none", 0)),
        (True, ("full", 0)),
        ("activation checkpointing", ("full", 0)),
        ("full (block, 4 layers)", ("full", 4)),
        ("every 2 layers", ("full", 5)),
        ("5 of 20 layers", ("full", 2)),
        ("selective(attn)", ("selective", 0)),
        ("mla_up_proj, moe_act", ("selective", 0)),
    ],
)
def test_recomputation_in_the_words_of_sources(words, kind):
    assert recompute_of(words, layers=10) == kind


@pytest.mark.parametrize(
    ("stack", "used", "flash", "year", "kernel"),
    [
        ("megatron-2022", "unfused", True, 2022, "flash1"),  # FlashAttention 2 is of July 2023
        ("megatron-2022", "unfused", True, 2024, "flash2"),
        ("torchtitan", "flash2", True, 2022, "flash1"),
        ("fsdp-2023", "flash1", None, 2024, "flash2"),
        ("megatron-core", "cudnn", True, 2025, "cudnn"),
        ("megatron-core", "cudnn", False, 2025, "unfused"),
        ("megatron-2021", "unfused", None, 2021, "unfused"),
        ("pytorch", "cudnn", True, 2025, "flash2"),  # torch 2.11, which calls cuDNN, is of March 2026
        ("accelerate", "cudnn", None, None, "flash2"),
        ("deepspeed", "cudnn", True, 2022, "flash1"),
        ("pytorch", "cudnn", True, 2026, "cudnn-2026"),
    ],
)
def test_attention_is_the_kernel_of_its_year(stack, used, flash, year, kernel):
    assert attention_kernel(stack, used, flash, year) == kernel


def test_torch_calls_cudnn_unless_its_wheels_bring_an_older_one():
    kernels = {name: STACKS[name].attention for name in ("pytorch", "deepspeed", "accelerate", "torchtitan")}
    assert kernels.pop("torchtitan") == "flash2" and {*kernels.values()} == {"cudnn"}
    run = RUNS["kempner_mfu_01"]
    assert run["software"]["framework"].endswith("2026") and express(run).job.stack.attention == "flash2"


@pytest.mark.parametrize(("words", "layers"), [
    ("every 2 layers", 40), ("1/4 of the layers", 20), ("50% of the layers", 40), ("3 of 8 layers", 30),
    ("3/8", 30), ("5 layers", 5), ("layers: 7", 7), ("9", 9), ("block 4", 4), ("1%", 1), ("80 layers", 0),
    ("full", 0),
])  # fmt: skip
def test_layers_that_run_again_are_counted_in_the_words_of_sources(words, layers):
    """Of a stage's 80; where there is no number, or it is all of them, all do, which is 0."""
    assert recomputed_layers(words, 80) == layers


def test_schedules_and_zero_in_the_words_of_sources():
    spelled = {
        "1F1B-I": "interleaved",
        "ZB-V": "zb-v",
        "ZBH1": "zb-h1",
        "DualPipe V": "dualpipev",
        "F-then-B": "gpipe",
    }
    assert {words: schedule_named(words) for words in spelled} == spelled
    stages = {
        "ZeRO-1": 1,
        "stage 2": 2,
        "FULL_SHARD": 3,
        "SHARD_GRAD_OP": 2,
        "distributed optimizer": 1,
        "none": 0,
    }
    assert {words: zero_stage(words, "") for words in stages} == stages
    assert (zero_stage(None, "pytorch fsdp2"), zero_stage(None, "megatron-core")) == (3, 0)


def test_a_schedule_brings_its_chunks_and_with_too_few_microbatches_is_taken_breadth_first():
    def plan(**parallel):
        return express(changed(LLAMA_70B, parallel={"vp": None, **parallel})).plan

    assert (plan(schedule="interleaved").schedule, plan(schedule="interleaved").chunks) == ("interleaved", 20)
    assert (plan(schedule="ZB-V").chunks, plan(schedule="1F1B").chunks) == (2, 1)
    few = changed(LLAMA_70B, batch={"global": 6}, parallel={"vp": 5})
    assert express(few).plan.schedule == "looped-bfs", "3 microbatches on 4 pipeline ranks"


# -------------------------------------------------------------------------------------- numbers and attention


def test_fp8_is_faster_than_bf16_and_float32_slower_than_tf32():
    stated = ("fp8 hybrid", "bf16, fp32 grad accum", "TF32", "fp32")
    fp8, bf16, tf32, fp32 = (seconds(changed(LLAMA_70B, precision=words)) for words in stated)
    assert bf16 / 2 < fp8 < 0.9 * bf16
    assert 1.8 * bf16 < tf32 < 4 * bf16, (
        "half the rate, twice the bytes, and attention's scores through memory"
    )
    assert 3 * tf32 < fp32 < 494.5 / 67 * tf32
    assert "does not multiply fp8" in result_of(changed(GPT_22B, precision="fp8")).missed


def test_training_in_float32_keeps_16_bytes_for_a_parameter():
    case = express(changed(GPT_22B, precision="fp32"))
    memory = peak_memory(case.job, case.plan)
    states = case.widened * (memory.weights + memory.gradients + memory.optimizer)
    # tp=8 cuts all but norms and positions
    assert states == pytest.approx(16 * case.job.shape.parameters().total / 8, rel=0.01)


def test_attention_that_is_said_to_be_fused_keeps_no_scores():
    runs = [
        changed(GPT_22B, software={"flash_attention": flash}, recompute="none", batch={"sequence": 8192})
        for flash in (True, False)
    ]
    fused: Any
    unfused: Any
    fused, unfused = (result_of(run) for run in runs)
    assert fused.predicted_seconds < 0.8 * unfused.predicted_seconds
    # layers, microbatch, heads / tp, pairs, and 5 bytes each: softmax, dropout and its mask
    scores = 48 * 4 * 64 / 8 * 8192**2 * 5
    assert unfused.predicted_bytes - fused.predicted_bytes == pytest.approx(scores, rel=0.01)


# -------------------------------------------------------------------------------------------- what is missing


def test_dp_is_what_the_gpus_leave_and_the_microbatch_what_the_microbatches_leave():
    case = express(changed(LLAMA_70B, parallel={"dp": None}, batch={"micro": None, "microbatches": 16}))
    assert (case.plan.dp, case.plan.micro_batch) == (2, 4)


def test_a_models_name_stands_for_what_is_not_stated_of_it():
    named = express(
        changed(
            LLAMA_70B,
            model={key: None for key in LLAMA_70B["model"] if key != "name"} | {"name": "llama3-70b"},
        )
    )
    assert named.job.shape.parameters().total == express(LLAMA_70B).job.shape.parameters().total
    model = {
        "name": "DeepSeek-V3",
        "layers": 40,
        "hidden": 7168,
        "heads": 128,
        "experts": 256,
        "topk": 8,
        "moe_ffn": 2048,
    }
    shape = express({**QWEN, "model": model}).job.shape
    assert shape.latent and shape.experts
    assert (shape.latent.kv_rank, shape.experts.dense_layers, shape.experts.shared_experts) == (
        512,
        (0, 1, 2),
        1,
    )


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ({}, Experts(8, 1, 1024)),  # Switch's, arXiv:2101.03961: each token to one, as wide as the MLP was
        ({"topk": 2, "moe_ffn": 512}, Experts(8, 2, 512)),
        ({"shared_experts": 2}, Experts(8, 1, 1024, shared_experts=2, shared_ffn=1024)),
        ({"shared_ffn": 256}, Experts(8, 1, 1024)),
        ({"experts": 0}, None),
    ],
)
def test_what_is_not_stated_of_experts_is_switchs(stated, expected):
    model = {
        "name": "of tests",
        "layers": 4,
        "hidden": 512,
        "heads": 4,
        "ffn_hidden_size": 1024,
        "experts": 8,
    }
    run = {**QWEN, "model": model | stated, "parallel": {}, "gpus": 8}
    assert express(run).job.shape.experts == expected


@pytest.mark.parametrize(
    ("stated", "limit"),
    [({}, (8, 4)), ({"experts": 128}, (1, 1)), ({"n_group": 4, "topk_group": 2}, (4, 2))],
)
def test_a_token_is_kept_to_groups_of_experts_as_stated_else_as_of_the_same_experts(stated, limit):
    """deepseek_provider.py of Megatron-Bridge v0.1.0rc4 has moe_router_num_groups 8 and
    moe_router_group_topk 4."""
    experts = express(changed(RUNS["mbridge_275_DeepSeekV3_DGX-H100_1024"], model=stated)).job.shape.experts
    assert experts and (experts.groups, experts.top_groups) == limit


@pytest.mark.parametrize(("hidden", "gpt", "ffn"), [
    (4096, False, 11008), (5120, False, 13824), (6656, False, 17920), (8192, False, 22016),
    (4096, True, 16384),
])  # fmt: skip
def test_an_ffn_that_is_not_stated_is_llamas_or_gpts(hidden, gpt, ffn):
    """Those of LLaMA 7B, 13B, 33B and 65B (their config.json)."""
    assert usual_ffn(hidden, gpt) == ffn


def test_heads_that_tp_does_not_divide_are_padded():
    shape = express(
        changed(GPT_22B, model={"heads": 60, "kv_heads": 60, "head_dim": 96, "vocab": 50257})
    ).job.shape
    assert (shape.heads, shape.kv_heads, shape.vocab) == (64, 64, 51200)


def test_one_layer_of_a_mixture_is_priced_with_its_experts():
    run = changed(QWEN, measured={"layer_fwd_ms": 1.0, "layer_bwd_ms": 2.0, "step_seconds": None})
    case = express(run)
    assert (case.part, case.measured_seconds) == ("layer", 0.003)
    # on a median GPU; the slowest of 256 is 6% slower
    layer = Pricing(case.job, case.plan).unit("experts").total.total
    assert layer < result_of(run).predicted_seconds < 1.08 * layer


@pytest.mark.parametrize(("figure", "value"), [
    ("step_seconds", 16.0), ("step_ms", 16_000.0), ("samples_per_s", 8.0), ("tokens_per_s", 65_536.0),
    ("tokens_per_gpu_s", 1_024.0), ("tflops_per_gpu", 500.0), ("model_tflops_per_gpu", 500.0),
    ("tflops_per_gpu_hw", 625.0), ("mfu_pct", 50.0),
])  # fmt: skip
def test_every_figure_that_a_source_may_print_gives_the_same_step(figure, value, monkeypatch):
    """128 sequences of 8192 tokens on 64 GPUs of 1000 TFLOP/s that reach half of it: 16 seconds. A quarter
    more FLOPs is computed again, which the hardware's figure counts."""
    job, plan = express(LLAMA_70B).job, express(LLAMA_70B).plan
    gpu: Any = job.hardware
    job = replace(job, hardware=replace(gpu, peak_flops_per_second={"bf16": 1e15}))
    monkeypatch.setattr(measured, "model_flops", lambda job: 500e12 * 64 * 16)
    monkeypatch.setattr(measured, "recomputed_flops", lambda job, plan: 125e12 * 64 * 16)
    found, part = measured.measured_seconds({figure: value}, job, plan)
    assert found == pytest.approx(16) and part == "step"


@pytest.mark.parametrize(("figures", "seconds", "part"), [
    ({"layer_total_ms": 5.0, "layer_fwd_ms": 1.0}, 0.005, "layer"),
    ({"layer_fwd_ms": 1.0, "layer_bwd_ms": 2.0}, 0.003, "layer"),
    ({"layer_fwd_ms": 1.0}, 0.001, "layer forward"),
    ({"layer_bwd_ms": 2.0}, 0.002, "layer backward"),
])  # fmt: skip
def test_a_layers_passes_are_added_up_where_both_are_measured(figures, seconds, part):
    case = express(LLAMA_70B)
    found, of = measured.measured_seconds(figures, case.job, case.plan)
    assert found == pytest.approx(seconds) and of == part


@pytest.mark.parametrize(("figures", "size"), [
    ({"memory_gb": 60}, 60e9), ({"memory_gib": 60}, 60 * 2**30), ({}, None),
])  # fmt: skip
def test_a_sources_gb_are_a_thousand_millions_and_its_gib_are_not(figures, size):
    assert measured.measured_bytes(figures) == size


def test_tokens_a_second_give_the_seconds_and_a_run_without_any_counts_in_no_mean():
    tokens = changed(
        LLAMA_70B, measured={"step_seconds": None, "tokens_per_gpu_s": 128 * 8192 / (64 * 14.61)}
    )
    assert express(tokens).measured_seconds == pytest.approx(14.61)
    silent = result_of(changed(LLAMA_70B, measured={"step_seconds": None, "memory_gb": 60}))
    assert not silent.missed and summary([silent])["mean_absolute_step_error"] is None


def test_a_pair_of_runs_is_contrasted_where_the_seconds_of_both_were_measured():
    (a, b), of_memory = PAIRS[0], {"step_seconds": None, "memory_gb": 60}
    kept, again = changed(LLAMA_70B, id=a), changed(LLAMA_70B, id=b, recompute="full")
    (pair,) = summary([result_of(kept), result_of(changed(again, measured={"step_seconds": 20}))])[
        "contrasts"
    ]
    assert pair["pair"] == [a, b] and pair["measured_ratio"] == LLAMA_70B["measured"]["step_seconds"] / 20
    assert pair["predicted_ratio"] == pytest.approx(seconds(kept) / seconds(again))
    for runs in ([kept, changed(again, measured=of_memory)], [kept]):
        assert summary([*map(result_of, runs)])["contrasts"] == []


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"batch": {"global": 129}}, "a global batch of 129 cannot be cut into dp=2 parts"),
        ({"gpus": 60}, r"tp*pp*cp = 32 does not divide the run's 60 GPUs"),
        ({"parallel": {"pp": 16, "vp": 6}, "gpus": 128}, "80 layers cannot fill 96 stages"),
        ({"batch": {"sequence": None}}, "does not give the sequence length"),
        ({"model": None}, "does not give its model"),
        ({"model": {"layers": "many"}}, "layers must be a whole number, not 'many'"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(changes, says):
    assert says in result_of(changed(LLAMA_70B, **changes)).missed


@pytest.mark.filterwarnings("error")
def test_a_batch_of_less_than_a_microbatch_is_refused_before_recomputation_is_looked_for():
    less = changed(RUNS["dgxc2502_gpt175_fp8_2048"], batch={"micro": 24, "global": 120})
    assert less["recompute"] is None and "120 cannot be cut into dp=64 parts" in result_of(less).missed


@pytest.mark.parametrize("value", [None, "x", -1, 0, [], {}, 1.5, True, "8", float("nan"), float("inf")])
def test_no_value_of_a_run_ends_in_a_traceback(value):
    for table in ("hardware", "software", "model", "parallel", "batch", "measured"):
        for key in QWEN[table]:
            result_of(changed(QWEN, **{table: {key: value}}))
        result_of({**QWEN, table: value})
    for key in ("id", "gpus", "recompute", "precision", "unknown", "source"):
        result_of({**QWEN, key: value})


# ------------------------------------------------------------------------------------------------- mechanisms


def test_in_the_pairs_of_dualpipe_rows_go_to_experts_behind_the_other_microbatchs_compute():
    plan = Plan(dp=64, pp=8, ep=64, chunks=2, zero=1, schedule="dualpipev")
    job = replace(V3, global_batch=8192)
    step, alone = time_step(job, plan), time_step(job, replace(plan, schedule="zb-v"))
    assert step.breakdown["ep"] < 0.6 * alone.breakdown["ep"] and step.seconds < 0.9 * alone.seconds
    assert min(step.breakdown.values()) >= 0 and step.seconds > alone.breakdown["compute"]
    assert float(lower_bound(job, plan).seconds[0]) <= step.seconds
    dense = replace(job, shape=find_model("llama-3-70b"))
    assert (
        time_step(dense, replace(plan, ep=1)).seconds
        > 0.95 * time_step(dense, replace(plan, ep=1, schedule="zb-v")).seconds
    )


def test_latent_attentions_up_projections_again_keep_its_ranks_instead_of_its_heads():
    plan = Plan(dp=512, ep=64, recompute="selective")
    again, kept = (
        replace(V3, stack=replace(V3.stack, selective=modules)) for modules in (("mla_up_proj",), ())
    )
    bytes_less = peak_memory(kept, plan).activations - peak_memory(again, plan).activations
    # queries, keys and values of all heads; the ranks, and the key that heads share
    widths = 128 * (192 + 192 + 128) - (1536 + 512 + 64)
    layers = 61 + 1 - 1  # and the one that predicts a second token; the one that runs again holds them
    assert bytes_less == pytest.approx(layers * 4096 * widths * 2)
    more = Pricing(again, plan).unit("dense").recompute.total
    assert more > 0 == Pricing(kept, plan).unit("dense").recompute.total


def test_a_tiny_model_is_as_slow_as_its_launches_on_any_gpu():
    tiny = replace(V3, shape=find_model("gpt2"), sequence=256, global_batch=1)
    slow, fast = (
        time_step(replace(tiny, hardware=find_hardware(name)), Plan()).seconds for name in ("a100-80", "b200")
    )
    assert slow < 1.3 * fast
    assert fast > 12 * 3 * 8 * 33e-6, "12 layers, as much as three forward passes, of at least 8 kernels each"


def test_a_hybrid_of_another_depth_goes_on_with_its_pattern():
    run = {**LLAMA_70B, "model": {"name": "qwen3.5-27b", "layers": 16}}
    shape = shape_of(run, 1, STACKS["megatron-core"])
    assert [shape.kind(layer) for layer in range(16)] == (["linear-dense"] * 3 + ["dense"]) * 4


# ---------------------------------------------------------------------------------------- mixtures of experts


GROK = RUNS["dgxc2502_grok_bf16_512"]


@pytest.mark.parametrize("layers", [4, 48])
def test_a_model_with_windows_of_another_depth_goes_on_with_its_pattern(layers):
    """gpt-oss-20b has 24 layers, of which every second one sees the whole sequence."""
    run = {"model": {"name": "gpt-oss-20b", "layers": layers}, "batch": {"sequence": 4096}}
    shape = shape_of(run, 1, STACKS["megatron-core"])
    kinds = [shape.kind(layer) for layer in range(layers)]
    assert kinds == ["window-experts", "experts"] * (layers // 2)


@pytest.mark.parametrize(
    ("parallel", "degree", "way"),
    [
        ({}, 2, "ring"),
        ({"cp_comm_type": "a2a"}, 2, "all-to-all"),
        ({"cp_comm_type": "all_gather"}, 2, "all-gather"),
        ({"cp_comm_type": "a2a+p2p"}, 2, "ring"),
        ({"cp_comm_type": "a2a", "cp": 4, "pp": 2}, 4, "ring"),  # 8 heads of keys, and tp 4
        ({"tp": 1, "cp": 1, "sp": 16}, 16, "all-to-all"),  # with two copies of each head of keys
        ({"tp": 1, "cp": 1, "sp": 8}, 8, "all-to-all"),
        ({"sp": 8}, 2, "ring"),  # with tp it is Megatron's
    ],
)
def test_a_sequence_is_shared_as_stated_where_its_heads_can_be(parallel, degree, way):
    case = express(changed(LLAMA_70B, parallel={"dp": None, **parallel}))
    assert (case.plan.cp, case.job.stack.context_parallel) == (degree, way)


def test_experts_are_cut_by_tp_in_megatron_core_unless_etp_or_the_dispatcher_says_otherwise():
    """megatron/core/parallel_state.py: expert_tensor_parallel_size is that of tp by default."""
    assert express(GROK).job.stack.expert_tp
    assert not express(changed(GROK, parallel={"etp": 1})).job.stack.expert_tp
    assert not express(changed(GROK, software={"dispatcher": "deepep"})).job.stack.expert_tp
    assert not express(QWEN).job.stack.expert_tp


def test_cut_experts_take_as_many_bytes_as_experts_spread_over_tp_and_their_rows_go_over_tp_besides():
    cut, whole = express(GROK), express(changed(GROK, parallel={"etp": 1}))
    parts = [Pricing(case.job, case.plan).groups for case in (cut, whole)]
    assert parts[0].experts_dp.ranks * cut.plan.tp == parts[1].experts_dp.ranks
    assert peak_memory(cut.job, cut.plan).weights < peak_memory(whole.job, whole.plan).weights
    assert parts[0].ep.stride == cut.plan.tp
    assert "tp" in Pricing(cut.job, cut.plan).unit("experts").forward


def test_a_plain_all_to_all_crosses_to_a_node_once_for_every_choice():
    plain, once = (
        Pricing(case.job, case.plan).unit("experts").forward["ep"]
        for dispatcher in ("alltoall", "deepep")
        for case in [express(changed(GROK, parallel={"etp": 1}, software={"dispatcher": dispatcher}))]
    )
    assert plain > once


@pytest.mark.parametrize(
    ("release", "model", "gpu", "precision", "switches"),
    [
        ("25.09", "deepseek-v3", "H100", "FP8", ("deepep", "", True, False)),
        ("25.11", "qwen3-235b-a22b", "GB300", "BF16", ("hybridep", "preprocess", False, False)),
        ("26.02.01", "qwen3-235b-a22b", "GB200", "MXFP8", ("hybridep", "router", False, False)),
        ("26.04", "qwen3-235b-a22b", "B200", "MXFP8", ("alltoall", "", False, False)),
        ("26.06", "qwen3-235b-a22b", "GB200", "BF16", ("hybridep", "router", False, False)),
        ("26.06.01", "qwen3-235b-a22b", "GB200", "MXFP8", ("hybridep", "step", True, True)),
        ("26.02", "deepseek-v3", "B300", "MXFP8", ("hybridep", "", False, False)),
        ("26.08", "kimi-k2", "GB300", "MXFP8", ("hybridep", "", False, False)),
        ("26.04", "llama3-8b", "GB300", "NVFP4", ("alltoall", "step", False, False)),
        ("26.04", "llama3-70b", "GB300", "NVFP4", ("alltoall", "", False, False)),
    ],
)
def test_a_releases_recipes_have_their_switches(release, model, gpu, precision, switches):
    """NVIDIA-NeMo/Megatron-Bridge, scripts/performance/configs at the release's tag."""
    software = {"framework": f"NeMo Megatron-Bridge {release} NeMo Container"}
    run = {"software": software, "model": {"name": model}, "hardware": {"gpu": gpu}, "precision": precision}
    stack = stack_of(run | {"parallel": {}})
    assert (stack.dispatcher, stack.graphs, stack.hides_dispatch, stack.fused_experts) == switches


@pytest.mark.parametrize(
    ("model", "precision", "stated", "expected"),
    [
        ("llama3-70b", "NVFP4", {}, ("backward", False, 10)),
        ("llama3-70b", "MXFP8", {}, ("all", False, 10)),
        ("llama3-70b", "MXFP8", {"fused_loss": "no"}, ("all", False, 24)),
        ("deepseek-v3", "MXFP8", {}, ("backward", True, 10)),
    ],
)
def test_all_bridges_recipes_have_the_fused_loss_and_some_no_userbuffers(model, precision, stated, expected):
    """tp_comm_overlap, enable_megatron_core_experimental, cross_entropy_fusion_impl. Transformer Engine's
    loss reads logits twice, writes gradients, and scales them: 2 * (2 + 1 + 2) bytes."""
    software = {"framework": "NeMo Megatron-Bridge 26.04 NeMo Container", **stated}
    run = {"software": software, "model": {"name": model}, "precision": precision, "parallel": {}}
    stack = stack_of(run | {"hardware": {"gpu": "GB200"}})
    assert (stack.tp_overlap, stack.fused_mask, stack.logit_bytes) == expected


def test_simumax_overlaps_nothing_and_sends_a_mixtures_rows_as_its_scripts_say():
    """run_pretrain_deepseekv2.sh: --moe-token-dispatcher-type alltoall, --moe-permute-fusion,
    --moe-expert-capacity-factor 1."""
    job = express(RUNS["smx_b200_deepseekv2_tp1_ep8_pp1_dp8_l4_mbc32_cef"]).job
    assert (job.stack.dispatcher, job.stack.fused_permutation, job.capacity_factor) == ("alltoall", True, 1)
    dense = express(RUNS["smx_b200_llama3_405b_l4_tp1_pp2_dp4_mbc32_cef"]).job
    assert dense.capacity_factor is None
    for stack in (job.stack, dense.stack):  # no --overlap-grad-reduce, no --overlap-param-gather
        assert not stack.dp_overlap and not stack.gathers_first


def test_dgxc_benchmarks_have_the_switches_of_the_release_that_their_source_names():
    """NVIDIA/dgxc-benchmarking, 25.02: Grok's configure.sh sets NVTE_FUSED_ATTN=0, its yaml no fused loss and
    moe_expert_capacity_factor 1; Nemotron's yaml recomputes selectively, GPT-3's has dropout."""
    names = ("grok_bf16_512", "nem340_fp8_512", "gpt175_bf16_256")
    grok, nemotron, gpt = (express(RUNS[f"dgxc2502_{name}"]) for name in names)
    later = express(RUNS["dgxc2505_grok_h100_bf16_512"])
    assert [one.job.stack.attention for one in (grok, nemotron, gpt)] == ["flash2", "flash2", "cudnn"]
    assert [one.job.stack.logit_bytes for one in (grok, nemotron, gpt, later)] == [52, 24, 52, 10]
    assert [one.job.stack.dropout for one in (grok, nemotron, gpt)] == [False, False, True]
    assert grok.job.capacity_factor == later.job.capacity_factor == 1
    assert (nemotron.plan.recompute, nemotron.job.stack.selective) == ("selective", ("core_attn",))
    assert later.job.stack.attention == "cudnn" and grok.plan.recompute == "none"


def test_what_a_run_states_of_its_software_counts_before_its_release():
    run = RUNS["mbridge_050_Qwen3_235B_a22B_DGX-GB300_256"]
    stated = {"dispatcher": "allgather", "cuda_graphs": False, "hides_dispatch": False, "capacity_factor": 2}
    job = express(changed(run, software=stated)).job
    assert (job.stack.dispatcher, job.stack.graphs, job.stack.hides_dispatch) == ("allgather", "", False)
    assert job.capacity_factor == 2 and express(run).job.capacity_factor is None


TITAN = RUNS["titan_t5_Interleaved1F1B"]


def test_torchtitan_cuts_a_pipeline_rank_in_two_where_nobody_says_otherwise():
    """torchtitan/distributed/pipeline_parallel.py: stages_per_rank = 1 if is_single_stage_schedule else 2."""
    assert express(TITAN).plan.chunks == 2
    assert express(changed(TITAN, parallel={"vp": 4})).plan.chunks == 4
    assert express(RUNS["titan_t5_1F1B"]).plan.chunks == 1


def test_a_run_may_say_how_many_layers_each_stage_has():
    run = RUNS["titan_t5_1F1B"]
    even, stated = [15, *[16] * 6, 15], [16] * 7 + [14]
    unsaid, said, other = (
        seconds(changed(run, parallel={"stage_layers": layers})) for layers in (None, even, stated)
    )
    assert unsaid == said != other
    for wrong in ([16] * 7, ["many"] * 8):
        assert "change --stage-layers" in result_of(changed(run, parallel={"stage_layers": wrong})).missed


def test_a_run_may_say_what_it_keeps_on_the_host():
    run = RUNS["titan_t1_eager"]
    away, plain = (express(one).job for one in (changed(run, offload="activations", offload_share=0.5), run))
    assert (away.offload, away.activations_away) == (("activations",), 0.5)
    assert not plain.activations_away


@pytest.mark.parametrize(("framework", "zero", "away"), [
    ("deepspeed 2023", 3, ("optimizer", "weights")),
    ("deepspeed 2023", 2, ("optimizer",)),
    ("pytorch 2.5", 3, ("optimizer", "weights")),
    ("pytorch 2.5", 2, ("optimizer",)),
    ("megatron-core 0.12", 3, ("optimizer",)),
])  # fmt: skip
def test_weights_on_the_host_count_where_they_are_priced(framework, zero, away):
    software, parallel = {"framework": framework}, {"zero": zero}
    run = changed(RUNS["titan_t1_eager"], offload="optimizer, weights", software=software, parallel=parallel)
    assert express(run).job.offload == away


@pytest.mark.parametrize(("framework", "away"), [
    ("torchtitan 0.2", ("optimizer", "weights")), ("deepspeed 2023", ("weights",)),
])  # fmt: skip
def test_a_run_of_fsdp2_whose_weights_are_on_the_host_has_its_optimizer_there_too(framework, away):
    software = {"framework": framework}
    run = changed(RUNS["titan_t1_eager"], offload="weights", software=software, parallel={"zero": 3})
    assert express(run).job.offload == away


@pytest.mark.parametrize(
    ("framework", "stated", "alone"),
    [
        ("NeMo 25.02", None, True),
        ("NeMo 25.02", "no", False),
        ("Megatron-Core 0.12", None, False),
        ("Megatron-Core 0.12", True, True),
    ],
)
def test_whether_weights_are_kept_in_8_bits_alone_is_the_frameworks_habit_or_stated(framework, stated, alone):
    software = {"framework": framework, "fp8_param_gather": stated}
    assert express(changed(QWEN, software=software, precision="fp8")).job.casts_weights_alone is alone


def test_pytorchs_fsdp_keeps_weights_and_gradients_whole_in_a_pipeline():
    """torch/distributed/pipelining/stage.py, backward_maybe_with_nosync: 2 bytes for each weight of the
    rank's stages, and 4 for its gradient, beside the shards."""
    case = express(RUNS["titan_t5_1F1B"])
    whole = peak_memory(case.job, case.plan).buffers
    by_layer = replace(case.job, stack=replace(case.job.stack, whole_in_pipeline=False))
    parameters = case.job.shape.parameters().total / (case.plan.tp * case.plan.pp)
    assert whole > 0.9 * 6 * parameters > 5 * peak_memory(by_layer, case.plan).buffers


@pytest.mark.parametrize(("framework", "size"), [("torchtitan 2024-12", 4), ("torchtitan 2025-06", 1)])
def test_torchtitans_pipeline_has_as_many_microbatches_as_ranks_and_later_one_sequence_each(framework, size):
    # torchtitan/parallelisms/pipelining_utils.py of 2024; pull request 1073
    run = changed(RUNS["titan_t5_1F1B"], software={"framework": framework})
    assert express(run).plan.micro_batch == size


def test_recomputation_that_nobody_states_is_of_the_fewest_layers_with_which_a_run_fits():
    case = express(RUNS["mbridge_073_LLAMA3_70B_DGX-GB300_64"])
    layers = case.plan.recompute_layers
    fewer = replace(case.plan, recompute_layers=layers - 1, recompute="full" if layers > 1 else "none")
    assert layers and legal_and_fits(case.job, case.plan) and not legal_and_fits(case.job, fewer)
    stated = express(changed(RUNS["mbridge_073_LLAMA3_70B_DGX-GB300_64"], recompute="none"))
    assert stated.plan.recompute == "none"


def test_what_a_note_says_of_async_tp_and_a_fused_loss_is_obeyed_unless_the_software_says_otherwise():
    run = RUNS["titan_t4_2D+asyncTP"]
    silent = changed(run, software={"async_tp": False})
    assert [express(one).job.stack.tp_overlap for one in (run, silent)] == ["products", "none"]
    assert express(RUNS["smx_b200_llama3_70b_l12_tp8_pp1_dp1_mbc8_cef"]).job.stack.logits_kept == 4


def test_memory_is_held_against_what_the_framework_prints():
    """PyTorch's blocks in torchtitan, its tensors elsewhere; KempnerForge's GB are 1024**3 bytes."""
    for name, unit in (("titan_t1_eager", "reserved"), ("kempner_mfu_04", "allocated")):
        case = express(RUNS[name])
        assert predicted_bytes(case) == getattr(peak_memory(case.job, case.plan), unit)
    assert predicted_bytes(replace(case, widened=2)) == 2 * predicted_bytes(case)
    assert express(RUNS["kempner_mfu_04"]).measured_bytes == 61.1 * 2**30


@pytest.mark.parametrize(
    ("stated", "framework", "tp", "ep", "cuts"),
    [
        *[
            (None, "megatron-core", 2, 8, True),
            (None, "nemo 25.02", 8, 2, True),
            (2, "megatron-core", 2, 8, True),
            (1, "megatron-core", 2, 8, False),
            (2, "megatron-core", 4, 8, False),
        ],
        *[
            (None, "torchtitan", 2, 8, False),
            (None, "megatron-core", 1, 8, False),
            (None, "nemo", 2, 1, False),
        ],
    ],
)
def test_tp_cuts_megatrons_experts_where_nobody_says_otherwise_and_there_are_ranks_for_it(
    stated, framework, tp, ep, cuts
):
    assert cuts_experts(stated, framework, tp, ep) == cuts


def test_a_microbatch_that_nobody_states_is_the_quickest_that_fits():
    run = RUNS["mcore_weak_32B"]
    found = {size: express(changed(run, batch={"micro": size})) for size in (1, 2, 4)}
    quickest = min(found.values(), key=lambda case: time_step(case.job, case.plan).seconds)
    assert express(run).plan == quickest.plan != found[1].plan


@pytest.mark.parametrize(
    ("stated", "name"),
    [
        ("all-to-all", "alltoall"),
        ("all-gather", "allgather"),
        ("DeepEP", "deepep"),
        ("flex", "deepep"),
        ("hybrid", "hybridep"),
        ("flex, HybridEP", "hybridep"),
        ("deepep (flex dispatcher)", "deepep"),
        ("DeepEP all-to-all kernels", "deepep"),
        ("Megatron All-Gather", "allgather"),
        ("NCCL a2a", "alltoall"),
        ("none", None),
        ("telepathy", None),
    ],
)
def test_a_dispatcher_is_known_by_the_words_that_runs_use(stated, name):
    assert dispatcher_named(stated) == name


@pytest.mark.parametrize("stated", ["telepathy", "x" * 5000, 7, ["deep"]])
def test_a_dispatcher_that_nobody_knows_is_the_releases_and_said_to_be(stated):
    run = changed(RUNS["zoo_qwen235_4"], software={"dispatcher": stated})
    assert express(run).job == express(changed(run, software={"dispatcher": None})).job
    (note,) = result_of(run).as_json()["notes"]
    assert re.match(r"its dispatcher .{1,102} is not known here, and counts as not stated", note)


@pytest.mark.parametrize("nothing", [None, "", "none", "unknown", "n/a", False])
def test_a_run_that_states_no_dispatcher_has_nothing_to_be_told(nothing):
    assert not express(changed(QWEN, software={"dispatcher": nothing})).notes


@pytest.mark.parametrize(("word", "says"), [
    ("no", False), ("No", False), ("FALSE", False), ("off", False), ("disabled", False), ("0", False),
    ("yes", True), ("True", True), ("on", True), ("1", True), ("yes, by hand", True),
])  # fmt: skip
def test_a_switch_given_as_a_word_is_what_the_word_says(word, says):
    bridge = changed(QWEN, software={"framework": "Megatron-Bridge 26.02", "hides_dispatch": word})
    assert express(bridge).job.stack.hides_dispatch is says
    assert not express(bridge).notes
    assert bool(express(changed(QWEN, software={"fused_loss": word})).job.stack.logits_kept == 4) is says
    graphs = express(changed(QWEN, software={"cuda_graphs": word})).job.stack.graphs
    assert graphs == ("step" if says else "")


@pytest.mark.parametrize(("table", "key"), [
    ("software", "flash_attention"), ("software", "compiled"), ("parallel", "sp"), ("model", "tied")
])  # fmt: skip
@pytest.mark.parametrize("run", [LLAMA_70B, RUNS["titan_t1_compile"]], ids=lambda run: run["id"])
def test_yes_and_no_are_true_and_false_wherever_they_stand(run, table, key):
    for says, words in ((True, ("yes", "TRUE")), (False, ("No", "false"))):
        meant = express(changed(run, **{table: {key: says}})).job
        assert all(express(changed(run, **{table: {key: word}})).job == meant for word in words)


def test_a_run_that_recomputes_nothing_is_not_of_its_releases_recipe():
    kimi = changed(QWEN, model={"name": "kimi k2"}, software={"framework": "Megatron-Bridge 26.02"})
    for hopper in ("no", False, "none"):
        run = changed(kimi, hardware={"gpu": "H100 SXM"}, recompute=hopper)
        assert express(run).plan.recompute == "none"


def test_what_is_not_known_of_a_runs_software_is_said_in_the_table(capsys):
    words = {"dispatcher": "telepathy", "hides_dispatch": "perhaps", "cuda_graphs": "some"}
    results = [result_of(changed(QWEN, software=words))]
    assert results[0].predicted_seconds == seconds(QWEN)
    show(results, runs=True)
    said = capsys.readouterr().out
    assert all(
        f"its {key} '{word}' is not known here" in " ".join(said.split()) for key, word in words.items()
    )


@pytest.mark.parametrize("word", ["0 layers", "inf", "x" * 300, ["a"], {"a": 1}, True, 10**400])
@pytest.mark.parametrize(("table", "key"), [
    ("parallel", "shards"), ("parallel", "tp"), ("parallel", "vp"), ("software", "capacity_factor"),
    ("software", "dispatcher"), ("software", "cuda_graphs"), ("hardware", "memory_bandwidth_gb_per_s"),
])  # fmt: skip
def test_whatever_stands_in_a_field_a_run_is_priced_or_says_why_not(table, key, word):
    result = result_of(changed(QWEN, **{table: {key: word}}))
    assert result.predicted_seconds or result.missed


def test_the_few_keys_of_the_documents_example_predict_what_its_whole_record_does():
    (short,) = read_cases(DOCS / "runs_example.json")
    shown = (DOCS / "validation.md").read_text("utf-8").split("```json\n")[1].split("```")[0]
    assert json.loads(shown) == [short]
    few, all_keys = result_of(short), result_of(RUNS[short["id"]])
    assert (few.predicted_seconds, few.predicted_bytes) == (
        all_keys.predicted_seconds,
        all_keys.predicted_bytes,
    )
    assert (few.measured_seconds, few.measured_bytes) == (all_keys.measured_seconds, all_keys.measured_bytes)


def test_a_file_whose_runs_have_no_measured_step_says_so(capsys):
    show([result_of(changed(QWEN, measured={"step_seconds": None, "model_tflops_per_gpu": None}))], runs=True)
    assert "1 run, none with a measured step." in capsys.readouterr().out


@pytest.mark.parametrize(("words", "graphs"), [
    ("attn, moe_router, moe_preprocess", "router"),
    (["moe_router", "moe_preprocess"], "preprocess"),
    ("router", "router"),
    ("full_iteration", "step"),
    ("attn", None),
    ("moe_router", None),
])  # fmt: skip
def test_graphs_are_read_by_their_scopes_or_by_a_word_for_them(words, graphs):
    assert graphs_stated(words) == graphs


def test_a_framework_that_nobody_knows_stands_for_another_and_widens_the_bar():
    known = result_of(QWEN)
    other = result_of(changed(QWEN, software={"framework": "Telepathy 2025"}))
    assert known.error_bar and other.error_bar == pytest.approx(1.1 * known.error_bar)
    assert other.notes == ("its framework 'Telepathy 2025' is not known here, and counts as not stated.",)
