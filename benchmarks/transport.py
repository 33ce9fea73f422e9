"""How fast arrays move between processes: ring all-reduce of 64 MB and of 4 KB on 4 ranks, and 64 ranks from
start to end; on a machine that is quiet, beside one core that another program keeps busy, and beside all.

Where torch is installed, its gloo all-reduce of the same arrays runs beside it in turns, so that both meet
the same machine, and the ratio is printed. Wanted: 64 MB in at most 0.5 of gloo's time, 0.8 beside a busy
core and 1 beside all; 4 KB in 0.2 ms. Run `python benchmarks/transport.py`.
"""

import argparse
import importlib.util
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpu import CLASSROOM, GPU  # before numpy: it sets one BLAS thread a GPU

# isort: split
import numpy as np
from busy import busy

from collectives import Group, all_reduce
from ndparallel.base.errors import guarded
from ndparallel.engines.launch import Ranks, launch
from ndparallel.engines.system import usable_cores

RANKS = 4
# elements of float32, repetitions
SIZES = {"64 MB": (16 * 2**20, 4), "1 MB": (2**18, 40), "4 KB": (2**10, 400)}
ROUNDS = 5


def timed(all_reduce_once: Callable[[], object], barrier: Callable[[], object], repetitions: int) -> float:
    """Median wall-clock seconds of one all-reduce, as this rank sees it."""
    seconds = []
    for _ in range(repetitions):
        barrier()
        start = time.perf_counter()
        all_reduce_once()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def ours(gpu: GPU, size: int, repetitions: int) -> float:
    group = Group("all", tuple(range(RANKS)))
    array = np.zeros(size, np.float32)
    token = np.zeros(1, np.float32)
    return timed(lambda: all_reduce(gpu, array, group), lambda: all_reduce(gpu, token, group), repetitions)


def gloo(gpu: GPU, size: int, repetitions: int, meeting_point: str) -> float:
    import torch
    import torch.distributed as dist

    if not dist.is_initialized():
        torch.set_num_threads(1)
        dist.init_process_group(
            "gloo", init_method=f"file://{meeting_point}", rank=gpu.rank, world_size=RANKS
        )
    array, token = torch.zeros(size), torch.zeros(1)
    return timed(lambda: dist.all_reduce(array), lambda: dist.all_reduce(token), repetitions)


def start_reduce_end(gpu: GPU, world_size: int) -> None:
    all_reduce(gpu, np.ones(1000, np.float32), Group("all", tuple(range(world_size))))


def slowest(results: list) -> float:
    return max(result.value for result in results)


def compare() -> None:
    with_torch = importlib.util.find_spec("torch") is not None
    with tempfile.TemporaryDirectory() as folder, Ranks(RANKS) as here, Ranks(RANKS) as there:
        for name, (size, repetitions) in SIZES.items():
            mine, theirs = [], []
            for _ in range(ROUNDS):
                mine.append(slowest(here.run(ours, CLASSROOM, size, repetitions, keep_events=False)))
                if with_torch:
                    theirs.append(
                        slowest(there.run(gloo, CLASSROOM, size, repetitions, os.path.join(folder, "gloo")))
                    )
            print(
                f"ring all-reduce of {name:>5} on {RANKS} ranks: {1e3 * min(mine):8.3f} "
                f"ms{beside(mine, theirs)}"
            )


def beside(mine: list[float], theirs: list[float]) -> str:
    return (
        f"   gloo {1e3 * min(theirs):8.3f} ms   ratio {min(mine) / min(theirs):.2f}"
        if theirs
        else "   (torch is not installed)"
    )


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    for programs in dict.fromkeys((0, 1, len(usable_cores()))):
        print(f"beside {programs} busy programs:")
        with busy(programs):
            compare()
    start = time.perf_counter()
    launch(start_reduce_end, 64, CLASSROOM, 64)
    print(f"64 ranks start, all-reduce and end: {time.perf_counter() - start:.2f} s")


if __name__ == "__main__":
    raise SystemExit(guarded(main))
