"""Published layouts: their records say what the sources say, and the guides are no straw man beside them."""

import pytest

from ndparallel.planner.legality import violations
from ndparallel.planner.prediction import predict
from ndparallel.search.advice import Rules
from ndparallel.search.layouts import LAYOUTS, compared

GPUS = {  # of the sources, and billions of parameters
    "llama-3-405b": (16384, 405.9),
    "deepseek-v3": (2048, 671.0),
    "mixtral-8x7b": (64, 46.7),
    "mixtral-8x22b": (128, 140.6),
    "qwen3-235b-a22b": (256, 235.1),
    "Nemotron-4 340B": (6144, 341.0),
    "BLOOM 176B": (384, 176.2),
    "MT-NLG 530B": (2240, 529.6),
}


@pytest.mark.parametrize("one", LAYOUTS, ids=lambda one: f"{one.model} {one.sequence}")
def test_a_published_layout_fills_its_gpus_with_a_model_of_its_size_and_can_be_run(one):
    gpus, billions = GPUS[one.model]
    assert one.run.gpus == gpus and round(one.shape.parameters().total / 1e9, 1) == billions
    assert {each.rule for each in violations(one.job, one.run)} <= {"dp not divisible by ep"}
    assert one.source


def test_both_jobs_of_llama_3_take_16_million_tokens_a_step():
    tokens = {one.batch * one.sequence for one in LAYOUTS if one.model == "llama-3-405b"}
    assert tokens == {2**24}


@pytest.mark.parametrize("one", LAYOUTS, ids=lambda one: f"{one.model} {one.sequence}")
def test_the_guides_are_nearly_as_good_as_what_was_run(one):
    """But for DeepSeek-V3, whose DualPipe hides the all-to-alls that Megatron-Core's plans wait for."""
    rules = Rules(one.job, int(one.run.gpus))
    advised = min(predict(one.job, plan).seconds for plan in rules.plans() if rules.holds(plan))
    assert advised / predict(one.job, one.run).seconds < (1.35 if one.model == "deepseek-v3" else 1.0)


def test_advice_on_a_published_layout_is_held_against_the_run():
    found = compared(next(one for one in LAYOUTS if one.model == "mixtral-8x7b"))
    assert found.difference("advise") == pytest.approx(-0.01, abs=0.01)
