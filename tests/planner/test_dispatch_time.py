"""Claims about how many nodes and ranks a token goes to, and what it takes to send it to each once."""

from dataclasses import replace
from itertools import combinations, product
from statistics import fmean
from typing import Any

import numpy as np
import pytest

from gpu import Link
from ndparallel.hardware.accelerator import find_hardware
from ndparallel.planner.groups import GroupLinks
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.layers.dispatch_time import dispatch_seconds, distinct
from ndparallel.planner.models.experts import Experts
from ndparallel.planner.models.presets import find_model
from ndparallel.planner.prediction import time_step
from ndparallel.planner.software import STACKS

V3 = Experts(256, 8, 2048, 1, 2048, router_bias=True, groups=8, top_groups=4, dense_layers=(0, 1, 2))


def test_a_token_with_many_choices_meets_all_ranks_and_with_one_a_single_one():
    assert distinct(4, Experts(1000, 1, 1)) == pytest.approx(1)
    assert distinct(4, Experts(1000, 1000, 1)) == pytest.approx(4)


def test_deepseek_v3_sends_each_token_to_four_nodes_at_most():
    """arXiv 2412.19437, section 4.2: 256 experts on 64 GPUs of 8 nodes, "each token will be ensured to be
    sent to at most 4 nodes". A router without that limit reaches 5.25."""
    assert find_model("deepseek-v3").experts == V3
    assert distinct(8, V3) == pytest.approx(4)
    assert distinct(8, replace(V3, groups=1, top_groups=1)) == pytest.approx(8 * (1 - (7 / 8) ** 8))
    assert distinct(np.array([8, 1]), V3) == pytest.approx([4, 1])


@pytest.mark.parametrize("top_k", [1, 2, 5, 8, 10])
def test_arrays_of_places_meet_as_many_as_one_by_one_to_the_last_digit(top_k):
    """A power is one of products, which all processors round alike."""
    experts, places = replace(V3, top_k=top_k, groups=1, top_groups=1), np.arange(1, 200)
    assert distinct(places, experts).tolist() == [distinct(int(each), experts) for each in places]
    assert distinct(7, experts) == pytest.approx(7 * (1 - (6 / 7) ** top_k), rel=1e-15)


@pytest.mark.parametrize("places", [1, 2, 3, 4, 6, 12])
def test_a_token_meets_as_many_places_as_a_count_of_all_that_its_router_can_choose(places):
    """Two of each of two groups of four, each group of three experts."""
    met = [
        len({(3 * group + expert) * places // 12 for group, expert in zip((a, a, b, b), chosen)})
        for a, b in combinations(range(4), 2)
        for chosen in product(range(3), repeat=4)
    ]
    assert distinct(places, Experts(12, 4, 1, groups=4, top_groups=2)) == pytest.approx(fmean(met))


@pytest.mark.parametrize("places", [2, 4, 8, 16, 32, 64])
def test_a_router_with_independent_scores_reaches_nearly_as_many_places_as_are_counted(places):
    """Routed as megatron/core/transformer/moe/moe_utils.py does it (core_v0.16.0, group_limited_topk)."""
    scores = np.random.default_rng(0).random((20_000, V3.groups, V3.experts // V3.groups))
    best = np.sort(scores, -1)[..., -(V3.top_k // V3.top_groups) :].sum(-1)
    left_out = np.argsort(best)[:, : V3.groups - V3.top_groups]
    np.put_along_axis(scores, left_out[..., None], -1, 1)
    chosen = np.argsort(scores.reshape(len(scores), -1))[:, -V3.top_k :] * places // V3.experts
    simulated = fmean(len({*row}) for row in chosen.tolist())
    assert 0.95 < simulated / distinct(places, V3) < 1


def deepseek_seconds(dispatcher: str, **router: Any) -> float:
    shape = find_model("deepseek-v3")
    stack = replace(STACKS["megatron-core"], dispatcher=dispatcher)
    job = TrainingJob(replace(shape, experts=replace(V3, **router)), find_hardware("h100"), stack, 4096, 2048)
    return time_step(job, Plan(pp=16, dp=64, ep=64, zero=1)).seconds


def test_only_a_dispatcher_that_sends_a_token_to_a_node_once_is_quicker_for_the_limit():
    anywhere = {"groups": 1, "top_groups": 1}
    for dispatcher in ("deepep", "hybridep"):
        assert deepseek_seconds(dispatcher) < 0.97 * deepseek_seconds(dispatcher, **anywhere)
    assert deepseek_seconds("alltoall") == deepseek_seconds("alltoall", **anywhere)


def test_a_dispatch_starts_as_a_collective_does():
    machine = replace(find_hardware("h100"), inside=Link(2e-6, 4e11), across=Link(1e-5, 4e10))
    starts = [
        dispatch_seconds(1e-9, Experts(16, 8, 1), GroupLinks(ranks, 1, machine)) for ranks in (1, 2, 16)
    ]
    assert starts == pytest.approx([0, 23e-6 + 2e-6, 23e-6 + 10e-6])


@pytest.mark.parametrize("slow", ["inside", "across"])
@pytest.mark.parametrize(("nodes", "each", "choices"), [(1, 4, 2), (2, 2, 3), (2, 4, 2), (4, 2, 3)])
def test_a_token_crosses_to_each_other_node_once_and_is_copied_to_each_rank_that_is_not_on_its_rail(
    nodes, each, choices, slow
):
    """The mean over all choices of a token of rank 0, one as likely as another."""
    slowed: dict[str, Any] = {slow: Link(0, 1e3)}
    machine = replace(find_hardware("h100"), gpus_per_node=each, **slowed)
    chosen = list(product(range(nodes * each), repeat=choices))
    if slow == "inside":
        copies = fmean(sum(rank % each > 0 for rank in {*ranks}) for ranks in chosen)
    else:
        copies = fmean(len({rank // each for rank in ranks} - {0}) for ranks in chosen)
    router = Experts(nodes * each, choices, 1)
    seconds = dispatch_seconds(1e9 * choices, router, GroupLinks(nodes * each, 1, machine))
    assert seconds == pytest.approx(copies * 1e9 / 1e3, rel=1e-6, abs=1)
