"""How long a prediction takes: `python benchmarks/planner.py`. CPU seconds of this machine, and from the
shell those on the wall.

One plan is timed by its schedule's own actions; an array of plans takes closed forms. Of a full pipeline
a short step is timed, and the rounds that follow from it are added (ndparallel/pipeline/rounds.py). So on
a quick machine a public run takes 0.8 ms again and 1.9 the first time, in the mean of 414; the medians are
0.7 and 0.9. Again all but one take less than 2 ms: a GPT of 529.6B (35 ranks of 3 chunks: 22,050 steps of
about 0.09 microseconds, more than all the rest). The first time it is 88 %: the others must first write
their schedule and put its steps in order (up to 0.04 s for 35 ranks of 3 chunks), or search for its order
(zb-1p and zb-2p: up to 0.05 s, on 16 ranks). On a slow machine all take two to three
times as long. As timeit does, Python looks for no garbage meanwhile. Where the time of a pipeline goes is
found when it is asked for, and is not in these: it takes a tenth more.
"""

import argparse
import subprocess
import sys
import time
import timeit
from collections.abc import Callable
from statistics import fmean, median

import numpy as np

from ndparallel.base.errors import guarded
from ndparallel.hardware.accelerator import find_hardware
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.models.presets import find_model
from ndparallel.planner.prediction import peak_memory, predict, time_step
from ndparallel.planner.software import find_stack
from ndparallel.search.bounds.lower_bound import lower_bound
from ndparallel.validation.cases import express, read_cases

JOB = TrainingJob(find_model("llama-3-70b"), find_hardware("h100"), find_stack("megatron-core"), 8192, 512)
PLANS = {
    "FSDP on 128 GPUs": Plan(dp=128, zero=3),
    "TP8 x DP16": Plan(tp=8, dp=16, zero=1, sequence_parallel=True),
    "TP8 x PP4 x DP16": Plan(tp=8, pp=4, dp=16, zero=1, sequence_parallel=True),
    "TP8 x PP8 x DP8, 5 chunks": Plan(
        tp=8, pp=8, dp=8, chunks=5, zero=1, sequence_parallel=True, schedule="interleaved"
    ),
}
SHELL = [
    sys.executable,
    "-m",
    "ndparallel",
    "plan",
    "--model",
    "llama-3-70b",
    "--gpus",
    "512",
    "--tp",
    "8",
    "--pp",
    "4",
]
SHELL += ["--global-batch", "512"]


def seconds(
    work: Callable[[], object], times: int = 5, clock: Callable[[], float] = time.process_time
) -> float:
    """The best of a few runs."""
    return min(timeit.repeat(work, timer=clock, repeat=times, number=1))


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    for name, plan in PLANS.items():
        step, memory = seconds(lambda: time_step(JOB, plan)), seconds(lambda: peak_memory(JOB, plan))  # noqa: B023
        print(f"{name:<28} step {1e3 * step:6.2f} ms   memory {1e3 * memory:6.2f} ms")
    runs = [(run["id"], express(run)) for run in read_cases()]
    for what, times in ("first", 1), ("again", 5):
        took = sorted((1e3 * seconds(lambda: predict(run.job, run.plan), times), name) for name, run in runs)  # noqa: B023
        within = sum(each <= 2 for each, _ in took) / len(took)
        each = [taken for taken, _ in took]
        print(
            f"{len(runs)} public runs, {what}: mean {fmean(each):.2f} ms, median {median(each):.2f}, "
            f"{within:.0%} within 2, longest"
        )
        print("    " + ", ".join(f"{name} {each:.1f}" for each, name in took[:-6:-1]))
    many = 20_000
    tp, pp = np.tile([1, 2, 4, 8], many // 4), np.repeat([1, 2, 4, 8], many // 4)
    plans = Plan(tp=tp, pp=pp, dp=512 // (tp * pp), zero=1, sequence_parallel=True)
    rate = many / seconds(lambda: lower_bound(JOB, plans), 3)
    print(f"{many:,} plans at once         {rate:,.0f} plans a second")
    print(
        "ndparallel plan from the shell "
        f"{seconds(lambda: subprocess.run(SHELL, capture_output=True), 3, time.perf_counter):.2f} s"
    )


if __name__ == "__main__":
    raise SystemExit(guarded(main))
