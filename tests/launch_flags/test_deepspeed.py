"""DeepSpeed's configurations and launch scripts, written and read back."""

import json
import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gpu import Hardware
from ndparallel.base.errors import UserError
from ndparallel.commands.command_line import main
from ndparallel.hardware.accelerator import find_hardware
from ndparallel.launch_flags.deepspeed.notes import NOT_MODELLED
from ndparallel.launch_flags.deepspeed.read import read_deepspeed
from ndparallel.launch_flags.deepspeed.write import FILE, emit_deepspeed, nested
from ndparallel.launch_flags.frameworks import FRAMEWORKS
from ndparallel.launch_flags.frozen import frozen
from ndparallel.launch_flags.reading import Beside, Reading
from ndparallel.planner.adapters import Adapters
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.legality import why_not
from ndparallel.planner.models.presets import preset
from ndparallel.planner.models.shape import ModelShape
from ndparallel.planner.software import find_stack
from tests.support.random_plans import hybrids

H100: Hardware = find_hardware("h100")
ZERO_3: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 4,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 3},
}
AUTO = ZERO_3 | {"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto"}
NAMES = sorted({part for key in frozen("deepspeed")["keys"] for part in key.split(".")[-2:]})
ACCELERATE = """
distributed_type: DEEPSPEED
deepspeed_config:
  zero_stage: 2
  offload_optimizer_device: cpu
  gradient_accumulation_steps: 8
mixed_precision: bf16
num_processes: 8
"""
LAUNCHED = """
export STAGE=2
cat <<EOT > ds_$STAGE.json
{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": true},
 "zero_optimization": {"stage": $STAGE}}
EOT
deepspeed --include="localhost:0,1@other:2,3" train.py --deepspeed ds_${STAGE}.json \\
    --model_name_or_path Qwen/Qwen3-8B --max_length 2048 --gradient_checkpointing --use_peft
"""


def job_of(model: str = "llama-3-8b", batch: int = 64, software: str = "deepspeed", **given) -> TrainingJob:
    return TrainingJob(preset(model), H100, find_stack(software), 4096, batch, **given)


def read(
    config: dict | str, gpus: int | None = 8, model: str | ModelShape | None = "llama-3-8b", **given
) -> Reading:
    text = config if isinstance(config, str) else json.dumps(config)
    return read_deepspeed(text, H100, Beside(gpus, model=model, **given))


def changed(**fields) -> dict:
    """ZERO_3 with other fields; of zero_optimization those whose names begin with zero_."""
    zero = {name[5:]: value for name, value in fields.items() if name.startswith("zero_")}
    others = {name: value for name, value in fields.items() if not name.startswith("zero_")}
    return ZERO_3 | others | {"zero_optimization": ZERO_3["zero_optimization"] | zero}


# ------------------------------------------------------------------------------------------ there and back


@given(
    st.sampled_from(["llama-3-8b", "qwen3-30b-a3b"]).map(preset) | hybrids(preset("qwen3.5-27b")),
    st.sampled_from([(1, 1, 1), (2, 1, 1), (8, 1, 1), (1, 2, 1), (1, 4, 1), (1, 1, 2), (1, 1, 8)]),
    st.sampled_from([1, 2, 8]),
    st.sampled_from([0, 1, 2, 3]),
    st.sampled_from([1, 2]),
    st.sampled_from(["none", "full"]),
    st.sampled_from([(), ("optimizer",), ("weights",), ("optimizer", "weights")]),
    st.sampled_from(["fp32", "8bit"]),
)
def test_what_is_written_is_read_back(shape, cuts, ep, zero, micro_batch, recompute, offload, moments):
    tp, pp, cp = cuts
    plan = Plan(
        tp=tp,
        pp=pp,
        cp=cp,
        dp=16,
        ep=ep if shape.experts else 1,
        zero=zero,
        micro_batch=micro_batch,
        recompute=recompute,
    )
    job = replace(job_of(batch=128, offload=offload, moments=moments), shape=shape)
    assume(not [*why_not(job, plan)])
    try:
        text = emit_deepspeed(job, plan)
    except UserError as reason:
        assert "DeepSpeed 0.19.6 has no" in str(reason)
        assume(False)
    found = read(text, None, shape)
    assert found.plan == plan
    beside = zero > 0 and pp == 1
    assert found.job == replace(job, stack=replace(job.stack, dp_overlap=beside, prefetch=beside))
    assert [note for note in found.notes if "left out" in note or "not modelled" in note] == []


def test_zero_3_of_eight_billion_parameters_is_this_script():
    text = emit_deepspeed(job_of(), Plan(dp=16, zero=3, recompute="full"))
    assert text.split("\n")[6:] == [
        ': "${1:?name the program that trains, as in: bash launch.sh train.py}"',
        "cat > deepspeed_by_ndparallel.json <<'END'",
        "{",
        '  "train_micro_batch_size_per_gpu": 1,',
        '  "gradient_accumulation_steps": 4,',
        '  "bf16": {',
        '    "enabled": true',
        "  },",
        '  "zero_optimization": {',
        '    "stage": 3,',
        '    "overlap_comm": true',
        "  }",
        "}",
        "END",
        'deepspeed --num_nodes 2 --num_gpus 8 "$@" \\',
        "  --deepspeed deepspeed_by_ndparallel.json \\",
        "  --per_device_train_batch_size 1 \\",
        "  --gradient_accumulation_steps 4 \\",
        "  --bf16 true \\",
        "  --gradient_checkpointing true",
        "",
    ]


