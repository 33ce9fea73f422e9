"""4D: all of it at once. Tensor, pipeline, data and expert parallelism (and context parallelism) on one grid
of GPUs.

Idea    Each dimension cuts something else: TP every matrix, CP every sequence, PP the depth, DP the batch, EP
        the experts. The grid has tp * cp * dp * pp GPUs; EP adds none, it spreads the experts over the ranks
        of DP. They differ in how often they talk and how much, so the shape of the network decides who should
        be neighbours: TP every layer, CP every attention, EP every layer of experts, PP every microbatch, DP
        once a step. The rank program is 1D around 3D around 2D.
Cost    Each dimension's own, on the links that its groups really have. The table under the table counts it
        from the run's events.
Limit   Each dimension is stopped by something else: TP by heads and by the link, PP by the bubble, DP by
        memory and by the batch.

Glossary
    order       how ranks count through the grid, innermost first: neighbours share a node (Megatron's is
                tp-cp-ep-dp-pp)
    ZeRO        what DP ranks share out: 0 nothing (DDP), 1 the optimizer, 2 gradients too, 3 weights too
                (FSDP)
    dense       without experts

Run     python 4d_combined.py    and with --tp 4 --pp 2, --gpus 16, --sweep (layouts, orders, zero, capacity)
"""

import argparse
import sys
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from itertools import permutations
from typing import Any

from gpu import GPU, si
from ndparallel.base.errors import UserError
from ndparallel.base.words import count, duration
from ndparallel.engines.launch import RankResult
from ndparallel.lessons.lesson import Lesson, Strategy
from ndparallel.lessons.main import main
from ndparallel.lessons.runner import Runner, enter
from ndparallel.model.units import ModelConfig, Unit
from ndparallel.parallel.mesh import DEFAULT_ORDER, Mesh
from ndparallel.parallel.tensor import SEQUENCE_PARALLEL
from ndparallel.pipeline.actions import Action
from ndparallel.results.run import Run, Sweep
from ndparallel.training.buckets import Bucket, FullyShardedUnit, ShardedGradients, ShardedOptimizer
from ndparallel.training.job import Job
from ndparallel.training.replica import Outcome, Replica

ZERO = (Bucket, ShardedOptimizer, ShardedGradients, FullyShardedUnit)


def train(gpu: GPU, job: Job) -> Outcome:
    """1D around 3D around 2D: the schedule says what to compute, the units talk over tp, cp and ep, and dp is
    kept in step around them."""
    replica = Replica(gpu, job, ZERO[job.zero], job.bucket_mb)
    stages = replica.stages
    for _ in replica.steps():
        for actions in stages.steps():
            prepare(replica, actions)
            inputs = [stages.receive(action) for action in actions]
            outputs = [
                stages.run(action, x, partial(synchronise, replica)) for action, x in zip(actions, inputs)
            ]
            for action, output in zip(actions, outputs):
                stages.send(action, output)
        replica.wait_for_gradients()
        replica.optimizer_step()
        if job.zero in (1, 2):
            for bucket in replica.buckets:
                bucket.all_gather()
    return replica.outcome


def prepare(replica: Replica, actions: list[Action]) -> None:
    """Before a stage computes: FSDP gathers its weights, ZeRO-2 and FSDP make room for its gradients."""
    for action in actions:
        for bucket in replica.buckets_of(action.stage):
            if replica.job.zero == 3 and action.op != "W":
                bucket.gather()
            if replica.job.zero >= 2 and action.op != "F":
                replica.wait_for_gradients(bucket)
                bucket.stage()


def synchronise(replica: Replica, action: Action, unit: Unit) -> None:
    """After a unit has computed: FSDP forgets its weights. DDP and ZeRO-1 sum a bucket of gradients once it
    is complete, ZeRO-2 and FSDP after every microbatch; either way behind what the schedule computes next."""
    zero = replica.job.zero
    for bucket in replica.passed_by(action, unit):
        if zero == 3 and action.op != "W":
            bucket.reshard()
        if action.op in "BW" and (zero >= 2 or replica.stages.completes(action)):
            bucket.sum_shared()
            start = bucket.reduce_scatter if zero else bucket.all_reduce
            replica.on_their_way[bucket] = start(async_op=True)


