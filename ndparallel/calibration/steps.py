"""Rung 5: training steps of the reader's own machine, measured, and predicted from its own kernels.

Idea   The steps are those of the scripts in in_pytorch/, whose loops run as they are. Kernels and steps are
       measured in turn, in the same rounds, and between processes collectives too; the planner prices its
       list of PyTorch's eager layers on the hardware that they make, and the two are set side by side.
       Nothing is fitted to a step.
       Or hardware is named, and its figures predict the steps: then no kernel is measured.
Limit  Tried on CPUs, with gloo, and on one GPU. Processes that share a CPU's cores, caches and memory are
       not what the planner's formulas are about: of several on gloo the error is printed, and nothing is
       promised.

Glossary
    twin    a strategy of a script in in_pytorch/, and the plan that stands for it
"""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

from ndparallel.base.errors import UserError
from ndparallel.base.functions import load_module
from ndparallel.calibration.kernels import SIZES, Kernel, Sizes, device_of
from ndparallel.calibration.links import (
    MeasuredTransfer,
    fitted_links,
    launched,
    max_over_ranks,
    slowdown,
)
from ndparallel.calibration.table import ThisMachine, adamw_bytes, hardware_table
from ndparallel.calibration.timing import Clock, Sampler, median, of_kind, spread
from ndparallel.hardware.accelerator import Accelerator, accelerator
from ndparallel.hardware.figures import ACROSS_FRACTION, INSIDE_FRACTION, MEMORY_FRACTION
from ndparallel.model.costs import itemsize
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.models.shape import ModelShape
from ndparallel.planner.prediction import predict
from ndparallel.planner.software import find_stack
from ndparallel.planner.stack import Stack

SCRIPTS = Path(__file__).resolve().parents[2] / "in_pytorch"
VOCABULARY = 256
WARM, STEPS = 1, 3  # steps of a sample: the first ones, and those of which the least counts


@dataclass(frozen=True)
class StepTwin:
    """A strategy of a script; whether its loop is given an optimizer; the degree that takes all ranks, and
    what else the plan and the software have."""

    script: str
    strategy: str
    takes_optimizer: bool = False
    axis: str = "dp"
    plan: Mapping[str, Any] = field(default_factory=dict, hash=False)
    software: Mapping[str, Any] = field(default_factory=dict, hash=False)


SINGLE = StepTwin("0d_single_gpu.py", "single GPU")
ONE_D, TWO_D = ("1d_data_parallel.py", "2d_tensor_parallel.py")
TWINS = (
    StepTwin(ONE_D, "DDP ring", takes_optimizer=True, software={"dp_overlap": False}),
    StepTwin(ONE_D, "FSDP", takes_optimizer=True, plan={"zero": 3}),
    StepTwin(TWO_D, "TP", axis="tp"),
    StepTwin(TWO_D, "TP + SP", axis="tp", plan={"sequence_parallel": True}),
)


