"""Claims about `plan` as a search, `advise`, `scaling`, `--what-if`: what they print, what their JSON says,
what they refuse."""

import csv
import io
import json
import re
import shlex
from dataclasses import replace
from types import SimpleNamespace
from typing import cast
from xml.etree import ElementTree

import pytest

from gpu import si
from ndparallel.commands.advise import doubts
from ndparallel.commands.command_line import main
from ndparallel.commands.scaling import above_one
from ndparallel.planner.job import Plan
from ndparallel.planner.number_types import NUMBER_TYPES
from ndparallel.planner.prediction import PLAN_FIELDS, Prediction, predict
from ndparallel.search.advice import Advice
from ndparallel.search.scaling import Point
from ndparallel.search.search import search
from ndparallel.search.what_if import Variant, what_if
from tests.search.test_search import job

JOB = ["--model", "llama-3-8b", "--gpus", "16", "--global-batch", "16"]


def printed(capsys, *options: str) -> str:
    assert main([*options]) == 0
    return capsys.readouterr().out


def record(capsys, *options: str) -> dict:
    return json.loads(printed(capsys, *options, "--json"))


def test_a_search_says_how_many_gpus_of_a_node_it_takes_to_be_idle(capsys):
    """Six of eight, whose groups of six a mesh on such nodes has inside them, and on whole ones has not."""
    job = ["--model", "llama-3-8b", "--gpus", "48", "--global-batch", "96"]
    said = printed(capsys, "plan", *job, "--pp", "8", "--tp", "1", "--cp", "1", "--timeline", "none")
    assert "6 are taken to be used, and 2 idle" in said and "--gpus-per-node 6 of `ndparallel mesh`" in said
    assert "idle" not in printed(capsys, "plan", *JOB, "--pp", "2", "--tp", "1", "--timeline", "none")
    mesh = ["mesh", "--hardware", "h100", "--gpus", "48", "--pp", "8", "--dp", "6"]
    links = [record(capsys, *mesh, *nodes)["links"]["dp"] for nodes in ([], ["--gpus-per-node", "6"])]
    assert links == ["both", "inside"]


def test_plan_without_degrees_searches_and_its_first_plan_can_be_asked_for_by_its_degrees(capsys):
    found = record(capsys, "plan", *JOB, "--top", "4")
    assert len(found["plans"]) == 4 and {"rejected", "legal", "fit", "timed", "gap_ratio"} <= found.keys()
    assert all(isinstance(count, int) and count > 0 for count in found["rejected"].values())
    first = found["plans"][0]
    words = [
        f"--{name.replace('_', '-')}={first['plan'][name]}"
        for name in PLAN_FIELDS
        if name not in ("sequence_parallel", "shards")
    ]
    again = record(
        capsys,
        "plan",
        *JOB,
        *words,
        "--sequence-parallel" if first["plan"]["sequence_parallel"] else "--no-sequence-parallel",
    )
    assert "megatron" in first.pop("launched_by") and {key: again[key] for key in first} == first


def test_the_table_says_what_bounds_each_plan_and_why_others_were_rejected(capsys):
    out = " ".join(printed(capsys, "plan", *JOB, "--top", "10").split())
    assert len(re.findall(r"(?:bubble|tp|dp|cp|pp|optimizer) \d+%", out)) == 10
    assert "does not fit: lacks" in out and "plans the step itself" in out and "measured runs" in out


def test_what_is_given_beside_search_and_what_is_fixed_stays(capsys):
    found = record(
        capsys,
        "plan",
        *JOB,
        "--search",
        "--tp",
        "4",
        "--fix",
        "pp=2",
        "--fix",
        "schedule=1f1b",
        "--max-memory",
        "60GiB",
    )
    for each in found["plans"]:
        assert (each["plan"]["tp"], each["plan"]["pp"], each["plan"]["schedule"]) == (4, 2, "1f1b")
        assert max(stage["total"] for stage in each["memory_bytes_per_stage"]) <= 60 * 2**30


def test_json_csv_and_the_sentences_tell_how_many_layers_of_a_stage_a_plan_recomputes(capsys):
    job = ["plan", "--model", "llama-3-8b", "--hardware", "rtx-4090", "--gpus", "8", "--global-batch", "16"]
    first = next(csv.DictReader(io.StringIO(printed(capsys, *job, "--csv"))))
    best = json.loads(printed(capsys, *job, "--json"))["plans"][0]
    layers = best["plan"]["recompute_layers"]
    assert layers > 0 and int(first["recompute_layers"]) == layers
    assert best["name"] == first["name"] and best["name"].endswith(f",full{layers}")
    assert "Of --recompute-layers the fewest that fit are tried" in " ".join(printed(capsys, *job).split())


