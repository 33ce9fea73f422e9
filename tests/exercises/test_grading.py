"""The grader survives what a reader's file does, and says what happened."""

import subprocess
import sys

import pytest

from ndparallel.base.errors import UserError
from ndparallel.exercises import grade as grading
from ndparallel.exercises.catalog import find_exercise
from ndparallel.exercises.grade import grade
from ndparallel.exercises.verdict import WRONG, mark_of
from tests.engines.test_failures import wait_until_gone

HEAD = "def all_reduce(gpu, array, ranks):\n"


def verdict_of(tmp_path, body: str):
    path = tmp_path / "ring.py"
    path.write_text(HEAD + body, "utf-8")
    return grade(find_exercise("ring"), path)


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("    raise KeyError('oops')\n", "KeyError: 'oops' (line 2: raise KeyError('oops'))"),
        ("    gpu.receive(9, 0)\n", "the ranks are 0 to 3 (line 2: gpu.receive(9, 0))"),
        ("    array[1000] = 1\n", "IndexError: index 1000 is out of bounds"),
        ("    import os; os._exit(0)\n", "The answer ended Python itself"),
        ("    import os, signal; os.kill(os.getpid(), signal.SIGKILL)\n", "ended by SIGKILL"),
        ("    input()\n", "EOFError"),
        ("    x = bytearray(8 * 2**30)\n", "no memory is left (line 2: x = bytearray(8 * 2**30))"),
        ("    gpu.allocate('weights', 1e30)\n", "GPU 0 has 1.00 GB of memory"),
        ("    raise KeyboardInterrupt\n", "KeyboardInterrupt (line 2: raise KeyboardInterrupt)"),
        ("    raise ValueError('x ' * 10**7)\n", "ValueError: x x x"),
        ("    import os; os.fork()\n", "nothing was added to it"),
    ],
)
def test_what_goes_wrong_is_one_sentence(tmp_path, capfd, body, sentence):
    verdict = verdict_of(tmp_path, body)
    assert verdict.mark == WRONG
    assert len(verdict.sentences) == 1 and sentence in verdict.sentences[0]
    assert len(verdict.sentences[0]) < 2100 and capfd.readouterr().err == ""


STARTS = "    import os, subprocess\n    child = subprocess.Popen(['sleep', '1000'])\n"
SAYS = "    print(os.getpid(), child.pid, flush=True)\n"


def processes_in(printed):
    return [int(word) for word in printed.split()]


def test_what_an_answer_has_started_ends_with_its_grade(tmp_path, capfd):
    assert verdict_of(tmp_path, STARTS + SAYS).mark == WRONG
    started = processes_in(capfd.readouterr().out)
    assert len(started) == 8  # an answer runs on four GPUs
    wait_until_gone(started)


def test_an_answer_ends_with_its_grader(tmp_path):
    (tmp_path / "ring.py").write_text(
        HEAD + "    import os, time\n    print(os.getpid(), flush=True)\n    time.sleep(1000)\n"
    )
    command = [sys.executable, "-m", "ndparallel", "exercise", "ring", "--folder", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as grader:
        assert grader.stdout
        started = processes_in(grader.stdout.readline())
        grader.kill()
    wait_until_gone(started)


@pytest.mark.parametrize("stacks", ["greenlets", "threads"])
def test_a_loop_without_end_is_ended_with_its_line(tmp_path, monkeypatch, stacks):
    monkeypatch.setattr(grading, "CPU_SECONDS", 0.3)
    if stacks == "threads":
        monkeypatch.setitem(sys.modules, "greenlet", None)
    verdict = verdict_of(tmp_path, "    while True:\n        pass\n")
    assert "Still computing after 0.3 s" in verdict.sentences[0]
    assert "in line 2" in verdict.sentences[0] or "in line 3" in verdict.sentences[0]


def test_an_answer_that_sleeps_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(grading, "WALL_SECONDS", 1)
    verdict = verdict_of(tmp_path, "    import time; time.sleep(100)\n")
    assert "was still running after 1 s" in verdict.sentences[0]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("def (", "line 1: this is not Python yet"),
        ("x = 1\n", "defines no function all_reduce"),
        ("\0", "Python"),
    ],
)
def test_a_file_that_is_no_answer_is_refused(tmp_path, text, sentence):
    path = tmp_path / "ring.py"
    path.write_text(text, "utf-8")
    try:
        told = " ".join(grade(find_exercise("ring"), path).sentences)
    except UserError as error:
        told = str(error)
    assert sentence in told


def test_a_mark_is_better_only_where_nothing_is_worse():
    par = {"step_seconds": 10.0, "bytes_sent": 100.0}
    assert mark_of(par, par, 0.005) == "par"
    assert mark_of({"step_seconds": 9.0, "bytes_sent": 100.0}, par, 0.005) == "better than par"
    assert mark_of({"step_seconds": 9.0, "bytes_sent": 101.0}, par, 0.005) == "passed"
    assert mark_of({"step_seconds": 10.04, "bytes_sent": 99.6}, par, 0.005) == "par"
