"""The files at the root that go into the wheel: all but this one. The rest is said in pyproject.toml, which
refuses modules whose names begin with a digit."""

from pathlib import Path

from setuptools import setup

setup(py_modules=sorted(path.stem for path in Path(__file__).parent.glob("*.py") if path.stem != "setup"))
