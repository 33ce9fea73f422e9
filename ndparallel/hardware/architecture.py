"""What a GPU can do, whatever its speed: the numbers that it has, and the GPUs that it meets on NVLink.

Idea   NVIDIA's compute capability says which kernels there are for a GPU (`architecture = "sm_90"` of a
       preset: 90). Which GPUs NVLink joins follows from the figures of a node.
Limit  Of an architecture that is not known, or another vendor's, nothing is said to lack.

Glossary
    multicast   one write of a GPU that its switch hands to several others
"""

from gpu import Hardware
from ndparallel.hardware.accelerator import Accelerator, host_size
from ndparallel.hardware.figures import HOST_FRACTION, NVIDIAS

AMPERE, HOPPER = 80, 90


def capability(hardware: Hardware) -> int | None:
    """Return the compute capability of an NVIDIA GPU, times ten; None where it is not known."""
    found = NVIDIAS.fullmatch(getattr(hardware, "architecture", ""))
    return int(found[1]) if found else None


def is_before(hardware: Hardware, first: int) -> bool:
    """Return whether a GPU is known to be older than those of this compute capability."""
    return (capability(hardware) or first) < first


def has_bf16(hardware: Hardware) -> bool:
    """Return whether a GPU multiplies bf16, as NVIDIA's do from Ampere on."""
    return not is_before(hardware, AMPERE)


def nvlink_ranks(hardware: Hardware) -> int:
    """Return how many GPUs one NVLink joins: a node's, or a bridge's; 1 where GPUs meet over PCIe, whose rate
    is also that to the host."""
    if not isinstance(hardware, Accelerator):
        return hardware.gpus_per_node
    inside = hardware.inside.bandwidth_bytes_per_second / hardware.inside_fraction
    if inside <= hardware.host_bytes_per_second / HOST_FRACTION:
        return 1
    return hardware.gpus_linked_directly or hardware.gpus_per_node


def shares_nvlink(hardware: Hardware) -> bool:
    """Return whether several machines are on one NVLink, as those of an NVL72."""
    return host_size(hardware) < hardware.gpus_per_node


def has_multicast(hardware: Hardware) -> bool:
    """Return whether a switch hands one write to several GPUs: NVSwitch does so from Hopper on (CUDA's
    CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED)."""
    bridged = getattr(hardware, "gpus_linked_directly", 0) > 0
    return nvlink_ranks(hardware) > 1 and not bridged and not is_before(hardware, HOPPER)
