"""A plan's name: short, complete, and read back as the same plan.

Idea   Degrees above 1 joined by x, then what else the plan chooses:
       TP8xPP4xDP16,zero1,sp,interleaved5,mbs1. The order is free, and so is the case of letters.
Limit  Sizes of the job are not in it: a name is a plan of the job that is given beside it.

Glossary
    zero1          level of ZeRO; zero3,shards8 is HSDP over 8 ranks
    sp             sequence parallelism
    interleaved5   the schedule, with its chunks where it takes any number of them
    stages9+9+5    layers of each stage, where they are not split evenly
    mbs2           sequences of a microbatch
    full4          full recomputation of 4 layers of each stage; full, or selective
    selective[layernorm+moe_act]   selective recomputation of these modules; selective, of the software's own
"""

import re
import shlex
from collections.abc import Sequence
from typing import Any

from ndparallel.base.errors import UserError, check_known, unknown
from ndparallel.base.quoting import brief
from ndparallel.base.words import count, listed
from ndparallel.model.costs import RECOMPUTE
from ndparallel.pipeline.catalog import RECIPES
from ndparallel.planner.job import Plan
from ndparallel.planner.stack import MODULES, ordered_modules

AXES = ("tp", "cp", "pp", "dp", "ep")
NUMBERED = {"zero": "zero", "shards": "shards", "mbs": "micro_batch"}
SYNTAX = "write it as in TP8xPP4xDP16,zero1,sp,interleaved5,mbs1"


def name_of(plan: Plan) -> str:
    """The plan's name."""
    return ",".join([degrees_of(plan), *choices_of(plan)])


def plan_option(plan: Plan) -> str:
    """The option that stands for the plan, as one writes it in a shell."""
    return f"--plan {shlex.quote(name_of(plan))}"


def degrees_of(plan: Plan) -> str:
    """Name the degrees alone: "TP8xPP4xDP16"; "DP1" for one GPU."""
    above_one = [f"{axis.upper()}{value}" for axis in AXES if (value := getattr(plan, axis)) > 1]
    return "x".join(above_one) or "DP1"


SHARDED = (
    "shards nothing",
    "shards the optimizer's states",
    "shards gradients and the optimizer's states",
    "shards weights, gradients and the optimizer's states",
)
AGAIN = {"none": "", "selective": "recomputes parts of each layer", "full": "recomputes whole layers"}


def choices_of(plan: Plan) -> list[str]:
    """What else it chooses, without what it does not use."""
    return [word for word, _ in meanings(plan)]


def explained(plan: Plan) -> str:
    """What these words mean, in a sentence without its end."""
    return "; ".join(f"{word} {meaning}" for word, meaning in meanings(plan))


def meanings(plan: Plan) -> list[tuple[str, str]]:
    """The words behind the degrees, and what each does."""
    cut = plan.pp > 1 or (plan.schedule, plan.chunks) != (Plan.schedule, Plan.chunks)
    chunks = f"{plan.chunks}" if plan.recipe.chunks is None else ""
    dealt = f", with {plan.chunks} chunks of layers on each pipeline rank" * (plan.chunks > 1)
    some = f", {plan.recompute_layers} of each stage" * bool(plan.recompute_layers)
    named = f"recomputes {listed(plan.recompute_modules)} of each layer"
    again = named if plan.recompute_modules else AGAIN[plan.recompute]
    stages = "+".join(map(str, plan.stage_layers))
    words = [
        (f"zero{plan.zero}", SHARDED[plan.zero]),
        (f"shards{plan.shards}" if plan.shards else "", f"does so over {plan.shards} ranks"),
        ("sp" if plan.sequence_parallel else "", "is sequence parallelism"),
        (f"{plan.schedule}{chunks}" if cut else "", f"is the pipeline's schedule{dealt}"),
        (f"stages{stages}" if stages else "", "says how many layers each stage has"),
        (f"mbs{plan.micro_batch}", f"has {count(plan.micro_batch, 'sequence')} in a microbatch"),
        (again_of(plan), f"{again}{some}"),
    ]
    return [(word, meaning) for word, meaning in words if word]


def again_of(plan: Plan) -> str:
    """The word of what is computed again; "" for nothing."""
    layers = f"{plan.recompute_layers}" if plan.recompute_layers else ""
    modules = f"[{'+'.join(plan.recompute_modules)}]" if plan.recompute_modules else ""
    return f"{plan.recompute}{layers}{modules}" if plan.recompute != "none" else ""


def parsed_name(name: str) -> dict[str, Any]:
    """The fields of a plan that a name gives: of a name that is whole, all but its defaults. Raises
    UserError, with the part that is wrong, for what is no name."""
    found: dict[str, Any] = {}
    degrees, *words = (part.strip().lower() for part in name.split(","))
    for fields in [*map(degree, degrees.split("x")), *map(word, words)]:
        if twice := found.keys() & fields.keys():
            raise UserError(f"the plan {brief(name)} gives {', '.join(sorted(twice))} twice.")
        found |= fields
    return found


def options_named(name: str) -> dict[str, Any]:
    """The options that a plan's name stands for. Degrees alone leave the rest to the options' defaults."""
    given = parsed_name(name)
    return given if given.keys() <= set(AXES) else {"sequence_parallel": False} | given


def degree(part: str) -> dict[str, Any]:
    asked = re.fullmatch(rf"({'|'.join(AXES)})0*(\d{{1,9}})", part.strip())
    if not asked or not int(asked[2]):
        raise UserError(f"{brief(part)} is no degree of a plan; {SYNTAX}.")
    return {asked[1]: int(asked[2])}


def word(part: str) -> dict[str, Any]:
    if part == "sp":
        return {"sequence_parallel": True}
    if asked := re.fullmatch(r"stages(\d{1,6}(\+\d{1,6})*)", part):
        return {"stage_layers": tuple(map(int, asked[1].split("+")))}
    if asked := re.fullmatch(rf"({'|'.join(NUMBERED)})0*(\d{{1,9}})", part):
        return {NUMBERED[asked[1]]: int(asked[2])}
    if asked := re.fullmatch(rf"({'|'.join(RECOMPUTE[1:])})(\d{{0,4}})", part):
        return {"recompute": asked[1]} | ({"recompute_layers": int(asked[2])} if asked[2] else {})
    if asked := re.fullmatch(r"selective\[(.*)\]", part):
        return {"recompute": "selective", "recompute_modules": known_modules(asked[1].split("+"))}
    return schedule(part)


def known_modules(names: Sequence[str]) -> tuple[str, ...]:
    """These modules of selective recomputation, each once and in one order. Raises UserError for what
    is none."""
    for name in names:
        check_known("module of selective recomputation", name, MODULES)
    return ordered_modules(names)


def schedule(part: str) -> dict[str, Any]:
    """A schedule, with its chunks behind it where it takes any number of them."""
    if part in RECIPES:
        return {"schedule": part, "chunks": RECIPES[part].default_chunks}
    for split in range(len(part) - 1, 0, -1):
        name, chunks = part[:split], part[split:]
        if name in RECIPES and RECIPES[name].chunks is None and re.fullmatch(r"\d{1,4}", chunks):
            return {"schedule": name, "chunks": int(chunks)}
    there_are = unknown("part of a plan's name", part, [*RECIPES, *RECOMPUTE[1:], "sp", *NUMBERED])
    raise UserError(f"{there_are} Degrees stand first, joined by x: {SYNTAX}.")
