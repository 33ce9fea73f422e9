"""The software of a published run: the stack that stands for it, and what the recipe of its release sets.

Idea   What a run states counts; then the recipe of its release; then the stack of its framework.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ndparallel.planner.dispatchers import DISPATCHERS
from ndparallel.planner.software import STACKS
from ndparallel.planner.stack import Stack
from ndparallel.validation.hardware import number_in
from ndparallel.validation.recipes import ReleaseSwitches, recipe_of
from ndparallel.validation.words.frameworks import DEEPSPEEDS_PIPELINE, attention_kernel, stack_name, year_in
from ndparallel.validation.words.number_types import gradient_bytes, number_of_bits, number_type_of
from ndparallel.validation.words.parallel import cuts_experts, zero_stage
from ndparallel.validation.words.recomputation import modules_of, states_recomputation, stops_late
from ndparallel.validation.words.software import STATED, drops_tokens, habits_of, read_software


def framework_of(run: Mapping[str, Any]) -> str:
    return str(run["software"].get("framework")).lower()


def stack_of(run: Mapping[str, Any]) -> Stack:
    """Return the software stack that stands for the run's, with its attention kernel and recomputation."""
    software, words = read_software(run["software"]), str(run["software"].get("framework") or "").lower()
    flash, compiled = software.get("flash_attention"), "compile" in words or software.get("compiled")
    name = stack_name(words, flash, zero_stage(run["parallel"].get("zero"), words) == 3)
    stack = STACKS[f"{name}-compiled" if compiled and f"{name}-compiled" in STACKS else name]
    stack = replace(stack, **switches_of(run, software))
    parallel, once = run["parallel"], DISPATCHERS[stack.dispatcher].once
    return replace(
        stack,
        attention=attention_kernel(name, stack.attention, flash, year_in(words)),
        selective=modules_of(recomputed(run)) or stack.selective,
        expert_tp=stack.expert_tp
        or (not once and cuts_experts(parallel.get("etp"), words, *tp_and_ep(parallel))),
        gradient_bytes=gradient_bytes(stack.gradient_bytes, words, number_of_bits(run.get("precision"))),
        pp_in_turn=stack.pp_in_turn or bool(re.search(DEEPSPEEDS_PIPELINE, words)),
        early_stop=stack.early_stop and not stops_late(name, run.get("precision")),
        **habits_of(software, run.get("note"), recipe_for(run).habits),
    )


def switches_of(run: Mapping[str, Any], software: Mapping[str, Any]) -> dict[str, Any]:
    """Return the stack's switches: as stated, else as in the recipe of the run's release."""
    stated = {ours: software[key] for key, ours in STATED.items() if software.get(key) is not None}
    return {**recipe_for(run).switches, **stated}


def recipe_for(run: Mapping[str, Any]) -> ReleaseSwitches:
    framework, model = str(run["software"].get("framework") or ""), str(run["model"].get("name") or "")
    dtype, gpu = number_type_of(run.get("precision"), framework.lower()), str(run["hardware"].get("gpu"))
    return recipe_of(framework, str(run.get("source") or ""), model, gpu, dtype)


def recomputed(run: Mapping[str, Any]) -> Any:
    """Return what is stated of recomputation, or what the recipe of the run's release computes again."""
    return run["recompute"] if states_recomputation(run) else recipe_for(run).recompute or None


def capacity_of(run: Mapping[str, Any]) -> float | None:
    """Return the capacity factor of a mixture that drops tokens, by the run, its note or its recipe."""
    stated = run["software"].get("capacity_factor")
    return drops_tokens(recipe_for(run).capacity_factor if stated is None else stated, run.get("note"))


def tp_and_ep(parallel: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple(int(number_in(parallel.get(axis))) or 1 for axis in ("tp", "ep"))
