"""A deadlock is found as a fact, told in words, and never guessed from a timeout."""

import inspect
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu import CLASSROOM, GPU, MismatchError
from ndparallel.engines.alone import Alone
from ndparallel.engines.launch import DeadlockError, RankError, Ranks, launch
from ndparallel.engines.shared import RUNNING, Arena, Region, SharedFile, Table
from ndparallel.engines.waiting import Waiting, deadlocked, report
from tests.support import collective_programs, rank_programs

ENGINES = ("inline", "processes")


def line_of(program, text):
    lines, first = inspect.getsourcelines(program)
    return f"rank_programs.py:{first + next(index for index, line in enumerate(lines) if text in line)}"


def deadlock(engine, world_size, program, *arguments):
    with pytest.raises(DeadlockError) as caught:
        launch(program, world_size, CLASSROOM, *arguments, engine=engine)
    return str(caught.value)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_circle_is_told_with_its_lines_of_code_and_what_lies_unread(engine):
    place = line_of(rank_programs.circle, "gpu.receive(")
    assert deadlock(engine, 2, rank_programs.circle, 2) == (
        f"deadlock: rank 0, in {place}, waits for gradients of microbatch 0 for stage 2 from rank 1, "
        f"which, in {place}, waits for gradients of microbatch 1 for stage 2 from rank 0.\n"
        "Rank 0 has not read: activations of microbatch 5 for stage 1 from rank 1."
    )


@pytest.mark.parametrize("engine", ENGINES)
def test_a_rank_that_waits_for_one_that_has_ended_is_told(engine):
    place = line_of(rank_programs.one_has_ended, "gpu.receive(")
    assert deadlock(engine, 2, rank_programs.one_has_ended) == (
        f"deadlock: rank 1, in {place}, waits for 'goodbye' from rank 0, which has ended."
    )


@pytest.mark.parametrize("engine", ENGINES)
def test_what_lies_unread_is_told_by_sender_in_whatever_order_it_came(engine):
    told = deadlock(engine, 3, rank_programs.two_left_unread)
    assert told.endswith("\nRank 0 has not read: 'one' from rank 1; 'two' from rank 2.")


@pytest.mark.parametrize("engine", ENGINES)
def test_a_collective_that_only_some_ranks_call_is_named(engine):
    place = line_of(rank_programs.all_reduce_on_some, "all_reduce(")
    assert deadlock(engine, 3, rank_programs.all_reduce_on_some) == (
        f"deadlock: rank 1, in {place}, waits for hop 0 of collective 0 of group 'dp', all_reduce ring, "
        "from rank 0, which has ended."
    )


@pytest.mark.parametrize("engine", ENGINES)
def test_a_rank_that_waits_for_itself_is_told(engine):
    assert "waits for 'goodbye' from rank 0" in deadlock(engine, 1, receive_from_oneself)


def receive_from_oneself(gpu):
    gpu.receive(gpu.rank, "goodbye")


@pytest.mark.parametrize("engine", ENGINES)
def test_a_long_circle_is_told_without_naming_every_rank(engine):
    text = deadlock(engine, 20, rank_programs.circle, 20)
    assert "and so on through 12 more ranks" in text and text.count("waits for gradients") == 8


def test_a_circle_is_found_while_a_third_rank_works_on():
    assert "deadlock: rank 0, in " in deadlock("processes", 3, rank_programs.circle_of_two_among_three)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_rank_that_has_ended_does_not_end_anothers_wait_for_a_third(engine):
    results = launch(rank_programs.ended_but_not_the_third, 3, CLASSROOM, engine=engine)
    assert [result.value for result in results] == [0, 199, 199]


def test_the_end_of_a_chain_is_not_a_deadlock_while_it_can_still_move():
    assert deadlocked({0: 1, 1: 2, 2: 3}, has_ended=lambda rank: False) == []
    assert deadlocked({0: 1, 1: 2, 2: 3}, has_ended=lambda rank: rank == 3) == [2]
    assert deadlocked({0: 1, 1: 3, 3: 2, 2: 1}, has_ended=lambda rank: False) == [1, 3, 2]
    assert deadlocked({}, has_ended=lambda rank: True) == []


def test_a_rank_is_not_stuck_while_a_message_from_the_one_it_waits_for_is_on_its_way():
    table = Table(SharedFile(3))
    table.set_waiting(0, source=1, received=0)
    assert table.idle_wait(0) == (1, 1)
    table.sent(1)[0] += 1
    assert table.idle_wait(0) is None
    table.set_waiting(0, source=1, received=1)
    assert table.idle_wait(0) == (1, 2)
    table.set_state(0, RUNNING)
    assert table.idle_wait(0) is None


def test_unread_messages_are_counted_where_they_are_too_many_to_name():
    text = report(
        [Waiting(0, 1, "this", "here.py:1", [f"message {number} from rank 1" for number in range(11)])]
    )
    assert text.endswith("message 7 from rank 1 and 3 more.")


# ---- random programs, held against an oracle of a few lines


