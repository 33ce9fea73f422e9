"""Claims about recordings: what one rank of the layers writes down is what ranks of an executed run do."""

from typing import Any

import pytest

from gpu import COLLECTIVE, COMPUTE, MEMORY, Event, Operation
from ndparallel.engines.launch import launch
from ndparallel.hardware.pocket import POCKET
from ndparallel.parallel.context import VARIANTS
from ndparallel.parallel.mesh import SPANS, Mesh
from ndparallel.planner.layers.operations import CollectiveOp, Hold, Start
from ndparallel.planner.lesson_runs.record import LessonRank
from ndparallel.training.job import Job
from tests.support.common import SMALL
from tests.support.meshes import both_passes

EXPERTS = SMALL.replace(experts=4, top_k=4, shared_experts=1)  # every token goes to every expert


def happened(events) -> list[tuple]:
    """What a rank did for its microbatch, in order: operations, activations kept or freed, collectives."""
    found: list[tuple] = []
    held = 0.0
    for event in map(Event._make, events):
        if event.kind == COMPUTE:
            found.append((event.what.split()[-1], event.flops, event.bytes))
        elif event.kind == MEMORY and event.what == "activations":
            found.append(("activations", event.bytes - held))
            held = event.bytes
        elif event.kind == COLLECTIVE:
            found.append((event.what[0], event.what[2]))
    return found


def written(rank: LessonRank) -> list[tuple]:
    """The same of a whole model, from the recorded units; a collective of one rank is no event."""
    kinds = ["embedding", *["block"] * rank.config.layers, "head"]
    items = [item for kind in kinds for item in rank.passes(kind)["forward"]]
    items += [item for kind in reversed(kinds) for item in rank.passes(kind)["backward"]]
    rows = [row for item in items if (row := row_of(item.exchange if isinstance(item, Start) else item))]
    return [row for row in rows if row[0] not in SPANS or rank.mesh.group(row[0], 0).size > 1]


def row_of(item) -> tuple | None:
    if isinstance(item, Operation):
        return item.name.split()[-1], item.flops, item.bytes
    if isinstance(item, Hold):
        return "activations", item.bytes
    if isinstance(item, CollectiveOp) and item.collective != "shift":
        return item.group, item.collective
    return None


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize(
    ("mesh", "options"),
    [
        (Mesh(), {}),
        (Mesh(tp=2), {"parts": 2}),
        (Mesh(tp=4), {"sequence_parallel": "sp"}),
        (Mesh(tp=2), {"sequence_parallel": "sp-regather", "dtype": "float64"}),
        *[(Mesh(cp=2, tp=2), {"context_parallel": variant}) for variant in VARIANTS],
        (Mesh(dp=2, ep=2), {"model": EXPERTS}),
        (Mesh(tp=2, dp=2, ep=2), {"model": EXPERTS, "sequence_parallel": "sp"}),
        (Mesh(tp=2), {"model": SMALL.replace(vocab=255)}),
    ],
    ids=str,
)
def test_every_rank_does_what_one_of_its_tp_index_has_written_down(mesh, options, recompute):
    job = Job(**{"model": SMALL, "mesh": mesh, "recompute": recompute} | options)
    names = ("sequence_parallel", "context_parallel", "dtype", "recompute", "parts")
    for result in launch(both_passes, mesh.world_size, POCKET, job, engine="inline"):
        rank = LessonRank(
            job.model,
            mesh,
            job.microbatch,
            **{name: getattr(job, name) for name in names},
            rows=job.microbatch * job.model.sequence // (mesh.cp * mesh.tp),
            tp_index=mesh.coordinates(result.rank)["tp"],
        )
        assert written(rank) == happened(result.events)


def test_of_tp_ranks_the_first_has_the_most_to_do():
    """A vocabulary of 255 is cut into 128 and 127."""
    ranks = [LessonRank(SMALL.replace(vocab=255), Mesh(tp=2), tp_index=index) for index in (0, 1)]
    lists: Any = [rank.passes("head")["forward"] for rank in ranks]
    names: Any = [[row_of(item) for item in items] for items in lists]
    assert [row[0] for row in names[0]] == [row[0] for row in names[1]]
    for one, other in zip(*lists):
        if isinstance(one, Operation | Hold):
            assert one.bytes >= other.bytes
    assert sum(one.bytes > other.bytes for one, other in zip(*lists)) == 3  # logits, loss, what it keeps


def test_a_recording_takes_no_memory_for_its_arrays():
    """A sequence of a million tokens, whose scores alone would be terabytes."""
    rank = LessonRank(SMALL.replace(sequence=2**20), Mesh())
    kept = sum(item.bytes for item in rank.passes("block")["forward"] if isinstance(item, Hold))
    assert kept > 4 * SMALL.heads * 2**40
