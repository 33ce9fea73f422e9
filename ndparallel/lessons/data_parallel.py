"""1D: what to notice, its sweep over microbatches, and its options."""

import argparse
from collections.abc import Iterable, Iterator, Sequence
from math import fsum

from gpu import COMPUTE, si
from ndparallel.base.events import of_kinds
from ndparallel.base.words import compare_durations, listed
from ndparallel.lessons.lesson import Lesson, Strategy
from ndparallel.lessons.options import hardware_from
from ndparallel.lessons.runner import Runner, entry_of
from ndparallel.lessons.sweeps import Row, fitting, row_and_results, sweep_row
from ndparallel.results.columns import LEAST_SHARE
from ndparallel.results.measure import Measurement
from ndparallel.results.report import Run, Sweep
from ndparallel.training.job import Job

OVER_EVEN_NODES = ("DDP hierarchical", "DDP ring overlapped")
TWO_BY_TWO = ("DDP ring", "DDP hierarchical", "DDP ring overlapped", "DDP overlapped")
# from DDP to FSDP: who steps what is the one difference to the second, what hides where the other ones
CAUSES = ("DDP overlapped", "ZeRO-1 overlapped", "ZeRO-1", "FSDP prefetch", "FSDP")
PARTS = (1, 2, 4, 8)
ACCUMULATED = ("DDP overlapped", "ZeRO-1", "ZeRO-2", "FSDP prefetch", "FSDP no reshard")
SPENT = ("step_seconds", "compute_seconds", "exposed_communication_seconds")
COLUMNS = ("sent_bytes", "step_seconds", "exposed_communication_seconds", "memory_bytes")


def notice(run: Run) -> Sequence[str]:
    """Say what the numbers show about hiding, about holding less, and about what crosses between nodes."""
    return [*about_overlap(run), *about_sharding(run), *about_nodes(run)]


def about_overlap(run: Run) -> Iterator[str]:
    if all(name in run for name in TWO_BY_TWO) and is_by_node(run):
        waits = [run[name].exposed_communication_seconds for name in TWO_BY_TWO]
        levels, overlap, both = (f"{wait / waits[0]:.0%}" for wait in waits[1:])
        yield (
            f"Of DDP ring's waiting, {levels} is left by DDP hierarchical, {overlap} by DDP ring overlapped, "
            f"and {both} by DDP overlapped."
        )
    elif "DDP ring" in run and "DDP overlapped" in run and shows_waiting(run["DDP ring"]):
        ratio = (
            run["DDP overlapped"].exposed_communication_seconds
            / run["DDP ring"].exposed_communication_seconds
        )
        if is_by_node(run):
            yield f"Hierarchical and behind the backward pass, {ratio:.0%} of DDP ring's waiting is left."
        elif ratio < 1:
            yield f"Sending buckets during the backward pass hides {1 - ratio:.0%} of what the ring exposes."
        else:
            yield (
                f"Buckets expose {ratio:.1f}x what one ring for all exposes: their latencies cost more than "
                "the overlap hides."
            )


def is_by_node(run: Run) -> bool:
    return has_even_nodes(run["DDP ring"].gpus, run.hardware.gpus_per_node)


def has_even_nodes(gpus: int, per_node: int) -> bool:
    """Whether there are several nodes, with equally many GPUs and more than one: else *hierarchical* is the
    ring."""
    return gpus > per_node > 1 and gpus % per_node == 0


def shows_waiting(row: Measurement) -> bool:
    """Whether what a row exposes is long enough for its table to show it."""
    return (row.exposed_communication_seconds or 0.0) > LEAST_SHARE * (row.step_seconds or 0.0)


def about_sharding(run: Run) -> Iterator[str]:
    if "FSDP prefetch" in run and "DDP overlapped" in run and run["DDP overlapped"].bytes_sent_per_gpu:
        sharded, whole = run["FSDP prefetch"], run["DDP overlapped"]
        memory = sharded.peak_memory_bytes["total"] / whole.peak_memory_bytes["total"]
        sent = sharded.bytes_sent_per_gpu / whole.bytes_sent_per_gpu
        time = compare_durations(sharded.step_seconds, whole.step_seconds)
        yield f"FSDP with prefetch sends {sent:.1f}x the bytes of DDP overlapped, and {time}."
        yield f"Its memory peaks at {memory:.0%} of DDP's."


def about_nodes(run: Run) -> Iterator[str]:
    if "FSDP prefetch" in run and "HSDP" in run and run["HSDP"].gpus > run.hardware.gpus_per_node > 1:
        one, copies = run["FSDP prefetch"], run["HSDP"]
        if not one.exposed_communication_seconds:
            return
        memory = copies.peak_memory_bytes["total"] / one.peak_memory_bytes["total"]
        waits = copies.exposed_communication_seconds / one.exposed_communication_seconds
        yield (
            f"On {one.gpus} GPUs HSDP waits {waits:.0%} as long as FSDP prefetch, and needs {memory:.0%} of "
            "its memory."
        )


