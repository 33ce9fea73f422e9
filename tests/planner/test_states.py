"""What makes a model fit: fewer bits in the optimizer, states on the host, adapters beside a frozen model.
Held against published counts, and against bytes and seconds by hand."""

import json
from dataclasses import replace
from typing import cast

import pytest

from gpu import Operation
from ndparallel.base.errors import UserError
from ndparallel.commands.command_line import main
from ndparallel.hardware.accelerator import Accelerator, find_hardware
from ndparallel.planner.adapters import NF4_BITS, Adapters
from ndparallel.planner.job import Plan, Share, TrainingJob
from ndparallel.planner.layers.flops import adapter_flops, model_flops
from ndparallel.planner.layers.kept import kept_bytes
from ndparallel.planner.layers.layer import LayerLists
from ndparallel.planner.layers.pricing import Pricing
from ndparallel.planner.memory.outside import context_bytes
from ndparallel.planner.memory.states import checkpoint_bytes, is_fully_sharded
from ndparallel.planner.models.presets import find_model, from_flags
from ndparallel.planner.prediction import peak_memory, predict
from ndparallel.planner.software import STACKS, find_stack
from ndparallel.planner.stages import elements_of, trained_of
from ndparallel.planner.step.data_collectives import gathered_weights, reduced_gradients
from ndparallel.planner.step.parameter_kernels import host_parts
from ndparallel.search.advice import advise
from ndparallel.search.bounds.lower_bound import lower_bound
from ndparallel.search.search import search

LLAMA_8B, P = find_model("llama-3-8b"), 8_030_261_248
LLAMA_65B = from_flags(layers=80, hidden=8192, heads=64, ffn=22016, vocab=32000)
LLAMA_33B = from_flags(layers=60, hidden=6656, heads=52, ffn=17920, vocab=32000)
QLORA = Adapters(64, base_bits=NF4_BITS)
# Megatron-Bridge's own adapters are in test_bridge_adapters.py
PEFT = replace(find_stack("megatron-core"), bridge_adapters=False)


def job(shape=LLAMA_8B, hardware="h100", sequence=4096, batch=64, **changes):
    return TrainingJob(shape, find_hardware(hardware), PEFT, sequence, batch, **changes)


# ------------------------------------------------------------------------------------------------- adapters


@pytest.mark.parametrize(
    ("model", "adapters", "published"),
    [
        ("llama-2-7b", Adapters(64), 159_907_840),  # Guanaco 7B (2305.14314): rank 64 on all linear layers
        ("llama-3-8b", Adapters(16), 41_943_040),  # as PEFT prints it
        ("llama-3-8b", Adapters(8, ("q_proj", "v_proj")), 3_407_872),  # PEFT's usual matrices
    ],
)
def test_adapters_have_the_published_number_of_parameters(model, adapters, published):
    shape = find_model(model)
    each, none = trained_of(job(shape, adapters=adapters), Plan(), "dense")
    assert (shape.layers * each, none) == (published, 0)


@pytest.mark.parametrize("software", [name for name, stack in STACKS.items() if not stack.executed])
@pytest.mark.parametrize("adapters", [Adapters(16), QLORA])
def test_a_matrix_with_a_bias_is_frozen_on_every_software(adapters, software):
    """Some add the bias of q, k and v in a kernel of its own, beside which no adapter multiplies."""
    gpt = replace(job(find_model("gpt3-175b")), stack=find_stack(software), adapters=adapters)
    plan = Plan(tp=8, recompute="full")
    assert predict(gpt, plan).seconds > 0.5 * predict(replace(gpt, adapters=None), plan).seconds


def test_double_quantization_takes_0_127_bits_beside_the_4():
    assert round(NF4_BITS - 4, 3) == 0.127  # 2305.14314, section 3


@pytest.mark.parametrize(
    ("shape", "offload", "least", "memory"),
    [(LLAMA_65B, (), 36e9, 48), (LLAMA_33B, ("optimizer",), 18e9, 24)],
)
def test_qlora_trains_65_billion_parameters_in_48_gib_and_33_billion_in_24(shape, offload, least, memory):
    """The abstract of 2305.14314; in 24 GB with the optimizer in pages on the host (its section 3)."""
    tuned = job(shape, sequence=512, batch=16, adapters=QLORA, offload=offload)
    assert least < peak_memory(tuned, Plan(recompute="full")).total < memory * 2**30


