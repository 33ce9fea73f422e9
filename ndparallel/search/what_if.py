"""What if one thing were different: a faster network, a longer sequence, another GPU?

Idea   A change names a field of the hardware, the job or the model, and what becomes of it:
       bandwidth_across*2, sequence=32768, memory/2, software=nemo. Everything else stays. Changes with
       commas between them are made together.
Limit  Hardware figures are those of the data sheet; what is achieved of them stays the same share.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any

from gpu import Hardware
from ndparallel.base.errors import UserError, find_choice, unknown
from ndparallel.base.quantities import MOST, is_absurd, number, parse_quantity
from ndparallel.base.quoting import brief
from ndparallel.hardware.accelerator import Accelerator, find_hardware, inside_fraction
from ndparallel.hardware.figures import ACROSS_FRACTION, MEMORY_FRACTION, checked_linked
from ndparallel.parallel.context import VARIANTS
from ndparallel.planner.dispatchers import DISPATCHERS
from ndparallel.planner.fitted_software import on_hardware, software_on
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.launches import GRAPHS
from ndparallel.planner.legality import DTYPE_SPELLINGS, DTYPES
from ndparallel.planner.models.shape import SIZES, ModelShape
from ndparallel.planner.software import FP8_PARAM_GATHER

FORM = re.compile(r"\s*([\w-]+)\s*([*/=])\s*(\S.*?)\s*")
BETWEEN = re.compile(r",(?=\s*[A-Za-z][\w-]*\s*[*/=])")
EXAMPLE = "write a field and what becomes of it, as in bandwidth_across*2, sequence/2 or memory=141GiB"
SEVERAL = "Several values take --what-if several times, and changes made together a comma: sequence*2,gpus*2"


@dataclass(frozen=True)
class Variant:
    """What can be different: the job, and the number of GPUs."""

    job: TrainingJob
    gpus: int


@dataclass(frozen=True)
class Field:
    """One number: how to read it, how to write it, and the quantity it is ("" for a share, None for a
    count)."""

    read: Callable[[Variant], float]
    write: Callable[[Variant, Any], Variant]
    quantity: str | None = None


def what_if(cluster: Variant, change: str) -> Variant:
    """The cluster after a change, or after several with commas between them. Raises UserError, with the
    nearest field, for one that cannot be."""
    for one in BETWEEN.split(change):
        cluster = after_one(cluster, one)
    return cluster


def after_one(cluster: Variant, change: str) -> Variant:
    asked = FORM.fullmatch(change)
    if not asked:
        raise UserError(f"--what-if {brief(change)} changes nothing; {EXAMPLE}.")
    name, operator, words = asked[1].replace("-", "_"), asked[2], asked[3]
    if name in WORDS:
        return with_word(cluster, name, operator, words)
    if name not in FIELDS:
        raise unknown("field of the hardware, the job or the model", name, [*FIELDS, *WORDS])
    field = FIELDS[name]
    return field.write(cluster, new_value(name, field, operator, words, field.read(cluster)))


@contextmanager
def naming(change: str) -> Iterator[None]:
    """Name the change in what is wrong with a job or a plan after it."""
    try:
        yield
    except UserError as reason:
        raise UserError(f"after --what-if {change}, {reason}") from None


def changed_plan(job: TrainingJob, plan: Plan, change: str) -> tuple[TrainingJob, Plan]:
    """The job and the plan of the same degrees after a change; more GPUs are more data parallelism. Raises
    UserError where these degrees cannot fill the GPUs."""
    cluster = what_if(Variant(job, int(plan.gpus)), change)
    others = plan.tp * plan.pp * plan.cp
    if cluster.gpus % others:
        raise UserError(
            f"--what-if {change}: {cluster.gpus} GPUs are no multiple of tp*pp*cp = {others}; leave these "
            "out to search."
        )
    return cluster.job, replace(plan, dp=cluster.gpus // others)


def new_value(name: str, field: Field, operator: str, words: str, before: float) -> float | int:
    if operator == "=" and field.quantity:
        value = parse_quantity(words, field.quantity, name)
        if not value and field.quantity != "seconds":
            raise UserError(f"--what-if {name}={words} must be above 0.")
    else:
        other = as_number(name, words)
        value = {"=": other, "*": before * other, "/": before / other}[operator]
    if value >= MOST or is_absurd(value):
        raise UserError(
            f"--what-if {name}{operator}{words} makes {value:g} of {before:g}, which is no size any more."
        )
    if field.quantity is None and value != int(value):
        raise UserError(
            f"--what-if {name}{operator}{words} makes {value:g} of {before:g}; it must be a whole number."
        )
    return int(value) if field.quantity is None else value


def as_number(name: str, words: str) -> float:
    try:
        value = number(words, f"--what-if {name}")
    except UserError as reason:
        raise UserError(f"{reason} {SEVERAL}.") from None
    if not 0 < value < float("inf"):
        raise UserError(f"--what-if {name}: {brief(words)} must be a number above 0; {EXAMPLE}.")
    return value


def with_word(cluster: Variant, name: str, operator: str, word: str) -> Variant:
    if operator != "=":
        raise UserError(f"{name} is a word: write {name}=..., not {name}{operator}{word}.")
    return replace(cluster, job=WORDS[name](cluster.job, word))


def with_software(job: TrainingJob, word: str) -> TrainingJob:
    """The job on other software, which keeps what was switched on the one it had."""
    other, before = (software_on(name, job.hardware, job.shape) for name in (word, job.stack.name))
    switched = {
        each.name: getattr(job.stack, each.name)
        for each in fields(job.stack)
        if getattr(job.stack, each.name) != getattr(before, each.name)
    }
    return replace(job, stack=other if other.executed or before.executed else replace(other, **switched))


def with_dtype(job: TrainingJob, word: str) -> TrainingJob:
    return replace(job, dtype=find_choice("dtype", DTYPE_SPELLINGS.get(word.lower(), word), DTYPES))


# switches of the software: by name, the words that each takes and what they change
SWITCHES: dict[str, dict[str, dict[str, Any]]] = {
    "graphs": {name or "none": {"graphs": name} for name in GRAPHS},
    "dispatcher": {name: {"dispatcher": name} for name in DISPATCHERS},
    "permutation": {"fused": {"fused_permutation": True}, "plain": {"fused_permutation": False}},
    "router": {"fused": {"fused_router": True}, "plain": {"fused_router": False}},
    "router_dtype": {"fp32": {"fp32_router": True}, "bf16": {"fp32_router": False}},
    "dispatch": {"hidden": {"hides_dispatch": True}, "shown": {"hides_dispatch": False}},
    "fp8_attention": {"on": {"fp8_attention": True}, "off": {"fp8_attention": False}},
    "fp8_param_gather": {"on": {"cast_weights": FP8_PARAM_GATHER}, "off": {"cast_weights": ()}},
    "context_parallel": {name: {"context_parallel": name} for name in VARIANTS},
    "etp": {"1": {"expert_tp": False}, "tp": {"expert_tp": True}},
    "experts": {
        "grouped": {"grouped_experts": True, "fused_experts": False},
        "one-by-one": {"grouped_experts": False, "fused_experts": False},
        "fused": {"grouped_experts": True, "fused_experts": True},
    },
}
OF_LESSONS = ("context_parallel", "etp")  # the lessons' own software has these alone


def switched(name: str) -> Callable[[TrainingJob, str], TrainingJob]:
    """A change of one switch. Raises UserError for a word that it does not take, and where the lessons' own
    software does not have it."""

    def change(job: TrainingJob, word: str) -> TrainingJob:
        meant = find_choice(name, word, SWITCHES[name])
        if job.stack.executed and name not in OF_LESSONS:
            raise UserError(f"--what-if {name}={word}: the lessons' own software has no such switch.")
        return replace(job, stack=replace(job.stack, **SWITCHES[name][meant]))

    return change


WORDS: dict[str, Callable[[TrainingJob, str], TrainingJob]] = {
    "software": with_software,
    "hardware": lambda job, word: on_hardware(job, find_hardware(word)),
    "dtype": with_dtype,
    **{name: switched(name) for name in SWITCHES},
}


# ---------------------------------------------------------------------------------------------------- numbers


def of_job(name: str) -> Field:
    return Field(
        lambda at: getattr(at.job, name), lambda at, value: replace(at, job=replace(at.job, **{name: value}))
    )


def of_model(name: str) -> Field:
    def write(at: Variant, value: int) -> Variant:
        shape: ModelShape = at.job.shape
        sizes: dict[str, Any] = {name: value}
        with naming(f"{name}={value}"):
            changed = shape.with_layers(value) if name == "layers" else replace(shape, **sizes)
            return replace(at, job=replace(at.job, shape=changed))

    return Field(lambda at: getattr(at.job.shape, name), write)


def of_hardware(name: str, quantity: str | None, share: float = 1.0) -> Field:
    return Field(
        lambda at: getattr(at.job.hardware, name) / share,
        lambda at, value: on(at, {name: value * share}),
        quantity,
    )


def of_link(
    which: str, name: str, quantity: str, share: Callable[[Hardware], float] = lambda hardware: 1.0
) -> Field:
    def write(at: Variant, value: float) -> Variant:
        hardware = at.job.hardware
        return on(at, {which: replace(getattr(hardware, which), **{name: value * share(hardware)})})

    def read(at: Variant) -> float:
        return getattr(getattr(at.job.hardware, which), name) / share(at.job.hardware)

    return Field(read, write, quantity)


def on(at: Variant, changes: dict[str, Any]) -> Variant:
    hardware: Hardware = replace(at.job.hardware, **changes)
    return replace(at, job=replace(at.job, hardware=hardware))


def of_leaf(name: str, default: float, quantity: str | None, most: float = MOST) -> Field:
    """A figure of the network's leaf switches, which idealized hardware does not have."""

    def write(at: Variant, value: float) -> Variant:
        if not isinstance(at.job.hardware, Accelerator):
            raise UserError(f"--what-if {name}: {at.job.hardware.name} has no leaf switches.")
        if value > most:
            raise UserError(f"--what-if {name} makes {value:g}, which is more than all of the network.")
        return on(at, {name: value})

    return Field(lambda at: getattr(at.job.hardware, name, default), write, quantity)


