"""Accelerate's launch scripts and files, written and read back."""

import json
import shlex
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gpu import Hardware
from ndparallel.base.errors import UserError
from ndparallel.commands.command_line import main
from ndparallel.hardware.accelerator import find_hardware
from ndparallel.launch_flags.accelerate.read import read_accelerate
from ndparallel.launch_flags.accelerate.write import emit_accelerate
from ndparallel.launch_flags.frameworks import emit
from ndparallel.launch_flags.frozen import frozen
from ndparallel.launch_flags.reading import Beside, Reading
from ndparallel.planner.adapters import Adapters
from ndparallel.planner.job import TOGETHER, Plan, TrainingJob
from ndparallel.planner.legality import why_not
from ndparallel.planner.models.presets import preset
from ndparallel.planner.prediction import peak_memory, predict
from ndparallel.planner.software import find_stack
from ndparallel.planner.stack import Stack

H100: Hardware = find_hardware("h100")
FSDP2 = """
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
fsdp_config:
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_reshard_after_forward: true
  fsdp_version: 2
mixed_precision: bf16
num_machines: 2
num_processes: 16
"""
FSDP1 = """
distributed_type: FSDP
fsdp_config:
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_sharding_strategy: FULL_SHARD
mixed_precision: bf16
num_processes: 16
"""
# of Llama 3 8B: all parameters, those of a layer, and of embedding, last norm and head
SIZE, LAYER, ENDS = 8_030_261_248, 218_112_000, 2 * 128_256 * 4096 + 4096
BATCH = {"per_device_train_batch_size": "2", "gradient_accumulation_steps": "4"}


def job_of(model: str = "llama-3-8b", batch: int = 64, stack: Stack | None = None, **given) -> TrainingJob:
    return TrainingJob(preset(model), H100, stack or find_stack("accelerate"), 4096, batch, **given)


def read(text: str, gpus: int | None = None, variables: dict[str, str] | None = None, **given) -> Reading:
    own = {"model": "llama-3-8b", "variables": BATCH if variables is None else variables} | given
    return read_accelerate(text, H100, Beside(gpus, **own))


# ------------------------------------------------------------------------------------------ there and back


