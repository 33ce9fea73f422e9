"""Rung 3: the planner's step and peak memory of a small cluster are those that the executed run's clock and
memory counted."""

import random
from dataclasses import replace
from typing import Any

import pytest

from gpu import COLLECTIVE, COMPUTE, Event, Hardware
from ndparallel.base.errors import UserError
from ndparallel.engines.launch import launch
from ndparallel.hardware.pocket import POCKET
from ndparallel.model.units import ModelConfig
from ndparallel.parallel.context import VARIANTS
from ndparallel.parallel.mesh import Mesh
from ndparallel.pipeline.catalog import RECIPES, written_schedules
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.lesson_runs.step import traced_grid
from ndparallel.planner.lesson_runs.workload import ExecutedWorkload
from ndparallel.planner.models.experts import Experts
from ndparallel.planner.models.shape import ModelShape
from ndparallel.planner.prediction import peak_memory, time_step
from ndparallel.planner.software import POCKET as STACK
from ndparallel.planner.software import find_stack
from ndparallel.planner.token_counts import TokenCounts
from ndparallel.results.measure import breakdown
from ndparallel.results.measure import peak_memory as counted_bytes
from ndparallel.training.job import Job as LessonJob
from tests.support.common import strategy

ROOMY = replace(POCKET, memory_bytes=1e9)
NO_NODES = replace(ROOMY, gpus_per_node=1)
MODEL = ModelConfig(layers=8)


def planned(lesson: LessonJob, hardware: Hardware, **software) -> tuple[TrainingJob, Plan]:
    """The planner's words for an executed job; `software` is what its rank program does."""
    model, mesh = lesson.model, lesson.mesh
    sizes = (model.layers, model.hidden, model.heads, model.kv_heads, model.head_dim, model.ffn, model.vocab)
    zero, schedule = software.pop("zero", 0), lesson.schedule if mesh.pp > 1 else "1f1b"
    software |= {
        "regathers": lesson.sequence_parallel == "sp-regather",
        "context_parallel": lesson.context_parallel,
    }
    software["gradient_bytes"] = 2 if lesson.grad_reduce_in_bf16 else 4
    software["clips"] = lesson.clip_grad_norm is not None
    told: dict[str, Any] = {"grid": False, "dtype": lesson.dtype} | software
    told |= {"tp_parts": lesson.parts, "tp_overlap": lesson.tp_overlap, "expert_tp": mesh.etp == mesh.tp}
    stack = replace(STACK, **told)
    some = (
        Experts(model.experts, model.top_k, model.expert_ffn, model.shared_experts, model.expert_ffn)
        if model.experts
        else None
    )
    plan = Plan(
        **{axis: getattr(mesh, axis) for axis in ("tp", "pp", "dp", "ep", "cp")},
        chunks=lesson.stage_chunks or chunks_of(schedule) or 1,
        micro_batch=lesson.microbatch,
        zero=zero,
        sequence_parallel=lesson.sequence_parallel != "none",
        recompute=lesson.recompute,
        schedule=schedule,
    )
    shape = ModelShape("pocket", *sizes, experts=some, tied_embeddings=model.tied)
    return TrainingJob(
        shape, hardware, stack, model.sequence, lesson.batch, capacity_factor=model.capacity_factor
    ), plan


def executed(lesson: str, name: str, gpus: int, hardware: Hardware, **changes):
    chosen = strategy(lesson, name)
    job = chosen.job(LessonJob(**{"model": MODEL} | changes), gpus)
    return job, launch(chosen.program, job.mesh.world_size, hardware, job, engine="inline", keep_events=False)


def assert_equal(lesson: str, name: str, gpus: int = 4, hardware: Hardware = ROOMY, changes=None, **software):
    job, results = executed(lesson, name, gpus, hardware, **(changes or {}))
    assert_predicted(results, *planned(job, hardware, **software))


def assert_predicted(results, job: TrainingJob, plan: Plan):
    assert float(time_step(job, plan).seconds) == pytest.approx(seconds_of(results), rel=1e-6)
    assert_same_memory(results, job, plan)


def assert_same_memory(results, job: TrainingJob, plan: Plan):
    memory, counted = peak_memory(job, plan), counted_bytes(results)
    assert memory.total == counted["total"]
    for kind in ("weights", "gradients", "optimizer", "activations", "buffers"):
        assert getattr(memory, kind) == counted[kind]


