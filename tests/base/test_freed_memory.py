"""Our programs keep the memory that they free, until they fork."""

import os
import platform
import subprocess
import sys
from pathlib import Path
from resource import getpagesize

import pytest

ROOT = Path(__file__).resolve().parents[2]
BYTES = 3 << 20  # more than glibc takes of what it has, less than what numpy wants huge pages for
PAGES = BYTES // getpagesize()
PROGRAM = f"""
from resource import RUSAGE_SELF, getrusage
import gpu, numpy
def faults():
    before = getrusage(RUSAGE_SELF).ru_minflt
    numpy.ones({BYTES}, numpy.uint8)
    return getrusage(RUSAGE_SELF).ru_minflt - before
print(faults(), faults())
"""

FORKING = f"""
from pathlib import Path
import gpu, numpy
from ndparallel.engines.processes import ProcessPool
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1])
numpy.ones({10 * BYTES}, numpy.uint8)
before = resident()
ProcessPool(1, "fork").close()
print(before - resident())
"""
glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library than glibc")


@glibc
@pytest.mark.parametrize("name, keeps", [("0d_own.py", True), ("own.py", False)])
def test_an_array_finds_the_pages_of_the_one_before_in_our_programs_alone(tmp_path, name, keeps):
    first, second = numbers_of(tmp_path / name, PROGRAM)
    assert first > PAGES / 2
    assert (second < PAGES / 10) == keeps


@glibc
def test_what_is_free_is_given_back_before_ranks_are_forked_that_would_have_to_copy_it(tmp_path):
    (returned,) = numbers_of(tmp_path / "0d_own.py", FORKING)
    assert returned > 9 * PAGES


def numbers_of(program: Path, words: str) -> list[int]:
    """What a program prints."""
    program.write_text(words)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    run = subprocess.run([sys.executable, program], env=environment, capture_output=True, check=True)
    return [*map(int, run.stdout.split())]
