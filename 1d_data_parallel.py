"""1D: data parallelism. Every GPU has the model, or its share of it, and trains on its own part of the batch.

Idea    The gradient of a batch is the mean of its parts' gradients. So N GPUs compute N parts at once,
        average what they found, and all take the same step. What differs is how they average, when, and who
        keeps what:
            DDP         everybody keeps everything; gradients are all-reduced
            ZeRO-1      the optimizer's state is cut in N: gradients are reduce-scattered, stepped weights are
                        gathered
            ZeRO-2      gradients are cut in N as well
            FSDP        (ZeRO-3) weights too: gathered unit by unit just before they are used, and forgotten
                        again
            HSDP        FSDP inside each node; the nodes hold copies, and average their gradients across
Cost    DDP and ZeRO-1 send 2 (N-1)/N of the gradients' bytes, once a step. ZeRO-2 as much, and half of it
        once more for every further microbatch. FSDP 3 (N-1)/N for every microbatch.
Limit   A step cannot be shorter than the communication that nothing hides; and every GPU must hold one unit
        and its activations whole.

Glossary
    bucket      a run of units whose gradients travel as one message (--bucket-mb)
    unit        embedding, transformer block or head; FSDP wraps runs of them of at least --unit-mb
    exposed     communication that a GPU waits for; the rest is hidden behind compute
    reshard     forget the weights that were gathered (after the forward pass, or only after the backward
                pass)

Run     python 1d_data_parallel.py    and with --gpus 8, --gpus-per-node 1, --model-size large, --sweep
"""

import argparse
import sys
from collections.abc import Iterator
from itertools import pairwise

from gpu import GPU
from ndparallel.base.words import duration, listed
from ndparallel.lessons.lesson import Lesson, Strategy
from ndparallel.lessons.main import main
from ndparallel.lessons.options import hardware_from
from ndparallel.lessons.runner import Runner, enter
from ndparallel.parallel.mesh import Mesh
from ndparallel.results.run import Run, Sweep
from ndparallel.training.buckets import FullyShardedUnit, ShardedGradients, ShardedOptimizer
from ndparallel.training.hybrid import HybridShardedUnit
from ndparallel.training.job import Job
from ndparallel.training.replica import Outcome, Replica


def ddp_naive(gpu: GPU, job: Job) -> Outcome:
    """All gradients to one GPU, their mean back to all: its door is the bottleneck."""
    replica = Replica(gpu, job)
    for microbatches in replica.steps():
        for microbatch in microbatches:
            replica.forward(microbatch)
            replica.backward(microbatch)
        for bucket in replica.buckets:
            bucket.all_reduce(algorithm="naive")
        replica.optimizer_step()
    return replica.outcome


def ddp_ring(gpu: GPU, job: Job) -> Outcome:
    """The same mean, round a ring: all links are busy at once."""
    replica = Replica(gpu, job)
    for microbatches in replica.steps():
        for microbatch in microbatches:
            replica.forward(microbatch)
            replica.backward(microbatch)
        for bucket in replica.buckets:
            bucket.all_reduce(algorithm="ring")
        replica.optimizer_step()
    return replica.outcome


def ddp_overlapped(gpu: GPU, job: Job) -> Outcome:
    """Send each bucket as soon as the backward pass has filled it, behind what is left of the backward
    pass."""
    replica = Replica(gpu, job, bucket_mb=job.bucket_mb)
    for microbatches in replica.steps():
        handles = []
        for microbatch in microbatches:
            replica.forward(microbatch)
            gradient = None
            for unit in reversed(replica.units):
                gradient = unit.backward(gradient, microbatch)
                if microbatch == microbatches[-1]:
                    handles += [bucket.all_reduce(async_op=True) for bucket in replica.filled_by(unit)]
        for handle in handles:
            handle.wait()
        replica.optimizer_step()
    return replica.outcome


def zero1(gpu: GPU, job: Job) -> Outcome:
    """An all-reduce is a reduce-scatter and an all-gather; step in between, on one shard, with a shard of the
    optimizer's state."""
    replica = Replica(gpu, job, ShardedOptimizer, job.bucket_mb)
    for microbatches in replica.steps():
        handles = []
        for microbatch in microbatches:
            replica.forward(microbatch)
            gradient = None
            for bucket in replica.buckets:
                gradient = bucket.backward(gradient, microbatch)
                if microbatch == microbatches[-1]:
                    handles.append(bucket.reduce_scatter(async_op=True))
        for handle in handles:
            handle.wait()
        replica.optimizer_step()
        for bucket in replica.buckets:
            bucket.all_gather()
    return replica.outcome