@given(
    st.sampled_from(["llama-3-8b", "qwen3-30b-a3b"]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([(2, 0), (3, 0), (3, 4), (3, 8)]),
    st.sampled_from([1, 2]),
    st.sampled_from(["none", "full"]),
    st.sampled_from([{}, {"half": True}, {"offload": TOGETHER}]),
    st.sampled_from(
        [
            {},
            {"reshards": False},
            {"sharding": "fsdp1"},
            {"context_parallel": "ring"},
            {"name": "accelerate-sync-each-batch", "whole_between": False},
        ]
    ),
)
def test_what_is_written_is_read_back(model, cp, sharded, micro_batch, recompute, states, switches):
    zero, shards = sharded
    plan = Plan(cp=cp, dp=16 // cp, zero=zero, shards=shards, micro_batch=micro_batch, recompute=recompute)
    without = {"context_parallel"} if cp == 1 else set[str]()
    switches = {name: value for name, value in switches.items() if name not in without}
    job = job_of(model, stack=replace(find_stack("accelerate"), **switches), **states)
    assume(not [*why_not(job, plan)])
    assume("reshards" not in switches or (zero == 3 and plan.microbatches(job) > 1))
    try:
        text = emit_accelerate(job, plan)
    except UserError as reason:
        assert "Accelerate 1.15.0 has no" in str(reason)
        assume(False)
    found = read(text, model=model, variables={})
    assert (found.job, found.plan) == (job, plan)


@pytest.mark.parametrize(
    ("plan", "given", "wrong"),
    [
        (Plan(tp=2, dp=8, zero=3), {}, "no tensor parallelism that is priced here"),
        (Plan(pp=2, dp=8, zero=3), {}, "no pipeline; take --pp 1"),
        (Plan(dp=16), {}, "no ZeRO-0 that is priced here"),
        (Plan(dp=16, zero=3), {"moments": "8bit"}, "no moments in 8 bits beside FSDP"),
        (Plan(dp=16, zero=3), {"offload": ("optimizer",)}, "moves weights, gradients and optimizer"),
        (Plan(dp=16, zero=3), {"dtype": "fp8"}, "no layers in fp8"),
        (Plan(dp=16, zero=3, recompute="full", recompute_layers=2), {}, "recomputation of 2 layers"),
        (Plan(dp=16, zero=3, recompute="selective"), {}, "no --recompute selective; take none or full"),
        (Plan(dp=8, cp=2, zero=3, shards=2), {}, "take --shards 4 or more"),
    ],
)
def test_what_accelerate_does_not_have_is_refused(plan, given, wrong):
    with pytest.raises(UserError, match=wrong):
        emit("accelerate", job_of(**given), plan)


def test_a_plan_of_other_software_is_not_written_as_accelerates():
    with pytest.raises(UserError, match="other software than Accelerate 1.15.0: take --software accelerate"):
        emit_accelerate(job_of(stack=find_stack("torchtitan")), Plan(dp=16, zero=3))
    other = replace(find_stack("accelerate"), prefetch=False)
    with pytest.raises(UserError, match="Accelerate 1.15.0 has no key for the plan's prefetch"):
        emit_accelerate(job_of(stack=other), Plan(dp=16, zero=3))


def test_states_on_the_host_and_weights_that_are_not_freed_are_read_back():
    stack = replace(find_stack("accelerate-sync-each-batch"), reshards=False)
    job, plan = job_of(stack=stack, offload=TOGETHER), Plan(dp=16, zero=3)
    found = read(emit_accelerate(job, plan), model="llama-3-8b", variables={})
    assert (found.job, found.plan) == (job, plan)


def test_zero_2_keeps_weights_whole_from_a_forward_to_its_backward_pass():
    assert "fsdp_reshard_after_forward: false" in emit("accelerate", job_of(batch=16), Plan(dp=16, zero=2))


def test_a_script_for_several_nodes_asks_each_for_its_number():
    one, two = (emit_accelerate(job_of(), Plan(dp=gpus, zero=3)) for gpus in (8, 16))
    assert "$MACHINE_RANK" not in one and '--machine_rank "$MACHINE_RANK"' in two
    assert "num_machines: 2" in two and "MACHINE_RANK from 0 on" in two


# ------------------------------------------------------------------------------------------------- reading


def test_a_file_and_the_programs_arguments_make_the_plan():
    found = read(FSDP2)
    assert found.plan == Plan(dp=16, zero=3, micro_batch=2)
    assert found.job.global_batch == 16 * 2 * 4 and found.job.stack == find_stack("accelerate")
    assert found.notes[0].startswith("No argument of the program says how long sequences are")


def test_a_command_names_the_file_and_has_the_programs_arguments(tmp_path):
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "fsdp.yaml").write_text(FSDP2)
    (tmp_path / "run").mkdir()
    command = (
        "GPUS=8\\naccelerate launch --config_file configs/fsdp.yaml --num_processes $GPUS --num_machines 1 "
        "train.py --model_name_or_path Qwen/Qwen3-8B --per_device_train_batch_size 4 --max_length 2048 "
        "--gradient_checkpointing\\n"
    ).replace("\\n", "\n")
    found = read_accelerate(command, H100, Beside(folder=tmp_path / "run"))
    assert found.job.shape.name == "qwen3-8b" and found.job.sequence == 2048
    assert found.plan == Plan(dp=8, zero=3, micro_batch=4, recompute="full")
    assert not found.notes


def test_a_command_of_a_module_has_its_arguments_behind_the_launchers(tmp_path):
    (tmp_path / "fsdp.yaml").write_text(FSDP2)
    command = (
        "accelerate launch --config_file fsdp.yaml -m train --model_name_or_path Qwen/Qwen3-8B "
        "--per_device_train_batch_size 4 --max_length 2048"
    )
    found = read_accelerate(command, H100, Beside(folder=tmp_path))
    assert (found.job.shape.name, found.job.sequence) == ("qwen3-8b", 2048)
    assert found.plan == Plan(dp=16, zero=3, micro_batch=4)


@pytest.mark.parametrize(
    ("words", "config", "plan", "states"),
    [
        ("full_shard auto_wrap", "", {}, {}),
        ("shard_grad_op auto_wrap", "", {"zero": 2}, {}),
        ("full_shard offload", "", {}, {"offload": TOGETHER}),
        (
            "",
            '{"cpu_offload": true, "activation_checkpointing": true}',
            {"recompute": "full"},
            {"offload": TOGETHER},
        ),
        ("hybrid_shard", '{"version": 1}', {"shards": 8}, {}),
    ],
)
def test_fsdp_that_a_programs_own_arguments_ask_for_is_read(words, config, plan, states, tmp_path):
    """_process_fsdp_args in transformers/training_args.py."""
    (tmp_path / "fsdp.json").write_text(config)
    named = "--fsdp_config fsdp.json" * bool(config)
    way = shlex.join(["--fsdp", words] if words else ["--fsdp"])
    command = (
        f"torchrun --nproc_per_node=8 --nnodes=2 train.py --bf16 True {way} {named} "
        "--per_device_train_batch_size 4 --model_max_length 2048"
    )
    found = read(command, variables={}, folder=tmp_path)
    assert found.plan == replace(Plan(dp=16, zero=3, micro_batch=4), **plan)
    assert (found.job.offload, found.job.half, found.job.sequence) == (states.get("offload", ()), False, 2048)


def test_a_word_of_fsdp_that_transformers_does_not_have_is_told():
    with pytest.raises(UserError, match="unknown --fsdp 'full'"):
        read("torchrun --nproc_per_node=8 train.py --fsdp full --per_device_train_batch_size 1", variables={})


def test_transformers_takes_8_sequences_where_no_argument_says_how_many():
    found = read(FSDP2, variables={})
    assert found.plan.micro_batch == 8 and found.job.global_batch == 128
    assert any("8, as transformers has it" in note for note in found.notes)


@pytest.mark.parametrize(
    ("changed", "plan"),
    [
        ({}, {"zero": 3}),
        ({"FULL_SHARD": "HYBRID_SHARD"}, {"zero": 3, "shards": 8}),
        ({"FULL_SHARD": "4"}, {"zero": 3, "shards": 8}),
        ({"FULL_SHARD": "HYBRID_SHARD", "num_processes: 16": "num_processes: 8"}, {"zero": 3, "dp": 8}),
        ({"fsdp_sharding_strategy: FULL_SHARD": "activation_checkpointing: true"}, {"recompute": "full"}),
    ],
)
def test_fsdp1_is_read_by_its_strategy(changed, plan):
    text = FSDP1
    for old, new in changed.items():
        text = text.replace(old, new)
    found = read(text)
    assert found.plan == replace(Plan(dp=16, zero=3, micro_batch=2), **plan)
    assert found.job.stack.sharding == "fsdp1"


def test_no_resharding_of_several_microbatches_keeps_all_weights_and_gathers_half_as_often():
    """SHARD_GRAD_OP: all weights are whole, and not two layers and the ends alone; every microbatch gathers
    them once less. Gradients of all but the last microbatch are whole with both."""
    again, once = read(FSDP2), read(FSDP2.replace("forward: true", "forward: false"))
    assert once.plan == again.plan and not once.job.stack.reshards
    whole, some = (peak_memory(found.job, found.plan).buffers for found in (once, again))
    assert whole - some == pytest.approx(2 * (SIZE - LAYER - ENDS), rel=1e-9)
    alone = [replace(found.job, stack=replace(found.job.stack, prefetch=False)) for found in (once, again)]
    saved = {}
    for microbatches in (4, 8, 16):
        jobs = [replace(job, global_batch=32 * microbatches) for job in alone]
        once_seconds, again_seconds = (predict(job, once.plan).seconds for job in jobs)
        saved[microbatches] = again_seconds - once_seconds
    assert saved[4] > 0 and saved[16] - saved[8] == pytest.approx(2 * (saved[8] - saved[4]), rel=1e-6)


@pytest.mark.parametrize(
    ("argument", "half"), [({}, True), ({"bf16": "true"}, False), ({"fp16": "true"}, False)]
)
def test_without_mixed_precision_all_states_have_16_bits_unless_the_program_asks_for_it(argument, half):
    found = read(FSDP2.replace("mixed_precision: bf16", "mixed_precision: 'no'"), variables=BATCH | argument)
    assert found.job.half == half


def test_degrees_of_fsdp2_are_read_and_must_make_the_gpus():
    degrees = "parallelism_config:\n" + "".join(
        f"  parallelism_config_{name}: {value}\n"
        for name, value in {"dp_replicate_size": 2, "dp_shard_size": 4, "cp_size": 2}.items()
    )
    found = read(FSDP2 + degrees)
    assert found.plan == Plan(dp=8, cp=2, zero=3, shards=8, micro_batch=2)
    assert found.job.stack.context_parallel == "all-gather"
    ring = read(FSDP2 + degrees + "  parallelism_config_cp_comm_strategy: alltoall\n")
    assert ring.job.stack.context_parallel == "ring"
    with pytest.raises(UserError, match="make 16 GPUs, and there are 32"):
        read(FSDP2 + degrees, gpus=32)
    with pytest.raises(UserError, match="beside fsdp_version 1, which Accelerate refuses"):
        read(FSDP1 + degrees)


@pytest.mark.parametrize(
    ("old", "new", "wrong"),
    [
        ("distributed_type: FSDP", "distributed_type: DEEPSPEED", "take --from-deepspeed"),
        ("distributed_type: FSDP", "distributed_type: MULTI_GPU", "plan it by options"),
        ("distributed_type: FSDP", "distributed_type: 'NO'", "plan one GPU by options"),
        ("distributed_type: FSDP", "distributed_type: MEGATRON_LM", "as --software megatron-core"),
        ("mixed_precision: bf16", "mixed_precision: fp8", "'fp8' is not read, only bf16, fp16, no"),
        ("num_processes: 16", "", "how many GPUs"),
        ("num_processes: 16", "num_processes: many", "num_processes = 'many': give a whole number"),
        ("fsdp_version: 2", "fsdp_version: 3", "unknown fsdp_version '3'"),
        ("fsdp_version: 2", "fsdp_version: 1\n  fsdp_sharding_strategy: NO_SHARD", "NO_SHARD"),
        ("forward: true", "forward: often", "it is True or False"),
        (
            "num_processes: 16",
            "num_processes: 16\nparallelism_config:\n  parallelism_config_tp_size: 2",
            "each model's own tensor parallelism in transformers is not priced",
        ),
    ],
)
def test_what_is_not_read_is_refused_in_a_sentence(old, new, wrong):
    assert old in FSDP2
    with pytest.raises(UserError, match=wrong):
        read(FSDP2.replace(old, new))


@pytest.mark.parametrize(
    "text", ["", "echo hello", "python train.py --bf16 true", "accelerate launch train.py"]
)
def test_what_is_no_job_of_accelerates_is_refused_in_a_sentence(text):
    with pytest.raises(UserError, match="it is no file of `accelerate config`"):
        read(text)


KEYS = sorted({*frozen("accelerate")["defaults"], "fsdp_config", "parallelism_config", "dynamo_backend", "x"})
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 99)
    | st.sampled_from(["bf16", "FSDP", "FULL_SHARD", "allgather", "", "3"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=3),
)


