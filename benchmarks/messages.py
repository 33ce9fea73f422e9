"""How many messages a second `gpu.send` and `gpu.receive` carry inline: a ring of sizes only, from 64 to
8,192 ranks.

Every rank sends to its right and receives from its left, over and over, as in a ring all-reduce. Where SimPy
is installed, its processes and stores do the same beside it, in the same minute of the same machine. Seconds
are of this process (time.process_time), so that other work on the machine counts less. Last, what
`ndparallel collective all_reduce --ranks 1024 --engine inline` carries from its start to its end: wanted are
500 k messages a second.
Run `python benchmarks/messages.py`.
"""

import argparse
import importlib.util
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from gpu import CLASSROOM, GPU  # before numpy: it sets one BLAS thread a GPU

# isort: split
import numpy as np

from collectives import ALGORITHMS, Group
from ndparallel.base.errors import guarded
from ndparallel.collective.runs import in_lockstep
from ndparallel.engines.launch import launch

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


def rate(world_size: int, messages: int, work: Callable[..., None], *arguments: object) -> float:
    """Messages a second: the best of a few runs."""
    steps, seconds = max(messages // world_size, 1), []
    for _ in range(REPETITIONS):
        start = time.process_time()
        work(world_size, steps, *arguments)
        seconds.append(time.process_time() - start)
    return world_size * steps / min(seconds)


def memory(world_size: int, messages: int) -> float:
    """Bytes that a message and its two events take at the peak; the ranks' own stacks are counted in."""
    steps = max(messages // world_size, 1)
    tracemalloc.start()
    inline(world_size, steps, True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / (world_size * steps)


def whole_command(ranks: int) -> float:
    """Messages a second of the command that runs every algorithm of an all-reduce, start-up included."""
    group = Group("collective", tuple(range(ranks)))
    counted = [in_lockstep("all_reduce", name, group, CLASSROOM, 10**6) for name in ALGORITHMS["all_reduce"]]
    command = [sys.executable, "-m", "ndparallel", "collective", "all_reduce", "--ranks", str(ranks)]
    start = time.perf_counter()
    subprocess.run([*command, "--engine", "inline"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return sum(messages.sum() for _, _, messages in counted) / (time.perf_counter() - start)


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    beside = importlib.util.find_spec("simpy") is not None
    print(
        "messages a second   events off    events on   memory each" + "        SimPy   times SimPy" * beside
    )
    for world_size in (64, 256, 1024, 4096, 8192):
        each_bytes = memory(world_size, 16 * world_size)
        rates = [rate(world_size, MESSAGES, inline, False), rate(world_size, MESSAGES // 4, inline, True)]
        if beside:
            rates.append(rate(world_size, MESSAGES // 10, simpy))
        ratios = [f"{ours / rates[-1]:.1f}" for ours in rates[:-1]] if beside else []
        cells = [f"{each / 1e3:8.0f} k" for each in rates]
        print(
            "   ".join(
                [
                    f"{world_size:>6} ranks   ",
                    *cells[:2],
                    f"{each_bytes:9.0f} B",
                    *cells[2:],
                    " and ".join(ratios),
                ]
            )
        )
    print(
        f"collective all_reduce --ranks 1024, start-up included: {whole_command(1024) / 1e3:.0f} k messages/s"
    )


if __name__ == "__main__":
    raise SystemExit(guarded(main))
