"""The workshop of ndparallel: everything that the lessons at the root need and do not have to explain themselves."""

from ndparallel import more_collectives  # noqa: F401  enters its algorithms beside those of collectives.py
