"""Our programs keep the memory that they free."""

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


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library than glibc")
@pytest.mark.parametrize("name, keeps", [("0d_own.py", True), ("own.py", False)])
def test_an_array_finds_the_pages_of_the_one_before_in_our_programs_alone(tmp_path, name, keeps):
    program = tmp_path / name
    program.write_text(PROGRAM)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    words = subprocess.run([sys.executable, program], env=environment, capture_output=True, check=True)
    first, second = map(int, words.stdout.split())
    assert first > PAGES / 2
    assert (second < PAGES / 10) == keeps
