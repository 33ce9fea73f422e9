"""The Chrome trace: complete, nested, every arrow with both ends, memory as counted."""

import json
from collections import Counter, defaultdict

import numpy as np
import pytest

from gpu import COLLECTIVE, GPU, MEMORY, RECEIVE, SEND, Mailboxes
from ndparallel.drawing.trace import messages, trace, trace_json
from tests.support.synthetic import HARDWARE, data_parallel, finished, pipeline

RUNS = {"data parallel": data_parallel(), "pipeline": pipeline()}
TRACES = {name: trace({name: runs})["traceEvents"] for name, runs in RUNS.items()}


def of(name, phase):
    return [entry for entry in TRACES[name] if entry["ph"] == phase]


@pytest.mark.parametrize("name", RUNS)
def test_every_event_that_lasts_is_a_slice_of_its_rank_and_stream(name):
    events = [event for run in RUNS[name] for event in run.events if event[2] != MEMORY]
    slices = of(name, "X")
    assert Counter(entry["pid"] - 1 for entry in slices) == Counter(event[0] for event in events)
    exact = sorted(
        (entry["pid"] - 1, entry["args"]["start_seconds"], entry["args"]["end_seconds"]) for entry in slices
    )
    assert exact == sorted((event[0], event[4], event[5]) for event in events)


@pytest.mark.parametrize("name", RUNS)
def test_times_are_microseconds_on_the_nanosecond_grid(name):
    for entry in of(name, "X"):
        assert entry["ts"] == pytest.approx(1e6 * entry["args"]["start_seconds"], abs=5.1e-4)
        assert entry["ts"] + entry["dur"] == pytest.approx(1e6 * entry["args"]["end_seconds"], abs=5.1e-4)
        assert round(1000 * entry["ts"]) == pytest.approx(1000 * entry["ts"], abs=1e-4)


@pytest.mark.parametrize("name", RUNS)
def test_slices_of_a_thread_nest(name):
    threads = defaultdict(list)
    for entry in of(name, "X"):
        threads[entry["pid"], entry["tid"]].append(
            (round(1000 * entry["ts"]), round(1000 * (entry["ts"] + entry["dur"])))
        )
    for slices in threads.values():
        open_until: list = []
        for start, end in slices:
            while open_until and open_until[-1] <= start:
                open_until.pop()
            assert not open_until or end <= open_until[-1]
            open_until.append(end)


def test_a_collective_holds_its_messages():
    slices = [entry for entry in of("data parallel", "X") if entry["pid"] == 4]
    collectives = [entry for entry in slices if entry["args"]["kind"] == COLLECTIVE]
    sends = [entry for entry in slices if entry["args"]["kind"] == SEND]
    ends = [(entry["ts"], entry["ts"] + entry["dur"]) for entry in collectives]
    inside = [
        sum(start <= send["ts"] and send["ts"] + send["dur"] <= end for send in sends) for start, end in ends
    ]
    assert inside == 5 * [2 * 3]


@pytest.mark.parametrize("name", RUNS)
def test_every_flow_has_both_ends_from_a_send_to_its_receive(name):
    starts, ends = ({entry["id"]: entry for entry in of(name, phase)} for phase in "sf")
    received = [event for run in RUNS[name] for event in run.events if event[2] == RECEIVE]
    assert starts.keys() == ends.keys() and len(starts) == len(received) > 0
    slices = {
        (entry["pid"], entry["tid"], entry["ts"], entry["args"]["kind"]): entry for entry in of(name, "X")
    }
    for number, start in starts.items():
        end = ends[number]
        send = slices[start["pid"], start["tid"], start["ts"], SEND]
        receive = slices[end["pid"], end["tid"], end["ts"], RECEIVE]
        assert (send["name"], send["args"]["peer"], send["args"]["bytes"]) == (
            receive["name"],
            end["pid"] - 1,
            receive["args"]["bytes"],
        )
        assert receive["args"]["peer"] == start["pid"] - 1
        assert start["ts"] <= end["ts"] and end["bp"] == "e"


def test_messages_of_one_name_are_paired_in_the_order_they_were_sent():
    boxes = Mailboxes()
    sender, receiver = (GPU(rank, HARDWARE, boxes.of(rank)) for rank in range(2))
    for size in (100, 200, 300):
        sender.send(1, np.zeros(size, np.uint8), "same")
    for _ in range(2):
        receiver.receive(0, "same")
    pairs = list(messages([finished(sender), finished(receiver)]))
    assert [(send.bytes, receive.bytes) for send, receive in pairs] == [(100, 100), (200, 200)]


@pytest.mark.parametrize("name", RUNS)
def test_processes_are_ranks_from_one_and_threads_are_streams(name):
    names = {
        entry["pid"]: entry["args"]["name"] for entry in of(name, "M") if entry["name"] == "process_name"
    }
    assert names == {rank + 1: f"GPU {rank}" for rank in range(len(RUNS[name]))}
    threads = {
        (entry["pid"], entry["tid"]): entry["args"]["name"]
        for entry in of(name, "M")
        if entry["name"] == "thread_name"
    }
    assert {(entry["pid"], entry["tid"]) for entry in of(name, "X")} == threads.keys()
    assert all(tid > 0 for _, tid in threads)
    assert {name for (_, tid), name in threads.items() if tid == 1} == {"compute"}


def test_counters_reach_the_counted_peak_and_end_with_what_is_held():
    for run in RUNS["data parallel"]:
        counters = [entry["args"] for entry in of("data parallel", "C") if entry["pid"] == run.rank + 1]
        assert max(sum(held.values()) for held in counters) == sum(run.peak_bytes.values())
        assert counters[-1]["activations"] == 0 and list(counters[-1]) == [
            "weights",
            "gradients",
            "optimizer",
            "activations",
            "buffers",
        ]


@pytest.mark.parametrize("name", RUNS)
def test_the_file_is_plain_json_in_the_order_of_time_and_the_same_every_time(name):
    text = trace_json({name: RUNS[name]})
    entries = json.loads(text)["traceEvents"]
    times = [entry["ts"] for entry in entries if entry["ph"] != "M"]
    assert times == sorted(times)
    assert text == trace_json({name: list(reversed(RUNS[name]))})


def test_strategies_stand_one_below_the_other_and_share_neither_processes_nor_arrows():
    both, one, other = trace(RUNS)["traceEvents"], *(TRACES[name] for name in RUNS)
    names = {entry["pid"]: entry["args"]["name"] for entry in both if entry["name"] == "process_name"}
    assert (
        len(names) == sum(len(runs) for runs in RUNS.values()) and [*names.values()][-1] == "pipeline: GPU 1"
    )
    for phase, count in Counter(entry["ph"] for entry in (*one, *other)).items():
        assert sum(entry["ph"] == phase for entry in both) == count
    strategy = {pid: name.partition(":")[0] for pid, name in names.items()}
    starts, ends = ({entry["id"]: entry for entry in both if entry["ph"] == phase} for phase in "sf")
    assert len(starts) == sum(entry["ph"] == "s" for entry in both)
    assert all(strategy[start["pid"]] == strategy[ends[number]["pid"]] for number, start in starts.items())
