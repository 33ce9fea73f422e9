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

from collectives import Group, all_gather, all_reduce, all_to_all, broadcast
from gpu import CLASSROOM, MismatchError
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
from gpu import CLASSROOM, MismatchError
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


def one_sends(gpu, array, target=1, receive=True):
    if gpu.rank == 0:
        gpu.send(target, array, "x")
    return gpu.receive(0, "x") if gpu.rank == 1 and receive else None


def sends(kind):
    """A program in which rank 0 sends what a student might."""
    return {
        "a list": lambda: [1.0, 2.0],
        "a number": lambda: 3.5,
        "objects": lambda: np.array([1, "a"], object),
        "a mask": lambda: np.ma.array([1, 2], mask=[False, True]),
    }[kind]()


def send_a_kind(gpu, kind):
    one_sends(gpu, sends(kind))


def send_to(gpu, target):
    one_sends(gpu, np.ones(2), target)


def receive_into_what_is_read_only(gpu):
    into = np.zeros(2)
    into.flags.writeable = False
    if gpu.rank == 0:
        gpu.send(1, np.ones(2), "x")
    else:
        gpu.receive(0, "x", into)


def reduce_by(gpu, op):
    all_reduce(gpu, np.ones(2), Group("dp", (0, 1)), op)


def receive_as(gpu, *into):
    gpu.send(1 - gpu.rank, np.ones(2), "x")
    gpu.receive(1 - gpu.rank, "x", *into)


def combine_with_nothing(gpu):
    if gpu.rank == 0:
        gpu.send(1, np.ones(2), "x")
    else:
        gpu.receive(0, "x", combine=np.add)


def receive_from(gpu, source):
    gpu.receive(source, "x")


def forget_the_name(gpu, sends):
    """Rank 1 names what it waits for by the array that it should come into."""
    if gpu.rank == 0 and sends:
        gpu.send(1, np.ones(2), "x")
    gpu.receive(0, np.zeros(2))


def name_by_a_handle(gpu):
    """Rank 1 takes the sender's handle for the message's name."""
    gpu.receive(1 - gpu.rank, gpu.isend(1 - gpu.rank, np.ones(2), "x"))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_long_name_is_told_in_short(engine):
    with pytest.raises(RankError, match="names a message <?Handle.*which no other rank can know") as error:
        launch(name_by_a_handle, 2, CLASSROOM, engine=engine)
    assert len(str(error.value).splitlines()[-1]) < 500


def free_twice(gpu):
    gpu.allocate("buffers", 1000)
    gpu.free("buffers", 1000)
    gpu.free("buffers", 1000)


def sum_what(gpu, array, group=None):
    all_reduce(gpu, array, group or Group("dp", (0, 1)))


def gather_into(gpu, dtype):
    all_gather(gpu, np.zeros(4, dtype), np.full(2, 1.75), Group("dp", (0, 1)))


def broadcast_from(gpu, root):
    broadcast(gpu, np.ones(2), Group("dp", (0, 1)), root)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("program", "arguments", "sentence"),
    [
        (send_a_kind, ["a list"], "rank 0 sends 'x', which is of the type list: send a numpy array"),
        (send_a_kind, ["a number"], "rank 0 sends 'x', which is of the type float: send a numpy array"),
        (send_a_kind, ["a mask"], "rank 0 sends 'x', which is of the type MaskedArray"),
        (send_a_kind, ["objects"], "arrays of dtype object cannot be sent: they hold Python objects"),
        (send_to, [1.0], "rank 0 sends to 1.0: a rank is a whole number"),
        (send_to, ["1"], "rank 0 sends to '1': a rank is a whole number"),
        (receive_into_what_is_read_only, [], "cannot be written into `into`: that array is read-only"),
        (receive_from, [2], "rank 0 has a message for or from rank 2, but the ranks are 0 to 1"),
        (receive_from, [0.0], "rank 0 has a message for or from rank 0.0, but the ranks are 0 to 1"),
        (receive_from, [None], "rank 0 has a message for or from rank None, but the ranks are 0 to 1"),
        (forget_the_name, [True], "an array is no name of a message: it is gpu.send"),
        (forget_the_name, [False], "an array is no name of a message: it is gpu.send"),
        (combine_with_nothing, [], "`combine` has nothing to combine a message with"),
        (receive_as, [[0, 0]], r"receives 'x' into \[0, 0\], which is of the type list: give a numpy array"),
        (receive_as, [3], "receives 'x' into 3, which is of the type int"),
        (receive_as, [np.ones(2), "add"], "`combine` is 'add': give a function of two arrays, as np.add"),
        (free_twice, [], "GPU 0 frees 1.00 kB of buffers, and holds 0 B: is something freed twice?"),
        (sum_what, [[1.0, 2.0]], "a collective works in a numpy array, and this is of the type list"),
        (sum_what, [np.float32(2)], "a collective works in a numpy array, and this is of the type float32"),
        (sum_what, [np.ones(2), (0, 1)], r"\(0, 1\) is no group: make one of a name and ranks"),
        (reduce_by, ["ring"], "no reduction 'ring'; .* An algorithm is given by its name: algorithm='ring'"),
        (reduce_by, ["mean"], "there is no reduction 'mean'; there are sum, average, max.$"),
        (gather_into, ["int64"], "an array of int64 cannot hold the result, which is of float64"),
        (broadcast_from, [0.0], "group 'dp' has members 0 to 1, and no root 0.0"),
    ],
)
def test_what_students_send_and_sum_by_mistake_is_one_sentence(engine, program, arguments, sentence):
    with pytest.raises(RankError, match=sentence):
        launch(program, 2, CLASSROOM, *arguments, engine=engine)


