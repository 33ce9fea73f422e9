"""One GPU by itself: its streams, its line, its memory and its events, with numbers that can be followed by
hand."""

import runpy
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gpu import (
    CLASSROOM,
    COMPUTE,
    GPU,
    MEMORY,
    RECEIVE,
    SEND,
    WAIT,
    Event,
    Hardware,
    Link,
    Mailboxes,
    MismatchError,
    Operation,
    OutOfMemoryError,
    demonstration,
    story,
)

# a FLOP and a byte moved take a second each; a byte sent takes 1 s, and 10 s across nodes of two
SLOW = Hardware("slow", 1.0, 1.0, 0.25, 100, 2, Link(0.5, 1.0), Link(5.0, 0.1))
BYTE = np.zeros(1, np.uint8)


def gpus(count=2, hardware=SLOW):
    boxes = Mailboxes()
    return [GPU(rank, hardware, boxes.of(rank)) for rank in range(count)]


def work(seconds):
    return Operation("work", flops=seconds, kernels=0)


def times(gpu, kind):
    return [event[4:6] for event in gpu.events if event[2] == kind]


@pytest.mark.parametrize(("flops", "moved", "seconds"), [(8.0, 3.0, 8.0), (3.0, 8.0, 8.0), (0.0, 0.0, 0.0)])
def test_an_operation_takes_the_longer_of_computing_and_moving_and_its_launches(flops, moved, seconds):
    (gpu,) = gpus(1)
    gpu.compute(Operation("work", flops=flops, bytes=moved, kernels=2))
    assert gpu.now == seconds + 2 * 0.25
    arrays: dict[str, Any] = {"flops": np.array([flops]), "bytes": np.array([moved])}
    assert SLOW.seconds(Operation("work", kernels=2, **arrays)) == [seconds + 2 * 0.25]


def test_an_operation_of_which_nothing_is_said_is_one_launch():
    (gpu,) = gpus(1)
    gpu.compute(Operation("work"))
    assert gpu.now == 0.25


def test_ranks_of_a_node_have_the_link_inside_and_others_the_one_across():
    assert [SLOW.link(0, other) for other in (1, 2, 3)] == [SLOW.inside, SLOW.across, SLOW.across]
    assert SLOW.link(2, 3) == SLOW.link(3, 2) == SLOW.inside


def test_a_sender_is_busy_for_the_bytes_and_a_receiver_waits_for_latency_too():
    first, second = gpus()
    first.compute(work(2.0))
    first.send(1, np.zeros(3, np.uint8), "three")
    second.receive(0, "three")
    assert (first.now, second.now) == (5.0, 2.0 + 0.5 + 3.0)
    assert (times(first, SEND), times(second, RECEIVE)) == ([(2.0, 5.0)], [(2.0, 5.5)])


def test_many_senders_queue_at_one_receivers_line():
    receiver, *senders = gpus(4, replace(SLOW, gpus_per_node=4))
    for sender in senders:
        sender.send(0, BYTE, "one")
    for sender in senders:
        receiver.receive(sender.rank, "one")
    assert receiver.now == 0.5 + 3 * 1.0


def test_a_message_that_has_come_already_takes_no_time():
    first, second = gpus()
    first.send(1, BYTE, "early")
    second.compute(work(4.0))
    second.receive(0, "early")
    assert second.now == 4.0 and times(second, RECEIVE) == [(4.0, 4.0)]


def test_a_receive_begins_when_its_message_leaves_or_when_it_is_asked_for():
    first, second = gpus()
    first.compute(work(3.0))
    first.send(1, BYTE, "late")
    second.receive(0, "late")
    first.send(1, BYTE, "later")
    second.compute(work(0.25))
    second.receive(0, "later")
    assert times(second, RECEIVE) == [(3.0, 4.5), (4.75, 5.5)]


@pytest.mark.parametrize("into", [np.zeros(2, np.uint8), np.zeros(1, np.int8)])
def test_a_message_of_another_shape_or_type_than_is_wanted_is_a_mismatch(into):
    first, second = gpus()
    first.send(1, BYTE, "one")
    with pytest.raises(MismatchError):
        second.receive(0, "one", into)


def test_another_stream_begins_where_the_caller_is_and_the_caller_goes_on():
    (gpu,) = gpus(1)
    gpu.compute(work(2.0))
    handle = gpu.isend(1, np.zeros(3, np.uint8), "three")
    assert (handle.start, handle.end, gpu.now, gpu.end) == (2.0, 5.0, 2.0, 5.0)
    gpu.compute(work(1.0))
    again = gpu.isend(1, np.zeros(3, np.uint8), "three")
    assert (again.start, again.end) == (5.0, 8.0)


