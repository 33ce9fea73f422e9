"""The book says what the commands print: every output and every number with a unit in README.md and docs/."""

import ast
import json
import re

import pytest

import ndparallel
from ndparallel.base.errors import UserError
from ndparallel.book.check import check, documents, main, renewed, run, unexplained, written_like
from ndparallel.book.pictures import Picture
from ndparallel.book.programs import PROGRAM
from ndparallel.book.quotes import CODE, quote
from ndparallel.lessons.registry import ROOT

PARAGRAPH = """
<!-- numbers: python 1d_data_parallel.py
3.85x     strategies["DDP ring"].speedup
26.8 ms   strategies["DDP ring"].exposed
-->
<!-- numbers:
30.3 s    6 * (0.05 + 500 * 0.01)
3.35 TB/s source: a data sheet
-->
The ring has 3.85x and waits 26.8 ms. On paper it is 30.3 s,
at 3.35 TB/s.
"""


def commands(speedup: float = 3.852, exposed: float = 0.02679):
    """Stands for running: what any command's JSON would have."""
    return lambda command: json.dumps(
        {"strategies": [{"name": "DDP ring", "speedup": speedup, "exposed": exposed}]}
    )


# ---------------------------------------------------------------------------------------------- the documents


@pytest.mark.timeout(600)
@pytest.mark.parametrize("path", documents(), ids=lambda path: path.name)
def test_a_document_says_what_the_commands_print(path):
    text = path.read_text("utf-8")
    assert renewed(text).splitlines() == text.splitlines(), (
        "renew it with `python -m ndparallel.book --write`"
    )


@pytest.mark.parametrize("path", documents(), ids=lambda path: path.name)
def test_every_number_with_a_unit_is_explained(path):
    assert unexplained(path.read_text("utf-8")) == []


@pytest.mark.parametrize("path", documents(), ids=lambda path: path.name)
def test_every_file_and_chapter_that_a_document_links_to_is_there(path):
    prose = re.sub(r"```.*?```", "", path.read_text("utf-8"), flags=re.DOTALL)
    for target, chapter in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", prose):
        there = path.parent / target if target else path
        assert there.exists(), target
        assert not chapter or chapter in chapters(there), chapter