def test_a_frozen_base_has_neither_gradients_nor_optimizer_and_4_bits_in_its_matrices():
    tuned, adapters = job(adapters=Adapters(16, base_bits=NF4_BITS)), 41_943_040
    memory = peak_memory(tuned, Plan())
    norms, ends = 32 * 2 * 4096 + 4096, 2 * 525_336_576
    matrices = P - norms - ends
    assert memory.weights == pytest.approx(matrices * NF4_BITS / 8 + 2 * (norms + ends + adapters), rel=1e-12)
    assert (memory.gradients, memory.optimizer) == (4 * adapters, 12 * adapters)
    assert memory.buffers == context_bytes(tuned, Plan()) + 2 * 4096 * 28672  # the largest matrix, made whole
    cut = Plan(tp=4)
    assert peak_memory(tuned, cut).buffers == context_bytes(tuned, cut) + 2 * 4096 * 28672 / 4


def test_a_frozen_matrix_multiplies_forward_and_backward_and_its_adapters_three_times():
    rows, layer, adapters = (
        4096,
        LLAMA_8B.parameters().attention + LLAMA_8B.parameters().dense_mlp,
        41_943_040 / 32,
    )
    lists = LayerLists(LLAMA_8B, Share(1, rows, adapters=Adapters(16)), PEFT)
    items = sum(lists.layer("dense", "none"), [])
    matmuls = [each for each in items if isinstance(each, Operation) and each.kind == "matmul"]
    beside = sum(each.flops for each in matmuls if each.name.startswith("adapter"))
    assert beside == pytest.approx(6 * adapters * rows)
    assert sum(each.flops for each in matmuls) - beside == pytest.approx(4 * layer * rows)


def test_model_flops_count_4_for_a_frozen_parameter_and_6_for_an_adapters():
    tuned, whole = job(adapters=Adapters(16)), job()
    matrices, tokens = P - 525_336_576, 64 * 4096
    saved = 2 * matrices * tokens - 6 * 41_943_040 * tokens
    assert model_flops(whole) - model_flops(tuned) == pytest.approx(saved)


def test_four_bits_are_made_whole_before_every_use():
    tuned = LayerLists(LLAMA_8B, Share(1, 4096, adapters=QLORA), PEFT)
    made = [item for item in tuned.layer("dense", "none").forward if item.name == "dequantize"]
    layer = LLAMA_8B.parameters().attention + LLAMA_8B.parameters().dense_mlp
    assert sum(item.bytes for item in made) == pytest.approx(layer * (NF4_BITS / 8 + 2))


def test_sums_over_tp_hide_behind_no_gradient_that_is_not_made():
    plan = Plan(tp=2, dp=1, sequence_parallel=True)
    lists = LayerLists(LLAMA_8B, plan.share(job(adapters=Adapters(16))), PEFT)
    for unit in ("dense", "head"):
        backward = lists.unit(unit, "none").backward_input
        beside = [item.beside.name for item in backward if not isinstance(item, Operation) and item.beside]
        assert not [name for name in beside if name.endswith("wgrad")]


def test_adapters_are_cut_by_tp_where_their_matrix_is():
    """Of q, k, v, gate and up B is cut, of o and down A."""
    h, kv, ffn, rank = 4096, 1024, 14336, 16
    each, _ = trained_of(job(adapters=Adapters(rank)), Plan(tp=2), "dense")
    columns = sum(h + outputs / 2 for outputs in (h, kv, kv, ffn, ffn))
    assert each == rank * (columns + h / 2 + h + ffn / 2 + h)


@pytest.mark.parametrize(("model", "of_attention", "beside", "of_an_expert", "experts"), [
    ("mixtral-8x7b", 2 * (4096 + 4096) + 2 * (4096 + 1024), 0, 3 * (4096 + 14336), 8),
    ("qwen2-57b-a14b", 2 * (3584 + 3584) + 2 * (3584 + 512), 3 * (3584 + 20480), 3 * (3584 + 2560), 64),
])  # fmt: skip
def test_every_expert_has_adapters_of_its_own_which_ep_shares_out_and_the_router_has_none(
    model, of_attention, beside, of_an_expert, experts
):
    """A matrix's two have rank x (inputs + outputs) elements. A checkpoint has no others."""
    tuned = job(find_model(model), adapters=Adapters(16))
    shared, own = 16 * (of_attention + beside), 16 * of_an_expert * experts
    assert trained_of(tuned, Plan(), "experts") == (shared, own)
    assert trained_of(tuned, Plan(dp=4, ep=4), "experts") == (shared, own / 4)
    layers = tuned.shape.layers
    assert checkpoint_bytes(tuned) == 14 * layers * (shared + own)
    used = own * tuned.shape.experts.top_k / experts  # by a token
    assert adapter_flops(tuned) == 6 * 64 * 4096 * layers * (shared + used)
    memory = peak_memory(replace(tuned, offload=("optimizer",)), Plan(dp=4, ep=4))
    assert (memory.gradients, memory.optimizer) == (4 * layers * (shared + own / 4), 0)


@pytest.mark.parametrize(("changes", "each"), [
    ({}, 14), ({"offload": ("optimizer",)}, 14), ({"half": True}, 2 + 4), ({"moments": "bf16"}, 10),
])  # fmt: skip
def test_a_checkpoint_has_weights_and_optimizer_wherever_that_is_kept(changes, each):
    assert checkpoint_bytes(job(**changes)) == each * P


