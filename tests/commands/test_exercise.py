"""Claims about `ndparallel exercise`, from an empty folder on."""

import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from ndparallel.commands.command_line import main
from ndparallel.commands.exercise import overview
from ndparallel.exercises.catalog import ORDER, all_exercises, find_exercise
from ndparallel.exercises.folder import CHANGED, Folder
from ndparallel.exercises.template import solution, template

PAGE = Path(__file__).resolve().parents[2] / "docs" / "exercises.md"
SLOW_RING = """
import numpy as np

def all_reduce(gpu, array, ranks):
    if gpu.rank:
        gpu.send(0, array, "part")
        gpu.receive(0, "sum", into=array)
    else:
        for other in range(1, ranks):
            gpu.receive(other, "part", into=array, combine=np.add)
        for other in range(1, ranks):
            gpu.send(other, array, "sum")
"""


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """The exercises' folder of a reader who stands in an empty one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "exercises"


def solved(name: str) -> str:
    """The reader's file with the model solution in it."""
    exercise = find_exercise(name)
    head = template(exercise).partition("\n\n\n")[0]
    return f"{head}\n\n\n{solution(exercise)}\n"


def test_the_first_call_writes_the_task_and_the_next_one_grades_it(folder, capsys):
    assert main(["exercise", "ring"]) == 0
    assert "exercises/ring.py is new" in capsys.readouterr().out
    assert (folder / "ring.py").read_text("utf-8") == template(find_exercise("ring"))
    assert main(["exercise", "ring"]) == 0
    assert "not begun" in capsys.readouterr().out


def test_a_right_answer_gets_its_mark_and_the_list_shows_it(folder, capsys):
    main(["exercise", "ring"])
    (folder / "ring.py").write_text(solved("ring"), "utf-8")
    assert main(["exercise", "ring"]) == 0
    told = capsys.readouterr().out
    assert "Hand the sum round: as good as ours" in told and "7.80 s" in told and "What you learned" in told
    assert told.count("\nGPU 0-3 ") == 2 and told.rstrip().endswith("Next: ndparallel exercise halves")
    main(["exercise"])
    assert re.search(r"ring .* as good as ours", capsys.readouterr().out)
    (folder / "ring.py").write_text(solved("ring") + "# one line more\n", "utf-8")
    main(["exercise"])
    told = capsys.readouterr().out
    assert re.search(r"ring .* as good as ours\*\n", told) and "* The answer has changed since" in told


def test_the_list_has_one_line_for_each_exercise_in_80_columns_whatever_the_marks(folder, monkeypatch):
    monkeypatch.setattr(Folder, "mark", lambda self, name: f"better than ours{CHANGED}")
    console = Console(width=80)
    with console.capture() as printed:
        console.print(next(overview(Folder(folder), 80)))
    assert len(printed.get().splitlines()) == len(ORDER) + 2


def test_an_answer_that_is_right_and_slow_is_told_of_a_hint_and_of_what_is_next(folder, capsys):
    folder.mkdir()
    (folder / "ring.py").write_text(SLOW_RING, "utf-8")
    main(["exercise", "halves"])  # begun, and not right: still the next
    capsys.readouterr()
    assert main(["exercise", "ring"]) == 0
    told = capsys.readouterr().out
    assert "Hand the sum round: passed" in told
    hint, following = "A hint: ndparallel exercise ring --hint", "Next: ndparallel exercise halves"
    assert told.rstrip().endswith(f"{hint}\n\n{following}")


def test_a_wrong_answer_ends_with_1_and_what_it_prints_is_not_in_the_json(folder, capfd):
    folder.mkdir()
    (folder / "ring.py").write_text(
        "print('hello')\ndef all_reduce(gpu, array, ranks):\n    return\n", "utf-8"
    )
    assert main(["exercise", "ring"]) == 1
    assert capfd.readouterr().out.rstrip().endswith("A hint: ndparallel exercise ring --hint")
    assert main(["exercise", "ring", "--json"]) == 1
    out, err = capfd.readouterr()
    verdict = json.loads(out)
    assert verdict["mark"] == "wrong" and verdict["par"]["bytes_sent"] == 3000
    assert "hello" in err


def test_reset_keeps_what_the_reader_wrote(folder, capsys):
    main(["exercise", "ring"])
    for number in (1, 2):
        (folder / "ring.py").write_text(f"# try {number}\n", "utf-8")
        assert main(["exercise", "ring", "--reset"]) == 0
        assert (folder / f"ring.{number}.py").read_text("utf-8") == f"# try {number}\n"
    assert (folder / "ring.py").read_text("utf-8") == template(find_exercise("ring"))


