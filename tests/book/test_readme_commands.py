"""README's two commands set up all they need, and .ci/run runs just these."""

import os
import re
import subprocess
import tomllib

from ndparallel.commands.command_line import COMMANDS
from ndparallel.lessons.registry import ROOT

README = (ROOT / "README.md").read_text("utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def commands() -> list[list[str]]:
    """Each line of README's first sh block, cut at "&&"."""
    block = re.search(r"```sh\n(.*?)```", README, re.DOTALL)
    assert block
    return [line.split(" && ") for line in block[1].splitlines()]


def test_each_of_the_two_sets_up_by_pip_alone_and_then_does_one_thing():
    (make, install, use), (make_again, install_tests, test) = commands()
    assert make == make_again == "python3 -m venv .venv"
    assert install == ".venv/bin/pip install -q -e ."
    assert install_tests == '.venv/bin/pip install -q -e ".[test]"'
    assert (use, test) == (".venv/bin/ndparallel compare", ".venv/bin/python -m pytest")


def test_what_they_name_is_there():
    assert (
        PROJECT["scripts"]["ndparallel"] == "ndparallel.commands.command_line:main" and "compare" in COMMANDS
    )
    tools = " ".join(PROJECT["optional-dependencies"]["test"])
    assert all(
        tool in tools
        for tool in ("pytest", "hypothesis", "pytest-timeout", "ruff", "mypy", "ndparallel[inline,mpi]")
    )


def test_ci_reads_the_same_two_out_of_readme():
    script = ROOT / ".ci" / "run"
    reads = next(line for line in script.read_text().splitlines() if line.startswith("mapfile"))
    found = subprocess.run(
        ["bash", "-c", f'{reads}; printf "%s\\n" "${{commands[@]}}"'],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert [line.split(" && ") for line in found.stdout.splitlines()] == commands()
    assert os.access(script, os.X_OK)
