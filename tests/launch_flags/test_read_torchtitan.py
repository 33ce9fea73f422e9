"""Recipes, files of TOML and command lines of torchtitan, read back."""

import random
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gpu import Hardware
from ndparallel.base.errors import UserError
from ndparallel.hardware.accelerator import find_hardware
from ndparallel.launch_flags.frozen import frozen
from ndparallel.launch_flags.reading import Beside, Reading
from ndparallel.launch_flags.torchtitan.models import MODELS
from ndparallel.launch_flags.torchtitan.read import read_torchtitan
from ndparallel.launch_flags.torchtitan.read_plan import dealt
from ndparallel.launch_flags.torchtitan.recipe_file import MOST
from ndparallel.launch_flags.torchtitan.write import STACKS, emit_torchtitan
from ndparallel.pipeline.catalog import RECIPES, names_in
from ndparallel.planner.job import TOGETHER, Plan, TrainingJob
from ndparallel.planner.legality import why_not
from ndparallel.planner.models.presets import find_model, preset
from ndparallel.planner.software import find_stack
from tests.support.launch_plans import can_be_emitted, recipes

H100: Hardware = find_hardware("h100")
RECIPE = """
from torchtitan.models.llama3.config_registry import llama3_8b

def plan():
    config = llama3_8b()
    return config
"""
OWN = """
from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.distributed.activation_checkpoint import FullAC
from torchtitan.models.qwen3 import model_registry
from torchtitan.trainer import Trainer

WIDTH = 2

def ours() -> Trainer.Config:
    tp = 2 * WIDTH
    spec = model_registry("14B")
    return Trainer.Config(
        model_spec=spec,
        training=TrainingConfig(local_batch_size=2, seq_len=1024 * 2, disable_cuda_graphs=True),
        parallelism=ParallelismConfig(tensor_parallel_degree=tp, data_parallel_shard_degree=-1),
        activation_checkpoint=FullAC.Config(),
    )
"""
TOML = """
[model]
name = "llama3"
flavor = "70B"
converters = ["quantize.linear.float8"]

[training]
local_batch_size = 8
seq_len = 8192
dataset = "c4"

[parallelism]
tensor_parallel_degree = 8
enable_async_tensor_parallel = true

[activation_checkpoint]
mode = "full"

[compile]
enable = true
components = ["model", "loss"]
"""


def read(text: str, gpus: int | None = None, arguments: str = "", **given) -> Reading:
    variables = {str(number): word for number, word in enumerate(arguments.split(), 1)}
    return read_torchtitan(text, H100, Beside(gpus, variables=variables, **given))


def same(job: TrainingJob, plan: Plan) -> tuple[TrainingJob, Plan]:
    """What a recipe can say: shards that are all of dp and cp need no number, layers as many as there are no
    list."""
    whole = plan.shards == plan.dp * plan.cp or plan.zero != 3
    return job, replace(plan, shards=0 if whole else plan.shards)


@pytest.mark.parametrize("ep", [1, 2])
def test_experts_under_tp_are_read_as_cut_where_there_is_no_ep(ep):
    plan = Plan(tp=2, dp=8, ep=ep, zero=3, sequence_parallel=True)
    stack = replace(find_stack("torchtitan"), expert_tp=ep == 1)
    job = TrainingJob(find_model("qwen3-30b-a3b"), find_hardware("h100"), stack, 4096, 64)
    found = read(emit_torchtitan(job, plan), name="plan.py")
    assert (found.plan, found.job.stack.expert_tp) == (plan, ep == 1)


def test_every_recipe_that_is_written_is_read_back_as_its_job_and_its_plan():
    asked = [*recipes()]
    assert len(asked) == 58 and {name.split()[0] for name, _, _ in asked} == MODELS.keys()
    for name, job, plan in asked:
        found = read(emit_torchtitan(job, plan), name="plan.py")
        assert (found.job, found.plan) == same(job, plan), name
        assert not any("not modelled" in said or "has no" in said for said in found.notes), name


