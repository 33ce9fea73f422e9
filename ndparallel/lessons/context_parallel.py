"""CP: what to notice, and its sweeps: over the length of the sequence against TP and of the ring alone, and
over the GPUs of all three ways."""

from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any

from ndparallel.base.errors import UserError
from ndparallel.lessons.lesson import Lesson, Strategy
from ndparallel.lessons.registry import full_name, load
from ndparallel.lessons.runner import Runner, entry_of
from ndparallel.lessons.sweeps import NOTHING_FITS, Row, fitting, sweep_row
from ndparallel.parallel.divisibility import divisors
from ndparallel.parallel.mesh import Mesh
from ndparallel.results.measure import breakdown
from ndparallel.results.report import Run, Sweep
from ndparallel.training.job import Job

RINGS = ("attention, ring in order", "attention, ring zigzag", "attention, overlapped")
WAYS = ("CP gathered", "CP Ulysses", "CP")
WAY_COLUMNS = ("step_seconds", "exposed share", "sent_bytes", "memory_bytes")
AGAINST_TP = ("step_seconds", "exposed share", "memory_bytes")


def mesh(gpus: int) -> Mesh:
    return Mesh(cp=gpus)


def mesh_of_several(gpus: int) -> Mesh:
    """Return the mesh of a ring. Raises UserError for one GPU."""
    if gpus < 2:
        raise UserError("one GPU has all tokens, and nobody to pass a block to: choose 2 GPUs or more.")
    return mesh(gpus)


def notice(run: Run) -> Sequence[str]:
    """Say what balances the ring, what hides it, and what gathering costs instead."""
    return [*about_balance(run), *about_hiding(run), *about_gathering(run), *about_nodes(run)]


def about_balance(run: Run) -> Iterator[str]:
    if all(run.has_events(name) for name in RINGS[:2]) and run[RINGS[0]].gpus > 1:
        ordered, zigzag = RINGS[:2]
        computes = [breakdown(rank.events, rank.end_seconds).compute for rank in run.results[ordered]]
        faster = run[ordered].step_seconds / run[zigzag].step_seconds
        longer = f"the last GPU computes {computes[-1] / computes[0]:.1f}x as long as the first"
        yield f"In order, {longer}; in zigzag all compute alike, and the step is {faster:.2f}x as fast."


def about_hiding(run: Run) -> Iterator[str]:
    waits = [run[name].exposed_communication_seconds for name in RINGS[1:] if name in run]
    if len(waits) == 2 and waits[0]:
        hidden = 1 - waits[1] / waits[0]
        yield f"Sending the next block beside this one hides {hidden:.0%} of what the ring exposes."


def about_gathering(run: Run) -> Iterator[str]:
    if "attention, gathered" in run and RINGS[2] in run and run[RINGS[2]].bytes_sent_per_gpu:
        at_once, ring = run["attention, gathered"], run[RINGS[2]]
        sent = at_once.bytes_sent_per_gpu / ring.bytes_sent_per_gpu
        memory = at_once.peak_memory_bytes["total"] / ring.peak_memory_bytes["total"]
        yield (
            f"Gathering all blocks sends {sent:.0%} of the ring's bytes, and keeps them for the backward "
            f"pass: {memory:.1f}x the memory."
        )


def about_nodes(run: Run) -> Iterator[str]:
    if "CP" in run and "CP across nodes" in run and 1 < run["CP"].gpus <= run.hardware.gpus_per_node:
        inside, across = (
            row.exposed_communication_seconds / row.step_seconds
            for row in (run["CP"], run["CP across nodes"])
        )
        yield f"The whole model waits for {inside:.0%} of its step inside a node, {across:.0%} across nodes."


# ----------------------------------------------------------------------------------------------------- sweeps


def against_tp(lesson: Lesson, runner: Runner, job: Job) -> Sweep:
    """Share one sequence of more and more tokens among 4 GPUs, by CP and by TP, inside a node and across."""
    strategies = {"CP": lesson.strategy("CP"), "TP": load(full_name("2d")).strategy("TP overlapped")}
    with runner.with_hardware(gpus_per_node=1) as across:
        rows = [
            side_by_side(linked, strategies, of_length(job, sequence), links=links, sequence=sequence)
            for links, linked in {"inside": runner, "across": across}.items()
            for sequence in (16, 32, 64, 128, 256, 512)
        ]
    return Sweep("CP and TP on 4 GPUs, one sequence", rows, where_cp_wins(rows))


