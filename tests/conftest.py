"""No test depends on how fast the machine is, nor on chance; and each has one BLAS thread a GPU, as every run
has."""

from hypothesis import settings

import gpu  # noqa: F401  before any test imports numpy

settings.register_profile("unhurried", deadline=None, derandomize=True)
settings.load_profile("unhurried")
