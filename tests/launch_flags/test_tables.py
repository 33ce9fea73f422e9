"""Claims about the tables of `ndparallel flags`: no option is left out, and rows say what scripts have."""

import argparse
import re

import pytest

from ndparallel.commands.command_line import main
from ndparallel.launch_flags.frameworks import FRAMEWORKS
from ndparallel.launch_flags.frozen import frozen, megatron_flags
from ndparallel.launch_flags.tables import megatron_rows, torchtitan_rows
from ndparallel.model.costs import RECOMPUTE
from ndparallel.planner.option_groups import MODEL_FLAGS, add_job_options, add_plan_options
from ndparallel.planner.state_options import add_state_options

# options that another row speaks of: a second spelling, or a part of what the row has
ROW_OF = {
    "flash_attention": "attention",
    "cp_comm_type": "context_parallel",
    "layers_per_stage": "chunks",
    "recompute_method": "recompute",
    "expert_ffn": "ffn",
}


def options_of_plans() -> set[str]:
    parser = argparse.ArgumentParser()
    for add in (add_job_options, add_state_options, add_plan_options):
        add(parser)
    return {action.dest for action in parser._actions} - {"help", "plan"}


@pytest.mark.parametrize("framework", [*FRAMEWORKS])
def test_every_option_of_a_job_and_its_plan_has_a_row(framework):
    """With flags, or with the reason why there are none. All but Megatron's models have their own sizes."""
    rows = {re.split(" = |, | without ", field)[0] for _, field, _ in FRAMEWORKS[framework].rows()}
    sizes = {*MODEL_FLAGS} if framework != "megatron" else set()
    assert {ROW_OF.get(option, option) for option in options_of_plans() - sizes} <= rows


def test_every_name_in_the_rows_is_one_of_the_release():
    flags = {word for _, _, becomes in megatron_rows() for word in re.findall(r"--[a-z][\w-]*", becomes)}
    assert flags <= megatron_flags().keys()
    titans = " ".join(becomes for _, _, becomes in torchtitan_rows())
    keys = {*re.findall(r"(?:training|parallelism|compile)\.\w+", titans)}
    assert keys and keys <= {*frozen("torchtitan")["keys"]}


@pytest.mark.parametrize(
    "field, options",
    [
        ("fused_permutation", "--fused-permutation"),
        ("fused_router", "--fused-router"),
        ("fp32_router", "--fp32-router"),
        ("dispatcher = hybridep", "--dispatcher hybridep"),
        ("capacity_factor", "--capacity-factor 1.5"),
        ("moments = bf16", "--moments bf16"),
        ("offload = optimizer", "--offload optimizer"),
        ("context_parallel = all-gather", "--cp 2 --context-parallel all-gather"),
        ("sequence_parallel", "--tp 2 --sequence-parallel"),
        ("recompute_layers", "--pp 2 --recompute full --recompute-layers 3"),
        ("recompute_modules", "--recompute selective --recompute-modules mlp"),
        ("stage_layers", "--pp 2 --stage-layers 26,22"),
        ("overlap = ep", "--overlap dp,cp,ep"),
        ("overlap without pp", "--overlap dp,cp"),
        ("kv_heads", ""),
        ("head_dim", ""),
    ],
)
def test_a_row_says_the_flags_that_the_script_has(field, options, capsys):
    job = "plan --model qwen3-30b-a3b --gpus 16 --global-batch 64 --ep 8 --zero 1 --emit megatron"
    assert main([*job.split(), *options.split()]) == 0
    words = capsys.readouterr().out.split()
    (becomes,) = (becomes for _, name, becomes in megatron_rows() if name == field)
    assert {word for word in becomes.split() if word.startswith("--")} <= {*words}


@pytest.mark.parametrize("framework", [*FRAMEWORKS])
@pytest.mark.parametrize("option", ["half", "lora", "qlora", "moments", "fused_router", "fp32_router"])
def test_what_a_row_says_is_refused_is_refused(framework, option, capsys):
    """And what is not, is written."""
    value = {"lora": "16", "qlora": "16", "moments": "8bit"}.get(option, "")
    model = "qwen3-30b-a3b" if "router" in option else "llama-3-8b"
    asked = f"plan --model {model} --gpus 16 --global-batch 64 --zero 3 --emit {framework}"
    code = main([*asked.split(), f"--{option.replace('_', '-')}", *value.split()])
    named = (option, f"{option} = {value}")
    rows = [becomes for _, name, becomes in FRAMEWORKS[framework].rows() if name in named]
    assert (code == 2) == (rows == ["(refused)"]), capsys.readouterr().err


def test_torchtitans_rows_have_every_schedule_every_recomputation_and_every_stage_of_zero():
    """FSDP2 keeps weights whole after the forward pass (ZeRO-2), or gathers them again (ZeRO-3)."""
    rows = {name: becomes for _, name, becomes in torchtitan_rows()}
    assert {name for name in rows if name.startswith("zero =")} == {"zero = 1", "zero = 2", "zero = 3"}
    assert '"never"' in rows["zero = 2"] and '"always"' in rows["zero = 3"]
    assert {rows[f"recompute = {word}"].split(".")[0] for word in RECOMPUTE} == {
        "activation_checkpoint = None",
        "activation_checkpoint = SelectiveAC",
        "activation_checkpoint = FullAC",
    }
    assert rows["schedule = zb-v"] == "ZBVZeroBubble" and rows["schedule = 1f1b"] == "1F1B"