def test_csv_has_one_line_for_each_plan_with_its_degrees(capsys):
    rows = list(csv.DictReader(io.StringIO(printed(capsys, "plan", *JOB, "--csv", "--top", "3"))))
    assert len(rows) == 3 and all(
        int(row["tp"]) * int(row["pp"]) * int(row["dp"]) * int(row["cp"]) == 16 for row in rows
    )
    assert [float(row["step_seconds"]) for row in rows] == sorted(float(row["step_seconds"]) for row in rows)


def test_twice_the_memory_or_twice_the_network_is_never_slower_and_half_of_it_never_faster():
    cluster = Variant(job(batch=16), 16)

    def fastest(change: str) -> float:
        after = what_if(cluster, change)
        return search(after.job, after.gpus, top=1).best.seconds

    best = fastest("memory*1")
    assert fastest("memory*2") <= best and fastest("bandwidth_across*2") <= best
    assert best <= fastest("bandwidth_across/2") and fastest("peak=2000TFLOP/s") < 0.7 * best


def test_what_if_compares_the_plans_to_take_and_not_the_fastest_ones(capsys):
    small = ["--model", "llama-3-8b", "--gpus", "8", "--global-batch", "64"]
    found = record(capsys, "plan", *small, "--sequence", "8192", "--what-if", "memory*1")
    assert found["recommended"]["name"] != found["plans"][0]["name"], "or the claim is not tested"
    assert found["what_if"][0]["name"] == found["recommended"]["name"]


@pytest.mark.parametrize(("fixed", "batch"), [([], 1000), (["--fix", "micro_batch=2"], 2000)])
def test_where_no_layout_can_cut_the_batch_a_batch_is_named_that_some_can(fixed, batch, capsys):
    plan = ["plan", "--model", "llama-3-8b", "--gpus", "1000", *fixed, "--global-batch"]
    assert main([*plan, "1024"]) == 2
    assert f"There are some with a global batch of {batch}." in capsys.readouterr().err
    assert main([*plan, f"{batch}"]) == 0


@pytest.mark.parametrize(
    ("fixed", "said"),
    [
        (["--framework", "accelerate"], "Accelerate 1.15.0 has no pipeline"),
        (["--fix", "pp=1"], "pp=1; nearest: 7"),
    ],
)
def test_so_it_is_where_only_pipelines_can_cut_the_batch_and_none_is_wanted(fixed, said, capsys):
    """A job without --pp was told to take --pp 1, and one with it to take another."""
    plan = ["plan", "--model", "llama-3-8b", "--gpus", "7", *fixed, "--global-batch"]
    assert main([*plan, "64"]) == 2
    told = capsys.readouterr().err
    assert said in told and "There are some with a global batch of 63." in told
    assert main([*plan, "63"]) == 0


def test_changes_with_commas_between_them_are_made_together():
    cluster, change = Variant(job(batch=16), 16), "gpus=32, hardware=b200,bandwidth_across/2"
    one_by_one = cluster
    for each in change.split(","):
        one_by_one = what_if(one_by_one, each)
    assert what_if(cluster, change) == one_by_one != cluster


def test_what_if_says_of_one_plan_where_it_no_longer_fits(capsys):
    job = ["plan", "--model", "llama-3-8b", "--gpus", "8", "--global-batch", "8", "--timeline", "none"]
    assert main([*job, "--tp", "8", "--what-if", "memory=1GB", "--what-if", "memory*2"]) == 0
    assert capsys.readouterr().out.count("does not fit") == 1


def test_what_if_says_that_the_plan_as_it_is_does_not_fit_and_where_it_fits_tightly(capsys):
    job = ["plan", "--model", "llama-3-70b", "--gpus", "8", "--global-batch", "64", "--tp", "8"]
    out = printed(capsys, *job, "--timeline", "none", "--what-if", "memory=172GB").partition("what if")[2]
    before, after = (" ".join(part.split()) for part in out.split("memory=172GB"))
    assert before.endswith("does not fit") and "fits tightly" in after


@pytest.mark.parametrize("change", ["gpus=12", "global_batch=6", "heads=31", "dtype=nvfp4"])
@pytest.mark.parametrize("plan", [["--tp", "2", "--dp", "8"], ["--fix", "tp=2", "--fix", "dp=8"]])
def test_what_cannot_be_after_a_change_names_the_change(change, plan, capsys):
    assert main(["plan", *JOB, *plan, "--what-if", change]) == 2
    assert f"--what-if {change}" in capsys.readouterr().err


