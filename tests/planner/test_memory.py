"""Claims about the bytes on a stage's GPUs."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ndparallel.hardware.accelerator import find_hardware
from ndparallel.planner.job import Plan, Share, TrainingJob
from ndparallel.planner.layers.dense import LayerLists
from ndparallel.planner.layers.kept import kept_bytes
from ndparallel.planner.memory.states import CONTEXT_BYTES
from ndparallel.planner.memory.total import in_flight, memory_by_rank
from ndparallel.planner.models.presets import find_model
from ndparallel.planner.models.shape import ModelShape
from ndparallel.planner.prediction import peak_memory
from ndparallel.planner.software import find_stack
from ndparallel.planner.step.framework import framework_workload

BIASES = ("qkv", "output", "mlp", "norm")
GPT = ModelShape(
    "gpt",
    24,
    2304,
    24,
    24,
    96,
    9216,
    51200,
    "gelu",
    "layernorm",
    "learned",
    1024,
    BIASES,
    tied_embeddings=True,
)
S, B, H, A = 1024, 4, 2304, 24


def job(stack="megatron-2022", **changes):
    return replace(TrainingJob(GPT, find_hardware("a100-80"), find_stack(stack), S, 64), **changes)


def kept(recompute="none", **share):
    return kept_bytes(
        LayerLists(GPT, Share(**({"micro_batch": B, "sequence": S} | share)), find_stack("megatron-2022")),
        recompute,
    )


def test_a_layer_keeps_what_korthikanti_equation_1_says():
    assert kept() == pytest.approx(S * B * H * (34 + 5 * A * S / H))


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_with_sequence_parallelism_a_layer_keeps_equation_1_over_t(tp):
    # equation 4
    assert kept(tp=tp, sequence_parallel=True) == pytest.approx(S * B * H * (34 + 5 * A * S / H) / tp)


def test_selective_recomputation_keeps_34_and_full_keeps_2():
    assert kept("selective") == 34 * S * B * H
    assert kept("full") == 2 * S * B * H


def test_gates_within_the_experts_save_one_array_of_every_tokens_k_outputs():
    mixtral, share, early = (
        find_model("mixtral-8x7b"),
        Share(micro_batch=B, sequence=S),
        find_stack("megatron-core"),
    )
    stacks = early, replace(early, early_gates=False)
    inside, outside = (kept_bytes(LayerLists(mixtral, share, stack), "none") for stack in stacks)
    assert outside - inside == 2 * (2 * S * B) * 4096  # bytes, rows, hidden


def test_mixed_precision_takes_16_bytes_for_a_parameter_and_18_with_gradients_in_float32():
    parameters = GPT.parameters().total
    for stack, expected in (("megatron-2022", 16), ("megatron-core", 18)):
        memory = peak_memory(job(stack), Plan())
        assert memory.weights + memory.gradients + memory.optimizer == pytest.approx(expected * parameters)


def test_zero_shards_optimizer_then_gradients_then_weights():
    none, one, two, three = (peak_memory(job(), Plan(dp=8, zero=zero)) for zero in range(4))
    assert one.optimizer == none.optimizer / 8
    assert two.gradients == none.gradients / 8
    assert three.weights == pytest.approx(none.weights / 8 * 2)  # shards are float32
    assert none.buffers == CONTEXT_BYTES


def test_1f1b_keeps_p_minus_i_microbatches_on_rank_i_and_interleaving_more():
    looped = Plan(pp=4, chunks=2, schedule="interleaved")
    assert in_flight(framework_workload(job(), Plan(pp=4))) == [4, 3, 2, 1]
    assert in_flight(framework_workload(job(), looped))[0] == 4 * 2 + 4 - 1


def test_only_the_last_rank_holds_logits():
    ranks = memory_by_rank(framework_workload(job(), Plan(pp=4)))
    assert [memory.logits > 0 for memory in ranks] == [False, False, False, True]


@given(
    st.sampled_from(["none", "selective", "full"]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2]),
    st.integers(0, 3),
)
def test_half_the_microbatch_never_needs_more_memory(recompute, micro_batch, tp, zero):
    plan = Plan(dp=4, tp=tp, micro_batch=2 * micro_batch, recompute=recompute, zero=zero)
    assert peak_memory(job(), replace(plan, micro_batch=micro_batch)).total <= peak_memory(job(), plan).total
