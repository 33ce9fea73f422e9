"""Claims about kernels that are counted in the frameworks' code, and about what it costs to launch them."""

from dataclasses import replace

import numpy as np
import pytest

from ndparallel.hardware.accelerator import find_hardware, host_launch
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.launches import MODULE, SMALL_KERNELS, launches_of
from ndparallel.planner.layers.breakdown import TimeBreakdown, total
from ndparallel.planner.layers.layer import LayerLists
from ndparallel.planner.layers.operations import MEMORY_PASSES, CollectiveOp
from ndparallel.planner.layers.pricing import Pricing, seconds_with_waits
from ndparallel.planner.models.presets import find_model
from ndparallel.planner.software import STACKS
from ndparallel.validation.cases import express, read_cases
from ndparallel.validation.validate import result_of

GPT = find_model("megatron-22b")
SMALL = [run for run in read_cases() if run["family"] == "vTrain single node"]


def launches(items) -> int:
    return sum(int(launches_of(item, 1.0)) for item in items if not isinstance(item, CollectiveOp))


def layer(**plan):
    job = TrainingJob(GPT, find_hardware("a100-80"), STACKS["megatron-2021"], 1024, 8)
    return LayerLists(job.shape, Plan(**plan).share(job), job.stack).layer("dense", "full")


def test_megatrons_layer_of_2021_launches_what_its_code_has():
    """By hand, microsoft/Megatron-DeepSpeed 52e6368. Forward: two norms; qkv and its bias; scores, softmax,
    dropout, values, a copy; output; bias, dropout and sum; up; GeLU; down; bias, dropout and sum: 15 kernels,
    and 4 random states. Recomputed: the same, and 8 states. Backward: 8 products, norms 4, biases 4, dropouts
    with their sums 4, attention's 4 products, softmax, dropout, 2 scalings, a copy and a join, GeLU; and 8
    gradients of norms and biases that are added to those that stay: 39."""
    found = layer()
    assert launches(found.forward) == 15 + 4
    assert launches(found.recompute) == 15 + 4 + 8
    assert launches(found.backward_input + found.backward_weight) == 39


def test_plain_torch_launches_29_kernels_more_than_the_list_has_forward_and_44_backward():
    """torchtitan's Llama: 7 and 11 of each norm's operators, 2 and 6 of the two small matrices, 9 and 9 of
    rotary positions, 2 and 2 that repeat keys and values, 2 and 5 of the gate."""
    more = {
        way: sum(
            each.launches for each in SMALL_KERNELS["torch"] if each.backward == way and each.of in HALVES
        )
        for way in (False, True)
    }
    assert more == {False: 2 * 7 + 2 + 9 + 2 + 2, True: 2 * 11 + 6 + 9 + 2 + 5}


HALVES = ("attention", "mlp")


def test_megatron_core_turns_queries_and_keys_in_a_kernel_each_wherever_it_turns_them():
    """megatron/core/models/common/embeddings/rope_utils.py. `explain` shows one row: the bytes of both."""
    stack = replace(STACKS["megatron-core"], selective=("mla_up_proj",))
    job = TrainingJob(find_model("deepseek-v3"), find_hardware("h100"), stack, 4096, 8)
    found = LayerLists(job.shape, Plan().share(job), stack).layer("dense", "selective")
    for items in (found.forward, found.recompute, found.backward_input):
        (turned,) = (item for item in items if item.name.startswith("rotary"))
        assert turned.kernels == 2 and turned.bytes > 0


def test_permutations_launch_what_megatron_core_and_transformer_engine_have_in_each_dispatcher():
    """By hand, forward and backward, megatron/core/transformer/moe/moe_utils.py: permute and unpermute, and
    sort_chunks_by_idxs where rows come in chunks; Transformer Engine, pytorch/permutation.py. Fused, a
    backward pass copies twice for each permutation: two of them with alltoall, one with allgather."""
    counted = {
        (way, backward): sum(
            each.launches
            for each in SMALL_KERNELS["megatron-core"]
            if each.name == "permute" and each.when == way and each.backward == backward
        )
        for way in PERMUTATIONS
        for backward in (False, True)
    }
    assert counted == {(way, back): n for way, both in PERMUTATIONS.items() for back, n in enumerate(both)}


