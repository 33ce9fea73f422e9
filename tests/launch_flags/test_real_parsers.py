"""Emitted scripts, run by bash with a torchrun that only prints, and their words read by the frameworks' own
parsers, where these are installed (`pip install ndparallel[frameworks]`)."""

import importlib.util
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from ndparallel.base.errors import UserError
from ndparallel.hardware.accelerator import find_hardware
from ndparallel.launch_flags.accelerate.read import read_accelerate
from ndparallel.launch_flags.accelerate.write import emit_accelerate
from ndparallel.launch_flags.deepspeed.write import emit_deepspeed
from ndparallel.launch_flags.frozen import frozen, megatron_flags
from ndparallel.launch_flags.megatron.write import emit_megatron
from ndparallel.launch_flags.program.arguments import without_documents
from ndparallel.launch_flags.reading import Beside
from ndparallel.launch_flags.torchtitan.models import MODELS
from ndparallel.launch_flags.torchtitan.read_plan import dealt
from ndparallel.launch_flags.torchtitan.write import emit_torchtitan
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.models.presets import find_model
from ndparallel.planner.models.shape import ModelShape
from ndparallel.planner.software import find_stack
from ndparallel.planner.stack import Stack
from tests.support.launch_plans import jobs_and_plans, recipes

SUPPORT = Path(__file__).parents[1] / "support"
TORCHRUN = f"""#!{sys.executable}
import json, os, sys
kept = {{name: os.environ[name] for name in ("CUDA_DEVICE_MAX_CONNECTIONS",) if name in os.environ}}
print(json.dumps({{"words": sys.argv[1:], "environment": kept}}))
"""