def test_what_if_of_one_plan_keeps_its_degrees(capsys):
    found = record(
        capsys,
        "plan",
        *JOB,
        "--tp",
        "2",
        "--what-if",
        "gpus=32",
        "--what-if",
        "global_batch*2",
        "--what-if",
        "dtype=fp8",
    )
    more, batch, fp8 = found["what_if"]
    assert (
        more["plan"]["dp"] == 2 * found["plan"]["dp"] and batch["microbatches"] == 2 * found["microbatches"]
    )
    assert batch["step_seconds"] > 1.7 * found["step_seconds"] and fp8["step_seconds"] < found["step_seconds"]
    out = " ".join(
        printed(capsys, "plan", *JOB, "--tp", "2", "--what-if", "sequence/2", "--timeline", "none").split()
    )
    assert "what if step change plan" in out and "as it is" in out and "sequence/2" in out


def test_emit_searches_among_what_the_framework_can_launch(capsys):
    script = printed(capsys, "plan", *JOB, "--emit", "megatron")
    assert script.startswith("#!/bin/bash") and "--tensor-model-parallel-size" in script


def test_a_launch_script_is_read_and_better_plans_are_searched_for(capsys, tmp_path):
    script = tmp_path / "launch.sh"
    script.write_text(printed(capsys, "plan", *JOB, "--tp", "8", "--zero", "1", "--emit", "megatron"))
    now, better = (
        record(capsys, "plan", "--from-megatron", str(script), *options)
        for options in ((), ("--search", "--top", "1"))
    )
    assert better["plans"][0]["step_seconds"] < now["step_seconds"]


def test_a_search_for_a_script_whose_tp_cuts_experts_tries_whole_ones_too(capsys, tmp_path):
    """Megatron-Core cuts them where nobody says otherwise; Qwen3's are too narrow for that."""
    job = ["--model", "qwen3-30b-a3b", "--gpus", "64", "--global-batch", "256", "--sequence", "16384"]
    given = ["--tp", "2", "--ep", "8", "--zero", "1", "--recompute", "full"]
    searched = ["--search", "--fix", "tp=2", "--fix", "pp=1", "--fix", "cp=1"]
    written = printed(capsys, "plan", *job, *given, "--emit", "megatron")
    script = tmp_path / "launch.sh"
    script.write_text(re.sub(r".*--expert-tensor-parallel-size 1.*\n", "", written))
    whole = record(capsys, "plan", *job, *searched)["plans"][0]["name"]
    words = " ".join(printed(capsys, "plan", "--from-megatron", str(script), *searched).split())
    assert whole in words and "No plan cuts experts over tp; none of those that do is faster." in words
    assert "etp=" not in words  # which has been searched
    words = " ".join(printed(capsys, "plan", "--from-megatron", str(script), "--timeline", "none").split())
    assert "each expert cut over 2 tp ranks" in words and ", where tp cuts no expert." in words


@pytest.mark.parametrize("switch, lacks", [("--etp tp", "key to cut experts"), ("--fused-router", "kernels")])
def test_a_search_says_what_no_framework_can_launch_and_does_not_blame_a_degree(capsys, switch, lacks):
    job = (
        "plan --model qwen3-30b-a3b --gpus 64 --global-batch 64 --software torchtitan --zero 3 --tp 4 --ep 8"
    )
    assert main([*job.split(), *switch.split(), "--search"]) == 2
    told = capsys.readouterr().err
    assert "no plan on 64 GPUs is one of those that can be launched (--any: of all)" in told
    assert f"has no {lacks}" in told and "nearest" not in told


@pytest.mark.parametrize(
    "software, etp, other", [("nemo", "1", "tp"), ("nemo", "tp", "1"), ("torchtitan", "1", "")]
)
def test_a_search_says_how_to_search_plans_with_the_other_experts_where_the_software_has_them(
    capsys, software, etp, other
):
    job = "--model mixtral-8x7b --gpus 16 --global-batch 32 --tp 2 --zero 2 --micro-batch 1"
    told = printed(capsys, "plan", *job.split(), "--software", software, "--etp", etp, "--search")
    assert re.findall("--what-if etp=([1tp]+) searches", " ".join(told.split())) == [other] * bool(other)


def test_advise_follows_the_guides_and_says_how_much_longer_their_plan_takes(capsys):
    found = record(capsys, "advise", "--model", "llama-3-70b", "--gpus", "64", "--global-batch", "64")
    assert [branch["question"].partition("?")[0] for branch in found["branches"]][:2] == [
        "fits on one GPU",
        "largest layer fits",
    ]
    assert found["longer_than_best_ratio"] == pytest.approx(
        found["advised"]["step_seconds"] / found["best"]["step_seconds"] - 1
    )
    assert found["left_on_the_table_ratio"] == pytest.approx(
        1 - found["best"]["step_seconds"] / found["advised"]["step_seconds"]
    )
    assert found["legal"] > found["fit"] > found["timed"] > 0 and 0 <= found["gap_ratio"] < 0.1
    assert sum(found["rejected"].values()) > 0
    out = printed(capsys, "advise", *JOB)
    assert "under 10 billion parameters?" in out and "the best plan" in out


