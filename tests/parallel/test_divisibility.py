"""What can be cut by how many, rule by rule, in numbers that can be checked by hand."""

import pytest

from ndparallel.parallel.divisibility import (
    can_fill,
    context_rules,
    expert_rules,
    expert_width_rules,
    routed_rules,
    sequence_rules,
    tensor_rules,
)


def keep(rules, most=16):
    """The degrees from 1 on that keep all rules."""
    return [degree for degree in range(1, most + 1) if all(rule.holds(degree) for rule in rules)]


def test_tp_cuts_heads_and_the_mlp_and_shares_kv_heads_where_it_has_more_ranks_than_they_are():
    assert keep(tensor_rules(heads=12, kv_heads=4, ffn=24)) == [1, 2, 4, 12]
    assert keep(tensor_rules(heads=12, kv_heads=6, ffn=24)) == [1, 2, 3, 6, 12]
    assert keep(tensor_rules(heads=12, kv_heads=12, ffn=30)) == [1, 2, 3, 6]


def test_a_model_without_an_mlp_has_no_rule_for_it():
    assert keep(tensor_rules(heads=12, kv_heads=12, ffn=None)) == [1, 2, 3, 4, 6, 12]


def test_sequence_parallelism_and_experts_cut_tokens_too():
    assert keep(sequence_rules(9)) == [1, 3, 9]
    assert keep(routed_rules(tokens=8)) == [1, 2, 4, 8]
    assert keep(expert_width_rules([12, 8])) == [1, 2, 4]


def test_cp_gives_each_rank_an_early_and_a_late_chunk_of_equal_length():
    assert keep(context_rules(24)) == [1, 2, 3, 4, 6, 12]
    assert keep(context_rules(12)) == [1, 2, 3, 6]
    assert keep(context_rules(7)) == [1]


def test_ep_shares_out_experts_evenly():
    assert keep(expert_rules(6)) == [1, 2, 3, 6]


@pytest.mark.parametrize(("layers", "most"), [(1, 3), (4, 6)])
def test_embedding_and_head_may_have_stages_of_their_own(layers, most):
    assert can_fill(layers, most) and not can_fill(layers, most + 1)


def test_rules_say_what_they_are_about():
    heads, shared, mlp = tensor_rules(heads=12, kv_heads=4, ffn=24)
    assert (heads.what, shared.what, mlp.what) == ("cut 12 heads", "share 4 KV heads", "cut an MLP of 24")
    assert (heads.number, shared.number, mlp.number) == (12, 4, 24)
