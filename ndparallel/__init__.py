"""The workshop of ndparallel: everything that the lessons at the root need and do not have to explain themselves."""

import gpu  # noqa: F401  first of all: it sets one BLAS thread a GPU before numpy is imported
from ndparallel.communication import more_collectives  # noqa: F401  enters its algorithms beside those of collectives.py
