"""The public API: every name of `ndparallel.__all__` is there, typed, and documented where it is defined."""

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import ndparallel


def typed_names() -> dict[str, str]:
    """The names that type checkers see, each with its module and its name there."""
    tree = ast.parse(Path(ndparallel.__file__).read_text("utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level == 0]
    return {
        alias.asname: f"{node.module}:{alias.name}"
        for node in imports
        for alias in node.names
        if alias.asname
    }


def test_type_checkers_see_just_the_public_names():
    assert typed_names() == ndparallel.PUBLIC


@pytest.mark.parametrize("name", ndparallel.__all__)
def test_a_public_name_is_there_and_says_what_it_is(name):
    thing = getattr(ndparallel, name)
    assert thing is getattr(ndparallel, name)
    assert not callable(thing) or thing.__doc__


def test_a_name_that_is_not_public_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        getattr(ndparallel, "nonsense")  # noqa: B009


def test_importing_the_package_imports_no_room_that_is_not_used():
    code = "import sys, ndparallel; print([m for m in sys.modules if m.startswith('ndparallel.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = ast.literal_eval(done.stdout)
    assert {name.split(".")[1] for name in loaded} <= {"collective", "base"}


def test_the_public_api_plans_runs_and_times():
    job = ndparallel.TrainingJob(
        ndparallel.find_model("llama-3-8b"),
        ndparallel.find_hardware("h100"),
        ndparallel.find_stack("megatron-core"),
        4096,
        64,
    )
    prediction = ndparallel.predict(job, ndparallel.Plan(tp=2, dp=4, zero=1))
    assert prediction.seconds > 0
    schedule = ndparallel.build_schedule("1f1b", 4, 8)
    timing: Any = ndparallel.time_schedule(schedule, ndparallel.Work.of_whole_stages(schedule.chunks))
    assert timing.makespan == 33 and "<svg" in timing._repr_svg_()
