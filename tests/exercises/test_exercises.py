"""Every exercise: its model solution is par, its file is made right, and the answers that students give are
told what is wrong with them."""

import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from types import FunctionType

import numpy as np
import pytest

from gpu import GPU
from ndparallel.base.quantities import si
from ndparallel.base.words import WIDTH
from ndparallel.exercises.answer import ModelAnswer, NotBegun, ReadersAnswer, with_place
from ndparallel.exercises.catalog import ORDER, find_exercise
from ndparallel.exercises.exercise import Attempt, Exercise
from ndparallel.exercises.grade import graded, par_of
from ndparallel.exercises.runs import in_pipeline
from ndparallel.exercises.tasks import fill_the_bubble, heavy_head, no_bubble, prefetch, vocabulary_loss
from ndparallel.exercises.template import is_solution, solution, template
from ndparallel.exercises.verdict import NOT_BEGUN, PAR, PASSED, WRONG, Verdict, judge, printed
from ndparallel.model.units import ModelConfig
from ndparallel.pipeline.timing import Timing
from ndparallel.training.job import MODEL_SIZES

FEWEST_ANSWERS = 3  # wrong or slow ones, of each exercise
ONE_WORLD = ("capstone", "fit_one_gpu", "heavy_head", "make_it_fit", "who_sits_where")  # no other is tried


def answers(name: str) -> dict[str, Callable]:
    """The wrong and slow answers to an exercise, by name."""
    module = importlib.import_module(f"tests.exercises.answers.{name}")
    return {
        key: value
        for key, value in vars(module).items()
        if isinstance(value, FunctionType | type) and value.__module__ == module.__name__ and value.__doc__
    }


def every_answer() -> Iterator[tuple[str, str]]:
    for name in ORDER:
        yield from ((name, answer) for answer in answers(name))


def given(exercise: Exercise, answer: Callable) -> Verdict:
    """Grade a function, or a class of functions where an exercise asks for several."""
    path = Path(inspect.getfile(answer))
    asked = {name: getattr(answer, name) if isinstance(answer, type) else answer for name in exercise.asks}
    placed = {name: with_place(path, function) for name, function in asked.items()}
    return graded(exercise, path, lambda: ModelAnswer(placed), par(exercise.name))


@cache
def par(name: str) -> Attempt:
    return par_of(find_exercise(name))


@pytest.mark.parametrize("name", ORDER)
def test_the_model_solution_is_par(name):
    exercise = find_exercise(name)
    verdict = graded(exercise, Path(exercise.file), lambda: ModelAnswer(exercise.asks), par(name))
    assert verdict.mark == PAR and verdict.yours


@pytest.mark.parametrize(("name", "answer"), list(every_answer()))
def test_a_wrong_or_slow_answer_is_told_what_is_wrong(name, answer):
    function = answers(name)[answer]
    verdict = given(find_exercise(name), function)
    assert verdict.mark in (WRONG, PASSED)
    assert " ".join(str(function.__doc__).split()) in " ".join(verdict.sentences)
    assert all(sentence.endswith((".", "?")) for sentence in verdict.sentences)
    assert list(printed(verdict, name, WIDTH))


@pytest.mark.parametrize("name", ORDER)
def test_who_is_right_in_the_measured_run_alone_sees_the_figures_of_par(name, monkeypatch):
    exercise, as_it_is = find_exercise(name), par(name)
    monkeypatch.setattr("ndparallel.exercises.runs.fault_of", lambda run, world: "it is not right.")
    verdict = graded(exercise, Path(exercise.file), lambda: ModelAnswer(exercise.asks), as_it_is)
    assert verdict.mark == (PAR if name in ONE_WORLD else WRONG)
    assert list(verdict.yours) == list(verdict.par) and list(printed(verdict, name, WIDTH))


@pytest.mark.parametrize("name", ORDER)
def test_at_least_three_misconceptions_are_anticipated(name):
    assert len(answers(name)) >= FEWEST_ANSWERS


def verdict_of_file(name: str, path: Path, text: str) -> Verdict:
    path.write_text(text, "utf-8")
    exercise = find_exercise(name)
    return graded(exercise, path, lambda: ReadersAnswer(path, exercise), par(name))


def weights_of(model: ModelConfig) -> int:
    """Matrices and norms by hand: queries and output, keys and values, three of the MLP; two tables."""
    h, kv = model.hidden, model.hidden * model.kv_heads // model.heads
    return model.layers * (2 * h * h + 2 * h * kv + 3 * h * model.ffn + 2 * h) + (2 * model.vocab + 1) * h


def test_make_it_fit_says_how_large_its_model_is():
    small, large = (weights_of(MODEL_SIZES[size]) for size in ("default", "large"))
    task = find_exercise("make_it_fit").task
    assert f"{int(large / small)} times as many weights" in task
    assert f"take {16 * large / 1e6:.0f} MB" in task  # float32: weights, gradients and two moments


def test_talk_once_says_how_much_is_sent_four_times():
    assert f"four times {si(par('talk_once').figures['bytes_sent'], 'B')}" in find_exercise("talk_once").task


