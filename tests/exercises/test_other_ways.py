"""Right answers that go other ways than the model solution: other loops, other orders, numpy's idioms and its
numbers, lists where arrays would do. Each has the mark that it deserves."""

from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collectives import all_gather, all_reduce, reduce_scatter
from ndparallel.exercises.answer import ModelAnswer
from ndparallel.exercises.catalog import find_exercise
from ndparallel.exercises.grade import graded, par_of
from ndparallel.exercises.tasks import ring_attention, ulysses
from ndparallel.exercises.verdict import PAR, PASSED
from ndparallel.pipeline.actions import Action
from ndparallel.planner.job import Plan
from ndparallel.training.buckets import FullyShardedUnit
from ndparallel.training.replica import Replica


def in_the_order_of_xor(gpu, outgoing, incoming):
    others = [gpu.rank ^ mask for mask in range(1, 8) if gpu.rank ^ mask < len(outgoing)]
    incoming[gpu.rank] = outgoing[gpu.rank].copy()
    for other in others:
        gpu.isend(other, outgoing[other], f"{gpu.rank}>{other}")
    for other in others:
        incoming[other] = gpu.receive(other, f"{other}>{gpu.rank}")


def number_by_number(gpu, array, ranks):
    for place in range(len(array)):
        if gpu.rank:
            array[place] = gpu.receive(gpu.rank - 1, place)
        if gpu.rank + 1 < ranks:
            gpu.send(gpu.rank + 1, array[place], place)


def tree(gpu, array, ranks):
    def below(first, last):
        middle = (first + last + 1) // 2
        if last - first > 1:
            if gpu.rank == first:
                gpu.send(middle, array, "it")
            if gpu.rank == middle:
                gpu.receive(first, "it", into=array)
            below(*((first, middle) if gpu.rank < middle else (middle, last)))

    below(0, ranks)


def the_last_part_first(gpu, job):
    replica = Replica(gpu, job)
    for microbatches in replica.steps():
        for microbatch in reversed(microbatches):
            replica.forward(microbatch)
            replica.backward(microbatch)
        replica.optimizer_step()
    return replica.outcome


def the_last_part_apart(gpu, job):
    replica = Replica(gpu, job, bucket_mb=job.bucket_mb)
    for microbatches in replica.steps():
        *others, last = microbatches
        for microbatch in others:
            replica.forward(microbatch)
            replica.backward(microbatch)
        replica.forward(last)
        gradient, handles = None, list[Any]()
        for unit in replica.units[::-1]:
            gradient = unit.backward(gradient, last)
            handles.extend(bucket.all_reduce(async_op=True) for bucket in replica.filled_by(unit))
        while handles:
            handles.pop().wait()
        replica.optimizer_step()
    return replica.outcome


def reduced_before_it_is_freed(gpu, job):
    replica = Replica(gpu, job, FullyShardedUnit, job.unit_mb)
    for microbatches in replica.steps():
        for microbatch in microbatches:
            x, gradient = replica.tokens[microbatch], None
            for unit in replica.buckets[::-1]:
                unit.gather()
                x = unit.forward(x, microbatch)
                unit.reshard()
            for unit in replica.buckets:
                unit.allocate_gradients()
                unit.gather()
                gradient = unit.backward(gradient, microbatch)
                unit.reduce_scatter()
                unit.reshard()
        replica.optimizer_step()
    return replica.outcome


def in_two_halves(gpu, array, tp):
    flat, whole = array.reshape(-1), np.empty(array.size, array.dtype)
    piece = np.empty_like(np.array_split(flat, tp.size)[tp.index(gpu.rank)])
    reduce_scatter(gpu, piece, flat, tp)
    all_gather(gpu, whole, piece, tp)
    return whole.reshape(array.shape)


def transposed(gpu, mlp, dz, tp):
    dx = mlp.matmul("backward dx", mlp.a.weight, dz.T).T
    summing = all_reduce(gpu, dx, tp, async_op=True)
    mlp.a.gradient = mlp.a.gradient + mlp.matmul("backward dA", dz.T, mlp.x).T
    return summing.wait()


def in_a_chain(rank, ranks, microbatches):
    ahead = min(ranks - 1 - rank, microbatches)
    F, B = ([[op, rank, microbatch] for microbatch in range(microbatches)] for op in "FB")
    return chain(F[:ahead], chain.from_iterable(zip(F[ahead:], B)), B[microbatches - ahead :])


