"""A plan made in Python is the plan of the command: the same fields, seconds and memory."""

import argparse
import json
from typing import Any

import pytest
from pytest import approx

from ndparallel import (
    FailureModel,
    Plan,
    TrainingJob,
    UserError,
    best_interval,
    emit,
    find_hardware,
    find_model,
    find_stack,
    plan_for,
    predict,
)
from ndparallel.commands.command_line import main
from ndparallel.planner.option_groups import add_plan_options
from ndparallel.planner.options import PLAN_DEFAULTS

# fields of a plan, and the options that say the same
SAME: list[tuple[dict[str, Any], str]] = [
    ({}, "--tp 1"),
    ({"tp": 8, "pp": 4}, "--tp 8 --pp 4"),
    ({"tp": 8, "sequence_parallel": False}, "--tp 8 --no-sequence-parallel"),
    ({"tp": 2, "cp": 2, "zero": 1}, "--tp 2 --cp 2 --zero 1"),
    ({"zero": 3, "shards": 8}, "--zero 3 --shards 8"),
    ({"pp": 4, "chunks": 2}, "--pp 4 --chunks 2"),
    ({"pp": 4, "schedule": "interleaved"}, "--pp 4 --schedule interleaved"),
    ({"pp": 2, "schedule": "zb-v"}, "--pp 2 --schedule zb-v"),
    ({"tp": 8, "micro_batch": 2, "recompute": "full"}, "--tp 8 --micro-batch 2 --recompute full"),
    ({"pp": 4, "recompute": "full", "recompute_layers": 4}, "--pp 4 --recompute full --recompute-layers 4"),
    (
        {"tp": 8, "recompute": "selective", "recompute_modules": ("mlp", "layernorm")},
        "--tp 8 --recompute selective --recompute-modules mlp layernorm",
    ),
    ({"pp": 4, "stage_layers": (8, 9, 9, 6)}, "--pp 4 --stage-layers 8,9,9,6"),
    ({"dp": 8, "tp": 8}, "--dp 8 --tp 8"),
    ({"name": "TP8xPP4"}, "--plan TP8xPP4"),
    ({"name": "TP2xDP32,zero3,sp,mbs1"}, "--plan TP2xDP32,zero3,sp,mbs1"),
]


def job_of(model: str = "llama-3-8b", software: str = "megatron-core", **fields: Any) -> TrainingJob:
    return TrainingJob(find_model(model), find_hardware("h100"), find_stack(software), 4096, 256, **fields)


