"""Multi-head latent attention under tensor parallelism: Megatron gathers its ranks, and not what they are
made of (megatron/core/transformer/multi_latent_attention.py)."""

from dataclasses import replace

import pytest

from ndparallel.base.errors import UserError
from ndparallel.hardware.accelerator import find_hardware
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.layers.kept import kept_bytes
from ndparallel.planner.layers.layer import LayerLists
from ndparallel.planner.layers.operations import CollectiveOp
from ndparallel.planner.models.presets import preset
from ndparallel.planner.software import find_stack

V3, TOKENS = preset("deepseek-v3"), 4096
# arXiv 2412.19437, section 4.2
HIDDEN, QUERY_RANK, KV_RANK, KEY = 7168, 1536, 512, 64


def lists(tp, software="megatron-core", sequence_parallel=True, **stack):
    job = TrainingJob(V3, find_hardware("h800"), replace(find_stack(software), **stack), TOKENS, 64)
    return LayerLists(V3, Plan(tp=tp, sequence_parallel=sequence_parallel).share(job), job.stack)


def operations(items):
    return {item.name: item for item in items if not isinstance(item, CollectiveOp)}


def widths(items, collective):
    """Numbers of a token that collectives of that kind move, in their order."""
    return [item.bytes / TOKENS / 2 for item in items if item[1:2] == (collective,)]


@pytest.mark.parametrize(
    ("field", "least"),
    [("query_rank", 0), ("kv_rank", 1), ("nope_dim", 1), ("rope_dim", 1), ("value_dim", 1)],
)
def test_sizes_of_latent_attention_are_at_least_1_and_queries_may_have_no_rank(field, least):
    assert V3.latent
    replace(V3.latent, **{field: least})
    with pytest.raises(UserError, match=f"{field} is {least - 1}; it must be from {least}"):
        replace(V3.latent, **{field: least - 1})


@pytest.mark.parametrize("tp", [2, 8])
def test_tp_ranks_share_the_products_that_give_latent_attentions_ranks(tp):
    for whole, part in zip(lists(1).unit("dense", "none"), lists(tp).unit("dense", "none")):
        for name, product in operations(whole).items():
            if product.kind == "matmul":
                assert operations(part)[name].flops * tp == pytest.approx(product.flops), name


def test_megatron_gathers_2112_numbers_of_a_token_and_torchtitan_7168():
    mine, torch = lists(8).attention, lists(8, "torchtitan").attention
    assert widths(mine.into_heads(), "all_gather") == [KEY, QUERY_RANK, KV_RANK]
    assert widths(torch.into_heads(), "all_gather") == [HIDDEN]
    down = operations(torch.into_heads())["query_down forward"]
    assert down.flops == 2 * TOKENS * HIDDEN * QUERY_RANK  # on every rank


def test_ranks_are_gathered_again_for_their_matrices_and_their_gradients_are_summed():
    back = lists(8).attention.out_of_heads()
    assert widths(back, "all_gather") == [KV_RANK, QUERY_RANK]
    assert widths(back, "reduce_scatter") == [KV_RANK, QUERY_RANK, KEY]


def test_without_sequence_parallelism_every_rank_has_all_rows_and_sums_gradients_alone():
    without = lists(8, sequence_parallel=False).attention
    assert widths(without.into_heads(), "all_gather") == []
    assert widths(without.out_of_heads(), "all_reduce") == [KV_RANK, QUERY_RANK]
    down = operations(without.into_heads())["query_down forward"]
    assert down.flops == 2 * TOKENS * HIDDEN * QUERY_RANK


def test_recomputing_heads_gathers_their_ranks_again_and_keeps_them_in_shards():
    mine = lists(8, selective=("mla_up_proj",))
    again = mine.unit("dense", "selective").recompute
    assert widths(again, "all_gather") == [QUERY_RANK, KV_RANK]
    assert not {"query_down forward", "kv_down forward"} & set(operations(again))
    whole = lists(8, selective=("mla_up_proj",), latent_on_shards=False)
    kept = [kept_bytes(each, "dense", "selective") for each in (mine, whole)]
    assert kept[1] - kept[0] == pytest.approx(7 / 8 * TOKENS * (QUERY_RANK + KV_RANK) * 2)


@pytest.mark.parametrize("sequence_parallel", [True, False])
def test_ranks_are_normed_before_their_matrices_and_two_gradients_of_the_hidden_state_are_added(
    sequence_parallel,
):
    """q_layernorm and kv_layernorm, on the shard where the ranks are made there."""
    mine = lists(8, sequence_parallel=sequence_parallel).attention
    rows = TOKENS / 8 if sequence_parallel else TOKENS
    forward = [item for item in mine.into_heads() if item.name == "norm"]
    assert [norm.bytes for norm in forward] == [2 * rows * rank * 2 for rank in (QUERY_RANK, KV_RANK)]
    back = mine.out_of_heads()
    assert [item.bytes for item in back if item.name == "norm"] == [
        3 * rows * rank * 2 for rank in (KV_RANK, QUERY_RANK)
    ]
    assert operations(back)["add gradients of ranks"].bytes == 3 * rows * HIDDEN * 2
    again = lists(8, selective=("mla_up_proj",)).unit("dense", "selective").recompute
    assert [item.name for item in again].count("norm") == 2
