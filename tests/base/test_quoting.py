"""Names of others are shown and never interpreted: in terminals, comments, docstrings and pictures."""

import ast
import unicodedata
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ndparallel.base.quoting import in_docstring, markup, shell_comment, visible

NAMES = st.text(
    st.characters(), max_size=40
)  # surrogates included, as file names that are not UTF-8 have them


@pytest.mark.parametrize(
    ("name", "seen"),
    [
        ("llama-3-70b", "llama-3-70b"),
        ("モデル　v2, größer", "モデル　v2, größer"),
        ("a\nb\r\n", r"a\nb\r\n"),
        ("\x1b[31mred\x9b0m\x7f", r"\x1b[31mred\x9b0m\x7f"),
        ("cod\u202egnp.exe\u2028", r"cod\u202egnp.exe\u2028"),
        ("\udcff.svg", r"\udcff.svg"),
    ],
)
def test_control_characters_are_shown_as_python_writes_them_and_all_else_stays(name, seen):
    assert visible(name) == seen == visible(seen)


@given(NAMES)
def test_what_is_visible_is_one_line_without_control_characters_that_any_file_can_hold(name):
    assert not {unicodedata.category(character) for character in visible(name)} & {
        "Cc",
        "Cf",
        "Cs",
        "Zl",
        "Zp",
    }
    assert visible(name).encode("utf-8").count(b"\n") == 0
    assert len(visible(name).splitlines()) <= 1


@given(NAMES)
def test_a_shells_comment_is_one_line_that_begins_with_a_number_sign(name):
    assert shell_comment(name).startswith("# ") and "\n" not in shell_comment(name)


@given(NAMES)
@example('"""\nimport os\n"""')
@example("\\")
@example('\\"""')
def test_python_reads_the_visible_name_in_a_docstring_and_no_statement(name):
    statement: Any
    (statement,) = ast.parse(f'"""{in_docstring(name)} and more"""').body
    assert ast.literal_eval(statement.value) == f"{visible(name)} and more"


@given(NAMES)
@example("\x00 & <b> ]]> \"'")
def test_a_picture_holds_the_visible_name_as_text_and_in_an_attribute(name):
    element = ElementTree.fromstring(f'<text label="{markup(name)}">{markup(name)}</text>')
    assert element.text == (visible(name) or None) and len(element) == 0
    assert element.attrib == {"label": visible(name)}
