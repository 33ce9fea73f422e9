"""Emitted scripts, run by bash with a torchrun that only prints, and their words read by the frameworks' own
parsers, where these are installed (`pip install ndparallel[frameworks]`)."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ndparallel.launch_flags.frozen import megatron_flags
from ndparallel.launch_flags.megatron import emit_megatron
from tests.support.launch_plans import jobs_and_plans

PARSER = Path(__file__).parents[1] / "support" / "megatron_parser.py"
TORCHRUN = f"""#!{sys.executable}
import json, os, sys
kept = {{name: os.environ[name] for name in ("CUDA_DEVICE_MAX_CONNECTIONS",) if name in os.environ}}
print(json.dumps({{"words": sys.argv[1:], "environment": kept}}))
"""


def launched(script: str, folder: Path) -> dict[str, Any]:
    """The program's words and the environment, as bash gives them to torchrun."""
    (folder / "torchrun").write_text(TORCHRUN)
    (folder / "torchrun").chmod(0o755)
    (folder / "launch.sh").write_text(script)
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    command = ["bash", "-euo", "pipefail", "launch.sh"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    place = found["words"].index("pretrain_gpt.py")
    return found | {"words": found["words"][place + 1 :]}


@pytest.fixture(scope="module")
def scripts(tmp_path_factory) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("scripts")
    return {
        name: launched(emit_megatron(job, plan), folder) | {"gpus": int(plan.gpus)}
        for name, job, plan in jobs_and_plans(60)
    }


def test_sixty_scripts_run_in_bash_and_name_flags_of_the_release_alone(scripts):
    assert len(scripts) == 60
    for found in scripts.values():
        assert {word for word in found["words"] if word.startswith("--")} <= megatron_flags().keys()


@pytest.mark.skipif(importlib.util.find_spec("megatron") is None, reason="megatron-core is not installed")
def test_sixty_scripts_pass_megatrons_own_parser_and_its_transformer_config(scripts, tmp_path):
    asked, answers = tmp_path / "asked", tmp_path / "answers"
    asked.write_text("\n".join(map(json.dumps, scripts.values())))
    done = subprocess.run([sys.executable, PARSER, asked, answers], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    said = dict(zip(scripts, map(json.loads, answers.read_text().splitlines()), strict=True))
    assert {name: wrong for name, wrong in said.items() if wrong} == {}
