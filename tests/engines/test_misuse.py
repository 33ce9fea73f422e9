"""What a program may not do, and an unlucky end: each is one sentence that says what it was."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from collectives import Group, all_reduce
from gpu import CLASSROOM
from ndparallel.base.errors import UserError
from ndparallel.engines.launch import RankError, launch

ENGINES = ("inline", "processes")
ROOT = Path(__file__).resolve().parents[2]


def reduce_over(gpu, *ranks):
    all_reduce(gpu, np.ones(4), Group("dp", ranks))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_group_that_has_a_rank_twice_is_refused(engine):
    with pytest.raises(
        RankError, match=r"rank 1 is in group 'dp' twice, among ranks 0, 1, 1: once is enough"
    ):
        launch(reduce_over, 2, CLASSROOM, 0, 1, 1, engine=engine)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_group_without_its_caller_is_refused(engine):
    with pytest.raises(RankError, match="rank 2 is not in group 'dp', among ranks 0, 1"):
        launch(reduce_over, 3, CLASSROOM, 0, 1, engine=engine)


def receive_in_threads(gpu):
    """Rank 0 receives two messages, each in a thread of its own, before they have been sent."""
    if gpu.rank == 1:
        gpu.receive(0, "go")
        gpu.send(0, np.ones(1), "one")
        gpu.send(0, np.ones(1), "two")
        return
    threads = [threading.Thread(target=gpu.receive, args=(1, name)) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gpu.send(1, np.ones(1), "go")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_rank_that_receives_in_threads_of_its_own_is_told_that_one_thread_receives(engine):
    with pytest.raises(
        UserError, match="rank 0 receives in a second thread: its messages come to the thread"
    ):
        launch(receive_in_threads, 2, CLASSROOM, engine=engine)


def fork_and_be_killed(gpu, file):
    """Rank 1 is killed; the child that it has forked lives on."""
    if gpu.rank == 0:
        gpu.receive(1, "never")
    if not (child := os.fork()):
        time.sleep(1000)
    Path(file).write_text(f"{child}")
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_rank_is_told_although_a_child_that_it_has_forked_lives_on(tmp_path):
    with pytest.raises(RankError, match="rank 1 was killed by SIGKILL"):
        launch(fork_and_be_killed, 2, CLASSROOM, str(tmp_path / "child"))
    os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)


UNGUARDED = """
from gpu import CLASSROOM
from ndparallel.engines.launch import Ranks

def number(gpu):
    return gpu.rank

with Ranks(1, "processes", "spawn") as ranks:
    ranks.run(number, CLASSROOM)
"""


def test_a_spawned_rank_that_starts_ranks_anew_says_where_to_launch(tmp_path):
    (tmp_path / "script.py").write_text(UNGUARDED)
    environment = os.environ | {"PYTHONPATH": f"{ROOT}"}
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert 'outside `if __name__ == "__main__":`' in done.stderr.splitlines()[-1]
