"""What no clock and no memory can hold stops the GPU that is given it: prices and sizes that are no numbers,
and more bytes than there are."""

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


def test_memory_that_runs_out_says_what_was_asked_for_and_what_is_held():
    gpu = GPU(0, CLASSROOM, Mailboxes().of(0))
    gpu.allocate("weights", 0.9e9)
    with pytest.raises(OutOfMemoryError) as error:
        gpu.allocate("activations", 0.2e9)
    assert str(error.value) == (
        "GPU 0 has 1.00 GB of memory, and ran out of it before the step was done: 200 MB more of activations "
        "would make 1.10 GB, 100 MB too much (weights 900 MB, activations 200 MB)"
    )
