"""A mixture of experts: the router's mathematics, the same numbers on any mesh, and what imbalance costs."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu import COLLECTIVE, COMPUTE, RECEIVE, SEND, Event
from ndparallel.base.errors import UserError
from ndparallel.engines.launch import launch
from ndparallel.hardware.pocket import POCKET
from ndparallel.model import functional, routing
from ndparallel.model.units import ModelConfig
from ndparallel.parallel.mesh import Mesh
from ndparallel.parallel.slices import views
from ndparallel.training.gradient_check import gradient_difference, whole_tensors
from ndparallel.training.job import Job
from ndparallel.training.replica import Replica
from tests.support import hand_count
from tests.support.common import SMALL, loss_and_gradient_difference, strategy
from tests.support.meshes import (
    EXPERT_JOBS,
    EXPERT_MESHES,
    EXPERT_MODELS,
    MOE,
    both_passes,
    differences,
    forward_only,
    layouts,
    name,
    run,
)


def sizes_of(job: Job, rank: int):
    mesh, tp = job.mesh, job.mesh.coordinates(rank)["tp"]
    return hand_count.Sizes(
        job.model,
        job.microbatch,
        mesh.tp,
        tp,
        job.sequence_parallel,
        job.dtype,
        mesh.cp,
        job.context_parallel,
        mesh.ep,
        mesh.etp,
    )


def events(result, kind: str, stream: str | None = None) -> list[Event]:
    return [
        event
        for event in map(Event._make, result.events)
        if event.kind == kind and stream in (None, event.stream)
    ]


# ----------------------------------------------------------------------------------- the router's mathematics


def test_a_token_goes_to_its_most_probable_experts_and_of_equal_ones_to_the_lower_index():
    probabilities = np.array([[0.1, 0.4, 0.1, 0.4], [0.25, 0.25, 0.25, 0.25], [0.3, 0.2, 0.4, 0.1]])
    assert routing.top_k(probabilities, 3).tolist() == [[1, 3, 0], [0, 1, 2], [2, 0, 1]]


@given(st.integers(1, 20), st.integers(1, 6), st.data())
def test_an_expert_takes_the_earliest_tokens_up_to_its_limit(tokens, experts, data):
    k, limit = data.draw(st.integers(1, experts)), data.draw(st.integers(0, 8))
    generator = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    chosen = routing.top_k(generator.random((tokens, experts)), k)
    order, counts = routing.assign(chosen, experts, limit)
    expected = [
        [token for token in range(tokens) if expert in chosen[token]][:limit] for expert in range(experts)
    ]
    assert counts.tolist() == [len(mine) for mine in expected]
    assert (order // k).tolist() == [token for mine in expected for token in mine]
    assert chosen.reshape(-1)[order].tolist() == [
        expert for expert, mine in enumerate(expected) for _ in mine
    ]


def test_nothing_is_dropped_at_capacity_1_when_tokens_spread_evenly():
    chosen = np.array([[token % 4, (token + 1) % 4] for token in range(12)], np.int32)
    order, counts = routing.assign(chosen, 4, routing.capacity(1.0, 12, 2, 4))
    assert counts.tolist() == [6, 6, 6, 6] and len(order) == 24


def test_the_balance_loss_is_1_where_experts_are_equally_busy_and_more_where_they_are_not():
    even = np.full((4, 1, 4), 0.25)
    spread = np.array([[token] for token in range(4)], np.int32)
    crowded = np.zeros((4, 1), np.int32)
    loss, frequencies = routing.balance(routing.balance_counts(spread, even), 4, 1)
    assert loss == 1 and frequencies.tolist() == [[1, 1, 1, 1]]
    certain = np.zeros((4, 1, 4))
    certain[..., 0] = 1
    assert routing.balance(routing.balance_counts(crowded, certain), 4, 1)[0] == 4


@pytest.mark.parametrize("renormalise", [True, False])
def test_the_gates_gradient_is_that_of_finite_differences(renormalise):
    generator = np.random.default_rng(0)
    logits, dgates = generator.standard_normal((5, 6)), generator.standard_normal((5, 3))
    chosen = routing.top_k(functional.softmax(logits.copy()), 3)

    def value(logits):
        return np.sum(dgates * routing.gates(functional.softmax(logits.copy()), chosen, renormalise))

    probabilities = functional.softmax(logits.copy())
    dprobabilities = routing.gates_backward(dgates, probabilities, chosen, renormalise)
    assert functional.softmax_backward(dprobabilities, probabilities) == pytest.approx(
        slopes(value, logits), abs=1e-8
    )


def slopes(value, x: np.ndarray, step: float = 1e-6) -> np.ndarray:
    """Central differences of a function by every element of x."""
    found = np.empty_like(x)
    for index in np.ndindex(x.shape):
        sides = []
        for sign in (1, -1):
            moved = x.copy()
            moved[index] += sign * step
            sides.append(value(moved))
        found[index] = (sides[0] - sides[1]) / (2 * step)
    return found


def gradients_and_slopes(gpu, job: Job, picks: int) -> list[tuple[str, float, float]]:
    """Of some elements of every tensor: name, gradient, and what moving the element does to the loss."""
    replica, found = Replica(gpu, job), []
    generator = np.random.default_rng(1)
    for _ in replica.steps():
        replica.forward(0)
        replica.backward(0)
        for bucket in replica.parts:
            parameters = [parameter for unit in bucket.units for parameter in unit.parameters]
            weights, gradients = views(parameters, bucket.weights), views(parameters, bucket.gradients)
            for (tensor, weight), (_, gradient) in zip(weights, gradients):
                for element in generator.integers(weight.size, size=picks):
                    found.append(
                        (tensor.name, float(gradient.flat[element]), slope(replica, weight, element))
                    )
    return found


def slope(replica: Replica, weight: np.ndarray, element: int, step: float = 1e-6) -> float:
    """The central difference of cross-entropy and balance loss together."""
    sides, start = [], weight.flat[element]
    for sign in (1, -1):
        weight.flat[element] = start + sign * step
        replica.forward(0)
        sides.append(
            replica.context.losses[0] + sum(routed.balance_loss for routed in replica.context.routed.values())
        )
    weight.flat[element] = start
    return (sides[0] - sides[1]) / (2 * step)


@pytest.mark.parametrize("job", EXPERT_JOBS.values(), ids=EXPERT_JOBS)
def test_every_gradient_is_that_of_finite_differences(job):
    job = job.replace(model=replace(job.model, layers=1), batch=2, dtype="float64")
    roomy = replace(POCKET, memory_bytes=float("inf"))
    [result] = launch(gradients_and_slopes, 1, roomy, job, 5, engine="inline")
    tensors = {tensor for tensor, _, _ in result.value}
    assert {
        "layers.0.router",
        "layers.0.experts.gate_up",
        "layers.0.experts.down",
        "layers.0.norm2",
    } <= tensors
    for tensor, gradient, found in result.value:
        assert gradient == pytest.approx(found, rel=1e-5, abs=1e-8), tensor


# ------------------------------------------------------------------------------------ the numbers of any mesh


@pytest.mark.parametrize("job", EXPERT_JOBS.values(), ids=EXPERT_JOBS)
def test_no_choice_is_near_a_tie(job):
    """What makes the comparison fair: rounding never changes who is chosen."""
    [result] = run(job, smallest_margins)
    assert min(result.value) > 1e-4


def smallest_margins(gpu, job: Job) -> list[float]:
    """Of every layer, how far the last expert chosen is ahead of the first one not chosen."""
    replica, k = Replica(gpu, job), job.model.top_k
    for _ in replica.steps():
        replica.forward(0)
    saved = [unit.saved["norm2", 0]["probabilities"] for unit in replica.units if unit.inner]
    ordered = [np.sort(probabilities, axis=-1)[..., ::-1] for probabilities in saved]
    return [float(np.min(found[..., k - 1] - found[..., k])) for found in ordered]


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1", "zb-v"])
def test_a_pipeline_computes_the_experts_weight_gradients_later(schedule):
    model = replace(EXPERT_JOBS["shared"].model, layers=4)
    job = EXPERT_JOBS["shared"].replace(
        model=model,
        mesh=Mesh(pp=2, tp=2),
        dtype="float64",
        microbatches=4,
        schedule=schedule,
        sequence_parallel="sp",
    )
    results = launch(strategy("3d_pipeline_parallel", "ZB-V").program, 4, POCKET, job, engine="inline")
    assert max(loss_and_gradient_difference(results, job)) <= 1e-12


def test_full_recomputation_changes_no_gradient():
    job = EXPERT_JOBS["shared"].replace(mesh=Mesh(dp=2, ep=2, tp=2), dtype="float64", recompute="full")
    assert max(differences(job)) <= 1e-12


@layouts(EXPERT_MESHES)
def test_no_split_changes_the_balance_loss(mesh, sequence_parallel):
    """A sequence's, summed over the ranks that share it; a batch's is the mean over its sequences."""

    def balance_loss(job):
        losses: dict[str, list[float]] = {}
        for result in run(job, forward_only):
            for (layer, _), routed in result.value[1].routed[0].items():
                losses.setdefault(layer, []).append(routed.balance_loss)
        return {layer: np.mean(values) for layer, values in losses.items()}

    job = EXPERT_JOBS["many"].replace(
        mesh=mesh, dtype="float64", sequence_parallel=sequence_parallel, microbatches=2
    )
    assert balance_loss(job) == pytest.approx(balance_loss(job.work), rel=1e-12)


@pytest.mark.parametrize(("etp", "axes"), [(2, ["dp_cp"]), (1, ["dp_cp", "tp"])])
def test_experts_are_spread_over_the_ranks_of_a_stage_seen_twice(etp, axes):
    """ep adds no ranks: ep times expert_dp is cp times dp, and with whole experts tp too."""
    mesh = Mesh(tp=2, cp=2, dp=4, pp=2, ep=2, etp=etp)
    for rank in range(mesh.world_size):
        assert spanned(mesh, ["ep", "expert_dp"], rank) == spanned(mesh, axes, rank)


def spanned(mesh: Mesh, axes: list[str], rank: int) -> set[int]:
    """The ranks that one comes to along these axes."""
    ranks = {rank}
    for axis in axes:
        ranks = {member for each in ranks for member in mesh.group(axis, each).ranks}
    return ranks


# ------------------------------------------------------------------------------- capacity, ties, idle experts


def test_a_capacity_that_no_expert_reaches_changes_nothing():
    """A token goes to an expert once, so factor experts / top_k has room for all."""
    dropless = EXPERT_JOBS["shared"].replace(mesh=Mesh(dp=2, ep=2))
    roomy = dropless.replace(model=replace(dropless.model, capacity_factor=2.0))
    for one, other in zip(run(dropless), run(roomy)):
        assert all((a.array == b.array).all() for a, b in zip(one.value.gradients, other.value.gradients))
        assert not any(routed.dropped for routed in other.value.routed[0].values())


@pytest.mark.parametrize("mesh", [Mesh(), Mesh(dp=2, ep=2), Mesh(dp=2, ep=2, tp=2)], ids=name)
def test_what_is_over_an_experts_capacity_is_dropped_and_counted_by_its_source(mesh):
    factor = 0.75
    job = Job(model=replace(EXPERT_MODELS["shared"], capacity_factor=factor), mesh=mesh)
    tokens = job.microbatch * job.model.sequence // mesh.tp
    limit = int(np.ceil(factor * tokens * 2 / 4))
    results = [result.value[1].routed[0] for result in run(job, forward_only)]
    for routed in results:
        for what in routed.values():
            assert max(what.expert_rows) <= limit * mesh.ep * mesh.etp
            assert 0 < what.dropped < 2 * tokens
    for layer in ("layers.0", "layers.1"):
        sent = sum(2 * tokens - routed[layer, 0].dropped for routed in results)
        assert sent == sum(sum(routed[layer, 0].expert_rows) for routed in results) / mesh.tp


def with_ties(gpu, job: Job):
    """One step with a router of zeros: every token finds all experts equally good."""
    replica = Replica(gpu, job)
    for _ in replica.steps():
        for unit in replica.units:
            if unit.inner:
                unit.w["router"][...] = 0
        replica.forward(0)
        replica.backward(0)
        replica.sum_shared()
        for bucket in replica.buckets:
            bucket.all_reduce()
        replica.optimizer_step()
    return replica.outcome


@pytest.mark.parametrize("mesh", EXPERT_MESHES, ids=name)
def test_an_expert_without_tokens_has_gradient_0_and_its_rank_takes_part(mesh):
    """All tokens go to experts 0 and 1, whatever the mesh; the others are on ranks of their own."""
    job = EXPERT_JOBS["shared"].replace(mesh=mesh, dtype="float64")
    [single] = run(job.work, with_ties)
    whole = whole_tensors(single.value.gradients)
    assert all((whole[f"layers.1.experts.{weight}"][2:] == 0).all() for weight in ("gate_up", "down"))
    assert all((whole["layers.1.experts.down"][expert] != 0).any() for expert in (0, 1))
    results = run(job, with_ties)
    assert gradient_difference((result.value for result in results), whole) <= 1e-12
    for result in results:
        first = mesh.coordinates(result.rank)["ep"] * 4 // mesh.ep
        busy = [bool(rows) for rows in result.value.routed[0]["layers.1", 0].expert_rows]
        assert busy == [expert < 2 for expert in range(first, first + 4 // mesh.ep)]


# ---------------------------------------------------------------------------------- operations, memory, bytes


@layouts(EXPERT_MESHES)
def test_the_executed_operations_are_the_listed_ones(mesh, sequence_parallel):
    job = EXPERT_JOBS["shared"].replace(mesh=mesh, sequence_parallel=sequence_parallel)
    for result in run(job, both_passes):
        z, routed = sizes_of(job, result.rank), result.value[1].routed[0]["layers.1", 0]
        attention = hand_count.attention(z)
        experts = hand_count.experts(z, z.routed_tokens * job.model.top_k, routed.expert_rows)
        listed = {
            "forward": attention.forward + experts.forward,
            "backward": experts.backward + attention.backward,
        }
        for phase, operations in listed.items():
            charged = Counter(
                (event.what.split()[-1], event.flops, event.bytes)
                for event in events(result, COMPUTE)
                if event.what.startswith((f"{phase} layers.1 ", f"{phase} layers.1.experts "))
            )
            assert charged == Counter(
                (operation.name.split()[-1], operation.flops, operation.bytes) for operation in operations
            )


KEPT = [("shared", "float32", None), ("many", "float64", None), ("unshared", "float32", 0.75)]


@pytest.mark.parametrize(("name", "dtype", "factor"), KEPT)
@layouts(EXPERT_MESHES)
def test_the_memory_kept_for_the_backward_pass_is_the_listed_one_to_the_byte(
    mesh, sequence_parallel, name, dtype, factor
):
    job = EXPERT_JOBS[name]
    model = replace(job.model, capacity_factor=factor)
    job = job.replace(model=model, mesh=mesh, dtype=dtype, sequence_parallel=sequence_parallel)
    for result in run(job, forward_only):
        z, (held, outcome) = sizes_of(job, result.rank), result.value
        elements: float = model.layers * sum(hand_count.attention_saved(z).values()) + hand_count.head_saved(
            z
        )
        for routed in outcome.routed[0].values():
            elements += sum(
                hand_count.experts_saved(
                    z, z.routed_tokens * model.top_k - routed.dropped, sum(routed.expert_rows)
                ).values()
            )
        assert held == elements * np.dtype(dtype).itemsize + z.tokens
    assert all(result.value[0] == 0 for result in run(job, both_passes)), (
        "everything that was kept was given back"
    )


@pytest.mark.parametrize("mesh", [Mesh(dp=2, ep=2), Mesh(dp=2, ep=2, tp=2), Mesh(dp=2, ep=2, cp=2)], ids=name)
def test_compute_of_all_ranks_together_is_the_single_gpus_but_for_sorting(mesh):
    def flops(job):
        return sum(event.flops for result in run(job, both_passes) for event in events(result, COMPUTE))

    job = EXPERT_JOBS["shared"].replace(mesh=mesh)
    assert flops(job) == flops(job.work)


@pytest.mark.parametrize("sequence_parallel", ["none", "sp"])
def test_a_row_crosses_the_ep_links_once_each_way_whatever_tp_is(sequence_parallel):
    """And only where its expert is on another rank: forward there and back, backward there and back, in every
    layer."""

    def crossed(tp):
        job = EXPERT_JOBS["unshared"].replace(
            mesh=Mesh(dp=2, ep=2, tp=tp), sequence_parallel=sequence_parallel
        )
        results = run(job, both_passes)
        counts = {
            event.what[0][1]
            for result in results
            for event in events(result, SEND, "ep")
            if event.bytes == 2 * 4
        }
        sent = sum(
            event.bytes
            for result in results
            for event in events(result, SEND, "ep")
            if event.what[0][1] not in counts
        )
        return sent, results

    sent, results = crossed(1)
    assert crossed(2)[0] == sent
    chosen = [sum(routed.expert_rows) for result in results for routed in result.value[1].routed[0].values()]
    assert 0 < sent < 4 * sum(chosen) * SMALL.hidden * 4


# ------------------------------------------------------------------------------------------ imbalance in time


def test_the_rank_of_the_popular_experts_holds_all():
    """With ties all rows go to rank 0's experts: its work is that of all ranks, and the others wait for
    it."""
    job = EXPERT_JOBS["unshared"].replace(
        model=replace(EXPERT_MODELS["unshared"], layers=1, balance_loss=0.0), mesh=Mesh(dp=2, ep=2), batch=64
    )
    crowded = run(job, with_ties)
    rows = [result.value.routed[0]["layers.0", 0].expert_rows for result in crowded]
    assert sum(rows[0]) == 2 * 64 * SMALL.sequence and sum(rows[1]) == 0
    work = [sum(event.end - event.start for event in expert_events(result)) for result in crowded]
    assert work[1] == 0
    balanced = run(job)
    shares = [sum(event.end - event.start for event in expert_events(result)) for result in balanced]
    assert work[0] == pytest.approx(sum(shares), rel=0.1)
    longer = max(result.end_seconds for result in crowded) - max(result.end_seconds for result in balanced)
    assert longer > 0.9 * (work[0] - max(shares))


def expert_events(result) -> list[Event]:
    return [event for event in events(result, COMPUTE) if ".experts " in event.what]


def test_senders_queue_at_the_popular_door():
    """Three ranks send all their rows to the fourth, which takes them in one after another: 3 n /
    bandwidth."""
    job = EXPERT_JOBS["one"].replace(
        model=replace(EXPERT_MODELS["one"], layers=1, shared_experts=0), mesh=Mesh(dp=4, ep=4)
    )
    results = run(job, with_ties)
    arrivals = [event for event in events(results[0], RECEIVE, "ep") if event.bytes > 1000][:3]
    n = job.microbatch * SMALL.sequence * SMALL.hidden * 4
    assert [event.bytes for event in arrivals] == [n] * 3
    gaps = np.diff([event.end for event in arrivals])
    assert gaps == pytest.approx([n / POCKET.inside.bandwidth_bytes_per_second] * 2, rel=1e-9)


def test_shared_experts_compute_while_rows_travel():
    """Across nodes, all of it is hidden behind the rows' way to the experts."""
    job = EXPERT_JOBS["shared"].replace(mesh=Mesh(dp=2, ep=2))
    for result in run(job, forward_only, replace(POCKET, gpus_per_node=1)):
        travelling = events(result, COLLECTIVE, "ep")[1::3]  # of each layer: counts, rows there, rows back
        shared = [
            event
            for event in events(result, COMPUTE)
            if event.what.endswith((" gate_up", " swiglu", " down"))
        ]
        shared = [event for event in shared if ".experts " not in event.what]
        assert len(travelling) == MOE.layers and len(shared) == 3 * MOE.layers
        for layer, rows in enumerate(travelling):
            assert all(
                rows.start <= event.start and event.end < rows.end
                for event in shared[3 * layer : 3 * layer + 3]
            )


