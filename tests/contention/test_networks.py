"""What shared ports and the order of arrival do to messages, in numbers that a blackboard gives.

Links carry 4 bytes a second inside a node of two GPUs, 2 across, with a latency of 1/8 and 1/4 s.
"""

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu import GPU, Link, Operation
from ndparallel.contention.agenda import Moment
from ndparallel.contention.networks import (
    ArrivalOrder,
    Flow,
    ProgramOrder,
    SharedPorts,
    Transfer,
    max_min_rates,
)
from ndparallel.contention.replay import replay
from ndparallel.engines.launch import launch
from ndparallel.hardware.disturbances import Disturbances
from tests.support.random_programs import HARDWARE


def seconds(program, network, hardware=HARDWARE):
    """When each of four ranks ends."""
    results = launch(program, 4, hardware, engine="inline", keep_journal=True)
    return replay([result.journal for result in results], hardware, network)


def zeros(size):
    return np.zeros(size, np.uint8)


def two_streams_to_two_nodes(gpu: GPU) -> None:
    if gpu.rank == 0:
        for target in (2, 3):
            gpu.isend(target, zeros(4), "x", stream=f"to {target}")
    elif gpu.rank > 1:
        gpu.receive(0, "x")


def test_two_messages_that_leave_by_one_port_take_twice_as_long():
    assert seconds(two_streams_to_two_nodes, ProgramOrder) == [2, 0, 2.25, 2.25]
    assert seconds(two_streams_to_two_nodes, SharedPorts) == [4, 0, 4.25, 4.25]


def two_streams_to_two_ports(gpu: GPU) -> None:
    if gpu.rank == 0:
        gpu.isend(1, zeros(4), "x", stream="inside")
        gpu.isend(2, zeros(4), "x", stream="across")
    elif gpu.rank in (1, 2):
        gpu.receive(0, "x")


def test_the_port_to_the_node_and_the_port_to_others_do_not_slow_one_another():
    assert seconds(two_streams_to_two_ports, SharedPorts) == [2, 1.125, 2.25, 0]
    assert seconds(two_streams_to_two_ports, ProgramOrder) == [2, 1.125, 2.25, 0]


def two_to_one(gpu: GPU) -> None:
    if gpu.rank in (0, 1):
        gpu.send(2, zeros(4), "x")
        gpu.compute(Operation("then", flops=1.0))
    elif gpu.rank == 2:
        for source in (0, 1):
            gpu.receive(source, "x")


def test_many_senders_to_one_receiver_are_not_counted_twice():
    for network in (ProgramOrder, ArrivalOrder, SharedPorts):
        assert seconds(two_to_one, network)[2] == 4.25, network


def test_a_sender_is_busy_as_long_as_its_receiver_takes():
    assert seconds(two_to_one, ProgramOrder)[:2] == [3, 3]
    assert seconds(two_to_one, SharedPorts)[:2] == [5, 5]


def test_a_slow_link_is_a_cap_and_what_it_leaves_of_the_port_is_anothers():
    """The link from 0 to 2 has a quarter of the port's 2 bytes a second: the other message has the rest."""
    slow = replace(HARDWARE, disturbances=Disturbances(slow_links=((0, 2, 4.0),)))
    assert seconds(two_streams_to_two_nodes, SharedPorts, slow) == [8, 0, 8.25, 4 / 1.5 + 0.25]


def first_late_then_early(gpu: GPU) -> None:
    if gpu.rank == 0:
        gpu.compute(Operation("late", flops=4.0))
    if gpu.rank in (0, 1):
        gpu.send(2, zeros(4), "x")
    elif gpu.rank == 2:
        for source in (0, 1):
            gpu.receive(source, "x")


def test_a_line_that_takes_messages_as_they_arrive_does_not_wait_for_what_is_asked_for_first():
    assert seconds(first_late_then_early, ProgramOrder)[2] == 4 + 0.25 + 2 + 2
    assert seconds(first_late_then_early, ArrivalOrder)[2] == 4 + 0.25 + 2
    assert seconds(first_late_then_early, SharedPorts)[2] == 4 + 0.25 + 2


def opposite(gpu: GPU) -> None:
    """Receive first what arrives last, while what is computed with comes first."""
    if gpu.rank == 0:
        gpu.send(2, zeros(8), "long")
    elif gpu.rank == 1:
        gpu.compute(Operation("a little later", flops=0.5))
        gpu.send(2, zeros(2), "short")
    elif gpu.rank == 2:
        gpu.receive(1, "short")
        gpu.compute(Operation("with it", flops=3.0))
        gpu.receive(0, "long")


def test_the_order_of_arrival_may_also_be_the_longer_one():
    assert seconds(opposite, ProgramOrder)[2] == 0.5 + 0.25 + 1 + 3 + 1
    assert seconds(opposite, ArrivalOrder)[2] == 0.25 + 4 + 1 + 3


def together(gpu: GPU) -> None:
    if gpu.rank in (0, 1):
        gpu.send(2, zeros(4), "x")
    elif gpu.rank == 2:
        gpu.receive(1, "x")
        gpu.compute(Operation("with it", flops=3.0))
        gpu.receive(0, "x")


