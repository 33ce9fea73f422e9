"""Claims about `--sizes-only`: arrays without content leave the events, clocks and memory of a run with
numbers, and what needs numbers is said to be unknown."""

import json
import shlex
from dataclasses import replace
from typing import Any

import pytest

from gpu import Event
from ndparallel.base.errors import UserError
from ndparallel.engines.launch import launch
from ndparallel.hardware.pocket import POCKET
from ndparallel.lessons import runner
from ndparallel.lessons.main import run_and_show_words
from ndparallel.lessons.registry import LESSONS, load
from ndparallel.model import routing
from ndparallel.parallel import context
from ndparallel.parallel.mesh import Mesh
from ndparallel.results.measure import breakdown, bytes_sent
from ndparallel.training.job import Job
from tests.support.common import SMALL, names, run, strategy

ROOMY = replace(POCKET, memory_bytes=1e9)
MODEL = SMALL.replace(layers=8, hidden=32, heads=8, kv_heads=8, ffn=32)
EVERY = [(lesson, name) for lesson in LESSONS for name in names(lesson)]
ROUTED = {"with experts, EP", *names("ep_expert_parallel")}
# every token goes to every expert, or every expert is full: a router with numbers is in balance too
IN_BALANCE = {
    "every row": SMALL.replace(experts=4, top_k=4, shared_experts=1),
    "full experts": SMALL.replace(experts=4, top_k=2, capacity_factor=0.01),
}


def left_behind(results) -> list[tuple]:
    return [(each.events, each.end_seconds, each.peak_bytes, each.held_bytes) for each in results]


@pytest.mark.parametrize(("lesson", "name"), [pair for pair in EVERY if pair[1] not in ROUTED])
def test_every_strategy_leaves_the_events_of_a_run_with_numbers(lesson, name):
    gpus, job = load(lesson).gpus, Job(model=MODEL, **load(lesson).defaults)
    with_numbers, sizes = (
        run(strategy(lesson, name), each, gpus, ROOMY) for each in (job, job.replace(sizes_only=True))
    )
    assert left_behind(sizes) == left_behind(with_numbers)
    assert all(not (each.value.losses or each.value.gradients or each.value.weights) for each in sizes)


MORE: dict[str, dict[str, Any]] = {
    "tied": {"model": MODEL.replace(tied=True)},
    "clipped": {"clip_grad_norm": 1.0},
    "bfloat16": {"dtype": "bfloat16"},
    "gradients in bfloat16": {"dtype": "bfloat16", "grad_reduce_in_bf16": True, "clip_grad_norm": 1.0},
}


@pytest.mark.parametrize("more", MORE)
@pytest.mark.parametrize(("lesson", "name"), [
    ("1d_data_parallel", "ZeRO-1"),
    ("1d_data_parallel", "FSDP prefetch"),
    ("2d_tensor_parallel", "MLP, columns twice"),
    ("2d_tensor_parallel", "TP + SP regather"),
    ("3d_pipeline_parallel", "ZB-V"),
    ("4d_combined", "TP2 x PP2 x DP2"),
    ("4d_combined", "CP2 x TP2 x DP2, 2x sequence"),
])  # fmt: skip
def test_so_they_do_with_tied_embeddings_clipping_and_bfloat16(lesson, name, more):
    gpus, job = load(lesson).gpus, Job(**{"model": MODEL} | load(lesson).defaults | MORE[more])
    with_numbers, sizes = (
        run(strategy(lesson, name), each, gpus, ROOMY) for each in (job, job.replace(sizes_only=True))
    )
    assert left_behind(sizes) == left_behind(with_numbers)


@pytest.mark.parametrize("mesh", [Mesh(dp=4, ep=4), Mesh(tp=2, pp=2, dp=2, ep=2)], ids=repr)
@pytest.mark.parametrize("balance", IN_BALANCE)
def test_experts_leave_the_events_of_a_router_that_is_in_balance(balance, mesh):
    job = Job(IN_BALANCE[balance], mesh, batch=32, microbatches=2)
    program = strategy("4d_combined", "DP only").program
    with_numbers, sizes = (
        launch(program, mesh.world_size, ROOMY, each, engine="inline")
        for each in (job, job.replace(sizes_only=True))
    )
    assert left_behind(sizes) == left_behind(with_numbers)


def test_what_the_events_of_many_gpus_add_up_to_is_what_they_say_one_by_one():
    job = Job(model=MODEL, mesh=Mesh(tp=2, pp=2, dp=2), microbatches=4, sizes_only=True)
    program = strategy("4d_combined", "DP only").program
    kept = launch(program, 8, ROOMY, job, engine="inline")
    summed = launch(runner.with_event_sums, 8, ROOMY, program, job, engine="inline")
    seconds = max(each.end_seconds for each in kept)
    assert sum(len(each.events) for each in summed) == 0
    for one, other in zip(kept, summed):
        parts, sums = breakdown(one.events, seconds), breakdown(other.events, seconds)
        assert bytes_sent(other.events) == bytes_sent(one.events) > 0
        for part in ("compute", "exposed", "bubble"):
            assert getattr(sums, part) == pytest.approx(getattr(parts, part), rel=1e-9)


# ------------------------------------------------------------------------------------------- the command line