# ----------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("changes", "mesh", "said"),
    [
        ({"experts": 0}, Mesh(dp=2, ep=2), "ep=2 shares out experts, and this model has none"),
        ({"experts": 6}, Mesh(dp=4, ep=4), "ep=4 cannot share out 6 experts evenly; ep can be 1, 2, 3, 6"),
        ({"top_k": 5}, Mesh(), "a token cannot go to 5 of 4 experts; top_k can be 1 to 4"),
        ({"capacity_factor": 0.0}, Mesh(), "the capacity factor is 0.0; it must be above 0"),
        ({"expert_ffn": 6}, Mesh(tp=4), "^tp=4 cannot cut experts of width 6"),
        ({"expert_ffn": 9}, Mesh(tp=4, etp=2), "^etp=2 cannot cut experts of width 9"),
        ({"expert_ffn": 6}, Mesh(tp=4, etp=2), "^tp=4 cannot cut shared experts of width 6"),
        ({}, Mesh(tp=4, cp=8), "tp=4 cannot cut the tokens of a sequence, 2"),
    ],
)
def test_experts_that_cannot_be_cut_are_refused_in_a_sentence(changes, mesh, said):
    with pytest.raises(UserError, match=said):
        Job(model=replace(MOE, **changes), mesh=mesh)


def test_whole_experts_may_have_a_width_that_tp_does_not_divide():
    narrow = replace(MOE, expert_ffn=9, shared_experts=0)
    assert Job(model=narrow, mesh=Mesh(tp=4, etp=1)).mesh.etp == 1
    assert Job(model=replace(narrow, shared_experts=4), mesh=Mesh(tp=4, etp=1)).mesh.etp == 1


def test_a_dense_model_is_what_it_was():
    assert ModelConfig().experts == 0
    assert not any(parameter.startswith("layers.0.router") for parameter in parameter_names(Job(model=SMALL)))


def parameter_names(job: Job) -> list[str]:
    [result] = run(job)
    return [parameter.name for holding in result.value.gradients for parameter in holding.parameters]