def test_all_grades_a_whole_folder_for_a_lecturer(folder, capsys):
    folder.mkdir()
    (folder / "ring.py").write_text(solved("ring"), "utf-8")
    for name in ("halves", "ddp", "capstone"):
        (folder / f"{name}.py").write_text(template(find_exercise(name)), "utf-8")
    assert main(["exercise", "--all", "--json", "--folder", str(folder)]) == 0
    verdicts = json.loads(capsys.readouterr().out)["verdicts"]
    assert {verdict["exercise"]: verdict["mark"] for verdict in verdicts} == {
        "ring": "par",
        "halves": "not begun",
        "ddp": "not begun",
        "capstone": "not begun",
    }


def hand_in(student: str, **answers: str) -> None:
    Path(student).mkdir(parents=True)
    for name, text in answers.items():
        Path(student, f"{name}.py").write_text(text, "utf-8")


@pytest.fixture
def students(folder) -> None:
    """Three students' answers to two exercises, in a folder "class"."""
    hand_in("class/ann/exercises", ring=solved("ring"), halves=solved("halves"))
    hand_in("class/bob", ring=SLOW_RING, halves=template(find_exercise("halves")))
    hand_in("class/cy", ring="def all_reduce(:\n")
    Path("class/notes.txt").write_text("no student", "utf-8")


def test_a_class_is_graded_by_student_and_by_exercise(students, capsys):
    assert main(["exercise", "--grade", "class"]) == 0
    told = capsys.readouterr().out
    rows = {line.split()[0]: line.split()[1:] for line in told.splitlines() if line}
    assert rows["student"] == ["good", "passed", "wrong", "not", "begun", "missing", "not", "good"]
    assert rows["ann"] == ["2", "0", "0", "0", "0"]
    assert rows["bob"] == ["0", "1", "0", "1", "0", "passed", "ring;", "not", "begun", "halves"]
    assert rows["cy"] == ["0", "0", "1", "0", "1", "wrong", "ring;", "missing", "halves"]
    assert rows["ring"] == ["1", "1", "1", "0", "0"] and rows["halves"] == ["1", "0", "0", "1", "1"]
    assert not list(Path("class").rglob(".marks.json"))


