"""Claims about the questions of the book: each is answered by the run, and can be guessed on its scale."""

import re
from pathlib import Path

import pytest

from ndparallel.book.check import run
from ndparallel.explorer import guesses
from ndparallel.lessons.questions import UNITS, Question, questions
from ndparallel.results.record import record_in, value_of

ROOT = Path(__file__).parents[2]
COUNTS = ("hops", "days", "GPUs", "microbatches")  # units without a prefix


def test_questions_are_many_and_have_one_name_each():
    assert len({question.name for question in questions()}) == len(questions()) >= 20


def test_the_questions_that_a_chapter_ends_with_are_the_cards_of_the_same_words():
    in_book = {}
    for chapter in sorted((ROOT / "docs/book").glob("*.md")):
        title, *_ = (text := chapter.read_text("utf-8")).splitlines()
        ending = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text.split("## Predict, then unfold")[1])
        for number, words in re.findall(r"^\*\*(\d)\.\*\* (.+)$", ending, re.MULTILINE):
            in_book[title.removeprefix("# "), int(number)] = words
    assert len(in_book) >= 24
    asked = [question for question in questions() if question.number]
    assert {(each.chapter, each.number): each.words for each in asked} == in_book


def test_questions_are_in_the_order_of_the_readmes_sections():
    books = [question.book for question in questions()]
    rows = re.findall(r"\]\((docs/book/\w+\.md)\) \|", (ROOT / "README.md").read_text("utf-8"))
    assert len(rows) == 8 and list(dict.fromkeys(books)) == [book for book in rows if book in books]


def test_every_question_names_the_file_of_its_chapter():
    for question in questions():
        title, *_ = (ROOT / question.book).read_text("utf-8").splitlines()
        assert title == f"# {question.chapter}" or question.chapter == "How GPUs talk"


RUN = [question for question in questions() if question.command]


def test_what_has_no_run_asks_for_a_reason():
    reasons = [question for question in questions() if not question.command]
    assert all(question.number and question.why and not question.value for question in reasons)


@pytest.mark.parametrize("question", RUN, ids=lambda question: question.name)
def test_the_run_answers_and_the_answer_is_on_the_scale(question):
    found = question.answer(run(f"{question.command} --json"))
    assert question.low < found < question.high
    assert question.unit in {*UNITS, *COUNTS} and question.why.endswith(".")
    assert (question.guess or question.words).endswith("?")


def test_tp16_is_not_slow_because_it_crosses_nodes():
    (question,) = (each for each in questions() if each.name == "llama-tp16")
    (option,) = re.findall(r"`(--what-if [^`]+)`", question.why)
    priced = record_in(run(f"{question.command} {option} --json"))
    assert 0.99 < value_of("what_if[0].step_seconds / step_seconds", priced) < 1


def test_a_guess_is_compared_in_the_questions_own_unit():
    question = Question("name", "", "", "", "%", 0, 100)
    assert guesses.off(question, 50, 50.9) == "You said 50%: right."
    assert guesses.off(question, 50, 60.5) == "You said 50%: 10.5 points too little."
