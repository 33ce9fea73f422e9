"""Claims about the comparison with one GPU and about clipping, in numbers that a blackboard gives."""

import math

import numpy as np
import pytest

from ndparallel.parallel.slices import Parameter
from ndparallel.training.clipping import coefficient, copies
from ndparallel.training.gradient_check import (
    Distances,
    Tensors,
    differences,
    distances_of,
    largest_difference,
    step_difference,
    tolerance_of,
    whole_tensors,
    worst,
)
from ndparallel.training.job import Job
from ndparallel.training.replica import Holding
from tests.support.common import SMALL

ROWS, TAIL = (4, 2), (3,)
WHOLE = [
    Parameter("matrix", ROWS, (slice(0, 4), slice(0, 2))),
    Parameter("bias", TAIL, (slice(0, 3),)),
]
REFERENCE = Tensors(matrix=np.arange(8.0).reshape(ROWS), bias=np.array([10.0, -20.0, 5.0]))


def test_a_part_of_a_rank_is_held_against_the_same_part_of_the_whole_from_where_it_begins():
    """Elements 6 to 9 of the matrix' 8 and the bias' 3; the rank has rows 2 and 3 of the matrix elsewhere."""
    found = distances_of(Holding(WHOLE, 6, np.array([6.0, 9.0, 10.5, -20.0])), REFERENCE)
    assert (found.names, found.starts, found.elements.tolist()) == (
        ["matrix", "bias"],
        [0, 2],
        [0, 2, 0.5, 0],
    )
    rows = Parameter("matrix", ROWS, (slice(2, 4), slice(0, 2)))
    assert distances_of(Holding([rows], 1, np.array([5.0, 6.0, 8.0])), REFERENCE).elements.tolist() == [
        0,
        0,
        1,
    ]
    assert distances_of(Holding([rows], 0, np.array([])), REFERENCE).names == []


def test_a_difference_is_relative_to_the_largest_element_of_its_whole_tensor():
    found = Distances(["matrix", "bias"], [0, 2], np.array([0.5, 1.4, 4.0]))
    assert [*differences(found, REFERENCE)] == pytest.approx([1.4 / 7, 4 / 20])
    assert largest_difference([found, Distances([], [], np.array([]))], REFERENCE) == pytest.approx(0.2)


def test_a_tensor_that_is_zero_but_for_rounding_is_held_to_the_largest_of_all():
    tensors = Tensors(
        large=np.array([1.0, -8.0], np.float32), small=np.array([2.0**-19], np.float32),
        nothing=np.array([2.0**-20], np.float32),
    )  # fmt: skip
    assert tensors.scales == {"large": 8, "small": 2.0**-19, "nothing": 8}
    assert [*differences(Distances(["zero"], [0], np.array([0.5])), Tensors(zero=np.zeros(1)))] == [0.5]


def test_steps_are_compared_by_their_root_mean_square_in_learning_rates_and_without_rounding():
    found = Distances(["matrix", "bias"], [0, 2], np.array([0.3, 0.4, 0.5]))
    assert found.root_mean_squares() == pytest.approx([math.sqrt(0.125), 0.5])
    gradients = Tensors(matrix=np.array([1.0]), bias=np.array([1e-17]))
    assert step_difference([found], REFERENCE, 0.1) == pytest.approx(5)
    assert step_difference([found], gradients, 0.1) == pytest.approx(math.sqrt(12.5))


def test_what_is_no_number_is_worse_than_everything():
    assert worst([1.0, math.inf, 2.0]) == math.inf and math.isnan(worst([1.0, math.nan, 2.0]))
    assert math.isnan(worst([]))


def test_tensors_of_one_rank_are_cut_from_its_flat_arrays():
    found = whole_tensors([Holding(WHOLE, 0, np.arange(11.0))])
    assert found["matrix"].tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]] and found["bias"].tolist() == [
        8,
        9,
        10,
    ]


def test_bfloat16_may_differ_by_twice_what_its_roundings_do_to_one_gpu():
    """And by one of them in any case; float32 by what it may, whatever they do."""
    bfloat16 = Job(model=SMALL, dtype="bfloat16")
    assert (tolerance_of(bfloat16, 0.02), tolerance_of(bfloat16, 0.0)) == (0.04, 2**-8)
    assert tolerance_of(Job(model=SMALL), 0.02) == 1e-5


@pytest.mark.parametrize(("norm", "limit", "times"), [(2.0, 1.0, 0.5), (0.5, 1.0, 1.0), (1.0, 1.0, 1.0)])
def test_gradients_are_scaled_to_the_limit_where_they_are_longer(norm, limit, times):
    assert coefficient(norm, limit) == pytest.approx(times, rel=2e-6)
    assert coefficient(norm, limit) * norm <= limit


def test_a_millionth_is_added_to_the_norm_as_in_torch_and_megatron():
    assert coefficient(1e-6, 1e-6) == pytest.approx(0.5)


def test_gradients_without_a_norm_have_no_coefficient():
    assert math.isnan(coefficient(math.nan, 1.0)) and coefficient(math.inf, 1.0) == 0


def test_of_tp_ranks_that_hold_the_same_slice_one_counts_it():
    half = Parameter("kv", (4, 2), (slice(0, 2), slice(0, 2)), shared_by=2)
    assert [copies(each, 8) for each in (*WHOLE, half)] == [8, 8, 2]
    assert copies(Parameter("q", (4, 2), (slice(0, 2), slice(0, 2))), 8) == 1