def zero2(gpu: GPU, job: Job) -> Outcome:
    """Whole gradients exist for one bucket at a time, and the one on its way: they are reduced after every
    microbatch."""
    replica = Replica(gpu, job, ShardedGradients, job.bucket_mb)
    for microbatches in replica.steps():
        for microbatch in microbatches:
            replica.forward(microbatch)
            gradient, on_its_way = None, None
            for bucket in replica.buckets:
                bucket.stage()
                gradient = bucket.backward(gradient, microbatch)
                if on_its_way:
                    on_its_way.wait()
                on_its_way = bucket.reduce_scatter(async_op=True)
            on_its_way.wait()
        replica.optimizer_step()
        for bucket in replica.buckets:
            bucket.all_gather()
    return replica.outcome


def fsdp(gpu: GPU, job: Job) -> Outcome:
    """Weights too are whole for one unit at a time: gather, compute, reshard, and everybody waits for every
    gather."""
    replica = Replica(gpu, job, FullyShardedUnit, job.unit_mb)
    for microbatches in replica.steps():
        for microbatch in microbatches:
            x = replica.tokens[microbatch]
            for unit in reversed(replica.buckets):
                unit.gather()
                x = unit.forward(x, microbatch)
                if job.reshard_after_forward:
                    unit.reshard()
            gradient = None
            for unit in replica.buckets:
                unit.gather()
                unit.stage()
                gradient = unit.backward(gradient, microbatch)
                unit.reshard()
                unit.reduce_scatter()
        replica.optimizer_step()
    return replica.outcome


def fsdp_prefetch(gpu: GPU, job: Job, unit_kind: type[FullyShardedUnit] = FullyShardedUnit) -> Outcome:
    """Gather the next unit and reduce the last one while this one computes."""
    replica = Replica(gpu, job, unit_kind, job.unit_mb)
    for microbatches in replica.steps():
        for microbatch in microbatches:
            x = replica.tokens[microbatch]
            for unit, following in pairwise([*reversed(replica.buckets), None]):
                unit.gather()
                if following:
                    following.gather(async_op=True)
                x = unit.forward(x, microbatch)
                if job.reshard_after_forward:
                    unit.reshard()
            gradient, on_its_way = None, None
            for unit, following in pairwise([*replica.buckets, None]):
                unit.gather()
                if following:
                    following.gather(async_op=True)
                unit.stage()
                gradient = unit.backward(gradient, microbatch)
                unit.reshard()
                if on_its_way:
                    on_its_way.wait()
                on_its_way = unit.reduce_scatter(async_op=True)
            on_its_way.wait()
        replica.optimizer_step()
    return replica.outcome


def hsdp(gpu: GPU, job: Job) -> Outcome:
    """The same loop over units that are sharded inside the node only, and whose gradients then go across
    once."""
    return fsdp_prefetch(gpu, job, HybridShardedUnit)


def notice(run: Run) -> str:
    """What the numbers say about hiding, about holding less, and about what crosses between nodes."""
    return " ".join([*about_overlap(run), *about_sharding(run), *about_nodes(run)])


def about_overlap(run: Run) -> Iterator[str]:
    if "DDP ring" in run and "DDP overlapped" in run and run["DDP ring"].bytes_sent_per_gpu:
        ratio = (
            run["DDP overlapped"].exposed_communication_seconds
            / run["DDP ring"].exposed_communication_seconds
        )
        if run["DDP ring"].gpus > run.hardware.gpus_per_node > 1:
            yield (
                "Buckets sent during the backward pass, in the nodes and across on all rails, expose "
                f"{ratio:.0%} of what one ring does."
            )
        elif ratio < 1:
            yield f"Sending buckets during the backward pass hides {1 - ratio:.0%} of what the ring exposes."
        else:
            yield (
                f"Buckets expose {ratio:.1f}x what one ring for all exposes: their latencies cost more than "
                "the overlap hides."
            )


def about_sharding(run: Run) -> Iterator[str]:
    if "FSDP prefetch" in run and "DDP overlapped" in run and run["DDP overlapped"].bytes_sent_per_gpu:
        sharded, whole = run["FSDP prefetch"], run["DDP overlapped"]
        memory = sharded.peak_memory_bytes["total"] / whole.peak_memory_bytes["total"]
        sent = sharded.bytes_sent_per_gpu / whole.bytes_sent_per_gpu
        time = duration(sharded.step_seconds, whole.step_seconds)
        yield f"FSDP sends {sent:.1f}x the bytes of DDP, peaks at {memory:.0%} of its memory, and {time}."


