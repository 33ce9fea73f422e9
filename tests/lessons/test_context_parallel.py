"""Claims about CP: who computes how much, what travels, what hides, and when it beats tensor parallelism."""

import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu import Event
from ndparallel.hardware.pocket import POCKET
from ndparallel.lessons.context_parallel import is_cp_faster
from ndparallel.lessons.registry import load
from ndparallel.lessons.runner import Runner, entry_of
from ndparallel.parallel.context import zigzag
from ndparallel.results.measure import breakdown, bytes_sent
from ndparallel.training.job import Job
from ndparallel.training.long_attention import pairs_of
from tests.support.common import measured, names, run, strategy

LESSON = "cp_context_parallel"
JOB = Job()
TOKENS, WIDTH = JOB.batch * JOB.model.sequence, JOB.model.hidden
BLOCK = 2 * TOKENS * WIDTH * 4  # bytes of all keys and values
FEW_KERNELS = replace(POCKET, kernel_overhead_seconds=0)


def computes(name: str, gpus: int) -> list[float]:
    results = run(strategy(LESSON, f"attention, {name}"), JOB, gpus, FEW_KERNELS)
    return [breakdown(result.events, result.end_seconds).compute for result in results]


@pytest.mark.parametrize("gpus", [2, 4, 8])
def test_in_order_gpu_r_has_2r_plus_1_parts_of_the_pairs_and_zigzag_shares_them_alike(gpus):
    """Of p * p tiles of the mask the ones on the diagonal are half full."""
    ordered, shared = computes("ring in order", gpus), computes("ring zigzag", gpus)
    assert sum(ordered) == pytest.approx(sum(shared), rel=1e-3)
    assert [each / sum(ordered) for each in ordered] == pytest.approx(
        [(2 * rank + 1) / gpus**2 for rank in range(gpus)], rel=0.15
    )
    assert shared == pytest.approx([sum(shared) / gpus] * gpus, rel=1e-9)


@pytest.mark.parametrize("gpus", [2, 4, 8])
@pytest.mark.parametrize(
    ("name", "blocks"),
    [
        ("ring zigzag", lambda p: 2 * (p - 1) + p),
        ("overlapped", lambda p: 2 * (p - 1) + p),
        ("gathered", lambda p: 2 * (p - 1)),
    ],
)
def test_a_gpu_sends_its_block_in_each_hop_and_one_more_time_its_gradient(name, blocks, gpus):
    results = run(strategy(LESSON, f"attention, {name}"), JOB, gpus)
    assert [bytes_sent(result.events) for result in results] == [blocks(gpus) * BLOCK / gpus] * gpus


def test_attention_met_block_by_block_is_attention_to_the_last_digits():
    load(LESSON)
    lesson, (q, k, v) = sys.modules[LESSON], np.random.default_rng(0).standard_normal((3, 12, 5))
    everything, blocks = Met(q, range(12)), [Met(q, keys) for keys in (range(4), range(4, 12))]
    mixed, logsum = lesson.attend(q, np.stack([k, v]), everything)
    parts = [lesson.attend(q, np.stack([k, v])[:, met.keys], met) for met in blocks]
    merged = lesson.merge(*parts[0], *parts[1])
    scores = np.where(np.tri(12, dtype=bool), q @ k.T / 5**0.5, -np.inf)
    weights = np.exp(scores)
    expected = weights @ v / weights.sum(axis=1, keepdims=True)
    assert mixed == pytest.approx(expected, rel=1e-13) and merged[0] == pytest.approx(expected, rel=1e-13)
    assert merged[1] == pytest.approx(logsum, rel=1e-13)


class Met:
    """A tile of 12 queries and some keys, free of charge."""

    def __init__(self, q, keys) -> None:
        self.keys = list(keys)
        self.mask = np.where(np.arange(len(q))[:, None] >= np.array(self.keys), 0, -1e30)

    def charge(self, name: str, products: int) -> None:
        pass


def test_a_merge_that_does_not_weigh_is_another_gradient(monkeypatch):
    load(LESSON)
    monkeypatch.setattr(
        sys.modules[LESSON], "merge", lambda mixed, logsum, block, other: (mixed + block, logsum)
    )
    with Runner(POCKET, "inline") as runner:
        row, _ = runner.measured(entry_of(strategy(LESSON, "attention, overlapped"), JOB, 4))
    assert row.max_gradient_difference and row.max_gradient_difference > 0.1