def test_fsdp_makes_the_largest_matrix_of_a_quantized_layer_whole_besides_what_it_gathers():
    tuned, plan = job(adapters=Adapters(16, base_bits=4)), Plan(dp=8, zero=3)
    layer, embedding, head = (sum(elements_of(tuned, plan, kind)) for kind in ("dense", "embedding", "head"))
    waiting, gate_and_up = sum(trained_of(tuned, plan, "dense")), 4096 * 2 * 14336
    gathered = 2 * (2 * layer + embedding + head) + 4 * waiting
    assert peak_memory(tuned, plan).buffers == pytest.approx(
        gathered + 2 * gate_and_up + context_bytes(tuned, plan)
    )


def test_a_layer_keeps_what_lies_between_the_two_matrices_of_each_of_its_adapters():
    """Of 7 linear layers, 16 numbers of 2 bytes for each token."""
    tuned, plain = (
        LayerLists(LLAMA_8B, Plan().share(one), PEFT) for one in (job(adapters=Adapters(16)), job())
    )
    assert kept_bytes(tuned, "dense", "none") - kept_bytes(plain, "dense", "none") == 4096 * 7 * 16 * 2


@pytest.mark.parametrize(("model", "of_attention", "shared"), [("qwen3-30b-a3b", 4, 0), ("glm-4.5", 4, 3)])
def test_adapters_of_experts_keep_the_rows_that_experts_multiply(model, of_attention, shared):
    """Each of a token's 8 experts has 3 matrices, whose adapters keep 16 numbers of 2 bytes."""
    shape = find_model(model)
    tuned, plain = (
        LayerLists(shape, Plan().share(one), PEFT) for one in (job(shape, adapters=Adapters(16)), job(shape))
    )
    added = kept_bytes(tuned, "experts", "none") - kept_bytes(plain, "experts", "none")
    assert added == 4096 * (of_attention + shared + 8 * 3) * 16 * 2


def test_what_adapters_keep_of_modules_that_run_again_is_not_kept():
    tuned, plain = (
        LayerLists(LLAMA_8B, Plan().share(one), replace(PEFT, selective=("mlp",)))
        for one in (job(adapters=Adapters(16)), job())
    )
    added = kept_bytes(tuned, "dense", "selective") - kept_bytes(plain, "dense", "selective")
    assert added == 4096 * 4 * 16 * 2  # of q, k, v and o


def test_frozen_weights_are_cast_beside_those_in_16_bits_as_trained_ones_are():
    """Transformer Engine keeps a cast copy of every matrix from a step's first microbatch on."""
    fp8, plan = job(hardware="b200", dtype="mxfp8"), Plan()
    frozen = peak_memory(replace(fp8, adapters=Adapters(16)), plan)
    assert frozen.weights == peak_memory(fp8, plan).weights + 2 * 41_943_040


@pytest.mark.parametrize(("grouped", "kernels"), [(False, 16), (True, 1)])
def test_adapters_of_experts_are_launched_as_their_experts_are(grouped, kernels):
    """Of 128 experts ep=8 leaves 16 on a rank, in one kernel each or in one for all."""
    stack = replace(PEFT, grouped_experts=grouped)
    lists = LayerLists(find_model("qwen3-30b-a3b"), Share(1, 4096, ep=8, adapters=QLORA), stack)
    items = [item for item in lists.layer("experts", "none").forward if isinstance(item, Operation)]
    places = [place for place, item in enumerate(items) if item.name == "experts down forward"]
    around = items[places[0] - 1 : places[0] + 4]
    assert [item.name for item in around] == [
        *("dequantize", "experts down forward"),
        *2 * ["adapter of experts down forward"],
        "add adapter",
    ]
    assert {item.kernels for item in around} == {kernels}


def test_adapters_of_experts_are_cut_where_tp_cuts_experts():
    """Of gate and up B is cut, of down A; ep shares out the 8 experts."""
    tuned = job(find_model("mixtral-8x7b"), adapters=Adapters(16))
    cut = replace(tuned, stack=replace(tuned.stack, expert_tp=True))
    plan, h, ffn = Plan(tp=4, dp=4, ep=2), 4096, 14336
    assert trained_of(tuned, plan, "experts")[1] == 4 * 16 * 3 * (h + ffn)
    assert trained_of(cut, plan, "experts")[1] == 4 * 16 * 3 * (h + ffn / 4)


