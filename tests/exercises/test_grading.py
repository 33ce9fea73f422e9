"""The grader survives what a reader's file does, and says what happened."""

import ast
import math
import subprocess
import sys
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from rich.table import Table

from gpu import CLASSROOM, GPU, Operation
from ndparallel.base.errors import UserError
from ndparallel.base.words import WIDTH
from ndparallel.engines.launch import launch
from ndparallel.exercises import grade as grading
from ndparallel.exercises.answer import ModelAnswer, imported, require_form, with_place
from ndparallel.exercises.catalog import find_exercise
from ndparallel.exercises.grade import grade, graded, par_of
from ndparallel.exercises.runs import attempt_of, wrong_losses
from ndparallel.exercises.sums import FIRST, contributions, explain, meaning, part, whole
from ndparallel.exercises.verdict import WRONG, Verdict, mark_of, printed
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
        ("    gpu.receive(gpu.rank, 7)\n", "waits for message 7 from rank 0"),
        ("    gpu.sned(0, array, 0)\n", "has no attribute 'sned'; did you mean 'send'? (line 2"),
        ("    gpu.quux\n", "has no attribute 'quux' (line 2"),
        ("    [].reduce()\n", "has no attribute 'reduce' (line 2"),
        ("    array.wait()\n", "isend and irecv return a handle to wait for (line 2"),
        ("    next(iter(()))\n", "StopIteration (line 2: next(iter(())))"),
        ("    yield array\n", "all_reduce has a `yield` in it, so a call runs none of its lines"),
        ("    raise AttributeError\n", "AttributeError"),
        ("    array[1000] = 1\n", "IndexError: index 1000 is out of bounds"),
        ("    import os; os._exit(0)\n", "The answer ended Python itself"),
        ("    import sys; sys.exit()\n", "The answer ended Python itself"),
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


@pytest.mark.skipif(sys.platform != "linux", reason="no other system limits memory")
def test_memory_is_limited_where_the_answer_runs_and_not_where_it_is_graded_from(tmp_path):
    import resource

    before = resource.getrlimit(resource.RLIMIT_AS)
    shown = "    import resource; raise ValueError(resource.getrlimit(resource.RLIMIT_AS)[0])\n"
    (inside,) = verdict_of(tmp_path, shown).sentences
    assert float(inside.partition("ValueError: ")[2].split()[0]) >= grading.MEMORY_BYTES
    ring = find_exercise("ring")
    graded(ring, Path(ring.file), lambda: ModelAnswer(ring.asks), par_of(ring))
    assert resource.getrlimit(resource.RLIMIT_AS) == before


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
        ("async def all_reduce(gpu, array, ranks): 1 / 0\n", "because of `async`: leave it out."),
        ("class all_reduce(Exception): 1\n", "all_reduce is a class: write a function"),
        (
            "def all_reduce(gpu, array): 1 / 0\n",
            "The exercise calls all_reduce(gpu, array, ranks), and yours cannot be called so: too many",
        ),
        ("all_reduce = max\n", "and yours cannot be called so: no signature found"),
    ],
)
def test_what_cannot_be_called_as_the_exercise_calls_it_is_told_so(tmp_path, text, sentence):
    path = tmp_path / "ring.py"
    path.write_text(text, "utf-8")
    verdict = grade(find_exercise("ring"), path)
    assert verdict.mark == WRONG and sentence in verdict.sentences[0]


def test_a_model_solution_that_takes_anything_says_nothing_of_how_it_is_called():
    require_form("mean", lambda gpu, number: 0, lambda *it: 0)
    with pytest.raises(UserError, match="and yours cannot be called so: too many positional arguments"):
        require_form("mean", lambda gpu: 0, lambda gpu, number: 0)


def test_an_answer_is_one_file(tmp_path):
    (tmp_path / "mine.py").write_text("def half(array):\n    return array / 2\n", "utf-8")
    verdict = verdict_of(tmp_path, "    from mine import half\n")
    assert "so write into it what it needs of mine.py (line 2: from mine import half)" in verdict.sentences[0]


