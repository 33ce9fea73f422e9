"""The two commands of README set up all they need; .ci/run runs just these, and the workflow runs .ci/run on
the versions of Python that the package promises."""

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
        for tool in ("pytest", "hypothesis", "pytest-timeout", "ruff", "mypy", "ndparallel[inline,mpi,yaml]")
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


def test_the_workflow_runs_ci_on_every_python_that_the_package_promises():
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    promised = [line.rsplit(" ", 1)[1] for line in PROJECT["classifiers"] if ":: Python :: 3." in line]
    assert re.findall(r'"(3\.\d+)"', workflow) == promised
    assert PROJECT["requires-python"] == f">={promised[0]}" and "- run: .ci/run" in workflow


def test_a_commit_is_held_to_the_tools_that_ci_holds_it_to():
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    script = (ROOT / ".ci" / "run").read_text()
    for tool in ("ruff check", "ruff format", "mypy"):
        assert f"entry: {tool}" in hooks and f".venv/bin/{tool}" in script


def test_contributing_names_files_and_commands_that_are_there():
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    named = re.findall(r"[\w./]+\.(?:py|md)|\.ci/run", text)
    found = [[*ROOT.glob(name), *(ROOT / "benchmarks").glob(name)] for name in named]
    assert len(named) > 15 and all(found), [name for name, there in zip(named, found) if not there]
    assert set(re.findall(r"ndparallel (\w+)", text)) <= COMMANDS.keys()