def seconds_of(results) -> float:
    return max(result.end_seconds for result in results)


DDP: dict[str, Any] = {"dp_overlap": False, "bucket_bytes": float("inf")}
ONE_D: dict[str, dict[str, Any]] = {
    "DDP ring": DDP,
    "DDP overlapped": {},
    "DDP hierarchical": DDP,
    "ZeRO-1": {"zero": 1},
    "ZeRO-1 overlapped": {"zero": 1, "gathers_first": True},
    "ZeRO-2": {"zero": 2},
    "FSDP": {"zero": 3, "prefetch": False, "dp_overlap": False},
    "FSDP prefetch": {"zero": 3},
    "FSDP no reshard": {"zero": 3, "reshards": False},
}
PIPELINES = ["naive", "GPipe", "1F1B", "interleaved", "ZB-H1", "ZB-V", "DualPipeV"]
WHOLE: dict[str, Any] = {"bucket_bytes": float("inf")}


@pytest.mark.parametrize("microbatches", [1, 2])
@pytest.mark.parametrize("name", ONE_D)
def test_data_parallelism_in_every_form(name, microbatches):
    assert_equal("1d_data_parallel", name, changes={"microbatches": microbatches}, **ONE_D[name])


@pytest.mark.parametrize("name", ["DDP hierarchical", "DDP overlapped", "ZeRO-1 overlapped", "FSDP prefetch"])
def test_data_parallelism_over_links_of_both_kinds(name):
    assert_equal("1d_data_parallel", name, gpus=8, **ONE_D[name])


@pytest.mark.parametrize("name", ["DDP overlapped", "ZeRO-2", "FSDP prefetch"])
@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_data_parallelism_that_recomputes(name, recompute):
    assert_equal("1d_data_parallel", name, changes={"recompute": recompute, "microbatches": 2}, **ONE_D[name])


TENSOR = ["TP", "TP + SP", "TP + SP regather", "TP overlapped", "SP regather overlapped"]


@pytest.mark.parametrize("name", TENSOR)
@pytest.mark.parametrize(("gpus", "hardware"), [(2, ROOMY), (4, ROOMY), (8, ROOMY), (4, NO_NODES)])
def test_tensor_parallelism_inside_nodes_and_across(name, gpus, hardware):
    assert_equal("2d_tensor_parallel", name, gpus, hardware, **WHOLE)


@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_sums_beside_weights_in_a_model_that_recomputes(recompute):
    assert_equal("2d_tensor_parallel", "SP regather overlapped", changes={"recompute": recompute}, **WHOLE)


def test_tensor_parallelism_in_chunks():
    assert_equal("2d_tensor_parallel", "TP in parts", changes={"parts": 4}, **WHOLE)


def test_tensor_parallelism_times_fsdp():
    assert_equal("2d_tensor_parallel", "TP x FSDP", zero=3)


@pytest.mark.parametrize("name", ["CP", "CP gathered", "CP Ulysses"])
@pytest.mark.parametrize(("gpus", "hardware"), [(4, ROOMY), (8, ROOMY), (4, NO_NODES)])
def test_the_lesson_on_context_parallelism(name, gpus, hardware):
    assert_equal("cp_context_parallel", name, gpus, hardware)


@pytest.mark.parametrize("name", ["DP with experts", "EP"])
@pytest.mark.parametrize("gpus", [4, 8])
def test_the_lesson_on_experts_in_balance(name, gpus):
    """Every token goes to every expert."""
    model = MODEL.replace(experts=8, top_k=8)
    assert_equal("ep_expert_parallel", name, gpus, changes={"model": model})


@pytest.mark.parametrize("microbatches", [4, 8])
@pytest.mark.parametrize("name", PIPELINES)
def test_every_schedule_of_a_pipeline(name, microbatches):
    assert_equal("3d_pipeline_parallel", name, changes={"batch": 8, "microbatches": microbatches}, **WHOLE)


@pytest.mark.parametrize("microbatches", [5, 6, 7, 9, 11])
def test_interleaved_in_groups_that_are_no_multiple_of_the_ranks(microbatches):
    changes = {"batch": microbatches, "microbatches": microbatches}
    assert_equal("3d_pipeline_parallel", "interleaved", changes=changes, **WHOLE)