def with_gpus_per_node(at: Variant, value: int) -> Variant:
    """Nodes of more or fewer GPUs. Raises UserError for more where all of a node are linked to one another
    without a switch: a GPU has so many links."""
    hardware = at.job.hardware
    linked = getattr(hardware, "gpus_linked_directly", 0)
    if linked == hardware.gpus_per_node < value:
        raise UserError(
            f"--what-if gpus_per_node makes {value} of {hardware.gpus_per_node}, but {hardware.name} has no "
            "switch, and its GPUs no links to more of them; say in a file of your own (--hardware FILE) what "
            "gpus_linked_directly and bandwidth_inside would be."
        )
    checked_linked(hardware.name, linked, value)
    return on(at, {"gpus_per_node": value})


def with_peak(at: Variant, value: float) -> Variant:
    """Another peak in 16 bits, and all other dtypes' in proportion."""
    hardware, times = at.job.hardware, value / bf16(at)
    changes: dict[str, Any] = {"flops_per_second": hardware.flops_per_second * times}
    if isinstance(hardware, Accelerator):
        changes["peak_flops_per_second"] = {
            dtype: rate * times for dtype, rate in hardware.peak_flops_per_second.items()
        }
    return on(at, changes)


def bf16(at: Variant) -> float:
    return (
        at.job.hardware.peak("bf16")
        if isinstance(at.job.hardware, Accelerator)
        else at.job.hardware.flops_per_second
    )


