"""Context parallelism by heads (Ulysses): what all-to-alls send, move and keep."""

from dataclasses import replace

import pytest

from ndparallel.base.errors import UserError
from ndparallel.hardware.accelerator import find_hardware
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.layers.kept import kept_bytes
from ndparallel.planner.layers.layer import LayerLists
from ndparallel.planner.layers.operations import CollectiveOp
from ndparallel.planner.legality import check
from ndparallel.planner.models.presets import preset
from ndparallel.planner.prediction import time_step
from ndparallel.planner.software import find_stack

H100, TOKENS = find_hardware("h100"), 65536
GPT = preset("gpt3-175b")  # as many heads of keys as of queries
LLAMA = preset("llama-3-8b")


def job_of(shape=LLAMA, stack="megatron-core", **changes):
    stack = replace(find_stack(stack), context_parallel="all-to-all", **changes)
    return TrainingJob(shape, H100, stack, TOKENS, 8)


def lists(plan, *given, **changes):
    job = job_of(*given, **changes)
    return LayerLists(job.shape, plan.share(job), job.stack)


def sent(items):
    """Bytes of a rank's all-to-alls over cp."""
    return sum(item.bytes for item in items if isinstance(item, CollectiveOp) and item.group == "cp")


@pytest.mark.parametrize("cp", [2, 8])
def test_a_pass_sends_four_arrays_of_a_ranks_tokens(cp):
    """Jacobs et al. 2309.14509, section 3.2: 3 N h / P before attention and N h / P behind it. Backward
    Transformer Engine sends the result again, beside its gradient."""
    forward, _, backward, _ = lists(Plan(cp=cp), GPT).unit("dense", "none")
    array = TOKENS / cp * GPT.hidden * 2
    assert (sent(forward), sent(backward)) == (4 * array, 5 * array)
    _, _, kept, _ = lists(Plan(cp=cp), GPT, resends_heads=False).unit("dense", "none")
    assert sent(kept) == 4 * array


def test_each_array_is_copied_before_and_behind_its_message():
    """movedim(-3, 0).contiguous() and index_select of flash_attn_a2a_communicate."""
    forward, _, backward, _ = lists(Plan(cp=4)).unit("dense", "none")
    for items, arrays in (forward, 4), (backward, 5):
        copies = [item for item in items if item.name == "order heads"]
        assert [item.kernels for item in copies] == [2] * arrays
        assert sum(item.bytes for item in copies) == 4 * sent(items)


@pytest.mark.parametrize("stack", ["megatron-core", "torchtitan"])
def test_one_kernel_sees_the_whole_sequence(stack):
    def attention(cp):
        return next(
            item
            for item in lists(Plan(cp=cp), LLAMA, stack).unit("dense", "none").forward
            if item.name == "attention"
        )

    whole, part = attention(1), attention(8)
    assert part.shape[1:] == whole.shape[1:] and part.kernels == whole.kernels
    assert part.flops == whole.flops / 8


def test_nothing_more_is_kept_but_by_software_that_keeps_its_result_twice():
    """AttnFuncWithCPAndQKVOA2A saves queries, keys and values by heads, and the result by tokens, which goes
    into the next product; PyTorch's autograd keeps what the kernel gave, too."""
    plan, result = Plan(cp=4), TOKENS / 4 * LLAMA.heads * LLAMA.head_dim * 2
    ring = job_of()
    ring = replace(ring, stack=replace(ring.stack, context_parallel="ring"))
    rings = kept_bytes(LayerLists(LLAMA, plan.share(ring), ring.stack), "dense", "none")
    assert kept_bytes(lists(plan), "dense", "none") == rings
    assert kept_bytes(lists(plan, resends_heads=False), "dense", "none") == rings + result


def test_copies_of_a_head_of_keys_are_sent_and_kept():
    """With 8 heads of keys 16 ranks have two copies of each."""
    plan, token = Plan(cp=16), TOKENS / 16 * LLAMA.head_dim * 2
    copying = lists(plan, shares_kv_heads=True)
    assert sent(copying.unit("dense", "none").forward) == token * (2 * LLAMA.heads + 2 * 16)
    alone = kept_bytes(replace_stack(copying, context_parallel="ring"), "dense", "none")
    assert kept_bytes(copying, "dense", "none") - alone == token * 2 * (16 - 8)


def replace_stack(found, **changes):
    return LayerLists(found.shape, found.share, replace(found.stack, **changes))


@pytest.mark.parametrize(
    ("shape", "plan", "said"),
    [
        (LLAMA, Plan(cp=16), "cp=16 beside tp=1 cannot share 8 KV heads, which an all-to-all .* nearest: 8"),
        (LLAMA, Plan(tp=4, cp=4), "cp=4 beside tp=4 cannot share 8 KV heads.* nearest: 2"),
        (LLAMA, Plan(tp=8, cp=8), "cannot cut 32 heads, which an all-to-all .* nearest: 1"),
        (
            preset("deepseek-v3"),
            Plan(cp=2),
            "cp=2 cannot exchange heads of latent attention: take cp=1 or --context-parallel ring",
        ),
    ],
)
def test_what_heads_cannot_be_cut_so_is_refused(shape, plan, said):
    with pytest.raises(UserError, match=said):
        check(job_of(shape), plan)


def test_of_a_long_sequence_an_all_to_all_exposes_less_than_a_gather_and_more_than_a_ring_that_hides():
    """A gather's bytes are those of the whole sequence, and nothing hides them."""

    def exposed(way):
        job = job_of()
        job = replace(job, stack=replace(job.stack, context_parallel=way))
        return time_step(job, Plan(cp=8, dp=2, zero=1, recompute="full")).breakdown["cp"]

    assert exposed("ring") < exposed("all-to-all") < exposed("all-gather")