@pytest.mark.parametrize(("grid", "rel"), [(True, 1e-6), (False, 1e-2)])
@pytest.mark.parametrize("name", ["GPipe", "1F1B", "interleaved"])
def test_bubble_and_imbalance_are_what_the_gpu_that_is_done_last_idles_in_the_lesson(name, grid, rel):
    """10 layers, counted with the head, make 3 of some ranks and 2 of others: half as much again on each of 8
    microbatches."""
    chosen = strategy("3d_pipeline_parallel", name)
    lesson = chosen.job(LessonJob(batch=8, microbatches=8, model=replace(MODEL, layers=10)), 4)
    results = launch(chosen.program, 4, ROOMY, lesson, engine="inline")
    step = time_step(*planned(lesson, ROOMY, grid=grid, **WHOLE))
    idles = breakdown(results[step.rank].events, seconds_of(results)).bubble
    assert step.breakdown["bubble"] + step.breakdown["imbalance"] == pytest.approx(idles, rel=rel)
    if name != "interleaved":
        # the embedding is quick
        assert step.breakdown["imbalance"] == pytest.approx(step.breakdown["compute"] / 2, rel=1e-2)


@pytest.mark.parametrize("name", ["1F1B", "ZB-V"])
@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_a_pipeline_that_recomputes_over_links_of_both_kinds(name, recompute):
    changes = {"batch": 8, "microbatches": 8, "recompute": recompute, "model": replace(MODEL, layers=16)}
    assert_equal("3d_pipeline_parallel", name, 8, changes=changes, **WHOLE)


def test_a_single_gpu():
    assert_equal("0d_single_gpu", "4 microbatches", 1, **WHOLE)


# --------------------------------------------------------------------------------------------------- the grid

SMALL = ModelConfig(layers=4, sequence=16)
ALL_EXPERTS = SMALL.replace(experts=4, top_k=4, shared_experts=1)  # every token goes to every expert: balance
CLIPPED: dict[str, Any] = {"clip_grad_norm": 0.5}
# an expert takes one row of each rank: balance
FULL_EXPERTS = SMALL.replace(experts=8, top_k=2, capacity_factor=0.01)


def assert_grid(mesh: Mesh, hardware: Hardware = ROOMY, **changes):
    lesson, results = executed_grid(mesh, hardware, changes)
    assert in_balance(results)
    assert_predicted(results, *planned(lesson, hardware, zero=lesson.zero, grid=True))


def executed_grid(mesh: Mesh, hardware: Hardware, changes: dict):
    """4D's loop on a mesh, a microbatch at a time of 1 sequence."""
    lesson = grid_job(mesh, changes)
    program = strategy("4d_combined", "DP only").program
    return lesson, launch(program, mesh.world_size, hardware, lesson, engine="inline", keep_events=False)


def grid_job(mesh: Mesh, changes: dict) -> LessonJob:
    microbatches = 2 * mesh.pp if mesh.pp > 1 else 1
    usual = {"model": SMALL, "mesh": mesh, "microbatches": microbatches, "batch": microbatches * mesh.dp}
    return LessonJob(**usual | changes)


def in_balance(results) -> bool:
    """Whether all experts of all ranks worked on as many rows."""
    rows = {
        count for result in results for each in result.value.routed[0].values() for count in each.expert_rows
    }
    return len(rows) <= 1


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize(
    "mesh", [Mesh(tp=2, pp=2, dp=2), Mesh(dp=8), Mesh(cp=2, tp=2, dp=2), Mesh(dp=4, cp=2, pp=2)], ids=repr
)
def test_a_grid_with_every_stage_of_zero(mesh, zero):
    assert_grid(mesh, zero=zero)


@pytest.mark.parametrize("schedule", written_schedules())
def test_a_grid_with_every_schedule(schedule):
    assert_grid(Mesh(tp=2, pp=2, dp=2), schedule=schedule, zero=1, stage_chunks=chunks_of(schedule))


def chunks_of(schedule: str) -> int | None:
    return None if RECIPES[schedule].chunks == 1 else 2


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_a_grid_whose_sums_travel_beside_weights(schedule):
    """A backward pass whose halves are apart has no weights' gradients for them to travel beside."""
    assert_grid(Mesh(tp=2, pp=2, dp=2), schedule=schedule, tp_overlap="backward")


