"""An operation is priced where it is computed: a run charges the operations, and keeps the tensors, that a
count by hand finds."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from gpu import COMPUTE, GPU, Event, Mailboxes, Operation
from ndparallel.engines.launch import launch
from ndparallel.hardware.pocket import POCKET
from ndparallel.model import costs
from ndparallel.model.functional import softmax_with_logsum
from ndparallel.model.optimizer import SGD
from ndparallel.model.stages import head_in_blocks
from ndparallel.model.units import ModelConfig
from ndparallel.parallel.mesh import Mesh
from ndparallel.training.job import Job
from ndparallel.training.replica import Replica
from tests.support import hand_count
from tests.support.common import SMALL
from tests.support.pocket_derivation import derive, layer_operations

LAYOUTS = [(1, "none"), (2, "none"), (4, "none"), (2, "sp"), (4, "sp"), (2, "sp-regather")]


def forward_only(gpu, job):
    replica = Replica(gpu, job)
    for microbatches in replica.steps():
        for microbatch in microbatches:
            replica.forward(microbatch)
    return gpu.held_bytes["activations"]


def both_passes(gpu, job):
    replica = Replica(gpu, job)
    for microbatches in replica.steps():
        for microbatch in microbatches:
            replica.forward(microbatch)
            replica.backward(microbatch)
    return gpu.held_bytes["activations"]


def charged(events, phase: str, unit: str) -> list[tuple[str, float]]:
    """(name, FLOPs) of every operation that a unit was charged in a phase, in order."""
    computed = (event for event in map(Event._make, events) if event.kind == COMPUTE)
    return [
        (event.what.removeprefix(f"{phase} {unit} "), event.flops)
        for event in computed
        if event.what.startswith(f"{phase} {unit} ")
    ]


@pytest.mark.parametrize(("tp", "sequence_parallel"), LAYOUTS)
def test_a_run_charges_the_operations_that_a_count_by_hand_finds(tp, sequence_parallel):
    job = Job(model=SMALL, mesh=Mesh(tp=tp), sequence_parallel=sequence_parallel)
    results = launch(both_passes, tp, POCKET, job, engine="inline")
    for result in results:
        sizes = hand_count.Sizes(SMALL, job.batch, tp, result.rank, sequence_parallel, job.dtype)
        block = hand_count.block(sizes)
        assert charged(result.events, "forward", "layers.1") == [
            (operation.name, operation.flops) for operation in block.forward
        ]
        listed = Counter((operation.name, operation.flops) for operation in block.backward)
        assert Counter(charged(result.events, "backward", "layers.1")) == listed
        assert charged(result.events, "forward", "head") == [
            (operation.name, operation.flops) for operation in hand_count.head(sizes).forward
        ]
        assert result.value == 0, "everything that was kept was given back"


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("tp", "sequence_parallel"), LAYOUTS)
def test_a_run_keeps_the_tensors_that_a_count_by_hand_finds_to_the_byte(
    tp, sequence_parallel, dtype, recompute
):
    job = Job(
        model=SMALL, mesh=Mesh(tp=tp), sequence_parallel=sequence_parallel, dtype=dtype, recompute=recompute
    )
    held = [result.value for result in launch(forward_only, tp, POCKET, job, engine="inline")]
    sizes = hand_count.Sizes(SMALL, job.batch, tp, 0, sequence_parallel, dtype)
    elements = SMALL.layers * hand_count.block_saved(sizes, recompute) + hand_count.head_saved(sizes)
    token_bytes = SMALL.sequence * job.batch
    assert held == [elements * (4 if dtype == "float32" else 8) + token_bytes] * tp


def test_compute_is_split_evenly_by_tp():
    def flops(tp):
        sizes = hand_count.Sizes(replace(SMALL, kv_heads=4), 4, tp)
        return sum(operation.flops for operation in layer_operations(sizes))

    assert flops(2) == flops(1) / 2 and flops(4) == flops(1) / 4


@pytest.mark.parametrize(
    "changes", [{}, {"sequence": 16, "vocab": 1000}, {"experts": 8, "shared_experts": 1}]
)
def test_the_head_is_counted_in_blocks_by_their_flops(changes):
    sizes = hand_count.Sizes(ModelConfig(**changes))
    head, block = (
        sum(each.flops for each in unit(sizes).forward) for unit in (hand_count.head, hand_count.block)
    )
    assert head_in_blocks(sizes.config) == pytest.approx(head / block, rel=1e-15)


def test_a_pocket_layer_has_the_proportions_of_a_layer_of_llama_3_70b_on_h100s():
    model, tp = ModelConfig(), 4
    layer = layer_operations(hand_count.Sizes(model, 1, tp))
    activation, gradients = model.sequence * model.hidden * 4, 11072 / tp * 4
    milliseconds = {
        "compute": 1e3 * sum(operation.flops for operation in layer) / POCKET.flops_per_second,
        "overhead": 1e3 * len(layer) * POCKET.kernel_overhead_seconds,
        "tp inside": 1e3 * 4 * 2 * 3 / 4 * activation / POCKET.inside.bandwidth_bytes_per_second,
        "tp across": 1e3 * 4 * 2 * 3 / 4 * activation / POCKET.across.bandwidth_bytes_per_second,
        "dp": 1e3 * 2 * gradients / POCKET.across.bandwidth_bytes_per_second,
        "pp": 1e3 * activation / tp / POCKET.across.bandwidth_bytes_per_second,
    }
    expected = {
        "compute": 14.2,
        "overhead": 0.09,
        "tp inside": 2.09,
        "tp across": 18.8,
        "dp": 8.47,
        "pp": 0.78,
    }
    assert milliseconds == pytest.approx(expected, rel=5e-3)


def test_the_pocket_is_the_derived_hardware():
    assert derive(ModelConfig(), tp=4) == POCKET


def test_a_batch_of_products_moves_the_arrays_of_each():
    """Eight products of (2, 5) and (5, 3) in 32 bits: 10 + 15 numbers in, 6 out."""
    found = costs.matmul("batch", 2, 3, 5, batch=8)
    assert (found.flops, found.bytes) == (8 * 2 * 30, 8 * 31 * 4)
    assert costs.matmul("wide", 2, 3, 5, "bfloat16", 8, result_bytes=4).bytes == 8 * (25 * 2 + 6 * 4)


def test_gradient_descent_reads_weights_and_gradients_and_writes_weights():
    gpu = GPU(0, POCKET, Mailboxes().of(0))
    weights = [np.ones(1000, np.float32)]
    SGD(gpu, weights, 0.5).step(weights, [np.full(1000, 2, np.float32)])
    assert set(weights[0]) == {0}
    (step,) = [event for event in map(Event._make, gpu.events) if event.kind == COMPUTE]
    assert step.end - step.start == pytest.approx(POCKET.seconds(Operation("by hand", bytes=3 * 4 * 1000)))


@pytest.mark.parametrize("far", [70.0, -70.0, 1000.0, -1000.0])
def test_a_softmax_of_scores_far_from_0_is_that_of_scores_near_it(far):
    """exp(1000) is too large for 64 bits, and exp(-1000) is 0 there."""
    near = np.array([[[[[0.0, 1.0, 2.0]]]]])
    expected = np.exp(near) / np.exp(near).sum()
    probabilities, logsum = softmax_with_logsum(near + far)
    np.testing.assert_allclose(probabilities, expected, rtol=1e-9)
    np.testing.assert_allclose(logsum, np.log(np.exp(near).sum()) + far, rtol=1e-12)
    with np.errstate(over="raise"):
        assert np.isfinite(softmax_with_logsum(np.array([[[[[0.0, far]]]]]))[0]).all()
