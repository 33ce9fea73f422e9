"""What would make it fit: every remedy is an option, which predicts the same when it is typed."""

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from ndparallel.base.errors import UserError
from ndparallel.commands.command_line import main
from ndparallel.hardware.accelerator import find_hardware
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.legality import violations
from ndparallel.planner.models.presets import find_model
from ndparallel.planner.prediction import legal_and_fits, peak_memory, time_step
from ndparallel.planner.software import find_stack
from ndparallel.search.remedies import REMEDY_KINDS, remedies_of_plan, wider
from ndparallel.search.search import search

LARGE = "plan --model llama-3-70b --gpus 16 --global-batch 64 --sequence 8192"
GIVEN = "--tp 8 --zero 1"
HOBBY = "plan --model llama-3-8b --hardware rtx-4090 --gpus 1 --global-batch 16"


def answer(capsys, words: str, code: int = 0) -> dict[str, Any]:
    assert main([*words.split(), "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_every_remedy_of_a_plan_predicts_the_same_when_it_is_typed(capsys):
    found = answer(capsys, f"{LARGE} {GIVEN}")
    remedies = found["remedies"]
    assert not found["fits"] and {each["kind"] for each in remedies} == {*REMEDY_KINDS}
    for each in remedies:
        kept = "--tp 8" if "--zero" in each["option"] else "" if "--plan" in each["option"] else GIVEN
        typed = answer(capsys, f"{LARGE} {kept} {each['option']}")
        assert typed["fits"] and "remedies" not in typed
        assert typed["step_seconds"] == pytest.approx(each["step_seconds"], rel=1e-12), each
        assert typed["memory_bytes_per_stage"][0]["total"] <= each["memory_bytes"] <= 80 * 2**30


def test_another_plan_on_the_same_gpus_is_a_remedy_and_more_gpus_only_where_there_is_none(capsys):
    small = "plan --model llama-3-8b --gpus {} --zero 3 --micro-batch 8 --global-batch 256 --sequence 8192"
    for gpus, kind in ((8, "time alone"), (1, "GPUs")):
        named = [one for one in answer(capsys, small.format(gpus))["remedies"] if "--plan" in one["option"]]
        assert [one["kind"] for one in named] == [kind] and (named[0]["gpus"] > gpus) == (kind == "GPUs")
        typed = answer(capsys, f"plan --model llama-3-8b {named[0]['option']} --global-batch 256"
                       f" --sequence 8192 {f'--gpus {gpus}' * (kind != 'GPUs')}")  # fmt: skip
        assert typed["step_seconds"] == pytest.approx(named[0]["step_seconds"], rel=1e-12)


MODELS = ("llama-3-8b", "llama-3-70b", "mixtral-8x7b", "mixtral-8x22b", "qwen3-30b-a3b")


def plan_that_does_not_fit(draw: random.Random) -> tuple[TrainingJob, Plan]:
    while True:
        tp, pp, cp, dp, size = (2 ** draw.randrange(most) for most in (4, 4, 2, 5, 4))
        hardware, software = draw.choice(["h100", "a100-80"]), draw.choice(["megatron-core", "torchtitan"])
        sequence = draw.choice([4096, 8192, 32768])
        job = TrainingJob(find_model(draw.choice(MODELS)), find_hardware(hardware), find_stack(software),
                          sequence, dp * size * 8)  # fmt: skip
        ep = 2 ** draw.randrange(4) if job.shape.experts else 1
        zero, recompute = draw.randrange(4), draw.choice(["none", "none", "selective", "full"])
        plan = Plan(tp, pp, dp, ep, cp, 1, size, zero, sequence_parallel=tp > 1, recompute=recompute)
        if not any(violations(job, plan)) and peak_memory(job, plan).total > job.hardware.memory_bytes:
            return job, plan


def changed_in_one_thing(plan: Plan) -> Iterator[Plan]:
    """Plans on as many GPUs: one degree is wider, or one other thing is less."""
    twice = [2**power for power in range(1, 7)]
    for name, times in product(("tp", "pp", "cp"), twice):
        if plan.dp % times == 0 and (name != "tp" or plan.tp * times <= 8):
            wide = replace(plan, **{name: getattr(plan, name) * times, "dp": plan.dp // times})
            yield from (
                replace(wide, sequence_parallel=wide.tp > 1, ep=ep) for ep in (plan.ep, min(plan.ep, wide.dp))
            )
    yield from (replace(plan, ep=plan.ep * times) for times in twice)
    yield from (replace(plan, micro_batch=plan.micro_batch // times) for times in twice[:3])
    yield from (replace(plan, zero=zero) for zero in range(plan.zero, 4))
    yield replace(plan, recompute="full")
    if plan.recompute != "full":
        yield replace(plan, recompute="selective")


def test_no_plan_that_differs_in_one_thing_and_fits_is_quicker_than_the_remedies(monkeypatch):
    monkeypatch.setattr("ndparallel.search.remedies.another_plan", lambda *_: [])
    draw, helped = random.Random(11), 0
    for job, plan in (plan_that_does_not_fit(draw) for _ in range(60)):
        some = [one for one in changed_in_one_thing(plan) if one.micro_batch and legal_and_fits(job, one)]
        if some:
            quickest = min(time_step(job, one).seconds for one in some)
            found = [one.found.seconds for one in remedies_of_plan(job, plan) if one.kind == REMEDY_KINDS[0]]
            assert min(found) <= quickest * (1 + 1e-9), (job.shape.name, plan)
            helped += 1
    assert helped > 15


def test_zero_is_a_remedy_on_one_data_parallel_rank_whose_tp_ranks_hold_the_same_experts(capsys):
    words = "plan --model mixtral-8x7b --hardware b200 --gpus 8 --tp 4 --pp 2 --global-batch 64"
    options = [each["option"] for each in answer(capsys, words)["remedies"]]
    assert "--zero 2" in options and answer(capsys, f"{words} --zero 2")["fits"]


@pytest.mark.parametrize("plan", ["", "--zero 3 --recompute full"])
def test_accelerates_70b_fits_where_every_microbatch_sums_gradients(plan, capsys):
    """Else 2 bytes of each of 70.6 billion stay on every GPU: 141 GB."""
    words = "plan --model llama-3-70b --gpus 64 --global-batch 256 --sequence 8192 --software accelerate"
    found = answer(capsys, f"{words} {plan}", 0 if plan else 2)
    (summed,) = (
        each for each in found["remedies"] if each["kind"] == "time alone" and "sync" in each["option"]
    )
    assert (
        summed["option"] == "--software accelerate-sync-each-batch" and "accelerate" in summed["launched_by"]
    )
    if plan:
        (memory,) = found["memory_bytes_per_stage"]
        assert memory["total"] - summed["memory_bytes"] == pytest.approx(2 * 70.55e9, rel=0.01)


def test_cp_makes_a_405b_fit_sooner_than_recomputation_and_rows_that_nobody_launches_say_so(capsys):
    pipeline = "--tp 8 --pp 16 --chunks 8 --zero 1"
    words = f"plan --model llama-3-405b --gpus 16384 --global-batch 2048 --sequence 8192 {pipeline}"
    remedies = answer(capsys, words)["remedies"]
    first, seconds = remedies[0], {each["option"]: each["step_seconds"] for each in remedies}
    assert first["option"] == "--cp 2" and first["step_seconds"] < seconds["--recompute full"]
    assert "megatron" in first["launched_by"]
    assert answer(capsys, f"{words} --cp 2")["step_seconds"] == pytest.approx(first["step_seconds"])
    assert main(words.split()) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("--")]
    assert {row[1]: "nobody" in row for row in rows if row[0] == "--offload"}["activations"]


def test_one_chunk_makes_a_plan_fit_whose_ranks_hold_two_and_more_microbatches_for_them(capsys):
    words = "plan --model llama-3-70b --gpus 64 --tp 4 --pp 8 --zero 1 --global-batch 64 --sequence 8192"
    asked = {each["option"]: each for each in answer(capsys, f"{words} --chunks 2")["remedies"]}
    remedy = asked["--chunks 1 --schedule 1f1b"]
    typed = answer(capsys, f"{words} {remedy['option']}")
    assert typed["fits"] and typed["step_seconds"] == pytest.approx(remedy["step_seconds"], rel=1e-12)
    assert remedy["launched_by"] == ["megatron"] and remedy["kind"] == REMEDY_KINDS[0]


def test_tp_makes_it_fit_inside_the_node_alone_and_each_degree_grows_by_what_is_quickest(capsys):
    words = "plan --model llama-3-8b --gpus 64 --global-batch 64 --sequence 16384"
    remedies = answer(capsys, words + " --zero 1")["remedies"]
    grown = [each["option"] for each in remedies if each["option"][2:4] in ("tp", "cp", "pp")]
    assert sorted(grown) == ["--cp 4", "--pp 8", "--tp 2"]
    without_sharding = [each["option"] for each in answer(capsys, words + " --dp 64")["remedies"]]
    assert "--tp 4" in without_sharding  # and not --tp 2 --recompute full, which is slower


@pytest.mark.parametrize(("plan", "sp"), [
    (Plan(dp=16), True), (Plan(tp=2, dp=8), False), (Plan(tp=2, dp=8, sequence_parallel=True), True),
])  # fmt: skip
def test_tp_that_grows_keeps_its_sequence_parallelism_and_where_there_was_none_takes_the_softwares(plan, sp):
    """16 GPUs in nodes of 8: the experts of 8 ranks are spread over tp ranks, too, or those of fewer over
    dp's alone, which the option says."""
    job = TrainingJob(
        find_model("mixtral-8x7b"), find_hardware("h100"), find_stack("megatron-core"), 4096, 64
    )
    plan = replace(plan, ep=8)
    changes = [*wider(job, plan, "tp")]
    after = [change.apply(job, plan)[1] for change in changes]
    assert {each.tp for each in after} == {tp for tp in (2, 4, 8) if tp > plan.tp}
    assert {(each.tp, each.dp, each.ep) for each in after} == {
        (each.tp, 16 // each.tp, ep) for each in after for ep in (8, min(8, 16 // each.tp))
    }
    assert [("--ep" in change.option) for change in changes] == [each.ep < 8 for each in after]
    assert all(each.sequence_parallel == sp for each in after)


def test_what_costs_time_alone_comes_first_and_the_quickest_of_a_kind(capsys):
    remedies = answer(capsys, f"{LARGE} {GIVEN}")["remedies"]
    keys = [(REMEDY_KINDS.index(each["kind"]), each["step_seconds"] * each["gpus"]) for each in remedies]
    assert keys == sorted(keys)


def test_an_8_billion_model_on_one_gpu_of_24_gb_is_tuned_with_adapters(capsys):
    """As is done in practice. Whole, its weights and gradients alone take 32 GB: DeepSpeed can keep them on
    the host. It also launches adapters, which Megatron-Core does not."""
    remedies = answer(capsys, HOBBY, code=2)["remedies"]
    options = [each["option"] for each in remedies]
    assert options[:2] == ["--offload optimizer,weights --framework deepspeed", "--lora 16"]
    assert options[2].startswith("--qlora 16 --framework ") and options[3].startswith("--gpus")
    for each in remedies[:3]:
        typed = answer(capsys, f"{HOBBY} {each['option']}")["plans"][0]
        assert typed["step_seconds"] == pytest.approx(each["step_seconds"], rel=1e-12)
        assert "deepspeed" in each["launched_by"]


def test_memory_that_a_search_leaves_free_is_a_remedy_where_a_plan_needs_it(capsys):
    words = "plan --model llama-3-8b --hardware a100-40 --gpus 4 --global-batch 16 --sequence 8192"
    (room,) = (one for one in answer(capsys, words, code=2)["remedies"] if "--headroom" in one["option"])
    assert room["tight"] and room["kind"] == REMEDY_KINDS[0] and room["instead_of"] == []
    typed = answer(capsys, f"{words} {room['option']}")["plans"][0]
    assert typed["step_seconds"] == pytest.approx(room["step_seconds"], rel=1e-12)
    allowed = {limit: [one["instead_of"] for one in answer(capsys, f"{words} {limit}", 2)["remedies"]
                       if "--headroom" in one["option"]]
               for limit in ("--headroom 8", "--max-memory 35GB")}  # fmt: skip
    assert allowed == {"--headroom 8": [["--headroom"]], "--max-memory 35GB": []}


def test_on_fewer_gpus_than_the_fewest_no_plan_fits(capsys):
    (most,) = [each["gpus"] for each in answer(capsys, HOBBY, code=2)["remedies"] if each["kind"] == "GPUs"]
    job = TrainingJob(
        find_model("llama-3-8b"), find_hardware("rtx-4090"), find_stack("megatron-core"), 4096, 16
    )
    for fewer in range(1, most):
        with pytest.raises(UserError):
            search(job, fewer)


def test_a_sentence_says_that_nothing_fits_and_a_table_what_would(capsys):
    assert main(HOBBY.split()) == 2
    out = capsys.readouterr()
    assert out.err.count("\n") == 1 and "Take more GPUs" not in out.err
    assert "what would make it fit" in out.out and "--qlora 16" in out.out


def test_remedies_of_a_search_keep_what_was_fixed(capsys):
    words = HOBBY.replace("--gpus 1", "--gpus 2") + " --fix tp=2"
    plans = [each["plan"] for each in answer(capsys, words, code=2)["remedies"]]
    assert plans and all(plan.startswith("TP2") for plan in plans)


def test_a_change_after_which_nothing_fits_is_one_sentence_of_its_own(capsys):
    words = "plan --model llama-3-8b --gpus 8 --global-batch 64 --what-if memory=4GB"
    assert main(words.split()) == 2
    out, err = capsys.readouterr()
    assert out == "" and "after --what-if memory=4GB, none of" in err and "what would make" not in err


def test_a_remedy_that_fits_by_less_than_memory_is_known_is_marked_tight(capsys):
    """Another plan on the same GPUs is: so more GPUs are named, too, on which one leaves memory free."""
    tight = {each["option"]: each["tight"] for each in answer(capsys, f"{LARGE} {GIVEN}")["remedies"]}
    assert [alone for option, alone in tight.items() if "--plan" in option] == [True, False]
    assert tight["--zero 3 --recompute full"] and not tight["--half --moments 8bit"]
    assert main(f"{LARGE} {GIVEN}".split()) == 0
    out = capsys.readouterr().out
    assert out.count(" tight ") == sum(tight.values()) and "tight: less memory is left" in out


def test_an_optimizer_on_the_host_comes_with_the_zero_1_that_frameworks_have_it_with(capsys):
    words = "plan --model llama-3-8b --gpus 1 --global-batch 8 --recompute full"
    remedies = {each["option"]: each for each in answer(capsys, f"{words} --dp 1")["remedies"]}
    one = remedies["--offload optimizer --zero 1"]
    assert one["launched_by"] == ["megatron", "deepspeed"]
    typed = answer(capsys, f"{words} {one['option']}")
    assert typed["step_seconds"] == pytest.approx(one["step_seconds"], rel=1e-12)
    assert typed["name"] == one["plan"]
    found = answer(capsys, f"{words} --search --offload optimizer")["recommended"]
    assert found["plan"]["zero"] == 1 and "megatron" in found["launched_by"]


def test_an_optimizer_goes_to_the_host_of_a_plan_that_has_zero_1_without_another_word_of_it(capsys):
    words = "plan --model llama-3-70b --gpus 16 --tp 8 --zero 1 --global-batch 64 --sequence 8192"
    found = [
        one["option"] for one in answer(capsys, words)["remedies"] if "--offload optimizer" in one["option"]
    ]
    assert found and not any("--zero" in option for option in found)


@pytest.mark.parametrize("alone", ["--emit deepspeed", "--csv"])
def test_where_no_plan_fits_a_script_that_is_not_written_leaves_the_remedies_among_the_errors(capsys, alone):
    words = HOBBY.replace("--gpus 1", "--gpus 2").split()
    framework = ["--framework", "deepspeed" if "deepspeed" in alone else "accelerate"]
    assert main([*words, *framework]) == 2
    table = capsys.readouterr().out
    assert main([*words, *alone.split(), *framework]) == 2
    told = capsys.readouterr()
    assert told.out == "" and told.err.endswith(table) and "--lora 16" in table


def test_of_the_frameworks_that_can_launch_a_remedy_that_of_its_software_comes_first(capsys):
    words = HOBBY.replace("--gpus 1", "--gpus 8")
    for framework in ("accelerate", "deepspeed"):
        remedies = answer(capsys, f"{words} --framework {framework}", 2)["remedies"]
        firsts = [each["launched_by"][0] for each in remedies if framework in each["launched_by"]]
        assert firsts and {*firsts} == {framework}


def typed_as_told(capsys, base: str, each: dict[str, Any]) -> dict[str, Any]:
    """What is predicted of a remedy: what was typed, without what is to be left out, and its option."""
    options = [f"--{words}" for words in base.split(" --")[1:]]
    kept = [words for words in options if words.split()[0] not in each["instead_of"]]
    return answer(capsys, " ".join(["plan", *kept, each["option"]]))


@pytest.mark.parametrize("given", [
    "--dp 16 --zero 1",  # which another tp, pp or cp leaves no room for
    "--tp 8 --zero 3 --recompute full --recompute-layers 2",  # which leaves the others as they are
    "--tp 8 --zero 1 --recompute selective --recompute-modules core_attn",
    "--tp 8 --zero 1 --no-sequence-parallel",  # which plans on more GPUs have
    "--tp 8 --zero 1 --lora 64 --micro-batch 4",  # in whose place --qlora is
    "--tp 8 --zero 1 --offload activations --offload-share 0.1",
    "--plan TP8xDP2,zero1,sp,mbs2",  # which names the whole plan
])  # fmt: skip
def test_a_remedy_names_the_typed_options_that_it_takes_the_place_of(capsys, given):
    base = f"{LARGE.replace('--global-batch 64', '--global-batch 16')} {given}"
    found = answer(capsys, base)
    assert not found["fits"] and len(found["remedies"]) > 1
    for each in found["remedies"]:
        typed = typed_as_told(capsys, base, each)
        assert typed["fits"] and typed["name"] == each["plan"], each
        assert typed["step_seconds"] == pytest.approx(each["step_seconds"], rel=1e-12), each
        assert each["instead_of"] == [] or "--plan" not in given, each


def test_full_recomputation_is_a_remedy_of_a_plan_that_recomputes_some_modules_or_layers(capsys):
    words = "plan --model llama-3-8b --gpus 8 --global-batch 64 --zero 3 --micro-batch 8 --recompute"
    some = {"selective --recompute-modules core_attn": "modules", "full --recompute-layers 2": "layers"}
    for given, what in some.items():
        remedies = {each["option"]: each for each in answer(capsys, f"{words} {given}")["remedies"]}
        assert remedies["--recompute full"]["instead_of"] == [f"--recompute-{what}"]


def test_options_to_leave_out_are_told_below_the_table(capsys):
    assert main(f"{LARGE} --dp 16 --zero 1 --lora 64 --micro-batch 4".split()) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "Beside --qlora 16 --recompute full --micro-batch 1, leave out --lora." in out
    assert "--pp 4 --recompute full --micro-batch 1, leave out --dp." in out


def test_remedies_of_a_search_name_what_they_take_the_place_of(capsys):
    words = HOBBY + " --lora 1024"
    (each,) = (one for one in answer(capsys, words, code=2)["remedies"] if "--qlora" in one["option"])
    assert each["instead_of"] == ["--lora"]
    assert main(f"{words} {each['option']}".split()) == 2
    assert "--lora and --qlora are two ways to train adapters" in capsys.readouterr().err
    assert answer(capsys, f"{words.replace(' --lora 1024', '')} {each['option']}")["recommended"]


def test_an_optimizer_goes_to_the_host_with_zero_1_where_megatron_core_has_no_fsdp_of_it(capsys):
    """OptimizerConfig.__post_init__ has no optimizer on the host beside Megatron-FSDP."""
    words = "plan --model llama-3-70b --gpus 16 --tp 8 --zero 3 --global-batch 64 --sequence 32768"
    found = {one["option"]: one["launched_by"] for one in answer(capsys, words)["remedies"]}
    assert found["--offload optimizer --zero 1 --recompute full"] == ["megatron"]
    assert not any("activations --zero" in option for option in found), "nobody launches either"
