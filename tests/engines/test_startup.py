"""What happens before anything runs: one BLAS thread a GPU, whichever way in."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WATCH = """
import os, sys
class Watch:
    def find_spec(name, *_):
        if name == "numpy":
            print(os.environ.get("OPENBLAS_NUM_THREADS"))
sys.meta_path.insert(0, Watch)
"""
WAYS_IN = [
    "import gpu",
    "import collectives",
    "import ndparallel.planner",
    "from ndparallel.lessons.registry import load",
]
WAYS_IN += [f"import runpy; runpy.run_path({str(path)!r})" for path in sorted(ROOT.glob("[0-9]d_*.py"))]


@pytest.mark.parametrize("way_in", WAYS_IN)
def test_one_blas_thread_is_set_before_numpy_is_looked_for(way_in):
    outside = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    done = subprocess.run(
        [sys.executable, "-c", WATCH + way_in], cwd=ROOT, env=outside, capture_output=True, text=True
    )
    assert (done.stdout.split()[:1], done.stderr) == (["1"], "")
