"""What the numbers of a lesson say that a reader of its table must not miss, as sentences.

Glossary: see `ndparallel.results.report`.
"""

from collections.abc import Iterator

from gpu import si
from ndparallel.base.quantities import si_or_dash
from ndparallel.base.words import ended, listed
from ndparallel.results.against_one_gpu import AgainstOneGpu
from ndparallel.results.contention import sharing_words
from ndparallel.results.measure import Measurement

FEW = 2  # so many strategies slower than one GPU have a sentence each


def remarks(report: AgainstOneGpu) -> list[str]:
    """What the numbers say that a reader of the table must not miss, each as one sentence."""
    each = (remark for row in report.strategies for remark in remarks_on(report, row))
    before = *report.notes, *without_numbers(report), *other_work(report), *slower_than_one_gpu(report)
    return [*before, *each, *overloaded(report)]


def without_numbers(report: AgainstOneGpu) -> Iterator[str]:
    """Why there are no numbers; rows with the same reason together."""
    names: dict[str, list[str]] = {}
    for row in report.strategies:
        if row.error:
            names.setdefault(row.error, []).append(row.name)
    for error, alike in names.items():
        yield f"{listed(alike)} {'has' if len(alike) == 1 else 'have'} no numbers: {ended(error)}"
        if report.baseline and report.baseline.name in alike and any(map(report.speedup, report.strategies)):
            need = si_or_dash((report.baseline.peak_memory_bytes or {}).get("total"), "B")
            yield (
                f"Speedups are against a {report.baseline.name} that has all the memory it needs ({need})."
            )


def other_work(report: AgainstOneGpu) -> Iterator[str]:
    """The steps that speedups divide, of work that is not the table's single GPU's."""
    names: dict[str, list[str]] = {}
    for row in report.strategies:
        names.setdefault(si_or_dash(report.seconds_alone(row), "s"), []).append(repr(row.name))
    names.pop(si_or_dash(report.baseline.step_seconds if report.baseline else None, "s"), None)
    if names:
        steps = listed([f"{step} for {', '.join(alike)}" for step, alike in names.items()])
        yield f"Speedups are against one GPU with the same work, whose step is {steps}."


def slower_than_one_gpu(report: AgainstOneGpu) -> Iterator[str]:
    """What is slower than one GPU, and where its time goes: a few one by one, many by what they lose most
    to."""
    # as the table has it
    slower = [
        row for row in report.strategies if row.gpus > 1 and float(f"{report.speedup(row) or 1:.2f}") < 1
    ]
    if len(slower) <= FEW:
        for row in slower:
            yield (
                f"{row.name} is slower on {row.gpus} GPUs than one GPU alone ({report.speedup(row):.2f}x): "
                f"{where_time_goes(row)}."
            )
        return
    losers: dict[str, list[str]] = {}
    for row in slower:
        losers.setdefault(largest_loss(report, row), []).append(row.name)
    names = listed([f"{row.name} ({report.speedup(row):.2f}x)" for row in slower])
    clauses = "; ".join(f"{loss} for {listed(alike)}" for loss, alike in losers.items())
    most = f"most is {clauses}" if len(losers) > 1 else f"all of them most is {', '.join(losers)}"
    yield f"Slower than one GPU alone are {names}. What costs {most}."


def largest_loss(report: AgainstOneGpu, row: Measurement) -> str:
    """What takes most of a step beyond the work that is shared out."""
    losses, shared = parts_of(row), (report.efficiency(row) or 0.0) * (row.step_seconds or 0.0)
    losses["compute that more GPUs do not shorten"] = losses.pop("compute") - shared
    return max(losses, key=lambda name: losses[name])


def remarks_on(report: AgainstOneGpu, row: Measurement) -> Iterator[str]:
    """What is not equal, and what shares a link."""
    difference = report.difference(row)
    if row.not_finite:
        yield f"{row.name} has NaN or infinity, {row.not_finite}: it does not count as equal to anything."
    elif difference is not None and not difference <= report.tolerance:
        yield f"{row.name} does not compute what one GPU computes: {how_far(report, row, difference)}."
    if row.overload and row.contention:
        yield f"{row.name}: {row.overload}; the clock lets each have the whole link{sharing_words(row)}"


def overloaded(report: AgainstOneGpu) -> Iterator[str]:
    """The strategies that ask more of a link than it has, where it is not known what that costs."""
    names = [row.name for row in report.strategies if row.overload and not row.contention]
    if names:
        yield (
            f"In {listed([repr(name) for name in names])} some GPU sends two or more messages over one "
            "link at the same time. The clock lets each have the whole link: --contention says what "
            "sharing it adds to the step."
        )


def how_far(report: AgainstOneGpu, row: Measurement, difference: float) -> str:
    if report.numbers_difference(row) <= report.tolerance:
        unit = report.weight_tolerance.unit if report.weight_tolerance else ""
        found, allowed = report.weights_found(row) or 0.0, report.weights_allowed
        return f"its stepped weights differ by {found:.1e}{unit}, and {allowed:.0e} is allowed"
    return f"it differs by {difference:.1e}, and {report.tolerance:.0e} is allowed"


def parts_of(row: Measurement) -> dict[str, float]:
    """Seconds of a step."""
    seconds = (row.exposed_communication_seconds, row.bubble_seconds, row.compute_seconds)
    return dict(zip(("exposed communication", "bubble", "compute"), (part or 0.0 for part in seconds)))


def where_time_goes(row: Measurement) -> str:
    return (
        ", ".join(f"{si(seconds, 's')} {name}" for name, seconds in parts_of(row).items())
        + f" of {si_or_dash(row.step_seconds, 's')}"
    )