def about_nodes(run: Run) -> Iterator[str]:
    if "FSDP prefetch" in run and "HSDP" in run and run["HSDP"].gpus > run.hardware.gpus_per_node > 1:
        one, copies = run["FSDP prefetch"], run["HSDP"]
        memory = copies.peak_memory_bytes["total"] / one.peak_memory_bytes["total"]
        waits = copies.exposed_communication_seconds / one.exposed_communication_seconds
        yield (
            f"On {one.gpus} GPUs HSDP waits {waits:.0%} as long as FSDP, and needs {memory:.0%} of its "
            "memory."
        )


def microbatches(runner: Runner, job: Job) -> Sweep:
    """Four batches at once, a batch for each of 4 GPUs, taken in more and more parts: who must talk after
    every part?"""
    rows = [
        accumulated(runner, strategy, job.replace(batch=4 * job.batch, microbatches=parts))
        for strategy in LESSON.strategies
        if strategy.name in ACCUMULATED
        for parts in PARTS
        if job.batch % parts == 0
    ]
    return Sweep(f"Gradient accumulation, 4 GPUs, {4 * job.batch} sequences", rows, what_parts_cost(rows))


def accumulated(runner: Runner, strategy: Strategy, job: Job) -> dict:
    measured = runner.measured(enter(strategy, job, 4))[0]
    memory = measured.peak_memory_bytes
    return {
        "strategy": strategy.name,
        "microbatches": job.microbatches,
        "sent_bytes": measured.bytes_sent_per_gpu,
        "step_seconds": measured.step_seconds,
        "exposed_communication_seconds": measured.exposed_communication_seconds,
        "memory_bytes": memory and memory["total"],
    }


def what_parts_cost(rows: list[dict]) -> str:
    """Most parts against one, of those that fit: the bytes of every strategy, and the step that grows
    most."""
    ran = [row for row in rows if row["step_seconds"]]
    most = max(row["microbatches"] for row in rows)
    first, last = (
        {row["strategy"]: row for row in ran if row["microbatches"] == parts} for parts in (1, most)
    )
    if most == 1:
        return "The share of a GPU is odd, and was not cut: an even --batch shows what the parts cost."
    fit = [name for name in ACCUMULATED if name in first and name in last]
    if not fit:
        return "Where the batch is not cut, none of them fits into the memory of a GPU."
    sent = {name: f"{last[name]['sent_bytes'] / first[name]['sent_bytes']:.1f}x" for name in fit}
    alike = [
        f"{times} with {listed([name for name in sent if sent[name] == times])}"
        for times in dict.fromkeys(sent.values())
    ]
    slowest = max(fit, key=lambda name: last[name]["step_seconds"] / first[name]["step_seconds"])
    longer = duration(last[slowest]["step_seconds"], first[slowest]["step_seconds"])
    return (
        f"In {most} parts, not one, the bytes sent are {', '.join(alike)}: what is sharded is gathered or "
        "reduced for each part. "
        f"What of this does not hide shows most with {slowest}: its step {longer}."
    )


PARTS = (1, 2, 4, 8)
ACCUMULATED = ("DDP overlapped", "ZeRO-1", "ZeRO-2", "FSDP prefetch", "FSDP no reshard")


def data_parallel(gpus: int) -> Mesh:
    return Mesh(dp=gpus)


def chosen(arguments: argparse.Namespace) -> list[Strategy]:
    """On a single node HSDP is FSDP: there it is shown only where it is asked for."""
    hidden = [] if arguments.strategy or arguments.gpus > hardware_from(arguments).gpus_per_node else [hsdp]
    return [strategy for strategy in LESSON.strategies if strategy.program not in hidden]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--bucket-mb", type=float, default=Job.bucket_mb, metavar="MB", help="smallest bucket of gradients"
    )
    parser.add_argument(
        "--unit-mb", type=float, default=Job.unit_mb, metavar="MB", help="smallest unit that FSDP wraps"
    )


LESSON = Lesson(
    name="1d_data_parallel",
    title="1D: data parallelism",
    strategies=[
        Strategy("DDP naive", ddp_naive, data_parallel),
        Strategy("DDP ring", ddp_ring, data_parallel),
        Strategy("DDP overlapped", ddp_overlapped, data_parallel),
        Strategy("ZeRO-1", zero1, data_parallel),
        Strategy("ZeRO-2", zero2, data_parallel),
        Strategy("FSDP", fsdp, data_parallel),
        Strategy("FSDP prefetch", fsdp_prefetch, data_parallel),
        Strategy("FSDP no reshard", fsdp_prefetch, data_parallel, {"reshard_after_forward": False}),
        Strategy("HSDP", hsdp, data_parallel),
    ],
    contrast=("DDP naive", "DDP overlapped"),
    compare=("DDP ring", "DDP overlapped", "FSDP prefetch"),
    notice=notice,
    add_options=add_options,
    chosen=chosen,
    sweeps={"microbatches": microbatches},
)

if __name__ == "__main__":
    sys.exit(main(LESSON))
