"""Claims about `--what-if` on switches of the software: graphs, dispatcher, etp, experts."""

from dataclasses import replace
from typing import Any

import pytest

from ndparallel.base.errors import UserError
from ndparallel.hardware.accelerator import find_hardware
from ndparallel.planner.dispatchers import DISPATCHERS
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.layers.layer import lists_of
from ndparallel.planner.layers.operations import CollectiveOp
from ndparallel.planner.models.presets import find_model
from ndparallel.planner.prediction import peak_memory, time_step
from ndparallel.planner.software import STACKS
from ndparallel.planner.step.framework import framework_workload
from ndparallel.planner.step.step import Step
from ndparallel.search.fixed import parsed
from ndparallel.search.what_if import FIELDS, SWITCHES, Variant, what_if
from tests.support.accelerators import accelerator

MIXTURE = TrainingJob(find_model("mixtral-8x7b"), find_hardware("h100"), STACKS["megatron-core"], 4096, 64)
PLAN = Plan(tp=4, dp=8, ep=8, zero=1, sequence_parallel=True)


def timed(*changes: str) -> Step:
    variant = Variant(MIXTURE, 32)
    for change in changes:
        variant = what_if(variant, change)
    return time_step(variant.job, PLAN)


def seconds(*changes: str) -> float:
    return timed(*changes).seconds


def test_each_switch_changes_the_step_in_the_direction_that_its_name_says():
    assert seconds("graphs=step") <= seconds("graphs=router") <= seconds("graphs=none") == seconds()
    across_nodes = timed("etp=tp")
    assert timed("etp=tp", "dispatcher=alltoall").breakdown["ep"] > across_nodes.breakdown["ep"]
    assert across_nodes == timed("etp=tp", "dispatcher=deepep")
    assert seconds("etp=1") == seconds()


def test_other_software_keeps_what_was_switched_on_the_one_before():
    switched: dict[str, Any] = {
        "attention": "unfused",
        "dp_overlap": False,
        "dispatcher": "alltoall",
        "graphs": "router",
    }
    before = Variant(replace(MIXTURE, stack=replace(MIXTURE.stack, **switched)), 32)
    after = what_if(before, "software=nemo").job.stack
    assert after == replace(STACKS["nemo"], **switched) != STACKS["nemo"]
    assert what_if(before, "software=pocket").job.stack == STACKS["pocket"]


@pytest.mark.parametrize("word", ["bf16", "BF16", "bfloat16"])
def test_a_change_of_dtype_takes_the_words_that_the_option_takes(word):
    fp8 = what_if(Variant(MIXTURE, 32), "dtype=FP8")
    assert fp8.job.dtype == "fp8"
    assert what_if(fp8, f"dtype={word}").job.dtype == "bf16"


@pytest.mark.parametrize("words", ["schedule=1F1B", "schedule=1f1b", "schedule = ZB-H1"])
def test_what_is_fixed_takes_the_names_of_schedules_that_the_option_takes(words):
    assert parsed(words)[1] in ("1f1b", "zb-h1")


def test_weights_that_are_kept_in_8_bits_alone_take_a_byte_and_travel_in_one():
    on, off = (
        what_if(what_if(Variant(MIXTURE, 32), "dtype=fp8"), f"fp8_param_gather={word}").job
        for word in ("on", "off")
    )
    kept, plan = MIXTURE.shape.layers * MIXTURE.shape.parameters().attention / 4, replace(PLAN, ep=1, dp=8)
    weights = [peak_memory(job, plan).weights for job in (on, off)]
    gathered = [framework_workload(job, plan).bucket("experts").gather[0].bytes for job in (on, off)]
    assert weights[1] - weights[0] >= 2 * kept  # of attention, and of experts
    assert gathered[1] - gathered[0] == pytest.approx(kept / MIXTURE.shape.layers)
    assert framework_workload(replace(on, dtype="mxfp8", hardware=find_hardware("b200")), plan).bucket(
        "experts"
    ).gather[0].bytes == pytest.approx(gathered[1])  # whose two copies each rank makes of 16 bits


SHEET = {  # an H100 SXM of 80 GB, and 400 Gbit/s for each
    "peak": 989e12,
    "memory": 80 * 2**30,
    "memory_bandwidth": 3.35e12,
    "bandwidth_inside": 450e9,
    "bandwidth_across": 50e9,
}


@pytest.mark.parametrize("name", sorted(FIELDS.keys() - {"leaf_share", "gpus_per_leaf"}))
def test_a_field_is_the_data_sheets_and_twice_it_is_twice_that_and_no_other_field(name):
    before = Variant(MIXTURE, 32)
    after, found = what_if(before, f"{name}*2"), FIELDS[name].read(before)
    assert found == pytest.approx(SHEET.get(name, found))
    assert {
        each: field.read(after) / field.read(before) for each, field in FIELDS.items() if field.read(before)
    } == pytest.approx(dict.fromkeys(FIELDS.keys() - {"gpus_per_leaf"}, 1.0) | {name: 2.0})


@pytest.mark.parametrize(("change", "achieved"), [
    ("memory_bandwidth", lambda gpu: gpu.memory_bandwidth_bytes_per_second),
    ("bandwidth_inside", lambda gpu: gpu.inside.bandwidth_bytes_per_second),
    ("bandwidth_across", lambda gpu: gpu.across.bandwidth_bytes_per_second),
    ("peak", lambda gpu: gpu.flops_per_second),
    ("peak", lambda gpu: gpu.peak("fp8")),
])  # fmt: skip
def test_what_is_achieved_stays_the_same_share_of_the_data_sheet(change, achieved):
    after = what_if(Variant(MIXTURE, 32), f"{change}*3").job.hardware
    assert achieved(after) == pytest.approx(3 * achieved(MIXTURE.hardware))