def commands_answer(capsys: pytest.CaptureFixture[str], options: str) -> dict[str, Any]:
    assert main(["plan", "--gpus", "64", "--global-batch", "256", "--json", *options.split()]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(("fields", "options"), SAME, ids=[options for _, options in SAME])
def test_the_same_fields_and_options_give_the_same_seconds_and_memory(fields, options, capsys):
    job, theirs = job_of(), commands_answer(capsys, f"--model llama-3-8b {options}")
    ours = predict(job, plan_for(job, 64, **fields)).as_dict()
    assert ours == {name: theirs[name] for name in ours} | {"plan": ours["plan"]}
    assert json.loads(json.dumps(ours["plan"])) == theirs["plan"]


@pytest.mark.parametrize("software", ["megatron-2022", "nemo", "torchtitan", "deepspeed"])
def test_what_is_left_out_is_the_softwares_own_in_both(software, capsys):
    job = job_of("llama-3-8b", software)
    theirs = commands_answer(capsys, f"--model llama-3-8b --software {software} --tp 2")
    assert predict(job, plan_for(job, 64, tp=2)).seconds == theirs["step_seconds"]
    assert theirs["plan"]["sequence_parallel"] == job.stack.sequence_parallel


def test_a_framework_that_is_named_gives_the_plan_its_own_defaults_too(capsys):
    """Selective recomputation of attention alone is Megatron-Core's own choice, and not torchtitan's."""
    asked = "--model llama-3-8b --recompute selective --recompute-modules core_attn"
    by_framework = commands_answer(capsys, f"{asked} --framework torchtitan")
    by_software = commands_answer(capsys, f"{asked} --software torchtitan")
    assert by_framework["name"] == by_software["name"] == "DP64,zero0,mbs1,selective[core_attn]"
    assert by_framework["step_seconds"] == by_software["step_seconds"]


def test_a_job_made_in_python_is_that_of_the_command_where_nothing_is_said(capsys):
    job = job_of("mixtral-8x7b")
    theirs = commands_answer(capsys, "--model mixtral-8x7b --ep 8 --zero 1")
    assert predict(job, plan_for(job, 64, ep=8, zero=1)).seconds == theirs["step_seconds"]


def test_every_option_of_the_plan_is_a_field_that_python_takes():
    parser = argparse.ArgumentParser(argument_default=argparse.SUPPRESS)
    add_plan_options(parser)
    fields = {action.dest for action in parser._actions} - {"help", "plan"}
    assert fields == PLAN_DEFAULTS.keys()
    assert vars(Plan()).keys() <= fields


def test_a_plans_own_defaults_differ_from_the_commands_where_the_docs_say_so():
    """Only in what needs a job: dp, and sequence parallelism with tensor parallelism."""
    made, bare = plan_for(job_of(), 64, tp=8), Plan(tp=8)
    differ = {name for name, value in vars(bare).items() if getattr(made, name) != value}
    assert differ == {"dp", "sequence_parallel"}


@pytest.mark.parametrize(
    ("gpus", "fields", "said"),
    [
        (64, {"tpp": 8}, "unknown field of a plan 'tpp'. Did you mean 'tp'"),
        (64, {"tp": 3}, "tp=3"),
        (60, {"tp": 8}, "60 GPUs are no multiple of tp*pp*cp = 8; the nearest are 56 and 64."),
        (0, {"tp": 8}, "--gpus is 0; it must be at least 1."),
        (64, {"name": "TP8,zero9"}, "zero"),
        (64, {"name": "TP8", "pp": 4}, "--plan names the whole plan"),
    ],
)
def test_a_plan_that_cannot_be_is_refused_as_by_the_command(gpus, fields, said):
    with pytest.raises(UserError) as error:
        plan_for(job_of(), gpus, **fields)
    assert said in str(error.value)


def test_a_plans_goodput_in_python_is_that_of_the_command(capsys):
    name = "DP64,zero3,mbs1,full"
    job_and_plan = f"--model llama-3-8b --gpus 64 --global-batch 256 --plan {name}"
    asked = f"goodput {job_and_plan} --tokens 1e12 --checkpoint-bandwidth 50GB/s --json"
    assert main(asked.split()) == 0
    theirs = json.loads(capsys.readouterr().out)
    found = predict(job_of(), plan_for(job_of(), 64, name))
    cluster = FailureModel(gpus=64, checkpoint_seconds=found.checkpoint_bytes / 50e9)
    interval = best_interval(cluster, step_seconds=found.seconds)
    assert {row["by"]: row for row in theirs["intervals"]}["simulation"]["interval_seconds"] == approx(
        interval
    )
    assert theirs["training"]["work_days"] == approx(found.days(1e12))
    assert theirs["checkpoint_seconds"] == approx(cluster.checkpoint_seconds)


def test_a_launch_script_in_python_is_that_of_the_command(capsys):
    name = "TP8xPP4xDP2,zero1,sp,1f1b,mbs1"
    options = f"plan --model llama-3-8b --gpus 64 --global-batch 256 --plan {name} --emit megatron"
    assert main(options.split()) == 0
    assert emit("megatron", job_of(), plan_for(job_of(), 64, name)) == capsys.readouterr().out
    with pytest.raises(UserError, match="unknown launch format 'picotron'"):
        emit("picotron", job_of(), plan_for(job_of(), 64, name))


def test_layers_of_a_chunk_say_how_many_chunks_there_are_or_are_refused():
    assert plan_for(job_of(), 64, pp=4, layers_per_stage=2).chunks == 4
    refused: list[tuple[dict[str, Any], str]] = [
        ({"layers_per_stage": 3}, "take --chunks"),
        ({"layers_per_stage": 2, "chunks": 2}, "say the same"),
    ]
    for fields, said in refused:
        with pytest.raises(UserError, match=said):
            plan_for(job_of(), 64, pp=4, **fields)
