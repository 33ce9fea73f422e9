"""Claims about mixtures whose router, experts and shared experts have norms of their own. One layer of
Gemma 4 26B-A4B is counted by hand, as Gemma4TextDecoderLayer of transformers 5.24 computes it: an MLP of 2112
and 128 experts of 704 side by side, of which a token takes 8."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gpu import Operation
from ndparallel.base.errors import UserError
from ndparallel.hardware.accelerator import find_hardware
from ndparallel.launch_flags.megatron.write_model import model_flags
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.layers.flops import flops, model_flops
from ndparallel.planner.layers.kept import kept_bytes
from ndparallel.planner.layers.layer import LayerLists, lists_of
from ndparallel.planner.lesson_runs.model import check_shape
from ndparallel.planner.models.experts import Experts
from ndparallel.planner.models.huggingface.read import shape_of
from ndparallel.planner.models.shape import ModelShape
from ndparallel.planner.prediction import predict
from ndparallel.planner.software import find_stack
from ndparallel.planner.stages import elements_of
from ndparallel.search.bounds.lower_bound import lower_bound

SUPPORT = Path(__file__).parents[1] / "support"
PUBLISHED = json.loads((SUPPORT / "architectures.json").read_text("utf-8"))["gemma-4-26b-a4b"]
GEMMA = shape_of(PUBLISHED["config"], "gemma-4-26b-a4b", "")
TOKENS, HIDDEN, DENSE, EXPERT, EXPERTS, CHOSEN = 4096, 2816, 2112, 704, 128, 8
# of each kind of layer: outputs of queries, of keys and values; numbers of keys and values; pairs
KINDS = {
    "window-experts": (16 * 256, 16 * 256, 16 * 256, 1024 * TOKENS - 1024 * 1023 // 2, 256),
    "experts": (16 * 512, 2 * 512, 4 * 512, TOKENS * (TOKENS + 1) // 2, 512),
}


def job_of(shape: ModelShape, software: str = "megatron-core", **stack) -> TrainingJob:
    return TrainingJob(shape, find_hardware("h100"), replace(find_stack(software), **stack), TOKENS, 64)


def lists(plan: Plan, software: str = "megatron-core", shape: ModelShape = GEMMA, **stack) -> LayerLists:
    return lists_of(job_of(shape, software, **stack), plan)


def norms(items: list) -> list[Operation]:
    return [item for item in items if isinstance(item, Operation) and item.name == "norm"]


def plain(shape: ModelShape = GEMMA) -> ModelShape:
    """The same with one norm for router, experts and shared expert."""
    assert shape.experts
    return replace(shape, experts=replace(shape.experts, own_norms=False))


def test_a_layer_has_seven_norms_of_hidden_states_a_scale_of_the_routers_and_one_of_each_expert():
    counted = GEMMA.parameters()
    assert (
        counted.layer_norms + counted.router == 4 * HIDDEN + 3 * HIDDEN + HIDDEN * EXPERTS + HIDDEN + EXPERTS
    )
    assert counted.shared_experts == 3 * HIDDEN * DENSE
    assert counted.total == PUBLISHED["parameters"]
    assert round(counted.active / 1e9, 1) == 3.8  # published


def test_parameters_of_stages_add_up_to_the_models():
    kinds = ["embedding", *map(GEMMA.kind, range(GEMMA.layers)), "head"]
    assert sum(sum(elements_of(job_of(GEMMA), Plan(), kind)) for kind in kinds) == GEMMA.parameters().total


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_flops_are_those_of_the_mlp_the_router_and_eight_experts(kind, tp):
    queries, keys, _, pairs, width = KINDS[kind]
    products = (2 * queries + keys + 3 * DENSE) / tp + (EXPERTS + CHOSEN * 3 * EXPERT) / tp
    matrices, core = 2 * TOKENS * HIDDEN * products, 2 * 16 / tp * pairs * 2 * width
    forward, _, backward, weights = lists(Plan(tp=tp, sequence_parallel=tp > 1)).unit(kind, "none")
    assert flops(forward) == pytest.approx(matrices + core, rel=1e-12)
    assert flops(backward) == pytest.approx(matrices + 2.5 * core, rel=1e-12)
    assert flops(weights) == pytest.approx(matrices, rel=1e-12)


@pytest.mark.parametrize("software", ["megatron-core", "torchtitan", "deepspeed"])
@pytest.mark.parametrize("overlap", [False, True])
def test_eight_norms_of_hidden_states_run_in_each_pass(software, overlap):
    """Two of attention; before the MLP, the router and the experts; behind the MLP, the experts and their
    sum."""
    found = lists(Plan(tp=2, sequence_parallel=True), software, ep_overlap=overlap)
    forward, _, backward, _ = found.unit("experts", "none")
    for items in (forward, backward):
        assert [one.shape for one in norms(items)] == 8 * [(TOKENS / 2 * HIDDEN,)]


def test_norms_stand_between_what_they_norm_and_what_takes_it():
    names = [item.name for item in lists(Plan(ep=8, dp=8)).experts.forward]
    router, combine = names.index("router forward"), names.index("ep combine")
    down = names.index("down forward")
    assert names[:router] == ["norm", "norm", "norm"]
    assert names[combine + 1 : down].count("norm") == 1  # of the experts' result
    assert names[down + 1 :] == ["norm", "add shared experts", "norm", "residual"]
    back = [item.name for item in lists(Plan(ep=8, dp=8)).experts.backward]
    assert back.count("norm") == 6 and back[back.index("down dgrad") - 2 :][:2] == ["norm", "norm"]
    assert back[back.index("router dgrad") + 1 :] == ["norm", "norm", "norm"]


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_keeps_nine_hidden_states_and_rows_of_experts(kind, tp):
    """Of attention its input, what its norm gives and what goes into the second one; of the other half its
    input, what goes into the MLP and into the router, and into the norms behind the MLP, behind the experts
    and behind their sum. And queries, keys, values, attention's result; gate, up and product of the MLP, and
    of the experts' rows, with these."""
    queries, _, keys_and_values, *_ = KINDS[kind]
    found = lists(Plan(tp=tp, sequence_parallel=True), early_gates=True)
    shard = TOKENS / tp * 9 * HIDDEN
    inside = TOKENS / tp * (2 * queries + keys_and_values + 3 * DENSE)
    rows = TOKENS / tp * CHOSEN * (HIDDEN + 3 * EXPERT)
    assert kept_bytes(found, kind, "none") == 2 * (shard + inside + rows)


