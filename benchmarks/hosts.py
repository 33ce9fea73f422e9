"""What a message costs inside a host and between two: half a round trip of rank 0 with rank 1, and with the
last one.

Run `python benchmarks/hosts.py` as root: it makes two hosts of this machine, network namespaces that a
virtual cable joins, so what is measured across is TCP through this kernel, and no network card. On hosts of
your own: `mpirun -n 4 --hostfile hosts python -m mpi4py benchmarks/hosts.py`, with two slots on each of two.
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpu import CLASSROOM, GPU  # before numpy: it sets one BLAS thread a GPU

# isort: split
import numpy as np

from ndparallel.base.errors import UserError, guarded
from ndparallel.engines.launch import Ranks, join
from ndparallel.engines.world import default_engine
from tests.support.two_hosts import missing, two_hosts

RANKS = 4
SIZES = {
    "4 B": (1, 300),
    "4 KB": (2**10, 300),
    "1 MB": (2**18, 30),
    "64 MB": (2**24, 3),
}  # floats, repetitions


def round_trips(gpu: GPU, partner: int, size: int, repetitions: int) -> float:
    """Median wall-clock seconds of one way of a round trip between rank 0 and its partner."""
    array, seconds = np.zeros(size, np.float32), []
    if gpu.rank not in (0, partner):
        return 0.0
    other = partner - gpu.rank
    for number in range(repetitions):
        start = time.perf_counter()
        if gpu.rank:
            gpu.receive(0, ("to", number))
        gpu.send(other, array, ("from" if gpu.rank else "to", number))
        if not gpu.rank:
            gpu.receive(partner, ("from", number))
        seconds.append((time.perf_counter() - start) / 2)
    return statistics.median(seconds)


def measure() -> None:
    with Ranks(RANKS, "mpi") as ranks:
        for name, (size, repetitions) in SIZES.items():
            inside, across = (
                ranks.run(round_trips, CLASSROOM, partner, size, repetitions, keep_events=False)[0].value
                for partner in (1, RANKS - 1)
            )
            print(
                f"a message of {name:>5}: {1e3 * inside:8.3f} ms inside a host, {1e3 * across:8.3f} ms across"
            )


def measure_on_two_hosts() -> None:
    if sentence := missing():
        raise UserError(sentence)
    with tempfile.TemporaryDirectory() as folder, two_hosts(Path(folder)) as hosts:
        out, err = hosts.mpirun(RANKS, "-m", "mpi4py", __file__).communicate()
        print(out or err, end="")


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    join([])
    measure() if default_engine() == "mpi" else measure_on_two_hosts()


if __name__ == "__main__":
    raise SystemExit(guarded(main))
