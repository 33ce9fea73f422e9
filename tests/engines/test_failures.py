"""When a rank fails, all end; the user is told once which rank and why; and nothing is left behind."""

import gc
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from gpu import CLASSROOM, MismatchError, OutOfMemoryError
from ndparallel.base.errors import RunEnded, UserError
from ndparallel.engines.launch import RankError, Ranks, launch
from tests.support import rank_programs

ENGINES = ("inline", "processes")
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("engine", ENGINES)
def test_an_exception_names_the_rank_and_shows_its_traceback_from_the_program_on(engine):
    with pytest.raises(RankError) as caught:
        launch(rank_programs.raise_in, 4, CLASSROOM, 2, "nonsense", engine=engine)
    text = str(caught.value)
    assert (caught.value.rank, caught.value.kind) == (2, "KeyError")
    assert text.startswith("rank 2 raised KeyError")
    assert text.count("Traceback") == 1 and text.count("File ") == 1 and "in raise_in" in text


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("what", "kind", "says"),
    [
        ("out of memory", OutOfMemoryError, "GPU 1 has 1.00 GB of memory"),
        ("user", UserError, "the batch does not fit."),
    ],
)
def test_errors_that_mean_something_are_raised_as_what_they_are(engine, what, kind, says):
    with pytest.raises(kind) as caught:
        launch(rank_programs.raise_in, 3, CLASSROOM, 1, what, engine=engine)
    assert str(caught.value).startswith(says) and "\n" not in str(caught.value)
    assert "raised in rank 1" in caught.value.__notes__[0]


@pytest.mark.parametrize("engine", ENGINES)
def test_of_several_ranks_that_fail_the_lowest_is_reported_although_it_fails_last(engine):
    with pytest.raises(UserError, match="rank 1 cannot go on"):
        launch(rank_programs.fail_one_after_another, 4, CLASSROOM, 500, engine=engine)


@pytest.mark.parametrize("first", [1, 2])
def test_a_rank_that_leaves_without_a_word_is_reported_like_one_that_raises(first):
    with pytest.raises(RankError, match="rank 1 left with exit code 7"):
        launch(rank_programs.leave_beside_one_that_fails, 3, CLASSROOM, first)


def test_a_failure_is_reported_although_another_rank_never_ends(monkeypatch):
    monkeypatch.setattr("ndparallel.engines.processes.PATIENCE_SECONDS", 0.2)
    with pytest.raises(UserError, match="rank [12] cannot go on"):
        launch(rank_programs.fail_beside_one_that_works_on, 3, CLASSROOM)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_mismatch_names_both_sides(engine):
    with pytest.raises(MismatchError, match="rank 1 and rank 0 disagree"):
        launch(rank_programs.mismatch, 2, CLASSROOM, engine=engine)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("world_size", "program", "unread"),
    [
        (
            3,
            rank_programs.several_roots,
            {0: "broadcast one-by-one 1", 1: "broadcast one-by-one 0", 2: "among ranks 0, 1, 2"},
        ),
        (2, rank_programs.scatter_from_all, {0: "scatter", 1: "scatter"}),
        (2, rank_programs.reduce_on_one, {0: "reduce"}),
        (3, rank_programs.send_to_no_receive, {1: "activations of microbatch 5 for stage 1 from rank 0."}),
    ],
)
def test_what_only_one_side_does_is_a_mismatch_although_all_ranks_end(engine, world_size, program, unread):
    with Ranks(world_size, engine) as ranks:
        for _ in range(2):
            with pytest.raises(MismatchError, match="all ranks have ended, and not all") as caught:
                ranks.run(program, CLASSROOM)
            lines = str(caught.value).splitlines()[1:]
            assert [line.split(" has")[0] for line in lines] == [f"Rank {rank}" for rank in unread]
            assert all(words in line for words, line in zip(unread.values(), lines))
        assert len(ranks.run(rank_programs.rank_number, CLASSROOM)) == world_size