def shown(capsys, words: str, lesson: str = "4d_combined") -> tuple[int, str]:
    code = run_and_show_words(load(lesson), shlex.split(words), f"{lesson}.py")
    return code, capsys.readouterr().out


def test_loss_and_gradients_are_said_to_be_not_computed(capsys):
    code, out = shown(capsys, "--sizes-only --timeline none")
    assert code == 0
    assert "loss and =0D are not computed" in out and "Routers are in balance" in out


def test_json_has_no_loss_and_says_why(capsys):
    code, out = shown(capsys, "--sizes-only --json", "1d_data_parallel")
    report = json.loads(out)
    assert code == 0 and report["model"]["sizes_only"] is True
    for row in report["strategies"]:
        assert row["loss"] is row["max_gradient_difference"] is row["max_weight_difference"] is None


def test_a_run_with_numbers_does_not_mention_sizes(capsys):
    _, out = shown(capsys, "--json --engine inline", "0d_single_gpu")
    assert "sizes_only" not in out


def test_128_gpus_train_the_sizes_of_a_real_model(capsys):
    words = "--model llama-3-8b --hardware h100 --gpus 128 --tp 8 --pp 4 --sequence 512 --batch 16"
    words += ' --microbatches 4 --sizes-only --strategy "TP8 x PP4 x DP4"'
    code, out = shown(capsys, words + " --json")
    (row,) = json.loads(out)["strategies"]
    assert code == 0 and row["gpus"] == 128 and row["hidden_communication_seconds"] is None
    parts = [row[f"{part}_seconds"] for part in ("compute", "exposed_communication", "bubble")]
    assert sum(parts) == pytest.approx(row["step_seconds"])
    code, out = shown(capsys, '--gpus 128 --tp 4 --pp 4 --sizes-only --strategy "TP4 x PP4 x DP8"')
    assert "The events of more than 64 GPUs are added up" in out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--model llama-3-70b", "add --sizes-only"),
        (
            "--model gpt2 --sizes-only",
            "gpt2 is not built like Llama.*activation, norm, position and biases",
        ),
        ("--sizes-only --engine processes", "in one process: leave --engine processes out"),
        ("--sizes-only --sweep", "--sizes-only is of one run"),
        ("--sequence 0", "a sequence of 0 tokens cannot be"),
        ("--sizes-only --gpus 128 --tp 2 --narrate 0 --batch 64", "those of 128 GPUs are added up"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(capsys, words, sentence):
    with pytest.raises(Exception, match=sentence):
        shown(capsys, words)


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_sequence_that_no_computer_could_list_is_refused_for_its_memory(lesson, capsys, monkeypatch):
    """No position and no row of so many tokens is listed: sizes alone are multiplied."""
    monkeypatch.setattr(context, "zigzag_positions", lambda *_: pytest.fail("positions are listed"))
    monkeypatch.setattr(routing, "_first_places", lambda *_: pytest.fail("rows are listed"))
    tokens = 10**8 if lesson.startswith("ep") else 10**12  # an int32 counts the rows of an expert
    _, out = shown(capsys, f"--sizes-only --sequence {tokens} --engine inline", lesson)
    assert "GPU 0 has 48.0 MB of memory" in " ".join(out.split())


def test_what_does_not_fit_on_pocket_is_told_of_real_gpus_and_of_no_speedups(capsys):
    _, out = shown(capsys, "--model llama-3-8b --sizes-only", "1d_data_parallel")
    assert "--hardware h100 takes a real GPU." in " ".join(out.split()) and "Speedups" not in out
    words = "--model llama-3-8b --sizes-only --hardware h100 --timeline none"
    assert "scaled down" not in shown(capsys, words, "1d_data_parallel")[1]


@pytest.mark.parametrize("capacity_factor", [None, 0.5])
def test_rows_of_experts_are_counted_and_not_listed(capacity_factor):
    """A thousand million tokens for each of 4 GPUs, and a router in balance: 3 products forward and backward
    of both matrices of every expert, on each of its rows."""
    model = MODEL.replace(sequence=10**9, experts=4, top_k=2, capacity_factor=capacity_factor)
    job, huge = Job(model=model, batch=4, sizes_only=True), replace(POCKET, memory_bytes=1e30)
    results = run(strategy("ep_expert_parallel", "experts, divided"), job, 4, huge)
    rows = 4 * 10**9 * 2 * (capacity_factor or 1)
    flops = sum(
        event.flops
        for each in results
        for event in map(Event._make, each.events)
        if event.flops and event.what.endswith(" expert")
    )
    assert flops == pytest.approx(3 * 2 * 2 * rows * model.hidden * model.expert_ffn, rel=1e-9)


def test_more_rows_than_their_number_can_count_are_refused_in_a_sentence():
    """8 sequences of 2**30 tokens, each for 2 of 8 experts, are 2**31 rows for an expert."""
    model = MODEL.replace(sequence=2**30, experts=8, top_k=2)
    Job(model=model, batch=8, microbatches=2, sizes_only=True)
    with pytest.raises(UserError, match="gets 2,147,483,648 rows of each GPU, and 2,147,483,647 is the most"):
        Job(model=model, batch=8, sizes_only=True)