def test_arguments_that_the_model_solution_leaves_out_need_no_place(tmp_path):
    """prefetch's model solution has a third one, with a value of its own."""
    path = tmp_path / "prefetch.py"
    path.write_text("def fsdp_prefetch(gpu, job, more=1):\n    1 / 0\n", "utf-8")
    assert "ZeroDivisionError" in grade(find_exercise("prefetch"), path).sentences[0]


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


@pytest.mark.parametrize(
    ("exercise", "text"),
    [
        ("ring", "from ndparallel.exercises.tasks.ring import all_reduce\n"),
        (
            "ring",
            "from ndparallel.exercises.tasks.ring import all_reduce as ours\n"
            "def all_reduce(gpu, array, ranks):\n    ours(gpu, array, ranks)\n",
        ),
        (
            "ring",
            "def all_reduce(gpu, array, ranks):\n"
            "    from ndparallel.exercises.tasks.ring import all_reduce as ours\n"
            "    ours(gpu, array, ranks)\n",
        ),
        (
            "why_does_it_hang",
            "from ndparallel.exercises.tasks import why_does_it_hang as ours\n"
            "def pass_right(gpu, message):\n    return ours.pass_right_mended(gpu, message)\n"
            "def sum_and_print(*it):\n    return 0\ndef two_sums(*it):\n    return 0\n",
        ),
        ("fsdp", "from importlib import import_module\nfsdp = import_module('1d_data_parallel').fsdp\n"),
        ("prefetch", "from ndparallel.training.fully_sharded import fsdp_prefetch\n"),
    ],
)
def test_the_model_solution_is_no_answer_where_it_is_imported(tmp_path, exercise, text):
    path = tmp_path / f"{exercise}.py"
    path.write_text(text, "utf-8")
    verdict = grade(find_exercise(exercise), path)
    assert verdict.mark == WRONG
    assert "is the model solution itself: it is right, and it is not yours" in verdict.sentences[0]


def test_the_module_of_the_model_solution_may_be_imported_for_what_else_it_has():
    tree = ast.parse("from ndparallel.training import fully_sharded\nfully_sharded.GatheredUnit\n")
    (prefetch,) = find_exercise("prefetch").asks.values()
    assert imported(tree, [prefetch]) == []
    inside = "def mine():\n    from ndparallel.training.fully_sharded import fsdp_prefetch as mine\n"
    assert imported(ast.parse(inside), [prefetch]) == ["fsdp_prefetch"]


def test_an_error_names_its_line_once_and_none_of_another_file():
    def fails() -> None:
        raise UserError("it cannot be")

    here = Path(__file__)
    with pytest.raises(UserError) as told:
        with_place(here, with_place(here, fails))()
    assert str(told.value).count("(line ") == 1
    with pytest.raises(UserError, match="^it cannot be$"):
        with_place(here.with_name("another.py"), fails)()


def test_a_loss_may_be_off_by_ten_times_the_tolerance_of_itself():
    assert wrong_losses([4.0, 2.00019], [4.0, 2.0], 1e-5) == ""
    assert "The loss of step 2 is 2.00021, and 2 is right" in wrong_losses([4.0, 2.00021], [4.0, 2.0], 1e-5)
    assert "step 1" in wrong_losses([math.nan], [4.0], 1e-5)
    assert "losses of 1 step, and 2 should be" in wrong_losses([4.0], [4.0, 2.0], 1e-5)


def test_a_mark_is_better_only_where_nothing_is_worse():
    par = {"step_seconds": 10.0, "bytes_sent": 100.0}
    assert mark_of(par, par, 0.005) == "par"
    assert mark_of({"step_seconds": 9.0, "bytes_sent": 100.0}, par, 0.005) == "better than par"
    assert mark_of({"step_seconds": 9.0, "bytes_sent": 101.0}, par, 0.005) == "passed"
    assert mark_of({"step_seconds": 10.04, "bytes_sent": 99.6}, par, 0.005) == "par"