@pytest.mark.parametrize(("changes", "whole"), [
    ({}, 4096 * 2 * 14336),  # no part of a whole expert
    ({"expert_tp": True}, 4096 * 2 * 14336 / 4),
    ({"grouped_experts": True}, 4 * 4096 * 2 * 14336),  # one kernel multiplies the rank's 4 experts
])  # fmt: skip
def test_experts_in_4_bits_are_made_whole_as_they_are_multiplied(changes, whole):
    tuned, plan = job(find_model("mixtral-8x7b"), adapters=QLORA), Plan(tp=4, dp=4, ep=2)
    tuned = replace(tuned, stack=replace(tuned.stack, **changes))
    assert peak_memory(tuned, plan).buffers == context_bytes(tuned, plan) + 2 * whole


def test_shared_experts_in_4_bits_are_made_whole_together():
    """Qwen2-57B-A14B's are 20,480 wide, one of its experts 2,560."""
    tuned = job(find_model("qwen2-57b-a14b"), adapters=QLORA)
    assert peak_memory(tuned, Plan()).buffers == context_bytes(tuned, Plan()) + 2 * 3584 * 2 * 20480


def test_fsdp_gathers_a_frozen_base_and_reduces_the_adapters_alone():
    tuned = job(adapters=Adapters(16))
    memory = peak_memory(tuned, Plan(dp=8, zero=3))
    assert memory.weights == 2 * (P + 41_943_040) / 8
    assert memory.gradients == 4 * 41_943_040 / 8
    exposed, whole = (predict(each, Plan(dp=8, zero=3)).step.breakdown["dp"] for each in (tuned, job()))
    assert exposed < whole


def test_fsdps_zero_2_gathers_a_frozen_base_too_and_without_fsdp_the_adapters_alone():
    """Its shards are FSDP's, however long weights stay whole."""
    stack = replace(find_stack("torchtitan"), reshards=False)
    tuned = replace(job(adapters=Adapters(16)), stack=stack)
    two, three = (predict(tuned, Plan(dp=8, zero=zero)).seconds for zero in (2, 3))
    assert two == pytest.approx(three)
    other = replace(tuned, stack=find_stack("deepspeed"))
    assert predict(other, Plan(dp=8, zero=2)).seconds < predict(other, Plan(dp=8, zero=3)).seconds


# --------------------------------------------------------------------------------------------- the optimizer


@pytest.mark.parametrize(
    ("stack", "each"),
    [
        ("megatron-core", (2, 4, 12)),
        ("torchtitan", (4, 4, 8)),
        ("fsdp-2023", (4, 4, 8)),
        ("deepspeed", (2, 2, 12)),
    ],
)
def test_shards_are_in_float32_alone_or_in_16_bits_beside_the_optimizers_copy(stack, each):
    """torch.distributed.fsdp's; Megatron-FSDP's model_weight_buffer and main_weight_buffer; DeepSpeed's
    ds_tensor and fp32_partitioned_groups_flat."""
    memory = peak_memory(replace(job(), stack=find_stack(stack)), Plan(dp=8, zero=3))
    assert (memory.weights, memory.gradients, memory.optimizer) == tuple(size * P / 8 for size in each)


@pytest.mark.parametrize(
    ("changes", "optimizer"),
    [
        ({"moments": "bf16"}, 8),
        ({"moments": "8bit"}, 4 + 2 * (1 + 4 / 256)),  # bitsandbytes: a float32 for 256 numbers
        ({"half": True, "moments": "8bit"}, 2 * (1 + 4 / 256)),
        ({"half": True}, 4),
        ({"offload": ("optimizer",)}, 0),
    ],
)
def test_bytes_of_the_optimizer_for_each_parameter(changes, optimizer):
    memory = peak_memory(job(**changes), Plan(dp=8))
    assert memory.optimizer == pytest.approx(optimizer * P, rel=1e-12)
    assert memory.gradients == (2 if changes.get("half") else 4) * P


def test_an_optimizer_on_the_host_waits_for_gradients_steps_and_sends_weights():
    """One A100 (PCIe 4.0: 24.8 GB/s reached), and 8 whose host steps for all (ZeRO-Offload, table 4)."""
    away = job(hardware="a100-80", offload=("optimizer",))
    for gpus, zero, mine in ((1, 0, P), (8, 0, P), (8, 1, P / 8)):
        seconds = predict(away, Plan(dp=gpus, zero=zero)).step.breakdown["optimizer"]
        assert seconds == pytest.approx(mine * 6 / 24.8e9 + mine * gpus * 2.57 / 10e9)


def test_all_that_travels_to_an_optimizer_on_the_host_and_back_are_gradients_and_weights():
    away = job(hardware="a100-80", offload=("optimizer",))
    parts = host_parts(Pricing(away, Plan()), 1e9)
    moved = {part.name: part.bytes for part in parts}
    assert moved == {"gradients to host": 4e9, "adam on host": 0, "weights from host": 2e9}