def test_advise_and_a_search_leave_the_same_memory_free_and_find_the_same_plan(capsys):
    advised, searched = (record(capsys, command, *SEVENTY[1:]) for command in ("advise", "plan"))
    assert advised["best"]["plan"] == searched["plans"][0]["plan"]
    assert advised["best"]["step_seconds"] == searched["plans"][0]["step_seconds"]


def test_advise_prints_the_commands_of_both_plans_on_the_software_that_its_guides_switched(capsys):
    out = printed(capsys, "advise", "--model", "qwen3-30b-a3b", "--gpus", "16", "--global-batch", "64")
    commands = [shlex.split(line)[1:] for line in out.splitlines() if line.startswith("ndparallel plan")]
    assert len(commands) == 2
    for command, head in zip(commands, ("their plan", "the best plan")):
        table, seconds = out.partition(head)[2], record(capsys, *command)["step_seconds"]
        assert "tp,dp,pp,cp,ep" in command and si(seconds, "s") in table.partition("\nndparallel")[0]


def test_advise_says_which_of_its_plans_is_tight():
    some, plan = job(), Plan(tp=8, dp=2)
    roomy = predict(some, plan)
    memory = roomy.fullest.total * (1 + 0.9 * roomy.memory_bar.fraction)
    tight = predict(replace(some, hardware=replace(some.hardware, memory_bytes=memory)), plan)
    advice = cast(Advice, SimpleNamespace(advised=tight, found=SimpleNamespace(best=roomy)))
    (said,) = doubts(advice)
    assert said.startswith("Their plan fits, but is tight")


def test_advice_on_experts_is_the_frameworks_guide_ep_first_little_tp_and_interleaved(capsys):
    """Megatron-Core's reference mappings on these GPUs: Mixtral 8x7B TP1 EP8 PP4 with 8 chunks, 8x22B TP4 EP2
    PP8 with 7. The first fits without a pipeline; for the second EP over nodes is more than 5% quicker."""
    for model, gpus, most_tp, chunks, where in (
        ("mixtral-8x7b", "64", 1, 1, "EP8 inside the node"),
        ("mixtral-8x22b", "128", 4, 7, "EP8 over nodes"),
    ):
        found = record(capsys, "advise", "--model", model, "--gpus", gpus, "--global-batch", "256")
        asked = {branch["question"]: branch for branch in found["branches"]}
        experts = asked["8 experts?"]
        assert experts["follows"].startswith(where)
        assert experts["guide"] in ("Megatron-Core", "Megatron-Bridge")
        plan = found["advised"]["plan"]
        assert plan["tp"] <= most_tp and plan["ep"] > 1 and plan["chunks"] >= chunks
        assert found["longer_than_best_ratio"] < 0.1


def test_scaling_shares_one_batch_or_lets_it_grow(capsys, tmp_path):
    picture = tmp_path / "scaling.svg"
    found = record(capsys, "scaling", *JOB, "--sizes", "4,16,64", "--svg", str(picture))
    weak, strong = ([row for row in found["rows"] if row["scaling"] == way] for way in ("weak", "strong"))
    assert [row["global_batch"] for row in weak] == [4, 16, 64] and {
        row["global_batch"] for row in strong
    } == {16}
    assert (
        weak[1]["step_seconds"] == strong[1]["step_seconds"]
        and strong[2]["efficiency"] < weak[2]["efficiency"]
    )
    assert strong[2]["step_seconds"] < strong[1]["step_seconds"] and weak[2]["usual"]["mfu_range"] == [
        0.48,
        0.55,
    ]
    assert len(ElementTree.parse(picture).findall(".//{*}rect[@class='nd-weak']")) >= 2


def test_scaling_takes_the_plan_that_plan_takes(capsys):
    """Here the simplest of those that predictions cannot tell apart is not the fastest."""
    job = (*SEVENTY[1:-1], "128", "--sequence", "8192")
    found, (row, *_) = (
        record(capsys, "plan", *job),
        record(capsys, "scaling", *job, "--sizes", "64")["rows"],
    )
    assert found["recommended"]["step_seconds"] > found["plans"][0]["step_seconds"]
    for key in ("plan", "step_seconds", "mfu"):
        assert row[key] == found["recommended"][key]


def test_scaling_says_why_more_gpus_are_more_efficient(capsys):
    few = ["--sizes", "2,8"]
    assert record(capsys, "scaling", *JOB, *few)["rows"][1]["efficiency"] > 1.1
    said = " ".join(printed(capsys, "scaling", *JOB, *few).split())
    assert "above 100% where no plan that fits on 2 GPUs" in said
    assert "above 100%" not in printed(capsys, "scaling", *JOB, "--sizes", "16")


