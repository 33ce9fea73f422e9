"""Claims about collectives: their numbers, what they send, and what they say when called wrongly."""

import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import collectives
from collectives import (
    Group,
    all_gather,
    all_reduce,
    all_to_all,
    broadcast,
    gather,
    reduce,
    reduce_scatter,
    scatter,
)
from gpu import COLLECTIVE, GPU, SEND, MismatchError
from ndparallel.engines.launch import RankError, launch
from ndparallel.results.measure import forgotten_wait
from tests.support.collective_programs import (
    PAIRS,
    REDUCING,
    ROOTED,
    Case,
    bytes_sent,
    execute,
    expected,
    hardware,
    messages_sent,
    sequences,
)

MOVING_DATA = [pair for pair in PAIRS if pair[0] != "barrier"]
FOUR = (0, 1, 2, 3)


@given(sequences(MOVING_DATA))
@settings(max_examples=300, deadline=None)
def test_every_algorithm_gives_what_numpy_gives(drawn):
    gpus_per_node, [case] = drawn
    results = execute(hardware(gpus_per_node), case)
    for member, (rank, goal) in enumerate(zip(case.ranks, expected(case))):
        result = results[rank].value[0][0]
        assert result.dtype == goal.dtype, member
        np.testing.assert_allclose(
            result, goal, rtol=1e-3 if case.dtype == "float16" else 1e-6, err_msg=f"member {member}"
        )


