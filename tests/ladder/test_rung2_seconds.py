"""Rung 2, seconds: the clock of an executed run equals the formula on the blackboard.

It rests on rung 1: what is timed here is the run whose numbers are right. In the formulas, a is a link's
latency, b the time of the whole array on its wire, p the number of ranks. Sources:

    collectives      R. Thakur, R. Rabenseifner, W. Gropp, Optimization of Collective Communication Operations
                     in MPICH, 2005: a ring's sum takes 2 (p-1) (a + b/p), a binomial tree log p hops; the
                     docstrings in collectives.py have the others
    data parallel    the ring's, behind the compute of a rank's share of the batch; arXiv 1910.02054, section
                     7, counts the same bytes
    tensor parallel  two sums a layer and pass: arXiv 1909.08053, section 3
    pipelines        GPipe, 1F1B, interleaved: arXiv 2104.04473, section 2.2; zero bubble: arXiv 2401.10241,
                     section 2, and its table 5 for measured bubbles; DualPipeV: the README of DeepSeek's
                     DualPipe

A schedule climbs in two steps: an executed run ends when timing its list of actions says, and timing the list
gives the papers' formulas.
"""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectives import ALGORITHMS, Group, Member
from gpu import CLASSROOM, COMPUTE, Event, Operation
from ndparallel.collective.algorithms import chain_broadcast
from ndparallel.collective.prices import closed_form_seconds, price
from ndparallel.engines.launch import launch
from ndparallel.hardware.pocket import POCKET
from ndparallel.parallel.context import ContextParallel
from ndparallel.parallel.mesh import Mesh
from ndparallel.pipeline.timing import time_schedule
from ndparallel.training.job import Job
from ndparallel.training.pipeline_stages import schedule_of
from tests.support import hand_count
from tests.support.collective_programs import LINKS, PAIRS, Case, execute, hardware, sequences
from tests.support.common import CHUNKS, SMALL, measured, pipeline, reference, run, strategy
from tests.support.pipelines import SCHEDULES, timed, work_of
from tests.support.pocket_derivation import layer_operations

FLAT = [pair for pair in PAIRS if pair[1] != "hierarchical"]
LAYERED = [pair for pair in PAIRS if pair[1] == "hierarchical"]
DTYPES = st.sampled_from(["float32", "float64", "int8", "complex128"])
DEEP = replace(SMALL, layers=8)
SIZES = [(1, 2), (2, 2), (2, 5), (3, 6), (4, 4), (4, 8), (4, 11), (7, 15), (8, 32)]
TIMES = list(itertools.product((0.5, 1.0, 1.7, 2.0), (0.7, 1.0, 2.0), (0.0, 0.4, 0.7, 1.0, 1.5)))
close = pytest.approx


def seconds(collective, algorithm, *arguments):
    return ALGORITHMS[collective][algorithm].seconds(*arguments)


def case_of(pair: tuple[str, str], p: int, size: int, dtype: str) -> Case:
    collective, algorithm = pair
    return Case(collective, algorithm, tuple(range(p)), size, dtype, only_size=True)


def end_of(results) -> float:
    return max(result.end_seconds for result in results)


# ------------------------------------------------------------------------------------------------ collectives


@given(st.sampled_from(FLAT), st.integers(1, 8), st.integers(0, 50), DTYPES, LINKS, st.booleans())
@settings(max_examples=300, deadline=None)
def test_what_is_executed_takes_the_closed_form(pair, p, multiple, dtype, link, across):
    size = multiple * p * 8  # which p, a chain's chunks and the largest power of two divide
    machine = hardware(1 if across else 8, *((link, (1, 1))[:: -1 if across else 1]))
    results = execute(machine, case_of(pair, p, size, dtype))
    b = size * np.dtype(dtype).itemsize / link[1]
    assert max(result.end_seconds for result in results) == pytest.approx(
        seconds(*pair, p, link[0], b), rel=1e-9, abs=0
    )