def test_of_messages_that_arrive_together_the_one_that_is_received_first_is_taken_first():
    assert seconds(together, ArrivalOrder) == seconds(together, ProgramOrder) == [2, 2, 0.25 + 2 + 3, 0]


def just_now(gpu: GPU) -> None:
    """A message that was under way for a while, and one that needs no time to be there and leaves when the
    other arrives: it is received first."""
    if gpu.rank == 0:
        gpu.send(2, zeros(4), "far")
    elif gpu.rank == 3:
        for seconds in (0.125, 0.125):
            gpu.compute(Operation("until the other arrives", flops=seconds))
        gpu.send(2, zeros(4), "near")
    elif gpu.rank == 2:
        near, far = gpu.irecv(3, "near"), gpu.irecv(0, "far")
        near.wait()
        gpu.compute(Operation("with it", flops=3.0))
        far.wait()


def test_a_message_that_leaves_just_when_another_arrives_is_there_as_soon_if_it_needs_no_time():
    at_once = replace(HARDWARE, inside=Link(0.0, 4.0))
    for network in (ProgramOrder, ArrivalOrder):
        assert seconds(just_now, network, at_once)[2] == 0.25 + 1 + 3, network


def one_after_another(gpu: GPU, size: int) -> None:
    """Send on one stream, and just when that is done on another, by the same port."""
    if gpu.rank == 0:
        gpu.isend(2, zeros(size), "x", stream="a")
        gpu.compute(Operation("meanwhile", flops=size))
        gpu.isend(3, zeros(size), "x", stream="b")
    elif gpu.rank > 1:
        gpu.receive(0, "x")


def test_messages_that_touch_but_do_not_overlap_are_not_slowed_in_the_last_digit():
    uneven = replace(HARDWARE, flops_per_second=3.0, across=Link(0.1, 3.0))
    for size in range(1, 40):
        results = launch(one_after_another, 4, uneven, size, engine="inline", keep_journal=True)
        journals = [result.journal for result in results]
        assert replay(journals, uneven, SharedPorts) == [result.end_seconds for result in results]


def chained(gpu: GPU) -> None:
    """Two small messages of GPU 0 and a large one of GPU 1 come in by GPU 2's port; another large one leaves
    GPU 1 by the same port as the first."""
    if gpu.rank == 0:
        for stream in "ab":
            gpu.isend(2, zeros(4), stream, stream)
    elif gpu.rank == 1:
        gpu.isend(2, zeros(12), "large", "a")
        gpu.isend(3, zeros(12), "large", "b")
    elif gpu.rank == 2:
        for source, what in ((0, "a"), (0, "b"), (1, "large")):
            gpu.receive(source, what)
    else:
        gpu.receive(1, "large")


def test_what_ends_at_one_port_also_slows_what_shares_another_port_with_its_neighbour():
    """Until 6 s the three that share GPU 2's port have 2/3 of a byte a second each, and GPU 1's other message
    4/3; then its two have 1 each until 10 s, and the last one 2 until 12 s."""
    assert seconds(chained, SharedPorts) == pytest.approx([6, 12, 12.25, 10.25], rel=1e-12)


# ------------------------------------------------------------------------------------------------ fair rates


def transfers_of(pairs, capacity):
    """A transfer for each pair of a sender and a receiver, whose ports have these bytes a second."""
    flow = Flow(0, (1, ""), 0, 1, HARDWARE.inside, 0.0, Moment(), Moment())
    return [
        Transfer(flow, {("out", a): capacity[a], ("in", b): capacity[b], (a, b): 4.0}, 1.0, 0.0)
        for a, b in pairs
    ]


def test_what_the_scarcest_port_leaves_of_another_is_divided_among_the_others():
    transfers = transfers_of([(0, 9), (1, 9), (2, 9), (2, 8)], dict.fromkeys(range(10), 3.0))
    assert list(max_min_rates(transfers).values()) == [1, 1, 1, 2]


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=12),
    st.lists(st.integers(1, 7), min_size=5, max_size=5),
)
def test_fair_rates_are_max_min(pairs, capacity):
    """Bertsekas and Gallager's criterion: nothing is over its bandwidth, and every message meets a limit that
    is used up and on which nobody is faster than it."""
    transfers = transfers_of(pairs, capacity)
    rates = max_min_rates(transfers)
    used: dict = defaultdict(float)
    fastest: dict = defaultdict(float)
    most: dict = {}
    for transfer, rate in rates.items():
        for limit, bandwidth in transfer.limits.items():
            used[limit] += rate
            fastest[limit] = max(fastest[limit], rate)
            most[limit] = bandwidth
    assert all(used[limit] <= most[limit] * (1 + 1e-9) for limit in used)
    for transfer in transfers:
        assert any(
            used[limit] == pytest.approx(most[limit]) and fastest[limit] == pytest.approx(rates[transfer])
            for limit in transfer.limits
        )