PERMUTATIONS = {
    "plain alltoall": (20, 12),
    "fused alltoall": (9, 4),
    "plain allgather": (16, 8),
    "fused allgather": (5, 2),
}


def test_a_sum_is_launched_where_there_are_ranks_to_sum_over():
    job = TrainingJob(GPT, find_hardware("a100-80"), STACKS["megatron-2021"], 1024, 8)
    one, two = (Pricing(job, Plan(tp=tp)).unit("dense").forward.launch_seconds for tp in (1, 2))
    assert two - one == pytest.approx(2 * MODULE * 13.48e-6)


def test_short_steps_are_as_long_as_their_launches_whatever_tensor_parallelism_does():
    """vTrain's single node, hidden 1024, one sequence of 1,024 a microbatch, four GPUs as tp 4 or tp 2."""
    for count in (4, 8, 16):
        alike = [run for run in SMALL if small(run, count)]
        assert len(alike) >= 2
        for run in alike:
            assert abs(result_of(run).step_error or 1.0) < 0.1, run["id"]


def small(run, microbatches: int) -> bool:
    parallel, batch = run["parallel"], run["batch"]
    return (
        (run["model"]["hidden"], parallel["pp"], batch["micro"]) == (1024, 1, 1)
        and parallel["tp"] > 1
        and batch["global"] == microbatches * parallel["dp"]
    )


def test_graphs_and_prepared_code_launch_for_nothing_and_a_slow_cpu_for_more():
    case = express(SMALL[0])
    seconds = {}
    changes: dict[str, dict] = {"eager": {}, "step": {"graphs": "step"}, "none": {"launching": "none"}}
    for name, change in changes.items():
        job = replace(case.job, stack=replace(case.job.stack, **change))
        seconds[name] = Pricing(job, case.plan).unit("dense").total.total
    assert seconds["step"] == pytest.approx(seconds["none"])
    assert seconds["step"] < 0.6 * seconds["eager"]


def test_a_grace_cpu_launches_more_slowly_than_a_xeon():
    """NVIDIA/TransformerEngine, issue 2053."""
    seconds = {name: host_launch(find_hardware(name)) for name in ("h100", "gh200", "gb200", "gb300")}
    assert seconds == {"h100": 13.48e-6, "gh200": 33.17e-6, "gb200": 37.08e-6, "gb300": 37.08e-6}


def test_every_small_kernel_says_where_the_code_launches_it():
    kernels = [kernel for kernels in SMALL_KERNELS.values() for kernel in kernels]
    assert len(kernels) > 30
    for kernel in kernels:
        assert kernel.source and (kernel.launches or kernel.calls or kernel.waits)
        assert bool(kernel.elements) == bool(kernel.passes)


@pytest.mark.parametrize("fusion", MEMORY_PASSES)
def test_an_activation_reads_one_array_and_writes_one_and_a_gate_reads_two(fusion):
    """In one kernel; an eager gate has two."""
    assert MEMORY_PASSES[fusion]["plain"][0] == 2
    assert MEMORY_PASSES[fusion]["gated"][0] == 3 + 2 * (fusion == "eager")


def test_launches_of_several_passes_add_up():
    parts = TimeBreakdown(compute=1.0), TimeBreakdown(compute=2.0)
    for part, launched in zip(parts, (3.0, 4.0)):
        part.launch_seconds = launched
    assert total(parts) == {"compute": 3.0} and total(parts).launch_seconds == 7.0


def priced(cpu_seconds, seconds, waits=False):
    return "compute", seconds, cpu_seconds, waits