@pytest.mark.parametrize(("plan", "alone"), [
    (Plan(zero=3), 0), (Plan(zero=3, tp=2), 0), (Plan(zero=3, dp=2), 1), (Plan(zero=3, cp=2), 1),
    (Plan(zero=3, dp=2, cp=2), 1), (Plan(zero=2, dp=2), 0),
])  # fmt: skip
def test_weights_are_sharded_over_the_ranks_of_dp_and_cp_and_over_one_where_the_software_does(plan, alone):
    """torchtitan calls fully_shard always, plain PyTorch's loops beside tp alone."""
    for shards_over_one, also in (
        ("", False),
        ("always", plan.zero == 3),
        ("tp", plan.zero == 3 and plan.tp > 1),
    ):
        some = replace(job(), stack=replace(job().stack, shards_over_one=shards_over_one))
        assert bool(is_fully_sharded(some, plan)) == (bool(alone) or also)


@pytest.mark.parametrize(("stack", "zero", "kept"), [
    ("deepspeed", 3, 0), ("deepspeed", 2, 0), ("deepspeed", 1, 2 * 8), ("megatron-core", 2, 4),
    ("pytorch", 3, 4),
])  # fmt: skip
def test_deepspeed_adds_up_shards_of_gradients_beside_an_optimizer_on_the_host(stack, zero, kept):
    away = replace(job(offload=("optimizer",)), stack=find_stack(stack))
    assert peak_memory(away, Plan(dp=8, zero=zero)).gradients == kept * P / 8


def test_70_billion_parameters_train_on_one_node_whose_host_has_gradients_and_optimizer():
    """DeepSpeed's ZeRO-3: 2 bytes of each parameter are left on 8 GPUs."""
    fine = TrainingJob(
        find_model("llama-3-70b"),
        find_hardware("h100"),
        find_stack("deepspeed"),
        8192,
        8,
        offload=("optimizer",),
    )
    memory = peak_memory(fine, Plan(dp=8, zero=3, recompute="full"))
    assert memory.weights == 2 * fine.shape.parameters().total / 8
    assert memory.total < fine.usable_bytes()


def test_hardware_without_a_host_link_cannot_offload():
    unknown = replace(cast(Accelerator, find_hardware("h100")), host_bytes_per_second=0.0)
    with pytest.raises(UserError, match="bandwidth_host"):
        predict(replace(job(offload=("optimizer",)), hardware=unknown), Plan(dp=8))


@pytest.mark.parametrize(
    ("model", "absent", "near"),
    [("llama-3-8b", "q_a_proj", "q_proj"), ("qwen3-next-80b-a3b", "in_proj_qkv", "in_proj_qkvz")],
)
def test_adapters_on_a_matrix_that_the_model_lacks_are_refused(model, absent, near, capsys):
    """PEFT would train none there."""
    asked = ["--model", model, "--gpus", "8", "--global-batch", "8", "--lora", "16", "--lora-on", absent]
    assert main(["plan", *asked, "--dp", "8"]) != 0
    said = " ".join(capsys.readouterr().err.split())
    assert f"unknown matrix of {model} for --lora-on: '{absent}'. Did you mean '{near}'?" in said


# -------------------------------------------------------------------------------------------------- weights


def on_host(*words: str, bytes_per_second: float = 1e9, **fields) -> TrainingJob:
    """DeepSpeed, on an H100 with this link to its host."""
    slow = replace(cast(Accelerator, find_hardware("h100")), host_bytes_per_second=bytes_per_second)
    return replace(job(offload=words, **fields), hardware=slow, stack=find_stack("deepspeed"))


def test_weights_on_the_host_leave_the_gpu_those_that_are_whole():
    kept, away = (
        peak_memory(on_host("optimizer", *words), Plan(dp=8, zero=3)) for words in ((), ("weights",))
    )
    assert kept.weights == 2 * LLAMA_8B.parameters().total / 8 and away.weights == 0
    assert away == kept._replace(weights=0)


@pytest.mark.parametrize("dp", [1, 2, 8])
def test_a_gather_begins_with_the_copy_of_a_shard_from_the_host(dp):
    """2 bytes for each parameter over dp, at 1 GB/s; one GPU has nobody to gather from."""
    layer = 2 * sum(elements_of(on_host(), Plan(), "dense")) / dp / 1e9
    prices = []
    for words in (), ("weights",):
        pricing = Pricing(on_host(*words), Plan(dp=dp, zero=3))
        prices.append(sum(map(pricing.seconds_alone, gathered_weights(pricing, "dense"))))
    assert prices[1] - prices[0] == pytest.approx(layer, rel=1e-9) and (prices[0] > 0) == (dp > 1)