def test_a_wrong_answer_with_fewer_figures_than_par_can_be_shown():
    verdict = Verdict("mean", WRONG, ("It is wrong.",), {"seconds": 1.0}, {"seconds": 2.0, "bytes_sent": 8.0})
    headline, sentence, table = printed(verdict, "Meet in the middle", WIDTH)
    assert isinstance(table, Table) and table.row_count == 1


@pytest.mark.parametrize(("ranks", "place", "most"), [(2, 0, 3), (4, 6, 3), (8, 2, 2)])
def test_a_sum_says_how_often_each_ranks_part_is_in_it(ranks, place, most):
    """Parts are powers of 4, or of 3 where there are more than four, times the element's number."""
    base = {2: 4, 4: 4, 8: 3}[ranks]
    for times in product(range(most + 1), repeat=min(ranks, 4)):
        every = [*times, *[1] * (ranks - len(times))]
        value = sum(number * base**rank for rank, number in enumerate(every)) * (FIRST + place)
        assert contributions(float(value), place, ranks) == every
    assert contributions(base**ranks * float(FIRST + place), place, ranks) is None
    assert contributions(-1.0 * (FIRST + place), place, ranks) is None
    assert contributions(FIRST + place + 0.5, place, ranks) is None
    assert contributions(math.inf, place, ranks) is None


def test_the_whole_is_every_part_once():
    for ranks in (2, 4, 8):
        total = whole(ranks, 5)
        assert (total == sum(part(rank, ranks, 5) for rank in range(ranks))).all()
        assert [contributions(float(total[place]), place, ranks) for place in range(5)] == [[1] * ranks] * 5


@pytest.mark.parametrize(("times", "told"), [
    ([0, 1, 0, 0], "rank 1's own part"), ([2, 2, 2, 2], "2 times the right sum"),
    ([2, 1, 2, 1], "has the parts of ranks 0 and 2 more than once"),
    ([1, 1, 0, 1], "lacks the part of rank 2"), ([1, 1, 2, 1], "has the part of rank 2 more than once"),
])  # fmt: skip
def test_a_wrong_sum_is_told_by_whose_parts_it_has(times, told):
    value = (FIRST + 2.0) * sum(number * 4**rank for rank, number in enumerate(times))
    assert told in meaning(1, value, 2, 4)


@pytest.mark.parametrize(("found", "told"), [
    (np.zeros(3, np.float32), "should have shape [4], and has [3]"), ([0.0] * 4, "and has list"),
    (part(1, 4, 4), "element 0 of array: 4000, and 85000 is right (4 of 4 elements are wrong)"),
    (whole(4, 4), ""),
])  # fmt: skip
def test_an_array_is_told_its_shape_or_its_first_wrong_element(found, told):
    said = explain(1, found, whole(4, 4), 4)
    assert told in said and bool(said) == bool(told)


def test_figures_of_a_run_are_those_of_the_gpu_that_has_most_of_each_for_one_step():
    """GPU 0 computes a second and sends 8 bytes, 400 a second; GPU 1 computes two, and waits for nothing."""

    def program(gpu: GPU) -> None:
        gpu.compute(Operation("work", flops=10.0 * (1 + gpu.rank)))
        gpu.allocate("weights", 100.0 * (2 - gpu.rank))
        gpu.send(1, np.zeros(8, np.uint8), "it") if gpu.rank == 0 else gpu.receive(0, "it")

    figures = {
        "step_seconds": 2 / 2,
        "bytes_sent": 8 / 2,
        "peak_memory_bytes": 200,
        "exposed_seconds": 8 / 400 / 2,
    }
    found = attempt_of(launch(program, 2, CLASSROOM, engine="inline"), figures, steps=2)
    of_both = {"compute": 1 + 2, "exposed": 8 / 400, "bubble": 1 - 8 / 400}
    assert found.spent == pytest.approx({name: each / 2 / 2 for name, each in of_both.items()})
    assert found.figures == pytest.approx(figures) and found.sent_bytes == (4, 0)
