"""Context parallelism as Transformer Engine runs it: keys and values go round, one fused kernel a block."""

from dataclasses import replace

import pytest

from gpu import Link
from ndparallel.hardware.accelerator import find_hardware
from ndparallel.planner.error_bar import error_bar, traits
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.layers.collective_time import START_SECONDS
from ndparallel.planner.layers.layer import LayerLists
from ndparallel.planner.layers.pricing import Pricing
from ndparallel.planner.models.presets import preset
from ndparallel.planner.software import find_stack
from tests.support.accelerators import accelerator

H100, LLAMA, TOKENS = find_hardware("h100"), preset("llama-3-8b"), 8192
QUERIES = LLAMA.heads * LLAMA.head_dim  # elements of a token
KEYS_AND_VALUES = 2 * LLAMA.kv_heads * LLAMA.head_dim


def passes(cp, stack="megatron-core", recompute="none"):
    """A dense layer's passes."""
    job = TrainingJob(LLAMA, H100, find_stack(stack), TOKENS, 8)
    return LayerLists(LLAMA, Plan(cp=cp).share(job), job.stack).unit("dense", recompute)


def named(items, name):
    return next(item for item in items if item.name == name)


@pytest.mark.parametrize("stack", ["megatron-core", "torchtitan"])
@pytest.mark.parametrize("cp", [2, 8])
def test_a_ring_launches_a_kernel_for_each_block_as_fast_as_it_is_on_so_short_a_sequence(stack, cp):
    for whole, ring in zip(passes(1, stack), passes(cp, stack)):
        if not [item for item in whole if item.name == "attention"]:
            continue
        whole, ring = named(whole, "attention"), named(ring, "attention")
        assert (ring.shape[1], ring.kernels) == (TOKENS / cp, cp * whole.kernels)
        assert ring.flops == pytest.approx(whole.flops / cp)
        assert H100.rate(ring) == H100.rate(whole._replace(shape=(1, TOKENS / cp, LLAMA.head_dim)))
        assert H100.rate(ring) < H100.rate(whole)


@pytest.mark.parametrize("cp", [2, 3, 8])
def test_what_a_ring_merges_is_what_its_loops_read_and_write_on_the_last_rank(cp):
    """The loops over blocks in AttnFuncWithCPAndKVP2P.forward and .backward, array by array: how many numbers
    of a token, in 16 bits, each kernel moves."""
    forward, _, backward, _ = passes(cp)
    half = KEYS_AND_VALUES / 2  # keys, or values
    sums = LLAMA.heads * 2  # the softmax's, in float32
    kernels: list[float] = [2 * KEYS_AND_VALUES]  # torch.cat((k, v))
    for block in range(cp):
        kernels += [3 * sums if block else 2 * sums]  # ..._softmax_lse_correction, torch.clone
        kernels += [2 * sums + (3 if block else 2) * QUERIES]  # ..._out_correction, ..._out_correction_init
    merged = named(forward, "merge blocks")
    assert (merged.kernels, merged.bytes) == (len(kernels), sum(kernels) * 2 * TOKENS / cp)

    kernels = [2 * KEYS_AND_VALUES]  # p2p_comm_buffers[0][0].copy_(kv)
    for block in range(cp):
        kernels += [3 * QUERIES if block else 2 * QUERIES]  # dq.add_, dq.copy_
        of_all = 1 if block == cp - 1 else 0.5  # dk[0].add_(dk_), and dk.add_(dk_) of the rank's own
        kernels += [(3 if block else 2) * of_all * half] * 2
    merged = named(backward, "merge blocks")
    assert (merged.kernels, merged.bytes) == (len(kernels), sum(kernels) * 2 * TOKENS / cp)


def test_without_a_ring_nothing_is_merged():
    assert "merge blocks" not in {item.name for items in passes(1) for item in items}


def on_links(bandwidth, cp):
    """A ring's prices on links of so many GB/s, where compute is no slower beside it."""
    inside = Link(H100.inside.latency_seconds, bandwidth * 1e9)
    hardware = replace(accelerator("h100"), inside=inside, slowdown=0.0)
    return Pricing(TrainingJob(LLAMA, hardware, find_stack("megatron-core"), TOKENS, 8), Plan(cp=cp))


def waits(hops, kernel):
    """What kernels wait for in AttnFuncWithCPAndKVP2P.backward's loop: a block's kernel and its hop begin
    together, and both end before the next."""
    now = 0.0
    for hop in hops:
        now = max(now + kernel, now + hop)
    return now - len(hops) * kernel


@pytest.mark.parametrize("cp", [2, 3, 8])
@pytest.mark.parametrize("bandwidth", [3, 12, 25, 50, 450])
def test_a_ring_costs_what_its_loops_over_blocks_wait_for(cp, bandwidth):
    pricing = on_links(bandwidth, cp)
    forward, _, backward, _ = pricing.listed("dense")
    hop = pricing.seconds_alone(named(forward, "cp ring")) / (cp - 1)
    kernel = pricing.seconds(named(forward, "attention")) / cp
    exposed = waits([hop] * (cp - 1) + [0.0], kernel)
    assert pricing.exposed(named(forward, "cp ring")) == pytest.approx(exposed)

    names = ("cp ring ends", "cp ring")
    end, both = (
        pricing.seconds_alone(named(backward, name)) / max(1, n) for name, n in zip(names, (2, cp - 2))
    )
    kernel = pricing.seconds(named(backward, "attention")) / cp
    exposed = waits([end, *[both] * (cp - 2), end], kernel)
    assert sum(pricing.exposed(named(backward, name)) for name in names) == pytest.approx(exposed)


