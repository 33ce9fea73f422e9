"""A software stack made in Python: a word that its field does not know is refused."""

from dataclasses import replace
from typing import Any

import pytest

from ndparallel import UserError, find_stack
from ndparallel.hardware.attention_rates import published
from ndparallel.planner.layers.operations import MEMORY_PASSES
from ndparallel.planner.stack_words import WORDS

MEGATRON = find_stack("megatron-core")
IN_OTHER_PLACES = {"cudnn-fp8", "delta-rule"}  # kernels that other fields choose: fp8_attention, the model


@pytest.mark.parametrize("field", [*WORDS, "selective"])
def test_a_word_that_no_code_knows_is_refused_with_the_words_that_there_are(field):
    wrong: Any = ("falsh",) if field == "selective" else "falsh"
    with pytest.raises(UserError, match="'falsh'.* There are: "):
        replace(MEGATRON, **{field: wrong})


def test_a_misspelled_kernel_is_told_its_nearest():
    with pytest.raises(UserError, match="unknown attention of a software stack 'flash-2'.* 'flash2'?"):
        replace(MEGATRON, attention="flash-2")


@pytest.mark.parametrize("fusion", ["eager", "compiled", "minimal"])
def test_dropout_is_refused_where_its_kernels_have_no_price(fusion):
    assert replace(MEGATRON, dropout=True).dropout and "dropout" not in MEMORY_PASSES[fusion]
    with pytest.raises(
        UserError, match=f"fusion is {fusion} is not priced: take fusion fused, or no dropout"
    ):
        replace(MEGATRON, dropout=True, fusion=fusion)


def test_words_of_fusion_and_attention_are_those_that_have_prices():
    fused = {kernel.rpartition(" ")[0] for rates in published().values() for kernel in rates.curves}
    assert {*WORDS["fusion"]} == MEMORY_PASSES.keys()
    assert {*WORDS["attention"]} == fused - IN_OTHER_PLACES | {"unfused", "masked"}


@pytest.mark.parametrize("field", WORDS)
def test_every_word_of_a_field_makes_a_stack(field):
    words: Any = WORDS[field]
    for word in words:
        assert getattr(replace(MEGATRON, **{field: word}), field) == word
