"""The scripts in in_pytorch/ where torch is not installed."""

import runpy
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "in_pytorch"
RUN_BY_TORCHRUN = sorted([*SCRIPTS.glob("[0-9]d_*.py"), *SCRIPTS.glob("[ce]p_*.py"), SCRIPTS / "compare.py"])


@pytest.mark.parametrize("script", RUN_BY_TORCHRUN, ids=lambda script: script.stem)
def test_a_script_without_torch_says_in_a_sentence_what_to_install(script, monkeypatch):
    monkeypatch.syspath_prepend(SCRIPTS)
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "installed", raising=False)
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(f"{script}", run_name="__main__")
    assert ended.value.code == (
        "error: torch is not installed; `pip install -e '.[torch]'` in the checkout brings it."
    )


def test_every_lesson_has_its_script_among_them():
    assert len(RUN_BY_TORCHRUN) == 8