def microbatches(lesson: Lesson, runner: Runner, job: Job) -> Sweep:
    """Take four batches at once, one for each of 4 GPUs, in more and more parts: which strategies communicate
    after every part?"""
    rows = [
        sweep_row(
            runner,
            entry_of(strategy, job.replace(batch=4 * job.batch, microbatches=parts), 4),
            COLUMNS,
            strategy=strategy.name,
            microbatches=parts,
        )
        for strategy in lesson.strategies
        if strategy.name in ACCUMULATED
        for parts in PARTS
        if job.batch % parts == 0
    ]
    return Sweep(f"Gradient accumulation, 4 GPUs, {4 * job.batch} sequences", rows, cost_of_parts(rows))


def cost_of_parts(rows: list[Row]) -> str:
    """Compare most parts with one, where both fit into memory: the bytes of every strategy, and the step that
    grows most."""
    most = max(row["microbatches"] for row in rows)
    first, last = (
        {row["strategy"]: row for row in fitting(rows) if row["microbatches"] == parts} for parts in (1, most)
    )
    if most == 1:
        return "The share of a GPU is odd, and was not cut: an even --batch shows what the parts cost."
    fit = [name for name in ACCUMULATED if name in first and name in last]
    if not fit:
        return "Where the batch is not cut, none of them fits into the memory of a GPU."
    times = {name: f"{last[name]['sent_bytes'] / first[name]['sent_bytes']:.1f}" for name in fit}
    slowest = max(fit, key=lambda name: last[name]["step_seconds"] / first[name]["step_seconds"])
    longer = compare_durations(last[slowest]["step_seconds"], first[slowest]["step_seconds"])
    exposed, less = (si(of[slowest]["exposed_communication_seconds"], "s") for of in (last, first))
    bytes_sent = listed(times_as_many(times))
    return (
        f"In {most} parts instead of one, the bytes sent are {bytes_sent}: what is sharded is gathered or "
        f"reduced for each part. The step grows most with {slowest}: it {longer}, and exposes {exposed} of "
        f"communication instead of {less}."
    )


def causes(lesson: Lesson, runner: Runner, job: Job) -> Sweep:
    """Put the seconds that FSDP gains over DDP on 4 GPUs where they come from: the optimizer, which steps a
    shard, and what is waited for."""
    rows = [spent(runner, lesson.strategy(name), job) for name in CAUSES]
    return Sweep("From DDP to FSDP on 4 GPUs: what a step is spent on", rows, where_the_gain_is(rows))


def spent(runner: Runner, strategy: Strategy, job: Job) -> Row:
    row, results = row_and_results(runner, entry_of(strategy, job, 4), SPENT, strategy=strategy.name)
    steps = [optimizer_seconds(rank.events) / job.steps for rank in results]
    return row | {"optimizer_seconds": fsum(steps) / len(steps) if steps else None}


def times_as_many(times: dict[str, str]) -> list[str]:
    """Write ["the same with DDP", "4.0x as many with ZeRO-2 and FSDP"]."""
    alike: dict[str, list[str]] = {}
    for name, each in times.items():
        alike.setdefault("the same" if each == "1.0" else f"{each}x as many", []).append(name)
    return [f"{words} with {listed(names)}" for words, names in alike.items()]


def optimizer_seconds(events: Iterable[tuple]) -> float:
    """What one GPU spends on stepping its weights."""
    computed = of_kinds(events, COMPUTE)
    return fsum(event.end - event.start for event in computed if event.what.startswith("optimizer"))


def where_the_gain_is(rows: list[Row]) -> str:
    fit = {row["strategy"]: row for row in fitting(rows)}
    if not all(name in fit for name in ("DDP overlapped", "ZeRO-1 overlapped", "FSDP prefetch")):
        return "Not all of them fit into the memory of a GPU."
    ddp, zero1, fsdp = (fit[name] for name in ("DDP overlapped", "ZeRO-1 overlapped", "FSDP prefetch"))
    gain, optimizer, waiting = (
        si(ddp[column] - fsdp[column], "s")
        for column in ("step_seconds", "optimizer_seconds", "exposed_communication_seconds")
    )
    alone = si(ddp["step_seconds"] - zero1["step_seconds"], "s")
    return (
        f"Of the {gain} that FSDP with prefetch gains over DDP, {optimizer} are the optimizer's, which steps "
        f"a shard, and {waiting} are waiting. The shard alone gains {alone}: ZeRO-1, whose gather is hidden."
    )


SWEEPS = {"microbatches": microbatches, "causes": causes}


def strategies_for(lesson: Lesson, arguments: argparse.Namespace) -> list[Strategy]:
    """Leave out what these nodes make equal to another row, unless --strategy asks for it."""
    gpus, per_node = arguments.gpus, hardware_from(arguments).gpus_per_node
    equal = {
        *(() if has_even_nodes(gpus, per_node) else OVER_EVEN_NODES),
        *(("HSDP",) if gpus <= per_node else ()),
    }
    return [each for each in lesson.strategies if arguments.strategy or each.name not in equal]


def add_options(parser: argparse.ArgumentParser) -> None:
    for name, default, what in (
        ("--bucket-mb", Job.bucket_mb, "smallest bucket of gradients"),
        ("--unit-mb", Job.unit_mb, "smallest unit that FSDP wraps"),
    ):
        said = f"{what} (default {default:g}; 0: each unit for itself, inf: all together)"
        parser.add_argument(name, type=float, default=default, metavar="MB", help=said)