def launched(script: str, folder: Path) -> dict[str, Any]:
    """The program's words and the environment, as bash gives them to torchrun."""
    (folder / "torchrun").write_text(TORCHRUN)
    (folder / "torchrun").chmod(0o755)
    (folder / "launch.sh").write_text(script)
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    command = ["bash", "-euo", "pipefail", "launch.sh"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    place = found["words"].index("pretrain_gpt.py")
    return found | {"words": found["words"][place + 1 :]}


# of GPUs (developer.nvidia.com/cuda-gpus)
CAPABILITIES = {"h100": [9, 0], "b200": [10, 0], "gb300": [10, 3]}
ON_BLACKWELL = ("mxfp8", "nvfp4", "bf16", "fp8", "fp8-current")


def asked_of_megatron(folder: Path, most: int, hardware: str, *dtypes: Sequence[str]) -> dict[str, Any]:
    return {
        name: launched(emit_megatron(job, plan), folder)
        | {"gpus": int(plan.gpus), "capability": CAPABILITIES[hardware]}
        for name, job, plan in jobs_and_plans(most, hardware, *dtypes)
    }


@pytest.fixture(scope="module")
def scripts(tmp_path_factory) -> dict[str, dict[str, Any]]:
    return asked_of_megatron(tmp_path_factory.mktemp("scripts"), 60, "h100")


def test_sixty_scripts_run_in_bash_and_name_flags_of_the_release_alone(scripts):
    assert len(scripts) == 60
    for found in scripts.values():
        assert {word for word in found["words"] if word.startswith("--")} <= megatron_flags().keys()


def answered(parser: str, asked: dict[str, dict[str, Any]], folder: Path) -> dict[str, Any]:
    """What a framework says of each, in a process of its own."""
    questions, answers = folder / "asked", folder / "answers"
    questions.write_text("\n".join(map(json.dumps, asked.values())))
    command = [sys.executable, *map(str, (SUPPORT / parser, questions, answers))]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(zip(asked, map(json.loads, answers.read_text().splitlines()), strict=True))


@pytest.mark.skipif(importlib.util.find_spec("megatron") is None, reason="megatron-core is not installed")
def test_sixty_scripts_pass_megatrons_own_parser_and_its_transformer_config(scripts, tmp_path):
    said = answered("megatron_parser.py", scripts, tmp_path)
    assert {name: wrong for name, wrong in said.items() if wrong} == {}


@pytest.mark.skipif(importlib.util.find_spec("megatron") is None, reason="megatron-core is not installed")
@pytest.mark.parametrize("hardware", ["b200", "gb300"])
def test_scripts_for_blackwell_in_8_and_in_4_bits_pass_megatrons_own_parser(hardware, tmp_path):
    asked = asked_of_megatron(tmp_path, 30, hardware, ON_BLACKWELL)
    words = [word for found in asked.values() for word in found["words"]]
    assert {"mxfp8", "nvfp4", "tensorwise"} <= {*words} and len(asked) == 30
    said = answered("megatron_parser.py", asked, tmp_path)
    assert {name: wrong for name, wrong in said.items() if wrong} == {}


@pytest.mark.skipif(importlib.util.find_spec("megatron") is None, reason="megatron-core is not installed")
def test_megatrons_own_parser_is_told_the_gpu_of_a_script(scripts, tmp_path):
    """Before Blackwell tensor parallelism requires CUDA_DEVICE_MAX_CONNECTIONS to be 1."""
    found = next(one for one in scripts.values() if one["environment"]) | {"environment": {}}
    asked = {name: found | {"capability": given} for name, given in CAPABILITIES.items()}
    said = answered("megatron_parser.py", asked, tmp_path)
    assert "CUDA_DEVICE_MAX_CONNECTIONS" in said.pop("h100")
    assert {*said.values()} == {None}


def recipes_asked() -> dict[str, tuple[TrainingJob, Plan]]:
    """All but those of llama-3-405b, whose own configuration asks for torchao and a GPU, and of moonlight,
    whose asks for torchvision."""
    return {
        name: (job, plan) for name, job, plan in recipes() if not name.startswith(("llama-3-405b", "moon"))
    }


def test_torchtitan_is_asked_for_fifty_three_recipes_of_all_its_models_but_two():
    asked = recipes_asked()
    assert len(asked) == 53
    assert {name.split()[0] for name in asked} == MODELS.keys() - {"llama-3-405b", "moonlight-16b-a3b"}


@pytest.mark.skipif(importlib.util.find_spec("torchtitan") is None, reason="torchtitan is not installed")
def test_recipes_pass_torchtitans_own_parser_and_its_models_have_our_parameters(tmp_path):
    asked = recipes_asked()
    recipe_of = {
        name: {"recipe": emit_torchtitan(job, plan), "gpus": plan.gpus} for name, (job, plan) in asked.items()
    }
    said = answered("torchtitan_parser.py", recipe_of, tmp_path)
    assert said == {name: weights_of(job.shape) for name, (job, _) in asked.items()}


def weights_of(shape: ModelShape) -> int:
    """Count them without the router biases of sigmoid routers, which are buffers; gpt-oss learns its own."""
    some, counted = shape.experts, shape.parameters()
    kept = some and some.router_bias and not shape.sinks
    return counted.total - (counted.moe_layers * some.experts if some and kept else 0)


@pytest.mark.skipif(importlib.util.find_spec("torchtitan") is None, reason="torchtitan is not installed")
def test_what_is_kept_of_torchtitans_own_configurations_is_what_it_makes_itself(tmp_path):
    """But of those that ask for torchao, torchvision or a GPU."""
    release = frozen("torchtitan")
    own = {key for key in release["defaults"] if not key.startswith("model.")} - {"activation_checkpoint"}
    kept = {
        name: release["defaults"] | values
        for name, values in release["configurations"].items()
        if not name.startswith("kimi")
    }
    asked = {name: {"name": name, "keys": sorted(own)} for name in kept}
    said = answered("torchtitan_configurations.py", asked, tmp_path)
    made = {name: values for name, values in said.items() if not isinstance(values, str)}
    assert len(made) >= 25, said
    assert made == {name: {key: kept[name][key] for key in values} for name, values in made.items()}


@pytest.mark.skipif(importlib.util.find_spec("torchtitan") is None, reason="torchtitan is not installed")
def test_layers_are_dealt_out_to_stages_as_torchtitan_does(tmp_path):
    deals = [*product((5, 32, 61, 126), (2, 4, 7, 16, 34), (0, 1, 2), (0, 1, 3))]
    asked = {str(deal): {"deal": deal} for deal in deals}
    said = answered("torchtitan_configurations.py", asked, tmp_path)
    assert said == {str(deal): dealt_or_wrong(*deal, said[str(deal)]) for deal in deals}


def dealt_or_wrong(layers: int, stages: int, first: int, last: int, said: Any) -> Any:
    try:
        return dealt(layers, stages, first, last)
    except UserError:
        return said if isinstance(said, str) else "refused"


needs_deepspeed = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("deepspeed", "transformers", "accelerate")),
    reason="deepspeed, transformers or accelerate is not installed",
)
DEEPSPEED_PLANS: dict[str, tuple[Plan, dict[str, Any]]] = {
    "zero 3": (Plan(dp=16, zero=3, recompute="full"), {}),
    "zero 1 and tp, optimizer on the host": (Plan(dp=8, tp=2, zero=1), {"offload": ("optimizer",)}),
    "zero 2, 8 bits": (Plan(dp=8, zero=2, micro_batch=2), {"moments": "8bit"}),
    "experts": (Plan(dp=8, ep=4, zero=2), {}),
    "zero 0": (Plan(dp=1), {}),
    "a smaller bucket": (Plan(dp=8, zero=2), {"bucket": 1e8}),
}