@given(
    st.sampled_from(LAYERED), st.integers(1, 4), st.integers(1, 3), st.integers(0, 50), DTYPES, LINKS, LINKS
)
@settings(max_examples=150, deadline=None)
def test_what_is_executed_on_several_nodes_takes_the_sum_of_its_parts(
    pair, g, m, multiple, dtype, inside, across
):
    size = multiple * g * m
    results = execute(
        hardware(g, inside, across),
        case_of(pair, g * m, size, dtype),
    )
    b, B = (size * np.dtype(dtype).itemsize / bandwidth for _, bandwidth in (inside, across))
    closed_form = seconds(*pair, g, m, inside[0], b, across[0], B)
    assert max(result.end_seconds for result in results) == pytest.approx(closed_form, rel=1e-9, abs=0)


def chained(gpu, p, chunks, root):
    chain_broadcast(Member(gpu, Group("chain", tuple(range(p))), 0), np.zeros(840), root, chunks)


@pytest.mark.parametrize("p", [1, 2, 5, 8])
@pytest.mark.parametrize("chunks", [1, 2, 7, 40])
@pytest.mark.parametrize("root", [0, "last"])
def test_a_chain_takes_its_closed_form_for_any_number_of_chunks(p, chunks, root):
    results = launch(chained, p, hardware(), p, chunks, p - 1 if root == "last" else 0, engine="inline")
    closed_form = seconds("broadcast", "chain", p, 1e-6, 840 * 8 / 1e9, chunks)
    assert max(result.end_seconds for result in results) == pytest.approx(closed_form, rel=1e-9)


@given(sequences())
@settings(max_examples=100, deadline=None)
def test_where_a_closed_form_is_given_it_is_what_is_executed_if_pieces_are_equal(drawn):
    gpus_per_node, [case] = drawn
    size = 8 * len(case.ranks)
    bare = Case(case.collective, case.algorithm, case.ranks, size, "int8", only_size=True)
    closed_form = closed_form_seconds(
        case.collective, case.algorithm, case.group, hardware(gpus_per_node), size
    )
    executed = max(result.end_seconds for result in execute(hardware(gpus_per_node), bare))
    assert closed_form is None or closed_form == pytest.approx(executed, rel=1e-9, abs=0)
    assert price(case.collective, case.algorithm, case.group, hardware(gpus_per_node), size) == pytest.approx(
        executed, rel=1e-9, abs=0
    )


# ---------------------------------------------------------------------------------------------- data parallel

A, BANDWIDTH = POCKET.inside.latency_seconds, POCKET.inside.bandwidth_bytes_per_second
B = sum(4 * holding.array.size for holding in reference(Job()).value.weights) / BANDWIDTH


@pytest.mark.parametrize(
    ("name", "sum_seconds"),
    [("DDP ring", 2 * 3 * (A + B / 4)), ("DDP naive", seconds("all_reduce", "naive", 4, A, B))],
)
def test_ddp_takes_the_step_of_its_share_and_one_sum_of_all_gradients(name, sum_seconds):
    share = run(strategy("0d_single_gpu", "single GPU"), Job(batch=2), 1)
    executed = run(strategy("1d_data_parallel", name), Job(batch=8), 4)
    assert end_of(executed) == close(end_of(share) + sum_seconds, rel=1e-9)


def test_fsdp_without_prefetch_waits_for_two_gathers_and_one_reduce_scatter_of_every_unit():
    row = measured("1d_data_parallel", "FSDP", Job(), 4)
    units = Job().model.layers + 2  # the embedding and the head
    assert row.step_seconds == close(row.compute_seconds + 3 * 3 * (units * A + B / 4), rel=1e-9)


# ------------------------------------------------------------------------------- tensor and context parallel


