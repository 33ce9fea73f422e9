"""2D: tensor and sequence parallelism compute what one GPU computes, with the messages and memory of the
papers."""

from dataclasses import replace

import pytest

from gpu import COLLECTIVE, MEMORY, Event
from ndparallel.base.errors import UserError
from ndparallel.commands.command_line import main as command
from ndparallel.hardware.pocket import POCKET
from ndparallel.lessons.main import main
from ndparallel.lessons.registry import load
from ndparallel.lessons.table import run_lesson
from ndparallel.model.units import ModelConfig
from ndparallel.parallel.mesh import Mesh
from ndparallel.planner.layers.operations import Hold
from ndparallel.planner.lesson_runs.record import LessonRank
from ndparallel.training.job import Job
from tests.support.common import (
    SMALL,
    measured,
    reference,
    run,
    strategy,
)

LESSON = "2d_tensor_parallel"
WIDE = ModelConfig(layers=2, hidden=32, heads=8, kv_heads=2, ffn=24, vocab=251, sequence=16)
DEFAULT = Job(parts=2)


def plain():
    """TP with the job's own kind of sequence parallelism."""
    return replace(strategy(LESSON, "TP"), changes={})


def collectives_of(results, kind: str) -> list[Event]:
    events = (Event._make(event) for event in results[0].events)
    return [event for event in events if event.kind == COLLECTIVE and event.what[2] == kind]


def test_a_layer_has_two_all_reduces_forward_and_two_backward_of_batch_sequence_hidden():
    job, more = (Job(model=replace(SMALL, layers=layers), parts=1) for layers in (3, 4))
    activation = job.batch * SMALL.sequence * SMALL.hidden * 4
    counts = [
        sum(event.bytes == activation for event in collectives_of(run(plain(), each, 2), "all_reduce"))
        for each in (job, more)
    ]
    assert counts[1] - counts[0] == 4
    assert counts[0] - 3 * 4 == 2, "the embedding forward, the head backward"


@pytest.mark.parametrize(("variant", "gathers", "times"), [("sp", 4, 1.0), ("sp-regather", 6, 10 / 8)])
def test_sequence_parallelism_gathers_and_scatters_instead(variant, gathers, times):
    """Per layer 4 all-gathers + 4 reduce-scatters, the bytes of TP's 4 all-reduces; regathering 6 + 4, 10/8
    of them."""
    three, four = (Job(model=replace(SMALL, layers=layers), sequence_parallel=variant) for layers in (3, 4))
    runs = [run(plain(), job, 2) for job in (three, four)]
    for kind, count in (("all_gather", gathers), ("reduce_scatter", 4)):
        assert len(collectives_of(runs[1], kind)) - len(collectives_of(runs[0], kind)) == count
    plain_runs = [run(plain(), job.replace(sequence_parallel="none"), 2) for job in (three, four)]
    more, plain_more = (sent(pair[1]) - sent(pair[0]) for pair in (runs, plain_runs))
    norms = 2 * SMALL.hidden * 4  # two norm weights more in the one all-reduce of shared gradients
    assert more - norms == times * plain_more


def sent(results) -> float:
    return sum(event.bytes for event in map(Event._make, results[0].events) if event.kind == "send")


def test_shared_norm_gradients_are_one_all_reduce_a_step():
    shared = (2 * SMALL.layers + 1) * SMALL.hidden * 4
    job = Job(model=SMALL, sequence_parallel="sp", steps=2)
    assert sum(event.bytes == shared for event in collectives_of(run(plain(), job, 2), "all_reduce")) == 2


