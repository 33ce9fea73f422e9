"""Prices and sizes that are no numbers stop the GPU that is given them, and never reach its clock."""

import pytest

from gpu import CLASSROOM, GPU, Mailboxes, Operation, OutOfMemoryError


@pytest.mark.parametrize("flops", [float("nan"), float("inf")])
def test_work_of_no_finite_duration_is_refused_and_the_clock_stays(flops):
    gpu = GPU(0, CLASSROOM, Mailboxes().of(0))
    with pytest.raises(ValueError, match="GPU 0: .*no clock can add that"):
        gpu.compute(Operation("strange", flops=flops))
    assert gpu.now == 0 and gpu.events == []


def test_memory_of_no_size_is_refused():
    gpu = GPU(0, CLASSROOM, Mailboxes().of(0))
    with pytest.raises(OutOfMemoryError, match="more of activations"):
        gpu.allocate("activations", float("nan"))
