"""Claims about pieces of a flat array: cut at the borders of parameters, each element once, in its place."""

import numpy as np
import pytest

from ndparallel.parallel.slices import Parameter, pieces, whole

SIZES = (3, 4, 2)
PARAMETERS = [Parameter(f"p{place}", (size,), whole(size)) for place, size in enumerate(SIZES)]


@pytest.mark.parametrize("start", range(9))
@pytest.mark.parametrize("size", range(4))
def test_every_element_of_a_piece_is_the_parameters_at_that_place(start, size):
    """Element n of all parameters is n, so that a parameter's slice says what its piece must be."""
    array = np.arange(9)[start : start + size]
    begins = {"p0": 0, "p1": 3, "p2": 7}
    found = list(pieces(PARAMETERS, start, array))
    for parameter, taken, content in found:
        assert content.tolist() == list(range(9))[begins[parameter.name] :][taken]
    assert sum(content.size for *_, content in found) == array.size