def chapters(path):
    """The anchors of a document's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", path.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_step_that_failures_follow_is_the_one_that_the_page_says_is_predicted():
    page = (documents()[0].parent / "docs/book/cluster.md").read_text("utf-8")
    (said,) = re.findall(r"The step of ([\d.]+) s is the one that \[README\]", page)
    assert f"ndparallel goodput --gpus 16384 --step {said}s" in page


def test_readme_stays_a_chapter_book_of_at_most_350_lines():
    assert len(documents()[0].read_text("utf-8").splitlines()) <= 350


# ----------------------------------------------------------------------------------------------- its programs

# documents whose Python is run by tests of their own, which know what it adds to the package
RUN_BY = {"extending.md": "tests/test_extending.py", "exercises.md": "tests/lessons/test_own.py"}


@pytest.mark.parametrize("path", documents(), ids=lambda path: path.name)
def test_python_in_a_document_is_a_quotation_or_a_program_that_the_book_runs(path):
    text = path.read_text("utf-8")
    left = PROGRAM.sub("", CODE.sub("", text)).count("```python")
    assert not left or (path.name in RUN_BY and path.name in (ROOT / RUN_BY[path.name]).read_text("utf-8"))


def test_programs_import_public_names_alone():
    codes = [found["code"] for path in documents() for found in PROGRAM.finditer(path.read_text("utf-8"))]
    trees = [node for code in codes for node in ast.walk(ast.parse(code))]
    froms = [node for node in trees if isinstance(node, ast.ImportFrom)]
    ours = [node for node in froms if (node.module or "").startswith("ndparallel")]
    assert ours and not [node for node in trees if isinstance(node, ast.Import)]
    assert {node.module for node in ours} == {"ndparallel"}
    assert {name.name for node in ours for name in node.names} <= {*ndparallel.__all__}


def test_what_a_program_prints_is_renewed_beneath_it():
    text = "```python\nprint(1 + 1)\n```\n```text\n3\n```\nAfter.\n"
    assert renewed(text) == text.replace("3", "2")


# ------------------------------------------------------------------------------------------------- numbers


def test_numbers_that_are_right_stay():
    assert renewed(PARAGRAPH, commands()) == PARAGRAPH


def test_numbers_that_are_stale_are_renewed_in_the_comment_and_in_the_paragraph():
    new = renewed(PARAGRAPH, commands(speedup=4.0, exposed=0.0301))
    assert new == PARAGRAPH.replace("3.85x", "4.00x").replace("26.8 ms", "30.1 ms")


def test_semicolons_let_a_line_explain_several_numbers():
    dense = PARAGRAPH.replace(".speedup\n", ".speedup ;  ")
    new = renewed(dense, commands(speedup=4.0, exposed=0.0301))
    assert new == dense.replace("3.85x", "4.00x").replace("26.8 ms", "30.1 ms")


def test_an_expression_may_compare_with_one_more_command():
    text = '<!-- numbers: python a.py\n2.0x   speedup / of("python b.py").speedup\n-->\nIt is 2.0x.\n'
    answers = {"python a.py --json": '{"speedup": 6}', "python b.py --json": '{"speedup": 2}'}
    assert renewed(text, answers.__getitem__) == text.replace("2.0x", "3.0x")


def test_a_number_may_become_what_another_was():
    """Of 10.8% and 10.7% one became 10.7%, and then both what the other became."""
    text = "<!-- numbers: python a.py\n10.8%  first ;  10.7%  second\n-->\nFirst 10.8%, then 10.7%.\n"
    new = renewed(text, {"python a.py --json": '{"first": 0.107, "second": 0.106}'}.__getitem__)
    assert new.endswith("First 10.7%, then 10.6%.\n")


def test_a_number_is_not_mistaken_for_a_part_of_another():
    text = "<!-- numbers: any\n3.8x   strategies['DDP ring'].speedup\n-->\nNot 13.8x, nor 3.85x, but 3.8x.\n"
    assert renewed(text, commands(4.0)).endswith("Not 13.8x, nor 3.85x, but 4.0x.\n")


@pytest.mark.parametrize(
    ("text", "value", "written"),
    [
        ("26.8 ms", 0.03, "30.0 ms"),
        ("99%", 0.5, "50%"),
        ("1.02x", 2.0, "2.00x"),
        ("104,992", 1234567, "1,234,567"),
        ("630 kB", 1e6, "1000 kB"),
        ("48 MB", 48.4e6, "48 MB"),
        ("32.0 s", 8, "8.0 s"),
    ],
)
def test_a_value_is_written_in_the_unit_and_digits_of_what_stands_there(text, value, written):
    assert written_like(text, value) == written


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("3.85x and", "3.9x and", "does not say '3.85x'"),
        ('["DDP ring"].speedup', '["DDP"].speedup', "has no value: KeyError"),
        ("26.8 ms   ", "much   ", "'much' is no number"),
        ("6 * (0.05", "6 * (oops", "has no value: NameError"),
    ],
)
def test_a_comment_that_explains_nothing_is_an_error_in_words(old, new, sentence):
    with pytest.raises(UserError) as error:
        renewed(PARAGRAPH.replace(old, new, 1), commands())
    assert sentence in str(error.value)


def test_a_number_with_a_unit_that_nobody_explains_is_found():
    assert unexplained(PARAGRAPH) == []
    assert unexplained(
        PARAGRAPH + "\nAnd 5.6 GB more, 12% of 3 s, but not 8 x 64, 4 GPUs, `9 ms` or TP2.\n"
    ) == ["5.6 GB", "12%", "3 s"]
    assert unexplained(PARAGRAPH.replace("waits 26.8 ms", "waits 26.9 ms")) == ["26.9 ms"]


# ------------------------------------------------------------------------------------------------- outputs

CONSOLE = "Before.\n\n```console\n$ python gpu.py\nloss  5.972  1.05 s\n```\n\nAfter.\n"


def test_output_that_is_stale_is_renewed_and_nothing_else():
    new = renewed(CONSOLE, lambda command: f"{command} printed this\n")
    assert new == "Before.\n\n```console\n$ python gpu.py\npython gpu.py printed this\n```\n\nAfter.\n"


@pytest.mark.parametrize(
    ("output", "stays"),
    [("loss  5.975  1.05 s\n", True), ("loss  5.990  1.05 s\n", False), ("loss  5.972  1.06 s\n", False)],
)
def test_losses_may_differ_in_the_third_digit_and_nothing_else_may(output, stays):
    assert (renewed(CONSOLE, lambda command: output) == CONSOLE) is stays


def test_commands_run_as_they_stand_and_end_as_head_and_tail_do():
    whole = run("python gpu.py").splitlines()
    assert whole[3].split() == ["one", "GPU", "32.0", "s", "1.00x"]
    assert run("python gpu.py | head -2").splitlines() == whole[:2]
    assert run("python gpu.py | tail -1").splitlines() == whole[-1:]


def test_errors_for_people_are_output_too():
    assert run("ndparallel compare --gpus 0") == "error: 0 GPUs cannot train anything; choose 1 or more.\n"


@pytest.mark.parametrize("command", ["rm -rf docs", "python gpu.py; ls", "python gpu.py | sort", ""])
def test_other_commands_are_refused(command):
    with pytest.raises(UserError, match="no command of this project"):
        run(command)


def test_write_renews_a_file_and_a_second_run_finds_nothing(tmp_path, capsys):
    path = tmp_path / "chapter.md"
    path.write_text(CONSOLE)
    assert main([str(path)]) == 1 and path.read_text() == CONSOLE
    assert "-loss  5.972  1.05 s" in capsys.readouterr().out
    assert main([str(path), "--write"]) == 0 and "32.0 s" in path.read_text()
    capsys.readouterr()
    assert main([str(path)]) == 0
    assert capsys.readouterr().out.startswith("1 output, 0 numbers, 0 quotations of code compared")


def test_a_command_that_prints_no_json_is_told_with_what_it_prints():
    text = (
        "<!-- numbers: ndparallel schedule nope --stages 2 --microbatches 2\n3 s   makespan\n-->\nIt takes 3 "
        "s.\n"
    )
    with pytest.raises(UserError, match="prints no JSON: error: unknown schedule 'nope'"):
        renewed(text)


# ---------------------------------------------------------------------------------------------- quoted code


def test_code_is_quoted_as_the_file_has_it_and_without_docstrings():
    assert quote("2d_tensor_parallel.py", "g").splitlines() == [
        "def g(gpu: GPU, y: Array, tp: Group) -> Array:",
        "    return all_reduce(gpu, y, tp)",
    ]
    method = quote("1d_data_parallel.py", "GatheredUnit.reshard")
    assert method.startswith("def reshard(self) -> None:\n    self.give_back(") and '"""' not in method


