"""The lessons' side of compare.py: which strategy stands beside which, and its run in numpy."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import ndparallel.lessons.combined as combined
from gpu import COLLECTIVE, SEND, Event  # before numpy: it sets one BLAS thread a GPU

# isort: split
import numpy as np

from ndparallel.hardware.pocket import POCKET
from ndparallel.lessons.lesson import Strategy
from ndparallel.lessons.registry import load
from ndparallel.lessons.runner import Reference, Runner, mean_losses
from ndparallel.results.by_axis import is_of_collective
from ndparallel.training.job import Job

ENGINE = "inline"


@dataclass(frozen=True)
class Twin:
    """A strategy of a script, and the lesson's that it stands beside, with what differs in the lesson's job
    and hardware; `why` the two send other things."""

    script: str
    strategy: str
    lesson: Callable[[int], Strategy]
    why: str = ""
    changes: dict[str, Any] = field(default_factory=dict)  # unit_mb in millions of parameters
    hardware: dict[str, Any] = field(default_factory=dict)
    microbatches: int = 4
    ranks: tuple[int, ...] = (2, 4)
    kv_heads: Callable[[int], int] = lambda ranks: 2

    @property
    def lesson_strategy(self) -> str:
        return self.lesson(self.ranks[-1]).name

    def runs_on(self, ranks: int) -> bool:
        return ranks in self.ranks


def lesson(file: str, name: str) -> Callable[[int], Strategy]:
    return lambda ranks: load(file).strategy(name)


def grid(changes: dict | None = None, **degrees: Any) -> Callable[[int], Strategy]:
    """The program of 4D on a mesh of these degrees; a degree of 0 takes the ranks that are left."""

    def strategy(ranks: int) -> Strategy:
        taken = int(np.prod([degree for axis, degree in degrees.items() if degree and axis != "ep"]))
        full = {axis: degree or ranks // taken for axis, degree in degrees.items()}
        name = " x ".join(f"{axis.upper()}{degree}" for axis, degree in full.items() if degree > 1)
        return combined.grid(load("4d_combined").strategies[0].program, name, changes, **full)

    return strategy


def one_d(name: str, why: str = "", torch_name: str = "", **more: Any) -> Twin:
    return Twin("1d_data_parallel", torch_name or name, lesson("1d_data_parallel", name), why, **more)


def two_d(name: str, why: str = "", **more: Any) -> Twin:
    return Twin("2d_tensor_parallel", name, lesson("2d_tensor_parallel", name), why, **more)


def three_d(name: str, ours: str, **more: Any) -> Twin:
    return Twin("3d_pipeline_parallel", name, lesson("3d_pipeline_parallel", ours), microbatches=8, **more)


def four_d(name: str, strategy: Callable[[int], Strategy], why: str) -> Twin:
    return Twin("4d_combined", name, strategy, why, ranks=(4,))


ORDER = "in its second step DDP also tells all ranks the order of its buckets"
BUCKETS = f"{ORDER}; a bucket closes once it is full: after a parameter in torch, after a unit here"
BROADCAST = "torch all-reduces the gradients whole, and each rank broadcasts the parameters that it stepped"
NORMS = "each norm's gradient is summed over tp for itself, and here with its unit's or all together"
PARTIAL = f"{NORMS}; without FSDP it is summed whenever AdamW reads it, three times"
ONCE = "with reshard_after_forward=False weights are gathered, and gradients reduced, once a step"
ONE_BY_ONE = "the script sums gradients parameter by parameter; its counts are integers of 64 bits"

TWINS = [
    Twin("0d_single_gpu", "single GPU", lesson("0d_single_gpu", "single GPU")),
    Twin("0d_single_gpu", "microbatches", lesson("0d_single_gpu", "4 microbatches")),
    Twin("0d_single_gpu", "selective recompute", lesson("0d_single_gpu", "selective recompute")),
    Twin("0d_single_gpu", "full recompute", lesson("0d_single_gpu", "full recompute")),
    one_d("DDP ring", ORDER),
    one_d("DDP overlapped", BUCKETS),
    one_d("ZeRO-1", BROADCAST),
    one_d("FSDP"),
    one_d("FSDP prefetch"),
    one_d("FSDP no reshard"),
    one_d("FSDP", torch_name="FSDP large units", changes={"unit_mb": 0.03}),
    one_d("HSDP", hardware={"gpus_per_node": 2}, ranks=(4,)),
    two_d("TP", kv_heads=lambda ranks: max(2, ranks)),
    two_d("TP + SP", PARTIAL, kv_heads=lambda ranks: max(2, ranks)),
    two_d("TP x FSDP", NORMS, changes={"sequence_parallel": "sp"}, ranks=(4,)),
    three_d("naive, by hand", "naive"),
    three_d("GPipe, by hand", "GPipe"),
    three_d("1F1B, by hand", "1F1B"),
    three_d("GPipe", "GPipe"),
    three_d("1F1B", "1F1B"),
    three_d("looped BFS", "interleaved", changes={"schedule": "looped-bfs"}),
    three_d("interleaved", "interleaved"),
    three_d("interleaved ZB", "interleaved"),
    three_d("ZB-V", "ZB-V"),
    three_d("DualPipeV", "DualPipeV"),
    Twin("cp_context_parallel", "ring", lesson("cp_context_parallel", "CP"), BUCKETS),
    Twin("cp_context_parallel", "Ulysses", lesson("cp_context_parallel", "CP Ulysses"), BUCKETS),
    Twin("ep_expert_parallel", "EP", lesson("ep_expert_parallel", "EP"), ONE_BY_ONE),
    four_d("TP2 x PP2", grid({"sequence_parallel": "sp"}, tp=2, pp=2), PARTIAL),
    four_d("TP2 x DP", grid({"sequence_parallel": "sp", "zero": 3}, tp=2, dp=0), f"{NORMS}; {ONCE}"),
    four_d("PP2 x DP", grid({"zero": 3}, pp=2, dp=0), ONCE),
]


@dataclass
class LessonRun:
    """What a lesson's strategy computed: its losses, the single GPU's whole tensors that it was held
    against, and rank 0's traffic of a step."""

    losses: list[float]
    gradients: dict[str, np.ndarray]
    weights: dict[str, np.ndarray]
    traffic: dict[str, tuple[int, int]]


