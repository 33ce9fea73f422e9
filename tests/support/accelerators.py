"""Presets of hardware, by the type that they have."""

from ndparallel.hardware.accelerator import Accelerator, find_hardware


def accelerator(name: str) -> Accelerator:
    """A preset that has a data sheet, unlike pocket and classroom."""
    found = find_hardware(name)
    assert isinstance(found, Accelerator)
    return found