@pytest.mark.parametrize("tp", [2, 4])
def test_the_executed_clock_of_a_layer_equals_its_closed_form(tp):
    job = Job(mesh=Mesh(tp=tp), parts=1)
    results = launch(strategy("2d_tensor_parallel", "TP").program, tp, POCKET, job, engine="inline")
    compute = [event for event in map(Event._make, results[0].events) if event.kind == COMPUTE]
    blocks = [[event for event in compute if f" layers.{index} " in event.what] for index in (3, 4)]
    forward = [next(event.start for event in block if event.what.startswith("forward")) for block in blocks]
    sizes = hand_count.Sizes(job.model, job.batch, tp, dtype=job.dtype)
    n = job.batch * job.model.sequence * job.model.hidden * 4
    sums = 2 * ALGORITHMS["all_reduce"]["ring"].seconds(
        tp, POCKET.inside.latency_seconds, n / POCKET.inside.bandwidth_bytes_per_second
    )
    once = sum(POCKET.seconds(operation) for operation in hand_count.block(sizes).forward)
    assert forward[1] - forward[0] == pytest.approx(sums + once, rel=1e-9)
    backward = [next(event.start for event in block if event.what.startswith("backward")) for block in blocks]
    both = sum(POCKET.seconds(operation) for operation in layer_operations(sizes))
    assert backward[0] - backward[1] == pytest.approx(sums + both - once, rel=1e-9)


def ring_of_work(gpu, size, seconds):
    """Meet all blocks of `size` float32, each for so many seconds. Returns the seconds it took."""
    cp = ContextParallel(gpu, Group("cp", (0, 1, 2, 3)))
    for _ in cp.travel(np.zeros(size, np.float32)):
        gpu.compute(Operation("meet", flops=seconds * gpu.hardware.flops_per_second))
    return gpu.now


@given(st.integers(1, 400), st.floats(0, 10))
def test_a_hop_takes_the_longer_of_computing_and_talking(size, seconds):
    talking = CLASSROOM.inside.latency_seconds + size * 0.01
    results = launch(ring_of_work, 4, CLASSROOM, size, seconds, engine="inline")
    assert [result.value for result in results] == pytest.approx(
        [3 * max(seconds, talking) + seconds] * 4, rel=1e-9
    )


# -------------------------------------------------------------------------------------------------- pipelines


@pytest.mark.parametrize("gpus_per_node", [4, 2, 1])
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_executed_clock_equals_the_timing_of_the_schedules_list(schedule, ranks, gpus_per_node):
    job = Job(model=DEEP, microbatches=8, mesh=Mesh(pp=ranks))
    hardware = replace(POCKET, gpus_per_node=gpus_per_node)
    results = run(pipeline(schedule), job, ranks, hardware)
    listed = schedule_of(schedule, ranks, 8, CHUNKS.get(schedule))
    timing = time_schedule(listed, work_of(job, listed, hardware))
    for rank, result in enumerate(results):
        compute = [
            event
            for event in map(Event._make, result.events)
            if event.kind == COMPUTE and "optimizer" not in event.what
        ]
        assert compute[-1].end == pytest.approx(timing.end[rank][-1], rel=1e-9)


def test_p4_m8_makespans_are_those_of_the_blackboard():
    assert timed("gpipe", 4, 8).makespan == timed("1f1b", 4, 8).makespan == 33
    assert timed("naive", 4, 8).makespan == 96
    assert timed("zb-h1", 4, 8).makespan == 27


def test_p4_m8_with_equal_forward_and_backward_takes_22_and_idles_3_of_11():
    for name in ("gpipe", "1f1b"):
        timing = timed(name, 4, 8, I=0.5, W=0.5)
        assert timing.makespan == 22
        assert timing.bubble_ratio == close(3 / 11)


def test_naive_on_four_ranks_is_no_faster_than_one_rank_with_all_layers():
    assert timed("naive", 4, 1).makespan == 4 * timed("naive", 1, 1).makespan


@pytest.mark.parametrize(("P", "M"), SIZES)
def test_bubbles_of_gpipe_1f1b_and_interleaved_are_the_formula(P, M):
    for F, I, W in TIMES:
        ideal = M * (F + I + W)
        for name in ("gpipe", "1f1b", "eager-1f1b"):
            assert timed(name, P, M, F, I, W).makespan - ideal == close((P - 1) * (F + I + W))
    for V, (F, I, W) in itertools.product((2, 3, 8), TIMES[::5]):
        many = max(M, P)
        timing = timed("interleaved", P, many, F, I, W, chunks=V)
        assert timing.makespan - many * (F + I + W) == close((P - 1) * (F + I + W) / V)


