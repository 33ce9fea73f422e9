"""Where greenlet, fork or POSIX is missing, ranks run all the same, and a sentence says how."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from random import Random

import pytest

from gpu import CLASSROOM
from ndparallel.base.errors import UserError
from ndparallel.calibration import machine
from ndparallel.engines import system, world
from ndparallel.engines.inline import FEW
from ndparallel.engines.launch import Ranks, launch
from tests.engines.test_fuzz import check, draw, outcome, perform
from tests.support import mpi_script, rank_programs
from tests.support.typeshed import lacking, used

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def without_greenlet(monkeypatch):
    monkeypatch.setitem(sys.modules, "greenlet", None)
    system.note_once.cache_clear()


def on_threads(program, *arguments):
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "greenlet", None)
        return program(*arguments)


def test_without_greenlet_inline_says_once_that_it_runs_many_ranks_on_threads(without_greenlet, capsys):
    for ranks in (FEW, FEW + 1, FEW + 1):
        launch(rank_programs.rank_number, ranks, CLASSROOM, engine="inline")
    assert capsys.readouterr().err == (
        "note: without greenlet, ranks run inline as threads: the same results, but slower "
        "(pip install greenlet).\n"
    )


def test_programs_of_all_kinds_end_on_threads_as_on_greenlets_in_numbers_events_clocks_and_words():
    expected, found = mpi_script.outcomes("inline"), on_threads(mpi_script.outcomes, "inline")
    assert len(expected) > 30
    for name, end in expected.items():
        assert repr(found[name]) == repr(end), name


def test_random_programs_end_on_threads_as_on_greenlets():
    for number in range(200):
        scripts, legal = draw(Random(f"threads {number}"))
        ranks = Ranks(len(scripts), "inline")
        found = on_threads(outcome, ranks, scripts)
        check(found, scripts, legal)
        if not isinstance(found, Exception):
            assert found == ranks.run(perform, CLASSROOM, scripts)


def test_threads_run_hundreds_of_ranks(without_greenlet):
    results = launch(rank_programs.ring_of, 400, CLASSROOM, 1, 5, "float32", engine="inline")
    assert len(results) == 400


def test_a_thread_that_an_error_left_standing_runs_its_finally_and_ends(without_greenlet, tmp_path):
    with pytest.raises(UserError, match="rank 1 gives up"):
        launch(gives_up, 3, CLASSROOM, str(tmp_path / "left"), engine="inline")
    assert sorted((tmp_path / "left").read_text().split()) == ["0", "2"]


def gives_up(gpu, file):
    if gpu.rank == 1:
        raise UserError("rank 1 gives up.")
    try:
        gpu.receive(1, "never")
    finally:
        rank_programs.say(file, gpu.rank)


def test_no_more_threads_is_a_sentence(without_greenlet, monkeypatch):
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(UserError, match="no more threads"):
        launch(rank_programs.rank_number, 2, CLASSROOM, engine="inline")


def refuse(thread):
    raise RuntimeError("can't start new thread")


ENDLESS = """
import sys
sys.modules["greenlet"] = None
from gpu import CLASSROOM
from ndparallel.engines.launch import launch

def spin(gpu):
    if gpu.rank == 0:
        gpu.receive(1, "never")
    print("spinning", flush=True)
    while True:
        pass

import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    launch(spin, 2, CLASSROOM, engine="inline")
except KeyboardInterrupt:
    print("interrupted")