@given(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=6))
def test_any_values_of_its_keys_are_a_job_or_are_told_in_a_sentence(config):
    """JSON is YAML, too."""
    lines = (f"{name}: {json.dumps(value)}\n" for name, value in config.items() if name != "distributed_type")
    with suppress(UserError):
        found = read(f"distributed_type: FSDP\n{''.join(lines)}", gpus=16)
        assert found.plan.gpus == 16 and found.job.global_batch == found.plan.dp * 2 * 4


def test_deepspeeds_reader_sends_a_file_of_fsdp_to_this_one(tmp_path, capsys):
    (tmp_path / "fsdp.yaml").write_text(FSDP2)
    assert main(["plan", "--from-deepspeed", str(tmp_path / "fsdp.yaml"), "--model", "llama-3-8b"]) == 2
    assert "take --from-accelerate" in " ".join(capsys.readouterr().err.split())


AXOLOTL = """
base_model: Qwen/Qwen3-8B
plugins:
  - axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin
fsdp_version: 2
fsdp_config:
  offload_params: false
  final_state_dict_type: FULL_STATE_DICT
  auto_wrap_policy: TRANSFORMER_BASED_WRAP
  transformer_layer_cls_to_wrap: Qwen3DecoderLayer
  reshard_after_forward: true
  activation_checkpointing: true
sequence_len: 2048
gradient_accumulation_steps: 4
micro_batch_size: 2
bf16: auto
"""
OF_AXOLOTL = Plan(dp=8, zero=3, micro_batch=2, recompute="full")


