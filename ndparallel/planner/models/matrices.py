"""A matrix of a layer, by its sizes."""

from typing import NamedTuple


class Linear(NamedTuple):
    """One matrix of `inputs` x `outputs` weights, and `outputs` more if it has a bias.

    `split` is how tensor parallelism cuts it: by "columns" (a rank computes some of the outputs), by "rows"
    (a rank computes a part of every output, and the parts are summed), or not at all: "whole".
    """

    name: str
    inputs: int
    outputs: int
    bias: bool
    split: str

    @property
    def parameters(self) -> int:
        return (self.inputs + self.bias) * self.outputs


def count(matrices: tuple[Linear, ...]) -> int:
    """Return the parameters of several matrices together."""
    return sum(matrix.parameters for matrix in matrices)
