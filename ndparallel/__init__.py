"""N-D parallelism for training large models: real numbers and honest seconds, from one GPU to a cluster."""

import gpu  # noqa: F401  first of all: it sets one BLAS thread a GPU before numpy is imported
from ndparallel.collective import algorithms  # noqa: F401  enters its algorithms beside those of collectives.py