def test_from_a_wait_to_the_next_one_a_kernel_begins_when_it_is_launched():
    """Of each item the CPU's seconds and the GPU's. Without a wait the CPU runs ahead: 7 launches, 7 of
    kernels. With one behind the second, by hand: launched at 1, 5, 6, 7; begun at 1, 5, 6, 11."""
    ahead = [priced(1.0, 5.0), priced(1.0, 0.0), priced(1.0, 1.0), priced(4.0, 1.0)]
    assert seconds_with_waits(ahead) == 7
    waits = [*ahead[:1], priced(1.0, 0.0, True), *ahead[2:]]
    assert seconds_with_waits(waits) == 11
    assert seconds_with_waits(waits[2:] + waits[:2]) == 11  # passes follow one another
    assert seconds_with_waits([priced(2.0, 3.0, True)]) == 5  # a kernel that is waited for counts once


@pytest.mark.parametrize(
    ("model", "tp"),
    [("llama-3-8b", 1), ("llama-3-8b", 4), ("llama-3-8b", 8), ("llama-2-7b", 1), ("llama-2-7b", 8)],
)
def test_queries_are_copied_out_of_the_fused_array_where_no_view_has_them_alone(model, tp):
    """The oracle is a reshape, which copies only where it must: query.reshape in Megatron-Core's
    get_query_key_value_tensors. Values keep the array's strides, which keys that were turned have not."""
    shape, tokens = find_model(model), 1024
    heads, groups, width = shape.heads // tp, shape.kv_heads // tp, shape.head_dim
    fused = np.zeros((tokens, 1, groups, (heads // groups + 2) * width), np.int8)
    query = fused[..., : -2 * width].reshape(tokens, 1, heads, width)
    job = TrainingJob(shape, find_hardware("h100"), STACKS["megatron-core"], tokens, 8)
    forward, _, backward, _ = LayerLists(shape, Plan(tp=tp).share(job), job.stack).layer("dense", "none")
    moved = {item.name: item.bytes for item in [*forward, *backward] if item.name[:5] != "norm "}
    copied = not np.shares_memory(query, fused)
    assert moved.get("queries apart", 0) == 2 * 2 * copied * query.size
    assert moved["values apart"] == 2 * 2 * tokens * groups * width
    assert moved["join q, k, v"] == 2 * 2 * fused.size


def test_an_array_of_plans_copies_queries_where_one_plan_would():
    shape = find_model("llama-3-8b")
    job = TrainingJob(shape, find_hardware("h100"), STACKS["megatron-core"], 1024, 8)

    def copy(tp):
        items = LayerLists(shape, Plan(tp=tp).share(job), job.stack).layer("dense", "none").forward
        return next((item for item in items if item.name == "queries apart"), None)

    several, alone = copy(np.array([4, 8])), copy(4)
    assert [*several.bytes] == [alone.bytes, 0] and [*several.kernels] == [alone.kernels, 0]
    assert copy(8) is None


def test_heads_without_rotary_positions_stay_views_of_the_fused_array():
    job = TrainingJob(GPT, find_hardware("h100"), STACKS["megatron-core"], 1024, 8)
    lists = LayerLists(GPT, Plan().share(job), job.stack).layer("dense", "none")
    assert not {item.name for items in lists for item in items} & {"join q, k, v", "values apart"}


@pytest.mark.parametrize(("software", "passes"), [("megatron-core", 3), ("nemo", 3), ("megatron-2022", 5)])
def test_transformer_engine_reads_a_norms_gradient_and_input_once_and_apex_for_its_weights_again(
    software, passes
):
    stack, shape = STACKS[software], find_model("llama-3-8b")
    share = Plan().share(TrainingJob(shape, find_hardware("h100"), stack, 4096, 1))
    norm = LayerLists(shape, share, stack).norm(True)
    assert norm.bytes == passes * 4096 * shape.hidden * 2