@st.composite
def plans_of_torchtitan(draw) -> tuple[TrainingJob, Plan]:
    shape = preset(draw(st.sampled_from(["llama-3-8b", "qwen3-30b-a3b", "deepseek-v2-lite"])))
    stack = find_stack(draw(st.sampled_from(STACKS)))
    pp, schedule = draw(st.sampled_from([1, 2, 4, 8])), draw(st.sampled_from([*names_in("torchtitan")]))
    tp, dp, cp = (2 ** draw(st.integers(0, most)) for most in (3, 5, 2))
    recipe = RECIPES[schedule]
    chunks = 1 if pp == 1 else recipe.chunks or draw(st.sampled_from([2, 4]))
    zero = draw(st.sampled_from([0, 2, 3]))
    plan = Plan(
        tp=tp,
        pp=pp,
        dp=dp,
        cp=cp,
        ep=2 ** draw(st.integers(0, 4)) if shape.experts else 1,
        chunks=chunks,
        micro_batch=draw(st.sampled_from([1, 2, 3])),
        zero=zero,
        shards=draw(st.sampled_from([0, dp * cp // 2])) if zero == 3 and dp > 1 else 0,
        sequence_parallel=tp > 1 and draw(st.booleans()),
        recompute=draw(st.sampled_from(["none", "selective", "full"])),
        schedule=schedule if pp > 1 else "1f1b",
    )
    if draw(st.booleans()) and stack.name == "torchtitan-compiled":
        stack = replace(stack, tp_overlap="products")
    if plan.ep > 1:
        stack = replace(stack, dispatcher=draw(st.sampled_from(["alltoall", "deepep", "hybridep"])))
    job = TrainingJob(
        replace(shape, prediction_layers=0),
        H100,
        stack,
        draw(st.sampled_from([1024, 4096])),
        dp * plan.micro_batch * draw(st.integers(pp, 4 * pp)),
        dtype="bf16" if shape.experts else draw(st.sampled_from(["bf16", "fp8-row"])),
        half=draw(st.booleans()),
        offload=TOGETHER if draw(st.booleans()) else (),
    )
    return job, plan


@given(asked=plans_of_torchtitan())
@settings(max_examples=150, deadline=None)
def test_any_plan_that_torchtitan_can_launch_is_read_back_from_its_recipe(asked):
    job, plan = asked
    assume(not [*why_not(job, plan)] and can_be_emitted(emit_torchtitan, job, plan))
    found = read(emit_torchtitan(job, plan))
    assert (found.job, found.plan) == same(job, plan)


def test_layers_are_dealt_out_as_torchtitan_does():
    """Its docstring's own example, and Llama 3 405B on 16 stages: 126 layers with embedding and head as one
    each (2407.21783, section 3.3.2)."""
    assert dealt(3, 2, 2, 2) == [2, 1]
    assert dealt(126, 16, 1, 1) == [7, *[8] * 14, 7]
    assert dealt(32, 8, 1, 1) == [4, 5, 4, 4, 4, 4, 4, 3]
    assert dealt(4, 3, 0, 0) == [2, 1, 1]
    with pytest.raises(UserError, match="too few"):
        dealt(4, 6, 2, 1)


def test_a_pipeline_without_named_stages_has_those_of_torchtitan():
    words = "--parallelism.pipeline_parallel_degree 4 --training.local_batch_size 16"
    found = read(RECIPE, 32, words)
    assert (found.plan.schedule, found.plan.chunks, found.plan.stage_layers) == ("1f1b", 1, (8, 9, 8, 7))
    assert found.plan.microbatches(found.job) == 16 and found.plan.micro_batch == 1
    found = read(RECIPE, 32, f"{words} --parallelism.pipeline_parallel_schedule interleaved1f1b")
    assert (found.plan.chunks, found.plan.stage_layers) == (2, (4, 5, 4, 4, 4, 4, 4, 3))
    found = read(
        RECIPE,
        32,
        f"{words} --parallelism.pipeline_parallel_schedule Interleaved1F1B "
        "--parallelism.pipeline_parallel_layers_per_stage 3",
    )
    assert found.plan.chunks == 3 and sum(found.plan.stage_layers) == 32


def test_its_own_configuration_brings_what_a_recipe_does_not_set():
    found = read(RECIPE, 64)
    assert found.job.shape == preset("llama-3-8b")
    assert (found.job.sequence, found.job.global_batch, found.plan.micro_batch) == (8192, 64, 1)
    assert found.plan == Plan(dp=64, zero=3, recompute="selective")
    assert found.job.stack == find_stack("torchtitan") and found.job.dtype == "bf16"
    assert any("CUDA graphs" in said for said in found.notes)


def test_a_configuration_of_keywords_is_read():
    found = read(OWN, 16)
    assert found.job.shape == preset("qwen3-14b") and found.job.sequence == 2048
    assert found.plan == Plan(tp=4, dp=4, zero=3, micro_batch=2, sequence_parallel=True, recompute="full")
    assert not any("CUDA graphs" in said for said in found.notes)


def test_a_file_of_toml_and_the_same_as_a_command_are_one_job():
    toml = read(TOML, 128)
    assert toml.job.dtype == "fp8-current" and toml.job.stack.name == "torchtitan-compiled"
    assert toml.job.stack.tp_overlap == "products"
    assert toml.plan == Plan(tp=8, dp=16, zero=3, micro_batch=8, sequence_parallel=True, recompute="full")
    command = (
        "torchrun --nnodes 16 --nproc_per_node 8 -m torchtitan.train --module llama3 --config llama3_70b "
        "--compile.enable --compile.enable-async-tensor-parallel --training.disable_cuda_graphs=True"
    )
    line = read(command)
    assert line.plan == toml.plan
    assert replace(line.job, dtype="fp8-current") == toml.job


@pytest.mark.parametrize(
    "switch",
    [
        {"gradient_bytes": 2},
        {"fp8_attention": True},
        {"fp8_head": True},
        {"fused_experts": True},
        {"early_stop": False},
        {"prefetch": False},
    ],
)
@pytest.mark.parametrize("zero", [2, 3])
def test_a_switch_that_torchtitan_has_no_key_for_is_refused_and_not_dropped(switch, zero):
    stack = replace(find_stack("torchtitan"), **switch)
    with pytest.raises(UserError, match=f"no key for {[*switch][0]}.*; leave "):
        emit_torchtitan(TrainingJob(preset("llama-3-8b"), H100, stack, 4096, 16), Plan(dp=16, zero=zero))


@pytest.mark.parametrize(("shards", "offload"), [(8, ()), (0, TOGETHER)])
def test_replicas_or_host_with_weights_that_are_not_freed_are_read_back(shards, offload):
    stack = replace(find_stack("torchtitan"), reshards=False)
    job = TrainingJob(preset("llama-3-8b"), H100, stack, 4096, 16, offload=offload)
    plan = Plan(dp=16, zero=3, shards=shards)
    text = emit_torchtitan(job, plan)
    found = read(text, name="plan.py")
    assert 'fsdp_reshard_after_forward = "never"' in text
    assert (found.job, found.plan) == (job, plan)


@pytest.mark.parametrize(
    ("option", "recompute", "layers"), [('"op"', "selective", 0), ('"2"', "full", 40), ('"1"', "full", 0)]
)
def test_older_releases_compute_every_second_layer_again(option, recompute, layers):
    mode = f'mode = "selective"\nselective_ac_option = {option}'
    found = read(TOML.replace('mode = "full"', mode), 128)
    assert (found.plan.recompute, found.plan.recompute_layers) == (recompute, layers)
    assert any("one of the first 40" in said for said in found.notes) == (layers == 40)
    default = read(TOML.replace('mode = "full"', ""), 128)
    assert default.plan.recompute_layers == 40, "its default is every second one"


def test_older_names_on_the_command_line_count_beside_a_file_of_toml(tmp_path):
    (tmp_path / "job.toml").write_text(TOML)
    words = "--activation_checkpoint.mode=none --parallelism.enable_async_tensor_parallel=False"
    command = f"torchrun --nproc_per_node 128 -m torchtitan.train --job.config_file job.toml {words}"
    for found in (read(TOML, 128, words), read(command, folder=tmp_path)):
        assert found.plan.recompute == "none" and found.job.stack.tp_overlap != "products"
        assert found.job.dtype == "fp8-current"
    full = read(RECIPE, 8, "--activation_checkpoint.mode full")
    assert full.plan.recompute == "full" and not any("activation_checkpoint" in said for said in full.notes)


def test_a_command_finds_its_recipe_or_its_toml_beside_it(tmp_path):
    (tmp_path / "ours.py").write_text(OWN)
    (tmp_path / "llama3_70b.toml").write_text(TOML)
    one = "torchrun --nproc_per_node 8 -m torchtitan.train --module ours --config ours --training.seq_len 512"
    assert read(one, folder=tmp_path).job.sequence == 512
    older = (
        'CONFIG_FILE=${CONFIG_FILE:-"./torchtitan/models/llama3/train_configs/llama3_70b.toml"}\n'
        "NGPU=${NGPU:-8}\n"
        'torchrun --nproc_per_node=${NGPU} -m torchtitan.train --job.config_file ${CONFIG_FILE} "$@"\n'
    )
    found = read(older, folder=tmp_path, arguments="--parallelism.tensor_parallel_degree 4")
    assert (found.plan.tp, found.plan.dp) == (4, 2)
    with pytest.raises(UserError, match="not found: put it beside"):
        read(older.replace("70b", "8b"), folder=tmp_path)


def test_replicas_are_hsdp_and_without_shards_ddp():
    degrees = "--parallelism.data_parallel_replicate_degree 4 --parallelism.data_parallel_shard_degree"
    assert read(RECIPE, None, f"{degrees} 8").plan == Plan(dp=32, zero=3, shards=8, recompute="selective")
    assert read(RECIPE, None, f"{degrees} 1").plan == Plan(dp=4, recompute="selective")
    never = read(RECIPE, None, f"{degrees} 8 --parallelism.fsdp_reshard_after_forward never")
    assert never.plan.zero == 3 and not never.job.stack.reshards
    alone = read(RECIPE, 8, "--parallelism.fsdp_reshard_after_forward never")
    assert alone.plan.zero == 2 and not any("is not modelled:" in said for said in alone.notes)


def test_shards_that_are_not_given_are_what_the_other_degrees_leave():
    degrees = "--parallelism.pipeline_parallel_degree 2 --parallelism.context_parallel_degree 4"
    words = f"{degrees} --training.local_batch_size 4 --parallelism.tensor_parallel_degree 2"
    plan = read(RECIPE, 64, words).plan
    assert (plan.dp, plan.cp, plan.pp, plan.tp, plan.shards) == (4, 4, 2, 2, 0)
    assert read(RECIPE, 64, f"{words} --parallelism.data_parallel_shard_degree=4").plan == plan
    for gpus in (None, 64):
        assert read(RECIPE, gpus, f"{words} --parallelism.data_parallel_shard_degree=4").plan.gpus == 64
    with pytest.raises(UserError, match="how many GPUs"):
        read("torchrun -m torchtitan.train --module llama3 --config llama3_8b")


def test_a_step_of_several_passes_is_said_of_a_pipeline_alone():
    words = "--training.local_batch_size 4 --training.global_batch_size 64"
    assert read(RECIPE, 8, words).plan.microbatches(read(RECIPE, 8, words).job) == 2
    assert not any("fills and drains" in said for said in read(RECIPE, 8, words).notes)
    piped = read(RECIPE, 8, f"{words} --parallelism.pipeline_parallel_degree 2")
    assert any("fills and drains 4 times" in said for said in piped.notes)
    assert any("refuses in a pipeline" in said for said in piped.notes)


@pytest.mark.parametrize("word", ["activation-checkpoint:none", "activation_checkpoint:full", "--training.x"])
def test_recomputation_is_chosen_on_the_command_line(word):
    found = read(RECIPE, 8, word).plan.recompute
    assert found == {"none": "none", "full": "full"}.get(word.rpartition(":")[2], "selective")


def test_sums_and_replaced_fields_of_a_recipe_are_worked_out():
    lines = """
    wide = 1024 + 3 * 1024 - 4096 // 2
    config.training.seq_len = wide
    config.training.seq_len *= 2
    config.parallelism = dataclasses.replace(config.parallelism, tensor_parallel_degree=2)
    config.parallelism = replace(config.parallelism, context_parallel_degree=2)
    return"""
    found = read(RECIPE.replace("    return", lines), 8)
    assert (found.job.sequence, found.plan.tp, found.plan.cp, found.plan.dp) == (4096, 2, 2, 2)
    anew = lines.replace("replace(config.parallelism, context", "ParallelismConfig(context")
    assert read(RECIPE.replace("    return", anew), 8).plan.tp == 1, "a new section forgets the old one"


def test_a_dispatcher_counts_with_ep_alone_and_a_compiled_loss_is_said():
    model = "torchrun -m torchtitan.train --module deepseek_v3 --config deepseek_v3_16b_hybridep"
    assert read(model, 8).job.stack.dispatcher == "hybridep"
    found = read(f"{model} --parallelism.expert_parallel_degree 1", 8)
    assert found.job.stack.dispatcher == find_stack("torchtitan").dispatcher
    assert any("components loss alone" in said for said in found.notes)
    assert not any("components" in said for said in read(f"{model} --compile.no_enable", 8).notes)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--training.local_batch_size 8 --training.global_batch_size 100", "100 is no multiple of 8"),
        ("--training.local_batch_size no", "whole number from 1 on"),
        ("--parallelism.tensor_parallel_degree 3", "its degrees, 3 in all, do not divide 8 GPUs"),
        ("--parallelism.data_parallel_shard_degree 4", "make up 4 GPUs, and there are 8"),
        ("--parallelism.data_parallel_shard_degree 0", "whole number from 1 on"),
        ("--parallelism.fsdp_reshard_after_forward sometimes", "Did you mean|There are: default"),
        ("--training.dtype float16", "unknown training.dtype 'float16'"),
        ("--compile.enable maybe", "True or False"),
        (
            "--parallelism.pipeline_parallel_degree 2 --parallelism.pipeline_parallel_schedule 2F2B",
            "unknown schedule of torchtitan '2F2B'",
        ),
        (
            "--parallelism.pipeline_parallel_degree 2 --parallelism.pipeline_parallel_layers_per_stage 8",
            "5 stages on 2 pipeline ranks are no 1F1B",
        ),
        ("--config other", "unknown configuration 'other'. There are: plan"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(arguments, said):
    with pytest.raises(UserError, match=said):
        read(RECIPE, 8, arguments)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("echo hello", "no recipe of torchtitan, no file of TOML"),
        ("torchrun -m torchtitan.train --training.seq_len 4", "names no configuration"),
        ("torchrun -m torchtitan.train --module llama5 --config a", "unknown module of torchtitan 'llama5'"),
        ("torchrun -m torchtitan.train --module llama3 --config llama3_9b", "Did you mean 'llama3_8b'"),
        (
            "torchrun -m torchtitan.train --module llama3 --config llama3_debugmodel --x",
            "flavor of llama3 'debugmodel'",
        ),
        (TOML.replace('"llama3"', '"llama4"'), "unknown module of torchtitan 'llama4'"),
        ("def plan(:\n  return", "line 1: it is no Python"),
        ("def plan():\n    return 3\n", "no function in it returns a configuration"),
        (RECIPE + "\ndef other():\n    return plan()\n", "2 configurations: plan and other"),
        (
            RECIPE.replace("    return", "    if 1:\n        config.training.seq_len = 1\n    return"),
            "line 7: config.training.seq_len is set behind a condition",
        ),
        ("def a():\n    return b()\n\ndef b():\n    return a()\n", "2 configurations: a and b"),
        (
            RECIPE.replace("    return", '    config.training.seq_len = int(os.environ["N"])\n    return'),
            "training.seq_len = int.os.environ.'N'.. is not worked out here: give its value with",
        ),
        ("def a():\n    return a()\n", "from itself, or from too many others"),
        (RECIPE.replace("8b", "8c"), "unknown configuration of llama3"),
        (RECIPE.replace("    return", f"    x = {'+'.join(['1'] * 9000)}\n    return"), "nested|no Python"),
        (
            RECIPE.replace("    config = ", f"    x = [{'0, ' * (MOST + 1)}]\n    config = "),
            "more than 100000 values",
        ),
    ],
)
def test_what_is_no_job_of_torchtitan_is_refused_in_a_sentence(text, said):
    with pytest.raises(UserError, match=said):
        read(text, 8)


def test_a_setting_that_is_not_modelled_or_not_known_is_said():
    words = "--training.sequence_length 8 --debug.deterministic"
    said = " ".join(read(RECIPE, 8, words).notes)
    assert "debug.deterministic = True is not modelled" in said
    assert "torchtitan 0.3.0 has no training.sequence_length" in said
    assert "Not given, so as torchtitan 0.3.0 has it: parallelism.tensor_parallel_degree 1" in said


@pytest.mark.parametrize(("words", "away"), [
    ("", False), ("--training.enable_cpu_offload False", False), ("--training.enable_cpu_offload", True),
    ("--training.enable_cpu_offload --parallelism.pipeline_parallel_degree 2", True),
])  # fmt: skip
def test_states_are_on_the_host_where_torchtitan_is_told_so(words, away):
    assert read(RECIPE, 8, words).job.offload == ("optimizer", "weights") * away


def test_states_on_the_host_without_zero_3_are_said_to_stay_on_the_gpu():
    replicas = "--parallelism.data_parallel_replicate_degree 8 --parallelism.data_parallel_shard_degree 1"
    found = read(RECIPE, 8, f"--training.enable_cpu_offload {replicas}")
    assert found.plan.zero == 0 and not found.job.offload
    assert "enable_cpu_offload without ZeRO-3 is not modelled" in " ".join(found.notes)


@pytest.mark.parametrize("table", ["float8", "quantize.linear.float8", "quantize.grouped_mm.mx"])
def test_settings_of_a_converter_that_is_not_named_are_said_to_have_no_effect(table):
    """`build_model_converters` of 0.2.0 makes those of model.converters alone."""
    idle = TOML.replace('converters = ["quantize.linear.float8"]', "")
    found = read(f'{idle}\n[{table}]\nrecipe_name = "rowwise"\n', 8)
    assert found.job.dtype == "bf16"
    assert f"[{table}] has no effect: model.converters does not name its converter" in " ".join(found.notes)
    named = read(f'{TOML}\n[quantize.linear.float8]\nrecipe_name = "rowwise"\n', 8)
    assert named.job.dtype == "fp8-row" and not any("has no effect" in note for note in named.notes)
    gathers = "[quantize.linear.float8]\nenable_fsdp_float8_all_gather = true\n"
    for text, said in ((f"{TOML}\n{gathers}", True), (f"{idle}\n{gathers}", False)):
        notes = " ".join(read(text, 8).notes)
        assert ("enable_fsdp_float8_all_gather = True is not modelled" in notes) == said
    on_the_line = read(idle, 8, f"--{table}.recipe_name rowwise")
    assert any(f"[{table}] has no effect" in note for note in on_the_line.notes)


def test_experts_are_in_eight_bits_only_where_they_are_converted():
    model = "torchrun -m torchtitan.train --module deepseek_v3 --config deepseek_v3_671b_float8"
    found = read(f"{model} --parallelism.expert_parallel_degree 8", 64)
    assert found.job.dtype == "fp8-row" and found.job.shape.prediction_layers == 0
    linear = RECIPE.replace("llama3", "qwen3").replace("_8b", "_30b_a3b")
    linear = linear.replace(
        "    return",
        '    config.model_spec = model_registry("30B-A3B", converters=[Float8LinearConverter.Config()])\n'
        "    return",
    )
    linear = (
        "from torchtitan.models.qwen3 import model_registry\n"
        "from torchtitan.components.quantization import Float8LinearConverter\n"
    ) + linear
    found = read(linear, 8)
    assert found.job.dtype == "bf16" and any("Float8LinearConverter: not modelled" in n for n in found.notes)


def test_every_configuration_of_torchtitans_own_sets_names_of_the_release():
    release = frozen("torchtitan")
    names = {*release["keys"], *release["defaults"], "model.attn_backend", "model.tp_gemm_backend"}
    names |= {"model.non_blocking_capacity_factor"}
    for name, configuration in release["configurations"].items():
        assert configuration.keys() <= names, name
    flavors = {
        f"{each['model.module']}/{each['model.flavor']}" for each in release["configurations"].values()
    }
    assert flavors <= {*release["flavors"]}
    for model, found in MODELS.items():
        base = release["configurations"][f"{found.module}.{found.base}"]
        assert (base["model.flavor"] == found.flavor) == (not found.assets), model


@given(st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_a_recipe_that_was_spoiled_is_read_or_refused_in_a_sentence(seed):
    """Words of a recipe, of TOML and of a command, exchanged for one another and for others."""
    chance = random.Random(seed)
    text = chance.choice(
        [RECIPE, OWN, TOML, "torchrun -m torchtitan.train --module llama3 --config llama3_8b"]
    )
    words = text.split(" ")
    odd = ["[[]]", "-1", "None", "'x'", "10**9", "config", "(", '"', "{}", "1e400", "range(9)", "[1, [2]]"]
    for _ in range(chance.randint(1, 3)):
        words[chance.randrange(len(words))] = chance.choice([*odd, chance.choice(words)])
    try:
        assert read(" ".join(words), 8).plan.gpus == 8
    except UserError as error:
        assert "\n" not in str(error).strip()


def test_a_model_of_each_own_configuration_is_the_presets():
    for name, found in MODELS.items():
        if not found.assets:
            command = f"torchrun -m torchtitan.train --module {found.module} --config {found.base}"
            words = "--parallelism.tensor_parallel_degree 1 --parallelism.expert_parallel_degree 1"
            shape = read(f"{command} {words}", 8).job.shape
            assert shape == replace(find_model(name), prediction_layers=0)


OF_2024 = """
[model]
name = "llama3"
flavor = "70B"
[training]
batch_size = 8
seq_len = 8192
data_parallel_replicate_degree = 2
tensor_parallel_degree = 4
compile = true
[experimental]
pipeline_parallel_degree = 2
pipeline_parallel_schedule = "Interleaved1F1B"
enable_async_tensor_parallel = true
[float8]
enable_float8_linear = true
[activation_checkpoint]
mode = "full"
"""
OF_2025 = """
[model]
name = "llama3"
flavor = "70B"
converters = ["float8"]
[training]
local_batch_size = 8
seq_len = 8192
[parallelism]
data_parallel_replicate_degree = 2
tensor_parallel_degree = 4
pipeline_parallel_degree = 2
pipeline_parallel_schedule = "Interleaved1F1B"
enable_async_tensor_parallel = true
[compile]
enable = true
[activation_checkpoint]
mode = "full"
"""


def test_a_file_of_2024_lays_out_the_same_plan_by_the_names_that_it_had():
    """Its names were training.* and experimental.*, and float8 had a switch of its own."""
    older, newer = read(OF_2024, 64), read(OF_2025, 64)
    assert (older.job, older.plan) == (newer.job, newer.plan)
    assert older.job.dtype == "fp8-current" and older.plan.tp == 4 and older.plan.pp == 2
    assert "left out" not in " ".join(older.notes)


def test_a_converter_that_is_named_counts_before_the_switch_of_2024():
    named = read(OF_2025.replace('["float8"]', "[]") + "[float8]\nenable_float8_linear = true\n", 64)
    assert named.job.dtype == "bf16"
