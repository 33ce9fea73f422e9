"""Which functions of some files each test calls, and how long it takes: a plugin of pytest, for mutations.py.

    CALLS=/tmp/calls.json FILES=gpu.py python -m pytest -n 0 -p tests.functions_called tests/test_gpu.py

Idea   What a module of tests calls when it is imported, or in a fixture of several tests, counts for each of
       them. Caches are emptied before every test: it calls all that it needs.
Limit  What other processes run, and properties that are cached in objects of the tests, are the first test's,
       or nobody's.
"""

import functools
import gc
import json
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

FILES = {f"{Path(file).resolve()}": file for file in os.environ["FILES"].split(",")}
# by the id of a test, of a module of tests, or of the session (""): file and first line of each function
calls: dict[str, set[tuple[str, int]]] = defaultdict(set)
seconds: dict[str, float] = {}
caches: dict[int, list] = {}  # by the number of modules that were there


@contextmanager
def calls_noted(node: str) -> Iterator[None]:
    """Note what is called under the name of this node."""
    called, before = calls[node], sys.gettrace()

    def note(frame: FrameType, event: str, argument: object) -> None:
        file = FILES.get(frame.f_code.co_filename)
        if file:
            called.add((file, frame.f_code.co_firstlineno))

    threading.settrace(note)
    sys.settrace(note)
    try:
        yield
    finally:
        threading.settrace(before)
        sys.settrace(before)


def empty_caches() -> None:
    if len(sys.modules) not in caches:
        wrapper = type(functools.cache(len))
        caches[len(sys.modules)] = [each for each in gc.get_objects() if isinstance(each, wrapper)]
    for cache in caches[len(sys.modules)]:
        if cache.__module__.startswith("ndparallel"):
            cache.cache_clear()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    with calls_noted(collector.nodeid):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: Any, request: Any) -> Generator[None, Any, Any]:
    with calls_noted(request.node.nodeid):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    empty_caches()
    start = time.perf_counter()
    with calls_noted(item.nodeid):
        result = yield
    seconds[item.nodeid] = time.perf_counter() - start
    return result


def pytest_sessionfinish(session: pytest.Session) -> None:
    rows = [
        [test, lasted, sorted(calls[test] | calls[test.partition("::")[0]] | calls[""])]
        for test, lasted in seconds.items()
    ]
    Path(os.environ["CALLS"]).write_text(json.dumps(rows), "utf-8")
