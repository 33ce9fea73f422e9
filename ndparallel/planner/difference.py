"""A step or a memory that was measured, beside what was predicted: whether the error bar holds it, and what
one thing would explain the difference.

Idea   Each of CAUSES is predicted really, alone; what comes nearest to the measurement stands first. That
       several are true at once is not tried.
Limit  A cause that comes near is a candidate, not a proof: `look` says what would show it.

Glossary
    explained   share of the difference that a cause makes: 1 all of it, 2 twice as much
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ndparallel.hardware.accelerator import Accelerator, slower_host
from ndparallel.hardware.disturbances import slower
from ndparallel.planner.changes import (
    Change,
    Tried,
    hardware_change,
    job_change,
    plan_change,
    stack_change,
    tried,
)
from ndparallel.planner.error_bar import ErrorBar, error_bar
from ndparallel.planner.prediction import Prediction

# of the others' speed: Sinha et al., "Not All GPUs Are Created Equal" (2208.11035), 8% on average
SLOW = 0.92
LEAST = 0.05  # of the difference: what explains less is no cause


@dataclass(frozen=True)
class Cause:
    """A change, its prediction of what was measured, and the share of the difference that it explains."""

    change: Change
    predicted: float
    explained: float


def slow(gpu: Accelerator) -> Accelerator:
    return replace(
        gpu,
        matmul_fraction=gpu.matmul_fraction * SLOW,
        flops_per_second=gpu.flops_per_second * SLOW,
        memory_bandwidth_bytes_per_second=gpu.memory_bandwidth_bytes_per_second * SLOW,
    )


def halved(links: str, where: str, test: str) -> Change:
    """The links "inside" or "across" nodes at half their rate; `where` in words, and how to test them."""

    def change(gpu: Accelerator) -> Accelerator:
        half: dict[str, Any] = {links: slower(getattr(gpu, links), 2)}
        return replace(gpu, **half)

    return hardware_change(
        f"links {where} at half their rate", change, f"--what-if bandwidth_{links}/2", test
    )


CAUSES: tuple[Change, ...] = (
    stack_change(
        "gradients that travel only behind the last backward pass",
        look="--overlap-grad-reduce; in a trace, NCCL beside the backward kernels",
        dp_overlap=False,
    ),
    stack_change(
        "weights gathered when they are needed, not before",
        look="--overlap-param-gather, FSDP's prefetch",
        prefetch=False,
        gathers_first=False,
    ),
    stack_change("tensor parallelism that hides nothing", look="--tp-comm-overlap", tp_overlap="none"),
    stack_change(
        "messages between stages that hide nothing", look="--overlap-p2p-communication", pp_overlap=False
    ),
    stack_change("keys and values that hide nothing", look="the ring's sends in a trace", cp_overlap=False),
    stack_change(
        "no flash attention",
        "--no-flash-attention",
        "the name of the attention kernel in a profile",
        attention="unfused",
    ),
    stack_change(
        "FlashAttention 2", look="the name of the attention kernel in a profile", attention="flash2"
    ),
    stack_change(
        "cuDNN's attention, or FlashAttention 3", look="the attention kernel's name", attention="cudnn"
    ),
    stack_change(
        "small kernels that are not fused", look="norms and activations in a profile", fusion="eager"
    ),
    stack_change("small kernels that are compiled", look="torch.compile", fusion="compiled"),
    Change(
        "launches that take the CPU twice as long",
        lambda job, plan: (replace(job, hardware=slower_host(job.hardware)), plan),
        look="gaps between kernels in a trace; other processes on the CPU",
    ),
    stack_change("launches that take no time", look="CUDA graphs", graphs="step"),
    stack_change("experts that are multiplied one by one", look="--moe-grouped-gemm", grouped_experts=False),
    stack_change("experts that are multiplied together", look="--moe-grouped-gemm", grouped_experts=True),
    stack_change(
        "every copy of a token sent between nodes",
        look="DeepEP: --moe-token-dispatcher-type flex",
        dispatcher="alltoall",
    ),
    stack_change(
        "rows that travel beside another microbatch",
        look="--overlap-moe-expert-parallel-comm",
        hides_dispatch=True,
    ),
    stack_change("rows that nothing hides", look="--overlap-moe-expert-parallel-comm", hides_dispatch=False),
    stack_change("a permutation in kernels of its own", look="--moe-permute-fusion", fused_permutation=False),
    stack_change("a fused permutation", look="--moe-permute-fusion", fused_permutation=True),
    job_change(
        "the busiest experts with 1.5 times the mean's rows",
        "--routing-imbalance 1.5",
        "the router's counts of tokens",
        routing_imbalance=1.5,
    ),
    stack_change("gradients in 32 bits", look="--grad-reduce-in-bf16 is not given", gradient_bytes=4),
    stack_change("gradients in 16 bits", look="--grad-reduce-in-bf16 is given", gradient_bytes=2),
    stack_change("a loss on whole logits", look="the loss's logits: gathered over tp?", parallel_loss=False),
    stack_change(
        "logits kept in 16 and twice in 32 bits", look="a profile of memory at the loss", logits_kept=10
    ),
    plan_change("nothing computed again", "--recompute none", "the flags of recomputation", recompute="none"),
    plan_change(
        "selective recomputation",
        "--recompute selective",
        "the flags of recomputation",
        recompute="selective",
    ),
    plan_change(
        "all layers computed again",
        "--recompute full",
        "the flags of recomputation",
        recompute="full",
        recompute_layers=0,
    ),
    plan_change(
        "no sequence parallelism", "--no-sequence-parallel", "--sequence-parallel", sequence_parallel=False
    ),
    plan_change("an optimizer that is not sharded", "--zero 0", "--use-distributed-optimizer", zero=0),
    plan_change("an optimizer that is sharded", "--zero 1", "--use-distributed-optimizer", zero=1),
    plan_change("weights that are sharded too", "--zero 3", "FSDP", zero=3),
    job_change("matmuls in 16 bits", "--dtype bf16", "--fp8-format", dtype="bf16"),
    hardware_change(
        f"a GPU at {SLOW:.0%} of the others' speed",
        slow,
        look="each rank's time for the same matmul, clocks and temperature (nvidia-smi -q -d CLOCK)",
    ),
    halved("across", "between nodes", "all_reduce_perf on two nodes"),
    halved("inside", "inside a node", "nccl-tests' all_reduce_perf on one node"),
    hardware_change(
        "pageable memory on the host",
        lambda gpu: replace(gpu, host_bytes_per_second=gpu.host_bytes_per_second / 2),
        look="pin_memory of what is offloaded",
    ),
)


@dataclass(frozen=True)
class Difference:
    """A measured number beside the predicted one, of a step ("seconds") or of the fullest GPU ("bytes"); what
    would explain it, nearest first. Inside the error bar nothing is asked for."""

    quantity: str
    measured: float
    predicted: float
    bar: ErrorBar
    causes: Sequence[Cause] = ()

    @property
    def error(self) -> float:
        """The prediction's error, as a share of what was measured."""
        return self.predicted / self.measured - 1

    @property
    def inside(self) -> bool:
        """Whether the measured number lies within the bar, which is a share of the predicted one."""
        return abs(self.measured / self.predicted - 1) <= self.bar.fraction

    def as_dict(self) -> dict[str, Any]:
        causes = [
            {"cause": each.change.words, "predicted": each.predicted, "explained_ratio": each.explained}
            for each in self.causes
        ]
        numbers = {"measured": self.measured, "predicted": self.predicted, "error": self.error}
        return {**numbers, "error_bar": self.bar.fraction, "inside": self.inside, "causes": causes}


def differences(found: Prediction, measured: dict[str, float]) -> list[Difference]:
    """Each quantity that was measured beside its prediction; `measured` is by quantity, "seconds" and
    "bytes"."""
    bars = {"seconds": found.error_bar, "bytes": error_bar(found.job, found.plan, of="memory_error")}
    plain = [Difference(name, number, value_of(found, name), bars[name]) for name, number in measured.items()]
    if all(each.inside for each in plain):
        return plain
    alternatives = tried(found.job, found.plan, CAUSES)
    return [each if each.inside else replace(each, causes=causes_of(each, alternatives)) for each in plain]


def value_of(found: Prediction, quantity: str) -> float:
    return found.seconds if quantity == "seconds" else float(found.fullest.total)


def causes_of(difference: Difference, alternatives: Sequence[Tried]) -> list[Cause]:
    """What explains a difference, nearest first."""
    whole = difference.measured - difference.predicted
    values = [(one.change, value_of(one.found, difference.quantity)) for one in alternatives]
    causes = [Cause(change, value, (value - difference.predicted) / whole) for change, value in values]
    some = [cause for cause in causes if cause.explained > LEAST]
    return sorted(some, key=lambda cause: abs(cause.explained - 1))
