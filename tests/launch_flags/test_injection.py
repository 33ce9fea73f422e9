"""No name of a model or of hardware gets out of a script's comment, a recipe's docstring or a line of the
terminal: whatever Unicode it has, the script is the same program."""

import ast
import functools
import json
import os
import re
import shlex
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ndparallel.base.quoting import visible
from ndparallel.commands.command_line import main
from ndparallel.drawing.spans import Timeline
from ndparallel.drawing.svg.timelines import draw_timelines
from ndparallel.drawing.terminal.timelines import gantt
from ndparallel.launch_flags.accelerate.write import emit_accelerate
from ndparallel.launch_flags.deepspeed.write import emit_deepspeed
from ndparallel.launch_flags.megatron.write import emit_megatron
from ndparallel.launch_flags.torchtitan.write import emit_torchtitan
from ndparallel.planner.job import Plan
from ndparallel.results.printing import prose
from tests.launch_flags.test_flags import H100, job_of

ROOT = Path(__file__).resolve().parents[2]
SVG = "{http://www.w3.org/2000/svg}"
NAMES = st.text(st.characters(), max_size=30)
SHELL = "x\ntouch PWNED\n#"
PYTHON = '"""\nimport os; os.system("touch PWNED")\n"""'
PLANS = {
    "megatron": Plan(tp=8, pp=3, dp=2, zero=1, sequence_parallel=True),
    "torchtitan": Plan(tp=2, pp=2, dp=4, zero=3),
    "deepspeed": Plan(tp=2, dp=8, zero=3, recompute="full"),
    "accelerate": Plan(dp=16, zero=3, recompute="full"),
}
SOFTWARE = {"megatron": "megatron-core"}
EMIT = {
    "megatron": emit_megatron,
    "torchtitan": emit_torchtitan,
    "deepspeed": emit_deepspeed,
    "accelerate": emit_accelerate,
}
JOB = ["--gpus", "16", "--global-batch", "64", "--sequence", "8192", "--tp", "2", "--pp", "2"]


def emitted(framework: str, model: str, hardware: str) -> str:
    job = job_of(software=SOFTWARE.get(framework, framework), batch=48)
    named = replace(job, shape=replace(job.shape, name=model), hardware=replace(H100, name=hardware))
    return EMIT[framework](named, PLANS[framework])


@functools.cache
def program(framework: str) -> list:
    """What the script of a harmless name does, as the language's own words."""
    return words_of(framework, emitted(framework, "model", "hardware"))


def words_of(framework: str, text: str) -> list:
    if framework == "torchtitan":
        docstring, *statements = ast.parse(text).body
        assert isinstance(docstring, ast.Expr)
        assert isinstance(ast.literal_eval(docstring.value), str)
        return [ast.dump(statement) for statement in statements]
    lines = [line for line in text.split("\n") if not line.startswith("#")]
    lexer = shlex.shlex("\n".join(lines), posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    return list(lexer)


@pytest.mark.parametrize("framework", PLANS)
@given(model=NAMES, hardware=NAMES)
@example(model=SHELL, hardware=SHELL)
@example(model=PYTHON, hardware="\\")
@example(model='a\\"""', hardware='"')
@example(model="$(touch PWNED)`touch PWNED`", hardware="\r\x00\x85\u2028")
@settings(max_examples=100, deadline=None)
def test_no_name_changes_the_program_that_is_emitted(framework, model, hardware):
    text = emitted(framework, model, hardware)
    assert words_of(framework, text) == program(framework)
    assert text.encode("utf-8") and text.split("\n")[-1] == ""


def test_a_launch_script_is_comments_assignments_and_one_launch():
    """Of which the shell expands the address and the script's own arguments, and nothing else."""
    text = emitted("megatron", SHELL, "h100")
    lines = [line for line in text.replace("\\\n", "").split("\n") if line and not line.startswith("#")]
    assert [line.split()[0] for line in lines] == ["export", "torchrun"]
    assert re.fullmatch(r"export [A-Z_]+=1", lines[0])
    assert not {*program("megatron")} & {";", "&", "&&", "|", "||", "(", ")", "<", ">"}
    assert re.findall(r"[$`].\w*", lines[1]) == ["$MASTER_ADDR", "$MASTER_PORT", "$@"]


@pytest.mark.parametrize("name", ["model", SHELL, PYTHON, "'\"\\$(`\x1b\0"])
def test_bash_itself_finds_nothing_else_in_it(name, tmp_path):
    script = tmp_path / "launch.sh"
    script.write_text(emitted("megatron", name, name))
    subprocess.run(["bash", "-n", script], check=True)
    stub = tmp_path / "torchrun"
    stub.write_text('#!/bin/sh\necho "$#"\n')
    stub.chmod(0o755)
    ran = subprocess.run(
        ["/bin/bash", "-x", script],
        env={"PATH": str(tmp_path), "MASTER_ADDR": "a", "MASTER_PORT": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert [line.split()[1] for line in ran.stderr.splitlines()] == [
        "export",
        "CUDA_DEVICE_MAX_CONNECTIONS=1",
        "torchrun",
    ]
    assert sorted(os.listdir(tmp_path)) == ["launch.sh", "torchrun"]


@pytest.mark.parametrize(
    ("framework", "name", "zero"), [("megatron", SHELL, "1"), ("torchtitan", PYTHON, "3")]
)
def test_a_folder_and_a_hardware_file_with_a_command_in_their_names_emit_it_as_words(
    framework, name, zero, capsys, tmp_path
):
    folder, hardware = tmp_path / name, tmp_path / "my.json"
    folder.mkdir()
    shutil.copy(ROOT / "docs" / "llama-70b" / "config.json", folder)
    hardware.write_text(json.dumps({"based_on": "h100", "name": name}))
    options = ["--model", f"{folder}/config.json", "--hardware", f"{hardware}", *JOB, "--zero", zero]
    assert main(["plan", *options, "--emit", framework]) == 0
    script = capsys.readouterr().out
    assert "touch PWNED" in script.split("\n")[1 if framework == "megatron" else 0]
    assert not any("PWNED" in word for word in words_of(framework, script))
    assert main(["plan", *options, "--timeline", "none"]) == 0
    assert capsys.readouterr().out.startswith(visible(name).split()[0])


@given(NAMES)
@example("\x1b[31mred")
def test_a_name_in_a_terminal_is_shown_and_not_obeyed(name):
    (title, *_), words = gantt([Timeline(name, 0.0, ())]), prose(f"|{name}|", 10_000, bold=name)
    assert title.plain == f"{visible(name)}  0 s"
    assert "".join(words.plain.split()) == "".join(f"|{visible(name)}|".split())


@given(NAMES)
def test_a_name_in_a_picture_is_its_text(name):
    picture = ElementTree.fromstring(draw_timelines([Timeline(name, 1.0, ())]))
    assert any(visible(name) in (element.text or "") for element in picture.iter(f"{SVG}text"))
