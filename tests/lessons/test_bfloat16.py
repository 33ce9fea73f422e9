"""bfloat16 weights with float32 masters: what is rounded, what travels in two bytes, what one GPU gets."""

import json
from dataclasses import replace

import numpy as np
import pytest

from ndparallel.base.bfloat16 import UNIT_ROUNDOFF, BFloat16, as_dtype, from_wire, kernel, to_wire, wide
from ndparallel.base.errors import UserError
from ndparallel.engines.launch import launch
from ndparallel.hardware.pocket import POCKET
from ndparallel.lessons.main import main
from ndparallel.lessons.registry import LESSONS, load
from ndparallel.lessons.runner import Runner, entry_of
from ndparallel.model.optimizer import MasterWeights, make_optimizer
from ndparallel.parallel.mesh import Mesh
from ndparallel.training.gradient_check import tolerance_of, whole_tensors
from ndparallel.training.job import Job
from tests.support.common import (
    SMALL,
    loss_and_gradient_difference,
    measured,
    names,
    on_mesh,
    reference,
    run,
    strategy,
)

MODEL = SMALL.replace(layers=8, hidden=32, heads=8, kv_heads=2, sequence=32)
JOB = Job(model=MODEL, dtype="bfloat16")
ROUTED = {"with experts, EP", *names("ep_expert_parallel")}
EVERY = [(lesson, name) for lesson in LESSONS for name in names(lesson) if name not in ROUTED]


# ------------------------------------------------------------------------------------------------ the numbers


def nearest(value: float) -> float:
    """The nearest bfloat16, ties to even, by arithmetic alone: 8 bits of significand."""
    if value == 0 or not np.isfinite(value):
        return value
    fraction, exponent = np.frexp(value)
    return float(np.ldexp(np.rint(np.ldexp(fraction, 8)), exponent - 8))


def test_rounding_is_to_the_nearest_number_of_8_bits_and_ties_to_even():
    draw = np.random.default_rng(0)
    values = (draw.standard_normal(10_000) * 10.0 ** draw.integers(-30, 30, 10_000)).astype(np.float32)
    ties = np.array([1 + 2.0**-8, 1 + 3 * 2.0**-8, -1 - 2.0**-8, 257, 259, np.inf, -np.inf, 0], np.float32)
    for given in (values, ties):
        assert wide(as_dtype(given, "bfloat16")).tolist() == [nearest(float(value)) for value in given]
    assert np.isnan(wide(as_dtype(np.array([np.nan]), "bfloat16"))).all()


def test_an_array_counts_two_bytes_a_number_and_what_is_computed_of_it_too():
    x = as_dtype(np.random.default_rng(1).standard_normal((6, 4)), "bfloat16")
    made = [x @ x.T, x + x, 2.0 * x, x[1:3].T, np.concatenate([x, x]), np.stack([x, x]), np.empty_like(x)]
    for array in (*made, x.sum(axis=0), np.where(x > 0, x, 0), x.copy()):
        assert isinstance(array, BFloat16) and array.nbytes == 2 * array.size
    assert np.argsort(-x, kind="stable").astype(np.int32).nbytes == 4 * x.size


def test_a_product_is_summed_in_float32_and_rounded_once():
    x = as_dtype(np.random.default_rng(2).standard_normal((8, 512)), "bfloat16")
    assert (wide(x @ x.T) == wide(as_dtype(wide(x) @ wide(x).T, "bfloat16"))).all()


def test_with_float32_beside_it_the_result_is_float32():
    x, single = as_dtype(np.ones(3), "bfloat16"), np.full(3, 1e-4, np.float32)
    assert type(x + single) is np.ndarray and (x + single > 1).all()
    single += x
    assert type(single) is np.ndarray
    x += np.full(3, 1e-4, np.float32)
    assert (wide(x) == 1).all()


def test_what_is_added_at_places_is_rounded_too():
    """As gradients of a table's rows are: some rows come up twice."""
    table, places = as_dtype(np.ones((3, 4)), "bfloat16"), [2, 0, 2]
    rows = np.random.default_rng(3).standard_normal((3, 4)).astype(np.float32)
    added = np.array([1 + rows[1], np.ones(4), 1 + rows[0] + rows[2]])
    np.add.at(table, places, rows)
    assert wide(table).tolist() == [[nearest(float(value)) for value in row] for row in added]


def test_a_kernel_of_several_functions_rounds_once():
    x = as_dtype(np.array([1.0, 3.0]), "bfloat16")
    thrice = kernel(lambda x: x / 3 / 3 / 3)
    assert (wide(thrice(x)) == wide(as_dtype(wide(x) / 27, "bfloat16"))).all()


def test_two_bytes_a_number_travel_and_arrive_unchanged():
    x = as_dtype(np.random.default_rng(3).standard_normal((5, 3)), "bfloat16")
    assert to_wire(x).nbytes == 30 and (wide(from_wire(to_wire(x))) == wide(x)).all()


# ------------------------------------------------------------------------------------------------- one GPU