def test_a_wait_begins_when_the_work_does_or_when_it_is_asked_for_and_ends_with_it():
    (gpu,) = gpus(1)
    first = gpu.isend(1, np.zeros(4, np.uint8), "first")
    second = gpu.isend(1, np.zeros(2, np.uint8), "second")
    gpu.compute(work(1.0))
    second.wait()  # before which it stands behind the first
    first.wait()
    assert (second.start, second.end, gpu.now) == (4.0, 6.0, 6.0)
    assert times(gpu, WAIT) == [(4.0, 6.0)]
    (wait,) = (event for event in map(Event._make, gpu.events) if event.kind == WAIT)
    assert (wait.bytes, wait.flops) == (0, 0)
    third = gpu.isend(1, np.zeros(4, np.uint8), "third")
    gpu.compute(work(1.0))
    third.wait()
    assert times(gpu, WAIT)[1:] == [(7.0, 10.0)]


def test_an_announced_receive_hides_behind_compute_and_its_result_comes_at_its_wait():
    first, second = gpus()
    handle = second.irecv(0, "one").then(lambda array: array + 1)
    first.send(1, BYTE, "one")
    second.compute(work(1.0))
    assert handle.wait() == 1 and handle.wait() == 1
    assert (handle.start, handle.end, second.now) == (0.0, 1.5, 1.5)
    assert times(second, WAIT) == [(1.0, 1.5)]


def test_a_classroom_gpu_holds_a_gigabyte_and_not_a_byte_more():
    gpu = GPU(0, CLASSROOM, Mailboxes().of(0))
    assert sum(gpu.peak_bytes.values()) == 0
    gpu.allocate("weights", 1e9)
    assert gpu.peak_bytes["weights"] == 1e9
    with pytest.raises(OutOfMemoryError):
        gpu.allocate("buffers", 1)


def test_memory_that_is_full_to_the_last_byte_is_not_exceeded_and_one_more_is():
    (gpu,) = gpus(1)
    gpu.allocate("weights", 60)
    gpu.allocate("activations", 40)
    assert gpu.peak_bytes["weights"] == 60 and gpu.peak_bytes["activations"] == 40
    with pytest.raises(OutOfMemoryError):
        gpu.allocate("buffers", 1)


def test_the_peak_is_what_was_held_when_it_was_most_and_of_equals_the_first():
    (gpu,) = gpus(1)
    gpu.allocate("weights", 10)
    gpu.allocate("activations", 20)
    gpu.free("activations", 20)
    gpu.allocate("buffers", 20)
    assert (gpu.peak_bytes["activations"], gpu.peak_bytes["buffers"]) == (20, 0)
    gpu.allocate("buffers", 1)
    assert (gpu.peak_bytes["activations"], gpu.peak_bytes["buffers"]) == (0, 21)
    assert gpu.held_bytes["weights"] == 10 and gpu.held_bytes["activations"] == 0


@pytest.mark.parametrize("flops", [float("nan"), float("inf")])
def test_no_clock_can_add_what_is_no_time(flops):
    (gpu,) = gpus(1)
    with pytest.raises(ValueError, match="no clock can add that"):
        gpu.compute(Operation("work", flops=flops))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"kernels": -1}, "`kernels` must be a number of at least 0"),
        ({"flops": -2.0}, "`flops` must be a number of at least 0"),
        ({"flops": "2e9"}, "`flops` must be a number of at least 0"),
        ({"bytes": np.ones(2)}, "`bytes` must be a number of at least 0"),
        ({"flops": 2.0, "shape": [4, 4, 4]}, r"`shape` must be a tuple, as \(m, n, k\)"),
    ],
)
def test_an_operation_that_cannot_be_is_refused_with_its_field(fields, said):
    (gpu,) = gpus(1)
    with pytest.raises((ValueError, TypeError), match=f"GPU 0 computes .*: {said}"):
        gpu.compute(Operation("work", **fields))
    assert gpu.now == 0


def test_an_operation_may_have_numbers_of_numpys():
    one, other = gpus(2)
    one.compute(Operation("work", flops=20, bytes=4))
    other.compute(Operation("work", flops=np.float32(20), bytes=np.int64(4)))  # type: ignore[arg-type]
    assert one.now == pytest.approx(other.now) and one.now > 0


@pytest.mark.parametrize("what", ["matmul", 5])
def test_what_is_no_operation_is_told_how_one_is_made(what):
    with pytest.raises(TypeError, match=f"GPU 0 computes {what!r}, which is no operation: make one, as"):
        gpus(1)[0].compute(what)