def test_bash_writes_the_configuration_and_launches_the_program_with_its_own_arguments_first(tmp_path):
    launcher = tmp_path / "deepspeed"
    launcher.write_text(f"#!{sys.executable}\nimport json, sys\nprint(json.dumps(sys.argv[1:]))\n")
    launcher.chmod(0o755)
    (tmp_path / "launch.sh").write_text(emit_deepspeed(job_of(), Plan(tp=2, dp=8, zero=1)))
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = ["bash", "-eu", "launch.sh"]
    bare = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert bare.returncode and "name the program that trains" in bare.stderr
    assert not (tmp_path / FILE).exists()
    done = subprocess.run(
        [*command, "train.py", "--seed", "1"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    words = json.loads(done.stdout)
    assert words[:9] == [
        "--num_nodes",
        "2",
        "--num_gpus",
        "8",
        "train.py",
        "--seed",
        "1",
        "--deepspeed",
        FILE,
    ]
    written = json.loads((tmp_path / FILE).read_text())
    assert written["zero_optimization"] == {"stage": 1, "overlap_comm": True}
    assert written["tensor_parallel"] == {"autotp_size": 2}


def test_a_pipeline_is_the_programs_and_the_script_says_which():
    text = emit_deepspeed(job_of(), Plan(pp=4, dp=4, zero=1, recompute="full"))
    assert "PipelineModule(layers, num_stages=4, activation_checkpoint_interval=1)" in text
    assert '"activation_checkpoint_interval": 1\n' in text
    assert f'"$@" \\\n  --deepspeed --deepspeed_config {FILE}\n' in text
    assert "per_device_train_batch_size" not in text


@pytest.mark.parametrize(
    ("words", "where", "where_not"),
    [
        ("PipelineModule(layers, num_stages=2, activation", Plan(pp=2, dp=8, zero=1), Plan(dp=16, zero=1)),
        ("activation_checkpoint_interval=0", Plan(pp=2, dp=8), Plan(pp=2, dp=8, recompute="full")),
        ("It takes transformers' TrainingArguments", Plan(dp=16), Plan(pp=2, dp=8)),
        ("/job/hostfile", Plan(dp=16), Plan(dp=8)),
        ("AutoEP knows the experts of", Plan(dp=8, ep=2), Plan(dp=8)),
    ],
)
def test_the_script_says_what_no_key_says(words, where, where_not):
    said, silent = (emit_deepspeed(job_of("qwen3-30b-a3b"), plan) for plan in (where, where_not))
    assert words in said and words not in silent


def test_a_plan_for_deepspeed_of_2021_is_not_written_in_keys_of_the_present_one():
    with pytest.raises(UserError, match="the plan is for deepspeed-2021, which is other software than Deep"):
        emit_deepspeed(job_of(software="deepspeed-2021"), Plan(dp=16, zero=1))


def test_an_optimizer_on_the_host_has_a_learning_rate_of_transformers_or_deepspeeds_own():
    job = job_of(offload=("optimizer",))
    filled, own = (emit_deepspeed(job, plan) for plan in (Plan(dp=16, zero=1), Plan(pp=4, dp=4, zero=1)))
    assert '"lr": "auto"' in filled and "learning rate is DeepSpeed's own" not in filled
    assert "auto" not in own and "learning rate is DeepSpeed's own, 0.001" in own


@pytest.mark.parametrize(
    ("broken", "kept"),
    [
        (Plan(pp=2, dp=8, zero=2), Plan(pp=2, dp=8, zero=1)),
        (Plan(tp=2, dp=8, ep=2, zero=3), Plan(tp=2, dp=8, ep=2, zero=2)),
        (Plan(tp=2, dp=8, ep=2, zero=3), Plan(dp=16, ep=2, zero=3)),
        (Plan(tp=2, pp=2, dp=4, ep=2), Plan(tp=2, dp=8, ep=2)),
        (Plan(tp=2, pp=2, dp=4, ep=2), Plan(pp=2, dp=8, ep=2)),
    ],
)
def test_experts_and_pipelines_have_not_every_zero(broken, kept):
    assert emit_deepspeed(job_of("qwen3-30b-a3b"), kept)
    with pytest.raises(UserError, match="DeepSpeed 0.19.6 has no"):
        emit_deepspeed(job_of("qwen3-30b-a3b"), broken)


def test_an_optimizer_on_the_host_is_not_beside_experts_and_tp():
    """validate_folding_global in deepspeed/module_inject/auto_ep_folding.py."""
    job = job_of("qwen3-30b-a3b", offload=("optimizer",))
    for kept in (Plan(tp=2, dp=8, zero=1), Plan(dp=16, ep=2, zero=1)):
        assert emit_deepspeed(job, kept)
    with pytest.raises(UserError, match="no optimizer on the host beside experts"):
        emit_deepspeed(job, Plan(tp=2, dp=8, ep=2, zero=1))


def test_an_optimizer_on_the_host_is_zeros():
    job = job_of(offload=("optimizer",))
    assert emit_deepspeed(job, Plan(dp=16, zero=1))
    with pytest.raises(UserError, match="optimizer on the host without ZeRO"):
        emit_deepspeed(job, Plan(dp=16))


def test_switches_that_deepspeed_has_no_key_for_are_refused():
    stack = find_stack("deepspeed")
    for other in (replace(stack, dispatcher="deepep"), replace(stack, gathers_first=True)):
        with pytest.raises(UserError, match="no key for the plan's (dispatcher|gathers_first)"):
            emit_deepspeed(replace(job_of(), stack=other), Plan(dp=16, zero=1))
    chosen = replace(stack, attention="unfused", gathers_first=True)
    assert "# Its attention is not fused." in emit_deepspeed(
        replace(job_of(), stack=chosen), Plan(dp=16, zero=3)
    )


def test_one_key_says_whether_gradients_and_weights_of_zero_3_are_beside_compute():
    for beside in (True, False):
        stack = replace(find_stack("deepspeed"), dp_overlap=beside, prefetch=not beside)
        with pytest.raises(
            UserError, match="weights beside compute where its gradients are not, or the other"
        ):
            emit_deepspeed(replace(job_of(), stack=stack), Plan(dp=16, zero=3))
        assert emit_deepspeed(replace(job_of(), stack=stack), Plan(dp=16, zero=2))


def test_a_plan_that_cannot_be_is_refused_with_its_reason():
    with pytest.raises(UserError, match="tp"):
        emit_deepspeed(job_of(), Plan(tp=3, dp=16))


@pytest.mark.parametrize(
    ("change", "plan", "reason"),
    [
        ({"moments": "bf16"}, Plan(dp=16, zero=1), "no moments in bf16"),
        ({"half": True}, Plan(dp=16, zero=1), "no all states in 16 bits"),
        ({"dtype": "fp8"}, Plan(dp=16, zero=1), "no layers in fp8"),
        ({"offload": ("activations",)}, Plan(dp=16, zero=1), "no activations on the host"),
        (
            {"moments": "8bit"},
            Plan(pp=4, dp=4, zero=1),
            "8 bits in a pipeline, .* or take --pp 1",
        ),
        (
            {"moments": "8bit", "offload": ("optimizer",)},
            Plan(dp=16, zero=2),
            "no moments in 8 bits on the host",
        ),
        ({}, Plan(pp=4, dp=4, zero=3), "no ZeRO-3 in a pipeline"),
        ({}, Plan(dp=16, recompute="full", recompute_layers=2), "recomputation of 2 layers of a stage"),
        ({"software": "megatron-core"}, Plan(dp=16), "the plan is for megatron-core"),
        ({"batch": 96}, Plan(dp=12), "12 GPUs do not fill nodes of 8"),
    ],
)
def test_what_deepspeed_cannot_do_is_refused(change, plan, reason):
    with pytest.raises(UserError, match=reason):
        emit_deepspeed(job_of(**change), plan)


def test_adapters_are_the_programs():
    text = emit_deepspeed(job_of(adapters=Adapters(16)), Plan(dp=16, zero=1))
    assert "# It trains LoRA of rank 16, which no key says." in text


# ------------------------------------------------------------------------------------------- configurations


def test_a_configuration_is_read():
    found = read(ZERO_3)
    assert found.plan == Plan(dp=8, zero=3, micro_batch=2)
    assert (found.job.global_batch, found.job.sequence, found.job.stack.name) == (
        8 * 2 * 4,
        4096,
        "deepspeed",
    )


@pytest.mark.parametrize(
    ("stage", "given", "beside"), [(1, {}, False), (3, {}, True), (2, {"zero_overlap_comm": True}, True)]
)
def test_gradients_are_beside_compute_where_overlap_comm_says_it_or_zero_3(stage, given, beside):
    found = read(changed(zero_stage=stage, **given))
    assert (found.job.stack.dp_overlap, found.job.stack.prefetch) == (beside, beside)
    said = f"overlap_comm {beside}".lower()
    assert any(said in note for note in found.notes) == (not given)


@pytest.mark.parametrize(
    ("batch", "micro_batch", "steps"),
    [
        ({"train_batch_size": 64}, 8, 1),
        ({"train_batch_size": 64, "gradient_accumulation_steps": 4}, 2, 4),
        ({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 1}, 1, 8),
        ({"train_micro_batch_size_per_gpu": 1}, 1, 1),
    ],
)
def test_of_three_sizes_of_a_batch_what_is_missing_follows(batch, micro_batch, steps):
    found = read({"bf16": {"enabled": True}} | batch)
    assert (found.plan.micro_batch, found.job.global_batch) == (micro_batch, 8 * micro_batch * steps)


def test_deepspeed_counts_tp_ranks_in_its_batch_and_the_job_does_not():
    """DeepSpeedConfig divides by all GPUs before it hears of AutoTP."""
    found = read(changed(train_batch_size=64, tensor_parallel={"autotp_size": 2}))
    assert (found.plan.tp, found.plan.dp, found.job.global_batch) == (2, 4, 4 * 2 * 4)


def test_stages_are_read_and_their_recomputation_only_with_them():
    degrees = {"tensor_parallel": {"autotp_size": 2}, "pipeline": {"stages": 2}}
    plan = read(changed(**degrees, zero_stage=1)).plan
    assert (plan.tp, plan.pp, plan.dp, plan.recompute) == (2, 2, 2, "none")
    again = {"pipeline": {"activation_checkpoint_interval": 1}}
    assert read(ZERO_3 | again).plan.recompute == "none"
    assert read(changed(zero_stage=1, pipeline=again["pipeline"] | {"stages": 2})).plan.recompute == "full"


def test_of_recomputation_it_is_said_where_no_argument_has_it():
    words = "No argument says --gradient_checkpointing"
    bare, piped = read(ZERO_3).notes, read(changed(zero_stage=1, pipeline={"stages": 2})).notes
    told = read(ZERO_3, variables={"gradient_checkpointing": "false"}).notes
    assert [any(words in note for note in notes) for notes in (bare, piped, told)] == [True, False, False]


@pytest.mark.parametrize("key", NOT_MODELLED)
def test_what_is_modelled_is_not_said_and_all_else_is(key):
    modelled, instead = NOT_MODELLED[key]
    for value, is_said in [*((value, False) for value in modelled), ("nvme", True)]:
        config = ZERO_3 | nested({key: value})
        config["zero_optimization"] = ZERO_3["zero_optimization"] | config["zero_optimization"]
        config["bf16"] = ZERO_3["bf16"] | config["bf16"]
        assert any(instead in note for note in read(config).notes) == is_said, value


def test_nothing_is_said_of_what_is_written_as_deepspeed_has_it_by_itself():
    """Defaults of config.py and offload_config.py in deepspeed/runtime/zero, and of AutoEP."""
    zero = {
        **{"mics_shard_size": -1, "zero_hpz_partition_size": 1, "zero_quantized_weights": False},
        **{"reduce_scatter": True, "contiguous_gradients": True, "offload_optimizer": {"ratio": 1.0}},
    }
    own = {f"zero_{key}": value for key, value in zero.items()}
    notes = read(changed(**own, expert_parallel={"expert_tensor_parallel_size": 1})).notes
    assert not [note for note in notes if "not modelled" in note]


@pytest.mark.parametrize(("imbalance", "is_said"), [(1.0, False), (1.5, True)])
def test_the_script_says_for_which_busiest_rank_it_was_planned(imbalance, is_said):
    text = emit_deepspeed(job_of("qwen3-30b-a3b", routing_imbalance=imbalance), Plan(dp=8, ep=2))
    assert ("a busiest rank with 1.5 times the mean's rows" in text) == is_said


@pytest.mark.parametrize(("given", "numbers"), [({}, 5e8), ({"reduce_bucket_size": 2e8}, 2e8)])
def test_the_buffer_of_gradients_is_read_and_written(given, numbers):
    found = read({**ZERO_3, "zero_optimization": {"stage": 2, "overlap_comm": True, **given}})
    assert found.job.stack.reduce_bucket == numbers
    assert any("reduce_bucket_size 500000000" in note for note in found.notes) == (not given)
    text = emit_deepspeed(found.job, found.plan)
    assert ('"reduce_bucket_size": 200000000' in text) == bool(given)
    assert read(text, None).job == found.job


def test_an_automatic_buffer_of_gradients_is_the_square_of_the_models_width():
    """trainer_config_finalize in transformers/integrations/deepspeed.py."""
    assert read(changed(zero_reduce_bucket_size="auto")).job.stack.reduce_bucket == 4096**2


SIZES = {
    "stage3_max_live_parameters": ("live_weights", 2e8),
    "stage3_max_reuse_distance": ("reuse_distance", 3e8),
    "sub_group_size": ("sub_group", 4e8),
}


def test_what_zero_3_holds_for_a_while_is_read_and_written():
    found = read(changed(**{f"zero_{key}": size for key, (_, size) in SIZES.items()}))
    assert [getattr(found.job.stack, name) for name, _ in SIZES.values()] == [2e8, 3e8, 4e8]
    text = emit_deepspeed(found.job, found.plan)
    assert all(f'"{key}": {size:.0f}' in text for key, (_, size) in SIZES.items())
    assert read(text, None).job == found.job
    assert "stage3" not in emit_deepspeed(found.job, replace(found.plan, zero=2))
    for key in SIZES:
        with pytest.raises(UserError, match=f"{key} = -1: give a number from 0 on"):
            read(changed(**{f"zero_{key}": -1}))


@pytest.mark.parametrize(
    ("stage", "numbers", "is_said"), [(3, 1e5, False), (3, "auto", False), (3, 1e9, True), (2, 1e9, False)]
)
def test_a_threshold_below_which_matrices_stay_whole_is_said(stage, numbers, is_said):
    notes = read(changed(zero_stage=stage, zero_stage3_param_persistence_threshold=numbers)).notes
    assert any("all matrices are sharded" in note for note in notes) == is_said


@pytest.mark.parametrize(
    ("model", "least"),
    [("llama-3-8b", 4096 * 1024), ("qwen3-30b-a3b", 2048 * 512), ("qwen3.5-27b", 5120 * 48)],
)
def test_the_smallest_of_hugging_faces_matrices_stays_whole_first(model, least):
    """k_proj, and in_proj_b of linear attention: a parameter stays whole of which ds_numel is no more than
    the threshold (mark_persistent_parameters in parameter_offload.py)."""
    said = [
        any("all matrices are sharded" in note for note in read(sharded, model=model).notes)
        for sharded in (
            changed(zero_stage3_param_persistence_threshold=numbers) for numbers in (least - 1, least)
        )
    ]
    assert said == [False, True]


@pytest.mark.parametrize(("numbers", "ahead"), [(0, False), (5e7, True), ("auto", True)])
def test_weights_are_not_gathered_ahead_where_their_bucket_is_empty(numbers, ahead):
    """__prefetch_bucket_sz in deepspeed/runtime/zero/partitioned_param_coordinator.py."""
    stack = read(changed(zero_stage3_prefetch_bucket_size=numbers)).job.stack
    assert (stack.prefetch, stack.dp_overlap) == (ahead, True)
    assert stack.live_weights == (1e9 if ahead else 0)


@pytest.mark.parametrize(
    ("given", "is_said"),
    [
        ({"compression_training": {"head_pruning": {"shared_parameters": {"enabled": True}}}}, True),
        ({"compression_training": {"head_pruning": {"shared_parameters": {"enabled": False}}}}, False),
        ({"zero_zenflow": {"topk_ratio": 0.1}}, True),
    ],
)
def test_parts_that_are_on_and_not_modelled_are_said(given, is_said):
    assert any("is not modelled" in note for note in read(changed(**given)).notes) == is_said


def test_an_optimizer_on_the_host_is_read_where_there_is_zero():
    away = {"zero_offload_optimizer": {"device": "cpu"}}
    words = "offload_optimizer.device is ZeRO's: without it the optimizer stays on the GPU"
    for stage, offload in ((0, ()), (1, ("optimizer",)), (3, ("optimizer",))):
        found = read(changed(zero_stage=stage, **away))
        assert found.job.offload == offload
        assert any(words in note for note in found.notes) == (not offload)


@pytest.mark.parametrize("device", ["cpu", "nvme"])
@pytest.mark.parametrize("pinned", [{}, {"pin_memory": True}, {"pin_memory": False}])
def test_weights_on_the_host_are_read_where_there_is_zero_3(device, pinned):
    away = {"zero_offload_param": {"device": device, **pinned}}
    found = {stage: read(changed(zero_stage=stage, **away)) for stage in (2, 3)}
    assert [found[stage].job.offload for stage in (2, 3)] == [(), ("weights",)]
    said = {stage: " ".join(one.notes) for stage, one in found.items()}
    for words, where in {
        "offload_param.device is ZeRO-3's: without it weights stay on the GPU": [2],
        "offload_param.device = 'nvme' is not modelled: they are in the host's memory": [3]
        * (device == "nvme"),
        "offload_param.pin_memory = False is not modelled": [3] * (pinned == {"pin_memory": False}),
        "as DeepSpeed 0.19.6 has it: zero_optimization.offload_param.pin_memory true": [3] * (not pinned),
    }.items():
        assert [stage for stage in (2, 3) if words in said[stage]] == where


def test_a_dot_in_a_name_leads_to_no_table_and_what_a_terminal_obeys_is_shown():
    found = read(ZERO_3 | {"zero_optimization.stage": 1, "a\nb\x1b[31m": 1, "k" * 5000: 1})
    (said,) = (note for note in found.notes if "left out" in note)
    assert found.plan.zero == 3 and "zero_optimization . stage" in said
    assert said.isprintable() and "a\\nb\\x1b[31m" in said and len(said) < 500


def test_experts_are_read_where_autoep_is_on():
    experts = {"autoep_size": 4}
    off, on = (
        read(
            changed(expert_parallel=experts | {"enabled": enabled}, zero_stage=2), 8, "qwen3-30b-a3b"
        ).plan.ep
        for enabled in (False, True)
    )
    assert (off, on) == (1, 4)


def test_older_switches_mean_what_they_mean_today():
    older = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2, "cpu_offload": True}}
    assert read(older).job.offload == ("optimizer",)
    assert read({"train_micro_batch_size_per_gpu": 1, "zero_optimization": True}).plan.zero == 1


