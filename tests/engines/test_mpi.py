"""The engine mpi under a real mpirun: what it gives is what the engine inline gives, byte for byte, and it
fails as clearly."""

import contextlib
import fcntl
import importlib.util
import io
import json
import os
import pty
import shutil
import struct
import subprocess
import sys
import termios
import threading
from collections import deque
from pathlib import Path

import numpy as np
import pytest

from gpu import CLASSROOM, GPU
from ndparallel.base.errors import UserError
from ndparallel.commands.command_line import main as command_line
from ndparallel.engines import launch, mpi, system, world
from ndparallel.engines.task import Task, pickled, reference_to, unpickled_result
from ndparallel.lessons.main import main
from ndparallel.lessons.registry import load
from tests.support import mpi_script

ROOT = Path(__file__).resolve().parents[2]
MPIRUN = shutil.which(
    "mpirun", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
)
LOCAL = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}

needs_mpi = pytest.mark.skipif(
    importlib.util.find_spec("mpi4py") is None,
    reason="mpi4py is not installed: pip install 'ndparallel[mpi]'",
)


def mpirun(processes, *words, stdout=subprocess.PIPE):
    """Run this Python with these words on so many processes of this machine."""
    environment = os.environ | LOCAL | {"PYTHONPATH": f"{ROOT}"}
    command = [MPIRUN, "-n", str(processes), sys.executable, *words]
    return subprocess.run(
        command, cwd=ROOT, env=environment, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=280
    )


def inline(name, *options):
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert main(load(name), [*options, "--engine", "inline"]) == 0
    return printed.getvalue()


@needs_mpi
def test_programs_end_as_they_do_inline_with_the_same_numbers_events_clocks_and_explanations():
    expected = json.loads(json.dumps(mpi_script.outcomes("inline"), default=str))
    done = mpirun(5, "tests/support/mpi_script.py")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    for name, outcome in expected.items():
        assert found["outcomes"][name] == outcome, name
    assert found["wrong"] == []


@needs_mpi
@pytest.mark.parametrize(
    ("processes", "lesson", "options"),
    [
        (2, "2d_tensor_parallel", ("--gpus", "2", "--strategy", "TP + SP", "--jitter", "10", "--contention")),
        (4, "1d_data_parallel", ("--strategy", "DDP overlapped", "--strategy", "FSDP prefetch")),
        (8, "4d_combined", ("--strategy", "TP2 x PP2 x DP2")),
    ],
)
def test_a_lesson_prints_the_same_json_to_the_last_byte_and_only_once(processes, lesson, options):
    found = mpirun(processes, "-m", "mpi4py", f"{lesson}.py", *options, "--json")
    assert (found.returncode, found.stdout) == (0, inline(lesson, *options, "--json")), found.stderr


@needs_mpi
@pytest.mark.parametrize("terminal", [False, True])
def test_a_table_under_mpirun_is_the_one_of_a_pipe_with_and_without_a_terminal(terminal):
    options = ("--gpus", "2", "--strategy", "TP")
    words = ["-m", "mpi4py", "2d_tensor_parallel.py", *options]
    found = in_terminal(mpirun, 2, *words) if terminal else mpirun(2, *words).stdout
    assert found == inline("2d_tensor_parallel", *options)


def in_terminal(run, processes, *words):
    """What a command prints to a terminal of 60 columns, without the terminal's carriage returns."""
    terminal, there = pty.openpty()
    fcntl.ioctl(there, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 60, 0, 0))
    printed: list = []
    reader = threading.Thread(target=lambda: printed.extend(iter(lambda: read(terminal), b"")))
    reader.start()
    done = run(processes, *words, stdout=there)
    os.close(there)
    reader.join()
    os.close(terminal)
    assert done.returncode == 0, done.stderr
    return b"".join(printed).decode().replace("\r\n", "\n")


def read(terminal):
    try:
        return os.read(terminal, 65536)
    except OSError:  # the other side has been closed
        return b""


@needs_mpi
def test_a_world_of_the_wrong_size_is_told_once_with_what_to_write():
    found = mpirun(2, "1d_data_parallel.py", "--strategy", "DDP ring")
    assert found.returncode == 2 and found.stdout == ""
    told = "error: 4 GPUs are to be simulated and mpirun has started 2 processes: write mpirun -n 4"
    assert found.stderr.count("error: ") == found.stderr.count(told) == 1


def test_one_gpu_is_one():
    with pytest.raises(
        UserError, match="^1 GPU is to be simulated and mpirun has started 2 processes: write"
    ):
        mpi.check_size(2, 1)