def of_length(job: Job, tokens: int) -> Job:
    """Return the job with one sequence of so many tokens."""
    return job.replace(batch=1, microbatches=1, model=job.model.replace(sequence=tokens))


def side_by_side(runner: Runner, strategies: dict[str, Strategy], job: Job, **point: Any) -> Row:
    """Run several strategies for one row, in which their columns have their names."""
    row: Row = dict(point)
    for name, strategy in strategies.items():
        figures = sweep_row(runner, entry_of(strategy, job, 4), AGAINST_TP)
        row |= {f"{name}_{column}": value for column, value in figures.items()}
    return row


def where_cp_wins(rows: list[Row]) -> str:
    """Say from which length on CP is faster, on each kind of link."""
    wins = {
        links: [row["sequence"] for row in rows if row["links"] == links and is_cp_faster(row)]
        for links in ("inside", "across")
    }
    if not any(row["CP_step_seconds"] and row["TP_step_seconds"] for row in rows):
        return NOTHING_FITS
    inside, across = (
        f"from {min(lengths)} tokens on" if lengths else "at none of these lengths"
        for lengths in wins.values()
    )
    apart = f"inside a node {inside}, across nodes {across}"
    return (
        f"CP is faster {f'{inside}, inside a node and across nodes' if inside == across else apart}: CP "
        "averages the gradients of all weights, which do not grow with the sequence; what TP sums does."
    )


def is_cp_faster(row: Row) -> bool:
    cp, tp = row["CP_step_seconds"], row["TP_step_seconds"]
    return bool(cp and tp and cp < tp)


def hiding(lesson: Lesson, runner: Runner, job: Job) -> Sweep:
    """Give attention alone more and more tokens, on 4 GPUs in 4 nodes: from where on do blocks hide?"""
    names = (RINGS[1], "attention, gathered", RINGS[2])
    columns = ("step_seconds", "exposed share")
    with runner.with_hardware(gpus_per_node=1) as across:
        rows = [
            sweep_row(
                across,
                entry_of(lesson.strategy(name), of_length(job, tokens), 4),
                columns,
                strategy=name,
                sequence=tokens,
            )
            for name in names
            for tokens in (64, 128, 256, 512, 1024)
        ]
    hidden = [
        row["sequence"] for row in rows if row["strategy"] == RINGS[2] and (row["exposed share"] or 1) < 0.1
    ]
    sentence = (
        f"From {hidden[0]} tokens on the overlapped ring waits for less than a tenth of its step: blocks "
        "grow with the sequence, the work on them with its square."
        if hidden
        else "At none of these lengths do the blocks hide."
    )
    return Sweep("Attention alone on 4 GPUs, each in a node of its own", rows, sentence)


def ways(lesson: Lesson, runner: Runner, job: Job) -> Sweep:
    """Share the same sequences among more and more GPUs, in each of the three ways."""
    rows = [
        sweep_row(runner, entry_of(lesson.strategy(name), job, gpus), WAY_COLUMNS, way=name, GPUs=gpus)
        for name in WAYS
        for gpus in divisors(job.model.heads)[1:]
    ]
    return Sweep(f"Three ways of context parallelism, with {job.model.heads} heads", rows, least_sent(rows))


def least_sent(rows: list[Row]) -> str:
    """Say which way sends least on the most GPUs that all run on, and which is the fastest there."""
    most = [row for row in fitting(rows) if row["GPUs"] == rows[-1]["GPUs"]]
    if not most:
        return NOTHING_FITS
    least, fastest = min(most, key=itemgetter("sent_bytes")), min(most, key=itemgetter("step_seconds"))
    also = "it is the fastest, too" if fastest is least else f"{fastest['way']} is the fastest"
    return (
        f"On {most[0]['GPUs']} GPUs {least['way']} sends least, and {also}. In attention a GPU gets the keys "
        "and values of all other tokens, gathered or round a ring. By Ulysses it sends what is of its own "
        "tokens, which are fewer with every GPU; but there are no more GPUs than heads."
    )


SWEEPS = {"sequence": against_tp, "hiding": hiding, "ways": ways}