def run_lesson(twin: Twin, ranks: int, dtype: str, optimizer: str, steps: int) -> LessonRun:
    """Run the strategy, hold it against the single GPU, and return what both found."""
    job = Job(dtype=dtype, optimizer=optimizer, steps=steps)
    job = job.replace(model=job.model.replace(kv_heads=twin.kv_heads(ranks)))
    strategy, gpus = twin.lesson(ranks), ranks // 2 if twin.strategy == "TP x FSDP" else ranks
    if twin.script == "4d_combined":
        job = job.replace(microbatches=twin.microbatches)
    if twin.script == "3d_pipeline_parallel":
        job = job.replace(**load(twin.script).defaults)
    changes = dict(twin.changes)
    if "unit_mb" in changes:
        changes["unit_mb"] *= np.dtype(dtype).itemsize
    job, hardware = strategy.job(job, gpus).replace(**changes), replace(POCKET, **twin.hardware)
    reference = single_gpu(job.work, strategy.reference)
    with Runner(hardware, ENGINE) as runner:
        results = runner.run(strategy, job, hardware)
    return LessonRun(
        list(mean_losses(results)),
        reference.gradients,
        reference.weights,
        traffic(map(Event._make, results[0].events), steps),
    )


@cache
def single_gpu(work: Job, program: Callable[..., Any] | None) -> Reference:
    """The single GPU's run, made once for all strategies that train the same."""
    with Runner(POCKET, ENGINE) as runner:
        return runner.reference(work, program)


def traffic(events: Iterable[Event], steps: int) -> dict[str, tuple[int, int]]:
    """Calls and bytes of the last step, by collective; messages of a pipeline or a ring are sends."""
    every = [
        event
        for event in events
        if event.kind == COLLECTIVE or (event.kind == SEND and not is_of_collective(event.what))
    ]
    calls: Counter[str] = Counter()
    size: Counter[str] = Counter()
    for event in every[-(len(every) // steps) :] if every else []:
        name = event.what[2] if event.kind == COLLECTIVE else "send"
        calls[name] += 1
        size[name] += int(event.bytes) * (len(event.peer) if name == "reduce_scatter" else 1)
    return {name: (calls[name], size[name]) for name in sorted(calls)}