def test_code_that_has_changed_is_renewed():
    text = "<!-- code: 2d_tensor_parallel.py f g_backward -->\n```python\nold\n```\nAfter.\n"
    code = quote("2d_tensor_parallel.py", "f") + "\n" + quote("2d_tensor_parallel.py", "g_backward")
    assert renewed(text) == text.replace("old\n", code)


def test_code_that_is_not_there_is_one_sentence():
    with pytest.raises(UserError, match="gpu.py defines no 'GPU.nope' that could be quoted"):
        quote("gpu.py", "GPU.nope")


def test_the_book_compares_its_pictures_and_with_write_draws_those_that_are_stale(
    monkeypatch, tmp_path, capsys
):
    def drawn(engine: str) -> str:
        return "<svg>a ring</svg>"

    monkeypatch.setattr("ndparallel.book.check.PICTURES", {"ring": Picture("a ring", drawn)})
    monkeypatch.setattr("ndparallel.book.check.FOLDER", tmp_path)
    assert check([], ["ring"], write=False) == 1
    assert "ring.svg is stale" in capsys.readouterr().out and not list(tmp_path.iterdir())
    assert check([], ["ring"], write=True) == 0 and (tmp_path / "ring.svg").read_text() == drawn("")
    assert check([], ["ring"], write=False) == 0
    assert "1 picture compared: all equal." in capsys.readouterr().out