def test_what_is_auto_comes_from_arguments_beside_it():
    found = read(AUTO, variables={"per_device_train_batch_size": "1", "gradient_accumulation_steps": "2"})
    assert (found.plan.micro_batch, found.job.global_batch) == (1, 16)


def test_arguments_beside_it_say_recomputation_and_eight_bits():
    found = read(ZERO_3, variables={"gradient_checkpointing": "True", "optim": "paged_adamw_8bit"})
    assert (found.plan.recompute, found.job.moments) == ("full", "8bit")


def test_every_setting_that_changes_a_step_and_is_not_modelled_is_said():
    said = read(
        changed(
            zero_zero_hpz_partition_size=8,
            zero_stagee=1,
            communication_data_type="fp32",
            optimizer={"type": "Lion"},
            compile={"deepcompile": True},
            steps=3,
        ),
        variables={"use_peft": "true"},
    ).notes
    for words in (
        "zero_hpz_partition_size = 8 is not modelled",
        "DeepSpeed 0.19.6 has no zero_optimization.stagee (it has zero_optimization.stage) and steps",
        "communication_data_type = 'fp32' is not modelled",
        "Optimizer 'Lion' is not modelled",
        "compile.deepcompile = True is not modelled",
        "--use_peft of the program is not read: give --lora",
        "4096 tokens (--sequence)",
    ):
        assert any(words in note for note in said), (words, said)


