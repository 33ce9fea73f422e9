"""What needs torch; it is imported where a test runs, since every process of pytest imports these files."""

from importlib.util import find_spec

import pytest

needs_torch = pytest.mark.skipif(
    find_spec("torch") is None, reason='torch is not installed: pip install "ndparallel[torch]"'
)
