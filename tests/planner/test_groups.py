"""Claims about where a group's ranks are, against its ranks put on nodes and leaves one by one."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu import CLASSROOM, Link, si
from ndparallel.hardware.accelerator import find_hardware
from ndparallel.planner.describe import assumed_links, assumed_nodes, tensor_parallel_across
from ndparallel.planner.groups import GroupLinks, Groups
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.models.presets import find_model
from ndparallel.planner.prediction import predict
from ndparallel.planner.software import find_stack
from tests.support.accelerators import accelerator

H100 = accelerator("h100")
powers = st.integers(0, 5).map(lambda power: 2**power)


def fabric(node, leaf):
    return replace(H100, gpus_per_node=node, gpus_per_leaf=leaf, leaf_share=0.5)


@given(ranks=powers, stride=powers, node=powers, nodes_per_leaf=powers)
def test_a_group_lies_on_nodes_and_leaves_where_its_ranks_do(ranks, stride, node, nodes_per_leaf):
    hardware = fabric(node, node * nodes_per_leaf)
    places = [rank * stride for rank in range(ranks)]
    nodes = [place // node for place in places]
    links = GroupLinks(ranks, stride, hardware)
    assert (links.nodes, links.per_node) == (len({*nodes}), nodes.count(0))
    leaves = {place // (node * nodes_per_leaf) for place in places}
    port = hardware.across.bandwidth_bytes_per_second
    assert links.spread_bandwidth == port * (0.5 if len(leaves) > 1 else 1)
    hops = [hardware.across if a != b else hardware.inside for a, b in zip(nodes, nodes[1:])]
    assert links.ring_latency_seconds == pytest.approx(sum(hop.latency_seconds for hop in hops))


@given(ranks=st.integers(1, 40), stride=powers, node=powers)
def test_a_group_that_cannot_fill_its_nodes_has_as_many_ranks_in_one_as_in_another(ranks, stride, node):
    """A ring leaves a node by the ports of its ranks there: those of the fewest bound it."""
    links = GroupLinks(ranks, stride, fabric(node, node))
    assert links.nodes == len({rank * stride // max(node, stride) for rank in range(ranks)})
    assert links.per_node == min(len(part) for part in np.array_split(range(ranks), links.nodes))
    ports = links.per_node * links.across_bandwidth
    assert links.bandwidth == (
        min(links.inside_bandwidth, ports) if links.nodes > 1 else links.inside_bandwidth
    )


@given(ranks=powers, stride=powers, node=powers, nodes_per_leaf=powers)
def test_flows_of_all_rings_that_leave_a_leaf_share_its_uplinks(ranks, stride, node, nodes_per_leaf):
    """Groups are placed one by one; a ring leaves a node over the ports of all its ranks there."""
    hardware = fabric(node, leaf := node * nodes_per_leaf)
    links, world, leaving = GroupLinks(ranks, stride, hardware), max(ranks * stride, leaf), 0
    for first in (first for first in range(world) if first // stride % ranks == 0):
        places = [first + rank * stride for rank in range(ranks)]
        for place, after in zip(places, places[1:] + places[:1]):
            if place // leaf == 0 != after // leaf:
                leaving += sum(other // node == place // node for other in places)
    share = min(1.0, leaf * hardware.leaf_share / leaving) if leaving else 1.0
    assert links.across_bandwidth == pytest.approx(share * hardware.across.bandwidth_bytes_per_second)


def test_a_ring_of_many_nodes_in_a_leaf_has_whole_ports_and_stages_a_third_of_a_leaf_the_share_of_three():
    """Pods of 3,072 GPUs that leave a seventh of the network: of each pod's GPUs a third are in a stage whose
    next one is in another pod."""
    pods = replace(H100, gpus_per_leaf=3072, leaf_share=0.143)
    job = TrainingJob(find_model("llama-3-405b"), pods, find_stack("megatron-core"), 8192, 2048)
    groups, port = Groups(Plan(tp=8, pp=16, dp=128), job), H100.across.bandwidth_bytes_per_second
    assert groups.dp.across_bandwidth == port
    assert groups.pp.hop_bandwidth == pytest.approx(3 * 0.143 * port)
    alltoall = replace(groups.dp, ranks=512)
    assert alltoall.spread_bandwidth == pytest.approx(0.143 * port)


@given(ranks=powers, stride=powers, node=powers)
def test_an_all_to_all_takes_as_long_as_its_busier_port_and_uses_the_other_one_for_less(ranks, stride, node):
    """A byte goes to each of the others: to those in the node by one port, to the rest by the other."""
    links = GroupLinks(ranks, stride, fabric(node, 10**6))
    mates = sum(rank * stride < node for rank in range(1, ranks))
    inside = mates / links.inside_bandwidth
    across = (ranks - 1 - mates) / links.spread_bandwidth
    seconds = max(inside, across) or 1.0
    assert links.all_to_all_use == pytest.approx((inside / seconds, across / seconds))


@pytest.mark.parametrize(("pp", "share"), [(2, 1), (4, 1), (5, 0.5), (8, 0.5)])
def test_a_pipelines_ends_pay_for_uplinks_where_they_are_in_different_leaves(pp, share):
    """Stages of a node, leaves of four nodes."""
    job = TrainingJob(find_model("llama-3-8b"), fabric(8, 32), find_stack("megatron-core"), 4096, 64)
    ends = Groups(Plan(tp=8, pp=pp), job).ends
    assert (ends.nodes, ends.across_bandwidth) == (2, share * H100.across.bandwidth_bytes_per_second)


def test_hardware_that_says_nothing_of_leaves_has_none():
    port = CLASSROOM.across.bandwidth_bytes_per_second
    assert GroupLinks(64, 8, CLASSROOM).across_bandwidth == port


@pytest.mark.parametrize(
    ("hardware", "gpus", "degrees", "said"),
    [
        ("gb200", 1152, {"ep": 64}, "EP in groups of 64 GPUs is priced inside a node: of its 72 GPUs 64"),
        ("gb200", 128, {"tp": 16, "cp": 2}, "TP in groups of 16 GPUs, CP in groups of 32 GPUs and DP in"),
        ("h100", 48, {"pp": 8}, "DP in groups of 6 GPUs is priced inside a node: of its 8 GPUs 6"),
        ("h100", 48, {"tp": 12}, "TP in parts of 6 GPUs is priced inside a node: of its 8 GPUs 6"),
        ("h100", 48, {"tp": 6}, "TP in groups of 6 GPUs is priced inside a node: of its 8 GPUs 6"),
        ("gb200", 128, {"tp": 8}, "DP in parts of 64 GPUs is priced inside a node: of its 72 GPUs 64"),
        ("h100", 64, {"tp": 8}, ""),
        ("gb200", 72, {"ep": 8}, ""),
    ],
)
def test_groups_that_do_not_fill_a_node_are_said_to_leave_the_rest_of_it_idle(hardware, gpus, degrees, said):
    model = find_model("deepseek-v3" if "ep" in degrees else "gpt3-175b")
    plan = Plan(dp=gpus // degrees.get("tp", 1) // degrees.get("pp", 1), **degrees)
    job = TrainingJob(model, accelerator(hardware), find_stack("megatron-core"), 2048, gpus)
    told = assumed_nodes(predict(job, plan))
    assert len(told) == bool(said) and all(line.startswith(said) for line in told)


@pytest.mark.parametrize(("tp", "node", "software", "said"), [
    (8, 8, "megatron-core", ""),
    (8, 4, "megatron-core", "by 4 ports of 45.0 GB/s, together 180 GB/s, where links inside have 360 GB/s"),
    (8, 4, "deepspeed-2021", "by one port of 45.0 GB/s, where links inside have 360 GB/s."),
    (12, 8, "megatron-core", "by 6 ports of 45.0 GB/s, together 270 GB/s, where"),
    (32, 8, "megatron-core", "by 8 ports of 45.0 GB/s, together 360 GB/s, where"),
])  # fmt: skip
def test_a_tp_group_on_several_nodes_is_told_with_its_links_and_what_it_waits(tp, node, software, said):
    hardware = replace(H100, gpus_per_node=node)
    job = TrainingJob(find_model("gpt3-175b"), hardware, find_stack(software), 2048, 8)
    told = tensor_parallel_across(found := predict(job, Plan(tp=tp)))
    assert len(told) == bool(said) and all(said in line for line in told)
    for line in told:
        waits = found.step.breakdown["tp"]
        assert line.startswith(f"TP{tp} lies on {-(-tp // node)} nodes of {node} GPUs: its messages")
        assert f"It waits {si(waits, 's')} for them, {waits / found.seconds:.1%} of the step" in line


@pytest.mark.parametrize(("gpus", "inside", "said"), [(1, 20, 0), (2, 20, 1), (2, 25, 0), (2, 30, 0)])
def test_links_are_said_to_be_assumed_where_a_host_has_slower_ones_than_the_network(gpus, inside, said):
    """Of more GPUs than one, on a network of 25 GB/s."""
    card = find_hardware("rtx-4090")
    machine = replace(card, inside=Link(1e-6, inside * 1e9), across=Link(1e-6, 25e9))
    job = TrainingJob(find_model("gpt2"), machine, find_stack("torchtitan"), 1024, 8)
    words = assumed_links(job, gpus)
    assert len(words) == said
    assert all(
        "to reach 20.0 GB/s over PCIe" in one and "and 25.0 GB/s to another host" in one for one in words
    )