def test_in_fp8_the_mlp_keeps_its_input_cast_and_the_router_its_own_in_16_bits():
    """One norm's result that both take is kept in 16 bits."""
    mine, other = (
        kept_bytes(lists_of(replace(job_of(shape), dtype="fp8"), Plan()), "experts", "none")
        for shape in (GEMMA, plain())
    )
    assert mine - other == TOKENS * HIDDEN * ((1 + 2 + 2 + 2) - 2)


@pytest.mark.parametrize("modules", [("moe",), ("half",)])
def test_norms_inside_of_the_mixture_run_again_with_it(modules):
    """All but the first, and of every second product all of both halves."""
    found = lists(Plan(), selective=modules)
    again = norms(found.unit("experts", "selective").recompute)
    assert len(again) == {"moe": 5, "half": 8}[modules[0]]


def test_where_the_mixture_runs_again_it_keeps_what_one_norm_for_all_does():
    mine, other = (lists(Plan(), shape=shape, selective=("moe",)) for shape in (GEMMA, plain()))
    assert kept_bytes(mine, "experts", "selective") == kept_bytes(other, "experts", "selective")
    more = kept_bytes(mine, "experts", "none") - kept_bytes(other, "experts", "none")
    assert more == 2 * TOKENS * 3 * HIDDEN


def test_model_flops_count_every_parameter_that_a_token_uses():
    pairs = sum(KINDS[GEMMA.kind(layer)][3] * KINDS[GEMMA.kind(layer)][4] for layer in range(GEMMA.layers))
    attention = 6 * 2 * 16 * pairs * TOKENS / (TOKENS + 1)
    expected = 64 * (6 * GEMMA.parameters().active * TOKENS + attention)
    assert model_flops(job_of(GEMMA)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("plan", [
    Plan(dp=64, ep=8, zero=1), Plan(tp=2, dp=32, ep=8, zero=1, sequence_parallel=True, recompute="full"),
    Plan(pp=3, dp=16, ep=4, zero=1, recompute="selective"),
])  # fmt: skip
def test_the_bound_of_a_plan_is_below_its_step_and_near(plan):
    found, bound = predict(job_of(GEMMA), plan), lower_bound(job_of(GEMMA), plan)
    assert 0.8 * found.seconds <= bound.seconds[0] <= found.seconds * (1 + 1e-9)
    assert bound.memory_bytes[0] == pytest.approx(found.fullest.total, rel=1e-6)


def test_norms_of_their_own_make_a_step_longer():
    plan = Plan(dp=64, ep=8, zero=1)
    assert predict(job_of(GEMMA), plan).seconds > predict(job_of(plain()), plan).seconds


def test_neither_megatron_nor_the_lessons_have_them():
    shape = ModelShape(
        "m", 2, 2048, 16, 8, 128, 8192, 256, experts=Experts(8, 2, 2048, 1, 2048, own_norms=True)
    )
    with pytest.raises(UserError, match="norms of their own of router, experts and shared experts"):
        [*model_flags(shape)]
    with pytest.raises(UserError, match="behind one norm: name other"):
        check_shape(shape, 512)


def test_norms_of_their_own_ask_for_shared_experts():
    with pytest.raises(UserError, match="own_norms are those of experts and shared experts"):
        Experts(8, 2, 2048, own_norms=True)
