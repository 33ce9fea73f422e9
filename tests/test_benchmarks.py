"""What benchmarks/ prints before it measures anything: its help, and what it lacks."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
PROGRAMS = sorted(path.name for path in BENCHMARKS.glob("*.py") if "__main__" in path.read_text())
WITHOUT = "import runpy, sys; sys.modules['playwright'] = None; sys.path.insert(0, {folder!r}); "


def test_there_are_programs():
    assert "explorer.py" in PROGRAMS and len(PROGRAMS) > 10


@pytest.mark.parametrize("name", PROGRAMS)
def test_help_says_what_a_benchmark_measures_and_measures_nothing(name):
    words = [sys.executable, str(BENCHMARKS / name), "--help"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout.startswith(f"usage: {name}") and not done.stderr
    first = (BENCHMARKS / name).read_text().removeprefix('"""').split()[:8]
    assert " ".join(first) in " ".join(done.stdout.split())


def test_the_explorers_benchmark_says_what_to_install():
    run = "sys.argv = ['explorer.py']; runpy.run_path({path!r}, run_name='__main__')"
    code = (WITHOUT + run).format(folder=str(BENCHMARKS), path=str(BENCHMARKS / "explorer.py"))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: Playwright is not installed: ") and ".[browser]" in done.stderr


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_benchmark_ends_as_commands_do(name):
    """Quietly where nobody reads it any longer, and with one sentence after a UserError."""
    assert (BENCHMARKS / name).read_text().count("raise SystemExit(guarded(") == 1


@pytest.mark.parametrize("name", ["lockstep.py", "messages.py", "transport.py"])
def test_a_benchmark_that_nobody_reads_any_longer_ends_without_a_traceback(name):
    """As with `| head`: each prints a line before it measures."""
    reader, writer = os.pipe()
    os.close(reader)
    command, unbuffered = [sys.executable, str(BENCHMARKS / name)], os.environ | {"PYTHONUNBUFFERED": "1"}
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, env=unbuffered, timeout=60)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")
