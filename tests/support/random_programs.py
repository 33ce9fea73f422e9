"""Random rank programs that never get stuck: a list of actions of all ranks, each rank doing its own in the
list's order, with streams, handles and messages of many kinds."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from gpu import COMPUTE, GPU, Hardware, Link, Operation
from ndparallel.hardware.disturbances import Disturbances

RANKS = 4
STREAMS = (COMPUTE, "a", "b")
HARDWARE = Hardware(
    name="two nodes of two",
    flops_per_second=1.0,
    memory_bandwidth_bytes_per_second=float("inf"),
    kernel_overhead_seconds=0,
    memory_bytes=1e9,
    gpus_per_node=2,
    inside=Link(latency_seconds=0.125, bandwidth_bytes_per_second=4.0),
    across=Link(latency_seconds=0.25, bandwidth_bytes_per_second=2.0),
)
DISTURBED = replace(HARDWARE, disturbances=Disturbances(((1, 1.5),), ((0, 2, 2.0),)))


@dataclass(frozen=True)
class Compute:
    rank: int
    stream: str
    seconds: float


@dataclass(frozen=True)
class Pass:
    """A message; with `later` both sides go on, and wait for it at the next Wait of their rank."""

    source: int
    target: int
    streams: tuple[str, str]
    bytes: int
    later: bool


@dataclass(frozen=True)
class Wait:
    """Wait for the oldest handle, on this stream."""

    rank: int
    stream: str


def passes(later) -> st.SearchStrategy:
    """Messages of 0 to 6 bytes from one rank to another."""
    lines, sizes = st.tuples(streams, streams), st.sampled_from([0, 1, 2, 4, 6])
    every = st.builds(Pass, ranks, ranks, lines, sizes, later)
    return every.filter(lambda action: action.source != action.target)


ranks, streams = st.integers(0, RANKS - 1), st.sampled_from(STREAMS)
ACTIONS = st.one_of(
    st.builds(Compute, ranks, streams, st.sampled_from([0.25, 0.5, 1.0])),
    passes(later=st.booleans()),
    st.builds(Wait, ranks, streams),
)
BURSTS = st.lists(passes(later=st.just(True)), min_size=4, max_size=12)  # which begin together, and meet
PROGRAMS = st.one_of(st.lists(ACTIONS, max_size=14), BURSTS)


def run_program(gpu: GPU, actions: list[Any]) -> None:
    """Do what is this rank's."""
    handles: list[Any] = []
    for number, action in enumerate(actions):
        if isinstance(action, Pass):
            if gpu.rank == action.source:
                send(gpu, action, number, handles)
            if gpu.rank == action.target:
                receive(gpu, action, number, handles)
        elif action.rank == gpu.rank:
            with gpu.on(action.stream, waits=False):
                if isinstance(action, Compute):
                    gpu.compute(Operation("work", flops=action.seconds))
                elif handles:
                    handles.pop(0).wait()
    for handle in handles:
        handle.wait()


def send(gpu: GPU, action: Pass, number: int, handles: list[Any]) -> None:
    content, stream = np.zeros(action.bytes, np.uint8), action.streams[0]
    if action.later:
        handles.append(gpu.isend(action.target, content, number, stream))
    else:
        with gpu.on(stream):
            gpu.send(action.target, content, number)


def receive(gpu: GPU, action: Pass, number: int, handles: list[Any]) -> None:
    stream = action.streams[1]
    if action.later:
        handles.append(gpu.irecv(action.source, number, stream=stream))
    else:
        with gpu.on(stream, waits=False):
            gpu.receive(action.source, number)