"""


def test_ctrl_c_ends_a_rank_that_computes_on_a_thread():
    run = subprocess.Popen(
        [sys.executable, "-c", ENDLESS],
        env=os.environ | {"PYTHONPATH": f"{ROOT}"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert run.stdout and run.stdout.readline() == "spinning\n"
    run.send_signal(signal.SIGINT)
    assert run.communicate(timeout=60)[0] == "interrupted\n" and run.returncode == 0


def test_ctrl_c_that_comes_just_before_the_main_thread_waits_is_not_lost():
    """interrupt_main() marks the signal, and wakes nobody."""
    program = ENDLESS.replace(
        "    while True:", "    import _thread; _thread.interrupt_main()\n    while True:"
    )
    found = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": f"{ROOT}"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert found.stdout == "spinning\ninterrupted\n"


# ------------------------------------------------------------------------------------------- other systems


SOURCES = [*ROOT.glob("*.py"), *ROOT.glob("ndparallel/**/*.py")]
# the modules that differ, of those that are imported
DIFFERENT = ("os", "select", "signal", "socket", "time")
# which can_run_processes() guards
BY_PROCESSES = {"channel.py", "processes.py", "rank_process.py", "shared.py"}
# where hasattr() stands before it, a `with suppress(AttributeError)`, or, for what is used around a fork,
# can_run_processes() or forks_at_once()
GUARDED = {
    "files.py": "O_TMPFILE",
    "forking.py": "memfd_create",
    "grade.py": "killpg SIGKILL setsid",
    "machine.py": "sysconf",
    "system.py": "sched_getaffinity sched_setaffinity SIGKILL pthread_sigmask SIG_BLOCK SIG_SETMASK",
}


@pytest.mark.parametrize("platform", ["win32", "darwin"])
def test_what_another_system_lacks_is_used_only_where_its_absence_is_expected(platform):
    found = {
        (file.name, name)
        for file in SOURCES
        for module, name in used(file, DIFFERENT)
        if name in lacking(module, platform) and file.name not in BY_PROCESSES
    }
    expected = {(file, name) for file, names in GUARDED.items() for name in names.split()}
    assert found <= expected
    assert platform == "darwin" or found == expected
    assert all(name in WINDOWS for _, name in found)


WINDOWS = """
import ctypes, os, select, signal, sys
import rich.console, shutil, subprocess  # which would ask for what Python has on the real Windows
for module, names in {
    os: "fork getppid killpg memfd_create O_NONBLOCK O_TMPFILE sched_getaffinity sched_setaffinity "
    "sched_yield set_blocking setsid sysconf",
    select: "poll POLLIN POLLOUT PIPE_BUF epoll",
    signal: "pthread_sigmask SIG_BLOCK SIG_SETMASK SIG_UNBLOCK SIGCHLD SIGKILL",
}.items():
    for name in names.split():
        vars(module).pop(name, None)
for name in ("fcntl", "resource", "pwd", "termios", "greenlet"):
    sys.modules[name] = None
sys.platform = "win32"
import runpy
sys.argv = sys.argv[1:]
sys.orig_argv = [sys.executable, *sys.argv]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
NOTES = {
    (): [],
    ("--engine", "processes"): ["win32"],
    ("--engine", "inline"): [],
}


@pytest.mark.parametrize("options", NOTES)
def test_a_system_without_fork_polls_and_signals_runs_inline_and_says_so(options):
    lesson = [str(ROOT / "1d_data_parallel.py"), "--strategy", "DDP ring", "--json"]
    environment = os.environ | {"PYTHONPATH": f"{ROOT}"}
    here = subprocess.run(
        [sys.executable, *lesson], env=environment, capture_output=True, text=True, check=True
    )
    there = subprocess.run(
        [sys.executable, "-c", WINDOWS, *lesson, *options], env=environment, capture_output=True, text=True
    )
    assert (there.returncode, there.stdout) == (0, here.stdout), there.stderr
    notes = there.stderr.splitlines()
    assert len(notes) == len(NOTES[options])
    assert all(note.startswith("note: ") and word in note for note, word in zip(notes, NOTES[options]))


def on_windows(*words, **options):
    return subprocess.run(
        [sys.executable, "-c", WINDOWS, *words],
        env=os.environ | {"PYTHONPATH": f"{ROOT}"},
        capture_output=True,
        text=True,
        **options,
    )


def test_without_what_only_posix_has_files_are_read_and_written(tmp_path):
    """The text that is trained on, a row of the reader's own, and a picture."""
    (tmp_path / "mine.py").write_text("def in_turn(gpus):\n    return {'dp': gpus}\n")
    (tmp_path / "words.txt").write_text("Ein Satz über Wörter. " * 100, "utf-8")
    words = [str(ROOT / "4d_combined.py"), "--with", "mine.py:in_turn", "--strategy", "DP only"]
    done = on_windows(*words, "--text", "words.txt", "--svg", "a.svg", "--timeline", "none", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "in_turn" in done.stdout and (tmp_path / "a.svg").read_text("utf-8").endswith("</svg>\n")


def test_a_cpu_whose_memory_python_cannot_ask_for_is_not_measured(monkeypatch):
    monkeypatch.delattr(os, "sysconf")
    with pytest.raises(UserError, match="a CPU is measured on Linux and macOS"):
        machine.memory_beside_cpu()


def test_processes_are_the_default_where_they_can_be_forked(monkeypatch):
    for name in (*world.SIZES, *world.SIZES.values()):
        monkeypatch.delenv(name, raising=False)
    assert world.default_engine() == ("processes" if sys.platform == "linux" else "inline")
    for platform in ("darwin", "win32"):
        monkeypatch.setattr(sys, "platform", platform)
        assert world.default_engine() == "inline"
