"""The machine that measures: what it is called, how much memory it has, with what software; and its file."""

import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ndparallel.base.errors import UserError
from ndparallel.base.words import count
from ndparallel.calibration.kernels import device_of
from ndparallel.calibration.links import launched
from ndparallel.calibration.table import ThisMachine
from ndparallel.engines.system import usable_cores


def machine(torch: Any, name: str) -> ThisMachine:
    """Describe the device that torch would train on."""
    is_gpu = device_of(torch) == "cuda"
    if is_gpu:
        of_gpu = torch.cuda.get_device_properties(torch.cuda.current_device())
        what, memory = of_gpu.name, of_gpu.total_memory
    else:
        what = f"{platform.machine()} CPU, {count(torch.get_num_threads(), 'thread')}"
        memory = memory_beside_cpu()
    return ThisMachine(name, memory, launched()[1], f"{what}, measured {today()}", is_gpu)


def memory_beside_cpu() -> int:
    """Return this machine's memory in bytes. Raises UserError where Python cannot ask for it."""
    if not hasattr(os, "sysconf"):
        raise UserError(
            "a CPU is measured on Linux and macOS: here Python cannot say how much memory it has. A GPU is "
            "measured on every system that torch sees one on."
        )
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def today() -> str:
    return datetime.now(UTC).date().isoformat()


def versions(torch: Any) -> dict[str, str]:
    """Return what the measurements depend on beside the machine."""
    return {
        "date": today(),
        "device": device_of(torch),
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda),
        "python": platform.python_version(),
    }


def default_path(name: str) -> Path:
    """Return the file of a hardware of this name, here. Raises UserError where no file is called so."""
    if not name or Path(name).name != name:
        raise UserError(f"--name {name!r} cannot be a file's name: choose another, or add --out FILE.")
    return Path(f"{name}.json")


def processors() -> int:
    """How many processors this process may use."""
    return len(usable_cores()) or os.cpu_count() or 1
