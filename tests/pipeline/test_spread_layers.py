"""Layers over stages: the slowest stage is as fast as can be, embedding and head counted."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ndparallel.base.errors import UserError
from ndparallel.pipeline.work import spread_layers


def slowest(counts: list[int], embedding: float, head: float) -> float:
    loads = [float(count) for count in counts]
    loads[0] += embedding
    loads[-1] += head
    return max(loads)


@given(layers=st.integers(1, 9), stages=st.integers(1, 4), embedding=st.floats(0, 4), head=st.floats(0, 4))
def test_no_other_way_to_spread_has_a_faster_slowest_stage(layers, stages, embedding, head):
    try:
        counts = spread_layers(layers, stages, embedding, head)
    except UserError:
        assert layers < stages
        return
    ways = (way for way in itertools.product(range(layers + 1), repeat=stages) if sum(way) == layers)
    assert sum(counts) == layers
    assert slowest(counts, embedding, head) == pytest.approx(
        min(slowest(list(way), embedding, head) for way in ways)
    )


def test_layers_that_divide_are_even():
    assert spread_layers(32, 8) == [4] * 8


def test_what_is_left_goes_to_the_later_stages_which_keep_fewer_microbatches():
    assert spread_layers(30, 4) == [7, 7, 8, 8]


def test_embedding_and_head_as_heavy_as_a_layer_take_the_place_of_one():
    """Llama-3 405B: 126 layers on 16 stages, one fewer on the first and on the last (arXiv 2407.21783,
    section 3.3.2)."""
    assert spread_layers(126, 16, embedding_cost=1, head_cost=1) == [7] + [8] * 14 + [7]


def test_a_very_heavy_head_has_a_stage_for_itself():
    assert spread_layers(6, 4, head_cost=5) == [2, 2, 2, 0]


def test_a_stage_with_nothing_to_do_is_refused():
    with pytest.raises(UserError, match="6 layers cannot fill 8 stages: they fill at most 6."):
        spread_layers(6, 8)
    with pytest.raises(UserError, match="layers need at least 1 stage, not 0."):
        spread_layers(6, 0)
