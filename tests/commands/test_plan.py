"""Claims about `ndparallel plan`, `explain` and `validate`: what they print, and what they refuse."""

import argparse
import json
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from gpu import si
from ndparallel.commands.command_line import main
from ndparallel.commands.explain import explained, smallest_job
from ndparallel.commands.explain.rows import rows_of
from ndparallel.commands.plan import better_plan
from ndparallel.hardware.accelerator import find_hardware
from ndparallel.launch_flags.frameworks import FRAMEWORKS
from ndparallel.planner.describe import cut_words, headline, layout_words, sentences
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.models.presets import find_model
from ndparallel.planner.prediction import Prediction, predict
from ndparallel.planner.software import find_stack
from ndparallel.planner.step.framework import FrameworkWorkload, framework_workload
from ndparallel.planner.step.pipeline import PipelineTimer
from ndparallel.planner.step.step import Step
from ndparallel.training.job import Job
from ndparallel.validation.cases import read_cases
from tests.support.common import measured

LLAMA = ["--model", "llama-3-8b", "--gpus", "8", "--global-batch", "8"]
KEYS = {
    "step_seconds",
    "breakdown_seconds",
    "tokens_per_second_per_gpu",
    "tflops_per_gpu",
    "mfu",
    "hfu",
    "parameters",
}