@pytest.mark.parametrize(
    ("config", "given", "reason"),
    [
        ("{", {}, "line 1 is no JSON"),
        ("{" * 9999, {}, "line 1 is no JSON|nested too deeply"),
        ('{"a": 1, "a": 2}', {}, "'a' stands twice"),
        ({}, {}, "train_micro_batch_size_per_gpu is not given, or auto"),
        (AUTO, {}, "add --set per_device_train_batch_size=N"),
        (ZERO_3, {"model": None}, "which model"),
        (ZERO_3, {"model": None, "variables": {"model_id": "me/mine"}}, "--model_id: .*Add --model"),
        (ZERO_3, {"gpus": None}, "how many GPUs"),
        (ZERO_3 | {"train_batch_size": 65}, {}, "train_batch_size is 65, and 8 ranks .* make 64"),
        ({"train_batch_size": 63}, {}, "63 is no multiple of 8"),
        (changed(zero_stage="three"), {}, "zero_optimization.stage = 'three': give a whole number"),
        (changed(zero_stage=4), {}, "zero is 4"),
        (changed(zero_reduce_bucket_size=0), {}, "reduce_bucket_size = 0: give a number from 1 on, or auto"),
        (changed(bf16={"enabled": "yes"}), {}, "bf16.enabled = 'yes'"),
        (changed(sequence_parallel_size=3), {}, "sequence_parallel_size 3 does not divide 8 GPUs"),
        (changed(sequence_parallel_size="2"), {}, "sequence_parallel_size = '2': give a whole number"),
        (ZERO_3 | {"zero_optimization": 3}, {}, "zero_optimization = 3: it is a table"),
        (ZERO_3 | {"bf16": True}, {}, "bf16 = True: it is a table"),
        (ZERO_3 | {"optimizer": ["Adam"]}, {}, "optimizer = \\['Adam'\\]: it is a table"),
        (changed(zero_offload_optimizer="cpu"), {}, "offload_optimizer = 'cpu': it is a table"),
        (changed(zero_offload_optimizer={"device": "disk"}), {}, "'disk': it is none, cpu or nvme"),
        (changed(zero_cpu_offload="true"), {}, "cpu_offload = 'true': it is true or false"),
        (changed(zero_overlap_comm="false"), {}, "overlap_comm = 'false'"),
        (changed(fp16={"enabled": True}), {}, "both true, which DeepSpeed refuses"),
        (changed(gradient_accumulation_steps=10**30), {}, "its batch is 16.*; it must be from 1 to"),
        (changed(tensor_parallel={"autotp_size": 3}), {}, "tp 3 x pp 1 does not divide 8 GPUs"),
        (changed(tensor_parallel={"autotp_size": 2}, pipeline={"stages": 3}), {}, "tp 2 x pp 3 does not"),
        (ZERO_3, {"variables": {"per_device_train_batch_size": "1"}}, "is 2 in its configuration, and --per"),
        (
            AUTO,
            {"variables": {"per_device_train_batch_size": "$N"}},
            "'\\$N', which is not known here: add --set",
        ),
        ("deepspeed:", {}, "''"),
        ("python train.py --lr 1", {}, "no configuration of DeepSpeed"),
        ("deepspeed train.py --deepspeed gone.json", {}, "'gone.json', which is not found"),
        ("deepspeed p.py --num-layers 2 --deepspeed_config a.json", {}, "take --from-megatron"),
        ("distributed_type: FSDP", {}, "take --from-accelerate"),
        ("distributed_type: [", {}, "line 1|line 2"),
    ],
)
def test_what_is_no_job_of_deepspeed_is_told_in_a_sentence(config, given, reason):
    with pytest.raises(UserError, match=reason):
        read(config, **{"gpus": 8, **given})


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 99) | st.sampled_from(["auto", "cpu", "", "3"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
)


@given(st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=6))
def test_any_values_of_its_keys_are_a_job_or_are_told_in_a_sentence(config):
    with suppress(UserError):
        found = read(config)
        assert found.job.global_batch == found.plan.dp * found.plan.micro_batch * found.plan.microbatches(
            found.job
        )


