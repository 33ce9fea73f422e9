"""The seconds of a launch: one figure, of plain eager PyTorch, or one for each mode of launching.

Idea   Published figures are of eager PyTorch, and other modes are multiples of it
       (ndparallel/planner/launches.py). A machine that was measured has its own.

Glossary
    host_launch        the CPU's seconds to launch a kernel, while the GPU may still compute an earlier one
    kernel_overhead    the device's seconds between two kernels; on a CPU, where nothing runs ahead, a launch
    multiple           of the seconds of plain eager PyTorch
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from gpu import Hardware
from ndparallel.base.errors import UserError, check_known
from ndparallel.base.quantities import parse_quantity
from ndparallel.base.quoting import brief
from ndparallel.hardware.dtypes import positive

MODES = ("eager", "compiled", "modules")


class LaunchSeconds(NamedTuple):
    """Seconds in plain eager PyTorch, and the multiples of them that other modes were measured to take."""

    eager: float
    multiples: Mapping[str, float]


def launch_seconds(subject: str, given: Any) -> LaunchSeconds:
    """Read one quantity, or a table of modes. Raises UserError for anything else."""
    if not isinstance(given, Mapping):
        return LaunchSeconds(parse_quantity(given, "seconds", subject), {})
    for mode in given:
        check_known(f"mode of {subject}:", mode, MODES)
    if "eager" not in given:
        raise UserError(
            f'{subject} must say eager, as in {{ eager = "13 us", compiled = "3 us" }}, not {brief(given)}.'
        )
    seconds = {
        mode: positive(f"{subject}.{mode}", parse_quantity(each, "seconds", f"{subject}.{mode}"))
        for mode, each in given.items()
    }
    return LaunchSeconds(
        seconds["eager"], {mode: each / seconds["eager"] for mode, each in seconds.items() if mode != "eager"}
    )


def with_launch_mode(hardware: Hardware, mode: str) -> Hardware:
    """Return the hardware with the kernel overhead of this mode of launching."""
    multiple = getattr(hardware, "kernel_overhead_multiples", {}).get(mode, 1.0)
    if multiple == 1.0:
        return hardware
    return replace(hardware, kernel_overhead_seconds=multiple * hardware.kernel_overhead_seconds)