@pytest.mark.parametrize("dp", [1, 8])
def test_a_step_on_a_slow_link_takes_two_copies_of_the_weights_for_each_microbatch(dp):
    """At 0.1 GB/s nearly all else hides, but the first layers' work in each pass."""
    one = on_host("weights", bytes_per_second=1e8)
    step, plan = predict(one, Plan(dp=dp, zero=3)).step, Plan(dp=dp, zero=3)
    copies = 2 * plan.microbatches(one) * 2 * LLAMA_8B.parameters().total / dp / 1e8
    back = 4 * LLAMA_8B.parameters().total / dp / 1e8  # in float32, of weights that a GPU has stepped
    assert copies + back < step.seconds < 1.02 * (copies + back) + predict(job(), Plan(dp=dp)).seconds


def test_what_a_step_takes_is_listed_kernel_by_kernel_with_the_copy_to_the_host(capsys):
    asked = "explain --model llama-3-8b --gpus 8 --zero 3 --software deepspeed --unit optimizer --json"
    assert main([*asked.split(), "--offload", "weights"]) == 0
    rows = json.loads(capsys.readouterr().out)["passes"]["optimizer"]
    one = replace(job(offload=("weights",), batch=8), stack=find_stack("deepspeed"))
    step = predict(one, Plan(dp=8, zero=3)).step.breakdown["optimizer"]
    assert sum(row["seconds"] for row in rows) == pytest.approx(step, rel=1e-9)
    assert rows[-1]["name"] == "weights to host" and rows[-1]["bound"] == "link to the host"


def test_weights_that_the_host_steps_stay_there():
    """Gradients go down, and nothing comes up: 2 bytes less for each of an owner's parameters."""
    seconds = []
    for words in (), ("weights",):
        step = predict(on_host("optimizer", *words), Plan(dp=8, zero=3)).step
        seconds.append(step.breakdown["optimizer"])
    assert seconds[0] - seconds[1] == pytest.approx(2 * LLAMA_8B.parameters().total / 8 / 1e9, rel=1e-6)


@pytest.mark.parametrize(
    ("software", "zero", "words"),
    [
        ("deepspeed", 1, "zero is 1: take zero 3"),
        ("torchtitan", 2, "zero is 2: take zero 3"),
        ("fsdp-2023", 3, "take --software deepspeed or torchtitan"),
    ],
)
@pytest.mark.parametrize("name", ["weights", "parameters", "param"])
def test_weights_on_the_host_are_those_of_zero_3_in_deepspeed_and_fsdp2(software, zero, words, name, capsys):
    asked = ["--model", "llama-3-8b", "--gpus", "8", "--zero", f"{zero}", "--global-batch", "8"]
    assert main(["plan", *asked, "--software", software, "--offload", f"optimizer, {name}"]) != 0
    assert words in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--offload weights", "take --software deepspeed or torchtitan"),
        ("--offload weights --software torchtitan", "take --offload optimizer,weights"),
        ("--offload weights --software deepspeed --fix zero=2", "zero is 2: take zero 3"),
        ("--model qwen3.5-9b --software megatron-2021", "megatron-2021 has no linear attention"),
    ],
)
def test_a_search_says_what_no_plan_of_the_job_can_have(options, words, capsys):
    asked = f"plan --model llama-3-8b --gpus 8 --global-batch 8 {options}"
    assert main(asked.split()) != 0
    assert words in " ".join(capsys.readouterr().err.split())


# ------------------------------------------------------------------- FSDP2: all states (CPUOffloadPolicy)

ALL, TABLE = ("optimizer", "weights"), 128_256 * 4096  # and parameters of the largest weight


def on_torchs_host(batch=8, software="torchtitan", bytes_per_second=1e9, **fields) -> TrainingJob:
    away = on_host(*ALL, bytes_per_second=bytes_per_second, batch=batch, **fields)
    return replace(away, stack=find_stack(software))


@pytest.mark.parametrize(("changes", "number"), [({}, 4), ({"half": True}, 2)])
def test_fsdp2_leaves_16_bytes_of_a_parameter_to_the_host_and_copies_one_weight_at_a_time(changes, number):
    """Each weight as it is kept, and then all of the table and the head in 16 bits."""
    away = on_torchs_host(**changes)
    kept, gone = (peak_memory(one, Plan(dp=8, zero=3)) for one in (replace(away, offload=()), away))
    assert (gone.weights, gone.gradients, gone.optimizer) == (0, 0, 0)
    cast = 2 * (2 * TABLE + 4096) if number == 4 else 0  # and the last norm
    assert gone.buffers - kept.buffers == pytest.approx((number * TABLE + cast) / 8)
    assert gone.activations == kept.activations and gone.logits == kept.logits
    told = predict(away, Plan(dp=8, zero=3)).as_dict()["host_state_bytes_per_gpu"]
    assert told == pytest.approx(4 * number * P / 8)


def test_a_plan_says_what_a_host_keeps_for_its_gpus(capsys):
    asked = "plan --model llama-3-8b --gpus 16 --zero 3 --global-batch 16 --software torchtitan"
    assert main([*asked.split(), "--offload", "optimizer,weights"]) == 0
    assert "A host keeps at least 8.03 GB of states for each GPU, 64.2 GB for 8." in capsys.readouterr().out