def asked_of_deepspeed(name: str) -> tuple[TrainingJob, Plan]:
    plan, given = DEEPSPEED_PLANS[name]
    shape = find_model("qwen3-30b-a3b" if plan.ep > 1 else "llama-3-8b")
    stack = replace(find_stack("deepspeed"), dp_overlap=plan.zero > 0)
    stack = replace(stack, reduce_bucket=given.get("bucket", stack.reduce_bucket))
    given = {name: value for name, value in given.items() if name != "bucket"}
    return TrainingJob(shape, find_hardware("h100"), stack, 4096, 64, **given), plan


@needs_deepspeed
def test_deepspeed_reads_the_plan_in_its_configuration_and_transformers_finds_no_mismatch(tmp_path):
    asked, expected = {}, {}
    for name in DEEPSPEED_PLANS:
        job, plan = asked_of_deepspeed(name)
        left, ((_, _, config),) = without_documents(emit_deepspeed(job, plan))
        words = shlex.split(left.replace("\\\n", " "), comments=True)
        words = words[words.index("$@") + 1 :]
        asked[name] = {"config": json.loads(config), "gpus": int(plan.gpus), "words": words}
        expected[name] = {
            **{"zero": plan.zero, "beside": plan.zero > 0, "tp": plan.tp, "ep": plan.ep, "bf16": True},
            **{"micro_batch": plan.micro_batch, "steps": plan.microbatches(job), "host": bool(job.offload)},
            "bucket": job.stack.reduce_bucket,
            "recompute": plan.recompute == "full",
            "optim": f"OptimizerNames.ADAMW_{'BNB' if job.moments == '8bit' else 'TORCH_FUSED'}",
        }
    assert answered("deepspeed_parser.py", asked, tmp_path) == expected


@needs_deepspeed
def test_the_keys_that_are_kept_of_deepspeed_are_those_that_it_asks_for(tmp_path):
    """And, of those that it asks for under conditions, four; Ulysses' two are asked for elsewhere."""
    (names,) = answered("deepspeed_parser.py", {"all": {"names": True}}, tmp_path).values()
    kept = {*frozen("deepspeed")["keys"]}
    assert {*names} <= kept
    more = {"eigenvalue", "quantize_training", "sequence_parallel_size", "data_parallel_size"}
    assert kept - {*names} <= more


needs_accelerate = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("torch", "transformers", "accelerate")),
    reason="torch, transformers or accelerate is not installed",
)
ACCELERATE_PLANS: dict[str, tuple[Plan, dict[str, Any]]] = {
    "FSDP": (Plan(dp=16, zero=3, recompute="full", micro_batch=2), {}),
    "no resharding": (Plan(dp=8, zero=2, micro_batch=8), {}),
    "no resharding of several microbatches": (Plan(dp=8, zero=3), {"reshards": False}),
    "HSDP": (Plan(dp=16, zero=3, shards=8), {}),
    "context parallelism": (Plan(dp=4, cp=4, zero=3), {}),
    "a ring, in replicas": (Plan(dp=8, cp=2, zero=3, shards=8), {"context_parallel": "ring"}),
    "16 bits": (Plan(dp=8, zero=3), {"half": True}),
    "on the host": (Plan(dp=8, zero=3), {"offload": ("optimizer", "weights")}),
    "FSDP1": (Plan(dp=8, zero=3), {"sharding": "fsdp1"}),
}


def asked_of_accelerate(name: str) -> tuple[TrainingJob, Plan]:
    plan, given = ACCELERATE_PLANS[name]
    switches = {key: value for key, value in given.items() if key in Stack.__dataclass_fields__}
    stack = replace(find_stack("accelerate"), **switches)
    others = {key: value for key, value in given.items() if key not in switches}
    return TrainingJob(find_model("llama-3-8b"), find_hardware("h100"), stack, 4096, 64, **others), plan


