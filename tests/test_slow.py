"""tests/slow.txt names tests that are there: one with a new name would pass for a quick one."""

from pathlib import Path

HERE = Path(__file__).parent


def test_every_line_of_slow_txt_names_a_test():
    named = [line.split("::") for line in (HERE / "slow.txt").read_text("utf-8").splitlines()]
    assert len(named) > 200
    gone = [name for file, name in named if f"def {name}(" not in (HERE.parent / file).read_text("utf-8")]
    assert gone == [], "give these lines of slow.txt their tests' new names, or delete them"
