"""The public API: every name of `ndparallel.__all__` is there, typed, and documented where it is defined."""

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import ndparallel

LLAMA = {
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 4,
    "vocab_size": 256,
}


def typed_names() -> dict[str, str]:
    """The names that type checkers see, each with its module and its name there."""
    tree = ast.parse(Path(ndparallel.__file__).read_text("utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level == 0]
    return {
        alias.asname: f"{node.module}:{alias.name}"
        for node in imports
        for alias in node.names
        if alias.asname
    }


def test_type_checkers_see_just_the_public_names():
    assert typed_names() == ndparallel.PUBLIC


@pytest.mark.parametrize("name", ndparallel.__all__)
def test_a_public_name_is_there_and_says_what_it_is(name):
    thing = getattr(ndparallel, name)
    assert thing is getattr(ndparallel, name)
    assert not callable(thing) or thing.__doc__


def test_a_name_that_is_not_public_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        getattr(ndparallel, "nonsense")  # noqa: B009


def test_importing_the_package_imports_no_room_that_is_not_used():
    code = "import sys, ndparallel; print([m for m in sys.modules if m.startswith('ndparallel.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = ast.literal_eval(done.stdout)
    assert {name.split(".")[1] for name in loaded} <= {"collective", "base"}


def job(**fields: Any) -> ndparallel.TrainingJob:
    found: dict[str, Any] = {
        "shape": ndparallel.find_model("llama-3-8b"),
        "hardware": ndparallel.find_hardware("h100"),
        "stack": ndparallel.find_stack("megatron-core"),
    }
    return ndparallel.TrainingJob(**found | {"sequence": 4096, "global_batch": 64} | fields)


CLUSTER = ndparallel.FailureModel(gpus=8, checkpoint_seconds=1.0)
WRONG: list[tuple[Any, str]] = [
    (lambda: ndparallel.plan_for(job(), 64.0), "--gpus is 64.0; it must be a whole number."),  # type: ignore
    (lambda: ndparallel.plan_for(job(), 64, tp="8"), "--tp is '8'; it must be a whole number."),
    (lambda: ndparallel.plan_for(job(), 64, micro_batch=0), "--micro-batch is 0; it must be at least 1."),
    (lambda: ndparallel.predict(job(sequence="4096"), ndparallel.Plan()), "--sequence is '4096'; it must be"),
    (lambda: ndparallel.predict(job(), "TP2xDP4"), "give plan_for(job, gpus, 'TP2xDP4')."),  # type: ignore
    (lambda: ndparallel.search_plans(job(), 8.0), "gpus is 8.0; it must be a whole number."),  # type: ignore
    (lambda: ndparallel.search_plans(job(), 8, {"tp": "8"}), "tp is '8'; it must be a whole number."),
    (lambda: ndparallel.Mesh(tp="2"), "tp is '2'; it must be a whole number."),  # type: ignore
    (lambda: ndparallel.build_schedule("1f1b", 4.0, 8), "the rank count of a schedule is 4.0"),  # type: ignore
    (lambda: ndparallel.Work.of_whole_stages(0), "chunks is 0; it must be at least 1."),
    (lambda: job(shape="llama-3-8b"), "give find_model('llama-3-8b')."),
    (lambda: job(hardware="h100"), "give find_hardware('h100')."),
    (lambda: job(stack="nemo"), "give find_stack('nemo')."),
    (lambda: job(dtype="fp9"), "unknown dtype 'fp9'. Did you mean 'fp8'?"),
    (lambda: job(moments="9bit"), "unknown moments '9bit'. Did you mean '8bit'?"),
    (lambda: job(offload=("activatons",)), "unknown offload 'activatons'. Did you mean 'activations'?"),
    (lambda: job(offload="weights"), "it must be a tuple of words, as ('weights',)."),
    (lambda: job(offload_share=2), "--offload-share is 2; it must be above 0, and at most 1."),
    (lambda: job(routing_imbalance=0.5), "--routing-imbalance 0.5: the busiest rank has at least the mean"),
    (lambda: job(capacity_factor=-1), "--capacity-factor -1: an expert takes something"),
    (lambda: ndparallel.Job(optimizer="adamm"), "unknown optimizer 'adamm'. Did you mean 'adamw'?"),
    (lambda: ndparallel.load_lesson("3d_pipes"), "unknown lesson '3d_pipes'."),
    (lambda: ndparallel.FailureModel(gpus="8"), "gpus is '8'; it must be a finite number above 0."),  # type: ignore
    (lambda: ndparallel.best_interval(CLUSTER, step_seconds=-1), "step_seconds is -1; it must be"),
    (lambda: ndparallel.expected_goodput(CLUSTER, -1), "interval_seconds is -1; it must be"),
    (lambda: ndparallel.training_duration(CLUSTER, 100, -1), "work_days is -1; it must be"),
    (lambda: ndparallel.launch("ddp", 2, ndparallel.POCKET), "'ddp' is no rank program"),  # type: ignore
]


@pytest.mark.parametrize(("call", "said"), WRONG, ids=[said for _, said in WRONG])
def test_what_cannot_be_is_refused_in_words_from_python_too(call, said):
    with pytest.raises(ndparallel.UserError) as error:
        call()
    assert said in str(error.value)


def test_names_are_found_in_capitals_or_not_and_files_by_path_objects(tmp_path):
    assert ndparallel.find_stack("Megatron-Core") is ndparallel.find_stack("megatron-core")
    assert ndparallel.load_lesson("1d") is ndparallel.load_lesson("1d_data_parallel")
    hardware, model = tmp_path / "ours.toml", tmp_path / "config.json"
    hardware.write_text('based_on = "h100"\nname = "ours"\n')
    model.write_text(json.dumps(LLAMA))
    assert ndparallel.find_hardware(hardware).name == "ours"
    assert ndparallel.find_model(model).layers == 2


def test_the_public_api_plans_runs_and_times():
    prediction = ndparallel.predict(job(), ndparallel.Plan(tp=2, dp=4, zero=1))
    assert prediction.seconds > 0
    schedule = ndparallel.build_schedule("1f1b", 4, 8)
    timing: Any = ndparallel.time_schedule(schedule, ndparallel.Work.of_whole_stages(schedule.chunks))
    assert timing.makespan == 33 and "<svg" in timing._repr_svg_()
