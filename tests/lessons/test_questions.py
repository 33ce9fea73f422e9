"""Claims about the questions of the book: each is answered by the run, and can be guessed on its scale."""

import pytest

from ndparallel.book.check import run
from ndparallel.explorer import guesses
from ndparallel.lessons.questions import UNITS, Question, questions


def test_questions_are_many_and_have_one_name_each():
    assert len({question.name for question in questions()}) == len(questions()) >= 20
    assert {question.chapter[:2] for question in questions()} >= {"0D", "1D", "2D", "3D", "4D"}


@pytest.mark.parametrize("question", questions(), ids=lambda question: question.name)
def test_the_run_answers_and_the_answer_is_on_the_scale(question):
    found = question.answer(run(f"{question.command} --json"))
    assert question.low < found < question.high
    assert question.unit in UNITS and question.why.endswith(".") and question.words.endswith("?")


def test_a_guess_is_compared_in_the_questions_own_unit():
    question = Question("name", "", "", "%", 0, 100, 1, "", "", "")
    assert guesses.off(question, 50, 50.9) == "You said 50%: right."
    assert guesses.off(question, 50, 60.5) == "You said 50%: 10.5 points too little."