@pytest.mark.parametrize(("fields", "software", "number"), [
    ({}, "torchtitan", 4), ({"half": True}, "torchtitan", 2), ({"adapters": Adapters(16)}, "pytorch", 2),
    ({}, "deepspeed", 2),
])  # fmt: skip
@pytest.mark.parametrize("dp", [1, 8])
def test_fsdp2_copies_weights_in_the_bits_in_which_it_keeps_them(fields, software, number, dp):
    away, seconds = on_torchs_host(software=software, **fields), []
    layer = sum(elements_of(away, Plan(), "dense")) / dp
    for one in (replace(away, offload=()), away):
        pricing = Pricing(one, Plan(dp=dp, zero=3))
        seconds.append(sum(map(pricing.seconds_alone, gathered_weights(pricing, "dense"))))
    assert seconds[1] - seconds[0] == pytest.approx(number * layer / 1e9, rel=1e-9)


@pytest.mark.parametrize(("shards", "owners"), [(0, 16), (8, 8), (1, 1)])
def test_a_shard_of_gradients_goes_to_the_host_once_with_replicas_too(shards, owners):
    away, plan = on_torchs_host(batch=16), Plan(dp=16, zero=3, shards=shards)
    layer = sum(elements_of(away, Plan(), "dense"))
    copies = [each for each in reduced_gradients(Pricing(away, plan), "dense") if each.host_bytes]
    assert [each.group for each in copies] == ["to_host"]
    assert copies[0].host_bytes == 4 * layer / owners
    kept = reduced_gradients(Pricing(replace(away, offload=()), plan), "dense")
    assert reduced_gradients(Pricing(away, plan), "dense") == [*kept, *copies]


def test_fsdp2s_host_takes_the_norm_clips_and_steps():
    """4 bytes, 8 and Adam's 28 of each parameter, at Adam's rate of ZeRO-Offload's table 4."""
    parts = host_parts(Pricing(on_torchs_host(), Plan(dp=8, zero=3)), P / 8)
    assert [(part.name, part.bytes) for part in parts] == [
        ("norm on host", 0), ("clip on host", 0), ("adam on host", 0)
    ]  # fmt: skip
    step = predict(on_torchs_host(), Plan(dp=8, zero=3)).step.breakdown["optimizer"]
    assert step == pytest.approx(P * 0.257e-9 * (4 + 8 + 28) / 28)


def test_over_one_rank_fsdp2s_weights_come_in_the_stream_that_computes_and_gradients_go_beside_it():
    """Two copies of the weights are waited for, and of gradients the last; of the head's what the next
    layer's weights do not hide."""
    away = on_torchs_host(batch=1)
    up, layer = (4 * number / 1e9 for number in (P, sum(elements_of(away, Plan(), "dense"))))
    last = head = 4 * TABLE / 1e9
    step = predict(away, Plan(zero=3)).step
    assert step.breakdown["dp"] == pytest.approx(2 * up + last + head - layer, rel=0.005)


@pytest.mark.parametrize("dp", [2, 8])
def test_a_second_microbatch_waits_for_gradients_on_their_way_to_the_host_which_adds_them(dp):
    """At 0.1 GB/s all but the links to the host hides in the first microbatch, where gradients go down as
    weights come up; in the others nothing does."""
    seconds = []
    for batch in (dp, 2 * dp, 3 * dp):
        seconds.append(predict(on_torchs_host(batch, bytes_per_second=1e8), Plan(dp=dp, zero=3)).step)
    shard = P / dp
    assert seconds[0].breakdown["dp"] > 2 * 4 * shard / 1e8
    assert seconds[0].breakdown.get("host", 0) == 0
    for more in (1, 2):
        added = more * P * 12 * 0.257e-9 / 28  # two numbers read, one written; a host has dp shards
        assert seconds[more].breakdown["host"] == pytest.approx(added)
    each = seconds[2].breakdown["dp"] - seconds[1].breakdown["dp"]
    assert each == pytest.approx(3 * 4 * shard / 1e8, rel=0.06)


def test_gradients_that_stay_whole_between_microbatches_are_not_added_on_the_host():
    """KempnerForge reduces the last microbatch's alone."""
    two = predict(on_torchs_host(batch=16, software="pytorch"), Plan(dp=8, zero=3)).step
    one = predict(on_torchs_host(batch=8, software="pytorch"), Plan(dp=8, zero=3)).step
    assert two.breakdown.get("host", 0) == 0
    copies = two.breakdown["dp"] - one.breakdown["dp"]
    assert copies < 2 * 4 * P / 8 / 1e9


