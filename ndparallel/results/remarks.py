"""What the numbers of a lesson say that a reader of its table must not miss, as sentences.

Glossary: see `ndparallel.results.report`.
"""

from collections.abc import Iterator, Sequence

from gpu import si
from ndparallel.base.quantities import si_or_dash
from ndparallel.base.words import ended, listed
from ndparallel.results.against_one_gpu import AgainstOneGpu
from ndparallel.results.contention import sharing_words
from ndparallel.results.measure import Measurement

FEW = 2  # so many strategies slower than one GPU have a sentence each


def remarks(strategies: Sequence[AgainstOneGpu], baseline: Measurement | None) -> list[str]:
    """What the numbers say that a reader of the table must not miss, each as one sentence; `baseline` is the
    table's single GPU."""
    rows = [one.row for one in strategies]
    return [
        *without_numbers(rows, baseline if any(one.speedup for one in strategies) else None),
        *other_work(strategies, baseline),
        *slower_than_one_gpu(strategies),
        *(remark for one in strategies for remark in remarks_on(one)),
        *overloaded(rows),
    ]


def without_numbers(rows: Sequence[Measurement], divided: Measurement | None) -> Iterator[str]:
    """Why there are no numbers; rows with the same reason together. `divided` is the single GPU whose step
    speedups divide."""
    names: dict[str, list[str]] = {}
    for row in rows:
        if row.error:
            names.setdefault(row.error, []).append(row.name)
    for error, alike in names.items():
        yield f"{listed(alike)} {'has' if len(alike) == 1 else 'have'} no numbers: {ended(error)}"
        if divided and divided.name in alike:
            need = si_or_dash((divided.peak_memory_bytes or {}).get("total"), "B")
            yield f"Speedups are against a {divided.name} that has all the memory it needs ({need})."


def other_work(strategies: Sequence[AgainstOneGpu], baseline: Measurement | None) -> Iterator[str]:
    """The steps that speedups divide, of work that is not the table's single GPU's."""
    names: dict[str, list[str]] = {}
    for one in strategies:
        names.setdefault(si_or_dash(one.seconds_alone, "s"), []).append(repr(one.row.name))
    names.pop(si_or_dash(baseline.step_seconds if baseline else None, "s"), None)
    if names:
        steps = listed([f"{step} for {', '.join(alike)}" for step, alike in names.items()])
        yield f"Speedups are against one GPU with the same work, whose step is {steps}."


def slower_than_one_gpu(strategies: Sequence[AgainstOneGpu]) -> Iterator[str]:
    """What is slower than one GPU, and where its time goes: a few one by one, many by what they lose most
    to."""
    # as the table has it
    slower = [one for one in strategies if one.row.gpus > 1 and float(f"{one.speedup or 1:.2f}") < 1]
    if len(slower) <= FEW:
        for one in slower:
            yield (
                f"{one.row.name} is slower on {one.row.gpus} GPUs than one GPU alone ({one.speedup:.2f}x): "
                f"{where_time_goes(one.row)}."
            )
        return
    losers: dict[str, list[str]] = {}
    for one in slower:
        losers.setdefault(largest_loss(one), []).append(one.row.name)
    names = listed([f"{one.row.name} ({one.speedup:.2f}x)" for one in slower])
    clauses = "; ".join(f"{loss} for {listed(alike)}" for loss, alike in losers.items())
    most = f"most is {clauses}" if len(losers) > 1 else f"all of them most is {', '.join(losers)}"
    yield f"Slower than one GPU alone are {names}. What costs {most}."


def largest_loss(one: AgainstOneGpu) -> str:
    """What takes most of a step beyond the work that is shared out."""
    assert one.seconds_alone
    losses, shared_out = parts_of(one.row), one.seconds_alone / one.row.gpus
    losses["compute that more GPUs do not shorten"] = losses.pop("compute") - shared_out
    return max(losses, key=lambda name: losses[name])


def remarks_on(one: AgainstOneGpu) -> Iterator[str]:
    """What is not equal, and what shares a link."""
    row = one.row
    if row.not_finite:
        yield f"{row.name} has NaN or infinity, {row.not_finite}: it does not count as equal to anything."
    elif not one.is_equal:
        why = f" {row.forgotten_wait}" * bool(row.forgotten_wait)
        yield f"{row.name} does not compute what one GPU computes: {how_far(one)}.{why}"
    if row.overload and row.contention:
        yield f"{row.name}: {row.overload}; the clock lets each have the whole link{sharing_words(row)}"


def overloaded(rows: Sequence[Measurement]) -> Iterator[str]:
    """The strategies that ask more of a link than it has, where it is not known what that costs."""
    names = [row.name for row in rows if row.overload and not row.contention]
    if names:
        yield (
            f"In {listed([repr(name) for name in names])} some GPU sends two or more messages over one "
            "link at the same time. The clock lets each have the whole link: --contention says what "
            "sharing it adds to the step."
        )


def how_far(one: AgainstOneGpu) -> str:
    tolerance = one.tolerance
    if tolerance.weights and one.numbers_difference <= tolerance.relative:
        found, allowed = one.weights_found or 0.0, tolerance.weights_allowed
        unit = tolerance.weights.unit
        return f"its stepped weights differ by {found:.1e}{unit}, and {allowed:.0e} is allowed"
    return f"it differs by {one.difference:.1e}, and {tolerance.relative:.0e} is allowed"


def parts_of(row: Measurement) -> dict[str, float]:
    """Seconds of a step."""
    seconds = (row.exposed_communication_seconds, row.bubble_seconds, row.compute_seconds)
    return dict(zip(("exposed communication", "bubble", "compute"), (part or 0.0 for part in seconds)))


def where_time_goes(row: Measurement) -> str:
    return (
        ", ".join(f"{si(seconds, 's')} {name}" for name, seconds in parts_of(row).items())
        + f" of {si_or_dash(row.step_seconds, 's')}"
    )