@dataclass(frozen=True)
class StepCase:
    """A training step: a model of `layers` of width `hidden` on `batch` sequences, of all ranks."""

    layers: int
    hidden: int
    sequence: int
    batch: int
    twin: StepTwin = SINGLE
    ranks: int = 1
    head: int = SIZES["cpu"].width

    def __str__(self) -> str:
        model = f"{self.layers} x {self.hidden}, {self.batch} x {self.sequence}"
        return model if self.twin is SINGLE else f"{self.twin.strategy}, {model}"

    @property
    def sizes(self) -> dict[str, Any]:
        """The model's sizes, by the names that model.py and the planner share; each tp rank has a KV head."""
        heads = self.hidden // self.head
        return {
            "layers": self.layers,
            "hidden": self.hidden,
            "heads": heads,
            "kv_heads": max(1, heads // 4, self.degrees.get("tp", 1)),
            "ffn": self.hidden * 11 // 4,
            "vocab": VOCABULARY,
        }

    @property
    def degrees(self) -> dict[str, Any]:
        return {self.twin.axis: self.ranks}

    @property
    def plan(self) -> Plan:
        share = {"micro_batch": self.batch // self.degrees.get("dp", 1)}
        return replace(Plan(), **self.degrees, **share, **self.twin.plan)


GRIDS = {
    "cpu": (
        StepCase(4, 128, 256, 4),
        StepCase(4, 256, 256, 2),
        StepCase(2, 512, 256, 2),
        StepCase(2, 256, 1024, 1),
        StepCase(1, 512, 1024, 1),
    ),
    "cuda": tuple(
        StepCase(4, hidden, sequence, SIZES["cuda"].tokens // sequence, head=SIZES["cuda"].width)
        for hidden in (1024, 2048, 4096)
        for sequence in (512, 2048, 8192)
    ),
}
# of several processes: (layers, hidden, sequence), a sequence for each process
SEVERAL = {"cpu": ((4, 256, 256), (2, 512, 256)), "cuda": ((4, 2048, 2048), (4, 4096, 2048))}


def grid(device: str, ranks: int) -> tuple[StepCase, ...]:
    """Return the steps of so many processes; of tensor parallelism those whose heads they divide."""
    if ranks == 1:
        return GRIDS[device]
    head = SIZES[device].width
    cases = [StepCase(*sizes, ranks, twin, ranks, head) for twin in TWINS for sizes in SEVERAL[device]]
    return tuple(case for case in cases if case.sizes["heads"] % case.degrees.get("tp", 1) == 0)


@dataclass(frozen=True)
class StepRow:
    """A step's seconds: measured, the spread of its rounds, predicted."""

    name: str
    measured_seconds: float
    spread: float
    predicted_seconds: float

    @property
    def error(self) -> float:
        return self.predicted_seconds / self.measured_seconds - 1

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"error": self.error}


# -------------------------------------------------------------------------------------------------- measured


def script(name: str) -> ModuleType:
    """Load a script of in_pytorch/, by a name that no lesson has. Raises UserError where it is not there."""
    if not SCRIPTS.is_dir():
        raise UserError("steps are those of in_pytorch/, which a checkout has and a wheel has not.")
    if str(SCRIPTS) not in sys.path:
        sys.path.insert(0, str(SCRIPTS))  # they import one another
    own = f"in_pytorch_{Path(name).stem}"
    return sys.modules.get(own) or load_module(own, SCRIPTS / name)


class Steps:
    """A sampler of a twin's steps: its first sample makes the model by its strategy, later ones call its loop
    again on what it returned; of every step the slowest process counts, and of the steps the least."""

    def __init__(self, torch: Any, case: StepCase, dtype: str, clock: Clock) -> None:
        self.torch, self.case, self.clock, self.twin = torch, case, clock, script(case.twin.script)
        self.dtype = getattr(torch, dtype)
        self.model: Any = None  # with what wraps it

    def __call__(self) -> float:
        moments: list[float] = []
        job, usual = self.job(moments), self.torch.get_default_dtype()
        self.torch.set_default_dtype(self.dtype)
        try:
            self.model = self.run(job).model
        finally:
            self.torch.set_default_dtype(usual)
        return min(max_over_ranks(self.torch, end - start) for start, end in pairwise(moments[WARM:]))

    def run(self, job: Any) -> Any:
        if self.model is None:
            return self.twin.STRATEGIES[self.case.twin.strategy](job)
        weights = self.model.parameters()
        optimizer = [job.make_optimizer(weights)] if self.case.twin.takes_optimizer else []
        return self.twin.train(job, self.model, *optimizer)

    def job(self, moments: list[float]) -> Any:
        """Return a job of the scripts that notes the moments between its steps."""
        case, torch, clock = self.case, self.torch, self.clock
        config = replace(self.twin.Job.config, **case.sizes, sequence=case.sequence)
        device = torch.device(device_of(torch))

        def batches(dp_rank: int = 0, dp: int = 1) -> Iterator[Any]:
            tokens = torch.randint(0, VOCABULARY, (case.batch // dp, case.sequence), device=device)
            for _ in range(WARM + STEPS):
                moments.append(clock())
                yield tokens, tokens
            moments.append(clock())

        job = self.twin.Job(config, batch=case.batch, device=device)
        object.__setattr__(job, "batches", batches)  # of one batch, instead of the text's
        return job


def steps(torch: Any, sizes: Sizes, clock: Clock) -> dict[StepCase, Sampler]:
    """Return the steps to be measured on this device, by these processes."""
    cases = grid(device_of(torch), launched()[0])
    return {case: Steps(torch, case, sizes.dtypes[0], clock) for case in cases}


# ------------------------------------------------------------------------------------------------- predicted


def step_rows(
    machine: ThisMachine, samples: Mapping[Any, list[float]], hardware: Accelerator | None = None
) -> list[StepRow]:
    """Set every step beside its prediction, from the kernels and collectives of the same rounds, or from
    hardware that was named."""
    hardware, stack = hardware or hardware_here(machine, samples), eager_stack(machine)
    return [
        StepRow(str(case), median(found), spread(found), predicted(case, hardware, stack))
        for case, found in of_kind(samples, StepCase).items()
    ]


def hardware_here(machine: ThisMachine, samples: Mapping[Any, list[float]]) -> Accelerator:
    """Return the hardware that kernels and collectives make, as its file would be read."""
    kernels, transfers = (of_kind(samples, kind) for kind in (Kernel, MeasuredTransfer))
    table = hardware_table(machine, kernels, fitted_links(transfers), slowdown(transfers))
    return accelerator(str(table.pop("name")), table)


def eager_stack(machine: ThisMachine) -> Stack:
    """Return PyTorch's eager software as the twins use it: all in the type of number of a device's training,
    gradients are not clipped, and plans gather once for q, k and v, cut the table, and keep logits cut."""
    dtype = SIZES[machine.device].dtypes[0]
    return replace(
        find_stack("pytorch"),
        dtype=dtype,
        gradient_bytes=int(itemsize(dtype)),
        optimizer_bytes=adamw_bytes(dtype),
        tp_by_matrix=False,
        cuts_table=True,
        parallel_loss=True,
    )


def predicted(case: StepCase, hardware: Accelerator, stack: Stack) -> float:
    shape = ModelShape(str(case), head_dim=case.head, **case.sizes)
    job = TrainingJob(shape, hardware, replace(stack, **case.twin.software), case.sequence, case.batch)
    return predict(job, case.plan).seconds


def as_runs(
    measured: list[StepRow],
    machine: ThisMachine,
    samples: Mapping[Any, list[float]],
    ranks: int = 1,
    hardware: Accelerator | None = None,
) -> list[dict[str, Any]]:
    """Return the steps in the format of measured runs, for `ndparallel validate --cases`."""
    cases = {str(case): case for case in grid(machine.device, ranks)}
    hardware = hardware or hardware_here(machine, samples)
    figures = {
        "gpu": machine.description,
        "peak_bf16_tflops": hardware.peak("bf16") / 1e12,
        "memory_gb": machine.memory_bytes / 1e9,
        "memory_bandwidth_gb_per_s": hardware.memory_bandwidth_bytes_per_second / MEMORY_FRACTION / 1e9,
    }
    if ranks > 1:
        figures["gpus_per_node"] = machine.gpus_per_node
        for key, link, nominal in (
            ("intra_node_gb_per_s_per_gpu_each_way", hardware.inside, INSIDE_FRACTION * 1e9),
            ("inter_node_gbit_per_s_per_gpu", hardware.across, ACROSS_FRACTION * 1e9 / 8),
        ):
            figures[key] = link.bandwidth_bytes_per_second / nominal
    return [as_run(row, cases[row.name], machine, figures) for row in measured]


def as_run(row: StepRow, case: StepCase, machine: ThisMachine, figures: dict[str, Any]) -> dict[str, Any]:
    plan = case.plan
    return {
        "id": f"{machine.name} {row.name}",
        "source": machine.description,
        "gpus": case.ranks,
        "hardware": figures,
        "software": {"framework": "PyTorch", "flash_attention": True},
        "model": {"name": row.name, **case.sizes, "activation": "swiglu"},
        "parallel": {
            **{"tp": plan.tp, "pp": plan.pp, "dp": plan.dp},
            **({"zero": plan.zero, "sp": plan.sequence_parallel} if case.ranks > 1 else {}),
        },
        "batch": {"micro": plan.micro_batch, "global": case.batch, "sequence": case.sequence},
        "recompute": "none",
        "measured": {"step_seconds": row.measured_seconds},
        "note": f"rounds spread by {row.spread:.0%} of the median",
    }