@pytest.mark.parametrize("engine", ENGINES)
def test_a_program_that_exits_is_a_failure_of_its_rank(engine):
    with pytest.raises(RankError, match="rank 1 raised SystemExit"):
        launch(rank_programs.raise_in, 2, CLASSROOM, 1, "exit", engine=engine)


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("kill", "rank 1 was killed by SIGKILL"),
        ("leave", "rank 1 left with exit code 7"),
        ("leave quietly", "rank 1 left with exit code 0 in mid-program"),
    ],
)
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_process_that_ends_without_a_word_is_told_from_its_exit_code(method, what, says):
    with Ranks(3, "processes", method) as ranks, pytest.raises(RankError, match=says):
        ranks.run(rank_programs.raise_in, CLASSROOM, 1, what)


def test_a_rank_killed_between_two_runs_is_replaced():
    with Ranks(2) as ranks:
        first = [result.value for result in ranks.run(rank_programs.process_number, CLASSROOM)]
        os.kill(first[1], signal.SIGKILL)
        while ranks.engine.pool.is_alive():  # until the last of its threads has ended
            time.sleep(0.01)
        second = [result.value for result in ranks.run(rank_programs.process_number, CLASSROOM)]
    assert not set(first) & set(second)


def test_a_value_that_cannot_travel_is_told():
    with pytest.raises(UserError, match="rank 0 returned a value that cannot be pickled"):
        launch(rank_programs.unpicklable, 1, CLASSROOM, engine="processes")


def test_arrays_of_objects_are_refused():
    with pytest.raises(RankError, match="cannot be sent: they hold Python objects"):
        launch(rank_programs.send_objects, 1, CLASSROOM, engine="processes")


def test_when_inline_is_interrupted_no_rank_goes_on_although_another_waits_on_its_way_out():
    with pytest.raises(KeyboardInterrupt):
        launch(interrupted_by_rank_2, 3, CLASSROOM, engine="inline")
    assert went_on == []


went_on: list[int] = []


def interrupted_by_rank_2(gpu):
    """Rank 1 could go on when rank 2 is interrupted; rank 0 waits once more where it is left."""
    if gpu.rank == 2:
        gpu.send(1, np.zeros(1), "go on")
        raise KeyboardInterrupt
    try:
        gpu.receive(2, "go on")
        went_on.append(gpu.rank)
    finally:
        if gpu.rank == 0:
            gpu.receive(2, "never sent")


# ---- a launcher of its own, so that it can be killed or interrupted


SCRIPT = """
import signal, sys
from gpu import CLASSROOM
from ndparallel.engines import rank_process
from ndparallel.engines.launch import Ranks
from tests.support import rank_programs

method, _, by_thread = sys.argv[2].partition(", ")
if by_thread:
    rank_process.end_with_parent = lambda launcher: False  # as where the kernel is not Linux

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs start deaf to it
    try:
        with Ranks(4, "processes", method) as ranks:
            ranks.run(rank_programs.rings_without_end, CLASSROOM, 4, sys.argv[1])
    except KeyboardInterrupt:
        sys.exit("interrupted")
"""