BANDWIDTH = ("bandwidth_bytes_per_second", "bytes per second")
FIELDS: dict[str, Field] = {
    "gpus": Field(lambda at: at.gpus, lambda at, value: replace(at, gpus=value)),
    "sequence": of_job("sequence"),
    "global_batch": of_job("global_batch"),
    **{name: of_model(name) for name in SIZES},
    "peak": Field(bf16, with_peak, "FLOP/s"),
    "memory": of_hardware("memory_bytes", "bytes"),
    "memory_bandwidth": of_hardware("memory_bandwidth_bytes_per_second", "bytes per second", MEMORY_FRACTION),
    "kernel_overhead": of_hardware("kernel_overhead_seconds", "seconds"),
    "gpus_per_node": Field(lambda at: at.job.hardware.gpus_per_node, with_gpus_per_node),
    "bandwidth_inside": of_link("inside", *BANDWIDTH, inside_fraction),
    "bandwidth_across": of_link("across", *BANDWIDTH, lambda hardware: ACROSS_FRACTION),
    "leaf_share": of_leaf("leaf_share", 1.0, "", most=1.0),
    "gpus_per_leaf": of_leaf("gpus_per_leaf", 0, None),
    "latency_inside": of_link("inside", "latency_seconds", "seconds"),
    "latency_across": of_link("across", "latency_seconds", "seconds"),
}
