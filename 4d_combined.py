"""4D: all of it at once. Tensor, pipeline, data and expert parallelism (and context parallelism) on one grid
of GPUs.

Idea    Each dimension cuts something else: TP every matrix, CP every sequence, PP the depth, DP the batch, EP
        the experts. The grid has tp * cp * dp * pp GPUs; EP adds none, it spreads the experts over the ranks
        of CP and DP, and whole experts over those of TP too. They differ in how often they talk and how much,
        so the shape of the network decides who should be neighbours: TP every layer, CP every attention, EP
        every layer of experts, PP every microbatch, DP once a step. The rank program is 1D around 3D around
        2D.
Cost    Each dimension's own, on the links that its groups really have. The table under the table counts it
        from the run's events.
Limit   Each dimension is stopped by something else: TP by heads and by the link, PP by the bubble, DP by
        memory and by the batch.

Glossary
    etp         GPUs that cut each expert: as many as TP, or 1, which leaves experts whole
    order       how ranks count through the grid, innermost first: neighbours share a node (Megatron's is
                tp-cp-ep-dp-pp)
    ZeRO        what DP ranks share out: 0 nothing (DDP), 1 the optimizer, 2 gradients too, 3 weights too
                (FSDP)
    dense       without experts

Run     python 4d_combined.py    and with --tp 4 --pp 2, --sweep (layouts, orders, zero, capacity, folding)
"""

import sys
from functools import partial

from gpu import GPU
from ndparallel.lessons.combined import (
    LAYOUT,
    add_options,
    all_gpus,
    grid,
    half_as_many,
    notice,
    share,
    strategies_for,
    twice_as_long,
)
from ndparallel.lessons.combined_sweeps import SWEEPS
from ndparallel.lessons.expert_parallel import mixture
from ndparallel.lessons.lesson import Lesson
from ndparallel.lessons.main import main
from ndparallel.model.units import Unit
from ndparallel.pipeline.actions import Action
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
    """Prepare what a stage computes with: FSDP gathers its weights, ZeRO-2 and FSDP make room for its
    gradients."""
    for action in actions:
        for bucket in replica.buckets_of(action.stage):
            if replica.job.zero == 3 and action.op != "W":
                bucket.gather()
            if replica.job.zero >= 2 and action.op != "F":
                replica.wait_for_gradients(bucket)
                bucket.allocate_gradients()


def synchronise(replica: Replica, action: Action, unit: Unit) -> None:
    """Synchronise a unit that has computed: FSDP frees its weights. DDP and ZeRO-1 sum a bucket of
    gradients once it is complete, ZeRO-2 and FSDP after every microbatch; either way behind what the schedule
    computes next."""
    zero = replica.job.zero
    for bucket in replica.passed_by(action, unit):
        if zero == 3 and action.op != "W":
            bucket.reshard()
        if action.op in "BW" and (zero >= 2 or replica.stages.completes(action)):
            bucket.sum_shared()
            start = bucket.reduce_scatter if zero else bucket.all_reduce
            replica.on_their_way[bucket] = start(async_op=True)


BAD_ORDER = "dp-pp-ep-cp-tp"
LONG = {"model": twice_as_long, "batch": half_as_many}
STRATEGIES = [
    grid(train, "TP2 x PP2 x DP{dp}", tp=2, pp=2, dp=share(4)),
    grid(train, "DP only", dp=all_gpus),
    grid(train, "TP only", tp=all_gpus),
    grid(train, "PP only", pp=all_gpus),
    grid(train, "TP outermost", tp=2, pp=2, dp=share(4), order=BAD_ORDER),
    grid(train, "with experts, EP", {"model": mixture}, tp=2, pp=2, dp=share(4), ep=share(4)),
    grid(train, "CP2 x TP2 x DP{dp}, 2x sequence", LONG, cp=2, tp=2, dp=share(4)),
]

LESSON = Lesson(
    name="4d_combined",
    title="4D: TP x PP x DP x EP, and CP",
    gpus=8,
    strategies=STRATEGIES,
    contrast=("TP2 x PP2 x DP2", "TP outermost"),
    compare=("TP2 x PP2 x DP2", "DP only", "TP outermost"),
    hierarchy="TP2 x PP2 x DP2",
    notice=notice,
    strategies_for=strategies_for,
    add_options=add_options,
    sweeps=SWEEPS,
    own=LAYOUT,
)

if __name__ == "__main__":
    sys.exit(main(LESSON))