@pytest.mark.parametrize("context_parallel", VARIANTS)
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_context_parallelism_over_links_of_both_kinds(context_parallel, recompute):
    assert_grid(Mesh(cp=4, tp=2), context_parallel=context_parallel, recompute=recompute)


def test_a_ring_inside_a_node_on_one_stage_and_across_two_nodes_on_the_next():
    """Nodes of 3: ranks 0 and 1 are together, ranks 2 and 3 are not."""
    assert_grid(Mesh(cp=2, pp=2), replace(ROOMY, gpus_per_node=3), context_parallel="ring")


EXPERTS = [Mesh(dp=2, ep=2), Mesh(dp=4, ep=4), Mesh(tp=2, dp=2, ep=2)]


@pytest.mark.parametrize("mesh", EXPERTS, ids=repr)
def test_experts_that_take_one_row_of_each_rank(mesh):
    assert_grid(mesh, model=FULL_EXPERTS, sequence_parallel="sp" if mesh.tp > 1 else "none", batch=16)


@pytest.mark.parametrize(("mesh", "changes"), [
    (Mesh(tp=2, dp=2, ep=2), {"recompute": "full", "sequence_parallel": "sp-regather"}),
    (Mesh(tp=2, pp=2, dp=2, ep=2), {"schedule": "zb-h1", "zero": 2}),
    (Mesh(dp=4, ep=2, pp=2), {"zero": 3}),
    (Mesh(tp=2, cp=2, pp=2, dp=2, ep=2), {"zero": 1}),
    (Mesh(tp=2, etp=1), {"sequence_parallel": "sp"}),
    (Mesh(tp=2, ep=2, pp=2, etp=1), {"schedule": "zb-h1"}),
    (Mesh(tp=2, dp=2, ep=4, etp=1), {"zero": 3, "recompute": "full"}),
    (Mesh(tp=2, pp=2, dp=2, ep=2, etp=1), {"zero": 2, "sequence_parallel": "sp-regather", **CLIPPED}),
    (Mesh(cp=2, dp=2, ep=4), {"zero": 1, **CLIPPED}),
    (Mesh(tp=2, cp=2, pp=2, dp=2, ep=4, etp=1), {"zero": 1, **CLIPPED}),
], ids=repr)  # fmt: skip
def test_experts_that_take_every_row_in_all_five_dimensions(mesh, changes):
    assert_grid(mesh, model=ALL_EXPERTS, **changes)


# ----------------------------------------------------------------- what does not divide, and float64's counts


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("mesh", [Mesh(dp=4, ep=4), Mesh(dp=4, ep=4, pp=2), Mesh(tp=2, dp=2, ep=2)], ids=repr)
def test_the_counts_of_rows_are_of_4_bytes_whatever_the_dtype(mesh, dtype):
    """4 experts on 4 ranks: a count for each, which is no whole number of float64."""
    assert_grid(mesh, NO_NODES, model=ALL_EXPERTS.replace(layers=7), dtype=dtype)


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize(("mesh", "nodes"), [(Mesh(dp=5), 4), (Mesh(dp=3, pp=3), 4), (Mesh(dp=3, cp=2), 4)])
def test_dp_groups_that_lie_unevenly_on_nodes_with_shards_that_do_not_divide(mesh, nodes, zero):
    """The first owners step one element more than the others, and start to gather that much later."""
    hardware = replace(ROOMY, gpus_per_node=nodes, memory_bandwidth_bytes_per_second=1e6)
    assert_grid(mesh, hardware, zero=zero, microbatches=mesh.pp, batch=mesh.pp * mesh.dp)


@pytest.mark.parametrize("name", ["ZeRO-1", "ZeRO-2", "FSDP prefetch"])
def test_data_parallelism_with_shards_that_do_not_divide(name):
    slow = replace(ROOMY, memory_bandwidth_bytes_per_second=1e6)
    assert_equal("1d_data_parallel", name, 5, slow, {"batch": 10}, **ONE_D[name])


TIED = SMALL.replace(tied=True, vocab=257)


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("schedule", ["1f1b", "interleaved", "zb-v"])
@pytest.mark.parametrize("mesh", [Mesh(tp=2, pp=2, dp=2), Mesh(pp=3, dp=3)], ids=repr)
def test_tied_embeddings_are_a_bucket_of_their_own_and_a_sum_between_both_ends(mesh, schedule, zero):
    """On three ranks the table is cut unevenly."""
    changes = {"schedule": schedule, "stage_chunks": chunks_of(schedule), "zero": zero}
    assert_grid(mesh, replace(ROOMY, gpus_per_node=4), model=TIED.replace(layers=7), **changes)


