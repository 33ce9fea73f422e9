"""When a rank fails, all end; the user is told once which rank and why; and nothing is left behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpu import CLASSROOM, MismatchError, OutOfMemoryError
from ndparallel.base.errors import UserError
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
    ("what", "says"), [("kill", "rank 1 was killed by SIGKILL"), ("leave", "rank 1 left with exit code 7")]
)
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_process_that_ends_without_a_word_is_told_from_its_exit_code(method, what, says):
    with Ranks(3, "processes", method) as ranks, pytest.raises(RankError, match=says):
        ranks.run(rank_programs.raise_in, CLASSROOM, 1, what)


def test_a_rank_killed_between_two_runs_is_replaced():
    with Ranks(2) as ranks:
        first = [result.value for result in ranks.run(rank_programs.process_number, CLASSROOM)]
        os.kill(first[1], signal.SIGKILL)
        while ranks.engine.crew.is_alive():  # until the last of its threads has ended
            time.sleep(0.01)
        second = [result.value for result in ranks.run(rank_programs.process_number, CLASSROOM)]
    assert not set(first) & set(second)


def test_a_value_that_cannot_travel_is_told():
    with pytest.raises(RankError, match="rank 0 raised .*\n(.*\n)+.*pickle"):
        launch(rank_programs.unpicklable, 1, CLASSROOM, engine="processes")


def test_arrays_of_objects_are_refused():
    with pytest.raises(RankError, match="cannot be sent: they hold Python objects"):
        launch(rank_programs.send_objects, 1, CLASSROOM, engine="processes")


# ---- a launcher of its own, so that it can be killed or interrupted


SCRIPT = """
import signal, sys
from gpu import CLASSROOM
from ndparallel.engines.launch import Ranks
from tests.support import rank_programs

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs start deaf to it
    try:
        with Ranks(4, "processes", sys.argv[2]) as ranks:
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
    shared_before = shared_memory()
    process = subprocess.Popen(
        arguments, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        yield Launcher(process, tmp_path / "ranks")
        assert list((tmp_path / "temporary").iterdir()) == []
        assert shared_memory() <= shared_before
    finally:
        process.kill()


class Launcher:
    def __init__(self, process, file):
        self.process, self.file = process, file
        self.wait_for(5, "")
        self.ranks = {int(line.split()[1]): int(line.split()[2]) for line in self.lines("rank")}

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


def shared_memory():
    return set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()


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
        "RankError: rank 2 was killed by SIGKILL, and the other ranks were ended."
    )


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