# ------------------------------------------------------------------------------------------------ commands


def test_a_script_is_read_with_the_configuration_that_it_writes():
    found = read(LAUNCHED, None, None)
    assert found.plan == Plan(dp=4, zero=2, micro_batch=2, recompute="full")
    assert (found.job.shape.name, found.job.sequence, found.job.global_batch) == ("qwen3-8b", 2048, 64)


def test_of_several_commands_the_last_counts():
    again = (
        LAUNCHED
        + "\ndeepspeed --num_gpus 8 train.py --deepspeed ds_2.json --model llama-3-8b --max_length 512\n"
    )
    found = read(again, None, None)
    assert (found.plan.dp, found.job.sequence, found.job.shape.name) == (8, 512, "llama-3-8b")


def test_a_file_of_accelerates_is_read_and_the_programs_arguments_do_not_overrule_it(tmp_path):
    """trainer_config_process in transformers/integrations/deepspeed.py finds a mismatch, as in JSON."""
    (tmp_path / "zero2.yaml").write_text(ACCELERATE)
    words = "--model_id llama-3-8b --per_device_train_batch_size 1"
    command = f"accelerate launch --config_file configs/zero2.yaml train.py {words}"
    found = read(command, None, None, folder=tmp_path)
    assert found.plan == Plan(dp=8, zero=2)
    assert (found.job.global_batch, found.job.offload) == (64, ("optimizer",))
    with pytest.raises(UserError, match="gradient_accumulation_steps is 8 in its configuration"):
        read(f"{command} --gradient_accumulation_steps 2", None, None, folder=tmp_path)
    single = ACCELERATE.replace("bf16", "no")
    assert (
        "Neither bf16 nor fp16" in read(single, None, variables={"per_device_train_batch_size": "1"}).notes[0]
    )
    bare = read(ACCELERATE, None, variables={"per_device_train_batch_size": "1"})
    assert not any("priced as bf16" in note for note in bare.notes)
    assert bare.plan == found.plan