def test_tied_embeddings_beside_whole_experts_that_are_spread_over_the_ranks_of_tp():
    mesh = Mesh(tp=2, pp=2, ep=2, etp=1)
    assert_grid(mesh, model=ALL_EXPERTS.replace(tied=True), zero=1, schedule="zb-h1", **CLIPPED)


@pytest.mark.parametrize("name", ["DDP overlapped", "ZeRO-1", "ZeRO-2", "FSDP prefetch"])
def test_tied_embeddings_in_every_form_of_data_parallelism(name):
    assert_equal("1d_data_parallel", name, changes={"model": MODEL.replace(tied=True)}, **ONE_D[name])


@pytest.mark.parametrize("name", ["GPipe", "1F1B", "interleaved", "ZB-H1"])
def test_tied_embeddings_in_what_times_thousands_of_gpus(name):
    changes = {"batch": 8, "microbatches": 8, "model": MODEL.replace(tied=True)}
    assert_equal("3d_pipeline_parallel", name, changes=changes, **WHOLE)


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize(
    ("mesh", "nodes"),
    [(Mesh(tp=2, pp=2, dp=2), 4), (Mesh(dp=8), 4), (Mesh(cp=2, tp=2, dp=2), 2), (Mesh(dp=3, pp=3), 4)],
    ids=repr,
)
def test_the_global_norm_couples_all_axes(mesh, nodes, zero):
    model = SMALL.replace(tied=True)
    assert_grid(mesh, replace(ROOMY, gpus_per_node=nodes), model=model, zero=zero, **CLIPPED)


@pytest.mark.parametrize("zero", [0, 2])
@pytest.mark.parametrize("mesh", [Mesh(dp=4, ep=4), Mesh(tp=2, pp=2, dp=4, ep=2)], ids=repr)
def test_the_global_norm_of_experts_goes_over_ep_besides(mesh, zero):
    assert_grid(mesh, model=ALL_EXPERTS, zero=zero, **CLIPPED)


@pytest.mark.parametrize("name", ["DDP overlapped", "ZeRO-1", "ZeRO-2", "FSDP prefetch"])
def test_the_global_norm_in_every_form_of_data_parallelism(name):
    assert_equal("1d_data_parallel", name, gpus=8, changes=CLIPPED, **ONE_D[name])


@pytest.mark.parametrize("name", ["GPipe", "1F1B", "interleaved", "ZB-V"])
def test_the_global_norm_in_what_times_thousands_of_gpus(name):
    changes = {"batch": 8, "microbatches": 8} | CLIPPED
    assert_equal("3d_pipeline_parallel", name, changes=changes, **WHOLE)


BF16: dict[str, Any] = {"dtype": "bfloat16"}


@pytest.mark.parametrize("microbatches", [1, 2])
@pytest.mark.parametrize("name", ONE_D)
def test_bfloat16_weights_travel_in_two_bytes_and_gradients_in_four(name, microbatches):
    assert_equal("1d_data_parallel", name, changes=BF16 | {"microbatches": microbatches}, **ONE_D[name])


@pytest.mark.parametrize("name", TENSOR)
def test_bfloat16_activations_travel_in_two_bytes(name):
    assert_equal("2d_tensor_parallel", name, changes=BF16, **WHOLE)


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("context_parallel", VARIANTS)
@pytest.mark.parametrize(
    ("mesh", "recompute"),
    [(Mesh(tp=2, pp=2, dp=2), "none"), (Mesh(cp=2, dp=4), "selective"), (Mesh(cp=2, tp=2, dp=2), "none")],
    ids=repr,
)
def test_bfloat16_masters_are_sharded_with_the_optimizer(mesh, recompute, context_parallel, zero):
    changes = {"zero": zero, "recompute": recompute, "context_parallel": context_parallel} | BF16 | CLIPPED
    changes["grad_reduce_in_bf16"] = zero % 2 == 1
    assert_grid(mesh, model=SMALL.replace(tied=True), **changes)