@needs_accelerate
def test_accelerate_and_transformers_read_the_plan_in_a_script(tmp_path):
    asked, expected = {}, {}
    for name in ACCELERATE_PLANS:
        job, plan = asked_of_accelerate(name)
        left, _ = without_documents(emit_accelerate(job, plan))
        words = shlex.split(left.replace("\\\n", " "), comments=True)
        asked[name] = {"file": indented(emit_accelerate(job, plan)), "words": words[words.index("$@") + 1 :]}
        hybrid = plan.cp > 1 or plan.shards > 0
        shards = plan.shards or plan.dp * plan.cp
        way = {"all-gather": "allgather", "ring": "alltoall"}[job.stack.context_parallel]
        expected[name] = {
            **{"fsdp": True, "version": 1 if job.stack.sharding == "fsdp1" else 2},
            **{"reshards": plan.zero == 3 and job.stack.reshards, "recompute": plan.recompute == "full"},
            **{"host": bool(job.offload), "reduced in 16 bits": not job.half, "bf16": not job.half},
            **{"processes": plan.gpus, "nodes": plan.gpus // 8, "by transformers": False},
            **{"micro_batch": plan.micro_batch, "steps": plan.microbatches(job)},
            "degrees": [plan.dp * plan.cp // shards, shards // plan.cp, plan.cp] if hybrid else None,
            "way": way if plan.cp > 1 else None,
        }
    assert answered("accelerate_parser.py", asked, tmp_path) == expected


def indented(script: str) -> str:
    """The file that a script writes, line by line."""
    return script.partition("<<'END'\n")[2].partition("\nEND\n")[0]


@needs_accelerate
def test_the_options_that_are_kept_of_accelerate_are_its_own(tmp_path):
    (names,) = answered("accelerate_parser.py", {"all": {"names": True}}, tmp_path).values()
    kept = frozen("accelerate")["keys"]
    assert {*kept} - {*names} == {"fsdp_ignored_modules"}  # which its launcher takes from a file alone
    assert {*names} <= {*kept} and kept == sorted(kept)


@needs_accelerate
def test_fsdp1_takes_its_strategy_and_no_resharding(tmp_path):
    """fsdp_reshard_after_forward is of no effect there: fsdp_sharding_strategy has a default."""
    head = (
        "distributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 8\nfsdp_config:\n  fsdp_version: 1\n"
    )
    lines = {
        "resharding": "  fsdp_reshard_after_forward: SHARD_GRAD_OP\n",
        "strategy": "  fsdp_sharding_strategy: SHARD_GRAD_OP\n",
        "number": "  fsdp_sharding_strategy: 2\n",
    }
    words = ["--per_device_train_batch_size", "8"]
    said = answered(
        "accelerate_parser.py",
        {n: {"file": head + line, "words": words} for n, line in lines.items()},
        tmp_path,
    )
    reshards = {name: answer["reshards"] for name, answer in said.items()}
    assert reshards == {"resharding": True, "strategy": False, "number": False}
    given = {"per_device_train_batch_size": "8"}
    beside = Beside(8, model="llama-3-8b", variables=given)
    read = {n: read_accelerate(head + line, find_hardware("h100"), beside) for n, line in lines.items()}
    assert {name: found.plan.zero == 3 for name, found in read.items()} == reshards


@needs_accelerate
def test_fsdp_of_a_programs_arguments_is_read_as_transformers_reads_it(tmp_path):
    (tmp_path / "fsdp.json").write_text('{"cpu_offload": true, "activation_checkpointing": "true"}')
    own = ["--output_dir", str(tmp_path), "--per_device_train_batch_size", "8", "--bf16", "true"]
    jobs = {
        "whole": ["--fsdp", "full_shard auto_wrap"],
        "gradients": ["--fsdp", "shard_grad_op auto_wrap"],
        "host": ["--fsdp", "full_shard offload"],
        "file": ["--fsdp", "--fsdp_config", str(tmp_path / "fsdp.json")],
    }
    asked = {name: {"words": [*words, *own]} for name, words in jobs.items()}
    for name, said in answered("accelerate_parser.py", asked, tmp_path).items():
        command = shlex.join(["torchrun", "--nproc_per_node=8", "train.py", *jobs[name], *own])
        command = command.replace(f"{tmp_path}/", "")
        beside = Beside(model="llama-3-8b", folder=tmp_path)
        found = read_accelerate(command, find_hardware("h100"), beside)
        assert said["fsdp_version"] == 2 and found.job.stack.sharding == "fsdp2"
        assert said["reshard_after_forward"] == (found.plan.zero == 3)
        assert said.get("cpu_offload", False) == bool(found.job.offload)
        assert said.get("activation_checkpointing", False) == (found.plan.recompute == "full")
