"""Claims about the list of a layer's operations, the collectives' closed forms, and the seconds of a
layer."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu import Link, Operation
from ndparallel.base.errors import UserError
from ndparallel.hardware.accelerator import find_hardware
from ndparallel.hardware.collective_links import SLOWDOWN, LinkShares
from ndparallel.parallel.mesh import Mesh
from ndparallel.planner.groups import GroupLinks, Groups
from ndparallel.planner.job import Plan, Share, TrainingJob
from ndparallel.planner.layers.collective_time import START_SECONDS, collective_seconds
from ndparallel.planner.layers.flops import model_flops
from ndparallel.planner.layers.layer import LayerLists
from ndparallel.planner.layers.operations import CollectiveOp
from ndparallel.planner.layers.pricing import Pricing
from ndparallel.planner.models.experts import Experts
from ndparallel.planner.models.presets import find_model
from ndparallel.planner.models.shape import ModelShape
from ndparallel.planner.number_types import NUMBER_TYPES
from ndparallel.planner.options import plan_for
from ndparallel.planner.software import STACKS, find_stack
from ndparallel.planner.stages import kinds_by_stage
from ndparallel.planner.step.framework import framework_workload
from ndparallel.validation.cases import read_cases
from tests.support.accelerators import accelerator

FRAMEWORKS = [name for name, stack in STACKS.items() if not stack.executed]
GPT = ModelShape(
    "gpt",
    24,
    2048,
    16,
    16,
    128,
    8192,
    51200,
    activation="gelu",
    norm="layernorm",
    position="learned",
    positions=1024,
)
LLAMA = ModelShape("llama", 32, 4096, 32, 8, 128, 14336, 128256)
MIXTURE = ModelShape("mixture", 8, 1024, 8, 8, 128, 4096, 32000, experts=Experts(16, 4, 512))


def lists(shape, stack, **share):
    return LayerLists(shape, Share(**({"micro_batch": 2, "sequence": 1024} | share)), find_stack(stack))


def flops(items):
    return sum(item.flops for item in items if not isinstance(item, CollectiveOp))


def exchanges(items, name):
    return [item for item in items if isinstance(item, CollectiveOp) and item.name == name]


# ------------------------------------------------------------------------------------------------- operations


@pytest.mark.parametrize("tp", [1, 2, 8])
def test_an_unfused_layer_multiplies_24bsh2_plus_4bs2h(tp):
    b, s, h = 2, 1024, GPT.hidden
    layer = lists(GPT, "megatron-2021", tp=tp).layer("dense", "none")
    # 2104.04473, appendix
    assert flops(layer.forward) * tp == pytest.approx(24 * b * s * h**2 + 4 * b * s**2 * h)
    assert flops(layer.backward_input) + flops(layer.backward_weight) == pytest.approx(
        2 * flops(layer.forward)
    )


def test_flash_attention_skips_the_masked_half_and_multiplies_five_times_backward():
    kernels = lists(LLAMA, "megatron-core").attention.core
    core, back = kernels.forward(), kernels.backward()
    pairs = 2 * 32 * 1024 * 1025 / 2
    assert flops(core) == 4 * pairs * 128
    assert flops(back) == 10 * pairs * 128


@pytest.mark.parametrize("model", ["llama-3-8b", "deepseek-v3"])
def test_flash_attention_reads_queries_keys_and_values_writes_what_it_gives_and_keeps_no_scores(model):
    shape = find_model(model)
    core = lists(shape, "megatron-core", tp=4).attention.core
    query, key, value, given = (
        heads * size for size in (shape.head_dim, shape.value_dim) for heads in (shape.heads, shape.kv_heads)
    )
    numbers = 2 * 1024 * (query + key + value + given) / 4
    assert [one.bytes for one in core.forward()] == [2 * numbers]
    assert [one.bytes for one in core.backward()] == [2 * 2 * numbers], "and as many gradients"
    assert core.kernels.kept(False) == 0


@pytest.mark.parametrize("fp8_head", [False, True])
def test_the_head_multiplies_in_8_bits_where_the_stack_does_and_the_router_never(fp8_head):
    stack = replace(find_stack("megatron-core"), fp8_head=fp8_head)
    some = LayerLists(MIXTURE, Share(2, 1024, number_type=NUMBER_TYPES["fp8"]), stack)
    items = [*some.unit("head", "none").forward, *some.layer("experts", "none").forward]
    types = {one.name: one.dtype for one in items if isinstance(one, Operation) and one.shape[1:]}
    assert types["logits forward"] == ("float8" if fp8_head else "bfloat16")
    assert types["router forward"] == "bfloat16"


def test_a_dispatcher_that_gathers_brings_the_rows_of_all_ep_ranks_to_each():
    gathers = replace(find_stack("megatron-core"), dispatcher="allgather")
    layer = LayerLists(MIXTURE, Share(2, 1024, ep=4), gathers).layer("experts", "none")
    assert [one.bytes for one in exchanges(layer.forward, "ep dispatch")] == [4 * 2 * 1024 * 1024 * 2]


def test_context_parallel_ranks_share_rows_and_pairs_evenly():
    whole, half = (
        lists(LLAMA, "nemo").layer("dense", "none"),
        lists(LLAMA, "nemo", cp=2).layer("dense", "none"),
    )
    assert flops(half.forward) == pytest.approx(flops(whole.forward) / 2)
    (ring,) = exchanges(half.forward, "cp ring")
    # one hop: microbatch, half of the sequence, keys and values of 8 heads, 2 bytes each
    assert (ring.hops, ring.bytes) == (1, 2 * 512 * 2 * 8 * 128 * 2)


def test_full_recomputation_runs_the_forward_pass_again_and_torch_stops_before_the_last_matrix():
    again = lists(LLAMA, "megatron-core").layer("dense", "full")
    early = lists(LLAMA, "torchtitan").layer("dense", "full")
    down = 2 * 2048 * 14336 * 4096
    assert flops(again.recompute) == flops(again.forward)
    assert flops(early.recompute) == flops(early.forward) - down


def test_two_all_reduces_a_pass_become_two_gathers_and_two_scatters_of_the_same_array():
    plain = lists(GPT, "megatron-2021", tp=4).layer("dense", "none")
    sharded = lists(GPT, "megatron-2022", tp=4, sequence_parallel=True).layer("dense", "none")
    size = 2 * 1024 * 2048 * 2
    assert [item.bytes for item in exchanges(plain.forward, "tp all_reduce")] == [size, size]
    assert len(exchanges(plain.backward_input, "tp all_reduce")) == 2
    assert [item.bytes for item in exchanges(sharded.forward, "tp all_gather")] == [size, size]
    assert len(exchanges(sharded.forward, "tp reduce_scatter")) == 2
    # the two of the pass, and two inputs for their wgrads
    assert len(exchanges(sharded.backward_input, "tp all_gather")) == 4


@pytest.mark.parametrize(("shape", "columns"), [(LLAMA, 5), (GPT, 4)])
def test_plain_pytorch_gathers_for_each_column_matrix_and_sums_for_each(shape, columns):
    """q, k and v, gate and up: five; an MLP without a gate has one less. A compiler joins gathers alone."""
    for stack, gathers in (("pytorch", columns), ("pytorch-compiled", 2)):
        layer = lists(shape, stack, tp=4, sequence_parallel=True).layer("dense", "none")
        assert len(exchanges(layer.forward, "tp all_gather")) == gathers
        assert len(exchanges(layer.forward, "tp reduce_scatter")) == 2
        assert len(exchanges(layer.backward_input, "tp reduce_scatter")) == columns


@pytest.mark.parametrize("ep", [1, 4, 16])
def test_in_balance_every_rank_multiplies_as_many_routed_rows_whatever_ep(ep):
    matrices = lists(MIXTURE, "megatron-core", ep=ep).experts.matrices
    grouped = matrices.grouped("forward")[0]
    # rows, top_k, hidden, gate and up of 512
    assert grouped.flops == pytest.approx(2 * 2048 * 4 * 1024 * 2 * 512)
    assert grouped.kernels == 16 / ep


@pytest.mark.parametrize("name", ["gpt2", "llama-3-8b", "mixtral-8x7b", "qwen2-57b-a14b", "deepseek-v3"])
def test_model_flops_are_three_times_what_the_lists_of_a_forward_pass_multiply(name):
    """But for norms and biases, whose parameters count as if they multiplied: less than a thousandth."""
    shape, batch = find_model(name), 4
    one = TrainingJob(shape, find_hardware("h100"), find_stack("megatron-core"), 1024, batch)
    (kinds,) = kinds_by_stage(shape, 1)
    multiplied = sum(kinds.count(kind) * flops(multiplying(one, kind)) for kind in {*kinds})
    assert 3 * batch * multiplied == pytest.approx(model_flops(one), rel=1e-3)


@pytest.mark.parametrize("name", ["llama-3-8b", "qwen2-57b-a14b", "deepseek-v3"])
@pytest.mark.parametrize("software", ["megatron-core", "torchtitan", "deepspeed"])
def test_each_matrix_multiplies_as_often_for_inputs_and_for_weights_as_in_the_forward_pass(name, software):
    """Routers too (RouterGatingLinearFunction.backward, megatron/core/transformer/moe/moe_utils.py)."""
    shape = find_model(name)
    for kind in {*kinds_by_stage(shape, 1)[0]} - {"embedding"}:
        passes = LayerLists(shape, Share(1, 1024), find_stack(software)).unit(kind, "none")
        once, _, inputs, weights = (sum(item.flops for item in each if is_product(item)) for each in passes)
        assert inputs == pytest.approx(once) and weights == pytest.approx(once)


def is_product(item) -> bool:
    return isinstance(item, Operation) and item.kind == "matmul"


def multiplying(one: TrainingJob, kind: str) -> list[Operation]:
    """The products of a unit's forward pass, attention's among them."""
    forward = LayerLists(one.shape, Share(1, one.sequence), one.stack).unit(kind, "none").forward
    operations = [item for item in forward if isinstance(item, Operation)]
    return [item for item in operations if item.kind == "matmul" or item.kind.startswith("cudnn")]


# ------------------------------------------------------------------------------------------------ collectives


def group(ranks, stride=1, rails=1.0):
    return GroupLinks(
        ranks,
        stride,
        replace(find_hardware("h100"), inside=Link(2e-6, 400e9), across=Link(10e-6, 40e9)),
        rails,
    )


def test_a_ring_over_nodes_has_as_many_rails_as_members_in_each_and_one_member_has_one():
    assert [group(ranks, stride).bandwidth for ranks, stride in ((4, 8), (4, 4), (32, 1))] == [
        40e9,
        80e9,
        320e9,
    ]


def test_an_all_to_all_inside_a_node_sends_all_but_ones_own_part():
    sent = 3 / 4 * 8e9 / 400e9
    assert collective_seconds("all_to_all", 8e9, group(4)) == pytest.approx(START_SECONDS + sent + 2e-6)


def test_a_ring_inside_a_node_takes_2p_minus_2_hops_and_pieces():
    assert collective_seconds("all_reduce", 8e9, group(8)) == pytest.approx(
        START_SECONDS + 14 * (2e-6 + 1e9 / 400e9)
    )
    assert collective_seconds("all_gather", 8e9, group(8)) == pytest.approx(
        START_SECONDS + 7 * (2e-6 + 1e9 / 400e9)
    )


def test_a_ring_over_nodes_uses_as_many_rails_as_it_has_members_in_each():
    four_nodes = group(32)
    assert four_nodes.bandwidth == pytest.approx(8 * 40e9)
    assert group(4, stride=8).bandwidth == pytest.approx(40e9)
    assert group(32, rails=1 / 8).bandwidth == pytest.approx(40e9)
    assert collective_seconds("all_gather", 32e9, four_nodes) == pytest.approx(
        START_SECONDS + 28 * 2e-6 + 3 * 10e-6 + 31e9 / 320e9
    )


def test_deepspeeds_tensor_parallelism_sums_whole_sequences():
    """RowParallel and ColumnParallel in deepspeed/module_inject/layers.py all-reduce."""
    job = TrainingJob(LLAMA, find_hardware("h100"), find_stack("deepspeed"), 2048, 8)
    plan = plan_for(job, 8, tp=8)
    forward = LayerLists(LLAMA, plan.share(job), job.stack).layer("dense", "none").forward
    sums = [item.collective for item in forward if isinstance(item, CollectiveOp)]
    assert not plan.sequence_parallel and sums == ["all_reduce", "all_reduce"]


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter"])
@pytest.mark.parametrize(("ranks", "stride", "hop"), [(512, 1, 4.0e-6), (64, 8, 8.5e-6)])
@pytest.mark.parametrize("size", [1e6, 1e8, 1e9, 1e10, 1e11])
def test_between_nodes_a_gather_takes_the_protocol_that_is_quicker(collective, ranks, stride, hop, size):
    """ncclTopoTuneModel: Simple is a hop of 14 us between nodes, LL128 one of 4, or of 8.5 where a node has
    one rank, with 5.6 us more at the start and 0.92 of the bandwidth."""
    links = GroupLinks(ranks, stride, find_hardware("h100"))
    inside = (ranks - 64) * 8e-6
    wire = (ranks - 1) / ranks * size / links.bandwidth
    simple = inside + 63 * 14e-6 + wire
    ll128 = 5.6e-6 + inside + 63 * hop + wire / 0.92
    taken = collective_seconds(collective, size, links)
    assert taken == pytest.approx(START_SECONDS + min(simple, ll128))
    assert (ll128 < simple) == (size <= (1e9 if stride == 1 else 1e8))


def test_inside_a_node_and_on_links_that_were_measured_no_protocol_is_chosen():
    h100 = accelerator("h100")
    wire = 7 / 8 * 1e6 / h100.inside.bandwidth_bytes_per_second
    inside = collective_seconds("all_gather", 1e6, GroupLinks(8, 1, h100))
    assert inside == pytest.approx(START_SECONDS + 7 * 8e-6 + wire)
    measured = replace(h100, collectives={"all_gather": LinkShares()})
    across = collective_seconds("all_gather", 8e3, GroupLinks(8, 8, measured))
    assert across == pytest.approx(7 * 14e-6 + 7e3 / h100.across.bandwidth_bytes_per_second)


def test_a_small_sum_over_many_nodes_takes_a_tree():
    many = group(1024, stride=8)
    assert collective_seconds("all_reduce", 8, many) == pytest.approx(
        START_SECONDS + 2 * 10 * 10e-6, rel=1e-3
    )
    assert collective_seconds("all_reduce", 8e9, many) < START_SECONDS + 2 * (1023 * 10e-6 + 8e9 / 40e9)


def test_a_group_of_one_costs_nothing():
    assert all(
        collective_seconds(name, 1e9, group(1)) == 0
        for name in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
    )
    assert collective_seconds("all_gather", 1e-9, group(2)) > 0


def test_nothing_to_send_costs_nothing():
    assert collective_seconds("all_gather", 0, group(8)) == 0


def test_across_nodes_an_all_to_all_sends_to_all_but_its_own_nodes_ranks_over_one_rail():
    assert collective_seconds("all_to_all", 32e9, group(32)) == pytest.approx(
        START_SECONDS + 10e-6 + 24e9 / 40e9
    )


def test_a_collective_starts_in_the_23_microseconds_that_were_measured_on_8_b200():
    assert collective_seconds("all_gather", 1e-9, group(8)) == pytest.approx(23e-6 + 7 * 2e-6)
    few = 2 * (7 * 0.6e-6 + 2 * 5e-6)  # down a chain in the node, over two hops to four nodes, and up again
    assert collective_seconds("few bytes", 8, group(32)) == pytest.approx(23e-6 + few)


def test_stages_and_replicas_are_as_far_apart_as_the_ranks_between_them():
    groups = Groups(Plan(tp=2, cp=3, dp=4, pp=2, zero=3, shards=6), job())
    assert (groups.pp.stride, groups.pp.ranks) == (2 * 3 * 4, 2)
    assert (groups.replicas.stride, groups.replicas.ranks) == (2 * 6, 2)
    assert Groups(Plan(tp=2, cp=3, dp=4, ep=2), job()).experts_dp.ranks == 2 * 3 * 4 / 2
    whole = Groups(Plan(tp=2, cp=3, dp=4), job())
    assert (whole.shards.ranks, whole.dp.ranks, whole.replicas.ranks) == (3 * 4, 3 * 4, 1)


@pytest.mark.parametrize(
    ("tp", "cp", "dp", "shards", "ep"), [(1, 1, 16, 8, 4), (2, 2, 8, 4, 8), (1, 1, 8, 4, 4)]
)
def test_replicas_have_all_experts_each_and_share_their_states_inside(tp, cp, dp, shards, ep):
    """The ranks as torchtitan's sparse mesh has them: dp_replicate, efsdp, ep."""
    groups = Groups(Plan(tp=tp, cp=cp, dp=dp, ep=ep, zero=3, shards=shards), job(MIXTURE))
    mesh = np.arange(tp * cp * dp).reshape(-1, tp * shards // ep, ep)
    for group, ranks in (("experts_dp", mesh[0, :, 0]), ("replicas", mesh[:, 0, 0]), ("ep", mesh[0, 0])):
        links = groups.links(group)
        assert [links.stride * place for place in range(int(links.ranks))] == ranks.tolist()


def test_replicas_sum_what_their_shards_have_summed_of_layers_and_of_experts():
    """Over 4 of 16 ranks, and of 8 experts' parts 2 of them."""
    work = framework_workload(job(MIXTURE), Plan(dp=16, ep=2, zero=3, shards=4))
    reduce = {(one.collective, one.group): one.bytes for one in work.bucket("experts").reduce}
    shared, experts = reduce["reduce_scatter", "shards"], reduce["reduce_scatter", "experts_dp"]
    summed = [one.bytes for one in work.bucket("experts").reduce if one.group == "replicas"]
    assert summed == [shared / 4, experts / 2]
    assert experts == 8 * MIXTURE.parameters().expert * 4
    gathered = [one.group for one in work.bucket("experts").gather]
    assert gathered == ["shards", "experts_dp"]


def test_every_group_lies_on_the_nodes_as_the_ranks_of_the_mesh_do():
    for tp, cp, dp, pp in product((1, 2, 8), repeat=4):
        groups = Groups(Plan(tp=tp, cp=cp, dp=dp, pp=pp), job())
        mesh = Mesh(tp=tp, cp=cp, dp=dp, pp=pp)
        rings = {name: mesh.groups(axis)[0] for name, axis in AXES.items()}
        if pp > 1:
            rings["ends"] = rings["pp"][[0, -1]]
        for name, ranks in rings.items():
            _, members = np.unique(ranks // 8, return_counts=True)
            links = groups.links(name)
            assert (links.ranks, links.nodes, links.per_node) == (len(ranks), len(members), members[0])


AXES = {"tp": "tp", "cp": "cp", "dp": "dp_cp", "pp": "pp", "shards": "dp_cp"}  # of the mesh, by group


# ---------------------------------------------------------------------------------------------------- pricing


def job(shape=LLAMA, hardware="h100", stack="megatron-core"):
    return TrainingJob(shape, find_hardware(hardware), find_stack(stack), 4096, 64)


@pytest.mark.parametrize("stack", FRAMEWORKS)
@pytest.mark.parametrize("shape", [LLAMA, MIXTURE])
def test_an_array_of_plans_is_priced_as_one_by_one(stack, shape):
    kind = "experts" if shape is MIXTURE else "dense"
    tp, cp, ep = np.array([1, 2, 4, 8]), np.array([1, 2, 1, 2]), np.array([1, 4, 8, 2])

    def seconds(tp, cp, ep):
        return (
            Pricing(job(shape, stack=stack), Plan(tp=tp, cp=cp, ep=ep, dp=8, sequence_parallel=True))
            .unit(kind)
            .total.total
        )

    alone = [seconds(int(t), int(c), int(e)) for t, c, e in zip(tp, cp, ep)]
    assert seconds(tp, cp, ep) == pytest.approx(alone, rel=1e-12)


def test_a_collective_beside_a_matmul_costs_what_is_left_of_it_and_at_least_a_chunk():
    pricing = Pricing(job(), Plan(tp=8, sequence_parallel=True))
    whole = pricing.seconds_alone(CollectiveOp("x", "all_gather", "tp", 1e9))
    slowed = SLOWDOWN / (1 + SLOWDOWN) * whole
    long = [item for item in pricing.lists.mlp.forward if not isinstance(item, CollectiveOp)][1]
    assert pricing.exposed(CollectiveOp("x", "all_gather", "tp", 1e9)) == whole
    assert pricing.exposed(
        CollectiveOp("x", "all_gather", "tp", 1e9, long._replace(flops=1e18), 4)
    ) == pytest.approx(whole / 4)
    assert pricing.exposed(
        CollectiveOp("x", "all_gather", "tp", 1e9, long._replace(flops=1e18), 8)
    ) == pytest.approx(slowed)
    assert pricing.exposed(CollectiveOp("x", "all_gather", "tp", 1e9, long)) == pytest.approx(
        whole - float(pricing.job.hardware.seconds(long))
    )


@given(st.sampled_from(FRAMEWORKS), st.sampled_from([1, 2, 8]), st.floats(1, 10))
def test_more_of_anything_never_makes_a_layer_slower(stack, tp, factor):
    plan, base = Plan(tp=tp, cp=2), job(stack=stack)
    seconds = Pricing(base, plan).unit("dense").total.total
    hardware = base.hardware
    inside = replace(
        hardware.inside, bandwidth_bytes_per_second=hardware.inside.bandwidth_bytes_per_second * factor
    )
    better = [
        replace(
            hardware,
            peak_flops_per_second={
                dtype: rate * factor for dtype, rate in hardware.peak_flops_per_second.items()
            },
        ),
        replace(
            hardware, memory_bandwidth_bytes_per_second=hardware.memory_bandwidth_bytes_per_second * factor
        ),
        replace(hardware, inside=inside),
    ]
    for machine in better:
        assert Pricing(replace(base, hardware=machine), plan).unit("dense").total.total <= seconds * (
            1 + 1e-12
        )


# ------------------------------------------------------------------------------------------------------ cases


def test_a_file_that_holds_no_list_of_runs_is_refused(tmp_path):
    path = tmp_path / "runs.json"
    path.write_text("{}")
    with pytest.raises(UserError, match="must hold a list of runs"):
        read_cases(path)


def test_a_tree_goes_down_chains_inside_nodes_and_doubles_the_nodes_it_has_reached_at_every_hop_across():
    h100 = find_hardware("h100")
    inside, across = h100.inside.latency_seconds, h100.across.latency_seconds
    for nodes, hops in [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (8, 3), (9, 4)]:
        assert GroupLinks(8 * nodes, 1, h100).tree_latency_seconds == pytest.approx(
            7 * inside + hops * across
        )
        assert GroupLinks(nodes, 8, h100).tree_latency_seconds == pytest.approx(hops * across)


@pytest.mark.parametrize(("stride", "rails", "ports"), [(8, 1.0, 1), (4, 1.0, 2), (4, 0.5, 1), (2, 0.75, 3)])
def test_a_group_across_nodes_has_a_port_for_each_of_its_members_in_a_node(stride, rails, ports):
    """As far as it uses them; all ports where nothing is said."""
    h100 = find_hardware("h100")
    port = h100.across.bandwidth_bytes_per_second
    assert GroupLinks(16, stride, h100, rails).bandwidth == pytest.approx(ports * port)
    assert GroupLinks(16, 4, h100).bandwidth == pytest.approx(2 * port)
    inside, across = GroupLinks(16, stride, h100, rails).ring_use
    assert across == pytest.approx(1), "its ports are what it waits for"
    assert inside == pytest.approx((stride < 8) * ports * port / h100.inside.bandwidth_bytes_per_second)