@pytest.fixture(params=["fork", "spawn"])
def running(request, tmp_path):
    """A launcher in the middle of all-reduces, after which nothing may be left."""
    (tmp_path / "temporary").mkdir()
    (tmp_path / "script.py").write_text(SCRIPT)
    environment = os.environ | {
        "PYTHONPATH": f"{ROOT}",
        "TMPDIR": str(tmp_path / "temporary"),
    }
    arguments = [sys.executable, str(tmp_path / "script.py"), str(tmp_path / "ranks"), request.param]
    process = subprocess.Popen(
        arguments, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        yield Launcher(process, tmp_path / "ranks")
        assert list((tmp_path / "temporary").iterdir()) == []
    finally:
        process.kill()


class Launcher:
    def __init__(self, process, file):
        self.process, self.file = process, file
        self.wait_for(5, "")
        self.ranks = {int(line.split()[1]): int(line.split()[2]) for line in self.lines("rank")}
        assert [named_shared_memory(rank) for rank in self.ranks.values()] == [[]] * len(self.ranks)

    def lines(self, kind):
        return (
            [line for line in self.file.read_text().splitlines() if line.startswith(kind)]
            if self.file.exists()
            else []
        )

    def wait_for(self, count, kind):
        """Wait until the ranks have noted so many lines of this kind."""
        while len(self.lines(kind)) < count:
            assert self.process.poll() is None, self.process.stderr.read()
            time.sleep(0.01)

    def end(self):
        """What it says at its end, with its exit code; no rank may outlive it for long."""
        text = self.process.communicate(timeout=60)[1]
        wait_until_gone(self.ranks.values())
        return text, self.process.returncode


def named_shared_memory(process):
    """The files of /dev/shm that a process has mapped: they would be left behind."""
    maps = Path(f"/proc/{process}/maps")
    return [line for line in maps.read_text().splitlines() if "/dev/shm/" in line] if maps.exists() else []


def wait_until_gone(processes):
    """Return when none of these processes runs any more; the test's own time limit ends a wait in vain."""
    while any(is_running(process) for process in processes):
        time.sleep(0.01)


def is_running(process):
    try:
        os.kill(process, 0)
        status = Path(f"/proc/{process}/stat")
        return not status.exists() or status.read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def test_a_rank_killed_in_the_middle_of_an_all_reduce_is_reported_once_and_nothing_is_left(running):
    os.kill(running.ranks[2], signal.SIGKILL)
    text, exit_code = running.end()
    assert exit_code == 1 and text.count("Traceback") == 1
    assert text.splitlines()[-1].endswith(
        "RankKilled: rank 2 was killed by SIGKILL, and the other ranks were ended."
    )


@pytest.mark.parametrize("running", ["fork, by a thread", "spawn, by a thread"], indirect=True)
def test_ranks_end_when_their_launcher_is_killed_where_no_kernel_ends_them(running):
    running.process.kill()
    assert running.end() == ("", -signal.SIGKILL)


def test_ctrl_c_ends_all_ranks_quietly(running):
    os.killpg(running.process.pid, signal.SIGINT)  # as a terminal does: to the launcher and to every rank
    assert running.end() == ("interrupted\n", 1)


def test_ranks_leave_ctrl_c_to_their_launcher(running):
    for process in running.ranks.values():
        os.kill(process, signal.SIGINT)
    running.wait_for(len(running.lines("round")) + 3, "round")


def test_ranks_end_when_their_launcher_is_killed(running):
    running.process.kill()
    assert running.end() == ("", -signal.SIGKILL)


def test_ranks_end_when_their_launcher_is_killed_although_the_last_of_them_is_stopped(running):
    os.kill(running.ranks[3], signal.SIGSTOP)
    running.process.kill()
    assert running.end() == ("", -signal.SIGKILL)


FORKS = """
import os, sys, time
from gpu import CLASSROOM
from ndparallel.engines.launch import launch
from tests.support.rank_programs import say

def forks(gpu, file):
    say(file, f"rank {gpu.rank} {os.getpid()}")
    if gpu.rank == 2 and not os.fork():
        say(file, f"child 0 {os.getpid()}")
        time.sleep(1000)
    while True:
        time.sleep(1)

launch(forks, 4, CLASSROOM, sys.argv[1])
"""


def test_ranks_end_when_their_launcher_is_killed_although_one_has_forked_a_child_that_lives_on(tmp_path):
    (tmp_path / "script.py").write_text(FORKS)
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "script.py"), str(tmp_path / "ranks")],
        env=os.environ | {"PYTHONPATH": f"{ROOT}"},
    )
    launcher = Launcher(process, tmp_path / "ranks")
    process.kill()
    wait_until_gone(launcher.ranks.values())
    (child,) = launcher.lines("child")
    os.kill(int(child.split()[2]), signal.SIGKILL)


# ---- the same at the command line: one sentence, and exit code 1


def lesson(*options, before="", **environment):
    """Run 1D's ring in a shell. The program of the shell comes first."""
    command = [sys.executable, str(ROOT / "1d_data_parallel.py"), "--strategy", "DDP ring", *options]
    return subprocess.run(
        ["bash", "-c", f'{before}exec "$@"', "bash", *command],
        env=os.environ | {"PYTHONPATH": f"{ROOT}"} | environment,
        capture_output=True,
        text=True,
    )