def test_scaling_says_where_a_model_does_not_fit(capsys):
    out = printed(
        capsys,
        "scaling",
        "--model",
        "llama-3-8b",
        "--gpus",
        "8",
        "--global-batch",
        "8",
        "--sizes",
        "1,8",
        "--hardware",
        "a100-40",
    )
    assert "1: no plan" in out and "Take more GPUs" in out


def test_scaling_names_its_plans_in_json_and_the_peak_that_mfu_is_of(capsys):
    job = [*JOB, "--sizes", "16"]
    row, again = record(capsys, "scaling", *job)["rows"]
    assert record(capsys, "plan", *JOB, "--plan", row["name"])["step_seconds"] == row["step_seconds"]
    assert row["name"] == again["name"]
    assert "MFU is" not in printed(capsys, "scaling", *job)
    assert "MFU is of fp8's 1,979 TFLOP/s" in printed(capsys, "scaling", *job, "--dtype", "fp8")


def test_more_gpus_are_not_advised_where_they_were_tried_and_did_not_help(capsys):
    assert main(["plan", *JOB, "--max-memory", "100MB"]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "none of" in err
    assert "nor would more GPUs" in err and "Take more GPUs" not in err


@pytest.mark.parametrize(
    ("given", "lacks"),
    [
        ("--top-k 2", "--expert-ffn, the width of one."),
        ("--expert-ffn 64", "--top-k, those that a token goes to."),
        ("", "--expert-ffn, the width of one; and --top-k, those that a token goes to."),
    ],
)
def test_experts_are_told_which_options_they_need(given, lacks, capsys):
    sizes = f"--layers 7 --hidden 512 --heads 8 --ffn 2048 --vocab 100 --experts 4 {given}"
    assert main(["plan", *sizes.split(), "--gpus", "8", "--global-batch", "8", "--dp", "8"]) == 2
    assert f"--experts needs {lacks}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--gpus -8", "--gpus is -8; it must be at least 1."),
        ("--global-batch 0", "--global-batch is 0; it must be at least 1."),
        ("--gpus 8 --global-batch 8 --sequence 0", "--sequence is 0; it must be at least 1."),
        ("--gpus 8 --global-batch 8 --micro-batch 0", "--micro-batch is 0; it must be at least 1."),
        ("--gpus 8 --global-batch 8 --shards -1", "--shards is -1; it must be 0 (all of dp) or more."),
        (
            "--gpus 8 --global-batch 8 --pp 2 --num-layers-per-virtual-pipeline-stage 0",
            "--num-layers-per-virtual-pipeline-stage is 0; it must be at least 1.",
        ),
        ("--gpus 8 --global-batch 8 --stage-layers 9,9", "of the model: change --stage-layers."),
        ("--gpus 8 --global-batch 8 --hardware ''", "unknown hardware ''. ndparallel plan --help lists all"),
    ],
)
def test_a_wrong_value_is_told_by_its_option_and_before_what_is_missing(options, said, capsys):
    assert main(["plan", "--model", "llama-3-8b", *shlex.split(options)]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("dtype", NUMBER_TYPES)
def test_every_type_of_number_has_an_mfu_in_text_json_and_search(capsys, dtype):
    typed = [*JOB, "--hardware", "b200" if dtype in ("mxfp8", "nvfp4") else "h100", "--dtype", dtype]
    assert "MFU" in printed(capsys, "plan", *typed, "--tp", "2")
    few = record(capsys, "plan", *typed, "--search", "--tp", "2", "--pp", "1", "--fix", "cp=1")["plans"]
    assert all(0 < each["mfu"] < 1 for each in [record(capsys, "plan", *typed, "--tp", "2"), *few])


def test_an_mfu_in_fewer_bits_names_its_peak_and_the_share_of_the_peak_in_16(capsys):
    fp8 = record(capsys, "plan", *JOB, "--tp", "2", "--dtype", "fp8")
    assert fp8["peak_flops_per_second"] == 1979e12
    assert fp8["tflops_per_gpu"] / 1979 == pytest.approx(fp8["mfu"])
    said = f"MFU {fp8['mfu']:.1%} of fp8's 1,979 TFLOP/s ({fp8['tflops_per_gpu'] / 989:.1%} of bf16's)"
    typed = [*JOB, "--dtype", "fp8"]
    assert said in " ".join(printed(capsys, "plan", *typed, "--tp", "2").split())
    assert "of bf16's)" in printed(capsys, "plan", *typed)
    assert "of bf16's)" not in printed(capsys, "plan", *JOB, "--tp", "2")


@pytest.mark.parametrize(
    ("command", "options", "said"),
    [
        ("plan", ["--what-if", "bandwith_across*2"], "Did you mean 'bandwidth_across'"),
        ("plan", ["--what-if", "bandwidth_across"], "changes nothing"),
        ("plan", ["--what-if", "layers*1.3"], "whole number"),
        ("plan", ["--what-if", "a/2,b=4"], "unknown field of the hardware, the job or the model 'a'"),
        ("plan", ["--what-if", "gpus*2,seqence=4"], "Did you mean 'sequence'"),
        ("plan", ["--what-if", "sequence=2,4"], "Several values take --what-if several times"),
        ("plan", ["--what-if", "memory=80"], "has no unit"),
        ("plan", ["--what-if", "software*2"], "is a word"),
        ("plan", ["--what-if", "peak*-1"], "above 0"),
        ("plan", ["--fix", "tp"], "fixes nothing"),
        ("plan", ["--fix", "tp=seven"], "whole number"),
        ("plan", ["--fix", "tp=7"], "nearest: "),
        ("plan", ["--fix", "scedule=1f1b"], "Did you mean 'schedule'"),
        ("plan", ["--fix", "schedule=1f2b"], "Did you mean '1f1b'"),
        ("plan", ["--fix", "sequence_parallel=maybe"], "True"),
        ("plan", ["--max-memory", "70"], "has no unit"),
        ("plan", ["--tp", "2", "--measured", "4.2"], 'has no unit: write seconds as in "12.3s"'),
        ("plan", ["--top", "0"], "choose 1 to 1,000"),
        ("plan", ["--search", "--recompute-layers", "2"], "nothing to search with"),
        ("plan", ["--json", "--csv"], "choose one"),
        ("plan", ["--hardware", "pocket"], "real framework"),
        ("scaling", ["--sizes", "8,many"], "as in 8,64,512"),
        ("advise", ["--model", "llama-3-405b"], "Take more GPUs"),
    ],
)
def test_what_cannot_be_searched_is_refused_in_one_sentence(capsys, command, options, said):
    assert main([command, *JOB, *options]) == 2
    out = capsys.readouterr()
    assert out.out == "" and out.err.count("\n") == 1 and said in out.err


def test_a_best_plan_that_fits_by_less_than_memory_is_known_says_so(capsys):
    two = ["plan", "--model", "llama-3-8b", "--gpus", "2", "--global-batch", "2"]
    full, roomy = (printed(capsys, *two, *options) for options in (["--headroom", "0"], []))
    assert "of the memory, which is predicted to +-" in " ".join(full.split())
    assert "tight" not in " ".join(roomy.split())


SEVENTY = ("plan", "--model", "llama-3-70b", "--gpus", "64", "--global-batch", "64")


def test_what_is_recommended_is_what_emit_writes_and_what_its_name_stands_for(capsys):
    found = record(capsys, *SEVENTY)["recommended"]
    assert "megatron" in found["launched_by"]
    named = record(capsys, *SEVENTY, "--plan", found["name"])
    assert (named["step_seconds"], named["plan"]) == (found["step_seconds"], found["plan"])
    script, same = (
        printed(capsys, *SEVENTY, *options, "--emit", "megatron")
        for options in ([], ["--plan", found["name"]])
    )
    assert script == same


def test_a_search_ends_with_the_command_that_goes_on(capsys):
    last = shlex.split(printed(capsys, *SEVENTY).splitlines()[-1])
    assert last[:2] == ["ndparallel", "plan"] and "--plan" in last
    assert main([*last[1:], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == last[-1]


def test_any_marks_what_nobody_can_launch(capsys):
    first = record(capsys, *SEVENTY, "--any", "--fix", "pp=8", "--fix", "recompute=none", "--top", "1")[
        "plans"
    ][0]
    assert first["launched_by"] == [] and first["plan"]["schedule"] == "zb-v"
    assert "nobody" in printed(capsys, *SEVENTY, "--any", "--fix", "pp=8", "--fix", "recompute=none")


def test_why_not_parts_the_difference_of_two_steps(capsys):
    """The oracle: both plans asked for one by one."""
    found = record(
        capsys, *SEVENTY, "--why", "TP8xPP8xDP1,zero1,sp,1f1b,mbs1", "--why", "TP64", "--why", "PP64"
    )
    take, (other, wide, long) = found["recommended"], found["why"]
    alone = record(capsys, *SEVENTY, "--tp", "8", "--pp", "8", "--zero", "1")
    assert other["plan"]["step_seconds"] == alone["step_seconds"]
    more = alone["step_seconds"] - take["step_seconds"]
    assert sum(other["difference_seconds"].values()) == pytest.approx(more)
    lost = alone["breakdown_seconds"]["tp"] - take["breakdown_seconds"]["tp"]
    assert other["difference_seconds"]["tp"] == pytest.approx(lost)
    assert wide["plan"]["plan"]["tp"] == 64 and wide["difference_seconds"]["tp"] > more
    assert long["plan"] is None or long["plan"]["plan"]["pp"] == 64
    words = " ".join(printed(capsys, *SEVENTY, "--why", "DP64,zero0,mbs1").split())
    assert "Why not DP64,zero0,mbs1: it" in words and "It does not fit: the fullest GPU lacks" in words


def test_a_price_is_gpu_hours_times_tokens(capsys):
    plan = ["--plan", "TP8xPP4,zero1,sp,1f1b,mbs1", "--price-per-gpu-hour", "2.5", "--tokens", "2e12"]
    found = record(capsys, *SEVENTY, *plan)
    steps = 2e12 / (64 * 4096)
    assert found["cost"] == pytest.approx(steps * found["step_seconds"] / 3600 * 64 * 2.5)
    assert f"cost {found['cost']:,.0f} at 2.5 a GPU-hour" in " ".join(
        printed(capsys, *SEVENTY, *plan).split()
    )


def test_headroom_is_memory_that_no_plan_takes(capsys):
    for options, share in (([], 0.92), (["--headroom", "30"], 0.7)):
        plans = record(capsys, *SEVENTY, *options, "--top", "3")["plans"]
        held = [stage["total"] for plan in plans for stage in plan["memory_bytes_per_stage"]]
        assert max(held) <= share * 80 * 2**30


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--headroom", "100"], "is no share of the memory"),
        (["--headroom", "5", "--max-memory", "70GiB"], "choose one"),
        (["--any", "--framework", "megatron"], "choose one"),
        (["--emit", "megatron", "--framework", "torchtitan"], "choose one"),
        (["--emit", "picotron"], "invalid choice"),
        (["--why", "TP8PP4"], "no degree of a plan"),
        (["--price-per-gpu-hour", "-1"], "is no price"),
    ],
)
def test_what_cannot_be_asked_of_a_search_is_refused_in_a_sentence(capsys, options, said):
    assert main([*SEVENTY, *options]) == 2
    assert said in capsys.readouterr().err


def test_cards_on_pcie_say_which_links_are_assumed(capsys):
    cards = ("--model", "gpt2", "--gpus", "2", "--global-batch", "8", "--sequence", "1024", "--hardware")
    words = {
        name: " ".join(printed(capsys, "plan", *cards, name, *given).split())
        for name, given in (("rtx-4090", ()), ("h100", ()), ("l40s", ("--dp", "2", "--timeline", "none")))
    }
    assert "through the host's memory, without peer access" in words["rtx-4090"] and "PCIe" in words["l40s"]
    assert "PCIe" not in words["h100"]


@pytest.mark.parametrize(("pp", "said"), [((), True), (("--pp", "4"), False)])
def test_a_plan_without_a_pipeline_says_that_the_schedule_that_was_asked_for_does_not_count(pp, said, capsys):
    job = "plan --model llama-3-8b --gpus 16 --global-batch 32 --search --schedule zb-v --any"
    assert main([*job.split(), *pp]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert ("It has no pipeline, so that zb-v does not count: --pp asks for one." in words) == said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--dtype", "nvfp4"], "h100 does not multiply nvfp4"),
        (["--software", "pocket"], "software pocket is the lessons' own"),
        (["--sequence", "10000000000000"], "sequence is 10000000000000; a search takes"),
        (["--gpus", "123456789012345"], "gpus is 123456789012345; a search takes"),
        (["--sizes", "1099511627776"], "gpus is 1099511627776; a search takes"),
    ],
)
def test_scaling_refuses_a_job_that_no_size_can_have(options, said, capsys):
    assert main(["scaling", *JOB, "--sizes", "4", *options]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(f"error: {said}")


def test_scaling_says_of_which_batch_nothing_fits_and_that_shares_of_whole_sequences_differ(capsys):
    job = ["--model", "llama-3-8b", "--hardware", "a100-40", "--gpus", "8", "--global-batch", "12"]
    out = printed(capsys, "scaling", *job, "--sizes", "1,8")
    assert "Batch 2: none of" in out and "Batch 12: none of" in out
    assert "a GPU's share is from 1.5 to 2 of them" in out
    assert "a GPU's share" not in printed(capsys, "scaling", *JOB, "--sizes", "4,16")


def test_scaling_blames_memory_for_an_efficiency_above_one_only_where_the_fastest_plan_is_slower():
    def point(gpus: int, tokens: float, fastest: float) -> Point:
        best, first = (
            cast(Prediction, SimpleNamespace(tokens_per_second_per_gpu=each, plan=Plan(dp=gpus)))
            for each in (tokens, fastest)
        )
        return Point(gpus, 8, best, "", None, first)

    few = point(8, 100.0, 104.0)
    (simplest,) = above_one("weak", [few, point(16, 103.0, 103.0)])
    (memory,) = above_one("strong", [few, point(16, 110.0, 110.0)])
    assert "weak scaling" in simplest and "the fastest has an efficiency of 104.0%" in simplest
    assert "strong scaling" in memory and "no plan that fits on 8" in memory
    assert not [*above_one("weak", [few, point(16, 100.0, 110.0)])]


def test_what_its_framework_cannot_launch_is_said_once_with_the_reason_and_who_can(capsys):
    """OLMo 2 has norms behind attention and MLP, and the guides' plan is the best."""
    olmo = ["--model", "olmo-2-13b", "--gpus", "32", "--global-batch", "128"]
    reason = "Megatron-Core 0.19.2 has no flags for norms behind attention and MLP, or one norm for both."
    out = " ".join(printed(capsys, "plan", *olmo).split())
    assert f"{reason} DeepSpeed 0.19.6 and Accelerate 1.15.0 can launch it, at speeds of their own." in out
    out = " ".join(printed(capsys, "advise", *olmo).split())
    assert f"Their plan and the best plan cannot be launched by their framework: {reason}" in out
    assert out.count(reason) == 1


def test_advise_says_how_many_times_as_long_a_plan_takes_that_is_far_from_the_best(capsys):
    """FSDP over all of 65,536 GPUs, which a guide ends in. It was said to take more than 10,000% longer."""
    out = printed(capsys, "advise", "--model", "llama-3-8b", "--gpus", "65536", "--global-batch", "65536")
    assert re.search(r"Against the best, the guides' plan takes \d+\.\dx as long\.", out)


def test_advise_says_which_plans_cannot_be_launched_and_what_predictions_cannot_tell_apart(capsys):
    """The fastest way of the guides has ZeRO-1, which torchtitan has not."""
    mixture = ["--model", "mixtral-8x7b", "--gpus", "32", "--global-batch", "256"]
    out = " ".join(printed(capsys, "advise", *mixture, "--software", "torchtitan").split())
    assert "Their plan cannot be launched by its framework: torchtitan 0.3.0 has no ZeRO-1" in out
    assert "% longer. " in out, "6%, which is no error of a comparison"
    memory = ["--model", "llama-3-70b", "--gpus", "64", "--global-batch", "64", "--software", "deepspeed"]
    out = " ".join(printed(capsys, "advise", *memory).split())
    assert "The search finds no plan that is faster than the guides'. Their plan cannot be launched" in out
    searched = json.loads(printed(capsys, "plan", *memory, "--json"))["plans"][0]
    advised = json.loads(printed(capsys, "advise", *memory, "--json"))
    assert advised["best"]["name"] == searched["name"] and "deepspeed" in searched["launched_by"]
    assert "deepspeed" not in advised["advised"]["launched_by"] and advised["longer_than_best_ratio"] < 0
    close = ["--model", "llama-3-70b", "--hardware", "a100-40", "--gpus", "64", "--global-batch", "100"]
    out = " ".join(printed(capsys, "advise", *close).split())
    assert "% longer, which predictions cannot tell apart." in out and "launched by" not in out
    assert "megatron" in record(capsys, "advise", *close)["advised"]["launched_by"]


def test_a_plan_that_is_timed_in_any_case_is_timed_once(capsys):
    one = ["--model", "gpt2", "--gpus", "1", "--global-batch", "1", "--sequence", "512"]
    out = " ".join(printed(capsys, "advise", *one).split())
    assert "3 legal plans, of which 3 fit" in out and "for 3 plans the step itself" in out
    assert "The search finds no plan that is faster than the guides'." in out


def test_published_layouts_are_of_jobs_of_their_own(capsys):
    assert main(["advise", "--published", *JOB]) == 2
    assert "leave out the options of another job" in capsys.readouterr().err


def test_a_faster_network_makes_no_step_longer(capsys):
    """The plan is kept where it is as fast: another one, as simple, was compared with it, at +2.3%."""
    words = "--model llama-3-70b --gpus 512 --global-batch 512 --sequence 8192 --what-if bandwidth_across*2"
    assert main(["plan", *words.split(), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (faster,) = found["what_if"]
    assert faster["step_seconds"] <= found["recommended"]["step_seconds"]


def test_schedules_that_take_too_long_to_search_for_are_left_out_of_a_table_of_kinds(capsys):
    """64 stages and 512 microbatches, which a searched zero-bubble schedule refuses."""
    words = "--model llama-3-405b --gpus 512 --global-batch 512 --sequence 8192 --any"
    assert main(["plan", *words.split()]) == 0
    assert "PP64" in capsys.readouterr().out
