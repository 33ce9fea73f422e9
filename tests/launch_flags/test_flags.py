"""Claims about launch flags: what is written can be read back, every name is the framework's, and nothing is
dropped in silence."""

import ast
import json
import math
import sys
import types
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from ndparallel.base.errors import UserError
from ndparallel.commands.command_line import main
from ndparallel.hardware.accelerator import find_hardware
from ndparallel.launch_flags import fields
from ndparallel.launch_flags.frameworks import FRAMEWORKS
from ndparallel.launch_flags.frozen import frozen, megatron_flags
from ndparallel.launch_flags.megatron.beyond import ANOTHER_MODEL, ASSUMED_WORDS, BEYOND
from ndparallel.launch_flags.megatron.read import read_megatron
from ndparallel.launch_flags.megatron.rules import ATTENTION, GRAPHED, PAIRED, dispatcher_of
from ndparallel.launch_flags.megatron.write import emit_megatron, pipeline_flags
from ndparallel.launch_flags.options import launch_script
from ndparallel.launch_flags.shell.reader import read_script
from ndparallel.launch_flags.torchtitan.models import LONGEST, MODELS
from ndparallel.launch_flags.torchtitan.write import emit_torchtitan
from ndparallel.pipeline.catalog import names_in
from ndparallel.planner.fitted_software import software_on
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.legality import why_not
from ndparallel.planner.models.presets import find_model, preset, presets
from ndparallel.planner.models.shape import ModelShape
from ndparallel.planner.options import overlapping
from ndparallel.planner.prediction import predict
from ndparallel.planner.software import STACKS
from ndparallel.planner.stages import layers_by_stage, padded_vocab, split_of
from ndparallel.search.search import search
from ndparallel.validation.words.software import graphs_stated
from tests.support.random_plans import hybrids

H100 = find_hardware("h100")
NAMES = [
    "gpt2",
    "llama-3-8b",
    "llama-3-405b",
    "qwen2-7b",
    "qwen3-32b",
    "mistral-7b",
    "mixtral-8x7b",
    "qwen2-57b-a14b",
    "deepseek-v2",
    "deepseek-v3",
    "qwen3.5-27b",
    "qwen3.5-397b-a17b",
]
SIZES = (
    "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 --max-position-embeddings "
    "4096 --vocab-size 32000"
)
LINE = (
    f"torchrun --nnodes 2 --nproc-per-node 8 pretrain_gpt.py {SIZES} --micro-batch-size 1 "
    "--global-batch-size 64"
)


# what CUDA graphs can hold, by whether there are experts, and a capacity factor
GRAPHS_OF = {
    (False, False): ("", "step"),
    (True, False): ("", "router", "preprocess"),
    (True, True): ("", "router", "preprocess", "step"),
}


def job_of(
    name: str = "llama-3-8b", software: str = "megatron-core", batch: int = 64, **changes
) -> TrainingJob:
    return TrainingJob(
        preset(name),
        H100,
        STACKS[software],
        4096 if preset(name).position == "rotary" else 1024,
        batch,
        **changes,
    )


def plain(shape: ModelShape) -> ModelShape:
    """Without what no flag says: where a model is from, and into how many parts its shared experts are
    cut."""
    some = shape.experts
    if some and some.shared_experts:
        some = replace(some, shared_experts=1, shared_ffn=some.shared_experts * some.shared_ffn)
    return replace(shape, name="", source="", notes=(), experts=some)


def powers(most: int) -> st.SearchStrategy[int]:
    return st.integers(0, most).map(lambda power: 2**power)


@st.composite
def jobs_and_plans(draw) -> tuple[TrainingJob, Plan]:
    """Any legal plan that Megatron-Core has: 1F1B or interleaved, all degrees, and all of ZeRO
    outside pipelines."""
    name = draw(st.sampled_from(NAMES))
    pp, chunks = draw(
        st.sampled_from([(1, 1), (2, 1), (3, 1), (4, 1), (8, 1), (2, 2), (4, 2), (4, 3), (16, 1)])
    )
    tp, zero, cp, dp = (
        draw(powers(3)),
        draw(st.sampled_from([0, 1, 2, 3, 3] if pp == 1 else [0, 1])),
        draw(powers(2)),
        draw(powers(5)),
    )
    plan = Plan(
        tp=tp,
        pp=pp,
        dp=dp,
        cp=cp,
        ep=draw(powers(4)) if preset(name).experts else 1,
        chunks=chunks,
        micro_batch=draw(powers(2)),
        zero=zero,
        shards=draw(st.sampled_from([dp * cp // 2, 0])) if zero == 3 and dp * cp > 2 else 0,
        sequence_parallel=tp > 1 and (preset(name).experts is not None or draw(st.booleans())),
        recompute=(recompute := draw(st.sampled_from(["none", "selective", "full"]))),
        recompute_layers=draw(st.integers(0, 4)) if recompute == "full" else 0,
        schedule="interleaved" if chunks > 1 else "1f1b",
    )
    job = job_of(
        name,
        batch=plan.dp * plan.micro_batch * draw(st.integers(pp, 4 * pp)),
        dtype=draw(st.sampled_from(["bf16", "fp8"])),
    )
    job = replace(job, shape=draw(hybrids(job.shape))) if job.shape.linear else job
    assume(job.shape.output_gate != "head")  # which Megatron-Core has no flags for
    stack = replace(
        job.stack,
        attention=draw(st.sampled_from(["cudnn", "flash2", "unfused"])),
        dropout=draw(st.booleans()),
    )
    if job.shape.experts:
        stack = replace(stack, dispatcher=draw(st.sampled_from([*fields.DISPATCHERS])))
        stack = replace(stack, **{name: draw(st.booleans()) for name in fields.OF_MIXTURES})
        stack = replace(stack, expert_tp=plan.tp > 1 and draw(st.booleans()))
    stack = replace(stack, gradient_bytes=draw(st.sampled_from([2, 4])))
    cut = job.shape.kv_heads % (tp * cp) == 0 and not job.shape.latent  # by heads, as an all-to-all does
    ways = ("ring", "all-gather", *["all-to-all"] * cut) if cp > 1 else ("ring",)
    stack = replace(stack, context_parallel=draw(st.sampled_from(ways)))
    if plan.recompute == "selective":
        plan = replace(
            plan, recompute_modules=draw(st.sampled_from([(), ("layernorm", "mlp"), ("core_attn", "moe")]))
        )
    assume(job.dtype == "bf16" or "layernorm" not in plan.recompute_modules)  # with delayed scales
    capacity = draw(st.sampled_from([None, 1.25])) if job.shape.experts else None
    hidden = draw(st.sampled_from(["tp,cp,dp,pp", "tp,cp,pp", "tp,cp,dp"]))
    assume("pp" in hidden or pp != 2 or chunks == 1)
    stack = replace(
        overlapping(stack, hidden),
        hides_dispatch=plan.ep > 1 and draw(st.booleans()),
        graphs=draw(st.sampled_from(GRAPHS_OF[bool(job.shape.experts), bool(capacity)])),
    )
    job = replace(job, stack=stack, capacity_factor=capacity)
    assume(not any(rule.breaks(job, plan) for rule in (*PAIRED, *GRAPHED, *ATTENTION)))
    assume(not [*why_not(job, plan)] and (plan.gpus <= 8 or plan.gpus % 8 == 0))
    return job, plan


MIXTRAL = job_of("mixtral-8x7b")
PIPELINE = Plan(pp=4, dp=8, ep=8, chunks=2, zero=1, schedule="interleaved")
BESIDE = replace(MIXTRAL, stack=replace(MIXTRAL.stack, hides_dispatch=True, graphs="router"))


@example((BESIDE, PIPELINE))
@example((job_of(), Plan(cp=2, dp=4, zero=3, shards=4)))
@example(
    (
        job_of("llama-3-405b", "nemo", 63),
        Plan(tp=8, pp=9, dp=1, chunks=7, sequence_parallel=True, schedule="interleaved"),
    )
)
@given(jobs_and_plans())
@settings(max_examples=200, deadline=None)
def test_emitted_flags_read_back_give_the_same_plan(asked):
    job, plan = asked
    found = read_megatron(emit_megatron(job, plan), H100)
    assert found.plan == plan
    assert plain(found.job.shape) == plain(job.shape)
    as_run = on(job, dispatcher=dispatcher_of(job, plan)) if job.shape.experts else job
    assert replace(found.job, shape=job.shape) == as_run
    # nothing was left out, and assumed only what Megatron has no flag for: to be what it is by itself
    words = " ".join(found.notes)
    for silent in ("--swiglu: no, GELU without a gate", "--disable-bias-linear: no, every matrix has a bias"):
        words = words.replace(silent, "")
    assert words.strip(" ;.") in ("", "Not given, so as Megatron-Core 0.19.2 has it:")


@pytest.mark.parametrize(
    ("room", "said"),
    [
        (-1e9, "careful: the fullest GPU lacks 1.00 GB for this plan.\n"),
        (1e6, "It fits, but is tight"),
        (40e9, ""),
    ],
)
def test_a_script_is_written_with_a_word_of_care_where_its_plan_fits_hardly_or_not(room, said, capsys):
    job, plan = job_of(), Plan(tp=8)
    memory = float(predict(job, plan).fullest.total) + room
    found = predict(replace(job, hardware=replace(H100, memory_bytes=memory)), plan)
    assert launch_script("megatron", found)["launch"] == emit_megatron(job, plan)
    printed = capsys.readouterr().err
    assert said in printed and bool(said) == bool(printed)


@pytest.mark.parametrize("gpus, hosts", [(72, 18), (64, 16), (256, 64)])
def test_an_nvl72_is_launched_on_hosts_of_4(gpus, hosts):
    job = replace(job_of(), hardware=find_hardware("gb200"))
    script = emit_megatron(replace(job, global_batch=gpus), Plan(dp=gpus))
    assert f"torchrun --nnodes {hosts} --nproc-per-node 4 \\" in script
    assert read_megatron(script, job.hardware).plan.gpus == gpus


@given(jobs_and_plans())
@settings(max_examples=50, deadline=None)
def test_every_emitted_flag_is_one_of_the_release_and_has_as_many_values_as_it_takes(asked):
    words = max(read_script(emit_megatron(*asked)).commands, key=len)
    words = words[words.index("pretrain_gpt.py") + 1 :]
    for flag, after in zip(words, [*words[1:], "--"]):
        if flag.startswith("--"):
            assert megatron_flags()[flag] in (("none",) if after.startswith("--") else ("one", "some")), flag


def test_every_flag_in_the_tables_is_one_of_the_release():
    numbers = [flag for flags in fields.NUMBERS.values() for flag in flags.values()]
    words = [
        flags
        for choices in fields.CHOICES.values()
        for choice in choices.values()
        for flags in choice.values()
    ]
    known = {word for flags in words for word in flags.split() if word.startswith("--")} | {
        *numbers,
        fields.CHUNKS,
        fields.LAYOUT,
        fields.REPLICAS,
    }
    assert (known | {*ANOTHER_MODEL, *BEYOND, *ASSUMED_WORDS}) <= megatron_flags().keys()
    assert len(megatron_flags()) == 846 and frozen("megatron")["version"] == "0.19.2"


@pytest.mark.parametrize(
    ("way", "written"),
    [("ring", None), ("all-gather", "--cp-comm-type all_gather"), ("all-to-all", "--cp-comm-type a2a")],
)
def test_layers_with_a_window_have_no_ring_of_cp_ranks(way, written):
    """attn_forward_func_with_cp in Transformer Engine's context_parallel.py asserts so in the first step."""
    mistral = on(job_of("mistral-7b"), context_parallel=way)
    assert written or "go round cp ranks; take --cont" in FRAMEWORKS["megatron"].refusal(mistral, Plan(cp=2))
    assert not written or f"  {written} " in emit_megatron(mistral, Plan(cp=2))
    assert "--cp-comm-type" not in emit_megatron(on(job_of(), context_parallel="ring"), Plan(cp=2))


def test_a_search_recommends_no_ring_of_cp_ranks_for_layers_with_a_window():
    long = replace(job_of("mistral-7b", batch=32), sequence=32768)
    assert search(long, 32, frameworks=["megatron"]).best.plan.cp == 1


def test_unfused_attention_has_no_cp_ranks_in_transformer_engine():
    """get_attention_backend in dot_product_attention/utils.py: "it does not support context parallelism"."""
    unfused = on(job_of(), attention="unfused")
    assert "unfused attention over cp ranks" in FRAMEWORKS["megatron"].refusal(unfused, Plan(cp=2))
    assert not FRAMEWORKS["megatron"].refusal(unfused, Plan(dp=2))


@pytest.mark.parametrize(
    ("model", "gpu", "flag"),
    [
        ("deepseek-v3", "a100-80", "flash"),
        ("nemotron-4-340b", "b200", "flash"),
        ("nemotron-4-340b", "h100", "fused"),
        ("qwen3.5-27b", "l40s", "unfused"),
    ],
)
def test_the_attention_that_is_priced_trains_the_models_heads_and_is_written(model, gpu, flag, capsys):
    words = f"plan --model {model} --hardware {gpu} --gpus 8 --global-batch 8 --emit megatron --tp 8"
    assert main(words.split()) == 0
    assert f"--attention-backend {flag} " in (script := capsys.readouterr().out)
    hardware = find_hardware(gpu)
    kernel = read_megatron(script, hardware).job.stack.attention
    silent = script.replace(f"--attention-backend {flag} ", "")
    assert (
        fields.ATTENTION[kernel].endswith(flag)
        and kernel == read_megatron(silent, hardware).job.stack.attention
    )


def test_a_kernel_that_cannot_train_the_models_heads_is_refused():
    job = replace(job_of("deepseek-v3"), hardware=find_hardware("a100-80"))
    said = "training with cudnn attention of heads of 192 and 128 on a100-80; it has flash2 and unfused"
    with pytest.raises(UserError, match=said):
        emit_megatron(job, Plan(dp=8))
    assert "Transformer Engine 2.17" in emit_megatron(on(job, attention="flash2"), Plan(dp=8))


def test_uneven_stages_are_written_out_letter_by_letter():
    text = emit_megatron(job_of("deepseek-v3", batch=1024), Plan(pp=16, dp=64, ep=64, zero=1))
    assert '"Et*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*1mL"' in text
    assert "--mtp-num-layers 1" in text
    assert layers_by_stage(61, 16) == [*[4] * 15, 1] == layers_by_stage(61, 16, prediction_layers=1)
    assert layers_by_stage(126, 16) == [7, *[8] * 14, 7]
    assert '--moe-layer-freq "([0]*3+[1]*58)"' in text


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"schedule": "zb-h1"}, "no flags for the schedule zb-h1"),
        ({"schedule": "gpipe"}, "it has 1f1b, and interleaved with several chunks"),
    ],
)
def test_a_schedule_that_megatron_does_not_have_is_refused_in_a_sentence(changes, said):
    with pytest.raises(UserError, match=said):
        emit_megatron(job_of(), Plan(pp=4, dp=4, **changes))