def korthikanti(model: ModelConfig, batch: int, variant: str, tp: int) -> float:
    """Bytes a layer keeps, after 2205.05198 section 4, redone for SwiGLU, rotary and grouped KV heads,
    float32, no dropout."""
    heads, kv_heads = model.heads / tp, max(1, model.kv_heads // tp)
    s_b_h, ratio = model.sequence * batch * model.hidden, (heads + 2 * kv_heads) / heads
    # norms' inputs and outputs, of attention and of MLP
    whole = {"none": 4, "sp": 2, "sp-regather": 0}[variant]
    ffn, scores = model.ffn / model.hidden, batch * heads * model.sequence**2
    return 4 * (s_b_h * (whole + (4 - whole) / tp + (1 + ratio + 3 * ffn) / tp) + scores)


@pytest.mark.parametrize("variant", ["none", "sp", "sp-regather"])
@pytest.mark.parametrize("tp", [2, 4])
def test_a_layer_keeps_what_korthikantis_accounting_says_to_the_byte(tp, variant):
    model = ModelConfig()
    forward = LessonRank(model, Mesh(tp=tp), 8, variant).passes("block")["forward"]
    kept = sum(item.bytes for item in forward if isinstance(item, Hold))
    assert kept == pytest.approx(korthikanti(model, 8, variant, tp), abs=0.5)


@pytest.mark.parametrize(
    "name", ["MLP, columns then rows", "MLP, sum beside weights", "MLP, columns twice", "TP", "TP + SP"]
)
def test_all_activations_are_freed_by_the_end_of_a_step(name):
    for rank in run(strategy(LESSON, name), DEFAULT, 4):
        held = [
            event.bytes for event in map(Event._make, rank.events) if event[2:4] == (MEMORY, "activations")
        ]
        assert held[-1] == 0 < max(held)


def test_tp_divides_the_weights_and_sequence_parallelism_the_activations_too():
    names = ("TP", "TP + SP", "TP + SP regather")
    peaks = {name: measured(LESSON, name, DEFAULT, 4).peak_memory_bytes for name in names}
    held = [peaks[name]["activations"] for name in names]
    assert held[2] < held[1] < held[0]
    assert peaks["TP"]["weights"] < 0.27 * reference(Job()).peak_bytes["weights"]


@pytest.mark.parametrize("gpus", [2, 4])
def test_backward_sums_beside_weights_leave_the_forward_ones_and_the_ends_to_wait_for(gpus):
    """Of four all-reduces a layer two hide, where a weight's gradient takes longer than a sum; those of
    embedding and head do not."""
    waits = {
        name: measured(LESSON, name, Job(), gpus).exposed_communication_seconds
        for name in ("TP", "TP overlapped", "TP + SP regather", "SP regather overlapped")
    }
    job = Job()
    activation = job.batch * job.model.sequence * job.model.hidden * 4
    link = POCKET.inside
    one = 2 * (gpus - 1) * (link.latency_seconds + activation / gpus / link.bandwidth_bytes_per_second)
    assert waits["TP"] - waits["TP overlapped"] == pytest.approx(2 * job.model.layers * one, rel=1e-9)
    gather_and_scatter = one  # half an all-reduce each
    hidden = waits["TP + SP regather"] - waits["SP regather overlapped"]
    assert hidden == pytest.approx(2 * job.model.layers * gather_and_scatter, rel=1e-9)


def test_more_chunks_are_eaten_by_overhead():
    """With kernels that cost a thousandth of a second, 16 chunks are slower than 2."""
    slow = replace(POCKET, kernel_overhead_seconds=1e-3)
    seconds = {
        chunks: measured(LESSON, "TP in parts", Job(parts=chunks), 4, slow).step_seconds
        for chunks in (1, 2, 16)
    }
    assert seconds[2] < seconds[1] < seconds[16]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"mesh": Mesh(tp=3)},
            "tp=3 can neither cut 8 heads nor share 2 KV heads nor cut an MLP of 88; tp can be 1, 2, 4, 8.",
        ),
        ({"mesh": Mesh(tp=2), "parts": 2, "sequence_parallel": "sp"}, "parts overlap the all-reduces"),
        ({"mesh": Mesh(tp=2), "parts": 2, "tp_overlap": "backward"}, "parts hide the sums"),
        ({"tp_overlap": "all"}, "tp_overlap"),
        ({"parts": 3}, "a sequence of 64 cannot be cut into 3 parts; it can be cut into 1, 2, 4,"),
        ({"bucket_mb": float("nan")}, "--bucket-mb is nan; it must be 0 (every unit for itself) or more"),
        ({"unit_mb": -1.0}, "--unit-mb is -1; it must be 0"),
        ({"stage_chunks": 0}, "a GPU cannot hold 0 stages of 8 layers; choose 1 to 10 chunks."),
    ],
)
def test_what_cannot_be_cut_is_one_sentence(changes, says):
    with pytest.raises(UserError) as error:
        Job(**changes)
    assert says in str(error.value)