@pytest.mark.parametrize(("lesson", "name"), EVERY)
def test_every_strategy_is_one_gpus_within_the_bound_of_its_roundings(lesson, name):
    assert_one_gpus(lesson, name, {})


@pytest.mark.parametrize(("lesson", "name"), EVERY[::3])
def test_so_it_is_with_gradients_reduced_in_bfloat16_and_clipped(lesson, name):
    assert_one_gpus(lesson, name, {"grad_reduce_in_bf16": True, "clip_grad_norm": 0.5})


@pytest.mark.parametrize("name", names("ep_expert_parallel"))
def test_experts_to_which_every_token_goes_are_one_gpus_too(name):
    """No rounding can send a token elsewhere."""
    assert_one_gpus("ep_expert_parallel", name, {"model": MODEL.replace(experts=8, top_k=8)})


@pytest.mark.parametrize(("mesh", "changes"), [
    (Mesh(tp=2, dp=2, ep=2), {"sequence_parallel": "sp"}),
    (Mesh(tp=2, pp=2, dp=2, ep=2), {"zero": 2, "microbatches": 4}),
    (Mesh(dp=4, ep=4), {"zero": 3, "clip_grad_norm": 0.5}),
], ids=repr)  # fmt: skip
def test_experts_in_a_grid_to_which_every_token_goes(mesh, changes):
    job = JOB.replace(model=MODEL.replace(experts=4, top_k=4, shared_experts=1), **changes)
    loss, gradient = loss_and_gradient_difference(run(on_mesh("4d_combined", "DP only", mesh), job, 8), job)
    assert gradient <= allowed(job) and loss <= 2 * UNIT_ROUNDOFF


@pytest.mark.parametrize("tied", [False, True])
def test_roundings_are_told_by_the_single_gpus_run_in_float32(tied):
    job = JOB.replace(model=MODEL.replace(tied=tied))
    rounded, exact = (whole_tensors(reference(job.replace(dtype=dtype)).value.gradients)
                      for dtype in ("bfloat16", "float32"))  # fmt: skip
    apart = [np.abs(rounded[name] - exact[name]).max() / np.abs(exact[name]).max() for name in exact]
    with Runner(POCKET, "inline") as runner:
        assert runner.rounding(job) == pytest.approx(max(apart), rel=1e-6)
        assert runner.rounding(job.replace(dtype="float64")) == 0.0


def allowed(job: Job) -> float:
    with Runner(POCKET, "inline") as runner:
        return tolerance_of(job, runner.rounding(job))


def assert_one_gpus(lesson, name, changes):
    chosen, job = strategy(lesson, name), Job(**vars(JOB) | changes | load(lesson).defaults)
    with Runner(POCKET, "inline") as runner:
        entry = entry_of(chosen, job, load(lesson).gpus)
        row, _ = runner.measured(entry)
        alone = runner.reference(entry.job, chosen.reference).measurement
    assert row.max_gradient_difference is not None and row.max_gradient_difference <= allowed(job)
    assert row.loss == pytest.approx(alone.loss, rel=2 * UNIT_ROUNDOFF)


@pytest.mark.parametrize("zero", range(4))
@pytest.mark.parametrize("schedule", ["1f1b", "zb-v"])
def test_every_stage_of_zero_in_a_pipeline_with_tied_embeddings(schedule, zero):
    mesh = Mesh(tp=2, pp=2, dp=2)
    job = JOB.replace(model=MODEL.replace(tied=True), microbatches=4, zero=zero, schedule=schedule)
    loss, gradient = loss_and_gradient_difference(run(on_mesh("4d_combined", "DP only", mesh), job, 8), job)
    assert gradient <= allowed(job) and loss <= 2 * UNIT_ROUNDOFF


@pytest.mark.parametrize("batch", [1, 2, 8])
@pytest.mark.parametrize("lesson", ["2d_tensor_parallel", "cp_context_parallel"])
def test_with_tied_embeddings_roundings_lead_further_and_as_much_is_allowed(capsys, lesson, batch):
    """TP was said not to compute what one GPU computes."""
    words = f"--dtype bf16 --tied --batch {batch} --engine inline --timeline none"
    assert main(load(lesson), words.split()) == 0
    assert "does not compute" not in capsys.readouterr().out


def test_a_microbatch_that_is_left_out_is_not_within_the_bound():
    job = JOB.replace(microbatches=8)
    program = strategy("0d_single_gpu", "single GPU")

    def seven(gpu, job):
        from ndparallel.training.replica import Replica

        replica = Replica(gpu, job)
        for microbatches in replica.steps():
            for microbatch in [*microbatches][:-1]:
                replica.forward(microbatch)
                replica.backward(microbatch)
            replica.optimizer_step()
        return replica.outcome

    results = run(replace(program, program=seven), job, 1)
    assert loss_and_gradient_difference(results, job)[1] > allowed(job)


# ------------------------------------------------------------------------------------------------ the masters