def test_megatron_is_told_the_groups_of_microbatches_that_it_would_not_choose():
    plan = Plan(pp=4, dp=2, chunks=2, schedule="interleaved")
    flag = "--microbatch-group-size-per-virtual-pipeline-stage"
    assert flag not in emit_megatron(job_of(batch=16), plan), "8 go round in groups of pp"
    text = emit_megatron(job_of(batch=18), plan)
    assert f"{flag} 5 " in text, "9 in groups of 5 and 4"
    two = Plan(pp=2, dp=4, chunks=2, schedule="interleaved")
    assert f"{flag} 3 " in emit_megatron(job_of(batch=20), two), "5 in groups of 3 and 2"
    assert not any(flag in note for note in read_megatron(text, H100).notes)


@pytest.mark.parametrize(
    ("given", "note"),
    [("", "is 4 where it is not given: here 9"), ("9", "9 is not modelled: here 9"), ("5", None)],
)
def test_other_groups_than_the_smallest_are_said_not_to_be_modelled(given, note):
    flag = "--microbatch-group-size-per-virtual-pipeline-stage"
    text = emit_megatron(job_of(batch=18), Plan(pp=4, dp=2, chunks=2, schedule="interleaved"))
    notes = read_megatron(text.replace(f"{flag} 5", f"{flag} {given}" if given else ""), H100).notes
    told = [each for each in notes if each.startswith(flag)]
    assert told == ([f"{flag} {note} microbatches go round in groups of 5."] if note else [])


@pytest.mark.parametrize("plan", [Plan(pp=4, dp=2), Plan(dp=8)])
def test_groups_mean_nothing_where_a_rank_has_one_chunk(plan):
    flag = "--microbatch-group-size-per-virtual-pipeline-stage"
    text = emit_megatron(job_of(batch=18 * plan.dp), plan)
    assert flag not in text
    notes = read_megatron(text.replace("--seq-length", f"{flag} 3 --seq-length"), H100).notes
    assert not any(flag in note for note in notes)


def test_torchtitan_has_rounds_of_equally_many_microbatches_alone():
    plan = Plan(pp=4, dp=2, chunks=2, schedule="interleaved")
    assert "Interleaved1F1B" in emit_torchtitan(job_of(batch=20, software="torchtitan"), plan), "5 and 5"
    assert "Interleaved1F1B" in emit_torchtitan(job_of(batch=10, software="torchtitan"), plan), "5"
    with pytest.raises(
        UserError, match="on 4 pipeline ranks, as its 2 rounds are equal; take 8 microbatches"
    ):
        emit_torchtitan(job_of(batch=18, software="torchtitan"), plan)