def test_axolotls_file_is_read_as_the_options_that_it_stands_for():
    """setup_fsdp_envs and setup_parallelism_envs in axolotl/utils/trainer.py."""
    found = read(AXOLOTL, gpus=8, model=None, variables={})
    assert found.plan == OF_AXOLOTL and found.job.shape.name == "qwen3-8b"
    assert (found.job.sequence, found.job.global_batch, found.job.half) == (2048, 64, False)
    (note,) = found.notes
    assert note == "--cut_cross_entropy of the program is not modelled: logits are whole."
    older = AXOLOTL.replace("fsdp_version: 2", "fsdp:\n  - full_shard\n  - auto_wrap")
    assert read(older, gpus=8, variables={}).job.stack.sharding == "fsdp1"
    inside = AXOLOTL.replace("fsdp_version: 2\n", "").replace("  offload", "  fsdp_version: 2\n  offload")
    assert read(inside, gpus=8, model=None, variables={}) == found
    eight_bits = AXOLOTL.replace("bf16: auto", "fp8: true")
    with pytest.raises(UserError, match="'fp8' is not read, only bf16, fp16, no"):
        read(eight_bits, gpus=8)


def test_axolotls_degrees_make_the_gpus():
    degrees = "dp_shard_size: 4\ndp_replicate_size: 2\ncontext_parallel_size: 2\n"
    found = read(AXOLOTL + degrees, variables={})
    assert found.plan == replace(OF_AXOLOTL, dp=8, cp=2, shards=8)
    assert found.job.stack.context_parallel == "ring"
    packed = read(AXOLOTL + degrees + "sample_packing: true\n", variables={})
    assert packed.job.stack.context_parallel == "all-gather"
    for name in ("tensor_parallel_size", "expert_parallel_size"):
        with pytest.raises(UserError, match="_size 2 is not read"):
            read(f"{AXOLOTL}{name}: 2\n", gpus=16, variables={})


