"""Rung 5: training steps of the reader's own machine, measured, and predicted from its own kernels.

Idea   The steps are those of in_pytorch/model.py, in torch alone. Kernels and steps are measured in turn, in
       the same rounds; the planner prices its list of PyTorch's eager layers on the hardware that the kernels
       make, and the two are set side by side. Nothing is fitted to a step.
Limit  One process. The optimizer's rate is measured, and is no figure of a hardware file. Tried on CPUs.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from ndparallel.base.errors import UserError
from ndparallel.base.functions import load_module
from ndparallel.calibration.kernels import Kernel, Sizes, device_of
from ndparallel.calibration.table import ThisMachine, hardware_table, optimizer_bytes
from ndparallel.calibration.timing import Run, median, spread
from ndparallel.hardware.accelerator import MEMORY_FRACTION, Accelerator, accelerator
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.models.shape import ModelShape
from ndparallel.planner.prediction import predict
from ndparallel.planner.software import Stack, find_stack

MODEL = Path(__file__).resolve().parents[2] / "in_pytorch" / "model.py"
HEAD, VOCABULARY = 64, 256


@dataclass(frozen=True)
class StepCase:
    """A training step: a model of `layers` of width `hidden` on `batch` sequences."""

    layers: int
    hidden: int
    sequence: int
    batch: int

    def __str__(self) -> str:
        return f"{self.layers} x {self.hidden}, {self.batch} x {self.sequence}"

    @property
    def sizes(self) -> dict[str, Any]:
        """The model's sizes, by the names that model.py and the planner share."""
        heads = self.hidden // HEAD
        ffn = self.hidden * 11 // 4
        return {
            "layers": self.layers,
            "hidden": self.hidden,
            "heads": heads,
            "kv_heads": max(1, heads // 4),
            "ffn": ffn,
            "vocab": VOCABULARY,
        }


GRIDS = {
    "cpu": (
        StepCase(4, 128, 256, 4),
        StepCase(4, 256, 256, 2),
        StepCase(2, 512, 256, 2),
        StepCase(2, 256, 1024, 1),
        StepCase(1, 512, 1024, 1),
    ),
    "cuda": tuple(
        StepCase(4, hidden, sequence, 16384 // sequence)
        for hidden in (1024, 2048, 4096)
        for sequence in (512, 2048, 8192)
    ),
}


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


@cache
def model_file() -> ModuleType:
    """Load in_pytorch/model.py. Raises UserError where it is not there."""
    if not MODEL.is_file():
        raise UserError("steps are those of in_pytorch/model.py, which a checkout has and a wheel has not.")
    return load_module("in_pytorch_model", MODEL)


def steps(torch: Any, sizes: Sizes) -> dict[StepCase, Run]:
    """Return the steps to be measured on this device."""
    return {case: step(torch, case, sizes.dtypes[0]) for case in GRIDS[device_of(torch)]}


def step(torch: Any, case: StepCase, dtype: str) -> Run:
    """Make a model and return one training step of it."""
    written, device = model_file(), device_of(torch)
    model = written.Transformer(written.Config(**case.sizes, sequence=case.sequence))
    model.to(device, getattr(torch, dtype))
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(0, VOCABULARY, (case.batch, case.sequence), device=device)

    def train() -> None:
        written.loss_fn(model(tokens), tokens).backward()
        optimizer.step()
        optimizer.zero_grad()

    return train


def rows(machine: ThisMachine, samples: Mapping[Any, list[float]]) -> list[StepRow]:
    """Set every step beside its prediction from the kernels of the same rounds."""
    kernels = kernels_of(samples)
    hardware, stack = hardware_here(machine, kernels), eager_stack(kernels)
    return [
        StepRow(str(case), median(found), spread(found), predicted(case, hardware, stack))
        for case, found in samples.items()
        if isinstance(case, StepCase)
    ]


def kernels_of(samples: Mapping[Any, list[float]]) -> dict[Kernel, list[float]]:
    return {key: found for key, found in samples.items() if isinstance(key, Kernel)}


def hardware_here(machine: ThisMachine, kernels: Mapping[Kernel, list[float]]) -> Accelerator:
    """Return the hardware that these kernels make, as its file would be read."""
    table = hardware_table(machine, kernels, {})
    return accelerator(str(table.pop("name")), table)


def eager_stack(kernels: Mapping[Kernel, list[float]]) -> Stack:
    """Return PyTorch's eager software in the type of number, and with the optimizer, that was measured."""
    seconds = {kernel: median(found) for kernel, found in kernels.items()}
    dtype = next(iter(kernels)).dtype
    moved = optimizer_bytes(seconds)
    return replace(find_stack("pytorch"), dtype=dtype, optimizer_bytes=round(moved))


def predicted(case: StepCase, hardware: Accelerator, stack: Stack) -> float:
    shape = ModelShape(str(case), head_dim=HEAD, **case.sizes)
    job = TrainingJob(shape, hardware, stack, case.sequence, case.batch)
    return predict(job, Plan(micro_batch=case.batch)).seconds


def as_runs(
    measured: list[StepRow], machine: ThisMachine, kernels: Mapping[Kernel, list[float]]
) -> list[dict[str, Any]]:
    """Return the steps in the format of measured runs, for `ndparallel validate --cases`."""
    cases = {str(case): case for grid in GRIDS.values() for case in grid}
    hardware = hardware_here(machine, kernels)
    figures = {
        "gpu": machine.description,
        "peak_bf16_tflops": hardware.peak("bf16") / 1e12,
        "memory_gb": machine.memory_bytes / 1e9,
        "memory_bandwidth_gb_per_s": hardware.memory_bandwidth_bytes_per_second / MEMORY_FRACTION / 1e9,
    }
    return [as_run(row, cases[row.name], machine, figures) for row in measured]


def as_run(row: StepRow, case: StepCase, machine: ThisMachine, figures: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": f"{machine.name} {row.name}",
        "source": machine.description,
        "gpus": 1,
        "hardware": figures,
        "software": {"framework": "PyTorch", "flash_attention": True},
        "model": {"name": row.name, **case.sizes, "activation": "swiglu"},
        "parallel": {"tp": 1, "pp": 1, "dp": 1},
        "batch": {"micro": case.batch, "global": case.batch, "sequence": case.sequence},
        "recompute": "none",
        "measured": {"step_seconds": row.measured_seconds},
        "note": f"rounds spread by {row.spread:.0%} of the median",
    }
