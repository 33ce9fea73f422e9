"""What both engines promise of a message: it is a copy, it never blocks its sender, and it is found by its
name."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from gpu import CLASSROOM, MismatchError
from ndparallel.base import bfloat16
from ndparallel.engines.frame import frame_of, header_of, message_of
from ndparallel.engines.launch import Ranks, launch
from tests.support import rank_programs

ROOT = Path(__file__).resolve().parents[2]
ENGINES = ("inline", "processes")


@pytest.fixture(scope="module", params=ENGINES)
def two(request):
    with Ranks(2, request.param) as ranks:
        yield ranks


@pytest.mark.parametrize("name", rank_programs.odd_arrays())
def test_an_array_of_any_kind_arrives_as_it_was_sent(two, name):
    sent = rank_programs.odd_arrays()[name]
    (received,) = two.run(rank_programs.echo_odd, CLASSROOM, name)[1].value
    assert (received.dtype, received.shape) == (sent.dtype, sent.shape)
    np.testing.assert_array_equal(received, sent)
    assert received.flags.writeable


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_arrays_of_any_shape_and_size_arrive_as_they_were_sent(two, data):
    dtypes = st.sampled_from([np.float32, np.float64, np.int8, np.uint16, np.complex64, np.bool_])
    shapes = arrays_of.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=30)
    sent = data.draw(st.lists(arrays_of.arrays(dtypes, shapes), min_size=1, max_size=5))
    for one, other in zip(sent, two.run(rank_programs.echo, CLASSROOM, sent)[1].value, strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("shape", [(), (1,), (5,), (3, 4), (10**6, 10**6)])
def test_a_size_stays_a_size_and_costs_no_memory(two, shape):
    (received,) = two.run(send_size, CLASSROOM, shape)[1].value
    assert received == (shape, 4 * int(np.prod(shape, dtype=object)), 7.0, False)


def send_size(gpu, shape):
    if gpu.rank == 0:
        gpu.send(1, np.broadcast_to(np.float32(7), shape), "size")
        return None
    array = gpu.receive(0, "size")
    return [
        (
            array.shape,
            array.nbytes,
            float(array[(0,) * array.ndim]),
            array.flags.writeable or any(array.strides),
        )
    ]


@pytest.mark.parametrize(("messages", "size"), [(2000, 10), (300, 1000), (20, 2_000_000)])
def test_a_send_never_blocks(two, messages, size):
    values = [result.value for result in two.run(rank_programs.flood, CLASSROOM, messages, size)]
    assert values == [sum(range(messages))] * 2


def test_a_rank_ends_although_another_never_reads_what_it_sent(two):
    with pytest.raises(MismatchError, match="Rank 1 has not read: 'unread' from rank 0; .* and 492 more"):
        two.run(rank_programs.leave_unread, CLASSROOM, 500, 3000)


def test_messages_are_found_by_name_in_any_order(two):
    assert two.run(rank_programs.last_first, CLASSROOM, 100)[1].value == list(reversed(range(100)))


def test_messages_of_one_name_come_in_the_order_in_which_they_were_sent_even_from_a_rank_that_has_ended(two):
    assert two.run(rank_programs.equal_names, CLASSROOM, 5000)[1].value == list(range(5000))


def test_a_name_may_be_longer_than_a_frame(two):
    assert [result.value for result in two.run(rank_programs.long_name, CLASSROOM)] == [[0, 1, 2]] * 2


@pytest.mark.parametrize(
    "array", [np.zeros(1_000_000, np.uint8), bfloat16.narrow(np.zeros(500_000, np.float32))]
)
def test_blocks_are_used_again(array):
    results = launch(blocks_of_ping_pong, 2, CLASSROOM, 100, array, engine="processes")
    # neither can be more than one round ahead of the other
    assert all(result.value <= 2 for result in results)


def blocks_of_ping_pong(gpu, rounds, array):
    for number in range(rounds):
        gpu.send(1 - gpu.rank, array, number)
        gpu.receive(1 - gpu.rank, number, into=array)
    return sum(len(blocks) for blocks in gpu.transport.arena.blocks.values())


def test_inline_runs_thousands_of_ranks():
    results = launch(
        rank_programs.ring_of, 2000, CLASSROOM, 1, 5, "float32", engine="inline", keep_events=False
    )
    assert len(results) == 2000


DEBUGGED = """
from tests.support import rank_programs
from gpu import CLASSROOM, MismatchError
from ndparallel.engines.launch import launch

print("result", launch(rank_programs.stop_in_debugger, 3, CLASSROOM, engine="inline")[2].value)
"""


def test_a_debugger_stops_every_rank_of_inline_in_the_middle_of_its_program():
    environment = os.environ | {"PYTHONPATH": f"{ROOT}"}
    commands = "p 'in rank', gpu.rank\ncontinue\n" * 3
    done = subprocess.run(
        [sys.executable, "-c", DEBUGGED],
        env=environment,
        input=commands,
        capture_output=True,
        text=True,
        check=True,
    )
    assert [line[-2] for line in done.stdout.splitlines() if "in rank" in line] == [
        "0",
        "1",
        "2",
    ] and "result 3" in done.stdout


LEAVES = (
    st.none()
    | st.booleans()
    | st.text(max_size=3)
    | st.integers()
    | st.just(1 << 63)
    | st.floats(allow_nan=False)
)
NUMBERED = st.tuples(st.tuples(st.sampled_from(["dp", ""]) | LEAVES, LEAVES), LEAVES)
NAMES = NUMBERED | st.recursive(LEAVES, lambda some: st.lists(some, max_size=3).map(tuple))


@given(NAMES, st.integers(0, 700))
@example((("dp", 3), 5), 1)
@example((("dp", True), 5), 1)
@example((("dp", 1 << 63), 5), 1)
@example((("dp", (1 << 63) - 1), 0), 1)
@example((("", 3), 5), 1)
def test_a_message_comes_out_of_its_frame_as_it_went_in_whatever_its_name_is(name, size):
    array, blocks = np.arange(size, dtype=np.float32), []
    message = (name, ("all_reduce", "ring"), 0.1, 0.25, 1e-9, array, None)

    def block_of(large):
        blocks.append(large)
        return 5

    frame = frame_of(7, 2, message, block_of)
    header = header_of(frame)
    assert header[:3] == (len(frame), 7, 2)
    *same, found, _ = message_of(header, frame, lambda block, dtype, shape: (blocks[0], None))
    assert (repr(same), found.tolist()) == (repr([*message[:5]]), array.tolist())