def test_a_kind_of_memory_that_there_is_not_is_told_those_that_there_are():
    (gpu,) = gpus(1)
    for count in (gpu.allocate, gpu.free):
        with pytest.raises(ValueError, match="no memory of the kind 'weight'; there are weights, gradients"):
            count("weight", 4)


def test_events_say_who_did_what_from_when_to_when_with_bytes_flops_and_peer():
    first, _ = gpus()
    first.compute(Operation("work", flops=2.0, bytes=1.0, kernels=0), "a name")
    first.send(1, BYTE, "one")
    assert first.events == [
        (0, COMPUTE, COMPUTE, "a name", 0.0, 2.0, 1.0, 2.0, None),
        (0, COMPUTE, SEND, "one", 2.0, 3.0, 1, 0, 1),
    ]


def test_a_message_that_came_and_memory_that_was_given_back_are_events_too():
    first, second = gpus()
    first.send(1, BYTE, "one")
    second.receive(0, "one")
    second.allocate("buffers", 3)
    second.free("buffers", 2)
    assert second.events == [
        (1, COMPUTE, RECEIVE, "one", 0.0, 1.5, 1, 0, 0),
        (1, COMPUTE, MEMORY, "buffers", 1.5, 1.5, 3, 0, None),
        (1, COMPUTE, MEMORY, "buffers", 1.5, 1.5, 1, 0, None),
    ]


def test_the_screen_of_four_gpus_takes_the_seconds_of_the_blackboard():
    """0.1 s a unit of compute; 0.05 s and 0.01 s for each of 500 units of a message: in 6 hops
    whole, or in 6 steps a quarter."""
    assert demonstration() == pytest.approx(
        {
            "one GPU": 32.0,
            "four GPUs, sum passed on whole": 8.0 + 6 * (0.05 + 5.0),
            "four GPUs, ring": 8.0 + 6 * (0.05 + 1.25),
        }
    )


def run_gpu_py(monkeypatch, *options, name="__main__"):
    monkeypatch.setattr("sys.argv", ["gpu.py", *options])
    try:
        runpy.run_path(f"{Path(__file__).parents[1] / 'gpu.py'}", run_name=name)
    except SystemExit as end:
        return end.code


def test_the_first_lesson_is_told_where_the_file_is_run_and_not_where_it_is_imported(monkeypatch, capsys):
    assert run_gpu_py(monkeypatch, name="gpu") is None and capsys.readouterr().out == ""
    assert run_gpu_py(monkeypatch) == 0 and capsys.readouterr().out == story()


def test_the_first_lesson_has_help_and_refuses_other_options_in_a_sentence(monkeypatch, capsys):
    assert run_gpu_py(monkeypatch, "--help") == 0
    helped = capsys.readouterr().out
    assert "Glossary\n    rank      a GPU's number" in helped and "32.0 s" not in helped
    assert run_gpu_py(monkeypatch, "--gpus", "3") == 2
    refused = capsys.readouterr()
    assert refused.out == "" and refused.err == (
        "error: unrecognized arguments: --gpus 3 (gpu.py --help tells what there is).\n"
    )


def test_collectives_py_tells_what_each_of_its_algorithms_does_in_the_seconds_of_gpu_py():
    path = Path(__file__).parents[1] / "collectives.py"
    told = subprocess.run([sys.executable, path], capture_output=True, text=True, check=True).stdout
    rows = {tuple(line.split()[:2]): line for line in told.splitlines() if " s  " in line}
    seconds = {"ring": 2 * 3 * (0.05 + 1.25), "naive": 2 * 0.05 + 6 * 5.0}
    assert len(rows) == 10 and {
        name: f"{its:.2f} s" in rows["all_reduce", name] for name, its in seconds.items()
    } == {"ring": True, "naive": True}
    assert "Reduce-scatter, then all-gather" in rows["all_reduce", "ring"]
    on_one_gpu, in_all = 8.0, 38.3  # gpu.py's, in README
    assert f"whole sum that `python gpu.py` passes on takes {in_all - on_one_gpu:.1f} s" in told


def test_a_message_in_the_transports_memory_is_copied_before_that_is_given_back():
    one, two = gpus()
    one.send(1, BYTE + 7, "x")
    message = two.transport.wait(0, "x")
    shared = message[5]
    two.transport = SimpleNamespace(wait=lambda source, what: (*message[:6], lambda: shared.fill(0)))
    assert two.receive(0, "x") == 7 and shared == 0
