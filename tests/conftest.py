"""No test depends on how fast the machine is, nor on chance; and each has one BLAS thread a GPU, as every run
has.

`pytest -m "not slow"` leaves out the tests that tests/slow.txt names. Of a slow test with three or more
parametrizations those cases are run in which any two values meet; `--all-cases` runs all. `pytest -n 0
--write-slow` measures the tests that it runs, and writes that file; with `-m "not slow"` beside it, those
that are left are measured once more, now that they pay for the fixtures that they share with slow ones.
"""

from collections import defaultdict
from collections.abc import Generator
from os import environ, times
from pathlib import Path

import pytest
from hypothesis import Phase, settings

import gpu  # noqa: F401  before any test imports numpy
from tests.support.pairs import dropped

settings.register_profile("unhurried", deadline=None, derandomize=True)
settings.register_profile(  # of tests/mutations.py: a failure need not be small
    "mutations", deadline=None, derandomize=True, phases=[Phase.explicit, Phase.generate], database=None
)
settings.load_profile("unhurried")

SLOW = Path(__file__).with_name("slow.txt")
SLOW_SECONDS = 0.3  # of CPU, all cases of a test together
spent: dict[str, float] = defaultdict(float)  # CPU seconds of every test

if "PYTEST_XDIST_WORKER" in environ:  # other cores have other tests
    pytest.MonkeyPatch().setattr("ndparallel.engines.forking.usable_cores", lambda: [0])


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all-cases", action="store_true", help="run all cases of slow tests, not all pairs")
    parser.addoption("--write-slow", action="store_true", help="measure the tests, and write tests/slow.txt")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    names = {*SLOW.read_text("utf-8").splitlines()}
    slow = [item for item in items if test_of(item) in names]
    for item in slow:
        item.add_marker(pytest.mark.slow)
    if not config.getoption("--all-cases"):
        left_out = {*dropped(slow)}
        config.hook.pytest_deselected(items=[*left_out])
        items[:] = [item for item in items if item not in left_out]


def test_of(item: pytest.Item) -> str:
    """The test that an item is a case of."""
    return item.nodeid.partition("[")[0]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    before = cpu_seconds()
    result = yield
    spent[test_of(item)] += cpu_seconds() - before
    return result


def cpu_seconds() -> float:
    """Seconds of this process and of those that it started and that have ended."""
    return sum(times()[:4])


def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.config.getoption("--write-slow"):
        kept = {*SLOW.read_text("utf-8").splitlines()} - spent.keys()
        found = {test for test, seconds in spent.items() if seconds > SLOW_SECONDS}
        SLOW.write_text("\n".join(sorted(kept | found)) + "\n", "utf-8")