def answered(capsys, *options: str) -> dict:
    assert main(["plan", *options, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def refusal(capsys, *options: str) -> str:
    assert main(["plan", *LLAMA, *options]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1
    return printed.err


@pytest.mark.parametrize(("degree", "said"), [(1, ""), (2, "2"), (8, "8")])
def test_a_plan_in_words_has_no_degrees_of_1(degree, said):
    words = layout_words(Plan(tp=degree, dp=16, ep=degree))
    assert words == ([f"TP{said} x DP16", f"EP{said}"] if said else ["DP16"])
    stack = replace(find_stack("megatron-core"), expert_tp=True)
    mixture = TrainingJob(find_model("mixtral-8x7b"), find_hardware("h100"), stack, 4096, 64)
    cut = cut_words(mixture, Plan(tp=degree))
    assert cut == (f"each expert cut over {said} tp ranks" if said else "")


def test_the_parameters_of_a_small_model_are_counted_one_by_one(capsys):
    shape = "--layers 8 --hidden 32 --heads 8 --kv-heads 2 --ffn 88 --vocab 256 --sequence 64"
    job = f"--hardware pocket {shape} --global-batch 8 --gpus 1 --tp 1"
    assert main(["plan", *job.split()]) == 0
    assert "from options  104,992 parameters on 1 GPU (pocket)" in capsys.readouterr().out
    assert main(["plan", *LLAMA, "--dp", "8"]) == 0
    assert "llama-3-8b  8.03 billion parameters on 8 GPUs" in capsys.readouterr().out


def test_json_has_the_stable_keys_and_its_parts_add_up(capsys):
    found = answered(capsys, *LLAMA, "--tp", "2", "--pp", "2")
    assert KEYS | {"memory_bytes_per_stage", "error_bar"} <= found.keys()
    assert sum(found["breakdown_seconds"].values()) == pytest.approx(found["step_seconds"])
    for stage in found["memory_bytes_per_stage"]:
        assert sum(bytes_ for kind, bytes_ in stage.items() if kind != "total") == pytest.approx(
            stage["total"]
        )
    assert found["parameters"] == 8_030_261_248
    assert found["tokens_per_second_per_gpu"] == pytest.approx(8 * 4096 / 8 / found["step_seconds"])
    assert found["days"] == pytest.approx(1e12 / (8 * 4096) * found["step_seconds"] / 86400)


@pytest.mark.parametrize("output", [(), ("--json",), ("--emit", "megatron")])
def test_one_plan_builds_one_parser_workload_and_step_and_a_timer_more_for_ports(capsys, monkeypatch, output):
    built = []
    for kind in (argparse.ArgumentParser, FrameworkWorkload, PipelineTimer, Step):

        def counted(self, *given, kind=kind, init=kind.__init__, **named):
            built.append(kind.__name__)
            init(self, *given, **named)

        monkeypatch.setattr(kind, "__init__", counted)
    shape = "--layers 8 --hidden 4096 --heads 32 --ffn 11008 --vocab 256 --gpus 8 --global-batch 16"
    assert main(["plan", *shape.split(), "--tp", "2", "--pp", "2", *output]) == 0
    assert "Stage imbalance" not in capsys.readouterr().out  # which would time another split
    timers = ["PipelineTimer"] * (1 if "--emit" in output else 2)
    assert sorted(built) == ["ArgumentParser", "FrameworkWorkload", *timers, "Step"]


def test_a_given_plan_imports_neither_the_search_nor_the_lessons_own_layers():
    plan = ["plan", *LLAMA, "--tp", "2"]
    seen = f"import sys; from ndparallel.commands.command_line import main; main({plan}); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", seen], capture_output=True, text=True, check=True)
    imported = done.stdout.splitlines()[-1].split()
    strangers = ("ndparallel.search", "ndparallel.model.layers", "ndparallel.planner.lesson_runs")
    assert "ndparallel.planner.step.step" in imported
    assert [name for name in imported if name.startswith(strangers)] == []


def test_dp_and_the_number_of_microbatches_are_derived_and_shown(capsys):
    assert main(["plan", *LLAMA, "--tp", "2", "--timeline", "none"]) == 0
    printed = capsys.readouterr().out
    assert "TP2 x DP4" in printed and "2 microbatches of 1 for each of 4 data-parallel ranks" in " ".join(
        printed.split()
    )


def test_megatrons_names_mean_the_same(capsys):
    ours = [
        "--tp",
        "2",
        "--pp",
        "2",
        "--micro-batch",
        "2",
        "--zero",
        "1",
        "--recompute",
        "full",
        "--sequence",
        "2048",
        "--chunks",
        "4",
    ]
    theirs = [
        "--tensor-model-parallel-size",
        "2",
        "--pipeline-model-parallel-size",
        "2",
        "--micro-batch-size",
        "2",
    ]
    theirs += ["--use-distributed-optimizer", "--recompute-granularity", "full", "--seq-length", "2048"]
    theirs += ["--num-layers-per-virtual-pipeline-stage", "4"]
    assert answered(capsys, *LLAMA, *ours) == answered(capsys, *LLAMA, *theirs)


def test_a_model_may_be_given_by_its_sizes(capsys):
    sizes = [
        "--num-layers",
        "32",
        "--hidden-size",
        "4096",
        "--num-attention-heads",
        "32",
        "--num-query-groups",
        "8",
    ]
    sizes += ["--ffn-hidden-size", "14336", "--vocab-size", "128256"]
    assert answered(capsys, *sizes, *LLAMA[2:]) == answered(capsys, *LLAMA)


def test_recomputation_costs_time_and_hfu_but_no_mfu_flops_and_saves_memory(capsys):
    none, full = (answered(capsys, *LLAMA, "--zero", "3", "--recompute", kind) for kind in ("none", "full"))
    assert full["hfu"] / full["mfu"] == pytest.approx(4 / 3, rel=0.1)
    assert none["hfu"] == none["mfu"]
    assert full["step_seconds"] > none["step_seconds"]
    assert full["memory_bytes_per_stage"][0]["total"] < none["memory_bytes_per_stage"][0]["total"]


def test_fp8_halves_matmuls_at_most(capsys):
    bf16, fp8 = (answered(capsys, *LLAMA, "--dp", "8", "--dtype", dtype) for dtype in ("bf16", "fp8"))
    assert 0.5 < fp8["step_seconds"] / bf16["step_seconds"] < 0.9
    assert fp8["mfu"] < bf16["mfu"]  # of twice the peak


def test_what_hides_behind_nothing_takes_longer(capsys):
    zero = ["--zero", "1", "--pp", "2"]
    hidden, exposed = (
        answered(capsys, *LLAMA, *zero, "--overlap", which) for which in ("tp,dp,pp,cp", "none")
    )
    assert exposed["step_seconds"] > hidden["step_seconds"]
    assert exposed["breakdown_seconds"]["compute"] == pytest.approx(hidden["breakdown_seconds"]["compute"])


def test_hsdp_talks_less_across_nodes_than_fsdp_and_holds_more(capsys):
    job = ["--model", "llama-3-8b", "--gpus", "64", "--global-batch", "64", "--zero", "3"]
    fsdp, hsdp = answered(capsys, *job), answered(capsys, *job, "--shards", "8")
    assert hsdp["memory_bytes_per_stage"][0]["optimizer"] == pytest.approx(
        8 * fsdp["memory_bytes_per_stage"][0]["optimizer"]
    )
    assert main(["plan", *job, "--shards", "8"]) == 0
    assert "DP64, HSDP with 8 shards." in " ".join(capsys.readouterr().out.split())


def test_shards_over_all_of_dp_are_fsdp_in_words():
    assert (
        layout_words(Plan(dp=64, zero=3, shards=64)) == layout_words(Plan(dp=64, zero=3)) == ["DP64", "FSDP"]
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--tp", "16"], "8 GPUs are no multiple of tp*pp*cp = 16; the nearest is 16."),
        (
            ["--tp", "2", "--dp", "3"],
            "tp*pp*cp = 2 times dp = 3 is 6 GPUs, not 8: leave dp out (it is then 4), or take --gpus 6.",
        ),
        (["--tp", "2", "--dp", "4", "--gpus", "9"], "dp = 4 is 8 GPUs, not 9: take --gpus 8."),
        (["--ep", "2"], "has no experts"),
        (["--gpus", "5", "--tp", "5"], "cannot cut 32 heads; nearest: 4 or 8"),
        (["--gpus", "8", "--tp", "5"], "cannot cut 32 heads; nearest: 4 or 8"),
        (["--gpus", "8", "--cp", "3"], "which 4096 tokens are no multiple of; nearest: 2 or 4."),
        (["--pp", "3"], "8 GPUs are no multiple of tp*pp*cp = 3; the nearest are 6 and 9."),
        (["--dp", "8", "--global-batch", "12"], "nearest batch that can is 16"),
        (["--schedule", "1f2b"], "Did you mean '1f1b'?"),
        (["--pp", "8", "--chunks", "8"], "32 layers cannot fill 64 stages"),
        (
            ["--pp", "4", "--schedule", "interleaved", "--gpus", "8", "--global-batch", "6"],
            "take 4 or more, not 3",
        ),
        (["--cp", "2", "--sequence", "4095"], "cuts a sequence in 4 parts"),
        (["--model", "llama-3-9b"], "Did you mean"),
        (["--hardware", "v100", "--dtype", "fp8"], "does not multiply fp8"),
        (["--software", "jax"], "unknown software"),
        (["--overlap", "tp,fp"], "fp cannot be overlapped"),
        (["--layers", "3"], "has its sizes already"),
        (["--kv-heads", "3"], "leave out --kv-heads"),
        (["--csv", "--why", "TP8"], "--csv prints plans, and no answer to --why"),
        (
            ["--tp", "8", "--emit", "megatron", "--framework", "torchtitan"],
            "name other frameworks: choose one",
        ),
        (["--micro-batch", "0"], "at least 1"),
        (["--tokens", "-1"], "above 0"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(capsys, options, said):
    assert said in refusal(capsys, *options)


def test_stages_may_be_given_their_layers_and_their_layout_is_written(capsys):
    """Of 32 layers, by their numbers or in the plan's name."""
    plan = [*LLAMA, "--emit", "megatron"]
    for words in (
        ["--pp", "4", "--stage-layers", "9,9,9,5"],
        ["--plan", "PP4xDP2,zero0,1f1b,stages9+9+9+5,mbs1"],
    ):
        assert main(["plan", *plan, *words]) == 0
        assert '--pipeline-model-parallel-layout "Et*9|t*9|t*9|t*5L"' in capsys.readouterr().out
    assert "4 stages of 9, 9, 9 and 9 layers" in refusal(capsys, "--pp", "4", "--stage-layers", "9,9,9,9")
    assert "no list of whole numbers" in refusal(capsys, "--pp", "4", "--stage-layers", "nine")


TINY = [
    *("--layers", "4", "--hidden", "16", "--heads", "4", "--ffn", "24", "--vocab", "256", "--sequence", "32"),
    *("--gpus", "2", "--global-batch", "4", "--hardware", "pocket"),
]


@pytest.mark.parametrize("job", [LLAMA, TINY], ids=["h100", "pocket"])
@pytest.mark.parametrize("schedule", ["interleaved", "looped-bfs"])
def test_a_schedule_of_several_chunks_is_not_planned_with_one(capsys, job, schedule):
    assert main(["plan", *job, "--pp", "2", "--schedule", schedule, "--chunks", "1"]) == 2
    said = f"error: {schedule} keeps at least 2 chunks per rank, not 1: take 2, or 1f1b with 1.\n"
    assert capsys.readouterr().err == said


def test_explain_lists_a_layers_operations_and_what_bounds_each(capsys):
    assert main(["explain", *LLAMA, "--tp", "8", "--json"]) == 0
    passes = json.loads(capsys.readouterr().out)["passes"]
    forward = {row["name"]: row for row in passes["forward"]}
    assert forward["gate_up forward"]["flops"] == 2 * 4096 * 4096 * 2 * 14336 / 8
    assert forward["gate_up forward"]["bound"] == "compute" and forward["swiglu"]["bound"] == "memory"
    assert forward["tp all_gather"]["bound"] == "network"
    assert main(["explain", *LLAMA, "--unit", "head"]) == 0
    assert "logits dgrad" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("gpus", "dp", "job"),
    [(None, None, (16, 12)), (None, 4, (32, 24)), (64, None, (64, 48)), (64, 2, (64, 12)), (4, None, (4, 6))],
)
def test_explain_takes_the_smallest_job_of_its_degrees_and_what_is_given(gpus, dp, job):
    """Of tp 2 x cp 2 x pp 2 x ep 2: a microbatch of 3 for each of 2 stages and of dp ranks; dp comes from
    the GPUs where it is not given, and is ep where neither is."""
    degrees = dict.fromkeys(("tp", "cp", "pp", "ep"), 2)
    given = argparse.Namespace(**degrees, micro_batch=3, gpus=gpus, dp=dp, global_batch=None)
    made = smallest_job(given)
    assert (made.gpus, made.global_batch) == job


@pytest.mark.parametrize(
    ("seconds", "missing", "is_better"),
    [(9.5, 0.0, False), (15.0, 0.0, False), (15.1, 0.0, True), (9.5, 0.5, True)],
)
def test_a_plan_is_better_where_predictions_can_tell_or_where_the_other_does_not_fit(
    monkeypatch, seconds, missing, is_better
):
    """Predictions that may be half off cannot tell 15 s from 10 s."""
    searched = SimpleNamespace(best=SimpleNamespace(seconds=10.0, plan=None), recommended="better")
    monkeypatch.setattr(better_plan, "search_whole_too", lambda *given, **limits: searched)
    monkeypatch.setattr(better_plan, "margin", lambda job, plan: 0.5)
    found: Any = SimpleNamespace(seconds=seconds, missing_bytes=missing, plan=Plan(), job=None)
    assert (better_plan.better(found, FRAMEWORKS["megatron"]) is not None) == is_better


def test_explain_names_both_halves_of_a_backward_pass_in_words(capsys):
    assert main(["explain", *LLAMA]) == 0
    printed = capsys.readouterr().out
    for half in ("inputs", "weights"):
        assert f"backward, gradients of {half}  one microbatch through a layer: " in printed
    assert "backward_" not in printed


@pytest.mark.parametrize("offload", [(), ("activations",)])
def test_the_rows_of_explain_add_up_to_a_layers_seconds_with_what_launches_and_the_host_take(offload):
    """The CPU of a GB200 launches this layer in 4.4 ms, and its rows were 1.2 ms."""
    stack, gpu = find_stack("megatron-core"), find_hardware("gb200")
    job = TrainingJob(find_model("llama-3-8b"), gpu, stack, 1024, 8, offload=offload)
    work = framework_workload(job, Plan(tp=8, sequence_parallel=True))
    rows = [row for some in explained(rows_of(work), "dense").values() for row in some]
    assert sum(row.seconds for row in rows) == pytest.approx(float(work.pricing.unit("dense").total.total))
    assert "launches" in {row.bound for row in rows}


def test_validate_prints_every_run_and_its_json_has_the_stable_keys(capsys, tmp_path):
    runs = tmp_path / "runs.json"
    runs.write_text(json.dumps(read_cases()[7:9]))
    assert main(["validate", "--cases", str(runs), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [case["id"] for case in found["cases"]] == ["kor_t5_22B_full", "kor_t5_22B_seqsel"]
    assert len(found["contrasts"]) == 1 and found["mean_absolute_step_error"] < 0.05
    assert main(["validate", "--cases", str(runs)]) == 0
    assert "2 runs. Step time" in capsys.readouterr().out
    assert main(["validate", "--cases", str(tmp_path / "none.json")]) == 2


def test_an_error_bar_is_wider_where_a_job_is_unlike_most_measured_runs(capsys):
    """Dense, in 16 bits, on an H100; and a mixture of experts on a GPU of whose kind no run is known."""
    dense = answered(capsys, *LLAMA, "--dp", "8")["error_bar"]
    mixture = ("--model", "mixtral-8x7b", "--gpus", "8", "--global-batch", "8", "--ep", "8", "--dp", "8")
    unlike = answered(capsys, *mixture, "--hardware", "mi300x", "--dtype", "fp8")["error_bar"]
    assert 0.02 < dense < 0.4 * unlike


def test_the_lessons_model_may_be_planned_too(capsys):
    sizes = [
        "--layers",
        "8",
        "--hidden",
        "32",
        "--heads",
        "8",
        "--kv-heads",
        "2",
        "--ffn",
        "88",
        "--vocab",
        "256",
        "--sequence",
        "64",
    ]
    found = answered(
        capsys,
        *sizes,
        "--hardware",
        "pocket",
        "--gpus",
        "4",
        "--global-batch",
        "8",
        "--zero",
        "3",
        "--micro-batch",
        "2",
    )
    assert found["step_seconds"] == pytest.approx(
        measured("4d_combined", "DP only", Job(zero=3), 4).step_seconds, rel=1e-9
    )


def test_what_is_not_as_usual_is_said(capsys):
    sparse = "--model mixtral-8x7b --hardware b200 --gpus 8 --ep 8 --global-batch 64 --timeline none"
    again = "--recompute selective --recompute-modules layernorm moe_act"
    rows = "--routing-imbalance 1.3 --capacity-factor 2"
    assert main(f"plan {sparse} {again} {rows}".split()) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert (
        "recomputing layernorm and moe_act, the busiest rank's experts with 1.3 times the mean's rows, "
        "capacity factor 2." in said
    )
    some = "--recompute full --recompute-num-layers 4 --cp 2 --cp-comm-type all_gather"
    assert main(["plan", *LLAMA, *some.split()]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "full recomputation of 4 layers a stage, keys and values gathered." in said


@pytest.mark.parametrize(("command", "options"), [
    ("plan", ["--tp", "16"]), ("explain", ["--tp", "16"]), ("plan", ["--fix", "tp=16"]),
])  # fmt: skip
def test_a_tp_group_on_several_nodes_is_told_once(command, options, capsys):
    """Of a search, where the plan to take has one."""
    job = ["--model", "llama-3-8b", "--gpus", "16", "--global-batch", "16"]
    assert main([command, *job, *options]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert said.count("TP16 lies on 2 nodes of 8 GPUs: its messages leave a node by 8 ports of 45") == 1


def test_a_plan_says_that_tp_cuts_experts_and_where_they_are_spread_then():
    mixture = TrainingJob(
        find_model("mixtral-8x7b"), find_hardware("h100"), find_stack("megatron-core"), 4096, 64
    )
    cutting = replace(mixture, stack=replace(mixture.stack, expert_tp=True))
    folded = Plan(tp=4, cp=2, dp=4, ep=8, sequence_parallel=True)
    whole, cut = (predict(job, folded) for job in (mixture, cutting))
    assert "cut over" not in headline(whole) and "each expert cut over 4 tp ranks" in headline(cut)
    assert "spread over tensor- and context-parallel ranks too" in sentences(whole, 1e12)[-1]
    (said,) = [line for line in sentences(cut, 1e12) if line.startswith("EP8 does not divide DP4")]
    assert "spread over context-parallel ranks too" in said and "expert tensor parallelism 4)" in said
    assert "cut over" not in headline(predict(cutting, Plan(dp=8, ep=8)))


def test_explain_says_what_a_plan_counts_where_all_to_alls_hide_beside_another_microbatch(capsys):
    options = "explain --model qwen3-30b-a3b --dp 16 --ep 16 --gpus 16 --global-batch 128"
    assert main(options.split()) == 0
    assert "for itself" not in capsys.readouterr().out
    assert main([*options.split(), "--overlap", "ep"]) == 0
    assert "A plan counts" in capsys.readouterr().out


def test_no_rank_gets_more_rows_than_tokens_can_choose_of_its_experts_and_it_is_said(capsys):
    """Two of 8 experts each: one of them on a rank gets at most a row of every token, 4 times the mean."""
    words = "--model mixtral-8x7b --hardware b200 --gpus 64 --global-batch 64 --ep 8 --routing-imbalance"
    four, eight = (answered(capsys, *words.split(), each)["step_seconds"] for each in ("4", "8"))
    assert four == eight
    assert main(["plan", *words.split(), "8", "--timeline", "none"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "experts with 4 times the mean's rows, and no rank can have more" in told


def test_what_if_says_which_plans_cut_experts_over_tp(capsys):
    options = "plan --model mixtral-8x7b --gpus 64 --global-batch 64 --zero 1 --ep 8 --tp 4 --what-if etp=tp"
    assert main(options.split()) == 0
    *_, before, after = capsys.readouterr().out.splitlines()
    assert "each expert cut over 4 tp ranks" in after and "cut" not in before


def test_an_option_cuts_experts_over_tp_as_a_what_if_does_and_a_search_keeps_to_it(capsys):
    job = "--model mixtral-8x7b --gpus 64 --global-batch 64 --zero 1 --ep 8 --tp 4"
    words = job.split()
    whole = answered(capsys, *words, "--what-if", "etp=tp")
    cut = answered(capsys, *words, "--expert-tensor-parallel-size", "tp")
    assert (whole["etp"], cut["etp"]) == (1, 4)
    assert whole["what_if"][0]["step_seconds"] == cut["step_seconds"] != whole["step_seconds"]
    kept, free = (answered(capsys, *words, *etp, "--search")["recommended"] for etp in (["--etp", "tp"], []))
    assert (kept["etp"], free["etp"]) == (4, 1) and kept["step_seconds"] != free["step_seconds"]


@pytest.mark.parametrize(("option", "word"), [("etp", "1"), ("context-parallel", "all-to-all")])
def test_a_what_if_switches_what_the_lessons_own_software_has(capsys, option, word):
    job = "--hardware pocket --software pocket --layers 2 --hidden 32 --heads 8 --ffn 88 --vocab 256 "
    job += "--sequence 64 --experts 8 --expert-ffn 44 --top-k 2 "
    job += "--gpus 8 --tp 2 --cp 2 --ep 2 --global-batch 8"
    asked = answered(capsys, *job.split(), "--what-if", f"{option.replace('-', '_')}={word}")
    given = answered(capsys, *job.split(), f"--{option}", word)
    assert asked["what_if"][0]["step_seconds"] == given["step_seconds"] != asked["step_seconds"]


def test_explain_prices_the_busiest_ranks_experts(capsys):
    options = "--model mixtral-8x7b --gpus 8 --ep 8 --global-batch 64 --routing-imbalance 1.3"
    assert main(["explain", *options.split()]) == 0
    assert capsys.readouterr().out.startswith("Experts of the busiest rank: 1.3 times the mean's rows.")


def test_explain_names_the_units_that_a_model_has(capsys):
    assert main(["explain", *LLAMA, "--unit", "experts"]) == 2
    assert (
        capsys.readouterr().err
        == "error: unknown unit of llama-3-8b: 'experts'. There are: dense, embedding, head, optimizer.\n"
    )


def test_explain_shows_what_a_started_message_still_takes_when_it_is_waited_for(capsys):
    sizes = (
        "--layers 8 --hidden 32 --heads 8 --kv-heads 2 --ffn 88 --vocab 256 --sequence 64 --hardware pocket "
        "--gpus 8 --global-batch 8"
    )
    assert main(["explain", *sizes.split(), "--cp", "2", "--tp", "2", "--json"]) == 0
    ring = [
        row
        for row in json.loads(capsys.readouterr().out)["passes"]["forward"]
        if row["name"].startswith("cp")
    ]
    assert [(row["seconds"], row["beside"]) for row in ring] == [(0.0, "what stands above")]


@pytest.mark.parametrize(
    ("layout", "said"),
    [
        (["--tp", "16", "--pp", "2"], "TP, DP and PP leave the node by the same port of a GPU: + 41.7 ms"),
        (["--tp", "16"], "TP and DP leave the node by the same port of a GPU: + 42.0 ms (0.6%)"),
        (["--tp", "8", "--pp", "4"], None),  # gradients beside messages: less than 0.05%
        (["--tp", "16", "--pp", "1", "--gpus", "16"], None),  # there is nothing else to share with
    ],
)
def test_groups_that_share_a_port_are_named_with_what_that_adds(capsys, layout, said):
    assert main(["plan", "--model", "llama-3-70b", "--gpus", "64", "--global-batch", "64", *layout]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert said is None or said in printed
    assert ("Ports shared: " in printed) == bool(said)


@pytest.mark.parametrize(("command", "before"), [("plan", "A step takes"), ("explain", "forward")])
def test_what_ports_add_is_replayed_when_all_else_is_shown(command, before, capsys, monkeypatch):
    """It may take seconds, and a reader has the tables meanwhile."""
    shown = []

    def replayed(found: Prediction) -> float:
        shown.append(capsys.readouterr().out)
        return 0.0

    monkeypatch.setattr(Prediction, "sharing_seconds", property(replayed))
    layout = ["--model", "llama-3-70b", "--gpus", "64", "--global-batch", "64", "--tp", "16"]
    assert main([command, *layout]) == 0
    assert before in shown[0]


def test_explain_lists_an_optimizer_on_the_host_and_says_what_a_step_waits_for_dp(capsys):
    options = [*LLAMA, "--dp", "8", "--zero", "1", "--offload", "optimizer"]
    found = answered(capsys, *options)["breakdown_seconds"]
    assert main(["explain", *options, "--unit", "optimizer", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    rows = said["passes"]["optimizer"]
    assert sum(row["seconds"] for row in rows) == pytest.approx(found["optimizer"], rel=1e-12)
    assert (said["exposed_dp_seconds"], said["step_seconds"]) == (found["dp"], sum(found.values()))
    assert {row["bound"] for row in rows} == {"link to the host", "the host"}
    assert main(["explain", *options]) == 0
    assert f"waits {si(found['dp'], 's')} for it" in capsys.readouterr().out


def test_explain_says_what_a_gpu_waits_for_a_host_that_adds_up_gradients(capsys):
    """Three more microbatches: 12 bytes of 8.03 billion numbers each, at the rate of 28 in 0.257 ns."""
    options = "--model llama-3-8b --gpus 8 --zero 3 --software torchtitan --global-batch"
    away = ["--offload", "optimizer,weights"]
    for batch, waits in (("8", ""), ("32", "gradients is in no list: a GPU waits 2.65 s for it")):
        assert main(["explain", *options.split(), batch, *away]) == 0
        printed = " ".join(capsys.readouterr().out.split())
        assert ("What the host adds up" in printed) == bool(waits) and waits in printed


def test_explain_says_what_shared_ports_add(capsys):
    layout = ["--model", "llama-3-70b", "--gpus", "64", "--global-batch", "64", "--tp", "16"]
    assert main(["explain", *layout]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.endswith("by the same port of a GPU: + 42.0 ms (0.6%), not in the step.")


def test_json_has_the_seconds_of_sharing_only_where_ports_are_shared(capsys):
    """Experts across nodes, beside the gradients of dp."""
    mixture = ["--model", "mixtral-8x7b", "--hardware", "b200", "--gpus", "16", "--global-batch", "16"]
    alone, shared = (answered(capsys, *each) for each in ([*LLAMA, "--dp", "8"], [*mixture, "--ep", "8"]))
    assert "sharing_seconds" not in alone and 0 < shared["sharing_seconds"] < 0.1 * shared["step_seconds"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--schedule zb-h1", "Megatron-Core 0.19.2 has no flags for the schedule zb-h1"),
        ("--software deepspeed --zero 3", "DeepSpeed 0.19.6 has no ZeRO-3 in a pipeline"),
        ("--software torchtitan", ""),
        ("--software megatron-2021", ""),
    ],
)
def test_a_plan_says_that_its_own_framework_cannot_launch_it(options, said, capsys):
    job = "plan --model llama-3-8b --gpus 16 --tp 2 --pp 4 --recompute full --global-batch 64 --timeline none"
    assert main([*job.split(), *options.split()]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert ("Its framework cannot launch this plan" in printed) == bool(said)
    assert said in printed


def test_as_many_recomputed_layers_as_a_stage_has_are_all_of_them(capsys):
    options = [*LLAMA, "--pp", "4", "--recompute", "full"]
    every, of_eight, more, some = (
        answered(capsys, *options, "--recompute-layers", layers) for layers in ("0", "8", "40", "7")
    )
    assert not every.pop("notes") and of_eight.pop("notes") and more.pop("notes")  # which say so
    assert every == of_eight == more and some["step_seconds"] < every["step_seconds"]
    assert some["plan"]["recompute_layers"] == 7


@pytest.mark.parametrize(
    "option",
    ["--routing-imbalance 1.2", "--capacity-factor 2", "--etp tp", "--dispatcher deepep", "--fused-router"],
)
def test_an_option_of_routers_is_refused_where_no_experts_are(option, capsys):
    job = ["plan", "--model", "llama-3-8b", "--gpus", "8", "--global-batch", "8", "--zero", "3"]
    assert main([*job, *option.split()]) == 2
    assert f"no experts to route to: leave out {option.split()[0]}." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("model", "modules", "idle"),
    [
        ("llama-3-8b", "layernorm", "Nothing runs again of layernorm:"),
        ("llama-3-8b", "core_attn moe_act mlp", "Nothing runs again of moe_act:"),
        ("mixtral-8x7b", "layernorm moe_act", ""),
    ],
)
def test_modules_that_run_nothing_again_are_named(capsys, model, modules, idle):
    job = f"--model {model} --hardware b200 --gpus 8 --zero 3 --global-batch 64 --recompute selective"
    assert main(["plan", *job.split(), "--recompute-modules", *modules.split()]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert idle in said and ("Nothing runs again" in said) == bool(idle)