def test_a_configuration_is_found_in_the_folders_around_a_script_the_nearest_first(tmp_path):
    """A path counts from where the script runs, mostly the repository's root."""
    folder = tmp_path / "scripts" / "v1"
    folder.mkdir(parents=True)
    launch = "torchrun --nnodes 2 --nproc-per-node 8 train.py --deepspeed"
    for name in ("./scripts/ds.json", "../ds.json", "$ROOT/scripts/ds.json", "ds.json"):
        command = f"{launch} {name}"
        with pytest.raises(UserError, match="which is not found"):
            read(command, None, folder=folder)
        (tmp_path / "scripts" / "ds.json").write_text(json.dumps(ZERO_3))
        found = read(command, None, folder=folder)
        assert (found.plan.dp, found.plan.zero) == (16, 3)
        (folder / "ds.json").write_text(json.dumps(changed(zero_stage=2)))
        nearest = read(command, None, folder=folder).plan.zero
        assert nearest == (2 if name == "ds.json" else 3)
        (folder / "ds.json").unlink()
        (tmp_path / "scripts" / "ds.json").unlink()


def test_accelerate_takes_zero_2_where_its_file_names_none():
    """DeepSpeedPlugin.__post_init__ in accelerate/utils/dataclasses.py; DeepSpeed itself takes ZeRO-0."""
    own: dict[str, Any] = {"variables": {"per_device_train_batch_size": "1"}}
    bare = read(ACCELERATE.replace("  zero_stage: 2\n", ""), **own)
    assert bare.plan.zero == 2
    assert any("under Accelerate has it: zero_optimization.stage 2" in note for note in bare.notes)
    assert read({}, **own).plan.zero == 0