@needs_mpi
@pytest.mark.parametrize(
    ("kind", "told"), [("nonsense", "RankError: rank 1 raised KeyError"), ("kill", "signal 9")]
)
def test_a_rank_that_raises_or_is_killed_ends_all(kind, told):
    found = mpirun(2, "tests/support/mpi_script.py", kind)
    assert found.returncode != 0
    words = " ".join(found.stderr.split())
    assert words.count("Traceback") <= 2 and told in words, found.stderr


@needs_mpi
def test_another_engine_that_is_asked_for_wins_and_still_only_one_rank_prints():
    found = mpirun(
        2,
        "-m",
        "ndparallel",
        "collective",
        "all_reduce",
        "--ranks",
        "4",
        "--algorithm",
        "ring",
        "--engine",
        "inline",
        "--json",
    )
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        command_line(
            [
                "collective",
                "all_reduce",
                "--ranks",
                "4",
                "--algorithm",
                "ring",
                "--engine",
                "inline",
                "--json",
            ]
        )
    assert found.stdout == printed.getvalue()


# ----------------------------------------------------------------------------------------- without any mpirun


@pytest.fixture
def launched(monkeypatch):
    """Set what a launcher would have set."""
    for name in (*world.SIZES, *world.SIZES.values()):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch.setenv


@pytest.mark.parametrize("size", world.SIZES)
def test_a_launcher_is_known_by_its_environment_and_mpi4py_is_not_imported_for_it(launched, size):
    assert (world.default_engine(), world.launched_rank()) == ("processes", 0)
    launched(size, "4")
    launched(world.SIZES[size], "3")
    assert (world.default_engine(), world.launched_size(), world.launched_rank()) == ("mpi", 4, 3)
    assert "mpi4py" not in sys.modules


def test_a_launcher_of_one_process_is_none(launched):
    launched("OMPI_COMM_WORLD_SIZE", "1")
    assert world.default_engine() == "processes"


def test_ranks_other_than_0_end_silently_where_another_engine_is_asked_for(launched):
    launched("PMI_SIZE", "4")
    launch.join(["--engine", "inline"])
    launched("PMI_RANK", "2")
    with pytest.raises(SystemExit) as ended:
        launch.join(["--engine=inline"])
    assert ended.value.code is None


def test_a_rank_of_a_launcher_that_is_perhaps_none_says_why_it_prints_nothing(launched, capsys):
    launched("PMI_SIZE", "4")
    launched("PMI_RANK", "1")
    system.note_once.cache_clear()
    with pytest.raises(SystemExit) as ended:
        command_line(["goodput", "--gpus", "8", "--engine", "inline"])
    printed = capsys.readouterr()
    assert ended.value.code is None and printed.out == ""
    assert "rank 1 of 4" in printed.err and "unset PMI_RANK" in printed.err


def test_without_mpi4py_the_engine_is_one_sentence(launched, monkeypatch, capsys):
    launched("OMPI_COMM_WORLD_SIZE", "4")
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    world.world.cache_clear()
    assert main(load("1d_data_parallel"), ["--strategy", "DDP ring"]) == 2
    told = capsys.readouterr().err
    assert "pip install 'ndparallel[mpi]'" in told and told.count("\n") == 1


class Post(world.World):
    """A rank whose messages come as a test says: at each look one more."""

    def __init__(self, rank, *coming):
        self.rank, self.run, self.coming, self.sent = rank, 0, deque(coming), []
        self.arrived, self.early = deque(), deque()

    def send(self, target, frame, content=None):
        self.sent.append((self.rank, frame, content))

    def look(self):
        self.arrived.extend([self.coming.popleft()] if self.coming else [])
        return True


def take_two(gpu):
    return [int(gpu.receive(1, "same")) for _ in range(2)]


def numbers_sent(run, *numbers):
    """Rank 1's messages of one name in that run."""
    here = Post(1)
    gpu = GPU(1, CLASSROOM, mpi.MPIChannel(here, run, 2, None))
    for number in numbers:
        gpu.send(0, np.array(number), "same")
    return here.sent


@pytest.mark.parametrize("begun", [False, True])
def test_messages_that_come_before_their_runs_order_stay_in_theirs(monkeypatch, begun):
    """Under load they do: ranks begin a run when rank 0's order reaches them. `begun`: the rank is still in
    the run before, and then is told to leave it."""
    monkeypatch.setattr("signal.signal", lambda *_: None)
    first, second = numbers_sent(2, 1, 2)
    run = ("order", 2, 2, reference_to(take_two), pickled(Task(CLASSROOM, (), True)))
    before = ("order", 1, *run[2:])
    here = Post(2, (0, run, None), (0, ("end", 3), None))
    here.arrived += (
        [(0, before, None), first, (0, ("abandon", 1), None), second] if begun else [first, second]
    )
    mpi.serve(here)
    ended = [frame for _, frame, _ in here.sent if frame[0] == "ended"]
    assert [unpickled_result(2, frame[-1]).value for frame in ended] == [[1, 2]]