def test_a_class_can_be_graded_for_one_exercise_and_as_json(students, capsys):
    assert main(["exercise", "halves", "--grade", "class", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    marks = {
        each["student"]: [(v["exercise"], v["mark"]) for v in each["verdicts"]] for each in told["students"]
    }
    assert marks == {"ann": [("halves", "par")], "bob": [("halves", "not begun")], "cy": []}


def test_a_file_that_cannot_be_read_is_wrong_and_keeps_nobody_from_a_mark(students, capsys):
    Path("class/bob/ring.py").write_bytes(b"\xff\xfe")
    assert main(["exercise", "ring", "--grade", "class", "--json"]) == 0
    marks = {each["student"]: each["verdicts"] for each in json.loads(capsys.readouterr().out)["students"]}
    assert [marks[name][0]["mark"] for name in ("ann", "bob", "cy")] == ["par", "wrong", "wrong"]
    assert "ring.py" in marks["bob"][0]["sentences"][0]


def test_the_solution_says_where_it_stands_and_is_right_there(folder, capsys):
    assert main(["exercise", "halves", "--solution"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("# Stands in exercises/halves.py below the imports.\n\ndef ")
    main(["exercise", "halves"])
    imports = (folder / "halves.py").read_text("utf-8").partition("\n\n\ndef ")[0]
    (folder / "halves.py").write_text(f"{imports}\n\n\n{shown}", "utf-8")
    capsys.readouterr()
    main(["exercise", "halves"])
    assert "as good as ours" in capsys.readouterr().out


def test_hints_come_one_by_one(folder, capsys):
    hints = find_exercise("ring").hints
    for number, hint in enumerate(hints, 1):
        assert main(["exercise", "ring", "--hint", str(number)]) == 0
        assert " ".join(hint.split()) in " ".join(capsys.readouterr().out.split())
    assert main(["exercise", "ring", "--hint", "4"]) == 2
    assert "has hints 1 to 3" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["rings"], "Did you mean 'ring'?"),
        (["missing.py"], "is not there"),
        (["random.py"], "random.py does not run: ZeroDivisionError: division by zero (line 1)"),
        (["ring", "--folder", "ring.txt/deep"], "cannot be made"),
        (["--all", "--folder", "nowhere"], "nowhere is no folder"),
        (["ring", "--hint", "--solution"], "not allowed with"),
        (["ring", "--all"], "leave 'ring' out"),
        (["ring", "--hint", "0", "--json"], "--json prints verdicts, and --hint none"),
        (["--solution"], "--solution is of an exercise: name it"),
        (["--json"], "--json is of an exercise: name it"),
        (
            ["--grade", "nowhere"],
            "nowhere is no folder: --grade takes a folder with a folder for each student",
        ),
        (
            ["--grade", "empty/ann"],
            "empty/ann has no folder for any student; --all --folder empty/ann grades",
        ),
        (["--grade", "empty"], "no student's folder in empty has an answer, such as ring.py."),
        (["--grade", "empty", "--folder", "mine"], "leave --folder out"),
        (["--grade", "empty", "--all"], "not allowed with"),
    ],
)
def test_bad_input_is_one_sentence(folder, capsys, words, sentence):
    Path("ring.txt").write_text("", "utf-8")
    Path("random.py").write_text("1 / 0\n", "utf-8")
    Path("empty/ann").mkdir(parents=True)
    assert main(["exercise", *words]) == 2
    assert sentence in capsys.readouterr().err


def test_an_exercise_of_ones_own_is_one_file(folder, capsys):
    section = PAGE.read_text("utf-8").partition("## An exercise of your own")[2]
    example = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    assert example
    Path("course").mkdir()
    Path("course/mean.py").write_text(example[1], "utf-8")
    assert main(["exercise", "course/mean.py"]) == 0
    written = (folder / "mean.py").read_text("utf-8")
    assert "Two GPUs have a number each." in written and "receive" not in written
    assert "Run it:  ndparallel exercise course/mean.py " in written
    (folder / "mean.py").write_text("def mean(gpu, number):\n    return number\n", "utf-8")
    assert main(["exercise", "course/mean.py"]) == 1
    assert "A hint: ndparallel exercise course/mean.py --hint" in capsys.readouterr().out
    by_heart = "import numpy as np\ndef mean(gpu, number):\n    return np.array([0.5])\n"
    (folder / "mean.py").write_text(by_heart, "utf-8")
    assert main(["exercise", "course/mean.py"]) == 1
    told = " ".join(capsys.readouterr().out.split())
    assert "With the numbers 2 and 6: The GPUs return [0.5, 0.5], and the mean is 4." in told
    (folder / "mean.py").write_text(example[1], "utf-8")
    assert main(["exercise", "course/mean.py", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["mark"] == "par"
    hand_in("class/ann", mean=example[1])
    assert main(["exercise", "course/mean.py", "--grade", "class", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["students"][0]["verdicts"][0]["mark"] == "par"


def test_the_page_lists_every_exercise():
    table = re.search(r"<!-- exercises -->\n(.*)<!-- /exercises -->", PAGE.read_text("utf-8"), re.DOTALL)
    rows = [
        f"| [{e.chapter}]({e.page.removeprefix('docs/')}) | `{e.name}` "
        f"| {e.title} | {e.minutes} min | {e.learned} |"
        for e in all_exercises()
    ]
    minutes = [e.minutes for e in all_exercises()]
    shortest, longest = min(minutes), max(minutes)
    head = ["| chapter | exercise | | time | what you learn |", "|---|---|---|---|---|"]
    expected = "\n".join([*head, *rows]) + "\n"
    assert table and table[1] == expected, f"docs/exercises.md should list\n{expected}"
    assert f"There are {len(rows)} exercises, of {shortest} to {longest} minutes" in PAGE.read_text("utf-8")


def test_every_exercise_and_its_chapter_name_one_another():
    for exercise in all_exercises():
        chapter = (PAGE.parents[1] / exercise.page).read_text("utf-8")
        assert f"`{exercise.name}`" in chapter.partition("## Do it yourself")[2], exercise.name


def test_the_lecturers_page_names_only_exercises_that_there_are():
    plans = PAGE.read_text("utf-8").partition("**Ninety minutes.**")[2].partition("## An exercise")[0]
    assert set(re.findall(r"`(\w+)`", plans)) <= set(ORDER)
    weeks = re.findall(r"\| \d \| [^|]+ \| ([^|]+) \| (\d+) \|", plans)
    assert len(weeks) == 4
    for names, minutes in weeks:
        assert int(minutes) == sum(find_exercise(name).minutes for name in re.findall(r"`(\w+)`", names))