def random_grid(draw: random.Random) -> tuple[Mesh, Hardware, dict]:
    """A grid, whether it can be cut so or not, whose experts all get every row."""
    dp = draw.choice([1, 2, 3, 4, 5, 6])
    tp, cp, pp = draw.choice([1, 1, 2]), draw.choice([1, 1, 2]), draw.choice([1, 1, 2, 3])
    etp = draw.choice([1, tp])
    ep = draw.choice([ep for ep in (1, 2, 3, 4) if tp * cp * dp // etp % ep == 0])
    mesh = Mesh(tp, cp, dp, pp, ep, etp=etp)
    some = {"experts": 12, "top_k": 12} if ep > 1 or draw.random() < 0.3 else {}
    schedule = draw.choice(written_schedules()) if mesh.pp > 1 else "1f1b"
    return mesh, replace(ROOMY, gpus_per_node=draw.choice([1, 2, 3, 4, 8])), {
        "model": SMALL.replace(layers=draw.choice([3, 4, 7]), vocab=draw.choice([256, 257, 258]), **some),
        "dtype": draw.choice(["float32", "float64"]),
        "zero": draw.choice([0, 1, 2, 3]),
        "recompute": draw.choice(["none", "selective", "full"]),
        "sequence_parallel": draw.choice(["none", "sp", "sp-regather"]) if mesh.tp > 1 else "none",
        "context_parallel": draw.choice(VARIANTS),
        "schedule": schedule,
        "stage_chunks": chunks_of(schedule) if mesh.pp > 1 else None,
    }  # fmt: skip


def can_be_cut(mesh: Mesh, changes: dict) -> bool:
    try:
        return bool(grid_job(mesh, changes))
    except UserError:
        return False


@pytest.mark.parametrize("seed", range(24))
def test_any_small_grid(seed):
    draw, held = random.Random(seed), False
    while not held:
        mesh, hardware, changes = random_grid(draw)
        held = mesh.world_size <= 24 and can_be_cut(mesh, changes)
    assert_grid(mesh, hardware, **changes)


@pytest.mark.parametrize(("mesh", "changes"), [
    (Mesh(tp=2, dp=4, ep=2), {"model": ALL_EXPERTS.replace(vocab=257)}),
    (Mesh(tp=4, pp=2, dp=2), {"model": SMALL.replace(vocab=258), "sequence_parallel": "sp", "zero": 2}),
    (Mesh(tp=4, pp=2, dp=2), {"model": TIED.replace(vocab=259), "zero": 1, **CLIPPED}),
    (Mesh(tp=4, dp=3), {"model": SMALL.replace(vocab=259), "sequence_parallel": "sp-regather", "zero": 3}),
], ids=repr)  # fmt: skip
def test_a_vocabulary_that_tp_does_not_divide_is_timed_with_each_ranks_own_part(mesh, changes):
    """Ranks with a row less are ready a little earlier, and so are those that wait for theirs."""
    assert_grid(mesh, replace(ROOMY, gpus_per_node=2), **changes)


def test_a_tp_group_that_reaches_from_one_node_into_the_next():
    assert_grid(Mesh(tp=2, pp=2, dp=2), replace(ROOMY, gpus_per_node=3), zero=1)


@pytest.mark.parametrize(("mesh", "zero"), [(Mesh(tp=2, pp=2, dp=2), 1), (Mesh(dp=4), 3)], ids=repr)
def test_the_picture_of_a_predicted_grid_has_every_operation_and_collective_of_the_executed_run(mesh, zero):
    lesson = grid_job(mesh, {"zero": zero})
    program = strategy("4d_combined", "DP only").program
    results = launch(program, mesh.world_size, ROOMY, lesson, engine="inline")
    job, plan = planned(lesson, ROOMY, zero=zero, grid=True)
    for rank, streams in enumerate(traced_grid(ExecutedWorkload(job, plan))):
        events = map(Event._make, results[mesh.rank(pp=rank)].events)
        executed = [
            (each.stream, each.start, each.end) for each in events if each.kind in (COMPUTE, COLLECTIVE)
        ]
        waits = ("bubble", *mesh.order.split("-"))
        noted = [moment for *moment, what in streams.trace or () if what not in waits]
        names, begins, ends = zip(*sorted(executed))
        found, found_begins, found_ends = zip(*sorted(noted))
        assert (found, len(found) > 100) == (names, True)
        assert found_begins == pytest.approx(begins) and found_ends == pytest.approx(ends)


# ---------------------------------------------------------------------------- experts that are not in balance

UNEVEN = SMALL.replace(experts=8, top_k=2, shared_experts=1, sequence=32)


def assert_followed(mesh: Mesh, hardware: Hardware = ROOMY, **changes):
    """A prediction that is given the run's own token counts; without them it would be another."""
    lesson, results = executed_grid(mesh, hardware, {"model": UNEVEN} | changes)
    job, plan = planned(lesson, hardware, zero=lesson.zero, grid=True)
    assert not in_balance(results)
    assert float(time_step(job, plan).seconds) != pytest.approx(seconds_of(results), rel=1e-3)
    assert_predicted(
        results,
        replace(job, token_counts=TokenCounts.of_step([result.value.routed[0] for result in results])),
        plan,
    )


@pytest.mark.parametrize("factor", [None, 1.0], ids=["dropless", "capacity"])
@pytest.mark.parametrize("seed", range(3))
def test_the_4d_lessons_own_router_with_its_token_counts(seed, factor):
    assert_followed(
        Mesh(tp=2, pp=2, dp=2, ep=2), seed=seed, batch=8, model=UNEVEN.replace(capacity_factor=factor)
    )


@pytest.mark.parametrize(("mesh", "changes"), [
    (Mesh(dp=4, ep=4), {"model": UNEVEN.replace(balance_loss=0.0, shared_experts=0)}),
    (Mesh(dp=4, ep=2), {"zero": 3, "microbatches": 2, "batch": 8}),
    (Mesh(tp=2, dp=2, ep=2), {"recompute": "full", "sequence_parallel": "sp-regather"}),
    (Mesh(tp=4, dp=2, ep=2), {"recompute": "selective", "sequence_parallel": "sp"}),
    (Mesh(tp=2, pp=2, dp=2, ep=2), {"schedule": "zb-v", "stage_chunks": 2, "zero": 2}),
    (Mesh(tp=2, cp=2, pp=2, dp=2, ep=2), {"zero": 1}),
    (Mesh(tp=2, dp=2, ep=4, etp=1), {"sequence_parallel": "sp"}),
    (Mesh(tp=2, cp=2, pp=2, ep=2, etp=1), {"zero": 1}),
], ids=repr)  # fmt: skip
def test_a_router_that_is_not_in_balance(mesh, changes):
    assert_followed(mesh, **changes)


def test_a_router_that_leaves_experts_without_rows():
    """As many experts as tokens: some get none, skip their kernels, and their ranks wait."""
    lesson, results = executed_grid(Mesh(dp=4, ep=4), ROOMY, {"model": SMALL.replace(experts=16, top_k=1)})
    assert any(0 in what.expert_rows for result in results for what in result.value.routed[0].values())
    assert_followed(Mesh(dp=4, ep=4), model=SMALL.replace(experts=16, top_k=1))


def test_token_counts_of_a_pipeline_rank_without_a_layer():
    """Two layers on three ranks: the first has the embedding alone, and routes nothing."""
    assert_followed(Mesh(pp=3, dp=2, ep=2), model=UNEVEN.replace(layers=2), batch=12)


def test_token_counts_over_links_of_both_kinds():
    assert_followed(Mesh(dp=4, ep=4, tp=2), batch=8)
    assert_followed(Mesh(dp=4, ep=4, tp=2), replace(ROOMY, gpus_per_node=3), batch=8)


def test_token_counts_of_another_run_are_refused():
    lesson, results = executed_grid(Mesh(dp=2, ep=2), ROOMY, {"model": UNEVEN})
    job, plan = planned(lesson, ROOMY, grid=True)
    counts = TokenCounts.of_step([result.value.routed[0] for result in results])
    with pytest.raises(UserError, match="no layer 0, microbatch 1: give those of a run of this job"):
        time_step(replace(job, token_counts=counts, global_batch=2 * job.global_batch), plan)
    with pytest.raises(UserError, match="take the pocket stack as it is"):
        time_step(replace(job, token_counts=counts, stack=replace(job.stack, grid=False)), plan)
    with pytest.raises(UserError, match="of software megatron-core say routing_imbalance"):
        replace(job, token_counts=counts, stack=find_stack("megatron-core"))