def test_a_configuration_that_accelerates_file_names_is_deepspeeds_and_takes_what_it_leaves_to_it(tmp_path):
    """DeepSpeedPlugin.__post_init__ fills what is "auto", and takes no stage of its own."""
    (tmp_path / "ds.json").write_text(json.dumps(AUTO))
    own: dict[str, Any] = {"variables": {"per_device_train_batch_size": "1"}, "folder": tmp_path}
    text = ACCELERATE.replace("  zero_stage: 2\n", "  deepspeed_config_file: ds.json\n")
    found = read(text, **own)
    assert (found.plan.zero, found.job.global_batch) == (3, 8 * 8)
    assert not any("under Accelerate" in note for note in found.notes)
    (tmp_path / "ds.json").write_text(json.dumps({"zero_optimization": {"overlap_comm": True}}))
    assert read(text, **own).plan.zero == 0
    (tmp_path / "ds.json").write_text(json.dumps({"bf16": {"enabled": True}}))
    with pytest.raises(UserError, match="has no zero_optimization, which Accelerate asks for"):
        read(text, **own)


@pytest.mark.parametrize(
    "config",
    [
        f"{ACCELERATE}parallelism_config:\n  parallelism_config_sp_size: 2\n",
        "deepspeed train.py --deepspeed zero3 --sequence_parallel_size 2",
    ],
)
def test_ulysses_of_accelerate_and_of_a_program_is_context_parallelism_by_heads(config):
    found = read(config, variables={"per_device_train_batch_size": "1"})
    assert (found.plan.cp, found.plan.dp, found.job.stack.context_parallel) == (2, 4, "all-to-all")


def test_two_sizes_of_ulysses_are_told():
    config = changed(sequence_parallel_size=2)
    with pytest.raises(UserError, match="--sequence_parallel_size 4 differs from sequence_parallel_size = 2"):
        read(config, variables={"sequence_parallel_size": "4"})


@pytest.mark.parametrize("size", ["auto", "-2", "2.5"])
def test_a_size_of_ulysses_that_is_no_whole_number_is_told(size):
    with pytest.raises(
        UserError, match=f"--sequence_parallel_size .*{size}.*: give a whole number from 1 on"
    ):
        read(ZERO_3, variables={"sequence_parallel_size": size})


def test_ulysses_goes_with_data_parallelism_alone_and_with_experts_but_not_their_zero_3():
    for plan, said in (
        (Plan(tp=2, cp=2, dp=2, zero=1), "no Ulysses over cp=2 beside tp=2 and pp=1; take --tp 1 --pp 1"),
        (Plan(ep=2, cp=2, dp=4, zero=3), "ZeRO-3 of experts that ep ranks share beside Ulysses over cp=2"),
    ):
        job = job_of("mixtral-8x7b" if plan.ep > 1 else "llama-3-8b")
        with pytest.raises(UserError, match=said):
            emit_deepspeed(job, plan)


def test_a_program_of_its_own_is_told_how_to_set_ulysses_up():
    job, plan = job_of("llama-3-8b"), Plan(cp=4, dp=2, zero=3)
    script = emit_deepspeed(job, plan)
    assert '"sequence_parallel_size": 4' in script
    assert 'ParallelismConfig(sp_backend="deepspeed", sp_size=4)' in script


LLAMA_FACTORY = """
model_name_or_path: Qwen/Qwen3-8B
finetuning_type: {finetuning}
deepspeed: examples/ds.json
cutoff_len: 2048
per_device_train_batch_size: 1
gradient_accumulation_steps: 2
gradient_checkpointing: true
bf16: true
lora_target: all
"""


@pytest.mark.parametrize("finetuning", ["full", "lora"])
def test_a_file_of_a_programs_arguments_is_read_alone_and_where_a_command_names_it(tmp_path, finetuning):
    """LLaMA-Factory's, and axolotl's and TRL's with --config."""
    (tmp_path / "ds.json").write_text(json.dumps(AUTO | {"bf16": {"enabled": "auto"}}))
    text = LLAMA_FACTORY.format(finetuning=finetuning)
    found = read(text, 8, None, folder=tmp_path)
    assert found.plan == Plan(dp=8, zero=3, recompute="full")
    assert (found.job.shape.name, found.job.sequence, found.job.global_batch) == ("qwen3-8b", 2048, 16)
    assert any("--finetuning_type of the program" in note for note in found.notes) == (finetuning == "lora")
    (tmp_path / "recipe.yaml").write_text(text)
    for words in ("recipes/recipe.yaml", "--config recipe.yaml"):
        named = read(f"torchrun --nproc-per-node 8 train.py {words}", None, None, folder=tmp_path)
        assert (named.job, named.plan) == (found.job, found.plan)
    more = "torchrun --nproc-per-node 8 train.py --config recipe.yaml --gradient_accumulation_steps 4"
    assert read(more, None, None, folder=tmp_path).job.global_batch == 32


def test_axolotls_words_are_read(tmp_path):
    (tmp_path / "zero2.json").write_text(json.dumps(AUTO))
    text = "base_model: Qwen/Qwen3-8B\ndeepspeed: deepspeed_configs/zero2.json\nsequence_len: 1024\n"
    text += "micro_batch_size: 2\ngradient_accumulation_steps: 4\noptimizer: adamw_bnb_8bit\nbf16: auto\n"
    found = read(text, 8, None, folder=tmp_path)
    assert (found.plan.micro_batch, found.job.global_batch, found.job.sequence) == (2, 64, 1024)
    assert found.job.moments == "8bit"