@pytest.mark.parametrize("name", ORDER)
def test_the_readers_file_is_not_begun_until_what_it_does_changes(name, tmp_path):
    text, path = template(find_exercise(name)), tmp_path / f"{name}.py"
    for same in (text, text + "\n# a remark\n", text.partition('"""\n')[2]):
        assert verdict_of_file(name, path, same).mark == NOT_BEGUN


def test_a_sentence_for_the_reader_begins_without_the_name_of_its_class(tmp_path):
    name = "accumulate"
    backward_first = template(find_exercise(name)).replace("    replica.forward(", "    replica.backward(")
    (sentence,) = verdict_of_file(name, tmp_path / f"{name}.py", backward_first).sentences
    assert sentence.startswith("backward of head: microbatch 0 has no forward yet")
    assert "(line " in sentence and "replica.backward(microbatch)" in sentence


def test_the_file_that_hangs_says_who_waits_for_whom_before_anything_is_changed(tmp_path):
    name = "why_does_it_hang"
    verdict = verdict_of_file(name, tmp_path / f"{name}.py", template(find_exercise(name)))
    assert verdict.mark == NOT_BEGUN
    assert "waits for 'array' from rank 3, which, in why_does_it_hang.py:" in verdict.sentences[1]


BEGINS_RIGHT = ("accumulate", "fsdp", "leave_early", "one_f_one_b", "prefetch", "talk_once")
BEGINS_WRONG = ("capstone", "ddp", "why_does_it_hang", "zero1")


@pytest.mark.parametrize("name", ORDER)
def test_the_lines_to_begin_with_are_right_and_slow_or_wrong_as_their_task_says(name, tmp_path):
    exercise = find_exercise(name)
    verdict = verdict_of_file(name, tmp_path / f"{name}.py", template(exercise) + "\nBEGUN = True\n")
    begins = dict.fromkeys(BEGINS_RIGHT, PASSED) | dict.fromkeys(BEGINS_WRONG, WRONG)
    assert verdict.mark == begins.get(name, NOT_BEGUN)
    assert (name not in begins) == all(is_solution(exercise, asked) for asked in exercise.asks)


def test_the_model_sums_take_the_seconds_of_the_blackboard():
    """2 (p - 1) hops of a piece: of 500 elements on 4 GPUs, at 0.05 s and 100 elements a second; of 800 over
    two nodes of 4, whose slow links carry 200 elements at 0.2 s and 10 a second."""
    hop, slow_hop = 0.05 + 200 / 100, 0.2 + 100 / 10
    ring = {"step_seconds": 6 * (0.05 + 125 / 100), "bytes_sent": 6 * 125 * 4}
    assert par("ring").figures == pytest.approx(ring)
    assert par("two_nodes").figures == pytest.approx({"step_seconds": 3 * hop + 2 * slow_hop + 3 * hop})


def test_a_loss_is_right_to_a_ten_thousandth_of_itself_or_of_1():
    targets = np.array([0, 0])
    for found, is_right in (([1000.05, 0.01005], True), ([1000.2, 0.01], False), ([1000, 0.0102], False)):
        wrong = vocabulary_loss.fault(0, np.array(found), np.array([1000, 0.01]), targets)
        assert (wrong == "") == is_right


def test_who_prefetches_with_the_models_memory_is_asked_for_his_waits():
    same, more = (Attempt({"peak_memory_bytes": size}) for size in (1e6, 1.01e6))
    assert prefetch.over_par(same, same).startswith("The links are silent")
    assert prefetch.over_par(more, same).startswith("More than two units are whole")


def test_in_zb_h2_no_gpu_waits_between_its_first_action_and_its_last():
    assert par("no_bubble").figures == {"idle_seconds": 0.0}


def test_a_heavy_heads_equal_split_is_as_slow_as_its_task_says():
    """8 + 8 + 7 + 7 layers, and the last stage takes as long as 11."""
    layers, head, ranks = heavy_head.MODELS["30 layers"]
    assert heavy_head.wrong_split([8, 8, 7, 7], layers, ranks) == ""
    assert 7 + head == 11


@pytest.mark.parametrize("name", ORDER)
def test_the_model_solution_as_it_is_printed_behind_the_readers_file_is_par(name, tmp_path):
    exercise = find_exercise(name)
    text = f"{template(exercise)}\n\n{solution(exercise)}\n"
    assert verdict_of_file(name, tmp_path / f"{name}.py", text).mark == PAR


SENT = (
    *("ring", "halves", "everybody", "broadcast", "why_does_it_hang", "two_nodes", "columns_then_rows"),
    *("sum_that_can_wait", "f_and_g", "vocabulary_loss", "ring_attention", "ulysses", "experts"),
)