@pytest.mark.parametrize("cp", [2, 4])
def test_a_ring_whose_kernels_are_longer_than_its_hops_exposes_nothing(cp):
    pricing = on_links(450, cp)
    rings = [item for items in pricing.listed("dense") for item in items if item.name.startswith("cp ring")]
    assert len(rings) == 3 and all(pricing.seconds_alone(ring) > 0 for ring in rings if cp > 2)
    assert [pricing.exposed(ring) for ring in rings] == [0.0] * 3


@pytest.mark.parametrize("cp", [2, 3, 8])
def test_backward_keys_and_values_and_their_gradients_make_as_many_hops_as_an_all_gather_of_each(cp):
    forward, _, backward, _ = passes(cp)
    sent = sum(item.bytes for item in backward if item.name.startswith("cp ring"))
    assert sent == pytest.approx(2 * named(forward, "cp ring").bytes)


@pytest.mark.parametrize("stack", ["megatron-core", "torchtitan"])
@pytest.mark.parametrize(("tp", "cp"), [(1, 16), (2, 8), (8, 2)])
def test_a_hop_to_another_node_goes_over_the_port_of_its_gpu_alone_however_many_ranks_the_node_has(
    stack, tp, cp
):
    """NCCL takes a GPU's own port for a message (ncclTopoGetNetDev in nccl/src/graph/search.cc, no graph)."""
    pricing = Pricing(TrainingJob(LLAMA, H100, find_stack(stack), TOKENS, 8), Plan(tp=tp, cp=cp))
    rings = [item for items in pricing.listed("dense") for item in items if getattr(item, "hops", 0)]
    assert len(rings) == {"megatron-core": 3 - (cp == 2), "torchtitan": 1}[stack]
    for ring in rings:
        hop = START_SECONDS + H100.across.latency_seconds
        on_the_wire = ring.bytes / H100.across.bandwidth_bytes_per_second
        assert pricing.seconds_alone(ring) == pytest.approx(ring.hops * hop + on_the_wire)


@pytest.mark.parametrize(
    ("dtype", "key_bytes", "gradients"),
    [
        ("bf16", 2, False),
        ("fp8", 1, True),
        ("fp8-current", 1, True),
        ("mxfp8", 2, True),
        ("fp8-block", 2, False),
    ],
)
def test_keys_and_values_of_fp8_attention_go_round_as_they_were_cast_but_for_mxfp8(
    dtype, key_bytes, gradients
):
    """AttnFuncWithCPAndKVP2P: q, k, v of FP8DS and FP8CS are torch.uint8, those of MXFP8 and F16 are not; in
    fp8 the gradients of all blocks, uint8, are one all_to_all_single behind cp - 1 hops. Float8BlockScaling
    asserts that there is no fp8_dpa."""
    stack = replace(find_stack("megatron-core"), fp8_attention=True)
    job, cp = TrainingJob(LLAMA, H100, stack, TOKENS, 8, dtype=dtype), 4
    forward, _, backward, _ = LayerLists(LLAMA, Plan(cp=cp).share(job), stack).unit("dense", "none")
    block = TOKENS / cp * KEYS_AND_VALUES
    ring = named(forward, "cp ring")
    assert (ring.hops, ring.bytes) == (cp - 1, (cp - 1) * block * key_bytes)
    if gradients:
        assert named(backward, "cp ring") == ring._replace(beside=named(backward, "attention"))
        last = named(backward, "cp gradients")
        assert (last.collective, last.bytes, last.share) == ("all_to_all", cp * block, 1 / cp)
    else:
        assert named(backward, "cp ring ends").bytes == 2 * block * 2
    gathers = replace(stack, context_parallel="all-gather")
    _, _, backward, _ = LayerLists(LLAMA, Plan(cp=cp).share(job), gathers).unit("dense", "none")
    assert named(backward, "cp gather").bytes == cp * block * key_bytes
    assert named(backward, "cp scatter").bytes == cp * block * 2


def test_attention_that_is_recomputed_goes_round_the_ring_again():
    again = [item.name for item in passes(4, recompute="selective").recompute]
    assert again == ["cp ring", "attention", "merge blocks"]


@pytest.mark.parametrize(("cp", "wider"), [(2, 1.0), (8, 1.1)])
def test_a_ring_of_more_ranks_than_any_measured_one_has_a_wider_bar(cp, wider):
    job, plan = TrainingJob(LLAMA, H100, find_stack("nemo"), TOKENS, 128), Plan(cp=cp, dp=32 // cp, zero=1)
    alone = error_bar(job, replace(plan, cp=1, dp=32)).fraction
    assert error_bar(job, plan).fraction == pytest.approx(wider * alone)
    assert f"context parallelism over {'4 to 15' if cp == 8 else '1 to 3'} ranks" in traits(job, plan)