@pytest.mark.parametrize(
    ("name", "zero", "offload"),
    [("zero2", 2, ()), ("zero3", 3, ()), ("zero3_offload", 3, ("optimizer", "weights"))],
)
def test_ms_swifts_own_configurations_are_known_by_their_names(name, zero, offload):
    """swift/config of github.com/modelscope/ms-swift, where overlap_comm is false."""
    command = "NPROC_PER_NODE=4 NNODES=2 swift sft --model Qwen/Qwen3-8B --per_device_train_batch_size 1 "
    command += f"--gradient_accumulation_steps $(expr 16 / 4) --model_name robot --deepspeed {name}"
    found = read(command, None, None)
    assert (found.plan.zero, found.plan.dp, found.job.offload) == (zero, 8, offload)
    assert (found.job.global_batch, found.job.stack.dp_overlap) == (32, False)
    assert found.job.shape.name == "qwen3-8b"


def test_visible_gpus_count_where_deepspeeds_launcher_is_told_no_others():
    """main in deepspeed/launcher/runner.py."""
    program = "train.py --per_device_train_batch_size 1 --deepspeed zero2"
    for launched, gpus in (("", 2), ("--num_gpus 4", 4), ("--include localhost:1,2,3", 3)):
        command = f"export CUDA_VISIBLE_DEVICES=0,1\ndeepspeed {launched} {program}"
        assert read(command, None).plan.dp == gpus


def test_of_two_optimizers_the_configurations_counts():
    """deepspeed_optim_sched in transformers/integrations/deepspeed.py."""
    eight: dict[str, Any] = {"variables": {"optim": "adamw_bnb_8bit"}}
    assert read(ZERO_3, **eight).job.moments == "8bit"
    assert read(ZERO_3 | {"optimizer": {"type": "AdamW"}}, **eight).job.moments == "fp32"


@pytest.mark.parametrize(("forced", "moments"), [(True, "fp32"), (False, "8bit")])
def test_an_optimizer_in_8_bits_is_deepspeeds_own_on_the_host_but_where_that_is_not_forced(forced, moments):
    """map_pytorch_optim_to_deepspeed in accelerate/utils/deepspeed.py."""
    config = changed(zero_offload_optimizer={"device": "cpu"}) | {"zero_force_ds_cpu_optimizer": forced}
    found = read(config, variables={"optim": "adamw_bnb_8bit"})
    assert (found.job.moments, found.job.offload) == (moments, ("optimizer",))


@pytest.mark.parametrize(
    ("optimizer", "is_said"),
    [("AdamW", False), ("adamw_torch_fused", False), ("paged_adamw_8bit", False)]
    + [(name, True) for name in ("OneBitAdam", "ZeroOneAdam", "lion_8bit", "galore_adamw", "Muon")],
)
def test_an_optimizer_that_is_no_plain_adam_is_said(optimizer, is_said):
    for found in (
        read(ZERO_3, variables={"optim": optimizer}),
        read(ZERO_3 | {"optimizer": {"type": optimizer}}),
    ):
        assert any("is priced as AdamW" in note for note in found.notes) == is_said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--use_liger_kernel true", "logits are whole"),
        ("--vision_tower clip", "the model is the language's alone"),
        ("--freeze_llm True", "all weights are trained"),
        ("--rlhf_type dpo", "it learns the next token"),
        ("--freeze_llm False --lora_enable False --lora_r 8 --finetuning_type full", ""),
        ("--lora_enable True", "--lora_enable of the program is not read"),
    ],
)
def test_what_a_program_does_beside_training_all_of_a_language_model_is_said(words, said):
    notes = read(f"deepspeed train.py --deepspeed zero2 --per_device_train_batch_size 1 {words}").notes
    if said:
        assert any(said in note for note in notes)
    else:
        assert not any("of the program is not" in note for note in notes)


def test_model_and_sequence_beside_a_file_overrule_it_and_adapters_are_added(tmp_path, capsys):
    file = tmp_path / "run.sh"
    file.write_text(LAUNCHED)
    command = ["plan", "--from-deepspeed", f"{file}", "--model", "llama-3-8b", "--sequence", "4096"]
    assert main([*command, "--lora", "16", "--timeline", "none"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert said.startswith("llama-3-8b 8.03 billion parameters on 4 GPUs")
    assert "LoRA of rank 16" in said and "Batch 64 x 4096" in said
    assert "give --lora" not in said and "how long sequences are" not in said
    assert main([*command, "--tp", "2"]) == 2
    assert "--tp is the business of" in capsys.readouterr().err


@pytest.mark.parametrize(("model", "most"), [("llama-3-8b", 8), ("qwen2.5-7b", 4), ("gpt2", 12)])
def test_tp_ranks_that_autotp_would_leave_without_heads_are_refused(model, most):
    """Of KV heads the first ranks have one more (get_shard_size in deepspeed/module_inject/tp_shard.py)."""
    shape = preset(model)
    job = TrainingJob(shape, H100, find_stack("deepspeed"), 1024, 64)
    for tp in (tp for tp in range(1, shape.heads + 1) if not [*why_not(job, Plan(tp=tp))]):
        slices = [shape.kv_heads // tp + (rank < shape.kv_heads % tp) for rank in range(tp)]
        refused = bool(FRAMEWORKS["deepspeed"].refusal(job, Plan(tp=tp, dp=8)))
        assert refused == (min(slices) == 0) == (tp > most)


@pytest.mark.parametrize("framework", ["deepspeed", "accelerate", "megatron"])
def test_a_sequence_beyond_learned_positions_is_launched_by_nobody(framework):
    """GPT-2 of transformers has a row of its table for each of 1024 positions, and stops at the next token.
    Plans of 4096 tokens were said to be launched by DeepSpeed and Accelerate, and had scripts."""
    job = TrainingJob(preset("gpt2-xl"), H100, find_stack("deepspeed"), 1024, 8)
    told = FRAMEWORKS[framework].refusal(replace(job, sequence=1025), Plan(dp=8, zero=3))
    assert "1024 learned positions" in told and "shorten" in told
    assert not FRAMEWORKS[framework].refusal(job, Plan(dp=8, zero=3))
