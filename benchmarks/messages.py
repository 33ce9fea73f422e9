"""How many messages a second `gpu.send` and `gpu.receive` carry inline: a ring of sizes only, from 64 to 8,192 ranks.

Every rank sends to its right and receives from its left, over and over, as in a ring all-reduce. Where SimPy is installed, its processes
and stores do the same beside it. Seconds are of this process (time.process_time), so that other work on the machine counts less.
Run `python benchmarks/messages.py`.
"""

import importlib.util
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from gpu import CLASSROOM, GPU
from ndparallel.launch import launch

MESSAGES = 1_000_000
REPETITIONS = 3


def ring(gpu: GPU, world_size: int, steps: int) -> None:
    piece = np.broadcast_to(np.float32(0), (1000,))
    right, left = (gpu.rank + 1) % world_size, (gpu.rank - 1) % world_size
    for step in range(steps):
        what = (("ring", 0), step)
        gpu.send(right, piece, what)
        gpu.receive(left, what)


def inline(world_size: int, steps: int, keep_events: bool) -> None:
    launch(ring, world_size, CLASSROOM, world_size, steps, engine="inline", keep_events=keep_events)


def simpy(world_size: int, steps: int) -> None:
    import simpy

    environment = simpy.Environment()
    stores = [simpy.Store(environment) for _ in range(world_size)]

    def rank(number):
        for step in range(steps):
            yield environment.timeout(1)
            stores[(number + 1) % world_size].put(step)
            yield stores[number].get()

    for number in range(world_size):
        environment.process(rank(number))
    environment.run()


def rate(world_size: int, messages: int, work: Callable[..., None], *arguments: object) -> str:
    """Thousands of messages a second: the best of a few runs."""
    steps, seconds = max(messages // world_size, 1), []
    for _ in range(REPETITIONS):
        start = time.process_time()
        work(world_size, steps, *arguments)
        seconds.append(time.process_time() - start)
    return f"{world_size * steps / min(seconds) / 1e3:8.0f} k"


if __name__ == "__main__":
    print("messages a second   events off    events on" + "        SimPy" * bool(importlib.util.find_spec("simpy")))
    for world_size in (64, 256, 1024, 4096, 8192):
        rates = [rate(world_size, MESSAGES, inline, False), rate(world_size, MESSAGES // 4, inline, True)]
        if importlib.util.find_spec("simpy"):
            rates.append(rate(world_size, MESSAGES // 10, simpy))
        print(f"{world_size:>6} ranks      " + "   ".join(rates))
