"""Why a search has no legal plan, and what would do."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from ndparallel.base.errors import UserError
from ndparallel.base.words import count
from ndparallel.launch_flags.frameworks import FRAMEWORKS
from ndparallel.planner.job import Plan
from ndparallel.planner.legality import why_not
from ndparallel.search.bounds.plan_table import DEGREES
from ndparallel.search.fixed import WORDS, allowed, fixed_values
from ndparallel.search.space import SearchSpace, layouts, stages_of_zero


def nothing_left(space: SearchSpace, rejected: Counter[str]) -> UserError:
    """Say what is wrong however the job is cut, or what would do: values of what was fixed that have a plan,
    or why no layout is legal."""
    gpus, fixed, frameworks = space.gpus, space.fixed, space.frameworks
    for reason in why_not(space.job, Plan(zero=min(zeros_of(space)), micro_batch=space.job.global_batch)):
        return UserError(reason)
    where = count(gpus, "GPU")
    if reason := refusal_of_layouts(space):
        return UserError(
            f"no plan on {where} is one of those that can be launched (--any: of all): {reason}"
            + another_batch(space, refusal_of_layouts)
        )
    if near := nearest_degree(space):
        return UserError(f"no plan on {where} has {near}.{another_batch(space)}")
    theirs = f", of those that {' or '.join(frameworks)} can launch (--any: of all)" if frameworks else ""
    if shards := fixed.get("shards"):
        return UserError(
            f"no plan on {where} has shards={shards}{theirs}: it needs zero=3, a dp*cp that {shards} "
            "divides, and, with ep, shards that hold all experts."
        )
    asked = "".join(f" with {name}={value}" for name, value in fixed.items())
    why = "; ".join(f"{rule} ({count(number, 'layout')})" for rule, number in rejected.most_common(3))
    return UserError(
        f"no plan on {where} is legal{asked}{theirs}: {why or 'these do not go together'}."
        + another_batch(space)
    )


def nearest_degree(space: SearchSpace) -> str:
    """A degree that was fixed, and without which layouts are legal, with the nearest that they have; "" where
    there is none."""
    for name in (name for name in DEGREES if name in space.fixed):
        without = {other: value for other, value in space.fixed.items() if other != name}
        legal = {*layouts(space.job, space.gpus, without, Counter())[:, DEGREES.index(name)].tolist()}
        wanted = fixed_values(space.fixed, name)[0]
        if near := sorted(legal, key=lambda value: abs(value - wanted))[:3]:
            return f"{name}={wanted}; nearest: {', '.join(map(str, sorted(near)))}"
    return ""


def another_batch(space: SearchSpace, refusal: Callable[[SearchSpace], str] = lambda space: "") -> str:
    """The multiple of the GPUs nearest to the batch, in a sentence, where layouts are legal with it and there
    is no `refusal`; else nothing."""
    fixed = space.fixed
    each = space.gpus * min(fixed_values(fixed, "micro_batch") if "micro_batch" in fixed else (1,))
    batch = each * max(1, round(space.job.global_batch / each))
    other = replace(space, job=replace(space.job, global_batch=batch))
    legal = len(layouts(other.job, space.gpus, fixed, Counter()))
    return f" There are some with a global batch of {batch}." * bool(legal and not refusal(other))


def refusal_of_layouts(space: SearchSpace) -> str:
    """Why the frameworks cannot launch a layout that is legal, whatever its ZeRO; "" where none is, or one of
    them can."""
    table, fixed = layouts(space.job, space.gpus, space.fixed, Counter()), space.fixed
    if not len(table) or "shards" in fixed:
        return ""
    words = {name: fixed_values(fixed, name)[0] for name in WORDS if name in fixed}
    plan = Plan(**dict(zip(DEGREES, table[0].tolist())), **words)
    reasons = [refusal_of_all(space, replace(plan, zero=zero)) for zero in zeros_of(space)]
    # what another ZeRO would mend is not the reason
    return min(reasons, key=lambda reason: reason.count("--zero")) if all(reasons) else ""


def refusal_of_all(space: SearchSpace, plan: Plan) -> str:
    """Why none of the frameworks can launch this plan; "" where one can."""
    refusals = [FRAMEWORKS[name].refusal(space.job, plan) for name in space.frameworks]
    return " ".join(refusals) if all(refusals) else ""


def zeros_of(space: SearchSpace) -> Sequence[int]:
    """The stages of ZeRO that are searched; where the job can have none that was asked for, these."""
    return allowed(stages_of_zero(space.job), space.fixed, "zero") or fixed_values(space.fixed, "zero")
