"""Collectives of tensor parallelism beside their products, as the loops that run them wait."""

from dataclasses import replace

import pytest

from gpu import Link
from ndparallel.hardware.accelerator import find_hardware
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.layers.operations import CollectiveOp
from ndparallel.planner.layers.pricing import Pricing
from ndparallel.planner.models.presets import preset
from ndparallel.planner.software import find_stack
from tests.support.accelerators import accelerator

H100, LLAMA = find_hardware("h100"), preset("llama-3-70b")
SPEEDS = [1, 10, 50, 450]  # GB/s


def pricing(stack, tp, bandwidth, sequence_parallel=True):
    """Prices on links of so many GB/s, where compute is no slower beside a collective."""
    hardware = replace(
        accelerator("h100"), inside=Link(H100.inside.latency_seconds, bandwidth * 1e9), slowdown=0.0
    )
    job = TrainingJob(LLAMA, hardware, stack, 8192, 8)
    return Pricing(job, Plan(tp=tp, sequence_parallel=sequence_parallel))


def hidden(items, collective):
    found = [item for item in items if isinstance(item, CollectiveOp) and item.collective == collective]
    return [item for item in found if item.beside]


def ring_gather(tp, product, message):
    """split_overlap_ag: the product of the rows that are there beside the message that brings the next."""
    come = done = 0.0
    for step in range(tp):
        done = max(done, come) + product / tp
        come += message if step < tp - 1 else 0.0
    return max(done, come) - product


def ring_scatter(tp, product, message):
    """_pipelined_produce_and_all2all: what others own is multiplied first, and sent beside the next."""
    made = sent = 0.0
    for step in range(tp):
        made += product / tp
        sent = max(sent, made) + message if step < tp - 1 else sent
    return max(made, sent) - product


def pipelined_scatter(parts, product, whole):
    """CommOverlapBase::split_overlap_rs: each part is summed behind its product."""
    made = sent = 0.0
    for _ in range(parts):
        made += product / parts
        sent = max(sent, made) + whole / parts
    return max(made, sent) - product


@pytest.mark.parametrize("name", ["nemo", "torch"])
@pytest.mark.parametrize("tp", [2, 8])
@pytest.mark.parametrize("bandwidth", SPEEDS)
def test_a_gather_exposes_what_the_products_of_rows_that_came_before_leave_of_it(name, tp, bandwidth):
    stack = find_stack("nemo")
    if name == "torch":
        stack = replace(find_stack("torchtitan-compiled"), tp_overlap="products")
    prices = pricing(stack, tp, bandwidth)
    gathers = hidden(prices.listed("dense").forward, "all_gather")
    assert len(gathers) == 2
    for gather in gathers:
        message = prices.seconds_alone(gather) / (tp - 1)
        expected = ring_gather(tp, prices.seconds(gather.beside), message)
        assert prices.exposed(gather) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("tp", [2, 8])
@pytest.mark.parametrize("bandwidth", SPEEDS)
def test_transformer_engine_sums_four_parts_of_a_product_and_exposes_the_last(tp, bandwidth):
    prices = pricing(find_stack("nemo"), tp, bandwidth)
    sums = hidden(prices.listed("dense").forward, "reduce_scatter")
    assert len(sums) == 2
    for one in sums:
        whole, product = prices.seconds_alone(one), prices.seconds(one.beside)
        assert prices.exposed(one) == pytest.approx(pipelined_scatter(4, product, whole))
        assert prices.exposed(one) >= whole / 4


@pytest.mark.parametrize("tp", [2, 8])
@pytest.mark.parametrize("bandwidth", SPEEDS)
def test_pytorch_sends_a_products_parts_beside_the_next_and_adds_them_up_at_the_end(tp, bandwidth):
    prices = pricing(replace(find_stack("torchtitan-compiled"), tp_overlap="products"), tp, bandwidth)
    items = prices.listed("dense").forward
    sums = hidden(items, "reduce_scatter")
    assert len(sums) == 2
    for one in sums:
        message = prices.seconds_alone(one) / (tp - 1)
        expected = ring_scatter(tp, prices.seconds(one.beside), message)
        assert prices.exposed(one) == pytest.approx(expected, abs=1e-12)
    size = 8192 * LLAMA.hidden * 2
    adds = [item.bytes for item in items if item.name == "add parts"]
    copies = [item.bytes for item in items if item.name == "copy shard"]
    assert (adds, copies) == ([(1 + 1 / tp) * size] * 2, [2 * size / tp] * 2)


@pytest.mark.parametrize(
    ("name", "overlap", "backward"), [("nemo", "all", 2), ("torchtitan-compiled", "products", 0)]
)
def test_without_sequence_parallelism_no_sum_is_cut_and_only_megatrons_hide_beside_weights_gradients(
    name, overlap, backward
):
    """An all_reduce has no chunks: ub_overlap_rs_fprop asks for sequence_parallel, micro_pipeline_tp for a
    reduce_scatter."""
    prices = pricing(replace(find_stack(name), tp_overlap=overlap), 8, 450, sequence_parallel=False)
    forward, _, back, _ = prices.listed("dense")
    sums = [item for item in forward if isinstance(item, CollectiveOp)]
    assert [prices.exposed(one) for one in sums] == [prices.seconds_alone(one) for one in sums] != []
    assert len(hidden(back, "all_reduce")) == backward
    assert not [item for item in [*forward, *back] if item.name in ("add parts", "copy shard")]