@pytest.mark.parametrize(("collective", "algorithm"), MOVING_DATA)
@pytest.mark.parametrize("p", [1, 2, 4, 6, 8])
def test_numbers_are_exact_on_two_nodes(collective, algorithm, p):
    case = Case(collective, algorithm, tuple(range(p)), size=29, dtype="int64")
    results = execute(hardware(max(1, p // 2)), case)
    for result, goal in zip(results, expected(case), strict=True):
        np.testing.assert_array_equal(result.value[0][0], goal)


@pytest.mark.parametrize("collective", ["all_reduce", "reduce_scatter", "all_gather"])
@pytest.mark.parametrize(
    "ranks", [(0, 1, 2, 3, 4, 5, 6, 7), (0, 4, 1, 5, 2, 6, 3, 7), (5, 2, 7, 0, 1, 4, 3, 6)]
)
@pytest.mark.parametrize("gpus_per_node", [2, 4])
def test_hierarchical_results_lie_exactly_as_flat_ones_in_whatever_order_the_ranks_stand(
    collective, ranks, gpus_per_node
):
    flat, layered = (
        Case(collective, algorithm, ranks, 37, "int64") for algorithm in ("ring", "hierarchical")
    )
    for one, other in zip(execute(hardware(gpus_per_node), flat), execute(hardware(gpus_per_node), layered)):
        np.testing.assert_array_equal(one.value[0][0], other.value[0][0])


@pytest.mark.parametrize(("collective", "algorithm"), PAIRS)
def test_processes_and_inline_give_the_same_numbers_clocks_and_bytes(collective, algorithm):
    case = Case(collective, algorithm, (0, 1, 2, 3), size=21, starts=(0.0, 0.25, 0.5, 0.125))
    for one, other in zip(
        *(execute(hardware(2), case, engine=engine) for engine in ("inline", "processes")), strict=True
    ):
        (first, first_time), (second, second_time) = one.value[0], other.value[0]
        np.testing.assert_array_equal(first, second)
        assert (first_time, one.events) == (second_time, other.events)


# ----------------------------------------------------------------------------------------------- what is sent

WHOLE, SHARE = 8 * 840, 8 * 840 / 8  # bytes of an array of 840 float64, and of a piece on 8 ranks
MOST_BYTES_SENT = {
    ("all_reduce", "ring"): 14 * SHARE,
    ("all_reduce", "naive"): 7 * WHOLE,
    ("all_reduce", "tree"): 3 * WHOLE,
    ("all_reduce", "halving-doubling"): 14 * SHARE,
    ("all_reduce", "hierarchical"): 14 * SHARE,
    ("reduce_scatter", "ring"): 7 * SHARE,
    ("reduce_scatter", "hierarchical"): 7 * SHARE,
    ("all_gather", "ring"): 7 * SHARE,
    ("all_gather", "hierarchical"): 7 * SHARE,
    ("broadcast", "chain"): WHOLE,
    ("broadcast", "one-by-one"): 7 * WHOLE,
    ("broadcast", "binomial"): 3 * WHOLE,
    ("reduce", "one-by-one"): WHOLE,
    ("reduce", "binomial"): WHOLE,
    ("gather", "direct"): SHARE,
    ("scatter", "direct"): 7 * SHARE,
    ("all_to_all", "direct"): 7 * SHARE,
    ("barrier", "dissemination"): 0,
}


@pytest.mark.parametrize(("collective", "algorithm"), PAIRS)
def test_the_busiest_of_eight_ranks_sends_so_many_bytes(collective, algorithm):
    results = execute(hardware(4), Case(collective, algorithm, tuple(range(8)), size=840))
    assert max(map(bytes_sent, results)) == MOST_BYTES_SENT[collective, algorithm]


def test_a_ring_all_reduce_on_four_sends_one_and_a_half_times_the_array_and_not_three_times():
    results = execute(hardware(), Case("all_reduce", "ring", FOUR, size=1000))
    assert {bytes_sent(result) for result in results} == {1.5 * 8000}


def test_over_the_busiest_link_across_nodes_a_hierarchy_sends_a_seventh_of_what_a_ring_sends():
    def most_across(algorithm):
        results = execute(hardware(4), Case("all_reduce", algorithm, tuple(range(8)), size=800))
        across = [
            [event[6] for event in result.events if event[2] == SEND and event[8] // 4 != result.rank // 4]
            for result in results
        ]
        return max(map(sum, across))

    assert most_across("ring") == 14 * 800  # 2 (p-1)/p of the array
    assert most_across("hierarchical") == 2 * 800  # 2 (m-1)/m of a fourth of it


@pytest.mark.parametrize(("collective", "algorithm"), PAIRS)
def test_a_group_of_one_sends_nothing_and_takes_no_time(collective, algorithm):
    result = execute(hardware(), Case(collective, algorithm, (0,), starts=(2.0,)))[0]
    assert messages_sent(result) == 0 and result.end_seconds == 2.0


@given(sequences())
@settings(max_examples=100, deadline=None)
def test_arrays_that_are_only_sizes_take_the_same_time_and_bytes(drawn):
    gpus_per_node, [case] = drawn
    runs = (
        execute(hardware(gpus_per_node), replace(case, only_size=only_size)) for only_size in (False, True)
    )
    for real, bare in zip(*runs):
        assert (real.end_seconds, real.events) == (bare.end_seconds, bare.events)


def sum_of_a_terabyte(gpu):
    """Far more than this computer has: works only if nobody ever makes the array."""
    group, whole = Group("huge", (0, 1, 2, 3)), np.broadcast_to(np.float32(0), (1 << 38,))
    piece = np.array_split(whole, 4)[gpu.rank]
    for algorithm in ("ring", "hierarchical"):
        all_reduce(gpu, whole, group, algorithm=algorithm, async_op=True).wait()
        reduce_scatter(gpu, piece, whole, group, algorithm=algorithm)
        all_gather(gpu, whole, piece, group, algorithm=algorithm, async_op=True).wait()
    all_to_all(gpu, whole, whole, group, async_op=True).wait()
    gather(gpu, whole, piece, group)
    scatter(gpu, piece, whole, group)


def test_a_size_of_a_terabyte_needs_no_memory():
    results = launch(sum_of_a_terabyte, 4, hardware(2), engine="inline")
    labels = [event[3] for event in results[0].events if event[2] == COLLECTIVE]
    assert all(len(label) == 4 for label in labels), "group, number, collective, algorithm"
    numbers = [label[1] for label in labels]
    assert numbers == [*range(9)], "a group's collectives are numbered from 0"


# -------------------------------------------------------------------------------------------- shapes, handles


def of_many_shapes(gpu, algorithm):
    group = Group("test", FOUR)
    table = np.arange(24.0).reshape(4, 6) + gpu.rank
    scalar = np.array(float(gpu.rank))
    return [
        all_reduce(gpu, table.copy(), group, algorithm=algorithm),
        all_reduce(gpu, table.copy().T, group, algorithm=algorithm),
        all_reduce(gpu, table.copy()[:, ::2], group, algorithm=algorithm),
        all_reduce(gpu, scalar, group, algorithm=algorithm),
    ]


@pytest.mark.parametrize("algorithm", ["ring", "naive", "tree", "halving-doubling", "hierarchical"])
def test_arrays_of_any_shape_and_stride_are_reduced_in_place(algorithm):
    table = 4 * np.arange(24.0).reshape(4, 6) + 6
    for result in launch(of_many_shapes, 4, hardware(2), algorithm, engine="inline"):
        for found, goal in zip(result.value, [table, table.T, table[:, ::2], np.array(6.0)], strict=True):
            np.testing.assert_array_equal(found, goal)


IN_PLACE = ("all_reduce", "reduce", "broadcast")


def forgetful(gpu, collective, waits):
    """Returns the array that a collective is to fill, and the time."""
    group, array, output = Group("test", FOUR), np.full(8, 1.0 + gpu.rank), np.zeros(8)
    call = getattr(collectives, collective)
    if collective in IN_PLACE:
        output = array
        handle = call(gpu, array, group, async_op=True)
    elif collective in ("reduce_scatter", "scatter"):
        handle = call(gpu, output[:2], array, group, async_op=True)
    else:
        handle = call(gpu, output, array if collective == "all_to_all" else array[:2], group, async_op=True)
    if waits:
        handle.wait()
    return output, gpu.now


@pytest.mark.parametrize("collective", dict.fromkeys(pair[0] for pair in MOVING_DATA))
def test_a_forgotten_wait_leaves_the_array_as_it_was_and_the_clock_unmoved(collective):
    forgotten, waited = (
        launch(forgetful, 4, hardware(), collective, waits, engine="inline") for waits in (False, True)
    )
    for rank in FOUR:
        array, now = forgotten[rank].value
        assert now == 0 and (array == (1 + rank if collective in IN_PLACE else 0)).all()
    assert any((waited[rank].value[0] != forgotten[rank].value[0]).any() for rank in FOUR)
    assert max(waited[rank].value[1] for rank in FOUR) > 0
    assert forgotten_wait(waited) == ""
    assert f"GPU 0 never waited for its {collective} (" in forgotten_wait(forgotten)


@pytest.mark.parametrize("engine", ["inline", "processes"])
def test_every_engine_says_which_waits_were_forgotten(engine):
    results = launch(forgets_two_of_three, 2, hardware(), engine=engine)
    assert forgotten_wait(results) == (
        "GPU 0 never waited for its all_reduce (ring), collective 0 of group 'pair', nor for 1 more: no "
        "result appears without wait()."
    )


def forgets_two_of_three(gpu):
    array, pair = np.zeros(4), Group("pair", (0, 1))
    handles = [collectives.all_reduce(gpu, array, pair, async_op=True) for _ in range(3)]
    handles[1].wait()


def changed_after_the_call(gpu):
    """An asynchronous call has taken its input when it returns, whatever becomes of the array afterwards."""
    group, array, output = Group("test", FOUR), np.full(8, float(gpu.rank)), np.zeros(2)
    handles = [
        reduce_scatter(gpu, output, array, group, async_op=True),
        scatter(gpu, np.zeros(2), array, group, async_op=True),
    ]
    handles.append(all_to_all(gpu, np.zeros(8), array, group, async_op=True))
    array[:] = -1
    return [handle.wait() for handle in handles]


def test_an_asynchronous_call_takes_its_input_at_once():
    for result in launch(changed_after_the_call, 4, hardware(), engine="inline"):
        reduced, scattered, exchanged = result.value
        assert reduced.tolist() == [6, 6] and scattered.tolist() == [0, 0]
        assert exchanged.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def gather_views(gpu):
    """Every rank's piece is a view of the whole: where it belongs, and then scattered over it."""
    group, whole, other = Group("test", FOUR), np.zeros(8), np.arange(8.0)
    mine = whole[2 * gpu.rank : 2 * gpu.rank + 2]
    mine[:] = gpu.rank
    return all_gather(gpu, whole, mine, group).tolist(), all_gather(gpu, other, other[::4], group).tolist()


def test_a_piece_may_be_any_view_of_the_whole():
    for result in launch(gather_views, 4, hardware(), engine="inline"):
        assert result.value == ([0, 0, 1, 1, 2, 2, 3, 3], [0, 4] * 4)


def exchange_in_place(gpu, table):
    rows = np.array(
        [10 * gpu.rank + target for target, number in enumerate(table[gpu.rank]) for _ in range(number)]
    )
    return all_to_all(
        gpu, rows, rows, Group("test", (0, 1, 2)), [row[gpu.rank] for row in table], table[gpu.rank]
    ).tolist()


def test_an_exchange_may_be_in_place_even_where_parts_move():
    results = launch(exchange_in_place, 3, hardware(), [[1, 2, 1], [1, 1, 2], [2, 1, 1]], engine="inline")
    assert [result.value for result in results] == [[0, 10, 20, 20], [1, 1, 11, 21], [2, 12, 12, 22]]


def exchange_rows(gpu, table, async_op):
    """Row i of table[r][t] goes from r to t, as tokens go to experts. Returns what came."""
    rows = [np.full((count, 3), 10.0 * gpu.rank + target) for target, count in enumerate(table[gpu.rank])]
    came = [row[gpu.rank] for row in table]
    output = np.zeros((sum(came), 3))
    group = Group("ep", tuple(range(len(table))))
    result = all_to_all(gpu, output, np.concatenate(rows), group, came, table[gpu.rank], async_op=async_op)
    return (result.wait() if async_op else result), gpu.now


ROWS = st.integers(1, 6).flatmap(
    lambda p: st.lists(st.lists(st.integers(0, 5), min_size=p, max_size=p), min_size=p, max_size=p)
)


@given(ROWS, st.booleans())
@settings(max_examples=50, deadline=None)
def test_all_to_all_brings_uneven_rows_in_the_order_of_their_senders(table, async_op):
    for rank, result in enumerate(
        launch(exchange_rows, len(table), hardware(2), table, async_op, engine="inline")
    ):
        goal = [10.0 * source + rank for source in range(len(table)) for _ in range(table[source][rank])]
        np.testing.assert_array_equal(result.value[0], np.repeat(goal, 3).reshape(-1, 3))


# ----------------------------------------------------------------------------------------- called differently


def call(gpu, calls):
    """Member 0 makes the first of the calls, all others the second."""
    name, arguments, options = calls[min(gpu.rank, 1)]
    functions: dict[str, Callable] = {
        "all_reduce": all_reduce,
        "all_gather": all_gather,
        "broadcast": broadcast,
        "reduce_scatter": reduce_scatter,
    }
    functions[name](gpu, *arguments, Group("test", options.pop("ranks", FOUR)), **options)


ARRAY = np.zeros(8)
REDUCE: tuple = ("all_reduce", (ARRAY,), {})
DIFFERENT = [  # two calls, and what must be said of each
    (REDUCE, ("all_reduce", (np.zeros(9),), {}), "all_reduce ring sum (8,)", "all_reduce ring sum (9,)"),
    (REDUCE, ("all_reduce", (ARRAY.reshape(2, 4),), {}), "sum (8,)", "sum (2, 4)"),
    (REDUCE, ("all_reduce", (ARRAY.astype("float32"),), {}), "sum (8,) float64", "sum (8,) float32"),
    (REDUCE, ("all_reduce", (ARRAY,), {"op": "max"}), "ring sum", "ring max"),
    (REDUCE, ("all_reduce", (ARRAY,), {"algorithm": "hierarchical"}), "ring sum", "hierarchical sum"),
    (REDUCE, ("all_gather", (ARRAY, ARRAY[:2]), {}), "all_reduce ring", "all_gather ring"),
    (
        ("reduce_scatter", (ARRAY[:2], ARRAY), {}),
        ("all_gather", (ARRAY, ARRAY[:2]), {}),
        "reduce_scatter ring",
        "all_gather ring",
    ),
    (
        ("broadcast", (ARRAY,), {}),
        ("broadcast", (np.zeros(7),), {}),
        "broadcast one-by-one 0 (8,)",
        "broadcast one-by-one 0 (7,)",
    ),
    (
        ("broadcast", (ARRAY,), {}),
        ("broadcast", (ARRAY,), {"ranks": (0, 3, 2, 1)}),
        "among ranks 0, 1, 2, 3",
        "among ranks 0, 3, 2, 1",
    ),
]


@pytest.mark.parametrize("engine", ["inline", "processes"])
@pytest.mark.parametrize(("one", "other", "words_of_one", "words_of_other"), DIFFERENT)
def test_a_mismatch_names_both_ranks_and_both_calls(one, other, words_of_one, words_of_other, engine):
    with pytest.raises(MismatchError) as error:
        launch(call, 4, hardware(), (one, other), engine=engine)
    told = {
        int(rank): words
        for rank, words in re.findall(r"rank (\d) (?:waits for|sent) (.*?)(?=, rank|$)", str(error.value))
    }
    assert len(told) == 2 and words_of_one in told.pop(0)
    assert words_of_other in told.popitem()[1]


# --------------------------------------------------------------------------------------------- called wrongly


def test_a_program_that_has_not_imported_the_other_algorithms_is_told_where_they_are():
    program = """
from collectives import Group, all_reduce
from gpu import CLASSROOM, GPU, Mailboxes
from numpy import zeros
all_reduce(GPU(0, CLASSROOM, Mailboxes().of(0)), zeros(1), Group("one", (0,)), algorithm="tree")
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ran.stderr.endswith(
        "it has ring, naive, and more once ndparallel.collective.algorithms is imported.\n"
    )


ALONE = Group("test", (0,))
PAIR_OF_RANKS = Group("test", (0, 1))


def of_no_type(collective: Callable, *arguments: Any, **options: Any) -> Callable:
    return lambda gpu: collective(gpu, *arguments, **options)


WRONG = [
    (
        lambda gpu: all_reduce(gpu, ARRAY, ALONE, algorithm="rings"),
        "all_reduce has no algorithm 'rings'; it has ring, naive, tree",
    ),
    (
        lambda gpu: all_reduce(gpu, ARRAY, ALONE, op="product"),
        "no reduction 'product'; there are sum, average, max",
    ),
    (lambda gpu: all_reduce(gpu, np.zeros(3, int), ALONE, op="average"), "average of int64"),
    (
        lambda gpu: all_reduce(gpu, ARRAY, Group("tp", (1, 2))),
        "rank 0 is not in group 'tp', among ranks 1, 2",
    ),
    (lambda gpu: broadcast(gpu, ARRAY, ALONE, root=1), "members 0 to 0, and no root 1"),
    (lambda gpu: reduce(gpu, ARRAY, ALONE, root=-1), "no root -1"),
    (lambda gpu: gather(gpu, None, ARRAY, ALONE), "`output`"),
    (
        lambda gpu: gather(gpu, ARRAY.copy(), np.zeros(1), ALONE),
        "`piece` has 1 element; this rank's piece has 8",
    ),
    (lambda gpu: scatter(gpu, ARRAY, None, ALONE), "`array`"),
    (
        lambda gpu: reduce_scatter(gpu, np.zeros(7), ARRAY, ALONE),
        "`output` has 7 elements; this rank's piece has 8",
    ),
    (
        lambda gpu: all_gather(gpu, ARRAY.copy(), np.zeros(9), ALONE),
        "`piece` has 9 elements; this rank's piece has 8",
    ),
    (
        lambda gpu: all_to_all(gpu, ARRAY, ARRAY, PAIR_OF_RANKS, [4, 4], [4, 5]),
        "`input_splits` must be 2 whole numbers that add up to",
    ),
    (
        lambda gpu: all_to_all(gpu, ARRAY, ARRAY, PAIR_OF_RANKS, [8], [4, 4]),
        "`output_splits` must be 2 whole numbers",
    ),
    (lambda gpu: all_to_all(gpu, ARRAY, ARRAY, PAIR_OF_RANKS, [9, -1], [4, 4]), "not \\[9, -1\\]"),
    (lambda gpu: all_to_all(gpu, ARRAY, ARRAY, PAIR_OF_RANKS, [3, 5], [4, 4]), "sends itself"),
    (of_no_type(all_to_all, ARRAY, ARRAY, PAIR_OF_RANKS, [4.0, 4.0], [4, 4]), "not \\[4.0, 4.0\\]"),
    (of_no_type(all_to_all, ARRAY, ARRAY, PAIR_OF_RANKS, 4, [4, 4]), "rows, not 4"),
    (of_no_type(all_reduce, np.frombuffer(bytes(8)), ALONE), "read-only"),
    (of_no_type(all_reduce, np.array(["a"]), ALONE), "an array of <U1 has no sum over ranks"),
    (of_no_type(all_reduce, ARRAY, ALONE, op=["sum"]), r"no reduction \['sum'\]"),
    (of_no_type(all_reduce, ARRAY, ALONE, op=np.add), "no reduction <ufunc 'add'>"),
    (of_no_type(all_reduce, ARRAY, ALONE, algorithm=["ring"]), r"no algorithm \['ring'\]"),
    (of_no_type(broadcast, ARRAY, ALONE, root="0"), "no root '0'"),
    (of_no_type(broadcast, ARRAY, ALONE, root=np.array([0])), r"no root array\(\[0\]\)"),
    (of_no_type(all_reduce, ARRAY, Group("dp", ())), "group 'dp', which has no ranks"),
]
NO_ARRAYS = [
    lambda gpu, what: all_gather(gpu, ARRAY.copy(), what, ALONE),
    lambda gpu, what: all_to_all(gpu, what, ARRAY, ALONE),
    lambda gpu, what: all_to_all(gpu, ARRAY, what, ALONE),
    lambda gpu, what: gather(gpu, ARRAY.copy(), what, ALONE),
    lambda gpu, what: reduce_scatter(gpu, what, ARRAY, ALONE),
    lambda gpu, what: scatter(gpu, what, ARRAY, ALONE),
]


@pytest.mark.parametrize(("call_it", "said"), WRONG)
def test_what_cannot_be_meant_is_one_clear_sentence(call_it, said):
    with pytest.raises(ValueError, match=said) as error:
        call_it(GPU(0, hardware(), None))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("call_it", NO_ARRAYS)
def test_a_list_or_nothing_in_place_of_an_array_is_one_clear_sentence(call_it):
    for what, kind in (([1.0] * 8, "list"), (None, "NoneType")):
        with pytest.raises(TypeError, match=f"works in a numpy array, and this is of the type {kind}"):
            call_it(GPU(0, hardware(), None), what)


def test_rows_of_an_array_without_dimensions_are_refused():
    with pytest.raises(TypeError, match="exchanges rows, and an array without dimensions has none"):
        all_to_all(GPU(0, hardware(), None), np.zeros(()), np.zeros(()), ALONE)


@pytest.mark.parametrize("ranks", [2, (0.0, 1.0), "01", None], ids=str)
def test_ranks_of_a_group_that_are_no_whole_numbers_are_refused(ranks):
    with pytest.raises(TypeError, match="the ranks of group 'dp' are .*: give whole numbers"):
        Group("dp", ranks)


@pytest.mark.parametrize("ranks", [[0, 1], range(2), np.arange(2), np.arange(2, dtype="uint8")], ids=str)
def test_a_group_may_be_made_of_any_whole_numbers(ranks):
    assert Group("dp", ranks) == Group("dp", (0, 1)) and {*map(type, Group("dp", ranks).ranks)} == {int}


def test_a_hierarchy_of_uneven_nodes_is_refused():
    with pytest.raises(
        RankError, match="as many members in every node; group 'test' has 2, 1: choose another"
    ):
        execute(hardware(2), Case("all_reduce", "hierarchical", (0, 1, 2)))


def test_every_collective_is_in_these_tests():
    assert set(MOST_BYTES_SENT) == set(PAIRS)
    assert {pair[0] for pair in PAIRS} >= {*REDUCING, *ROOTED, "all_gather", "all_to_all", "barrier"}


def rooted_without_a_word(gpu):
    """Rank 0 is the root of what names none. Returns what each holds then."""
    pair = Group("pair", (0, 1))
    summed, told = np.full(2, gpu.rank + 1.0), np.full(2, gpu.rank + 5.0)
    gathered, scattered = np.zeros(2), np.zeros(1)
    reduce(gpu, summed, pair)
    broadcast(gpu, told, pair)
    gather(gpu, gathered, np.full(1, gpu.rank + 7.0), pair)
    scatter(gpu, scattered, np.array([8.0, 9.0]) if gpu.rank == 0 else None, pair)
    return [array.tolist() for array in (summed, told, gathered, scattered)]


def test_the_root_is_the_first_member_where_none_is_named():
    results = launch(rooted_without_a_word, 2, hardware(), engine="inline")
    assert [result.value for result in results] == [
        [[3.0, 3.0], [5.0, 5.0], [7.0, 8.0], [8.0]],
        [[2.0, 2.0], [5.0, 5.0], [0.0, 0.0], [9.0]],
    ]


def alone(gpu):
    all_reduce(gpu, np.ones(2), Group("one", (gpu.rank,)))


def test_a_group_of_one_sends_nothing_takes_no_time_and_leaves_no_event():
    (result,) = launch(alone, 1, hardware(), engine="inline")
    assert (result.events, result.end_seconds) == ([], 0)
