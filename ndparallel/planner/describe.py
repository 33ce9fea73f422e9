"""A plan, and what bounds it, in words."""

from ndparallel.base.words import listed
from ndparallel.planner.groups import Groups
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.prediction import Prediction
from ndparallel.planner.software import find_stack


def layout_words(plan: Plan) -> list[str]:
    """The plan in words, without what it does not use."""
    degrees = " x ".join(
        f"{name.upper()}{value}" for name in ("tp", "cp", "pp", "dp") if (value := getattr(plan, name)) > 1
    )
    words = [
        degrees or "one GPU",
        f"EP{plan.ep}" * (plan.ep > 1),
        ("", "ZeRO-1", "ZeRO-2", "FSDP")[plan.zero],
        "SP" * plan.sequence_parallel,
    ]
    words += [plan.schedule + f" with {plan.chunks} chunks" * (plan.chunks > 1)] if plan.pp > 1 else []
    some = f" of {plan.recompute_layers} layers a stage" * (plan.recompute_layers > 0)
    words += [f"{plan.recompute} recomputation{some}"] if plan.recompute != "none" else []
    return [word for word in words if word]


def unusual_words(job: TrainingJob, plan: Plan) -> list[str]:
    """What else is not as usual, in words: modules that run again, uneven routing, keys and values that are
    gathered."""
    modules = (
        job.stack.selective
        if plan.recompute == "selective" and job.stack.selective != find_stack(job.stack.name).selective
        else ()
    )
    imbalance = job.routing_imbalance
    words = {
        f"recomputing {' and '.join(modules)}": modules,
        f"the busiest rank's experts with {imbalance:g} times the mean's rows": imbalance > 1,
        f"capacity factor {job.capacity_factor or 0:g}": job.capacity_factor,
        "keys and values gathered": plan.cp > 1 and job.stack.cp_gathers,
    }
    return [word for word, holds in words.items() if holds]


def bound(found: Prediction) -> tuple[str, float]:
    """What takes most beside compute, and which share of the step."""
    others = {kind: seconds for kind, seconds in found.step.breakdown.items() if kind != "compute"}
    kind = max(others, key=lambda kind: others[kind])
    return kind, float(others[kind] / found.seconds)


def shared_ports(found: Prediction) -> list[str]:
    """Say where what layers exchange leaves the node by the port that gradients and pipeline stages use as
    well: the prediction lets each have all of it."""
    groups = Groups(found.plan, found.job)
    across = [name for name in ("tp", "cp", "ep", "dp", "pp") if groups.links(name).nodes > 1]
    if not {"tp", "cp", "ep"}.intersection(across) or not {"dp", "pp"}.intersection(across):
        return []
    names = listed([name.upper() for name in across])
    return [
        f"{names} leave the node by the same port of a GPU: what sharing it adds to the step is not counted."
    ]


def plan_words(plan: Plan) -> str:
    """The plan in one line."""
    size = [f"microbatches of {plan.micro_batch}"] if plan.micro_batch > 1 else []
    return ", ".join([*layout_words(plan), *size])