def test_the_sweep_names_the_degree_at_which_communication_passes_compute():
    from ndparallel.lessons.runner import Runner

    with Runner(POCKET, "inline") as runner:
        sweep = load(LESSON).sweep("degree", runner, Job(model=WIDE))
    first = next(
        row["tp"] for row in sweep.rows if row["exposed_communication_seconds"] > row["compute_seconds"]
    )
    assert f"tp={first}" in sweep.sentence


# ------------------------------------------------------------------------------- strategies of their own size


def lesson_of(gpus, asked):
    return run_lesson(load(LESSON), Job(model=SMALL, batch=3), POCKET, gpus, asked, "inline")


def test_a_strategy_of_another_size_than_was_asked_for_explains_itself_in_its_row():
    errors = {row.name: row.error for row in lesson_of(2, []).report.strategies if row.error}
    assert errors.keys() == {"TP x FSDP"}
    assert "the nearest batch that can is 2" in errors["TP x FSDP"]


def test_on_one_gpu_nobody_waits_and_no_ratio_of_waits_is_told():
    assert load(LESSON).notice(lesson_of(1, [])) == []


def test_the_headline_has_a_line_of_its_own_that_fits_80_columns(capsys):
    assert main(load(LESSON), ["--strategy", "TP", "--engine", "inline", "--timeline", "none"]) == 0
    headline = capsys.readouterr().out.splitlines()[1]
    assert headline.endswith("on pocket (4 GPUs a node)") and len(headline) <= 80


def test_a_ring_that_leaves_the_node_is_not_said_to_be_inside():
    for gpus_per_node, inside in ((1, False), (2, True), (4, True)):
        hardware, names = replace(POCKET, gpus_per_node=gpus_per_node), ["TP", "TP across nodes"]
        ran = run_lesson(load(LESSON), Job(model=SMALL), hardware, 2, names, "inline")
        assert ("inside a node" in " ".join(load(LESSON).notice(ran))) == inside


@pytest.mark.parametrize(
    ("lesson", "gpus", "note"),
    [
        ("2d", 8, "'TP x FSDP' has 16 GPUs and not 8: it is TP8 x DP2."),
        ("2d", 4, None),
        ("3d", 1, "'MLP on two GPUs' has 2 GPUs and not 1: it is PP2."),
        ("3d", 8, None),
        ("1d", 1, "One GPU has nobody to share its work with"),
        ("0d", 1, None),
    ],
)
def test_rows_that_have_more_gpus_than_are_asked_for_and_one_gpu_alone_are_told(lesson, gpus, note, capsys):
    options = [] if lesson == "0d" else ["--gpus", str(gpus)]
    assert command(["lesson", lesson, *options, "--engine", "inline", "--timeline", "none"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert note in told if note else "GPUs and not" not in told and "has nobody" not in told


@pytest.mark.parametrize(("gpus", "asked"), [(3, []), (2, ["TP x FSDP"])])
def test_what_was_asked_for_and_cannot_be_is_an_error(gpus, asked):
    with pytest.raises(UserError, match="can be|nearest"):
        lesson_of(gpus, asked)
