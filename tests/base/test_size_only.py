"""Claims about arrays that are only sizes: numpy's functions find the same shapes and dtypes of them."""

from typing import Any

import numpy as np
import pytest

from gpu import is_size_only
from ndparallel.base.size_only import SizeOnly
from ndparallel.model import functional, routing


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).random(shape).astype(np.float32)


Q, K, SCORES, ROWS = numbers(6, 2, 4, 8), numbers(6, 2, 2, 8), numbers(2, 2, 2, 6, 6), numbers(12, 4)
ORDER, CHOSEN = np.arange(24, dtype=np.int32), np.tile(np.arange(2, dtype=np.int32), (12, 1))
CASES: dict[str, tuple] = {
    "rms_norm": (functional.rms_norm, Q, numbers(8)),
    "rms_norm_backward": (functional.rms_norm_backward, Q, Q, numbers(8)),
    "rotary": (functional.rotary, Q, numbers(6, 8, 8)),
    "scores": (functional.attention_scores, Q, K),
    "scores_backward": (functional.attention_scores_backward, SCORES, Q, K),
    "softmax": (functional.softmax, SCORES, numbers(6, 6)),
    "softmax_with_logsum": (functional.softmax_with_logsum, SCORES, numbers(6, 6)),
    "softmax_backward": (functional.softmax_backward, SCORES, SCORES),
    "values": (functional.attention_values, SCORES, K),
    "values_backward": (functional.attention_values_backward, Q, SCORES, K),
    "swiglu": (functional.swiglu, ROWS),
    "swiglu_backward": (functional.swiglu_backward, numbers(12, 2), ROWS),
    "gates": (lambda p, chosen: routing.gates(p, chosen, True), ROWS, CHOSEN),
    "gates_backward": (lambda d, p, c: routing.gates_backward(d, p, c, True), numbers(12, 2), ROWS, CHOSEN),
    "permute": (lambda x, order: routing.permute(x, order, 2), ROWS, ORDER),
    "permute_backward": (lambda d, order: routing.permute_backward(d, order, 12, 2), numbers(24, 4), ORDER),
    "combine": (routing.combine, numbers(24, 4), numbers(12, 2), ORDER),
    "combine_backward": (routing.combine_backward, ROWS, numbers(24, 4), numbers(12, 2), ORDER),
    "sum": (lambda x: x.sum(), Q),
    "sum of the last": (lambda x: x.sum(axis=-1), Q),
    "sum of the first, kept": (lambda x: x.sum(axis=0, keepdims=True), Q),
    "last half": (lambda x: x[..., x.shape[-1] // 2 :], Q),
    "every other": (lambda x: x[1::2, None, -1], Q),
    "masked": (lambda x: x[x > -1], Q),
    "stacked": (lambda x: np.concatenate(np.stack([x, x])[:, 1:]), Q),
}


@pytest.mark.parametrize("name", CASES)
def test_arrays_that_are_only_sizes_have_the_shapes_and_dtypes_that_numpy_finds(name):
    function, *arrays = CASES[name]
    found = function(*[SizeOnly(array.shape, array.dtype) for array in arrays])
    expected = function(*[array.copy() for array in arrays])
    both = zip(found, expected, strict=True) if isinstance(expected, tuple) else [(found, expected)]
    for size, array in both:
        assert (size.shape, size.dtype, size.nbytes) == (array.shape, array.dtype, array.nbytes)
        assert is_size_only(size)


def test_sizes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"sizes \[3, 4\] do not fit"):
        SizeOnly((2, 3), "float32") + SizeOnly((2, 4), "float32")
    with pytest.raises(ValueError, match="do not fit"):
        SizeOnly((2, 3), "float32") @ SizeOnly((4, 2), "float32")


def test_there_is_one_array_of_each_shape_and_dtype():
    one, other = SizeOnly((4, 6), "float32"), SizeOnly([4, 6], np.float32)
    assert one is other is (one + 1) is one.copy() is one.T.T
    assert one[:2] is other[:2] and one.astype("float64") is not one


def test_so_many_choices_are_spread_evenly_over_all_that_can_be_chosen():
    chosen: Any = SizeOnly((12, 2), np.int32)
    order, counts = routing.assign(chosen, experts=5, limit=24)
    assert order.shape == (24,) and [*counts] == [5, 5, 5, 5, 4]


def test_of_more_choices_than_experts_take_some_are_dropped():
    chosen: Any = SizeOnly((12, 2), np.int32)
    order, counts = routing.assign(chosen, experts=4, limit=5)
    assert order.shape == (20,) and [*counts] == [5, 5, 5, 5]
