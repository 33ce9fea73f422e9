"""What programs that DeepSpeed launches say themselves: adapters, files of arguments; JSON with comments."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu import Hardware
from ndparallel.base.errors import UserError
from ndparallel.hardware.accelerator import find_hardware
from ndparallel.launch_flags.deepspeed.hjson import plain_json
from ndparallel.launch_flags.deepspeed.read import read_deepspeed
from ndparallel.launch_flags.reading import Beside, Reading
from ndparallel.planner.adapters import NF4_BITS, Adapters
from ndparallel.planner.job import Plan

H100: Hardware = find_hardware("h100")
ZERO_2 = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}, "zero_optimization": {"stage": 2}}


def read(text: str, gpus: int | None = 8, model: str | None = "llama-3-8b", **given) -> Reading:
    return read_deepspeed(text, H100, Beside(gpus, model=model, **given))


def launched(words: str) -> Reading:
    return read(f"deepspeed train.py --deepspeed zero2 --per_device_train_batch_size 1 {words}")


# ------------------------------------------------------------------------------------------------- adapters


@pytest.mark.parametrize(
    ("words", "adapters"),
    [
        ("--use_peft --lora_r 32 --lora_target_modules q_proj v_proj", Adapters(32, ("q_proj", "v_proj"))),
        ("--use_peft True --lora_r 32 --lora_target_modules all-linear --lora_alpha 8", Adapters(32)),
        (
            "--finetuning_type lora --lora_rank 8 --lora_target v_proj,q_proj",
            Adapters(8, ("q_proj", "v_proj")),
        ),
        ("--train_type lora --lora_rank 8", Adapters(8)),
        ("--use_peft --lora_r 1", Adapters(1)),
        ("--lora_dim 128 --lora_module_name decoder.layers.", Adapters(128)),
        ("--lora_r 64 --bits 4", Adapters(64, base_bits=NF4_BITS)),
        ("--adapter qlora --lora_r 64", Adapters(64, base_bits=NF4_BITS)),
        ("--lora_rank 8 --quantization_bit 8", Adapters(8)),
        ("--lora_dim 0", None),
        ("--use_peft --lora_r 0 --lora_rank 8", Adapters(8)),
        ("--finetuning_type full --lora_rank 8", None),
        ("--use_peft false --lora_r 8", None),
        ("--finetuning_type freeze --lora_rank 8", None),
        ("--lora_enable True", None),
    ],
)
def test_the_programs_rank_and_matrices_are_read(words, adapters):
    found = launched(words)
    assert found.job.adapters == adapters
    assert any("is not read: give --lora" in note for note in found.notes) == (
        adapters is None and ("freeze" in words or "enable" in words)
    )


def test_adapters_beside_a_file_overrule_the_programs():
    command = "deepspeed train.py --deepspeed zero2 --per_device_train_batch_size 1 --use_peft --lora_r 8"
    found = read(command, adapters=Adapters(4))
    assert found.job.adapters == Adapters(4)
    assert not any("adapters stand" in note for note in found.notes)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "No argument says on which matrices its adapters stand: on all"),
        ("--lora_target_modules c_attn", "Adapters on 'c_attn' are not known here: they stand on all"),
        ("--lora_target_modules c_attn q_proj", "Adapters on 'c_attn' are not known here: they stand on the"),
        ("--lora_target all --use_dora true", "--use_dora of the program is not modelled"),
        ("--lora_target all", ""),
        ("--lora_target_linear true", ""),
    ],
)
def test_matrices_that_are_not_known_are_said(words, said):
    notes = launched(f"--use_peft --lora_r 8 {words}").notes
    assert any(note.startswith(said) for note in notes) if said else not any("dapters" in n for n in notes)


def test_a_rank_beyond_all_sense_is_told_in_a_sentence():
    with pytest.raises(UserError, match="the adapters' rank"):
        launched("--use_peft --lora_r 99999999999")


# ---------------------------------------------------------------------------------------- files of arguments

RECIPE = """
model_name_or_path: Qwen/Qwen3-8B
finetuning_type: lora
lora_rank: 16
lora_target: [q_proj, v_proj]
deepspeed: ds.json
cutoff_len: 2048
"""


@pytest.mark.parametrize(
    "command",
    [
        "llamafactory-cli train configs/recipe.yaml",
        "FORCE_TORCHRUN=1 NNODES=2 NPROC_PER_NODE=4 llamafactory-cli train recipe.yaml",
        "accelerate launch --num_processes 8 -m axolotl.cli.train recipe.yaml",
        "axolotl train recipe.yaml --sequence_parallel_degree 1",
    ],
)
def test_a_command_without_a_program_is_read_with_its_file_of_arguments(tmp_path, command):
    (tmp_path / "ds.json").write_text(json.dumps(ZERO_2))
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    gpus = None if "NODE=" in command or "processes" in command else 8
    found = read(f"set -e\n{command}\n", gpus, None, folder=tmp_path)
    assert (found.plan, found.job.shape.name) == (Plan(dp=8, zero=2), "qwen3-8b")
    assert (found.job.sequence, found.job.adapters) == (2048, Adapters(16, ("q_proj", "v_proj")))


def test_a_file_of_arguments_that_the_script_writes_is_read():
    script = (
        f"cat > recipe.yaml <<EOF{RECIPE.replace('ds.json', 'zero2')}EOF\nllamafactory-cli train recipe.yaml"
    )
    found = read(script, model=None, variables={"per_device_train_batch_size": "1"})
    assert (found.plan.zero, found.job.shape.name) == (2, "qwen3-8b")


def test_a_variable_that_the_script_does_not_set_stays_in_the_name_of_the_file(tmp_path):
    script = f"cat > $SCRATCH/recipe.yaml <<EOF{RECIPE}EOF\nllamafactory-cli train $SCRATCH/recipe.yaml"
    (tmp_path / "ds.json").write_text(json.dumps(ZERO_2))
    found = read(script, model=None, folder=tmp_path)
    assert (found.plan.zero, found.job.shape.name) == (2, "qwen3-8b")


def test_a_file_of_arguments_that_is_missing_is_named(tmp_path):
    with pytest.raises(UserError, match="takes its arguments from 'recipe.yaml', which is not found: put it"):
        read("llamafactory-cli train recipe.yaml", folder=tmp_path)
    with pytest.raises(UserError, match="arguments from '\\$1', which is not found|no configuration of Deep"):
        read("llamafactory-cli train $1", folder=tmp_path)
    (tmp_path / "recipe.yaml").write_text("model_name_or_path: Qwen/Qwen3-8B\n")
    with pytest.raises(UserError, match="no configuration of DeepSpeed"):
        read("llamafactory-cli train recipe.yaml", folder=tmp_path)


# ---------------------------------------------------------------------------------------- JSON with comments

COMMENTED = """
// ZeRO-2 {
{
  "train_micro_batch_size_per_gpu": 2, # of each GPU
  /* not
     yet: "gradient_accumulation_steps": 4, */
  "bf16": {"enabled": true,},
  "wandb": {"url": "http://x/*y*/#z", "quoted": "a \\" // b"},
  "zero_optimization": {"stage": 2},
}
"""


def test_comments_and_last_commas_are_passed_over_as_deepspeed_does():
    """hjson.load in deepspeed/runtime/config.py."""
    found = read(COMMENTED)
    assert (found.plan.zero, found.plan.micro_batch, found.job.global_batch) == (2, 2, 16)
    assert json.loads(plain_json(COMMENTED))["wandb"] == {"url": "http://x/*y*/#z", "quoted": 'a " // b'}


def test_an_error_behind_comments_has_the_line_of_the_file():
    with pytest.raises(UserError, match="line 5 is no JSON"):
        read("{\n/* two\nlines */\n// one more\n oops }")


@given(
    st.recursive(
        st.none() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_plain_json_stays_as_it_is(value):
    for indent in (None, 1):
        text = json.dumps(value, indent=indent, ensure_ascii=False)
        assert plain_json(text) == text


@pytest.mark.parametrize("part", ["/*", '"\\', '"', "#", ",", ", ", '\\"', "//"])
def test_no_text_takes_long(part):
    began = time.process_time()
    plain_json(part * 50_000)
    assert time.process_time() - began < 5
