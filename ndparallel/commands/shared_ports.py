"""What ports add to a step that several groups share, for the answers of `plan` and `explain`.

Cost   The step is replayed with shared ports, which may take seconds: a line says so while it lasts.
"""

import sys

from ndparallel.planner.describe import shared_ports
from ndparallel.planner.prediction import Prediction
from ndparallel.results.progress import progress


def told_shared_ports(found: Prediction) -> list[str]:
    """Return it in sentences. What was printed before is shown first, because a replay may take seconds."""
    sys.stdout.flush()
    sharing_of(found)
    return shared_ports(found)


def sharing_of(found: Prediction) -> dict[str, float]:
    """Return it for JSON; nothing where they add nothing."""
    with progress() as announce:
        announce("what ports add that several groups share")
        seconds = found.sharing_seconds
    return {"sharing_seconds": seconds} if seconds else {}