def name_by_a_function(gpu):
    def name():
        """Each rank has its own."""

    gpu.send(1 - gpu.rank, np.ones(2), name)
    gpu.receive(1 - gpu.rank, name)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_name_that_no_other_rank_can_know_is_told(engine):
    with pytest.raises(RankError, match="rank 0 names a message <function .*which no other rank can know"):
        launch(name_by_a_function, 2, CLASSROOM, engine=engine)


def return_what_stays(gpu, kind):
    kept = [(number for number in range(3)), np, gpu, gpu.isend(gpu.rank, np.ones(1), "x")]
    gpu.receive(gpu.rank, "x")
    return next(each for each in kept if type(each).__name__ == kind)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", ["generator", "module", "GPU", "Handle"])
def test_what_cannot_leave_its_rank_is_told_by_every_engine(engine, kind):
    with pytest.raises(UserError, match=f"rank 0 returned a value that cannot be pickled .it is a {kind}"):
        launch(return_what_stays, 2, CLASSROOM, kind, engine=engine)


def keep_the_smaller(gpu):
    gpu.send(1 - gpu.rank, np.array([gpu.rank, 5.0]), "x")
    mine = np.array([3.0, 4.0])
    gpu.receive(1 - gpu.rank, "x", mine, combine=lambda mine, other: np.minimum(mine, other))
    return mine.tolist()


@pytest.mark.parametrize("engine", ENGINES)
def test_messages_are_combined_by_any_function_of_two_arrays(engine):
    results = launch(keep_the_smaller, 2, CLASSROOM, engine=engine)
    assert [result.value for result in results] == [[1, 4], [0, 4]]


def forget_to_wait_for_an_irecv(gpu):
    gpu.send(1 - gpu.rank, np.ones(2), "x")
    gpu.irecv(1 - gpu.rank, "x")


@pytest.mark.parametrize("engine", ENGINES)
def test_who_forgets_to_wait_for_an_irecv_is_reminded(engine):
    with pytest.raises(MismatchError, match=r"every irecv its wait\(\)"):
        launch(forget_to_wait_for_an_irecv, 2, CLASSROOM, engine=engine)


@pytest.mark.parametrize("engine", ENGINES)
def test_one_of_numpys_numbers_arrives_as_an_array(engine):
    _, result = launch(one_sends, 2, CLASSROOM, np.float32(3), engine=engine)
    assert type(result.value) is np.ndarray and result.value == 3


def exchange_by_counts(gpu):
    """Rank r sends r + 1 rows to rank 0 and one to rank 1, and has counted both with numpy."""
    counts = np.array([[1, 1], [2, 1]])
    leaving, coming = counts[gpu.rank], counts[:, gpu.rank]
    output = np.zeros(coming.sum())
    rows = np.full(leaving.sum(), gpu.rank + 1.0)
    all_to_all(gpu, output, rows, Group("ep", (0, 1)), output_splits=coming, input_splits=leaving)
    return output.tolist()


def test_an_all_to_alls_splits_may_be_numpys_counts():
    results = launch(exchange_by_counts, 2, CLASSROOM, engine="inline")
    assert [result.value for result in results] == [[1, 2, 2], [1, 2]]