def test_the_overlapped_ring_waits_for_its_last_hop_alone():
    exposed = measured(LESSON, "attention, overlapped", JOB, 4).exposed_communication_seconds
    link = POCKET.inside
    assert exposed == pytest.approx(
        link.latency_seconds + BLOCK / 4 / link.bandwidth_bytes_per_second, rel=1e-6
    )


def test_zigzag_parts_are_two_runs_and_the_whole_sequence_is_one():
    assert zigzag(16, 4, 1) == (slice(2, 4), slice(12, 14)) and zigzag(15, 1, 0) == (slice(0, 15),)


@given(*[st.integers(0, 12)] * 4)
def test_the_pairs_of_two_runs_are_counted_as_one_by_one(query, queries, key, keys):
    one_by_one = sum(k <= q for q in range(query, query + queries) for k in range(key, key + keys))
    assert pairs_of(slice(query, query + queries), slice(key, key + keys)) == one_by_one


@pytest.mark.parametrize("name", names(LESSON)[:4])
def test_attention_over_a_sequence_of_any_length_is_a_few_sizes(name):
    """A million million tokens: nothing that has one entry for each could be made."""
    tokens, huge = 10**12, replace(POCKET, memory_bytes=1e30)
    job = Job(model=JOB.model.replace(sequence=tokens), batch=1, sizes_only=True)
    results = run(strategy(LESSON, name), job, 4, huge)
    flops = sum(event.flops for each in results for event in map(Event._make, each.events) if event.flops)
    assert flops == pytest.approx((4 + 10) * WIDTH * tokens * (tokens + 1) / 2, rel=1e-9)


@pytest.fixture(scope="module")
def against_tp() -> list[dict]:
    lesson = load(LESSON)
    with Runner(POCKET, "inline") as runner:
        return lesson.sweep("sequence", runner, JOB).rows


@pytest.mark.parametrize(("links", "first"), [("inside", 128), ("across", 128)])
def test_cp_beats_tp_from_some_length_on_and_needs_more_memory_only_for_short_sequences(
    against_tp, links, first
):
    rows = [row for row in against_tp if row["links"] == links]
    assert [row["sequence"] for row in rows if row["CP_step_seconds"] < row["TP_step_seconds"]] == [
        row["sequence"] for row in rows if row["sequence"] >= first
    ]
    heavier = [row["CP_memory_bytes"] > row["TP_memory_bytes"] for row in rows]
    assert heavier == sorted(heavier, reverse=True) and heavier[0] and not heavier[-1]


def test_on_two_nodes_ulysses_sends_less_than_a_ring_and_is_faster_though_nothing_hides_it():
    ring, heads, gathered = (measured(LESSON, name, JOB, 8) for name in ("CP", "CP Ulysses", "CP gathered"))
    assert heads.step_seconds * 1.02 < ring.step_seconds < gathered.step_seconds
    assert heads.bytes_sent_per_gpu < ring.bytes_sent_per_gpu
    ring_of_two, heads_of_two = (measured(LESSON, name, JOB, 2) for name in ("CP", "CP Ulysses"))
    assert heads_of_two.bytes_sent_per_gpu > ring_of_two.bytes_sent_per_gpu
    assert heads.exposed_communication_seconds > ring.exposed_communication_seconds


@pytest.mark.parametrize("gpus", [2, 4, 8])
def test_in_attention_ulysses_sends_what_is_of_a_gpus_own_tokens(gpus):
    """Queries, keys, values and results, and their gradients, of 1/p of the tokens, less the part that stays;
    keys and values with as many copies as give every GPU a head. The gradients of all weights come on top."""
    model = JOB.model
    width = 2 * model.heads + 2 * max(model.kv_heads, gpus)
    attention = 2 * model.layers * TOKENS / gpus * width * model.head_dim * 4 * (gpus - 1) / gpus
    results = run(strategy(LESSON, "CP Ulysses"), JOB, gpus)
    averaged = bytes_sent(run(strategy("1d_data_parallel", "DDP overlapped"), JOB, gpus)[0].events)
    assert bytes_sent(results[0].events) == attention + averaged


@pytest.mark.parametrize(
    ("cp", "tp", "is_faster"), [(1.0, 2.0, True), (2.0, 1.0, False), (None, 2.0, False), (1.0, None, False)]
)
def test_cp_is_faster_where_both_ran_and_it_takes_less(cp, tp, is_faster):
    assert is_cp_faster({"CP_step_seconds": cp, "TP_step_seconds": tp}) is is_faster