@st.composite
def scripts(draw):
    """Sends and receives that fit together, and then, perhaps, one of them taken away or moved."""
    world_size = draw(st.integers(2, 4))
    ranks = st.integers(0, world_size - 1)
    messages = draw(st.lists(st.tuples(ranks, ranks, st.integers(0, 2)), max_size=12))
    plan: list[list] = [[] for _ in range(world_size)]
    for source, target, name in messages:
        plan[source].append(("send", target, name))
        plan[target].append(("receive", source, name))
    victim = draw(ranks)
    if plan[victim] and draw(st.booleans()):
        action = plan[victim].pop(draw(st.integers(0, len(plan[victim]) - 1)))
        if draw(st.booleans()):
            plan[victim].insert(draw(st.integers(0, len(plan[victim]))), action)
    return plan


def end(plan):
    """How a script ends: each rank goes on until it waits for what has not been sent; then what was sent and
    not received is left."""
    at, moved = [0] * len(plan), True
    sent: list = []
    while moved:
        moved = False
        for rank, script in enumerate(plan):
            while at[rank] < len(script):
                action, other, name = script[at[rank]]
                if action == "receive" and (other, rank, name) not in sent:
                    break
                if action == "receive":
                    sent.remove((other, rank, name))
                else:
                    sent.append((rank, other, name))
                at[rank], moved = at[rank] + 1, True
    if any(here < len(script) for here, script in zip(at, plan, strict=True)):
        return DeadlockError
    return MismatchError if sent else list


def outcome(ranks, plan):
    try:
        return [result.value for result in ranks.run(rank_programs.play, CLASSROOM, plan)]
    except (DeadlockError, MismatchError) as error:
        return error


@settings(max_examples=300, deadline=None)
@given(plan=scripts())
def test_inline_says_deadlock_exactly_where_a_program_cannot_end_and_mismatch_where_something_is_left(plan):
    with Ranks(len(plan), "inline") as ranks:
        assert isinstance(outcome(ranks, plan), end(plan))


@settings(max_examples=40, deadline=None)
@given(plan=scripts())
def test_processes_end_and_deadlock_where_inline_does_with_the_same_clocks(plan):
    with Ranks(len(plan), "inline") as ranks, Ranks(len(plan), "processes") as processes:
        one, other = outcome(ranks, plan), outcome(processes, plan)
        assert isinstance(other, end(plan)) and (end(plan) is DeadlockError or repr(one) == repr(other))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("program", [rank_programs.to_nobody, rank_programs.from_nobody])
def test_a_rank_that_does_not_exist_is_named_and_not_waited_for(engine, program):
    with pytest.raises(RankError, match="rank 5, but the ranks are 0 to 1"):
        launch(program, 2, CLASSROOM, engine=engine)


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (
            lambda gpu: gpu.receive(0, "never"),
            "deadlock: rank 0, in test_deadlock.py:",
        ),
        (
            lambda gpu: gpu.send(1, np.zeros(1), "there"),
            "rank 0 has a message for or from rank 1, but the ranks are 0 to 0",
        ),
    ],
)
def test_a_gpu_that_is_alone_is_told_of_what_cannot_be(ask, said):
    with pytest.raises((DeadlockError, ValueError), match=re.escape(said)):
        ask(GPU(0, CLASSROOM, Alone()))


def test_a_gpu_that_is_alone_can_talk_to_itself():
    gpu, array = GPU(0, CLASSROOM, Alone()), np.ones(3)
    gpu.send(0, array, "note")
    array[:] = 2
    assert (gpu.receive(0, "note") == 1).all()


@pytest.mark.parametrize(("collective", "algorithm"), collective_programs.PAIRS)
def test_a_deadlock_inside_any_algorithm_names_the_line_of_the_program(collective, algorithm):
    case = collective_programs.Case(collective, algorithm, (0, 1, 2, 3))
    hardware = collective_programs.hardware(gpus_per_node=2)
    with pytest.raises(DeadlockError) as caught:
        launch(collective_programs.perform_on_some, 4, hardware, case, engine="inline")
    places = re.findall(r"in (\w+\.py):\d+,", str(caught.value))
    assert set(places) == {"collective_programs.py"}


@pytest.mark.parametrize(
    ("ranks", "left_out"), [(8, ""), (9, "through 1 more rank,"), (10, "through 2 more ranks,")]
)
def test_a_circle_of_eight_is_told_whole(ranks, left_out):
    text = report([Waiting(rank, (rank + 1) % ranks, "'x'", f"p.py:{rank}", []) for rank in range(ranks)])
    assert left_out in text and ("and so on" in text) == bool(left_out)
    assert text.count("waits for 'x'") == 8


def test_the_table_has_a_row_for_each_of_many_ranks():
    file = SharedFile(100)
    table = Table(file)
    for rank in range(100):
        table.sent(rank)[99 - rank] = table.taken(99 - rank)[rank] = rank
    assert table.with_unread() == []
    table.taken(99)[0] = 7
    assert table.with_unread() == [99]
    table.close()
    file.close()


def test_a_block_lies_in_one_chunk():
    """The second array has no room behind the first one."""
    file = SharedFile(1)
    arena, arrays = (
        Arena(file, 0),
        [np.full(size, size % 251, np.uint8) for size in (100_000, 2_000_000, 100_000)],
    )
    blocks = [arena.put(array) for array in arrays]
    for block, array in zip(blocks, arrays):
        assert np.array_equal(Region(file, 0).array_at(block, np.uint8, array.shape)[0], array)
    file.close()
