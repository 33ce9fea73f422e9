"""What happens before anything runs: one BLAS thread a GPU, whichever way in, and a quiet Ctrl-C."""

import os
import signal
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
WAYS_IN += [f"import runpy; runpy.run_path({str(path)!r})" for path in sorted(ROOT.glob("[0-9a-z][dp]_*.py"))]


@pytest.mark.parametrize("way_in", WAYS_IN)
def test_one_blas_thread_is_set_before_numpy_is_looked_for(way_in):
    outside = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    done = subprocess.run(
        [sys.executable, "-c", WATCH + way_in], cwd=ROOT, env=outside, capture_output=True, text=True
    )
    assert (done.stdout.split()[:1], done.stderr) == (["1"], "")


CTRL_C = """
import os, signal, sys
class CtrlC:
    def find_spec(name, *_):
        if name == os.environ["INTERRUPTED_AT"]:
            os.kill(os.getpid(), signal.SIGINT)
signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs start deaf to it
sys.meta_path.insert(0, CtrlC)
"""


def interrupted_at(module, folder, *words):
    """Run Python with these words, and interrupt it where it begins to import a module."""
    (folder / "sitecustomize.py").write_text(CTRL_C)
    environment = os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}", "INTERRUPTED_AT": module}
    done = subprocess.run([sys.executable, *words], cwd=ROOT, env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    "module", ["numpy", "numpy.linalg", "ndparallel.base.errors", "ndparallel.results.show"]
)
@pytest.mark.parametrize("words", [("1d_data_parallel.py",), ("-m", "ndparallel", "lesson", "1d")])
def test_ctrl_c_while_modules_are_imported_ends_quietly_with_130(module, words, tmp_path):
    assert interrupted_at(module, tmp_path, *words) == (130, "", "")


def test_ctrl_c_in_a_readers_own_program_is_pythons(tmp_path):
    (tmp_path / "own.py").write_text("import gpu")
    code, _, told = interrupted_at("numpy", tmp_path, str(tmp_path / "own.py"))
    assert code == -signal.SIGINT and "KeyboardInterrupt" in told


@pytest.mark.parametrize("package", ["numpy", "rich"])
def test_a_package_that_is_not_installed_is_one_sentence(package, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(f"import sys; sys.modules[{package!r}] = None")
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    words = [sys.executable, "0d_single_gpu.py"]
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 1 and done.stdout == "" and done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"error: {package} is not installed; `pip install -e .` installs")


@pytest.mark.parametrize(
    ("before", "threads", "is_told"),
    [("import numpy", {}, True), ("import numpy", {"OMP_NUM_THREADS": "2"}, False), ("", {}, False)],
)
def test_numpy_that_came_first_and_has_its_own_threads_is_told_once(before, threads, is_told):
    outside = {name: value for name, value in os.environ.items() if not name.endswith("_THREADS")}
    program = f"{before}\nfrom ndparallel.engines.launch import Ranks\nRanks(2, 'inline'), Ranks(2, 'inline')"
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, cwd=ROOT, env=outside | threads, capture_output=True, text=True)
    assert done.stderr.count("note: numpy was imported before gpu") == is_told, done.stderr


def test_python_looks_for_garbage_less_often_in_our_programs_alone():
    words = "import gc; usual, *_ = gc.get_threshold(); import gpu; print(usual, gc.get_threshold()[0])"
    elsewhere, ours = (
        subprocess.run([sys.executable, "-c", words, *more], cwd=ROOT, capture_output=True, text=True).stdout
        for more in ([], ["4d_combined.py"])
    )
    usual, kept = elsewhere.split()
    assert usual == kept and ours.split() == [usual, "100000"]


RANKS_TOLD = """
import sys
from ndparallel.engines.processes import ProcessPool
from ndparallel.lessons.main import main
from ndparallel.lessons.registry import load

start = ProcessPool._start
def told(pool, rank):
    print("rich" in sys.modules, file=sys.stderr)
    start(pool, rank)
ProcessPool._start = told
sys.exit(main(load("1d_data_parallel"), ["--gpus", "2", "--strategy", "DDP ring"]))
"""


def test_ranks_start_before_what_shows_their_rows_is_imported_whose_memory_they_would_copy():
    words = [sys.executable, "-c", RANKS_TOLD]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr.split()) == (0, ["False", "False"])
    assert "DDP ring" in done.stdout
