"""How many messages a second a ring all-reduce is worth in lockstep, where all ranks' clocks move at once:
from 64 to 8,192 ranks.

Seconds are of this process (time.process_time), so that other work on the machine counts less. Run `python
benchmarks/lockstep.py`.
"""

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpu import CLASSROOM
from ndparallel.base.errors import guarded
from ndparallel.collective.clocks import start_clocks
from ndparallel.collective.lockstep import advance

REPETITIONS = 5


def seconds(ranks: int) -> float:
    """The best of a few runs."""
    best = float("inf")
    for _ in range(REPETITIONS):
        clocks = start_clocks(CLASSROOM, range(ranks), itemsize=4)
        start = time.process_time()
        advance(clocks, "all_reduce", "ring", 4_000_004)  # pieces of unequal size
        best = min(best, time.process_time() - start)
    return best


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    print(f"{'ranks':>6} {'messages':>12} {'seconds':>9} {'million a second':>17}")
    for ranks in (64, 256, 1024, 4096, 8192):
        messages, took = 2 * (ranks - 1) * ranks, seconds(ranks)
        print(f"{ranks:6} {messages:12,} {took:9.4f} {messages / took / 1e6:17.1f}")


if __name__ == "__main__":
    raise SystemExit(guarded(main))