# --------------------------------------------------------------------------------------------- the strategies


def grid(name: str, changes: dict | None = None, **degrees: Any) -> Strategy:
    """A strategy on a mesh of these degrees; those that depend on the number of GPUs are functions of it.
    `name` may say {dp}."""

    def mesh(gpus: int) -> Mesh:
        return Mesh(
            **{axis: degree(gpus) if callable(degree) else degree for axis, degree in degrees.items()}
        )

    def named(gpus: int) -> str:
        return name.format(dp=max(1, gpus // 4))

    return Strategy(named(8), train, mesh, {"microbatches": one_sequence_each} | (changes or {}), named=named)


def one_sequence_each(job: Job, mesh: Mesh) -> int:
    """Microbatches of one sequence for a pipeline, unless --microbatches says otherwise; without one, the
    whole share at once."""
    return job.microbatches if job.microbatches > 1 or mesh.pp == 1 else max(1, job.batch // mesh.dp)


def share(parts: int) -> Callable[[int], int]:
    """What is left for one degree when the others take `parts`."""

    def degree(gpus: int) -> int:
        if gpus % parts:
            raise UserError(
                f"{count(gpus, 'GPU')} cannot be a grid of {parts} times something; choose a multiple of "
                f"{parts}."
            )
        return gpus // parts

    return degree


def all_of_them(gpus: int) -> int:
    return gpus


def with_experts(job: Job, mesh: Mesh) -> ModelConfig:
    return job.model.replace(experts=8, top_k=2)


def half_as_many(job: Job, mesh: Mesh) -> int:
    """Sequences, of twice the length: as many tokens as the others have, where they can be shared out."""
    return job.batch // 2 if job.batch % (2 * mesh.dp) == 0 else job.batch


def twice_as_long(job: Job, mesh: Mesh) -> ModelConfig:
    return job.model.replace(sequence=2 * job.model.sequence)


BAD_ORDER = "dp-pp-ep-cp-tp"
STRATEGIES = [
    grid("TP2 x PP2 x DP{dp}", tp=2, pp=2, dp=share(4)),
    grid("DP only", dp=all_of_them),
    grid("TP only", tp=all_of_them),
    grid("PP only", pp=all_of_them),
    grid("TP outermost", tp=2, pp=2, dp=share(4), order=BAD_ORDER),
    grid("with experts, EP", {"model": with_experts}, tp=2, pp=2, dp=share(4), ep=share(4)),
    grid(
        "CP2 x TP2 x DP{dp}, 2x sequence",
        {"model": twice_as_long, "batch": half_as_many},
        cp=2,
        tp=2,
        dp=share(4),
    ),
]


def chosen(arguments: argparse.Namespace) -> list[Strategy]:
    """The one strategy that --tp, --pp, ... ask for, or the lesson's own."""
    asked = {
        axis: getattr(arguments, axis)
        for axis in ("tp", "pp", "dp", "ep", "cp")
        if getattr(arguments, axis) is not None
    }
    if (
        not asked
        and arguments.order == DEFAULT_ORDER
        and arguments.schedule is None
        and arguments.zero is None
    ):
        return STRATEGIES
    for axis, degree in asked.items():
        if degree < 1:
            raise UserError(f"{axis} is {degree}; a degree of parallelism is at least 1.")
    rest = asked.get("tp", 1) * asked.get("pp", 1) * asked.get("cp", 1)
    asked.setdefault("dp", share(rest)(arguments.gpus))
    if rest * asked["dp"] != arguments.gpus:
        raise UserError(
            f"tp * pp * cp * dp is {rest * asked['dp']}, not the {arguments.gpus} GPUs of --gpus: leave --dp "
            "to be derived."
        )
    name = " x ".join(f"{axis.upper()}{degree}" for axis, degree in asked.items() if degree > 1) or "one GPU"
    changes = {"model": with_experts} if asked.get("ep", 1) > 1 else {}
    return [grid(name, changes, order=arguments.order, **asked)]


# ---------------------------------------------------------------------------------------------- what it shows


def notice(run: Run) -> str:
    """What stops each dimension, and what the shape of the network costs."""
    sentences = []
    cube = next((name for name in run.results if name.startswith("TP2 x PP2 x")), "")
    rows = [run[name] for name in (cube, "DP only", "TP only", "PP only") if name in run]
    if len(rows) == 4:
        best = min(rows, key=lambda row: row.step_seconds)
        sentences.append(f"On this model and network {best.name} is fastest of the dense layouts.")
        _, dp, tp, pp = rows
        sentences.append(
            f"TP only waits for {tp.exposed_communication_seconds / tp.step_seconds:.0%} of its step, PP "
            "only idles for "
            f"{pp.bubble_seconds / pp.step_seconds:.0%}, DP only holds "
            f"{si(dp.peak_memory_bytes['total'], 'B')} on every GPU."
        )
    if "TP outermost" in run and cube in run and run[cube].gpus > run.hardware.gpus_per_node > 1:
        slower = run["TP outermost"].step_seconds / run[cube].step_seconds - 1
        sentences.append(f"The very same {cube} with TP across nodes and DP inside is {slower:.0%} slower.")
    return " ".join(sentences)


def row(runner: Runner, strategy: Strategy, job: Job, **point) -> dict:
    return measured_row(runner, strategy, job, **point)[0]


def measured_row(runner: Runner, strategy: Strategy, job: Job, **point) -> tuple[dict, list[RankResult]]:
    entry = enter(strategy, job, 8)
    measured, results = runner.measured(entry)
    if measured.step_seconds is None:
        return point | dict.fromkeys(FIGURES), results
    figures = (
        measured.step_seconds,
        runner.reference(entry.job).measurement.step_seconds / measured.step_seconds,
        measured.exposed_communication_seconds / measured.step_seconds,
        measured.bubble_seconds / measured.step_seconds,
        measured.bytes_sent_per_gpu,
        measured.peak_memory_bytes["total"],
    )
    return point | dict(zip(FIGURES, figures)), results


FIGURES = ("step_seconds", "speedup", "waiting share", "bubble share", "sent_bytes", "memory_bytes")


def layouts(runner: Runner, job: Job) -> Sweep:
    """Every dense layout of 8 GPUs."""
    powers = (1, 2, 4, 8)
    degrees = [(tp, pp, 8 // (tp * pp)) for tp in powers for pp in powers if tp * pp <= 8]
    rows = [row(runner, grid("", tp=tp, pp=pp, dp=dp), job, tp=tp, pp=pp, dp=dp) for tp, pp, dp in degrees]
    rows.sort(key=seconds_or_inf)

    def said(best: dict, worst: dict) -> str:
        return (
            f"Fastest is TP{best['tp']} x PP{best['pp']} x DP{best['dp']}; what does not fit into memory has "
            "no step."
        )

    return Sweep("All layouts of 8 GPUs, fastest first", rows, of_first_and_last(rows, said))


def orders(runner: Runner, job: Job) -> Sweep:
    """2 x 2 x 2 in every order of the three axes, innermost first."""
    rows = [
        row(runner, grid("", tp=2, pp=2, dp=2, order=order), job, order=order)
        for order in map("-".join, permutations(("tp", "dp", "pp")))
    ]
    rows.sort(key=seconds_or_inf)

    def said(best: dict, worst: dict) -> str:
        longer = worst["step_seconds"] / best["step_seconds"] - 1
        return f"Best is {best['order']}, worst {worst['order']}, which takes {longer:.0%} longer."

    return Sweep(
        "TP2 x PP2 x DP2 in every order, innermost first, fastest first", rows, of_first_and_last(rows, said)
    )


def zeros(runner: Runner, job: Job) -> Sweep:
    """2 x 2 x 2 with more and more shared out over dp: what does a pipeline pay for what it no longer
    holds?"""
    rows = [row(runner, grid("", {"zero": zero}, tp=2, pp=2, dp=2), job, zero=zero) for zero in range(4)]

    def said(first: dict, last: dict) -> str:
        longer = duration(last["step_seconds"], first["step_seconds"])
        return (
            f"ZeRO-{last['zero']} sends {last['sent_bytes'] / first['sent_bytes']:.1f}x the bytes of "
            f"ZeRO-{first['zero']}, and {longer}."
        )

    return Sweep(
        "TP2 x PP2 x DP2, by what DP shares out (0 is DDP, 3 FSDP)", rows, of_first_and_last(rows, said)
    )


def capacities(runner: Runner, job: Job) -> Sweep:
    """The grid with experts, which take less and less: the busiest rank holds up all, or what it cannot take
    is dropped."""
    rows = [bounded(runner, job, factor) for factor in (None, 2.0, 1.5, 1.25, 1.0)]

    def said(first: dict, last: dict) -> str:
        room = (
            f"With a capacity factor of {first['capacity_factor']}"
            if first["capacity_factor"]
            else "With no capacity factor"
        )
        busiest = f"{room}, the busiest rank has {first['busiest to mean']:.2f}x the mean rank's rows."
        if first is last:
            return busiest
        longer = duration(last["step_seconds"], first["step_seconds"])
        dropped = f"{last['dropped share']:.0%} of the tokens' choices are dropped, and the step {longer}"
        return f"{busiest} With one of {last['capacity_factor']}, {dropped}."

    return Sweep(
        "TP2 x PP2 x DP2 with EP2, by what an expert takes (in even shares)",
        rows,
        of_first_and_last(rows, said),
    )


def bounded(runner: Runner, job: Job, factor: float | None) -> dict:
    experts = {"model": lambda job, mesh: with_experts(job, mesh).replace(capacity_factor=factor)}
    strategy = grid("", experts, tp=2, pp=2, dp=2, ep=2)
    row, results = measured_row(runner, strategy, job, capacity_factor=factor)
    del row["speedup"]  # one GPU alone drops other choices: it is no measure here
    return row | what_was_routed(results)


def what_was_routed(results: list[RankResult]) -> dict:
    """Choices dropped, of all that tokens made; and the rows of the busiest rank, for which all wait, in
    those of the mean rank: the mean over layers and microbatches."""
    if not results:
        return {"dropped share": None, "busiest to mean": None}
    sent = dropped = 0
    rows: dict[tuple, list[int]] = defaultdict(list)
    for result in results:
        for place, routed in result.value.routed[0].items():
            sent, dropped = sent + sum(routed.sent_rows), dropped + routed.dropped
            rows[place].append(sum(routed.expert_rows))
    ratios = [max(ranks) * len(ranks) / sum(ranks) for ranks in rows.values()]
    return {"dropped share": dropped / (sent + dropped), "busiest to mean": sum(ratios) / len(ratios)}


def seconds_or_inf(row: dict) -> float:
    return row["step_seconds"] or float("inf")


def of_first_and_last(rows: list[dict], said: Callable[[dict, dict], str]) -> str:
    """What the first and the last row that fit into memory say."""
    fit = [row for row in rows if row["step_seconds"]]
    return said(fit[0], fit[-1]) if fit else "None of them fits into the memory of a GPU."


def add_options(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    for axis, what in {
        "tp": "matrices",
        "pp": "layers",
        "dp": "the batch",
        "ep": "experts",
        "cp": "sequences",
    }.items():
        option(f"--{axis}", type=int, metavar="N", help=f"GPUs that share {what}")
    option(
        "--order",
        default=DEFAULT_ORDER,
        metavar="A-B-...",
        help=f"of the axes above 1, innermost first (default {DEFAULT_ORDER})",
    )
    option("--schedule", metavar="NAME", help="of the pipeline (default 1f1b)")
    option("--zero", type=int, choices=range(4), help="what DP ranks share out: 0 nothing to 3 all")
    option(
        "--sequence-parallel",
        default="none",
        choices=SEQUENCE_PARALLEL,
        help="cut norms and residuals over TP too",
    )


LESSON = Lesson(
    name="4d_combined",
    title="4D: TP x PP x DP x EP, and CP",
    gpus=8,
    strategies=STRATEGIES,
    contrast=("TP2 x PP2 x DP2", "TP outermost"),
    notice=notice,
    add_options=add_options,
    chosen=chosen,
    compare=("TP2 x PP2 x DP2", "DP only", "TP outermost"),
    sweeps={"layouts": layouts, "orders": orders, "zero": zeros, "capacity": capacities},
    hierarchy="TP2 x PP2 x DP2",
)

if __name__ == "__main__":
    sys.exit(main(LESSON))
