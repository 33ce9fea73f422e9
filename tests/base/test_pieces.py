"""Claims about work arrays of collectives: whether what is done to one is done to the output itself."""

import numpy as np

from ndparallel.base.pieces import flat, is_view, work_array


def test_a_flat_array_is_the_outputs_own_memory_unless_it_is_a_copy():
    """Also of an output that is itself a part of another array."""
    whole = np.zeros((4, 6))
    for output in (whole, whole[1:3], whole.reshape(3, 8)):
        assert is_view(flat(output, copy=False), output)
        assert not is_view(flat(output, copy=True), output)
    assert not is_view(flat(whole[:, 1:3], copy=False), whole[:, 1:3])  # not in one piece: it is copied
    assert is_view(None, None) and not is_view(None, whole)


def test_a_result_that_comes_later_has_memory_of_its_own():
    output = np.zeros((2, 3))
    assert is_view(work_array(output, async_op=False), output)
    assert not is_view(work_array(output, async_op=True), output)