@pytest.mark.parametrize(("P", "M"), SIZES)
def test_bubble_of_looped_bfs_is_that_of_interleaved_with_more_memory(P, M):
    for F, I, W in TIMES[::7]:
        if M >= P:
            assert timed("looped-bfs", P, M, F, I, W, chunks=2).makespan == close(
                (M + (P - 1) / 2) * (F + I + W)
            )


@pytest.mark.parametrize(("P", "M"), SIZES)
def test_bubble_of_zb_h1_is_the_formula(P, M):
    """(P-1)(F+I-W) for W <= F and W <= I. A rank that holds P cannot begin its first I sooner than (P-1) I
    after its P forwards, so that for W > F the bubble is (P-1) I."""
    for F, I, W in TIMES:
        if W <= I:
            assert timed("zb-h1", P, M, F, I, W).makespan - M * (F + I + W) == close(
                (P - 1) * (max(F - W, 0) + I)
            )


@pytest.mark.parametrize(("P", "M"), [size for size in SIZES if size[1] >= 2 * size[0]])
def test_longest_span_of_zb_h2_exceeds_its_work_by_the_formula(P, M):
    for F, I, W in TIMES:
        if W <= F and W <= I:
            assert max(timed("zb-h2", P, M, F, I, W).spans) - M * (F + I + W) == close(
                (P - 1) * (F + I - 2 * W)
            )


@pytest.mark.parametrize(("P", "M"), [size for size in SIZES if size[1] >= 2 * size[0]])
def test_zb_v_never_waits_when_f_i_and_w_are_equal(P, M):
    timing = timed("zb-v", P, M)
    assert timing.span_bubble_ratio == close(0, abs=1e-12)
    assert timing.spans == close([3.0 * M] * P)


@pytest.mark.parametrize("fused", [None, 2.0, 2.5, 3.0, 4.0])
@pytest.mark.parametrize(("P", "M"), [size for size in SIZES if size[1] >= 2 * size[0]])
def test_dualpipev_idles_for_the_published_formula(P, M, fused):
    """(P-1)(F&B + B - 3W) in the times of a chunk, on the last rank, which has all its pairs in the steady
    part."""
    timing = timed("dualpipev", P, M, fused=fused)
    chunk, pair = 0.5, 1.5 if fused is None else fused / 2
    bubble = (P - 1) * (pair + 2 * chunk - 3 * chunk)
    assert timing.makespan - timing.busy[-1] == close(bubble)
    if fused is None:
        assert max(timing.spans) - 3.0 * M == close(bubble)


# arXiv 2401.10241, table 5: P, M, tF, tI, tW, tComm in microseconds, and the bubble rates of 1F1B, ZB-H1,
# ZB-H2
PUBLISHED = [
    (8, 24, 18522, 18086, 9337, 601, 0.2431, 0.1585, 0.1083),
    (8, 32, 29802, 29428, 19530, 577, 0.1898, 0.1045, 0.0559),
    (16, 48, 11347, 11248, 8132, 377, 0.2552, 0.1397, 0.0672),
]


@pytest.mark.parametrize(("P", "M", "F", "I", "W", "p2p", "one_f_one_b", "h1", "h2"), PUBLISHED)
def test_bubble_rates_are_those_measured_in_the_zero_bubble_paper(P, M, F, I, W, p2p, one_f_one_b, h1, h2):
    assert timed("1f1b", P, M, F, I, W, p2p).bubble_ratio == close(one_f_one_b, abs=5.1e-5)
    assert timed("zb-h1", P, M, F, I, W, p2p).bubble_ratio == close(h1, abs=5.1e-5)
    assert timed("zb-h2", P, M, F, I, W, p2p).span_bubble_ratio == close(h2, abs=5.1e-5)