@pytest.mark.parametrize("name", SENT)
@pytest.mark.parametrize("bits", [np.dtype(np.float16), np.dtype(np.uint16)])
@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
def test_messages_of_16_bits_are_no_answer(name, bits, monkeypatch):
    par(name)
    send, receive = GPU.send, GPU.receive

    def send_short(gpu, target, array, what):
        send(gpu, target, array.astype(bits), what)

    def receive_short(gpu, source, what, into=None, combine=None):
        array = receive(gpu, source, what).astype(np.float32)
        if into is None:
            return array
        into[...] = combine(into, array) if combine else array
        return into

    monkeypatch.setattr(GPU, "send", send_short)
    monkeypatch.setattr(GPU, "receive", receive_short)
    exercise = find_exercise(name)
    verdict = graded(exercise, Path(exercise.file), lambda: ModelAnswer(exercise.asks), par(name))
    assert verdict.mark == WRONG


@pytest.mark.parametrize("name", [name for name in ORDER if find_exercise(name).given])
@pytest.mark.parametrize("cheaper", ["", "gpu.compute(Operation('attention', flops=1))"])
def test_what_is_given_cannot_be_made_cheaper(name, cheaper, tmp_path):
    exercise = find_exercise(name)
    text = f"{template(exercise)}\n\n{solution(exercise)}\n"
    text, changes = re.subn(r"gpu\.compute\(.*", cheaper or "pass", text)
    verdict = verdict_of_file(name, tmp_path / f"{name}.py", text)
    assert changes == 1 and verdict.mark == WRONG
    assert "the clocks know of 0% of the work" in verdict.sentences[0]


@pytest.mark.parametrize("name", ORDER)
def test_the_readers_file_has_the_task_and_not_the_solution(name):
    exercise = find_exercise(name)
    text = template(exercise)
    assert exercise.task in text and "EXERCISE" not in text
    for asked in filter(partial(is_solution, exercise), exercise.asks):
        lines = inspect.getsource(exercise.asks[asked]).rpartition('"""')[2].splitlines()
        assert not [line for line in lines if len(line) > 40 and line in text]


@pytest.mark.parametrize("name", ORDER)
def test_the_task_has_what_a_student_and_a_lecturer_need(name):
    exercise = find_exercise(name)
    assert exercise.title and len(exercise.title) <= 40
    assert 5 <= exercise.minutes <= 30
    assert len(exercise.hints) == 3 and all(exercise.hints)
    assert exercise.learned.endswith(".")
    assert max(map(len, template(exercise).splitlines())) <= 110


def as_drawn(answer: Callable, rank: int) -> str:
    """The ops of one of four GPUs, one for each second, as the tasks draw them."""
    timing = in_pipeline(ModelAnswer({"schedule": answer}), "FIW", 4, 8).picture
    assert isinstance(timing, Timing)
    seconds = [" "] * int(timing.makespan)
    for action, start in zip(timing.schedule.actions[rank], timing.start[rank]):
        seconds[int(start)] = action.op
    return " ".join(seconds).rstrip()


@pytest.mark.parametrize(
    ("name", "row", "rank", "answer"),
    [
        ("no_bubble", "GPU 0   ", 0, no_bubble.schedule),
        ("no_bubble", "GPU 3   ", 3, no_bubble.schedule),
        ("fill_the_bubble", "GPU 2 in 1F1B     ", 2, answers("fill_the_bubble")["one_f_one_b"]),
        ("fill_the_bubble", "GPU 2 with W later", 2, fill_the_bubble.schedule),
    ],
)
def test_the_picture_in_a_task_is_that_of_the_schedule(name, row, rank, answer):
    drawn = find_exercise(name).task.partition(row)[2].partition("\n")[0].rstrip()
    begun = drawn.removesuffix("...").rstrip()
    expected = as_drawn(answer, rank)
    assert drawn.endswith("...") or begun.split() == expected.split()
    assert begun.split() and expected.lstrip().startswith(begun.lstrip())
    if name == "no_bubble":  # the rows stand on one scale of time
        assert begun == expected


def test_an_answer_shares_nothing_between_gpus(tmp_path):
    exercise, path = find_exercise("ring"), tmp_path / "ring.py"
    path.write_text(
        "BOX = []\ndef all_reduce(gpu, array, ranks):\n    BOX.append(array)\n    array[:] = len(BOX)\n",
        "utf-8",
    )
    answer = ReadersAnswer(path, exercise)
    functions = [answer.on(rank).all_reduce for rank in range(2)]
    assert functions[0] is not functions[1]
    with pytest.raises(NotBegun):
        path.write_text("def all_reduce(gpu, array, ranks):\n    ...\n", "utf-8")
        ReadersAnswer(path, exercise)


def test_a_verdict_names_a_page_only_where_it_can_be_read(monkeypatch, tmp_path):
    exercise = find_exercise("ring")
    told = " ".join(judge(exercise, par("ring"), par("ring")).sentences)
    assert told.endswith("More: docs/book/1d.md.")
    monkeypatch.setattr("ndparallel.exercises.verdict.ROOT", tmp_path)  # as where it was installed by pip
    told = " ".join(judge(exercise, par("ring"), par("ring")).sentences)
    assert "docs/" not in told and exercise.learned in told
