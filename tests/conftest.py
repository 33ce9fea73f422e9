"""Before any test imports numpy: one BLAS thread a GPU, as in every run."""

import gpu  # noqa: F401