def test_a_pipeline_of_fsdp2_copies_weights_and_gradients_once_a_step():
    plan = Plan(dp=2, pp=4, zero=3, recompute="full")
    seconds = [
        predict(on_torchs_host(batch, bytes_per_second=1e8), plan).step.breakdown["dp"] for batch in (16, 32)
    ]
    assert seconds[0] == pytest.approx(seconds[1], rel=0.02)
    assert seconds[0] > 2 * 4 * (P / 4) / 2 / 1e8 / 2


def test_a_search_of_torchtitans_plans_with_states_on_the_host_takes_zero_3_and_is_sure_of_its_best():
    found = search(on_torchs_host(bytes_per_second=5e10), 8, frameworks=("torchtitan",))
    assert found.best.plan.zero == 3 and found.gap < 0.02


def test_a_search_with_weights_on_the_host_takes_zero_3_and_is_sure_of_its_best():
    found = search(on_host("optimizer", "weights"), 8, frameworks=("deepspeed",))
    assert found.best.plan.zero == 3 and found.gap < 0.02
    alone = search(on_host("optimizer", "weights", shape=find_model("qwen3-0.6b")), 1)
    assert (alone.best.plan.zero, alone.best.plan.gpus) == (3, 1)


def test_guides_shard_weights_that_are_on_the_host():
    advice = advise(on_host("optimizer", "weights"), 8)
    assert [way.plan.zero for way in advice.ways] == [3]


# ---------------------------------------------------------------------------------------------- activations


def test_activations_on_the_host_leave_two_layers_on_the_gpu():
    lists = LayerLists(LLAMA_8B, Share(1, 4096), PEFT)
    memory = peak_memory(job(offload=("activations",)), Plan(dp=8))
    assert memory.activations == 2 * kept_bytes(lists, "dense", "none")


def test_of_a_share_of_the_activations_as_much_stays_and_the_rest_travels():
    whole, away, half = (
        peak_memory(job(offload=words, offload_share=share), Plan(dp=8)).activations
        for words, share in (((), 1.0), (("activations",), 1.0), (("activations",), 0.5))
    )
    assert half == (whole + away) / 2
    slow = replace(cast(Accelerator, find_hardware("h100")), host_bytes_per_second=1e9)
    waits = [
        predict(replace(job(offload=("activations",), offload_share=share), hardware=slow), Plan(dp=8)).step
        for share in (1.0, 0.5)
    ]
    travels = 2 * 8 * 32 * kept_bytes(LayerLists(LLAMA_8B, Share(1, 4096), PEFT), "dense", "none")
    lost = waits[0].breakdown["host"] - waits[1].breakdown["host"]
    assert lost == pytest.approx(0.5 * travels / 1e9, rel=1e-9)


def test_a_pass_takes_as_long_as_its_activations_travel():
    """A T4's PCIe 3.0 beside an H100's compute: both passes wait for the link, each microbatch and layer."""
    slow = replace(cast(Accelerator, find_hardware("h100")), host_bytes_per_second=1e9)
    away = replace(job(offload=("activations",)), hardware=slow)
    lists = LayerLists(LLAMA_8B, Share(1, 4096), PEFT)
    step, travels = predict(away, Plan(dp=8)).step, 2 * 8 * 32 * kept_bytes(lists, "dense", "none") / 1e9
    without = predict(job(), Plan(dp=8)).step
    computes = 8 * 32 * 2 * kept_bytes(lists, "dense", "none") / 1e9 - step.breakdown["host"]
    assert step.breakdown["host"] > 0.5 * travels and 0 < computes < without.seconds
    assert "host" not in without.breakdown


def test_activations_that_travel_faster_than_a_layer_computes_cost_nothing():
    fast = replace(cast(Accelerator, find_hardware("h100")), host_bytes_per_second=1e15)
    away = replace(job(offload=("activations",)), hardware=fast)
    assert predict(away, Plan(dp=8)).seconds == predict(job(), Plan(dp=8)).seconds


# ----------------------------------------------------------------------------------------------- the search


@pytest.mark.parametrize(
    "changes",
    [
        {"adapters": QLORA},
        {"offload": ("optimizer", "activations"), "offload_share": 0.75},
        {"moments": "8bit", "half": True},
    ],
    ids=str,
)
def test_a_bound_is_a_bound_and_memory_is_exact_whatever_is_trained_and_kept(changes):
    for model in ("llama-3-8b", "mixtral-8x7b"):
        some = job(find_model(model), **changes)
        for plan in (
            Plan(dp=8, zero=3, recompute="full"),
            Plan(tp=2, pp=2, dp=2, zero=1, sequence_parallel=True),
            Plan(pp=4, dp=2, zero=2, chunks=2, schedule="interleaved"),
        ):
            bound, found = lower_bound(some, plan), predict(some, plan)
            assert bound.seconds[0] <= found.seconds * (1 + 1e-9)
            assert bound.memory_bytes[0] == pytest.approx(found.fullest.total, rel=1e-9)