KILLER = """
import os, runpy, signal, sys
from ndparallel.engines import rank_process

when, name, *arguments = sys.argv[1:]
outcome = rank_process._outcome

def killed(channel, reference, task):
    result = outcome(channel, reference, task)
    if channel.rank == 2:
        if when == "writing":  # the length of a message, and the beginning of it
            os.write(channel.launcher.fileno(), (1000).to_bytes(4, "big") + b"the beginning")
        os.kill(os.getpid(), signal.SIGKILL)
    return result

rank_process._outcome = killed
sys.argv = [name, *arguments]
if name.endswith(".py"):
    runpy.run_path(name, run_name="__main__")
else:
    from ndparallel.commands.command_line import main
    sys.exit(main([name, *arguments]))
"""


@pytest.mark.parametrize("when", ["ended", "writing"])
@pytest.mark.parametrize("command", [["1d_data_parallel.py", "--strategy", "DDP ring"], ["compare"]])
def test_a_rank_that_is_killed_is_one_sentence_at_the_command_line(when, command, tmp_path):
    (tmp_path / "kills.py").write_text(KILLER)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "kills.py"), when, *command],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{ROOT}"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "error: rank 2 was killed by SIGKILL, and the other ranks were ended.\n"


LITTLE_MEMORY = """
import resource, runpy, sys
import ndparallel.lessons.main, ndparallel.results.show

held = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (held + 50_000_000,) * 2)
sys.argv = ["1d_data_parallel.py", "--batch", "256", "--engine", sys.argv[1]]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize("engine", ENGINES)
def test_no_memory_is_one_sentence_at_the_command_line(engine):
    done = subprocess.run(
        [sys.executable, "-c", LITTLE_MEMORY, engine],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{ROOT}"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(r"error: (rank \d found no memory|no memory is left)[^\n]*\n", done.stderr)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_rank_without_memory_is_named(engine):
    with pytest.raises(RunEnded, match="rank 1 found no memory .this much., and the other ranks were ended"):
        launch(rank_programs.raise_in, 3, CLASSROOM, 1, "no memory", engine=engine)


def test_a_parent_that_ignores_its_children_changes_nothing():
    done = lesson("--json", before="trap '' CHLD; ")
    assert (done.returncode, done.stdout) == (0, lesson("--json").stdout) and done.stderr == ""


def test_crews_that_fail_leave_no_files_open():
    def failing():
        with pytest.raises(UserError):
            launch(rank_programs.raise_in, 2, CLASSROOM, 1, "user")

    failing()
    gc.disable()
    try:
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(5):
            failing()
        assert len(os.listdir("/proc/self/fd")) == before
    finally:
        gc.enable()


# ---- what a program gets wrong before it runs, in words


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("world_size", [2.5, "2", None, 0, -1])
def test_a_number_of_ranks_that_cannot_be_is_named(engine, world_size):
    with pytest.raises(UserError, match=f"{world_size!r} ranks cannot run anything: choose a whole number"):
        Ranks(world_size, engine)


@pytest.mark.parametrize("engine", ENGINES)
def test_arguments_that_cannot_be_copied_are_refused(engine):
    with pytest.raises(UserError, match="arguments cannot be copied to the ranks"):
        launch(rank_programs.rank_number, 2, CLASSROOM, lambda: None, engine=engine)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("program", [rank_programs.generator, rank_programs.coroutine])
def test_a_program_that_would_not_run_is_refused(engine, program):
    with pytest.raises(UserError, match="a rank program is a plain function"):
        launch(program, 2, CLASSROOM, engine=engine)


def test_a_rank_that_starts_ranks_as_processes_is_told_what_to_choose():
    with pytest.raises(UserError, match="inside a rank choose engine='inline'"):
        launch(rank_programs.launches, 2, CLASSROOM)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", ["exit of a generator", "untold"])
def test_errors_of_every_kind_name_their_rank(engine, kind):
    with pytest.raises(RankError, match="rank 1 raised"):
        launch(rank_programs.raise_odd, 2, CLASSROOM, kind, engine=engine)


def test_a_value_that_cannot_be_read_again_names_its_rank():
    with pytest.raises(RankError, match="rank 0 returned a value that cannot be read again: ValueError: no"):
        launch(rank_programs.unreadable, 1, CLASSROOM, engine="processes")