@pytest.mark.parametrize(
    ("model", "tp", "padded"), [("gpt2", 1, 50304), ("gpt2", 4, 50688), ("llama-3-8b", 2, None)]
)
def test_megatron_says_to_what_it_pads_the_vocabulary_and_nothing_where_it_need_not(model, tp, padded):
    """To a multiple of 128 tp: --make-vocab-size-divisible-by."""
    script = emit_megatron(job_of(model, batch=64), Plan(tp=tp, dp=8 // tp))
    assert ("It pads the vocabulary" in script) == bool(padded)
    assert not padded or f"to {padded}, as the plan does" in script


@pytest.mark.parametrize(
    ("flags", "rows"),
    [("", 50_688), ("--make-vocab-size-divisible-by 1", 50_260), ("--padded-vocab-size 50436", 50_436)],
)
def test_a_scripts_own_padding_of_the_vocabulary_is_priced_and_written_anew(flags, rows):
    """50257 tokens on 4 ranks."""
    script = emit_megatron(job_of("gpt2"), Plan(tp=4, dp=2))
    read = read_megatron(script.replace("--seq-length", f"{flags} --seq-length"), H100)
    assert padded_vocab(read.job.shape, read.job.stack, 4) == rows
    assert not any("vocab-size" in note for note in read.notes)
    again = read_megatron(emit_megatron(read.job, read.plan), H100)
    assert padded_vocab(again.job.shape, again.job.stack, 4) == rows


@pytest.mark.parametrize(("imbalance", "told"), [(1.0, False), (1.5, True)])
def test_megatron_says_for_which_imbalance_a_script_is_planned(imbalance, told):
    script = emit_megatron(job_of("mixtral-8x7b", routing_imbalance=imbalance), Plan(dp=8))
    assert (f"a busiest rank with {imbalance:g} times the mean's rows" in script) == told


def on(job: TrainingJob, **stack: Any) -> TrainingJob:
    return replace(job, stack=replace(job.stack, **stack))


@pytest.mark.parametrize(
    ("tp", "cut", "ep", "written"),
    [
        (2, True, 1, "hybridep"),
        (2, False, 1, "alltoall"),
        (1, False, 1, "alltoall"),
        (1, False, 2, "hybridep"),
    ],
)
def test_a_flexible_dispatcher_is_written_priced_and_read_where_a_row_can_go_to_another_rank(
    tp, cut, ep, written
):
    """MoEFlexTokenDispatcher asserts tp_size * ep_size > 1, of which tp_size is that of the experts; so does
    HybridEP's buffer of its group."""
    job = on(MIXTRAL, dispatcher="hybridep", expert_tp=cut)
    plan = Plan(tp=tp, dp=8, ep=ep, sequence_parallel=tp > 1)
    script = emit_megatron(job, plan)
    assert read_megatron(script, H100).job.stack.dispatcher == written
    assert predict(job, plan).seconds == predict(on(job, dispatcher=written), plan).seconds
    flexible = script.replace("type alltoall", "type flex")
    if written == "alltoall":
        with pytest.raises(UserError, match="--moe-token-dispatcher-type flex .* by deepep.* take alltoall"):
            read_megatron(flexible, H100)


def of_144_experts() -> TrainingJob:
    """Which 12, 16, 36 and 48 ranks can share."""
    assert MIXTRAL.shape.experts
    experts = replace(MIXTRAL.shape.experts, experts=144)
    return replace(MIXTRAL, shape=replace(MIXTRAL.shape, experts=experts))


@pytest.mark.parametrize(
    ("gpu", "degrees", "said"),
    [
        ("h100", {"dp": 72, "ep": 12}, "deepep over 12 ranks; it has 2, 4, 8, .*or take --dispatcher allto"),
        ("h100", {"dp": 48, "ep": 6, "tp": 2}, "deepep over 12 ranks; it has 2, 4"),
        ("h100", {"dp": 48, "ep": 48}, ""),
        ("h100", {"dp": 24, "ep": 1}, ""),
        ("gb200", {"dp": 8, "ep": 4}, "machines share one NVLink; take --dispatcher hybridep"),
        ("l40s", {"dp": 8, "ep": 4}, "more ranks than NVLink joins, but in nodes of 8 GPUs; take --disp"),
        ("a100-pcie-bridged", {"dp": 8, "ep": 2}, ""),
        ("a100-pcie-bridged", {"dp": 8, "ep": 4}, "more ranks than NVLink joins"),
        ("a100-80", {"dp": 16, "ep": 8}, ""),
        (
            "a100-80",
            {"dp": 16, "ep": 16},
            "several nodes of GPUs before Hopper; take --dispatcher",
        ),
    ],
)
def test_deepep_goes_where_its_kernels_go(gpu, degrees, said):
    plan = Plan(**degrees, zero=1, sequence_parallel=degrees.get("tp", 1) > 1)
    job = replace(of_144_experts(), hardware=find_hardware(gpu), global_batch=720)
    job = on(job, dispatcher="deepep", expert_tp=plan.tp > 1)
    for dispatcher in ("alltoall", "hybridep"):
        assert not FRAMEWORKS["megatron"].refusal(on(job, dispatcher=dispatcher), plan) or plan.ep == 1
    with pytest.raises(UserError, match=said) if said else nullcontext():
        assert "--moe-token-dispatcher-type" in emit_megatron(job, plan)


@pytest.mark.parametrize(
    ("gpu", "ep", "said"),
    [
        ("a100-80", 8, "# Its DeepEP is 1.2.1, built with DISABLE_SM90_FEATURES=1: later ones begin with H"),
        ("h100", 48, "# Its DeepEP is later than 1.2.1, which has no 48 ranks."),
        ("h100", 8, ""),
    ],
)
def test_a_script_says_which_deepep_has_its_kernels(gpu, ep, said):
    """setup.py asserts False for A100s since 2.0; get_dispatch_config has 48 and 96 since September 2025."""
    job = replace(of_144_experts(), hardware=find_hardware(gpu), global_batch=48)
    script = emit_megatron(job, Plan(dp=48, ep=ep, zero=1))
    assert said in script and ("Its DeepEP" in script) == bool(said)
    assert "Its DeepEP" not in emit_megatron(on(job, dispatcher="alltoall"), Plan(dp=48, ep=ep, zero=1))


def test_of_many_plans_at_once_those_are_left_out_whose_ranks_deepep_does_not_know():
    ep = np.array([1, 2, 3, 4, 6, 8, 12, 16, 24, 36, 48, 72, 144])
    plans = Plan(tp=np.ones_like(ep), dp=np.full_like(ep, 144), ep=ep, zero=1)
    able = FRAMEWORKS["megatron"].has(replace(of_144_experts(), global_batch=144), plans)
    assert ep[able].tolist() == [1, 2, 4, 8, 16, 24, 48, 144]
    dense = replace(job_of(batch=144), hardware=find_hardware("l40s"))
    assert FRAMEWORKS["megatron"].has(dense, replace(plans, ep=np.ones_like(ep))).all()


@pytest.mark.parametrize(
    ("gpu", "dispatcher"),
    [
        ("h100", "deepep"),
        ("a100-80", "deepep"),
        ("b300", "deepep"),
        ("gb200", "hybridep"),
        ("l40s", "alltoall"),
        ("h100-nvl-bridged", "alltoall"),
        ("gh200", "alltoall"),
        ("v100", "alltoall"),
    ],
)
def test_experts_have_a_dispatcher_that_runs_on_the_gpu_where_none_is_named(gpu, dispatcher):
    hardware = find_hardware(gpu)
    assert software_on("megatron-core", hardware, MIXTRAL.shape).dispatcher == dispatcher
    assert software_on("megatron-core", hardware, job_of().shape).dispatcher == "deepep", "it has no experts"
    assert software_on("torchtitan", hardware, MIXTRAL.shape) == STACKS["torchtitan"]
    job = replace(job_of("mixtral-8x7b", "pytorch"), hardware=hardware)
    assert FRAMEWORKS["megatron"].priced(job).stack.dispatcher == dispatcher


def test_nccls_own_dispatcher_counts_as_hybridep_whose_kernels_it_has_and_says_so():
    script = emit_megatron(on(MIXTRAL, dispatcher="hybridep"), Plan(dp=8, ep=2))
    own = script.replace("backend hybridep", "backend ncclep")
    found = read_megatron(own, H100)
    assert found.job.stack.dispatcher == "hybridep" and own != script
    (note,) = (note for note in found.notes if "ncclep is not modelled" in note)
    assert not any("hybridep is not modelled" in note for note in read_megatron(script, H100).notes), note


@pytest.mark.parametrize("graphs", ["", "step", "router", "preprocess"])
@pytest.mark.parametrize("zero", [1, 2, 3])
def test_megatron_fsdp_has_no_graphs_of_layers_beside_rows_beside_compute(zero, graphs):
    """FullyShardedDataParallel in mcore_fsdp_adapter.py asserts it of its own, which is ZeRO-2 and 3."""
    job = on(MIXTRAL, hides_dispatch=True, graphs=graphs)
    job = replace(job, capacity_factor=1.25) if graphs == "step" else job
    refused = "in Megatron-FSDP" in FRAMEWORKS["megatron"].refusal(job, Plan(dp=8, ep=8, zero=zero))
    assert refused == (zero > 1 and graphs in ("router", "preprocess"))


def test_fused_kernels_of_router_and_permutation_are_asked_for_priced_and_written(capsys):
    """As --what-if has them, in Megatron's words too."""
    mixture = ["--model", "mixtral-8x7b", "--gpus", "64", "--global-batch", "256", "--ep", "8", "--zero", "1"]
    seconds = []
    for words in ([], ["--fused-permutation"], ["--moe-permute-fusion", "--fused-router"]):
        main(["plan", *mixture, *words, "--json", "--emit", "megatron"])
        found = json.loads(capsys.readouterr().out)
        seconds.append(found["step_seconds"])
        assert ("--moe-permute-fusion" in found["launch"]) == bool(words)
        assert ("--moe-router-fusion" in found["launch"]) == (len(words) == 2)
    assert seconds[0] > seconds[1] > seconds[2]
    fused = on(job_of("qwen3-30b-a3b", "torchtitan"), fused_router=True)
    with pytest.raises(UserError, match="leave --fused-permutation and --fused-router out"):
        emit_torchtitan(fused, Plan(dp=8, zero=3))
    assert main(["plan", *mixture, "--software", "pocket", "--fused-router"]) == 2
    assert "of other software than the lessons' own" in capsys.readouterr().err


def test_software_that_is_named_is_priced_though_the_framework_cannot_launch_it(capsys):
    plan = ["plan", "--model", "llama-3-8b", "--gpus", "8", "--dp", "8", "--zero", "3", "--global-batch", "8"]
    assert main([*plan, "--software", "pytorch", "--emit", "megatron"]) == 2
    assert "the plan is for pytorch, which is other software than" in capsys.readouterr().err


def test_rows_beside_another_microbatch_and_graphs_are_written_with_what_they_need():
    words = emit_megatron(BESIDE, PIPELINE)
    assert "--overlap-moe-expert-parallel-comm --delay-wgrad-compute" in words
    assert "--cuda-graph-impl transformer_engine --cuda-graph-modules attn moe_router moe_preprocess" in words
    assert "CUDA_DEVICE_MAX_CONNECTIONS=32" in words
    assert "expert-parallel-comm" not in emit_megatron(BESIDE, Plan(dp=32)), "each rank has all experts"
    step = emit_megatron(on(job_of(), graphs="step"), Plan(dp=8))
    assert "--cuda-graph-impl full_iteration --no-check-for-nan-in-loss-and-grad" in step
    assert "expert-tensor-parallel" not in words and "expert-tensor-parallel-size 1" in emit_megatron(
        MIXTRAL, in_halves := replace(PIPELINE, tp=2, sequence_parallel=True)
    )
    assert "expert-tensor-parallel-size 2" in emit_megatron(on(MIXTRAL, expert_tp=True), in_halves)
    capacious = replace(on(MIXTRAL, graphs="router", dispatcher="deepep"), capacity_factor=1.5)
    assert "--moe-expert-capacity-factor 1.5" in emit_megatron(capacious, PIPELINE)
    assert "pad-expert-input" not in words + step, "rows of experts in graphs of a step are padded, no others"


CUT = on(MIXTRAL, expert_tp=True)
BIASED = replace(CUT, shape=replace(CUT.shape, biases=("qkv", "output", "mlp")))


@pytest.mark.parametrize(("words", "cut", "noted"), [
    ("--tensor-model-parallel-size 4", True, "--expert-tensor-parallel-size: 4"),
    ("--tensor-model-parallel-size 4 --expert-tensor-parallel-size 4", True, ""),
    ("--tensor-model-parallel-size 4 --expert-tensor-parallel-size 1", False, ""),
    ("--tensor-model-parallel-size 4 --expert-tensor-parallel-size 2", False,
     "--expert-tensor-parallel-size 2 is not modelled: experts stay whole, on the ranks of ep."),
    ("--expert-tensor-parallel-size 2", False, "--expert-tensor-parallel-size 2 is not modelled"),
    ("--tensor-model-parallel-size 4 --deepspeed", False, ""),
    ("--tensor-model-parallel-size 4 --deepspeed --enable-expert-tensor-parallelism", True,
     "--expert-tensor-parallel-size: 4"),
])  # fmt: skip
def test_tp_cuts_experts_where_a_script_does_not_say_otherwise(words, cut, noted):
    """megatron/core/parallel_state.py: expert_tensor_parallel_size is that of tp by default; in Megatron-
    DeepSpeed experts are whole by default (megatron/core/tensor_parallel/layers.py)."""
    found = read_megatron(f"{LINE} --num-experts 8 --sequence-parallel {words}", H100)
    assert found.job.stack.expert_tp == cut
    said = [note for note in found.notes if "--expert-tensor-parallel-size" in note]
    assert noted in "".join(said) and bool(said) == bool(noted)


def test_a_script_whose_experts_tp_cuts_cannot_spread_them_over_tp_too():
    """The world size, 16 GPUs, is no multiple of etp*ep = 32 (megatron/core/parallel_state.py)."""
    degrees = "--tensor-model-parallel-size 4 --expert-model-parallel-size 8 --sequence-parallel"
    assert (
        read_megatron(f"{LINE} --num-experts 8 {degrees} --expert-tensor-parallel-size 1", H100).plan.ep == 8
    )
    with pytest.raises(UserError, match="ep=8 does not divide cp\\*dp = 4, whose ranks experts that tp cuts"):
        read_megatron(f"{LINE} --num-experts 8 {degrees}", H100)


@pytest.mark.parametrize(("job", "changes", "said"), [
    (BIASED, {"tp": 2, "sequence_parallel": True}, "experts with biases that tp cuts; give --expert-tensor"),
    (BESIDE, {"chunks": 1, "schedule": "1f1b"}, "in a pipeline of one chunk; take several"),
    (on(BESIDE, dispatcher="allgather"), {}, "with the dispatcher allgather; take another"),
    (BESIDE, {"recompute": "full"}, "where experts are recomputed; recompute less"),
    (on(BESIDE, selective=("moe",), graphs=""), {"recompute": "selective"}, "where experts are recomputed"),
    (on(MIXTRAL, graphs="preprocess"), {"recompute": "full"}, "graphs of layers where experts are recomp"),
    (on(MIXTRAL, graphs="router", dropout=True), {"recompute": "selective"}, "recomputed with dropout"),
    (replace(on(MIXTRAL, graphs="router", dispatcher="alltoall"), capacity_factor=1.5), {}, "alltoall with"),
    (replace(on(MIXTRAL, graphs="router"), capacity_factor=1.5), {"ep": 1}, "alltoall with a capacity"),
    (on(BESIDE, accumulates=False), {}, "or of gradients that are added up apart"),
    (replace(on(MIXTRAL, graphs="step"), capacity_factor=1.5), {}, "step with the dispatcher deepep"),
    (
        job_of(),
        {"ep": 1, "recompute": "selective", "recompute_modules": ("moe_act",)},
        "recomputation of moe_act in a model without experts",
    ),
    (
        MIXTRAL,
        {"recompute": "selective", "recompute_modules": ("mla_up_proj",)},
        "recomputation of mla_up_proj without latent attention",
    ),
    (on(MIXTRAL, graphs="step"), {}, "nobody knows their number before; add --capacity-factor"),
    (on(job_of(), graphs="router"), {"ep": 1}, "of the router in a model without experts; it has step"),
    (on(MIXTRAL, fused_experts=True), {}, "has no flags for the plan's fused_experts"),
])  # fmt: skip
def test_what_megatron_checks_of_pairs_and_graphs_is_refused_in_a_sentence(job, changes, said):
    with pytest.raises(UserError, match=said):
        emit_megatron(job, replace(PIPELINE, **changes))


DEGREES = (
    "# Derived",
    "--tensor-model-parallel-size",
    "--pipeline-model-parallel-size",
    "--context-parallel-size",
)
CONNECTIONS = "export CUDA_DEVICE_MAX_CONNECTIONS=1"
FSDP = (
    "--use-megatron-fsdp --use-distributed-optimizer --ckpt-format fsdp_dtensor "
    "--data-parallel-sharding-strategy"
)
IN_FULL = "--megatron-fsdp-main-grads-dtype fp32"  # Megatron-FSDP's own: the weights' 16 bits
SHARDED = [
    "# FSDP's messages travel beside compute in hardware queues of their own: one queue is too few.",
    "unset CUDA_DEVICE_MAX_CONNECTIONS",
    "--overlap-param-gather",
]
TWO_CHUNKS: dict[str, Any] = {"pp": 4, "chunks": 2, "schedule": "interleaved"}


@pytest.mark.parametrize(("stack", "plan", "added"), [
    ({}, {"tp": 2}, [CONNECTIONS]),
    ({}, {"tp": 2, "sequence_parallel": True}, [CONNECTIONS, "--sequence-parallel"]),
    ({}, {"cp": 2}, [CONNECTIONS]),
    ({"context_parallel": "all-gather"}, {"cp": 2}, [CONNECTIONS, "--cp-comm-type all_gather"]),
    ({"context_parallel": "all-to-all"}, {"cp": 2}, [CONNECTIONS, "--cp-comm-type a2a"]),
    ({"context_parallel": "all-gather"}, {}, []),
    ({}, {"zero": 1}, ["--use-distributed-optimizer", "--overlap-param-gather"]),
    ({}, {"zero": 2}, [f"{FSDP} optim_grads", *SHARDED, IN_FULL]),
    ({}, {"zero": 3, "tp": 2}, [f"{FSDP} optim_grads_params", *SHARDED, IN_FULL]),
    (
        {"gradient_bytes": 2},
        {"zero": 3},
        [f"{FSDP} optim_grads_params", *SHARDED, "--megatron-fsdp-main-grads-dtype bf16"],
    ),
    ({"gradient_bytes": 2}, {}, ["--grad-reduce-in-bf16"]),
    ({"accumulates": False}, {}, ["--no-gradient-accumulation-fusion"]),
    ({"scales_gradients": False}, {}, ["--ddp-average-in-collective"]),
    ({"dropout": True}, {}, ["--attention-dropout 0.1 --hidden-dropout 0.1"]),
    ({}, {"pp": 4}, []),
    ({}, TWO_CHUNKS, ["--num-virtual-stages-per-pipeline-rank 2"]),
    ({}, {"pp": 2, "stage_layers": (15, 17)}, ['--pipeline-model-parallel-layout "Et*15|t*17L"']),
    ({}, {"recompute": "selective"}, ["--recompute-granularity selective"]),
    (
        {},
        {"recompute": "full", "recompute_layers": 3},
        ["--recompute-granularity full --recompute-method block --recompute-num-layers 3"],
    ),
])  # fmt: skip
def test_a_plan_adds_to_megatrons_plainest_script_what_it_asks_for_and_nothing_else(stack, plan, added):
    def lines(job, plan):
        cut = math.prod(plan.get(axis, 1) for axis in ("tp", "cp", "pp"))
        script = emit_megatron(job, Plan(dp=8 // cut, **plan))
        return {line.strip(" \\") for line in script.splitlines() if not line.strip().startswith(DEGREES)}

    assert lines(on(job_of(), **stack), plan) - lines(job_of(), {}) == {*added}


@pytest.mark.parametrize(
    ("dtype", "flags"),
    [
        ("fp8", "--fp8-param-gather"),
        ("mxfp8", "--fp8-param-gather --reuse-grad-buf-for-mxfp8-param-ag"),
        ("fp8-block", ""),
    ],
)
def test_weights_that_are_kept_cast_alone_are_written_and_read(dtype, flags):
    job = replace(job_of(software="nemo", dtype=dtype), hardware=find_hardware("b200"))
    job = replace(job, hardware=H100) if dtype == "fp8-block" else job
    script = emit_megatron(job, Plan(dp=8, zero=1))
    assert flags in script and ("--fp8-param-gather" in script) == bool(flags)
    assert read_megatron(script, job.hardware).job.casts_weights_alone == bool(flags)


@pytest.mark.parametrize(("module", "refused"), [("layernorm", True), ("moe_act", True), ("mlp", False)])
def test_delayed_scales_go_with_no_recomputation_of_norms_and_activations(module, refused):
    """TransformerConfig.__post_init__ raises ValueError: "Delayed scaling does not support moe_act and
    layernorm recompute for fp8."."""
    plan = Plan(dp=8, ep=8, zero=1, recompute="selective", recompute_modules=(module,))
    for dtype in ("bf16", "fp8-current", "fp8-block", "fp8"):
        job = job_of("mixtral-8x7b", dtype=dtype)
        stops = refused and dtype == "fp8"
        with pytest.raises(UserError, match="delayed scales") if stops else nullcontext():
            assert module in emit_megatron(job, plan)
        assert bool(FRAMEWORKS["megatron"].has(job, plan)) is not stops


@pytest.mark.parametrize("dtype", [*fields.DTYPES])
def test_a_type_of_number_that_is_written_is_read_back(dtype):
    """All recipes of 8 bits came back as delayed scales, and of 4 bits as bf16: fp8-block lost 10% of a step,
    and `--fp8-recipe` was said to be what no plan depends on."""
    hardware = find_hardware("h100" if dtype == "fp8-block" else "b200")
    job, plan = replace(job_of(dtype=dtype), hardware=hardware), Plan(dp=8, zero=1)
    found = read_megatron(emit_megatron(job, plan), hardware)
    assert found.job.dtype == dtype and not any("recipe" in remark for remark in found.notes)
    assert predict(found.job, found.plan).seconds == predict(job, plan).seconds


@pytest.mark.parametrize(("recipe", "dtype", "instead"), [
    ("--fp8-format e4m3 --fp8-recipe custom", "fp8", "priced with delayed scales"),
    ("--fp4-format e2m1 --fp4-recipe custom", "nvfp4", "priced as nvfp4"),
])  # fmt: skip
def test_a_recipe_of_ones_own_is_priced_as_megatrons_and_said_to_be(recipe, dtype, instead):
    script = emit_megatron(replace(job_of(), dtype="bf16"), Plan(dp=8)).replace("--bf16", f"--bf16 {recipe}")
    found = read_megatron(script, find_hardware("b200"))
    assert found.job.dtype == dtype
    assert any("recipe custom is not modelled" in remark and instead in remark for remark in found.notes)


@pytest.mark.parametrize("older", ["--fp8-hybrid", "--fp8-e4m3"])
def test_an_older_flag_of_fp8_is_read_as_the_format_that_it_names(older):
    """megatron/arguments.py until commit 1b7a3836 of Megatron-LM."""
    found = read_megatron(f"{LINE} --bf16 {older}", H100)
    assert found.job.dtype == "fp8"
    assert any("read as Megatron-Core's" in note and older in note for note in found.notes)


@pytest.mark.parametrize("dispatcher", ["alltoall", "deepep"])
def test_a_router_is_read_as_many_bits_as_its_script_says_and_64_as_32(dispatcher):
    job, plan = on(MIXTRAL, dispatcher=dispatcher, fp32_router=True), Plan(dp=8, ep=2)
    script = emit_megatron(job, plan)
    without, double = (
        script.replace("--moe-router-dtype fp32", ""),
        script.replace("dtype fp32", "dtype fp64"),
    )
    read = [read_megatron(each, H100) for each in (script, without, double)]
    assert [each.job.stack.fp32_router for each in read] == [True, False, True]
    said = ["router-dtype fp64 is not modelled" in " ".join(each.notes) for each in read]
    assert said == [False, False, True]
    assert predict(read[0].job, plan).seconds == predict(job, plan).seconds


def test_what_else_cannot_be_written_is_refused_in_a_sentence():
    for job, plan, said in (
        (job_of("mpt-7b"), Plan(dp=8), "layernorm without a shift"),
        (job_of("mixtral-8x7b"), Plan(tp=2, dp=4), "without sequence parallelism"),
        (job_of(software="megatron-2021"), Plan(dp=8), "the plan is for megatron-2021"),
        (job_of(half=True), Plan(dp=8), "16 bits"),
        (
            job_of(batch=72),
            Plan(dp=12),
            "12 GPUs do not fill nodes of 8, and a launcher starts as many on each; take 16.",
        ),
        (
            replace(job_of(), stack=replace(STACKS["megatron-core"], cp_overlap=False)),
            Plan(cp=2, dp=4),
            "add cp to --overlap",
        ),
        (
            replace(job_of(), stack=replace(STACKS["megatron-core"], tp_overlap="none")),
            Plan(tp=2, dp=4),
            "add tp to --overlap",
        ),
        (
            replace(job_of(), stack=replace(STACKS["megatron-core"], dp_overlap=False)),
            Plan(dp=8, zero=3),
            "weights that come beside compute where gradients do not; add dp to --overlap",
        ),
        (job_of("gpt2"), Plan(dp=3), "nearest batch"),
    ):
        with pytest.raises(UserError, match=said):
            emit_megatron(job, plan)


# ---------------------------------------------------------------------------------------------------- reading


EXAMPLE = """#!/bin/bash
# Trains the "175B" model; don't change what isn't yours
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
NUM_NODES=${NUM_NODES:-16}
WORLD_SIZE=$(($GPUS_PER_NODE * NUM_NODES))
DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NUM_NODES     # all of them
    --master_addr $MASTER_ADDR
)
GPT_MODEL_ARGS=(
    --num-layers 96
    --hidden-size 12288
    # --hidden-size 64
    --num-attention-heads=96
    --seq-length 2048 --max-position-embeddings 2048
)
TRAINING_ARGS="
    --micro-batch-size 1 \\
    --global-batch-size $((WORLD_SIZE * 12)) --bf16
"
TRAINING_ARGS="$TRAINING_ARGS --split '949,50,1'"
PARALLEL=(--tensor-model-parallel-size 8)
PARALLEL+=(--pipeline-model-parallel-size 16 --sequence-parallel)
if [ -n "$DEBUG" ]; then
    PARALLEL+=(--recompute-activations)
fi
KIND=fp8
if [[ "$KIND" == "bf16" ]] || [[ -z "$KIND" ]]; then KIND_ARGS=(--no-such-flag)
elif [ $KIND != fp8 ]; then
    KIND_ARGS=(--no-such-flag)
else
    KIND_ARGS=("--fp8-format hybrid")  # one word, which the shell parts
fi
torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py ${KIND_ARGS[@]} \\
    "${GPT_MODEL_ARGS[@]}" ${PARALLEL[@]} \\
    $TRAINING_ARGS --tokenizer-type GPT2BPETokenizer --save "$1/it is here" $MORE
"""


@pytest.mark.parametrize(("dtype", "size"), [("", 2), (" auto", 2), (" bf16", 2), (" fp32", 4)])
def test_gradients_of_megatron_fsdp_are_in_the_weights_16_bits_where_nothing_else_is_said(dtype, size):
    """_resolve_group_grad_dtype in megatron_fsdp/param_and_grad_buffer.py."""
    flag = "--megatron-fsdp-main-grads-dtype"
    found = read_megatron(f"{LINE} --use-megatron-fsdp {flag * bool(dtype)}{dtype}", H100)
    assert found.plan.zero == 3 and found.job.gradient_bytes == size
    assert any(flag in note for note in found.notes) == (not dtype)


def test_a_script_with_variables_arrays_sums_and_comments_is_read():
    found = read_megatron(EXAMPLE, H100)
    assert found.plan == Plan(tp=8, pp=16, dp=1, sequence_parallel=True)
    assert found.job.dtype == "fp8"  # the one branch that runs
    assert (found.job.global_batch, found.job.sequence, found.job.shape.vocab) == (1536, 2048, 50257)
    # its sizes, and Megatron's defaults: GELU, LayerNorm, learned positions, biases, tied
    assert found.job.shape.name == "gpt3-175b"
    told = " ".join(found.notes)
    assert (
        "never set, so empty: DEBUG" in told
        and "--normalization: LayerNorm" in told
        and "GPT2BPETokenizer's 50257" in told
    )
    assert "has no $MORE" in told and "--split" in told


def test_missing_flags_take_megatrons_defaults_and_this_is_said():
    found = read_megatron(LINE.replace(" --global-batch-size 64", "") + " --swiglu --num-experts 8", H100)
    shape = found.job.shape
    assert (shape.ffn, shape.kv_heads, shape.norm, shape.biases) == (
        10880,
        32,
        "layernorm",
        ("qkv", "output", "mlp", "norm"),
    )
    assert (
        shape.experts
        and shape.experts.top_k == 2
        and shape.experts.ffn == 10880
        and found.job.global_batch == 16
    )
    assert found.job.stack.dropout and not found.job.stack.dp_overlap and found.job.stack.attention == "cudnn"
    told = found.notes[-1]
    assert all(
        name in told
        for name in (
            "--ffn-hidden-size: 10880",
            "--hidden-dropout: 0.1",
            "--moe-router-topk: 2",
            "--global-batch-size: 16",
        )
    )


@pytest.mark.parametrize(
    "kept, flags",
    [
        ({"moments": "bf16"}, ["--exp-avg-dtype bf16 --exp-avg-sq-dtype bf16"]),
        ({"offload": ("optimizer",)}, ["--optimizer-cpu-offload --optimizer-offload-fraction 1"]),
    ],
)
def test_an_optimizer_in_fewer_bits_or_on_the_host_is_written_and_read_and_asks_for_zero_1(kept, flags):
    job = job_of(**kept)
    script = emit_megatron(job, Plan(dp=8, zero=1))
    assert all(words in script for words in ["--use-precision-aware-optimizer", *flags])
    found = read_megatron(script, H100)
    assert (found.job.moments, found.job.offload) == (job.moments, job.offload)
    assert not [note for note in found.notes if "not modelled" in note]
    for zero in (0, 2, 3):
        with pytest.raises(UserError, match="take --zero 1"):
            emit_megatron(job, Plan(dp=8, zero=zero))


def test_an_optimizer_on_the_host_beside_weights_in_8_bits_alone_asks_for_delayed_scales():
    for dtype in ("fp8", "fp8-current"):
        job = replace(job_of(software="nemo", dtype=dtype), offload=("optimizer",))
        with nullcontext() if dtype == "fp8" else pytest.raises(UserError, match="delayed scales"):
            emit_megatron(job, Plan(dp=8, zero=1))


def test_of_megatrons_ways_to_offload_activations_the_refusal_names_the_nearest():
    with pytest.raises(UserError, match="does not write Megatron's --fine-grained-activation-offloading"):
        emit_megatron(replace(job_of(), offload=("activations",)), Plan(dp=8, zero=1))


def test_without_a_batch_a_step_is_one_microbatch_of_each_data_parallel_rank():
    """global_batch_size = micro_batch_size * data_parallel_size in arguments.py of 0.19.2."""
    words = LINE.replace(" --global-batch-size 64", "").replace(
        "--micro-batch-size 1", "--micro-batch-size 2"
    )
    assert read_megatron(f"{words} --tensor-model-parallel-size 2", H100).job.global_batch == 2 * 8


@pytest.mark.parametrize(("flag", "kernel"), [("", "cudnn"), ("--use-flash-attn", "flash2")])
def test_use_flash_attn_is_flash_attention_2(flag, kernel):
    assert read_megatron(f"{LINE} {flag}", H100).job.stack.attention == kernel


@pytest.mark.parametrize("named", ["", "--position-embedding-type rope"])
def test_rotary_positions_have_an_older_flag_that_may_stand_beside_the_newer(named):
    line = f"{LINE} --use-rotary-position-embeddings {named}"
    assert read_megatron(line, H100).job.shape.position == "rotary"


def test_flags_that_change_time_or_memory_and_are_not_modelled_are_said():
    extra = (
        " --optimizer-cpu-offload --optimizer-offload-fraction 0.5 --cuda-graph-impl local"
        " --recompute-granularity full --recompute-method uniform --recompute-num-layers 4"
        " --recompute-modules shared_experts"
    )
    told = read_megatron(LINE + extra + " --no-such-flag 3 --lr 1e-4 --cp-comm-type a2a+p2p", H100).notes
    assert "--optimizer-cpu-offload is not modelled: all of it is counted on the GPU." in told
    assert (
        "--cuda-graph-impl local is not modelled: every kernel keeps the time that its launch takes." in told
    )
    assert any(note.startswith("--recompute-method uniform is of one layer at a time") for note in told)
    assert any(note.startswith("--recompute-modules shared_experts is not modelled") for note in told)
    assert any(note.startswith("--cp-comm-type a2a+p2p is not modelled") for note in told)
    assert "Megatron-Core 0.19.2 has no --no-such-flag: left out." in told
    assert "Passed over, for no plan depends on them: --lr." in told


@pytest.mark.parametrize("flag", [
    "--fp32-residual-connection", "--first-last-layers-bf16", "--num-layers-at-start-in-bf16 1",
    "--num-layers-at-end-in-bf16 1", "--reset-attention-mask", "--mlp-chunks-for-training 4",
    "--fused-residual-rmsnorm", "--fsdp-double-buffer", "--use-sharp", "--use-nccl-ub",
    "--use-distributed-optimizer --num-distributed-optimizer-instances 2",
    "--megatron-fsdp-grad-comm-dtype bf16",
    "--use-checkpoint-args", "--no-bias-dropout-fusion", "--no-bias-gelu-fusion", "--no-fp8-wgrad",
    "--freeze-all-layers", "--disable-tp-comm-overlap-ag", "--no-tp-comm-split-rs", "--openai-gelu",
    "--overlap-p2p-communication-warmup-flush", "--mtp-use-repeated-layer", "--qk-l2-norm",
    "--attention-backend unfused --no-masked-softmax-fusion",
])  # fmt: skip
def test_no_flag_that_changes_time_or_memory_is_passed_over(flag):
    notes = read_megatron(f"{LINE} {flag}", H100).notes
    name = [word for word in flag.split() if word.startswith("--")][-1]
    assert any(note.startswith(name) and "is not modelled: " in note for note in notes)
    assert not any(note.startswith("Passed over") and name in note for note in notes)


def test_a_layouts_prediction_layers_off_the_last_stage_have_a_note():
    flags = "--pipeline-model-parallel-size 4 --mtp-num-layers 1 --pipeline-model-parallel-layout "
    line = LINE.replace("--vocab-size", "--position-embedding-type rope --vocab-size")
    found = read_megatron(f'{line} {flags} "Et*11|t*11|t*10m|L"', H100)
    assert any("(m) on stage 3 of 4, which is not modelled" in note for note in found.notes)
    last = read_megatron(f'{line} {flags} "Et*11|t*11|t*10|mL"', H100)
    assert not any("(m)" in note for note in last.notes)


@pytest.mark.parametrize(
    ("layers", "ends", "chunks", "dealt"),
    [
        (30, ("embedding", "loss"), 1, [7, 8, 8, 7]),
        (31, ("embedding",), 1, [7, 8, 8, 8]),
        (31, ("loss",), 1, [8, 8, 8, 7]),
        (30, ("embedding", "loss"), 2, [3, 4, 4, 4, 4, 4, 4, 3]),
        (31, ("embedding",), 2, [3, 4, 4, 4, 4, 4, 4, 4]),
    ],
)
def test_embedding_and_loss_count_as_layers_where_the_line_says_so(layers, ends, chunks, dealt):
    """As get_num_layers_to_build in megatron/core/transformer/transformer_block.py deals them out."""
    split = " ".join(f"--account-for-{end}-in-pipeline-split" for end in ends)
    line = LINE.replace("--num-layers 32", f"--num-layers {layers}").replace("--nnodes 2", "--nnodes 1")
    several = f"--num-layers-per-virtual-pipeline-stage {8 // chunks}" if chunks > 1 else ""
    found = read_megatron(f"{line} --pipeline-model-parallel-size 4 {split} {several} --use-sharp", H100)
    assert split_of(found.job.shape, found.plan) == dealt and found.plan.chunks == chunks
    about = {note.split()[0] for note in found.notes if "is not modelled: " in note}
    assert about == {"--use-sharp"}


def test_chunks_that_megatron_cannot_deal_out_are_refused_in_a_sentence():
    """get_num_layers_to_build in megatron/core/transformer/transformer_block.py stops there."""
    flags = "--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank"
    assert read_megatron(f"{LINE} {flags} 4", H100).plan.chunks == 4
    with pytest.raises(UserError, match="per-pipeline-rank 3 does not divide a pipeline rank's 16 layers"):
        read_megatron(f"{LINE} {flags} 3", H100)


def test_slices_of_experts_have_no_note_where_there_are_no_experts():
    flags = "--tensor-model-parallel-size 2 --expert-tensor-parallel-size 4"
    assert not any("expert" in note for note in read_megatron(f"{LINE} {flags}", H100).notes)


@pytest.mark.parametrize("flag", ["--swiglu --no-bias-gelu-fusion", "--no-masked-softmax-fusion"])
def test_a_flag_about_a_kernel_that_the_job_does_not_run_has_no_note(flag):
    assert not any("-fusion is not" in note for note in read_megatron(f"{LINE} {flag}", H100).notes)


@pytest.mark.parametrize(("words", "graphs"), [
    ("--cuda-graph-impl full_iteration", "step"),
    ("--enable-cuda-graph --cuda-graph-scope full_iteration", "step"),
    ("--external-cuda-graph --cuda-graph-scope attn moe_router moe_preprocess", "router"),
    ("--cuda-graph-impl local --cuda-graph-modules moe_router", "preprocess"),
    ("--cuda-graph-impl none --cuda-graph-modules attn", ""),
    ("--cuda-graph-impl transformer_engine --cuda-graph-modules attn", ""),
    ("--cuda-graph-impl transformer_engine --cuda-graph-modules moe_preprocess moe_router", "preprocess"),
])  # fmt: skip
def test_graphs_are_read_in_the_words_of_every_release(words, graphs):
    found = read_megatron(f"{LINE} {words}", H100)
    assert found.job.stack.graphs == graphs
    if "transformer_engine" in words:  # as a file of runs says it
        assert (graphs_stated(words.partition("modules ")[2]) or "") == graphs
    unknown = not graphs and "none" not in words
    assert any("every kernel keeps the time" in note for note in found.notes) is unknown


def test_the_three_ways_to_give_chunks_agree():
    for way in (
        "--num-virtual-stages-per-pipeline-rank 4",
        "--num-layers-per-virtual-pipeline-stage 2",
        '--pipeline-model-parallel-layout "E(tt|)*15,ttL"',
    ):
        plan = read_megatron(f"{LINE} --pipeline-model-parallel-size 4 {way}", H100).plan
        assert (plan.chunks, plan.schedule, plan.stage_layers) == (4, "interleaved", ())


def test_a_layout_of_megatron_says_which_layers_each_stage_has_and_is_written_again():
    layout = '--pipeline-model-parallel-layout "Et*9|t*9|t*9|t*5L"'
    found = read_megatron(f"{LINE} --pipeline-model-parallel-size 4 {layout}", H100)
    assert found.plan.stage_layers == (9, 9, 9, 5) and not any("layout" in note for note in found.notes)
    assert layout in " ".join(pipeline_flags(found.job, found.plan))


@pytest.mark.parametrize(("words", "stages"), [
    ("--decoder-first-pipeline-num-layers 5", (5, 9, 9, 9)),
    ("--decoder-first-pipeline-num-layers 6 --decoder-last-pipeline-num-layers 8", (6, 9, 9, 8)),
    ("--decoder-last-pipeline-num-layers 2 --num-virtual-stages-per-pipeline-rank 2", (5, 5, 5, 1) * 2),
    ("--decoder-last-pipeline-num-layers 8", ()),  # the even split
    ("--pipeline-model-parallel-size 2 --decoder-first-pipeline-num-layers 5", (5, 27)),
])  # fmt: skip
def test_the_layers_of_the_first_and_the_last_rank_leave_the_rest_to_the_others(words, stages):
    """megatron/core/transformer/transformer_block.py, get_num_layers_to_build."""
    found = read_megatron(f"{LINE} --pipeline-model-parallel-size 4 {words}", H100)
    assert found.plan.stage_layers == stages and not any("evenly" in note for note in found.notes)


@pytest.mark.parametrize(
    ("strategy", "zero"), [("no_shard", 0), ("optim", 1), ("optim_grads", 2), ("optim_grads_params", 3)]
)
def test_strategies_of_megatron_fsdp_are_the_stages_of_zero(strategy, zero):
    found = read_megatron(f"{LINE} {FSDP} {strategy}", H100)
    assert found.plan.zero == zero


@pytest.mark.parametrize(
    ("flags", "zero", "shards"),
    [
        ("--use-torch-fsdp2", 3, 0),
        ("--use-torch-fsdp2 --torch-fsdp2-no-reshard-after-forward", 2, 0),
        (f"{FSDP} optim_grads_params --num-distributed-optimizer-instances 1", 3, 0),
        (f"{FSDP} optim_grads_params --num-distributed-optimizer-instances 2", 3, 8),
    ],
)
def test_weights_that_stay_are_zero_2_and_replicas_divide_the_ranks(flags, zero, shards):
    """Of 16 ranks."""
    plan = read_megatron(f"{LINE} {flags}", H100).plan
    assert (plan.zero, plan.shards) == (zero, shards)


REFUSED = {
    LINE + " --pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 7": "25 layers are left",
    LINE.replace("--num-layers 32 ", ""): "--num-layers is missing",
    LINE + " --tensor-model-parallel-size 3": "does not divide 16 GPUs",
    LINE + " --tensor-model-parallel-size $TP": "does not set that variable",
    "case $1 in 7B) TP=2;; esac\n" + LINE + " --tensor-model-parallel-size $TP": "--script-arguments",
    LINE + " --bf16 --fp16": "contradict one another",
    LINE + " --use-rotary-position-embeddings --position-embedding-type learned_absolute": "keep one",
    LINE + " --recompute-activations --recompute-granularity full": "contradicts",
    LINE + " --recompute-granularity full": "also needs --recompute-method",
    LINE + " --num-experts 8 --moe-expert-capacity-factor 0": "a number above 0",
    LINE + " --hidden-dropout much": "must be a number",
    LINE + " --swiglu --squared-relu": "contradict one another",
    LINE + " --use-torch-fsdp2 --use-distributed-optimizer": "contradicts",
    LINE + " --pipeline-model-parallel-size 3": "does not divide 16 GPUs",
    LINE.replace("--num-layers 32", "--num-layers 31")
    + " --pipeline-model-parallel-size 2": "nearest: 1 or 31",
    LINE.replace("size 64", "size 65"): "nearest batch that can is 64",
    LINE.replace("--hidden-size 4096", "--hidden-size 4097"): "not a multiple of 32 heads",
    LINE.replace("--hidden-size 4096", "--hidden-size -4"): "whole number",
    LINE + " --num-query-groups": "needs a value",
    LINE + " --swiglu yes": "takes no value",
    LINE + " --tensor-model-parallel-size 2 4": "parallel-size takes one value, not '2 4'",
    LINE + " --attention-backend flush": "Did you mean 'flash'",
    LINE + " --hybrid-layer-pattern M*M*": "another model",
    LINE + " --decoder-num-layers 12": "another model",
    LINE + " --decoder-seq-length 1024 --img-h 448": "another model",
    LINE.replace("pretrain_gpt", "./pretrain_bert"): "pretrain_bert.py makes another model",
    LINE.replace("pretrain_gpt", "tools/run_text_generation_server"): "generation_server.py trains nothing",
    LINE.replace("pretrain_gpt", "pretrain_vision_classify"): "another model",
    LINE + ' --num-experts 8 --moe-layer-freq "([1]*999999999)"': "a list of 32 zeros and ones",
    LINE + ' --pipeline-model-parallel-layout "E((t|)*9999)*9999L"': "E, t, m, L",
    LINE + ' --pipeline-model-parallel-layout "E(t*9999|)*9999L"': "more layers than any model",
    LINE + ' --pipeline-model-parallel-layout "Et*32mL"': r"1 prediction layer \(m\).* says 0",
    LINE.replace("--vocab-size 32000", ""): "add --vocab",
    LINE.replace("--nnodes 2", "--nnodes $NNODES"): "how many GPUs",
    "echo hello --world": "no command line of Megatron-Core",
    'SAYS="no flag is in here"\nSIZES="--num-layers 2 --hidden-size 64"': "^SIZES has flags of",
    "echo 'hello": "line 1 is never closed",
    "A=xx\n" + "A=$A$A\n" * 40: "grow beyond",
    "x" * 200_001: "200001 characters",
}


@pytest.mark.parametrize("text", REFUSED, ids=[*REFUSED.values()])
def test_a_command_line_that_cannot_be_is_refused_in_a_sentence(text):
    with pytest.raises(UserError, match=REFUSED[text]):
        read_megatron(text, H100)


@given(st.text(alphabet="A=$(){}\"'\\\n #;&|-*+[]@0ab \t"))
@settings(max_examples=300, deadline=None)
def test_no_text_makes_the_reader_fail_otherwise_than_with_a_sentence(text):
    for script in (text, f"{text}\n{LINE} {text}", f"A={text}\n{LINE} $A"):
        try:
            read_megatron(script, H100)
        except UserError as error:
            assert "\n" not in str(error).strip()


# ------------------------------------------------------------------------------------------------- torchtitan


class Settings(types.SimpleNamespace):
    """A configuration that notes every key that is set, also of its sections."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        self.__dict__[name] = Settings()
        return self.__dict__[name]


def keys(configuration: Settings) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in vars(configuration).items():
        inner = (
            {f"{name}.{key}": one for key, one in keys(value).items()}
            if isinstance(value, Settings)
            else {name: value}
        )
        found |= inner
    return found


def run_recipe(text: str, monkeypatch) -> dict[str, object]:
    """What the recipe sets, with torchtitan's modules played by others; every name that it imports is one
    that torchtitan has."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            assert {f"{node.module}.{alias.name}" for alias in node.names} <= {*frozen("torchtitan")["names"]}
            named: dict[str, Any] = {
                alias.name: types.SimpleNamespace(Config=lambda name=alias.name, **options: name)
                for alias in node.names
            }
            module = types.ModuleType(str(node.module))
            named |= {name: lambda name=name, **options: name for name in named if name.islower()}
            vars(module).update(named, model_registry=lambda flavor, **options: (flavor, options))
            vars(module).update(
                {name: Settings for name in named if str(node.module).endswith("config_registry")}
            )
            monkeypatch.setitem(sys.modules, str(node.module), module)
    scope: dict = {}
    exec(text, scope)
    return keys(scope["plan"]())


@given(
    asked=jobs_and_plans(),
    schedule=st.sampled_from([*names_in("torchtitan"), "zb-h2"]),
    software=st.sampled_from(["torchtitan", "torchtitan-compiled"]),
)
@settings(max_examples=100, deadline=None)
def test_a_recipe_of_torchtitan_sets_the_plans_degrees_with_keys_that_torchtitan_has(
    asked, schedule, software
):
    """Or is refused, where torchtitan cannot run the plan."""
    job, plan = asked
    job = replace(
        job,
        shape=preset("qwen3-30b-a3b" if job.shape.experts else "llama-3-8b"),
        sequence=4096,
        capacity_factor=None,
    )
    job = replace(job, stack=STACKS[software])
    chunks = 2 if schedule in ("interleaved", "looped-bfs", "zb-v", "dualpipev") and plan.pp > 1 else 1
    plan = replace(plan, schedule=schedule, chunks=chunks, recompute_layers=0, recompute_modules=())
    plan = replace(plan, zero=3 if plan.zero == 1 and plan.pp > 1 else plan.zero)
    job = replace(job, dtype="bf16" if job.shape.experts or job.dtype == "bf16" else "fp8-row")
    assume(not [*why_not(job, plan)])
    number = int(plan.microbatches(job))
    if (
        plan.zero == 1
        or (plan.zero == 2 and plan.pp > 1)
        or (plan.cp > 1 and not plan.zero)
        or (plan.zero == 0 and plan.tp % plan.ep)
        or (job.shape.experts and plan.tp > 1 and plan.ep == 1)  # whole experts
        or plan.shards % plan.cp
        or (plan.dp * plan.cp == 1 and not plan.zero)
        or (plan.dp * plan.cp > 1 and plan.zero == 3 and plan.shards == 1)
        or (plan.pp > 1 and schedule == "zb-h2")
        or job.shape.kv_heads % plan.tp
        or (plan.pp > 1 and schedule == "interleaved" and number % (number // plan.pp))
        or (plan.pp > 1 and schedule in ("gpipe", "1f1b", "dualpipev") and number < plan.stages)
        or (plan.pp > 1 and schedule in ("zb-v", "dualpipev") and software == "torchtitan-compiled")
    ):
        with pytest.raises(UserError, match="torchtitan .* has no"):
            emit_torchtitan(job, plan)
        return
    with pytest.MonkeyPatch.context() as monkeypatch:
        found: dict[str, Any] = run_recipe(emit_torchtitan(job, plan), monkeypatch)
    assert found.keys() <= {*frozen("torchtitan")["keys"]}
    for name, key in fields.TITAN_DEGREES.items():
        assert found[key] == getattr(plan, name)
    assert found["compile.enable"] == (software == "torchtitan-compiled")
    shard, replicate = (found[f"parallelism.data_parallel_{way}_degree"] for way in ("shard", "replicate"))
    assert shard * replicate == plan.dp
    assert shard * plan.cp == (plan.shards or plan.dp * plan.cp if plan.zero else 1)
    reshards = {0: None, 2: "never", 3: "always" if plan.pp == 1 else "never"}
    assert found.get("parallelism.fsdp_reshard_after_forward") == reshards[plan.zero]
    if plan.pp > 1:
        stages = found["parallelism.module_fqns_per_model_part"]
        assert [sum(name.startswith("layers.") for name in stage) for stage in stages] == layers_by_stage(
            job.shape.layers, plan.stages
        )
        assert sum(stages, []) == [
            "tok_embeddings",
            *(f"layers.{layer}" for layer in range(job.shape.layers)),
            "norm",
            "lm_head",
        ]
    passed = plan.microbatches(job) if plan.pp > 1 else 1  # a pipeline cuts its microbatches itself
    assert found["training.local_batch_size"] == plan.micro_batch * passed


@pytest.mark.parametrize("model", ["llama-3-8b", "deepseek-v3"])
def test_a_compiled_recipe_compiles_the_model_also_where_its_configuration_compiles_the_loss_alone(
    model, monkeypatch
):
    """CompileConfig(enable=True, components=["loss"]) in models/deepseek_v3/config_registry.py of 0.3.0;
    parallelize.py compiles layers where "model" is among the components."""
    plan = Plan(dp=16, ep=8 if model == "deepseek-v3" else 1, zero=3)
    found = run_recipe(emit_torchtitan(job_of(model, "torchtitan-compiled"), plan), monkeypatch)
    assert found["compile.enable"] is True and found["compile.components"] == ["model", "loss"]
    eager = run_recipe(emit_torchtitan(job_of(model, "torchtitan"), plan), monkeypatch)
    assert eager["compile.enable"] is False and "compile.components" not in eager


def test_a_flavor_without_a_configuration_starts_from_a_siblings_and_has_its_own_tokenizer(monkeypatch):
    """Of the same vocabulary, which the configuration's loss counts. qwen3/8B of 0.3.0 has sft_qwen3_8b_math
    alone, which tunes; 4B, 235B-A22B, deepseek_v3/236B, llama3/1B and 3B none."""
    own = {name: found for name, found in MODELS.items() if not found.assets}
    by_base = {found.base: preset(name) for name, found in own.items()}
    for name, found in MODELS.items():
        if found.assets:
            assert by_base[found.base].vocab == preset(name).vocab
    recipe = emit_torchtitan(job_of("qwen3-235b-a22b", "torchtitan"), Plan(dp=64, ep=64, zero=3))
    assert "those of qwen3_30b_a3b." in recipe and 'model_registry("235B-A22B")' in recipe
    assert run_recipe(recipe, monkeypatch)["hf_assets_path"] == "./assets/hf/Qwen3-235B-A22B"


@pytest.mark.parametrize(("name", "module", "flavor", "refused"), [
    ("gpt-oss-20b", "gpt_oss", "20b", [{"cp": 2}]),
    ("moonlight-16b-a3b", "kimi_k2_7", "moonlight-16B-A3B", [{"cp": 2}, {"tp": 2}, {"pp": 2}, {"pp": 3}]),
    ("llama-3.2-1b", "llama3", "1B", [{"pp": 2}]),
])  # fmt: skip
def test_a_model_of_a_config_json_is_one_of_torchtitans(name, module, flavor, refused, tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text(json.dumps(presets()[name]["config"]))
    shape = find_model(str(tmp_path / "config.json"))
    job = replace(job_of(software="torchtitan", batch=48), shape=shape)
    recipe = emit_torchtitan(job, Plan(dp=8, zero=3))
    assert f"from torchtitan.models.{module} import" in recipe and f'model_registry("{flavor}")' in recipe
    assert ("optimizer" in run_recipe(recipe, monkeypatch)) == (module == "kimi_k2_7"), "Muon in its own"
    for degrees in refused:
        with pytest.raises(UserError, match="torchtitan .* has no"):
            emit_torchtitan(job, Plan(dp=8, zero=3, **degrees))


@pytest.mark.parametrize(("model", "changes", "plan", "said"), [
    ("qwen3-4b", {}, Plan(pp=2, dp=8, zero=3), "no pipeline for tied embeddings"),
    ("qwen3-30b-a3b", {}, Plan(tp=8, dp=8, ep=2, zero=3, sequence_parallel=True), "take a tp that divides 4"),
    ("deepseek-v2", {"sequence": 32768}, Plan(dp=64, ep=8, zero=3), "a sequence of at most 16384"),
    ("qwen3-14b", {"sequence": 65536}, Plan(dp=64, zero=3), "a sequence of at most 40960"),
    ("llama-3-8b", {"sequence": 262144}, Plan(dp=64, zero=3), "a sequence of at most 131072"),
])  # fmt: skip
def test_what_torchtitans_models_refuse_is_refused(model, changes, plan, said):
    """Decoder.Config.update_from_config in models/common/decoder.py of 0.3.0."""
    with pytest.raises(UserError, match=said):
        emit_torchtitan(replace(job_of(model, "torchtitan"), **changes), plan)


@pytest.mark.parametrize("dispatcher", ["deepep", "hybridep"])
@pytest.mark.parametrize("model", ["qwen3-30b-a3b", "deepseek-v3"])
def test_a_recipe_names_deepep_and_hybridep_where_ep_spreads_the_experts(model, dispatcher, monkeypatch):
    """make_token_dispatcher_config and update_ep_token_dispatcher_config of 0.3.0, which refuses ep=1."""
    job = on(job_of(model, "torchtitan"), dispatcher=dispatcher)
    for ep in (1, 8):
        found: dict[str, Any] = run_recipe(emit_torchtitan(job, Plan(dp=8, ep=ep, zero=3)), monkeypatch)
        assert found["model_spec"][1].get("moe_comm_backend") == (dispatcher if ep > 1 else None)


@pytest.mark.parametrize(
    ("degrees", "has"), [({}, True), ({"tp": 8}, True), ({"cp": 2}, False), ({"pp": 2}, False)]
)
def test_deepseek_v3_predicts_further_tokens_but_in_a_pipeline_and_with_cp(degrees, has, monkeypatch):
    """MTPDecoder.Config.update_from_config in models/deepseek_v3/mtp.py of 0.3.0; the loss is that of
    deepseek_v3_debugmodel_mtp."""
    recipe = emit_torchtitan(job_of("deepseek-v3", "torchtitan"), Plan(dp=16, ep=8, zero=3, **degrees))
    found: dict[str, Any] = run_recipe(recipe, monkeypatch)
    assert found["model_spec"] == ("671B", {"num_mtp_layers": 1} if has else {})
    assert found.get("loss") == ("MTPLoss" if has else None)
    assert ("with pp or cp there is none" in recipe) == (not has)


def test_float8_of_torchtitan_is_scaled_row_by_row():
    """recipe_name: Literal["rowwise", "rowwise_with_gw_hp"] in components/quantization/float8.py of 0.3.0."""
    plan = Plan(dp=8, zero=3)
    recipe = emit_torchtitan(job_of(software="torchtitan-compiled", dtype="fp8-row"), plan)
    assert 'recipe_name="rowwise", filter_fqns=["lm_head"], model_compile_enabled=True' in recipe
    for dtype in ("fp8", "fp8-current"):
        with pytest.raises(UserError, match=f"scales of {dtype}; .* take --dtype fp8-row"):
            emit_torchtitan(job_of(software="torchtitan", dtype=dtype), plan)


def test_all_that_torchtitans_tables_name_is_in_the_release():
    release = frozen("torchtitan")
    (schedules,) = [names for key, names in release.items() if key.startswith("schedules")]
    assert {*fields.TITAN_DEGREES.values()} <= {*release["keys"]} and {*names_in("torchtitan").values()} <= {
        *schedules
    }
    for name, found in MODELS.items():
        assert f"{found.module}/{found.flavor}" in release["flavors"] and name in presets()
        assert f"torchtitan.models.{found.module}.config_registry.{found.base}" in release["names"]
        assert found.module in LONGEST


@pytest.mark.parametrize(("switch", "said"), [
    ({"hides_dispatch": True}, "rows beside another microbatch but in dualpipev"),
    ({"graphs": "step"}, "no switch for just what these CUDA graphs hold"),
])  # fmt: skip
def test_torchtitan_is_not_asked_for_megatrons_pairs_and_graphs(switch, said):
    some = on(job_of("deepseek-v2-lite", "torchtitan"), **switch)
    with pytest.raises(UserError, match=said):
        emit_torchtitan(some, Plan(dp=8, ep=8, zero=3))


@pytest.mark.parametrize(("schedule", "chunks", "fewest"), [
    ("gpipe", 1, 4), ("1f1b", 1, 4), ("dualpipev", 2, 8), ("zb-v", 2, 1), ("looped-bfs", 2, 1),
])  # fmt: skip
def test_torchtitan_refuses_fewer_microbatches_than_pytorchs_schedules_take(schedule, chunks, fewest):
    """Its config is written without complaint, and the launch raises ValueError: PipelineScheduleSingle and
    ScheduleDualPipeV in torch/distributed/pipelining/schedules.py take one for each stage at least."""
    plan = Plan(pp=4, dp=2, chunks=chunks, schedule=schedule, zero=3)
    job = replace(job_of(software="torchtitan"), global_batch=2 * fewest)
    assert emit_torchtitan(job, plan)
    if fewest > 1:
        fewer = replace(job, global_batch=2 * fewest - 2)
        said = (
            f"{fewest - 1} microbatches on {plan.stages} stages; take {fewest}|at least {fewest} microbatches"
        )
        with pytest.raises(UserError, match=said):
            emit_torchtitan(fewer, plan)
        arrays = replace(plan, tp=np.array([1, 1]), dp=np.array([1, 2]))  # 2 * fewest - 2, fewest - 1
        assert [*FRAMEWORKS["torchtitan"].has(fewer, arrays)] == [True, False]


@pytest.mark.parametrize(("schedule", "runs"), [("zb-v", False), ("dualpipev", False), ("interleaved", True)])
def test_torchtitan_splits_no_backward_pass_of_compiled_layers(schedule, runs):
    """pytorch/pytorch issue 161904; "torch.compile is incompatible with those eager PP schedules" in
    torchtitan/experiments/graph_trainer/tests/test_numerics.py of 0.3.0."""
    plan = Plan(pp=4, dp=2, chunks=2, schedule=schedule, zero=3)
    assert emit_torchtitan(job_of(software="torchtitan"), plan)
    with nullcontext() if runs else pytest.raises(UserError, match=f"{schedule} of compiled layers"):
        assert emit_torchtitan(job_of(software="torchtitan-compiled"), plan)


@pytest.mark.parametrize("ep", [2, 4])
def test_torchtitan_spreads_experts_of_replicas_over_tp_alone(ep):
    """efsdp = dp_shard * cp * tp // ep is 0 in build_mesh of torchtitan/distributed/parallel_dims.py."""
    job, plan = job_of("qwen3-30b-a3b", "torchtitan"), Plan(tp=2, dp=8, ep=ep, sequence_parallel=True)
    refused = pytest.raises(
        UserError, match="no ep=4 of replicas: .* and tp=2; take --zero 2 or 3, or an --ep"
    )
    with refused if ep == 4 else nullcontext():
        emit_torchtitan(job, plan)
    emit_torchtitan(job, replace(plan, zero=3))


def test_torchtitan_cuts_experts_over_tp_where_there_is_no_ep():
    """_routed_experts_sharding_configs in torchtitan/models/common/moe_sharding.py."""
    job, plan = job_of("qwen3-30b-a3b", "torchtitan"), Plan(tp=2, dp=8, zero=3, sequence_parallel=True)
    cut = replace(job, stack=replace(job.stack, expert_tp=True))
    with pytest.raises(UserError, match="no whole experts on tp=2 ranks .* give --etp tp, or take an --ep"):
        emit_torchtitan(job, plan)
    assert "expert_parallel_degree = 1" in emit_torchtitan(cut, plan)
    with pytest.raises(UserError, match="no key to cut experts over tp beside ep=2; leave --etp tp out"):
        emit_torchtitan(cut, replace(plan, ep=2))
    assert "expert_parallel_degree = 2" in emit_torchtitan(job, replace(plan, ep=2))


@pytest.mark.parametrize(("plan", "ranks"), [
    (Plan(dp=512, zero=3), 512),
    (Plan(dp=512, zero=3, shards=256), None),
    (Plan(dp=512, ep=8, zero=3), None),
    (Plan(tp=4, dp=1024, ep=8, zero=3, sequence_parallel=True), 512),
    (Plan(dp=96, zero=3), None),
])  # fmt: skip
def test_torchtitan_cuts_no_expert_unevenly(plan, ranks):
    """FSDP does not support uneven sharding on dim 1 (_fsdp_param.py in PyTorch), which torchtitan asks for
    where 128 experts are on more ranks; their matrices have 768 and 2048 rows."""
    job = job_of("qwen3-30b-a3b", "torchtitan", batch=plan.dp)
    refused = pytest.raises(UserError, match=f"of 768 and 2048 rows, over {ranks} ranks of FSDP")
    with refused if ranks else nullcontext():
        emit_torchtitan(job, plan)


def test_torchtitan_refuses_a_sequence_that_tp_and_both_chunks_of_cp_do_not_divide():
    """`training.seq_len % (tp * 2 * cp)` in Trainer.__init__: 4096 + 32 tokens are 1032 for each of 4 ranks
    of cp, which 8 of tp cut, and no multiple of 64."""
    plan = Plan(tp=8, cp=4, dp=2, zero=3, sequence_parallel=True)
    job = replace(job_of(software="torchtitan"), sequence=4096 + 32)
    assert not [*why_not(job, plan)]
    with pytest.raises(UserError, match="4128 tokens with tp=8 and cp=4; take a multiple of 64"):
        emit_torchtitan(job, plan)
    assert emit_torchtitan(replace(job, sequence=4096 + 64), plan)


def test_what_torchtitan_does_not_have_is_refused_in_a_sentence():
    titan = job_of(software="torchtitan")
    ring = replace(titan, stack=replace(titan.stack, context_parallel="ring"))
    assert emit_torchtitan(ring, Plan(dp=8, zero=3)) == emit_torchtitan(titan, Plan(dp=8, zero=3))
    for job, plan, said in (
        (titan, Plan(pp=4, dp=4, schedule="zb-h2"), "no schedule zb-h2"),
        (titan, Plan(dp=8, zero=1), "no ZeRO-1"),
        (titan, Plan(cp=2, dp=4), "shards them over cp"),
        (titan, Plan(cp=4, dp=4, zero=3, shards=2), "take a multiple of 4"),
        (replace(titan, global_batch=63), Plan(cp=2, dp=3, zero=3, shards=3), "take a multiple of 2"),
        (ring, Plan(cp=2, dp=4, zero=3), "leave --context-parallel ring out"),
        (on(titan, prefetch=False), Plan(dp=8, zero=3), "no key for prefetch False"),
        (titan, Plan(dp=8, recompute="full", recompute_layers=2), "2 layers of a stage"),
        (replace(titan, offload=("optimizer",)), Plan(dp=8, zero=3), "take --offload optimizer,weights with"),
        (
            replace(titan, offload=("optimizer", "weights", "activations")),
            Plan(dp=8, zero=3),
            "no activations on the host",
        ),
        (
            job_of("qwen3-30b-a3b", "torchtitan", capacity_factor=1.5),
            Plan(dp=8, zero=3),
            "no capacity factor",
        ),
        (job_of("gpt2", "torchtitan"), Plan(dp=8), "no model of these sizes"),
        (job_of(), Plan(dp=8, zero=3), "other software than torchtitan"),
    ):
        with pytest.raises(UserError, match=said):
            emit_torchtitan(job, plan)


# ------------------------------------------------------------------------------------------- the command line


ASKED = ["plan", "--model", "llama-3-8b", "--gpus", "16", "--global-batch", "64", "--tp", "2", "--pp", "2"]


def test_what_is_emitted_is_all_that_is_printed_and_costs_the_same_when_read_back(capsys, tmp_path):
    assert main([*ASKED, "--zero", "1", "--emit", "megatron"]) == 0
    script = capsys.readouterr().out
    assert script.startswith("#!/bin/bash\n# llama-3-8b on 16 GPUs") and script.endswith('"$@"\n')
    assert "data-parallel size 4, 16 microbatches" in script
    file = tmp_path / "launch.sh"
    file.write_text(script)
    assert main([*ASKED, "--zero", "1", "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert main(["plan", "--from-megatron", str(file), "--json"]) == 0
    read = json.loads(capsys.readouterr().out)
    assert read.pop("better")["step_seconds"] < planned["step_seconds"]
    assert read == planned


def test_a_scripts_plan_is_told_the_best_that_megatron_can_launch(capsys, tmp_path):
    file = tmp_path / "launch.sh"
    file.write_text(emit_megatron(job_of(), Plan(tp=8, pp=2, dp=1, recompute="full", sequence_parallel=True)))
    assert main(["plan", "--from-megatron", str(file), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    best = found["better"]
    assert (
        best["step_seconds"] < found["step_seconds"]
        and best["fits"]
        and best["plan"]["schedule"] in ("1f1b", "interleaved")
    )
    assert main(["plan", "--from-megatron", str(file), "--timeline", "none"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert f"{1 - best['step_seconds'] / found['step_seconds']:.1%} less time" in words
    assert "Of the plans that Megatron-Core 0.19.2 can launch" in words


def test_the_best_plan_is_told_that_nothing_is_better(capsys, tmp_path):
    file = tmp_path / "launch.sh"
    searched = ["plan", "--model", "gpt2", "--gpus", "8", "--global-batch", "8", "--sequence", "1024"]
    assert main([*searched, "--emit", "megatron"]) == 0
    file.write_text(capsys.readouterr().out)
    assert main(["plan", "--from-megatron", str(file), "--timeline", "none"]) == 0
    assert "finds no plan that Megatron-Core 0.19.2 can launch and that is faster" in " ".join(
        capsys.readouterr().out.split()
    )


@pytest.mark.parametrize(
    "switch, said",
    [
        ("--dispatcher allgather --ep 8", "no key for dispatcher allgather; leave --dispatcher out"),
        ("--no-flash-attention", "no key for attention unfused; leave --no-flash-attention out"),
        ("--overlap none", "no key for dp_overlap False; leave --overlap out"),
        ("--overlap tp,dp --tp 2", "no key for tp_overlap backward; leave --overlap out"),
        ("--dtype mxfp8 --hardware b200", "no recipe written here in mxfp8; choose bf16 or fp8-row"),
        ("--dtype fp8", "no float8 with the scales of fp8; its Float8LinearConverter scales each row: take"),
    ],
)
@pytest.mark.parametrize("software", ["", "--software torchtitan"])
def test_what_is_priced_and_has_no_key_of_torchtitan_is_refused(switch, said, software, capsys):
    """And no switch is dropped where --emit alone chooses the software."""
    model = "qwen3-30b-a3b" if "--ep" in switch else "llama-3-8b"
    asked = f"plan --model {model} --gpus 16 --global-batch 256 --zero 3 --emit torchtitan"
    assert main([*asked.split(), *switch.split(), *software.split()]) == 2
    assert said in capsys.readouterr().err


def test_emit_torchtitan_is_for_torchtitans_software_unless_another_is_named(capsys):
    assert main([*ASKED, "--zero", "3", "--emit", "torchtitan"]) == 0
    assert "data_parallel_shard_degree = 4" in capsys.readouterr().out
    assert main([*ASKED, "--emit", "torchtitan", "--software", "nemo"]) == 2
    assert "take --software torchtitan" in capsys.readouterr().err


def test_a_script_in_torchtitans_words(capsys, tmp_path):
    file = tmp_path / "launch.sh"
    file.write_text(emit_megatron(job_of(), Plan(tp=2, dp=8, zero=3, sequence_parallel=True)))
    assert main(["plan", "--from-megatron", str(file), "--emit", "torchtitan"]) == 0
    assert "tensor_parallel_degree = 2" in capsys.readouterr().out


@pytest.mark.parametrize(
    "content, options, said",
    [
        (b"", [], "it is empty"),
        (b"\x7fELF\x02\x01\xff\xfe", [], "not UTF-8"),
        (b"--num-layers 3\0", [], "zero bytes"),
        (b"hello", [], "no command line"),
        (LINE.encode(), ["--tp", "4"], "--tp is the business of"),
        (LINE.encode(), ["--model", "gpt2"], "--model is the business of"),
        (LINE.encode(), ["--gpus", "-8"], "does not divide"),
        (LINE.encode(), ["--vocab", "-8"], "vocab"),
        (None, [], "no such file"),
    ],
)
def test_bad_files_are_one_sentence_and_exit_code_2(content, options, said, capsys, tmp_path):
    file = tmp_path / "launch.sh"
    if content is not None:
        file.write_bytes(content)
    assert main(["plan", "--from-megatron", str(file), *options]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1 and said in printed.err


def test_the_job_needs_its_gpus_and_its_batch(capsys):
    assert main(["plan", "--model", "gpt2"]) == 2
    assert "--gpus, GPUs in all; and --global-batch, sequences in a step" in capsys.readouterr().err


@pytest.mark.parametrize(
    "framework, some", [("megatron", "--tensor-model-parallel-size N"), ("torchtitan", "Interleaved1F1B")]
)
def test_the_tables_are_printed_with_their_release(framework, some, capsys):
    assert main(["flags", framework]) == 0
    printed = capsys.readouterr().out
    assert some in printed and frozen(framework)["version"] in printed
    assert main(["flags", framework, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["fields"]


@pytest.mark.parametrize(
    ("software", "plan", "unsaid"),
    [
        ({"tp_overlap": "all"}, Plan(dp=8), "--tp-comm-overlap"),
        ({"selective": ("mlp",)}, Plan(dp=8), "--recompute-modules"),
        ({}, Plan(tp=2, dp=4, zero=2), "export CUDA_DEVICE_MAX_CONNECTIONS"),
    ],
)
def test_megatron_is_told_nothing_that_the_plan_does_not_use(software, plan, unsaid):
    assert unsaid not in emit_megatron(on(job_of(), **software), plan)


@pytest.mark.parametrize(
    ("gpu", "told"), [("h100", False), ("gb200", False), ("a100-80", True), ("h100-nvl-bridged", True)]
)
def test_gpus_without_multicast_are_told_to_do_without(gpu, told):
    """initialize_ub in transformer_engine/pytorch/module/base.py stops without one or the other."""
    job = replace(job_of(software="nemo"), hardware=find_hardware(gpu))
    two, one = (emit_megatron(job, Plan(tp=tp, dp=8, sequence_parallel=tp > 1)) for tp in (2, 1))
    assert ("export UB_SKIPMC=1" in two) == told and "UB_SKIPMC" not in one
    assert "UB_SKIPMC" not in emit_megatron(replace(job, stack=STACKS["megatron-core"]), Plan(tp=2, dp=8))


@pytest.mark.parametrize(
    ("gpu", "tp", "said"),
    [
        ("h100", 16, "over 16 GPUs, of which NVLink joins 8; take a smaller --tp, or --software megatron-co"),
        ("gb200", 16, ""),
        ("l40s", 2, "over 2 GPUs, of which NVLink joins 1; take --tp 1, or --software megatron-core"),
    ],
)
def test_tp_in_parts_beside_matmuls_stays_on_one_nvlink(gpu, tp, said):
    job = replace(job_of("llama-3-70b", software="nemo"), hardware=find_hardware(gpu))
    plan = Plan(tp=tp, dp=4, sequence_parallel=True)
    with pytest.raises(UserError, match=said) if said else nullcontext():
        assert "--tp-comm-overlap" in emit_megatron(job, plan)
    assert "--tp-comm-overlap" not in emit_megatron(replace(job, stack=STACKS["megatron-core"]), plan)
    many = FRAMEWORKS["megatron"].has(job, replace(plan, tp=np.array([1, tp]), dp=np.array([4 * tp, 4])))
    assert many.tolist() == [True, not said]


@pytest.mark.parametrize("name", [*FRAMEWORKS])
@pytest.mark.parametrize(
    "plan", [Plan(dp=16, zero=3), Plan(dp=16, zero=1), Plan(dp=16, zero=1, recompute="selective")]
)
def test_that_a_plan_is_for_other_software_is_said_before_what_a_switch_of_it_would_break(name, plan):
    """PyTorch's has no live_weights, and recomputes every second matrix."""
    said = f"the plan is for pytorch, which is other software than {FRAMEWORKS[name].release}: take --softw"
    with pytest.raises(UserError, match=said):
        FRAMEWORKS[name].written(job_of(software="pytorch"), plan)


@pytest.mark.parametrize("name", [*FRAMEWORKS])
@pytest.mark.parametrize(("gpu", "has"), [("v100", False), ("t4", False), ("a10", True), ("mi300x", True)])
def test_no_script_in_bf16_is_written_for_a_gpu_without(name, gpu, has):
    """CUDA's compute capabilities below 8.0; the plan is priced all the same."""
    framework = FRAMEWORKS[name]
    job = framework.priced(replace(job_of(software="fsdp-2023"), hardware=find_hardware(gpu)))
    said = f"are in bf16 here, which {gpu} does not have"
    with nullcontext() if has else pytest.raises(UserError, match=said):
        assert framework.written(job, Plan(dp=8, zero=3))
    assert predict(job, Plan(dp=8, zero=3)).seconds > 0
    assert bool(framework.refusal(job, Plan(dp=8, zero=3))) != has


def test_one_hardware_queue_is_asked_for_before_blackwell_alone():
    """megatron/training/arguments.py: "requirement no longer exists since the Blackwell architecture"."""
    plan = Plan(tp=2, dp=4)
    scripts = [
        emit_megatron(replace(job_of(), hardware=find_hardware(name)), plan) for name in ("h100", "b200")
    ]
    assert [CONNECTIONS in script for script in scripts] == [True, False]


def test_without_a_pipeline_torchtitan_is_asked_for_no_schedule():
    plan = Plan(dp=8, zero=3)
    titan = job_of(software="torchtitan")
    assert emit_torchtitan(titan, replace(plan, schedule="zb-h2")) == emit_torchtitan(titan, plan)