def one_after_another(rank, ranks, microbatches, done=(0, 0)):
    f, b = done
    if b == microbatches:
        return []
    if f < microbatches and f - b < ranks - rank:
        return [("F", rank, f), *one_after_another(rank, ranks, microbatches, (f + 1, b))]
    return [("B", rank, b), *one_after_another(rank, ranks, microbatches, (f, b + 1))]


def sorted_by_turn(times):
    def schedule(rank, ranks, microbatches):
        ahead, later = times * (ranks - 1 - rank), times * rank
        after = {"F": 0, "I": ahead, "W": ahead + later}
        turns = [
            (microbatch + after[op], place, Action(op, rank, microbatch))
            for place, op in enumerate(after)
            for microbatch in np.arange(microbatches)
        ]
        return tuple(action for _, _, action in sorted(turns))

    return schedule


def losses_in_a_list(gpu, logits, targets, first, tp):
    largest = all_reduce(gpu, logits.max(axis=1), tp, op="max")
    sums = all_reduce(gpu, np.exp(logits - largest[:, None]).sum(axis=1), tp)
    own = enumerate(targets - first)
    here = [logits[token, place] if 0 <= place < logits.shape[1] else 0 for token, place in own]
    found = all_reduce(gpu, np.array(here, np.float32), tp)
    return [float(each) for each in np.log(sums) + largest - found]


def rows_in_a_list(gpu, rows, expert_of, expert, ranks):
    results = [None] * len(rows)
    for other in range(ranks):
        gpu.send(other, rows[expert_of == other], "go")
    for other in range(ranks):
        gpu.send(other, expert(gpu.receive(other, "go")), "back")
    for other in range(ranks):
        for place, row in zip(np.flatnonzero(expert_of == other), gpu.receive(other, "back")):
            results[place] = row
    return results


def tokens_in_a_list(gpu, q, k, v, ranks):
    return list(ulysses.attention(gpu, q, k, v, ranks))


def partial_in_a_list(gpu, q, k, v, ranks, sequence):
    return list(ring_attention.attention(gpu, q, k, v, ranks, sequence))


OTHER_WAYS = [
    ("everybody", PAR, {"all_to_all": in_the_order_of_xor}),
    ("broadcast", PAR, {"broadcast": number_by_number}),
    ("broadcast", PASSED, {"broadcast": tree}),
    ("accumulate", PAR, {"train": the_last_part_first}),
    ("fit_one_gpu", PAR, {"choose": lambda: [np.int64(8), "selective"]}),
    ("talk_once", PAR, {"ddp": the_last_part_apart}),
    ("fsdp", PAR, {"fsdp": reduced_before_it_is_freed}),
    (
        "f_and_g",
        PAR,
        {
            "enter": lambda gpu, x, tp: x.copy(),
            "enter_backward": in_two_halves,
            "leave": in_two_halves,
            "leave_backward": lambda gpu, dy, tp: dy * 1,
        },
    ),
    ("sum_that_can_wait", PAR, {"column_parallel_backward": transposed}),
    ("one_f_one_b", PAR, {"schedule": in_a_chain}),
    ("one_f_one_b", PAR, {"schedule": one_after_another}),
    ("fill_the_bubble", PAR, {"schedule": sorted_by_turn(1)}),
    ("no_bubble", PAR, {"schedule": sorted_by_turn(2)}),
    ("vocabulary_loss", PAR, {"cross_entropy": losses_in_a_list}),
    ("experts", PASSED, {"through_experts": rows_in_a_list}),
    ("ulysses", PAR, {"attention": tokens_in_a_list}),
    ("ring_attention", PAR, {"positions": ring_attention.positions, "attention": partial_in_a_list}),
    ("who_sits_where", PAR, {"order": lambda: "-".join(("dp", "tp", "pp"))}),
    (
        "make_it_fit",
        PAR,
        {
            "choose": lambda: dict(
                zip(("tp", "pp", "dp", "zero", "microbatches"), np.array([2, 2, 2, 1, 4])), schedule="ZB-V"
            )
        },
    ),
    (
        "capstone",
        PASSED,
        {"plan": lambda: Plan(tp=np.int64(8), pp=np.int64(4), dp=2, zero=1, sequence_parallel=True)},
    ),
]


@pytest.mark.parametrize(("name", "mark", "functions"), OTHER_WAYS)
def test_a_right_answer_may_go_another_way(name, mark, functions):
    exercise = find_exercise(name)
    verdict = graded(exercise, Path(exercise.file), lambda: ModelAnswer(functions), par_of(exercise))
    assert verdict.mark == mark, verdict.sentences
    assert "Offer" not in " ".join(verdict.sentences)
