"""Wrong and slow answers to `heavy_head`. The docstring of each is in what its reader is told."""

import numpy as np


def equal_parts(layers, head, ranks):
    """The slowest stage is slower than it must be"""
    return [layers // ranks + (rank < layers % ranks) for rank in range(ranks)]


def rest_to_the_last(layers, head, ranks):
    """The slowest stage is slower than it must be"""
    return [layers // ranks] * (ranks - 1) + [layers - layers // ranks * (ranks - 1)]


def one_layer_less_on_the_last(layers, head, ranks):
    """The slowest stage is slower than it must be"""
    counts = equal_parts(layers, head, ranks)
    return [counts[0] + 1, *counts[1:-1], counts[-1] - 1]


def fractions(layers, head, ranks):
    """return a list of whole numbers"""
    return [(layers + head) / ranks] * (ranks - 1) + [(layers + head) / ranks - head]


def numpys_whole_numbers(layers, head, ranks):
    """The slowest stage is slower than it must be"""
    return list(np.array(equal_parts(layers, head, ranks)))


def loses_layers(layers, head, ranks):
    """has 28 layers, and the model 30"""
    return [layers // ranks] * ranks


def none_for_the_last(layers, head, ranks):
    """leaves a GPU without a layer"""
    return [layers - ranks + 2] + [1] * (ranks - 2) + [0]


def slowest_as_often_as_can_be(layers, head, ranks):
    """The slowest stage is as fast as it can be, but more stages than need be are as slow"""
    return {30: [7, 9, 9, 5], 16: [4, 4, 4, 4], 61: [4, 9, 9, 9, 9, 9, 9, 3]}[layers]