@pytest.mark.parametrize(
    ("command", "gpus"),
    [
        ("accelerate launch -m axolotl.cli.train config.yml", 0),
        ("accelerate launch --num_processes 16 --num_machines 2 -m axolotl.cli.train config.yml", 16),
        ("axolotl train config.yml --launcher torchrun -- --nproc_per_node=8 --nnodes=2", 16),
        ("torchrun --nproc_per_node=8 train.py config.yml", 8),
    ],
)
def test_a_command_names_the_file_of_a_program_that_asks_for_fsdp(command, gpus, tmp_path):
    (tmp_path / "config.yml").write_text(AXOLOTL)
    if not gpus:
        with pytest.raises(UserError, match="how many GPUs"):
            read(command, variables={}, folder=tmp_path)
    found = read(command, gpus=None if gpus else 8, variables={}, folder=tmp_path)
    assert found.plan == replace(OF_AXOLOTL, dp=gpus or 8)


def test_what_a_program_asks_for_counts_for_more_than_the_launchers_file(tmp_path):
    """Trainer gives Accelerator a FullyShardedDataParallelPlugin of its own arguments, which then takes from
    the environment only what these leave out."""
    (tmp_path / "fsdp1.yaml").write_text(
        FSDP1.replace("_config:", "_config:\n  activation_checkpointing: true")
    )
    launch = "accelerate launch --config_file fsdp1.yaml train.py --per_device_train_batch_size 1"
    alone, own = (read(launch + words, variables={}, folder=tmp_path) for words in ("", " --fsdp full_shard"))
    assert (alone.job.stack.sharding, own.job.stack.sharding) == ("fsdp1", "fsdp2")
    assert own.plan == alone.plan == Plan(dp=16, zero=3, recompute="full")


