"""How fast the best of all legal plans is found: `python benchmarks/search.py`. Seconds of this machine: CPU,
of all processes, and in all.

With --cases it also searches the job of every measured run, and says how much faster the best plan is by the
planner's own prediction.
"""

import argparse
import time
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage

from ndparallel.base.errors import guarded
from ndparallel.hardware.accelerator import find_hardware
from ndparallel.planner.job import TrainingJob
from ndparallel.planner.models.presets import find_model
from ndparallel.planner.prediction import time_step
from ndparallel.planner.software import find_stack
from ndparallel.search.candidates import candidates
from ndparallel.search.search import search
from ndparallel.search.space import SearchSpace
from ndparallel.validation.cases import express, read_cases

JOBS = {  # job, GPUs
    "Llama-3-405B on 16,384 H100s": (
        TrainingJob(
            find_model("llama-3-405b"), find_hardware("h100"), find_stack("megatron-core"), 8192, 2048
        ),
        16384,
    ),
    "a GPT of 530B on 2,520 A100s": (
        TrainingJob(
            find_model("megatron-530b"), find_hardware("a100-80"), find_stack("megatron-2022"), 2048, 2520
        ),
        2520,
    ),
    "DeepSeek-V3 on 2,048 H100s": (
        TrainingJob(
            find_model("deepseek-v3"), find_hardware("h100"), find_stack("megatron-core"), 4096, 15360
        ),
        2048,
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", action="store_true", help="search the measured runs' jobs too")
    arguments = parser.parse_args()
    for name, (job, gpus) in JOBS.items():
        measure(name, job, gpus)
    if arguments.cases:
        compare_cases()


def measure(name: str, job: TrainingJob, gpus: int) -> None:
    start = time.perf_counter()
    legal = candidates(SearchSpace(job, gpus, {}, job.hardware.memory_bytes)).legal
    pricing = time.perf_counter() - start
    start, began = cpu_seconds(), time.perf_counter()
    found = search(job, gpus)
    cpu, passed = cpu_seconds() - start, time.perf_counter() - began
    print(
        f"{name}: {legal:,} legal plans, {legal / pricing:,.0f} a second; the best of them in {cpu:.1f} s of "
        f"CPU, {passed:.1f} s in all"
    )
    print(
        f"    {found.best.seconds:.2f} s a step, MFU {found.best.mfu:.1%}; a plan that was not timed is at "
        f"most {found.gap:.1%} faster"
    )


def cpu_seconds() -> float:
    """Those of this process and of the forks that have ended."""
    return sum(sum(getrusage(who)[:2]) for who in (RUSAGE_SELF, RUSAGE_CHILDREN))


def compare_cases() -> None:
    for case in (express(run) for run in read_cases()):
        if not case.one_layer:
            best = search(case.job, int(case.plan.gpus), top=1).best.seconds
            theirs = time_step(case.job, case.plan).seconds
            print(f"{case.name:<45} {float(theirs):8.3f} s   best {best:8.3f} s   {theirs / best - 1:+.1%}")


if __name__ == "__main__":
    raise SystemExit(guarded(main))
