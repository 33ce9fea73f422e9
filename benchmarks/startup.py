"""How long a learner waits: the 1D and 4D lessons, `ndparallel compare` and `plan`, against the time that
importing numpy and rich takes anyway.

Idea   Every round runs the floor and the commands one after another, so that what else the machine does slows
       all alike. The ratio of the fastest of each is what the machine could do; the median ratio is what it
       did. CPU seconds, of all processes, say the same beside other programs. A round before them is not
       counted: Python keeps there what it has compiled, as it does at a reader's, whatever this environment
       says of that.
Limit  The floor is Python's start and the import of numpy and rich, and nothing of this package: what a
       lesson imports of it takes half of the floor on top. On two cores with nothing else on them 76 runs of
       7 rounds had medians of 3.8 to 5.7 for 1D, and for 4D of 7.9 to 11.6: nearly half at most 9, which is
       wanted. On a quick and quiet machine, whose floor takes 0.08 s, eleven had 8.9 to 9.1.
       So 4D is at its limit. It takes 14 to 17 times the floor's CPU (inline 8 to 9).
       A third of its time is imports, the single GPU, the start and end of 8 processes and
       the tables, which mostly one core does alone; the rest are the layers. For each strategy but those that
       hardly wait, what these take more in processes than inline, divided by how often the ranks give their
       cores to one another, is 50 to 130 microseconds of CPU (on a busy machine); 4D does so 5,600 times. All
       seven strategies at once on the same ranks, each on a stack of its own, would halve that, and take 0.94
       of the ranks' time.
       What made no difference, measured side by side: another sharing out of ranks over cores or none, the
       order in which ranks are woken, batch scheduling, larger time slices, a next task that waits at every
       rank, results through shared memory, weights drawn before the fork and the single GPU's run behind it.
       Ranks that look for a message for a while before they sleep took 1.02 to 1.06 of the wall for 4D, and
       what the ranks run, run once before the fork so that Python has specialised it, 1.06.
       The single GPU's memory in huge pages took 0.97 to 1.00 of the wall. That of the ranks made no
       difference: what they touch first are mostly Python's objects, which they got by the fork.
       Ranks that the scheduler moves took 0.93, 0.98 and 0.98 of the wall for 4D, and 1.02 for 1D; ranks
       that yield their core before they sleep, 1.06 of the CPU on a busy machine.

Run    python benchmarks/startup.py [rounds]
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from statistics import median
from time import perf_counter

from ndparallel.base.errors import guarded

ROOT = Path(__file__).resolve().parent.parent
FLOOR = ("-c", "import numpy, rich.console, rich.table")
JOB = "--model llama-3-70b --gpus 512 --global-batch 512 --sequence 8192"
PLAN = "--tp 8 --pp 4 --zero 1"
KEEPING_BYTECODE = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
COMMANDS = {
    "python 1d_data_parallel.py": (("1d_data_parallel.py",), 5),
    "python 4d_combined.py": (("4d_combined.py",), 9),
    "ndparallel compare": (("-m", "ndparallel", "compare"), 24),
    "ndparallel plan": (("-m", "ndparallel", "plan", *JOB.split(), *PLAN.split()), 2.7),
}


def seconds(arguments: tuple[str, ...]) -> tuple[float, float]:
    """Seconds of a command, and those of CPU that it and its processes took."""
    start, spent = perf_counter(), children_seconds()
    command = [sys.executable, *arguments]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL, env=KEEPING_BYTECODE)
    return perf_counter() - start, children_seconds() - spent


def children_seconds() -> float:
    return sum(getrusage(RUSAGE_CHILDREN)[:2])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rounds", type=int, nargs="?", default=7)
    compare(parser.parse_args().rounds)


def compare(rounds: int) -> None:
    floors: list[float] = []
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    spent: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for arguments in (FLOOR, *(arguments for arguments, _ in COMMANDS.values())):
        seconds(arguments)
    for _ in range(rounds):
        floors.append(seconds(FLOOR)[0])
        for name, (arguments, _) in COMMANDS.items():
            passed, cpu = seconds(arguments)
            times[name].append(passed)
            spent[name].append(cpu)
    print(f"floor: python -c '{FLOOR[1]}'  {min(floors):.3f} s, fastest of {rounds}\n")
    for name, (_, target) in COMMANDS.items():
        ratios = [here / floor for here, floor in zip(times[name], floors)]
        best = min(times[name]) / min(floors)
        print(
            f"{name:<28} {min(times[name]):.3f} s, {min(spent[name]):.2f} s of CPU   {best:.1f}x the floor "
            f"(median {median(ratios):.1f}x, at most {target}x wanted)"
        )


if __name__ == "__main__":
    raise SystemExit(guarded(main))
