"""Say what to install where torch is not: every script imports this before torch."""

import sys
from importlib.util import find_spec

if find_spec("torch") is None:
    sys.exit("error: torch is not installed; `pip install -e '.[torch]'` in the checkout brings it.")
