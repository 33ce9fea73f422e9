"""Claims about recordings: what one rank of the layers writes down is what ranks of an executed run do."""

from typing import Any

import numpy as np
import pytest

from gpu import COLLECTIVE, COMPUTE, MEMORY, Event, Operation, is_size_only
from ndparallel.engines.launch import launch
from ndparallel.hardware.pocket import POCKET
from ndparallel.model import functional, routing
from ndparallel.parallel.context import VARIANTS
from ndparallel.parallel.mesh import SPANS, Mesh
from ndparallel.planner.layers.operations import CollectiveOp, Hold, Start
from ndparallel.planner.lesson_runs.record import LessonRank
from ndparallel.planner.lesson_runs.size_only import SizeOnly
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
        (Mesh(tp=2), {"chunks": 2}),
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
    names = ("sequence_parallel", "context_parallel", "dtype", "recompute", "chunks")
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


# --------------------------------------------------------------------------------- arrays that are only sizes


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).random(shape).astype(np.float32)


Q, K, SCORES, ROWS = numbers(6, 2, 4, 8), numbers(6, 2, 2, 8), numbers(2, 2, 2, 6, 6), numbers(12, 4)
ORDER, CHOSEN = np.arange(24, dtype=np.int32), np.tile(np.arange(2, dtype=np.int32), (12, 1))
CASES: dict[str, tuple] = {
    "rms_norm": (functional.rms_norm, Q, numbers(8)),
    "rms_norm_backward": (functional.rms_norm_backward, Q, Q, numbers(8)),
    "rotary": (functional.rotary, Q, numbers(6, 8, 8)),
    "scores": (functional.attention_scores, Q, K),
    "scores_backward": (functional.attention_scores_backward, SCORES, Q, K),
    "softmax": (functional.softmax, SCORES, numbers(6, 6)),
    "softmax_backward": (functional.softmax_backward, SCORES, SCORES),
    "values": (functional.attention_values, SCORES, K),
    "values_backward": (functional.attention_values_backward, Q, SCORES, K),
    "swiglu": (functional.swiglu, ROWS),
    "swiglu_backward": (functional.swiglu_backward, numbers(12, 2), ROWS),
    "gates": (lambda p, chosen: routing.gates(p, chosen, True), ROWS, CHOSEN),
    "gates_backward": (lambda d, p, c: routing.gates_backward(d, p, c, True), numbers(12, 2), ROWS, CHOSEN),
    "permute": (lambda x, order: routing.permute(x, order, 2), ROWS, ORDER),
    "permute_backward": (lambda d, order: routing.permute_backward(d, order, 12, 2), numbers(24, 4), ORDER),
    "combine": (routing.combine, numbers(24, 4), numbers(12, 2), ORDER),
    "combine_backward": (routing.combine_backward, ROWS, numbers(24, 4), numbers(12, 2), ORDER),
    "last half": (lambda x: x[..., x.shape[-1] // 2 :], Q),
    "every other": (lambda x: x[1::2, None, -1], Q),
    "masked": (lambda x: x[x > -1], Q),
    "stacked": (lambda x: np.concatenate(np.stack([x, x])[:, 1:]), Q),
}


@pytest.mark.parametrize("name", CASES)
def test_arrays_that_are_only_sizes_have_the_shapes_and_dtypes_that_numpy_finds(name):
    function, *arrays = CASES[name]
    found = function(*[SizeOnly(array.shape, array.dtype) for array in arrays])
    expected = function(*[array.copy() for array in arrays])
    both = zip(found, expected, strict=True) if isinstance(expected, tuple) else [(found, expected)]
    for size, array in both:
        assert (size.shape, size.dtype, size.nbytes) == (array.shape, array.dtype, array.nbytes)
        assert is_size_only(size)


def test_sizes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"sizes \[3, 4\] do not fit"):
        SizeOnly((2, 3), "float32") + SizeOnly((2, 4), "float32")
    with pytest.raises(ValueError, match="do not fit"):
        SizeOnly((2, 3), "float32") @ SizeOnly((4, 2), "float32")
