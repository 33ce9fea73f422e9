"""Context parallelism: the same attention, however the sequence is cut, in the time, bytes and memory that
its idea promises."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives import Group
from gpu import CLASSROOM, COMPUTE, RECEIVE, SEND, Event, MismatchError
from ndparallel.base.errors import UserError
from ndparallel.engines.launch import launch
from ndparallel.model import functional
from ndparallel.parallel.context import VARIANTS, ContextParallel, zigzag_positions
from ndparallel.parallel.mesh import Mesh
from ndparallel.training.gradient_check import gradient_difference, whole_tensors
from ndparallel.training.job import Job
from tests.support import hand_count
from tests.support.common import SMALL
from tests.support.meshes import (
    CONTEXT_MESHES,
    MANY_HEADS,
    both_passes,
    differences,
    forward_only,
    layouts,
    run,
)


def computed(results) -> list[Event]:
    return [event for result in results for event in map(Event._make, result.events) if event.kind == COMPUTE]


def sizes_of(job: Job, rank: int = 0):
    mesh = job.mesh
    tp = mesh.coordinates(rank)["tp"]
    return hand_count.Sizes(
        job.model,
        job.microbatch,
        mesh.tp,
        tp,
        job.sequence_parallel,
        job.dtype,
        mesh.cp,
        job.context_parallel,
    )


# ---------------------------------------------------------------------------------------------------- numbers


@pytest.mark.parametrize("recompute", ["selective", "full"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_recomputation_changes_no_gradient(variant, recompute):
    job = Job(
        model=MANY_HEADS, mesh=Mesh(cp=4), dtype="float64", context_parallel=variant, recompute=recompute
    )
    assert max(differences(job)) <= 1e-12


@pytest.mark.parametrize("variant", VARIANTS[1:])
def test_every_variant_agrees_with_the_ring(variant):
    job = Job(model=MANY_HEADS, mesh=Mesh(cp=4), dtype="float64")
    for one, other in zip(run(job), run(job.replace(context_parallel=variant))):
        assert one.value.losses == pytest.approx(other.value.losses, rel=1e-14)
        assert gradient_difference([one.value], whole_tensors(other.value.gradients)) <= 1e-12


@given(st.data())
def test_a_softmax_over_blocks_is_the_softmax_over_all(data):
    """However the keys are cut, merging block by block gives what all keys at once give."""
    generator = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    keys = data.draw(st.integers(1, 12))
    cuts = sorted(data.draw(st.sets(st.integers(1, keys - 1)))) if keys > 1 else []
    q, k, v = (
        generator.standard_normal((size, 2, heads, 3)) for size, heads in ((4, 4), (keys, 2), (keys, 2))
    )
    q *= data.draw(st.sampled_from([1e-3, 1.0, 1e3]))
    blocks = []
    for first, last in pairwise([0, *cuts, keys]):
        probabilities, logsum = functional.softmax_with_logsum(functional.attention_scores(q, k[first:last]))
        blocks.append((functional.attention_values(probabilities, v[first:last]), logsum))
    mixed, logsum = blocks[0]
    for block, block_logsum in blocks[1:]:
        functional.attention_merge(mixed, logsum, block, block_logsum)
    scores = functional.attention_scores(q, k)
    assert logsum == pytest.approx(np.logaddexp.reduce(scores, axis=-1, keepdims=True), rel=1e-9, abs=1e-9)
    assert mixed == pytest.approx(
        functional.attention_values(functional.softmax(scores), v), rel=1e-9, abs=1e-9
    )


def blocks_of_two_types(gpu):
    cp = ContextParallel(gpu, Group("cp", (0, 1)))
    return list(cp.travel(np.zeros(4, np.float64 if gpu.rank else np.float32)))


def test_a_block_of_another_type_is_a_mismatch():
    with pytest.raises(MismatchError, match=r"waits for float32\[4\] in .*, rank 1 sent float64\[4\] in "):
        launch(blocks_of_two_types, 2, CLASSROOM, engine="inline")


@pytest.mark.parametrize("offset", [0.0, 50.0, -50.0, 1000.0, -1000.0])
def test_a_softmax_is_the_same_wherever_its_scores_lie(offset):
    scores = np.random.default_rng(0).uniform(-9, 9, (4, 6)).astype(np.float32)
    bias = np.where(np.arange(6) <= np.arange(2, 6)[:, None], 0, -np.inf).astype(np.float32)
    visible = np.exp((scores + bias).astype(np.float64))
    probabilities, logsum = functional.softmax_with_logsum(scores + np.float32(offset), bias)
    assert probabilities == pytest.approx(visible / visible.sum(axis=-1, keepdims=True), abs=1e-4)
    assert logsum == pytest.approx(np.log(visible.sum(axis=-1, keepdims=True)) + offset, abs=1e-3)


# ------------------------------------------------------------------------------------- an equal share of work


@given(st.integers(1, 12), st.integers(1, 6))
def test_zigzag_gives_every_token_to_one_rank_and_every_rank_as_many_pairs(parts, chunk):
    sequence = 2 * parts * chunk
    held = [zigzag_positions(sequence, parts, index) for index in range(parts)]
    assert sorted(position for positions in held for position in positions) == list(range(sequence))
    assert {sum(position + 1 for position in positions) for positions in held} == {
        sequence * (sequence + 1) // 2 // parts
    }
    assert all(list(positions) == sorted(positions) for positions in held)


@pytest.mark.parametrize("variant", VARIANTS)
def test_attention_takes_as_many_flops_however_the_sequence_is_cut(variant):
    def flops(cp):
        job = Job(model=MANY_HEADS, mesh=Mesh(cp=cp), context_parallel=variant)
        per_rank = [
            sum(event.flops for event in computed([result]) if is_core(event))
            for result in run(job, both_passes)
        ]
        assert len(set(per_rank)) == 1, "every rank has the same share"
        return sum(per_rank)

    def is_core(event):
        return event.what.endswith(("scores", "values"))

    pairs = MANY_HEADS.sequence * (MANY_HEADS.sequence + 1) // 2
    expected = 6 * 2 * 8 * MANY_HEADS.layers * MANY_HEADS.heads * pairs * MANY_HEADS.head_dim
    assert [flops(cp) for cp in (1, 2, 4, 8)] == [expected] * 4


@pytest.mark.parametrize("recompute", ["none", "selective"])
@pytest.mark.parametrize("variant", VARIANTS)
@layouts(CONTEXT_MESHES)
def test_the_executed_operations_are_the_listed_ones(mesh, sequence_parallel, variant, recompute):
    job = Job(
        model=MANY_HEADS,
        mesh=mesh,
        sequence_parallel=sequence_parallel,
        context_parallel=variant,
        recompute=recompute,
    )
    for result in run(job, both_passes):
        z = sizes_of(job, result.rank)
        listed = {
            "forward": hand_count.block(z).forward,
            "recompute": hand_count.core_recompute(z) if recompute == "selective" else [],
            "backward": hand_count.block(z).backward,
        }
        for phase, operations in listed.items():
            prefix = f"{phase} layers.1 "
            charged = Counter(
                (event.what, event.flops, event.bytes)
                for event in computed([result])
                if event.what.startswith(prefix)
            )
            assert charged == Counter(
                (prefix + operation.name, operation.flops, operation.bytes) for operation in operations
            )


@pytest.mark.parametrize(
    ("recompute", "dtype"), [("none", "float64"), ("selective", "float32"), ("full", "float32")]
)
@pytest.mark.parametrize("variant", VARIANTS)
@layouts(CONTEXT_MESHES)
def test_the_memory_kept_for_the_backward_pass_is_the_listed_one_to_the_byte(
    mesh, sequence_parallel, variant, dtype, recompute
):
    options = {
        "sequence_parallel": sequence_parallel,
        "context_parallel": variant,
        "dtype": dtype,
        "recompute": recompute,
    }
    job = Job(model=MANY_HEADS, mesh=mesh, **options)
    for result in run(job, forward_only):
        z = sizes_of(job, result.rank)
        elements = MANY_HEADS.layers * hand_count.block_saved(z, recompute) + hand_count.head_saved(z)
        assert result.value[0] == elements * np.dtype(dtype).itemsize + z.tokens
    assert all(result.value[0] == 0 for result in run(job, both_passes)), (
        "everything that was kept was given back"
    )


# ------------------------------------------------------------------------------------------ bytes and seconds


def p2p_bytes(result, kind=SEND) -> float:
    return sum(
        event.bytes
        for event in map(Event._make, result.events)
        if event.kind == kind and event.stream == "cp"
    )


@pytest.mark.parametrize("cp", [2, 4])
def test_a_ring_sends_every_block_once_less_forward_and_its_gradient_home_too(cp):
    """Of a layer, in blocks: cp - 1 forward; backward cp - 1 again and cp of gradients."""
    job = Job(model=SMALL, mesh=Mesh(cp=cp))
    block = 2 * SMALL.sequence // cp * job.microbatch * SMALL.kv_heads * SMALL.head_dim * 4
    for result in run(job, forward_only):
        assert p2p_bytes(result) == p2p_bytes(result, RECEIVE) == SMALL.layers * (cp - 1) * block
    for result in run(job, both_passes):
        assert p2p_bytes(result) == p2p_bytes(result, RECEIVE) == SMALL.layers * (3 * cp - 2) * block


@pytest.mark.parametrize("cp", [2, 4])
def test_all_gather_sends_as_much_less_the_way_home(cp):
    job = Job(model=SMALL, mesh=Mesh(cp=cp), context_parallel="all-gather")
    block = 2 * SMALL.sequence // cp * job.microbatch * SMALL.kv_heads * SMALL.head_dim * 4
    for result in run(job, both_passes):
        assert p2p_bytes(result) == SMALL.layers * 3 * (cp - 1) * block


@pytest.mark.parametrize(("kv_heads", "copies"), [(4, 1), (2, 2), (1, 4)])
def test_an_all_to_all_sends_a_quarter_of_what_stays_at_home_to_each_of_the_others(kv_heads, copies):
    """Jacobs et al. 2309.14509, section 3.2: of N tokens of width h, 4 N h / P a rank and pass, where keys
    have as many heads as queries; here of (P - 1) / P, with the copies of keys and values that 4 ranks
    need."""
    model = MANY_HEADS.replace(kv_heads=kv_heads)
    job = Job(model=model, mesh=Mesh(cp=4), context_parallel="all-to-all")
    width = (2 * model.heads + 2 * kv_heads * copies) * model.head_dim
    a_pass = 3 / 4 * model.sequence / 4 * job.microbatch * width * 4
    for result in run(job, forward_only):
        assert p2p_bytes(result) == p2p_bytes(result, RECEIVE) == model.layers * a_pass
    for result in run(job, both_passes):
        assert p2p_bytes(result) == p2p_bytes(result, RECEIVE) == 2 * model.layers * a_pass


def test_a_ring_hides_what_all_gather_exposes():
    """On a model whose attention is long enough, the ring's forward waits for nobody."""

    def idle(variant):
        results = run(Job(mesh=Mesh(cp=2), context_parallel=variant), forward_only)
        busy = [sum(event.end - event.start for event in computed([result])) for result in results]
        return max(result.end_seconds - seconds for result, seconds in zip(results, busy))

    assert idle("ring") < 0.2 * idle("all-gather")


# ----------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"mesh": Mesh(cp=3)}, "cp=3 cannot cut a sequence of 16 into 6 pieces; cp can be 1, 2, 4, 8"),
        ({"mesh": Mesh(cp=8, tp=4), "sequence_parallel": "sp"}, "tp=4 cannot cut the 2 tokens"),
        ({"mesh": Mesh(cp=2), "context_parallel": "rings"}, "Did you mean 'ring'"),
        (
            {"mesh": Mesh(cp=4, tp=2), "context_parallel": "all-to-all"},
            "cp=4 cannot cut 4 heads beside tp=2, which an all-to-all gives the ranks; cp can be 1, 2",
        ),
    ],
)
def test_a_sequence_that_cannot_be_cut_is_refused_in_a_sentence(options, said):
    with pytest.raises(UserError, match=said):
        Job(model=SMALL, **options)
