"""The names that a framework's release has, frozen: every flag and key that is emitted is held against them.

Idea   A flag that a release does not know stops a launch on a thousand GPUs. So the names of one release are
       kept beside the code.
Limit  Names, and how many values a flag takes: not their meaning. Another release may have renamed some.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import resources
from typing import Any

VALUES = "flags by their number of values"


@cache
def frozen(framework: str) -> dict[str, Any]:
    """All that is kept of "megatron" or "torchtitan": the framework's name, version, source, and its
    names."""
    return json.loads((resources.files("ndparallel.launch_flags") / f"{framework}.json").read_text("utf-8"))


def release(framework: str) -> str:
    """Write "Megatron-Core 0.19.2"."""
    return title(frozen(framework))


def note_on_defaults(by: str, taken: Iterable[str]) -> Iterator[str]:
    """The sentence on what is not given, and what a release takes for it."""
    if said := "; ".join(taken):
        yield f"Not given, so as {by} has it: {said}."


def title(kept: Mapping[str, Any]) -> str:
    return f"{kept['framework']} {kept['version']}"


@cache
def megatron_flags() -> Mapping[str, str]:
    """Every flag of Megatron-Core's pretrain_gpt.py, with the values that it takes: "none", "one" or
    "some"."""
    return {flag: values for values, flags in frozen("megatron")[VALUES].items() for flag in flags}