def test_a_step_smaller_than_half_a_bit_is_kept_by_the_masters_and_lost_without():
    """32 steps of 2^-12 are one bit of 2^-7."""
    from gpu import CLASSROOM, GPU, Mailboxes

    gpu = GPU(0, CLASSROOM, Mailboxes().of(0))
    weights, gradient = as_dtype(np.ones(4), "bfloat16"), np.full(4, -(2.0**-12), np.float32)
    optimizer = make_optimizer("sgd", gpu, [weights], "bfloat16", 1.0)
    assert isinstance(optimizer, MasterWeights) and gpu.held_bytes["optimizer"] == 4 * 4
    alone = weights.copy()
    for _ in range(32):
        optimizer.step([weights], [gradient])
        alone -= gradient
    assert (wide(weights) == 1 + 2.0**-7).all() and (wide(alone) == 1).all()


def test_it_trains_as_float32_does():
    losses = {
        dtype: run(strategy("0d_single_gpu", "single GPU"), Job(model=MODEL, dtype=dtype, steps=20), 1)[
            0
        ].value.losses
        for dtype in ("float32", "bfloat16")
    }
    assert losses["bfloat16"] == pytest.approx(losses["float32"], rel=0.01)
    assert losses["bfloat16"][-1] < 0.8 * losses["bfloat16"][0]


@pytest.mark.parametrize(
    ("name", "bytes_each"), [("DDP ring", 18), ("ZeRO-1", 9), ("ZeRO-2", 6), ("FSDP", 4.5)]
)
def test_weights_gradients_and_optimizer_take_2_and_4_and_12_bytes_a_parameter(name, bytes_each):
    """Rajbhandari et al. 1910.02054, section 3.1, but for gradients, which are kept in float32: 18 bytes."""
    parameters = sum(held.array.size for held in reference(JOB).value.weights)
    results = run(strategy("1d_data_parallel", name), JOB, 4)
    held = [
        sum(result.held_bytes[kind] for kind in ("weights", "gradients", "optimizer")) for result in results
    ]
    assert sum(held) / 4 / parameters == pytest.approx(bytes_each, rel=1e-3)


# ---------------------------------------------------------------------------------------------- what travels


@pytest.mark.parametrize(
    ("name", "weights", "gradients"), [("ZeRO-1", 1, 1), ("FSDP", 2, 1), ("DDP ring", 0, 2)]
)
@pytest.mark.parametrize("in_bf16", [False, True])
def test_weights_travel_in_two_bytes_and_gradients_in_four_or_two(name, weights, gradients, in_bf16):
    parameters = sum(held.array.size for held in reference(JOB).value.weights)
    job = JOB.replace(grad_reduce_in_bf16=in_bf16)
    sent = measured("1d_data_parallel", name, job, 4).bytes_sent_per_gpu
    each = weights * 2 + gradients * (2 if in_bf16 else 4)
    assert sent == pytest.approx(3 / 4 * each * parameters, rel=1e-9)


def test_activations_travel_in_half_the_bytes():
    jobs = [JOB.replace(microbatches=4, dtype=dtype) for dtype in ("float32", "bfloat16")]
    one, other = (measured("3d_pipeline_parallel", "1F1B", job, 4).bytes_sent_per_gpu for job in jobs)
    assert one == 2 * other > 0


@pytest.mark.parametrize("in_bf16", [False, True])
@pytest.mark.parametrize("engine", ["processes", "inline"])
def test_the_engines_give_the_same_events_and_numbers(engine, in_bf16):
    """Small arrays in frames, and large ones in shared memory."""
    chosen = strategy("4d_combined", "TP2 x PP2 x DP2")
    job = chosen.job(JOB.replace(zero=2, grad_reduce_in_bf16=in_bf16, clip_grad_norm=0.1), 8)
    results = launch(chosen.program, 8, POCKET, job, engine=engine)
    same = launch(chosen.program, 8, POCKET, job, engine="inline")
    for one, other in zip(results, same):
        assert one.events == other.events and one.peak_bytes == other.peak_bytes
        assert one.value.losses == other.value.losses
        assert one.value.gradient_norms == other.value.gradient_norms
        for held, there in zip(one.value.gradients, other.value.gradients):
            assert (held.array == there.array).all()


# ----------------------------------------------------------------------------------------------- the options


def test_the_options(capsys):
    argv = [
        "--dtype",
        "bfloat16",
        "--grad-reduce-in-bf16",
        "--json",
        "--engine",
        "inline",
        "--strategy",
        "FSDP",
    ]
    assert main(load("1d_data_parallel"), argv) == 0
    assert json.loads(capsys.readouterr().out)["model"]["dtype"] == "bfloat16"
    assert main(load("1d_data_parallel"), ["--grad-reduce-in-bf16"]) == 2
    assert "choose dtype bfloat16" in capsys.readouterr().err


def test_experts_that_tokens_choose_in_bfloat16_are_refused_where_numbers_are_computed():
    mixture = MODEL.replace(experts=4, top_k=2)
    with pytest.raises(UserError, match="rounding decides which experts.*top_k=4"):
        Job(model=mixture, dtype="bfloat16")
    assert Job(model=mixture, dtype="bfloat16", sizes_only=True)