@pytest.mark.parametrize(
    ("option", "said"),
    [("--multi_gpu", "--software pytorch --zero 0"), ("--use_deepspeed", "take --from-deepspeed")],
)
def test_a_command_of_another_way_is_told_what_to_take(option, said):
    with pytest.raises(UserError, match=said):
        read(f"accelerate launch {option} --num_processes 8 train.py --per_device_train_batch_size 1")


def test_gradients_that_every_microbatch_sums_are_not_whole_in_between():
    """sync_each_batch of GradientAccumulationPlugin, with which Trainer takes no no_sync."""
    every = '{"split_batches": false, "gradient_accumulation_kwargs": {"sync_each_batch": true}}'
    whole, summed = (read(FSDP2, variables=BATCH | more) for more in ({}, {"accelerator_config": every}))
    assert summed.job.stack == find_stack("accelerate-sync-each-batch")
    saved = [peak_memory(found.job, found.plan).buffers for found in (whole, summed)]
    assert saved[0] - saved[1] == pytest.approx(2 * SIZE, rel=0.01)
    assert predict(summed.job, summed.plan).seconds > predict(whole.job, whole.plan).seconds


def test_what_is_not_modelled_or_not_known_is_said():
    text = (
        FSDP2.replace("TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP")
        + "num_process: 8\ndynamo_backend: INDUCTOR\n"
    )
    notes = " ".join(read(text, variables=BATCH | {"optim": "lion"}).notes)
    assert "Accelerate 1.15.0 has no num_process (it has num_processes): left out." in notes
    assert "fsdp_auto_wrap_policy = 'SIZE_BASED_WRAP' is not modelled" in notes
    assert "dynamo_backend = 'INDUCTOR' is not modelled: layers are eager" in notes
    assert "Optimizer 'lion' is not modelled" in notes


def test_adapters_are_the_programs():
    found = read(FSDP2, variables=BATCH | {"use_peft": "true", "lora_r": "16"})
    assert found.job.adapters == Adapters(16)
    assert "It trains LoRA of rank 16, which no key says." in emit_accelerate(found.job, found.plan)


# -------------------------------------------------------------------------------------------- its software


def test_gradients_travel_and_wait_in_16_bits_and_are_kept_in_32():
    """reduce_dtype is the layers' type (set_mixed_precision in accelerate/utils/dataclasses.py): whole
    gradients of 2 bytes wait for the last microbatch, their shards of 4 beside them."""
    job, plan = job_of(batch=32), Plan(dp=16, zero=3)
    one, two = (peak_memory(replace(job, global_batch=batch), plan) for batch in (16, 32))
    assert one.gradients == two.gradients == 4 * SIZE / 16
    assert two.buffers - one.buffers == pytest.approx(2 * SIZE, rel=1e-9)


def test_the_loss_keeps_12_bytes_for_each_logit():
    """In 32 bits their log-softmax, and the gradients of that and of the logits (ForCausalLMLoss in
    transformers/loss/loss_utils.py)."""
    memory = peak_memory(job_of(batch=16), Plan(dp=16, zero=3))
    last_norm = 2 * 2 * 4096 * 4096  # its input and output
    assert memory.logits == 12 * 4096 * 128_256 + last_norm