def test_an_oversubscribed_network_is_a_change_of_its_leaves():
    slower, job = timed("leaf_share=0.5"), what_if(Variant(MIXTURE, 32), "leaf_share/2").job
    assert time_step(job, PLAN) == slower and slower.breakdown["dp"] > timed().breakdown["dp"]
    assert timed("leaf_share=0.5", "gpus_per_leaf=32") == timed()
    for change, said in (("leaf_share*2", "more than all"), ("gpus_per_leaf=1.5", "whole number")):
        with pytest.raises(UserError, match=said):
            what_if(Variant(MIXTURE, 32), change)
    with pytest.raises(UserError, match="has no leaf switches"):
        what_if(Variant(replace(MIXTURE, hardware=find_hardware("pocket")), 32), "leaf_share=0.5")


def test_experts_that_tp_cuts_wait_longer_for_their_rows():
    """They are gathered over tp besides, and their ranks lie tp apart, in other nodes."""
    whole, cut = (
        time_step(what_if(Variant(MIXTURE, 32), f"etp={word}").job, PLAN).breakdown for word in ("1", "tp")
    )
    assert cut["tp"] > whole["tp"] and cut["ep"] > whole["ep"]


def test_rows_go_over_tp_as_often_as_they_came_over_ep():
    """Top-2 of 8 experts on 8 ranks: all-to-all brings both choices of a token, DeepEP a token once to
    each of the 15/8 ranks that it goes to in the mean, all-gather the rows of all (the groups expt_tp and
    tp_ep of megatron/core/transformer/moe/token_dispatcher.py)."""
    sizes = {}
    for name in DISPATCHERS:
        there, back = over_tp(name)
        assert there.bytes == back.bytes
        sizes[name] = there.bytes
    assert sizes["alltoall"] / 2 == sizes["deepep"] / (15 / 8) == sizes["allgather"] / 8


@pytest.mark.parametrize("name", DISPATCHERS)
def test_megatron_gathers_rows_over_tp_and_scatters_their_sums_but_where_rows_travel_once(name):
    once = name in ("deepep", "hybridep")
    ways = ["all_to_all"] * 2 if once else ["all_gather", "reduce_scatter"]
    assert [op.collective for op in over_tp(name)] == ways


def over_tp(dispatcher: str) -> list[CollectiveOp]:
    """What travels over tp in the half of a layer with experts that tp cuts."""
    job = what_if(what_if(Variant(MIXTURE, 32), "etp=tp"), f"dispatcher={dispatcher}").job
    items = lists_of(job, PLAN).experts.forward
    return [op for op in items if isinstance(op, CollectiveOp) and op.group == "tp"]


def test_experts_that_tp_cuts_take_a_tp_th_of_the_bytes():
    whole, cut = (
        peak_memory(what_if(Variant(MIXTURE, 32), f"etp={word}").job, PLAN).weights for word in ("1", "tp")
    )
    experts = MIXTURE.shape.parameters().experts * MIXTURE.shape.parameters().expert * 2 / 8
    assert whole - cut == pytest.approx(experts * MIXTURE.shape.layers * (1 - 1 / 4))


@pytest.mark.parametrize("name", SWITCHES)
def test_a_word_that_a_switch_does_not_take_is_refused_with_those_that_it_takes(name):
    with pytest.raises(UserError, match=next(iter(SWITCHES[name]))):
        what_if(Variant(MIXTURE, 32), f"{name}=nothing")


def test_larger_nodes_of_gpus_that_are_linked_one_to_one_are_refused():
    """An MI300X has seven links, to the others of its node. Half a node has three of them, and cards that are
    linked in pairs stay so in a larger node."""
    cards = accelerator("mi300x")
    job = TrainingJob(find_model("llama-3-70b"), cards, STACKS["megatron-core"], 8192, 256)
    with pytest.raises(UserError, match=r"makes 16 of 8, but mi300x has no switch"):
        what_if(Variant(job, 256), "gpus_per_node*2")
    half = what_if(Variant(job, 256), "gpus_per_node/2").job
    plan = Plan(tp=4, dp=64, zero=1)
    assert time_step(half, plan).breakdown["tp"] == time_step(job, plan).breakdown["tp"]
    pairs = replace(job, hardware=replace(cards, gpus_linked_directly=2))
    assert what_if(Variant(pairs, 256), "gpus_per_node*2").job.hardware.gpus_per_node == 16
    with pytest.raises(UserError, match="groups of 2 linked GPUs do not fill a node of 7"):
        what_if(Variant(pairs, 256), "gpus_per_node=7")


def test_on_other_hardware_software_has_the_kernels_that_run_there_but_for_those_that_were_asked_for():
    latent = replace(MIXTURE, shape=find_model("deepseek-v3"))
    assert what_if(Variant(latent, 32), "hardware=a100-80").job.stack.attention == "flash2"
    unfused = replace(latent, stack=replace(latent.stack, attention="unfused"))
    assert what_if(Variant(unfused, 32), "hardware=a100-80").job.stack.attention == "unfused"
