"""The workshop of ndparallel: everything that the lessons at the root need and do not have to explain themselves."""
