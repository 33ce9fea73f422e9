"""4D: every legal combination computes what one GPU computes, and the shape of the network decides the
order."""

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from gpu import SEND, si
from ndparallel.base.errors import UserError
from ndparallel.base.events import KIND
from ndparallel.hardware.pocket import POCKET
from ndparallel.lessons.combined import strategies_for
from ndparallel.lessons.main import parser_of
from ndparallel.lessons.registry import load
from ndparallel.lessons.runner import Runner
from ndparallel.lessons.table import run_lesson
from ndparallel.parallel.mesh import Mesh
from ndparallel.results.by_axis import hierarchy
from ndparallel.results.measure import BYTES, Measurement
from ndparallel.results.report import Report, Run
from ndparallel.training.job import Job
from tests.support.common import SMALL, loss_and_gradient_difference, measured, on_mesh, run, strategy

LESSON = "4d_combined"
DENSE = SMALL.replace(layers=4)


def test_experts_run_on_sixteen_gpus_too():
    own = strategy(LESSON, "with experts, EP")
    job = own.job(Job(model=DENSE.replace(heads=4)), 16)
    assert job.mesh == Mesh(tp=2, pp=2, dp=4, ep=4)
    loss, gradient = loss_and_gradient_difference(run(own, Job(model=DENSE), 16), job)
    assert loss <= 1e-5 and gradient <= 1e-5


@pytest.mark.parametrize("options", [[], ["--ep", "2"], ["--tp", "2", "--etp", "1"]], ids=str)
def test_a_mixture_keeps_its_own_number_of_experts_and_a_dense_model_gets_eight(options):
    lesson = load(LESSON)
    layouts = strategies_for(lesson, parser_of(lesson, "4d").parse_args(options))
    layout = layouts[0] if options else lesson.strategy("with experts, EP")
    for experts, top_k in ((4, 1), (16, 4)):
        own = SMALL.replace(layers=2, heads=8, experts=experts, top_k=top_k)
        assert layout.job(Job(model=own), 8).model == own
    dense = layout.job(Job(model=SMALL.replace(layers=2, heads=8)), 8).model
    assert (dense.experts, dense.top_k) == (8, 2)


def test_zero_2_and_fsdp_pay_for_every_microbatch():
    """DDP and ZeRO-1 reduce once a step, ZeRO-2 once a microbatch, FSDP gathers twice a microbatch
    besides."""
    sent = {}
    for zero in range(4):
        results = run(
            on_mesh(LESSON, "TP2 x PP2 x DP2", Mesh(pp=2, dp=2)),
            Job(model=DENSE, microbatches=4, zero=zero),
            4,
        )
        sent[zero] = next(row["sent_bytes"] for row in hierarchy(results, POCKET) if row["axis"] == "dp")
    assert sent[0] == sent[1]
    assert sent[2] / sent[0] == pytest.approx((4 + 1) / 2)
    assert sent[3] / sent[0] == pytest.approx(4 * 3 / 2)


@pytest.mark.parametrize("dp", [2, 4])
def test_in_a_pipeline_fsdp_holds_its_stage_whole_beside_the_activations_and_zero_1_needs_the_least(dp):
    held = {
        zero: max(
            (
                result.peak_bytes
                for result in run(
                    on_mesh(LESSON, "TP2 x PP2 x DP2", Mesh(pp=2, dp=dp)),
                    Job(model=DENSE, microbatches=2, zero=zero),
                    2 * dp,
                )
            ),
            key=lambda peak: sum(peak.values()),
        )
        for zero in range(4)
    }
    assert held[3]["buffers"] == held[1]["weights"] + held[1]["gradients"]
    assert held[3]["activations"] == held[1]["activations"]
    assert min(held, key=lambda zero: sum(held[zero].values())) == 1


def test_the_link_stops_tp_on_8_gpus_and_the_bubble_stops_pp():
    with Runner(POCKET, "inline") as runner:
        rows = load(LESSON).sweep("layouts", runner, Job()).rows
    by_layout = {(row["tp"], row["pp"], row["dp"]): row for row in rows}
    assert by_layout[8, 1, 1]["exposed share"] > 0.5
    assert by_layout[1, 8, 1]["bubble share"] > 0.5


def test_tp_then_dp_then_pp_is_the_best_order_and_tp_outermost_the_worst():
    with Runner(POCKET, "inline") as runner:
        sweep = load(LESSON).sweep("orders", runner, Job())
    seconds = {row["order"]: row["step_seconds"] for row in sweep.rows}
    assert (
        "Best are tp-dp-pp and dp-tp-pp, worst dp-pp-tp and pp-dp-tp, which take 33% longer."
        in sweep.sentence
    )
    assert seconds["tp-dp-pp"] == min(seconds.values())
    assert seconds["dp-pp-tp"] == max(seconds.values()) > 1.3 * min(seconds.values())


def test_a_fast_network_changes_the_winner():
    fast = replace(POCKET, across=POCKET.inside)
    seconds = {
        name: measured(LESSON, name, Job(), 8, fast).step_seconds
        for name in ("TP2 x PP2 x DP2", "DP only", "TP only", "PP only")
    }
    assert min(seconds, key=lambda name: seconds[name]) == "DP only"
    assert seconds["TP only"] < seconds["PP only"], "with a fast network, TP on all 8 beats the pipeline"


def test_memory_stops_data_parallelism():
    from gpu import OutOfMemoryError
    from ndparallel.training.job import MODEL_SIZES

    job = Job(model=MODEL_SIZES["large"])
    with pytest.raises(OutOfMemoryError):
        run(strategy(LESSON, "DP only"), job, 8)
    assert run(strategy(LESSON, "TP2 x PP2 x DP2"), job.replace(steps=1), 8)


def test_who_talks_how_often_is_the_hierarchy_of_parallelism():
    rows = hierarchy(run(strategy(LESSON, "TP2 x PP2 x DP2"), Job(), 8), POCKET)
    assert [row["axis"] for row in rows] == ["tp", "pp", "dp"], "the most frequent first"
    tp, pp, dp = rows
    assert (tp["links"], pp["links"], dp["links"]) == ("inside", "across", "inside")
    assert pp["calls"] == 4, "a message for every microbatch, on average over the two ends"
    assert dp["calls"] == 1


@pytest.mark.parametrize(
    ("batch", "gpus", "sequences"), [(8, 8, 4), (8, 16, 4), (16, 8, 8), (8, 32, 8), (2, 8, 2)]
)
def test_of_longer_sequences_there_are_fewer_where_dp_can_share_them_and_so_as_many_tokens(
    batch, gpus, sequences
):
    job = strategy(LESSON, "CP2 x TP2 x DP2, 2x sequence").job(Job(batch=batch), gpus)
    assert (job.batch, job.model.sequence) == (sequences, 2 * Job().model.sequence)


@pytest.mark.parametrize(
    ("mesh", "axes"),
    [
        (Mesh(cp=2, tp=2, dp=2), ["cp", "dp", "tp"]),
        (Mesh(tp=4, dp=2, ep=2, etp=2), ["dp", "ep", "tp"]),  # what a router counts over tp is no cp
    ],
    ids=repr,
)
def test_whatever_is_sent_belongs_to_an_axis_of_the_mesh(mesh, axes):
    model = DENSE.replace(experts=4 if mesh.ep > 1 else 0)
    results = run(on_mesh(LESSON, "TP2 x PP2 x DP2", mesh), Job(model=model), 8)
    rows = hierarchy(results, POCKET)
    assert sorted(row["axis"] for row in rows) == axes
    sent = sum(event[BYTES] for result in results for event in result.events if event[KIND] == SEND)
    assert sum(row["sent_bytes"] for row in rows) == pytest.approx(sent / 8)


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--tp", "3"], "tp * pp * cp is 3, which does not divide 8 GPUs: choose --gpus 6 or 9, or"),
        (["--tp", "2", "--dp", "2"], "tp * pp * cp * dp is 4, not the 8 GPUs"),
        (["--tp", "16", "--gpus", "16"], "tp=16 can neither cut 8 heads nor cut an MLP of 88"),
        (
            ["--pp", "8", "--schedule", "interleaved", "--microbatches", "4"],
            "interleaved sends microbatches round in groups of at least 8",
        ),
        (
            ["--tp", "4", "--pp", "4"],
            "choose --gpus 16, or other degrees (--tp, --pp, --cp of 4D).",
        ),
        (["--ep", "3", "--dp", "8"], "ep=3 does not divide dp=8"),
        (["--schedule", "zb-h9"], "Did you mean"),
        (
            ["--tp", "2", "--order", "tp-pp"],
            "leaves out dp (4 ranks); only axes of one rank may be left out.",
        ),
        (["--order", "tp-dp"], "--order needs two axes or more, and DP8 has one"),
        (["--tp", "8", "--order", "dp-tp"], "TP8 has one"),
        (["--order", "tp-ap"], "the order 'tp-ap' is no order of"),
        (
            ["--tp", "4", "--cp", "4", "--gpus", "16", "--context-parallel", "all-to-all"],
            "cp=4 cannot cut 8 heads beside tp=4, which an all-to-all gives the ranks; cp can be 1, 2",
        ),
        (["--tp", "-2"], "--tp is -2; a degree of parallelism is at least 1."),
        (["--cp", "2", "--dp", "8"], "tp * pp * cp * dp is 16, not the 8 GPUs of --gpus"),
        (["--gpus", "6"], "tp * pp * cp is 4, which does not divide 6 GPUs: choose --gpus 4 or 8, or"),
    ],
)
def test_what_is_illegal_names_the_rule_it_breaks(argv, says, capsys):
    from ndparallel.lessons.main import main

    assert main(load(LESSON), argv) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(("order", "group"), [("ep-dp", (0, 1)), ("dp-ep", (0, 4))])
def test_ep_and_dp_are_two_axes_that_an_order_can_order(order, group):
    lesson = load(LESSON)
    options = ["--ep", "2", "--order", order]
    (layout,) = strategies_for(lesson, parser_of(lesson, "4d").parse_args(options))
    assert layout.mesh(8).group("ep", 0).ranks == group


def test_any_legal_combination_runs_from_the_command_line(capsys):
    from ndparallel.lessons.main import main

    argv = [
        "--tp",
        "2",
        "--pp",
        "2",
        "--ep",
        "2",
        "--zero",
        "1",
        "--schedule",
        "zb-h1",
        "--engine",
        "inline",
        "--timeline",
        "none",
    ]
    assert main(load(LESSON), argv) == 0
    assert "TP2 x PP2 x EP2 x DP2" in capsys.readouterr().out


def test_a_sequence_can_be_shared_by_heads_as_in_the_lesson_on_cp(capsys):
    from ndparallel.lessons.main import main

    argv = ["--cp", "8", "--context-parallel", "all-to-all", "--engine", "inline", "--json"]
    assert main(load(LESSON), argv) == 0
    row = json.loads(capsys.readouterr().out)["strategies"][-1]
    assert row["max_gradient_difference"] < 1e-5
    attention = measured("cp_context_parallel", "CP Ulysses", Job(), 8)
    assert row["bytes_sent_per_gpu"] == attention.bytes_sent_per_gpu


def test_an_order_is_taken_as_the_sweep_over_orders_writes_it(capsys):
    from ndparallel.lessons.main import main

    argv = ["--tp", "2", "--pp", "2", "--order", "dp-pp-tp", "--engine", "inline", "--json"]
    assert main(load(LESSON), argv) == 0
    row = json.loads(capsys.readouterr().out)["strategies"][-1]
    assert row["step_seconds"] == measured(LESSON, "TP outermost", Job(), 8).step_seconds


@pytest.mark.parametrize(
    ("gpus", "cube"), [(8, "TP2 x PP2 x DP2"), (4, "TP2 x PP2 x DP1"), (16, "TP2 x PP2 x DP4")]
)
def test_a_row_is_called_what_it_is_on_any_number_of_gpus(gpus, cube):
    lesson = load(LESSON).named_for(gpus)
    assert lesson.strategies[0].name == lesson.contrast[0] == lesson.compare[0] == lesson.hierarchy == cube
    assert str(lesson.strategies[0].mesh(gpus).dp) == cube[-1]


def told_of_places(gpus: int, cube: str, gpus_per_node: int) -> str:
    rows = tuple(Measurement(name, gpus, 1.0) for name in (cube, "TP outermost"))
    results: dict[str, Any] = {row.name: [None] for row in rows}
    run = Run(Report(LESSON, {}, {}, rows), replace(POCKET, gpus_per_node=gpus_per_node), results)
    return " ".join(load(LESSON).notice(run))


@pytest.mark.parametrize(
    ("gpus", "cube", "gpus_per_node", "told"),
    [
        (8, "TP2 x PP2 x DP2", 4, "TP2 x PP2 x DP2 with TP across nodes and DP inside is 0% slower."),
        (4, "TP2 x PP2 x DP1", 2, "TP2 x PP2 x DP1 with TP across nodes and PP inside is 0% slower."),
        (4, "TP2 x PP2 x DP1", 4, "is the same as TP2 x PP2 x DP1 here: all 4 GPUs stand in one node,"),
        (4, "TP2 x PP2 x DP1", 1, "here: every GPU has a node of its own, so all links are alike. Try"),
    ],
)
def test_tp_across_nodes_is_slower_where_there_are_nodes_to_cross_and_else_told_to_be_the_same(
    gpus, cube, gpus_per_node, told
):
    assert told in told_of_places(gpus, cube, gpus_per_node)


def test_names_that_read_as_words_are_quoted():
    """TP only waits 71% of the time: a name, and no "merely"."""
    names = ("TP2 x PP2 x DP2", "DP only", "TP only", "PP only")
    rows = tuple(
        Measurement(name, 8, 1.0, exposed_communication_seconds=0.71, bubble_seconds=0.57) for name in names
    )
    results: dict[str, Any] = {row.name: [None] for row in rows}
    told = load(LESSON).notice(Run(Report(LESSON, {}, {}, rows), POCKET, results))
    assert told[1:3] == ["'TP only' waits for 71% of its step.", "'PP only' idles for 57% of its step."]


def test_a_pipeline_deeper_than_the_model_is_refused():
    with pytest.raises(UserError, match="cannot fill"):
        Job(mesh=Mesh(pp=16), microbatches=8)


def test_experts_that_take_less_drop_more_and_hold_up_less():
    with Runner(POCKET, "inline") as runner:
        rows = load(LESSON).sweep("capacity", runner, Job(model=replace(SMALL, layers=4, heads=8))).rows
    assert rows[0]["capacity_factor"] is None and rows[0]["dropped share"] == 0
    for roomy, tight in pairwise(rows):
        assert tight["dropped share"] >= roomy["dropped share"]
        assert tight["step_seconds"] <= roomy["step_seconds"] and tight["sent_bytes"] <= roomy["sent_bytes"]
    assert rows[-1]["dropped share"] > 0 and rows[-1]["busiest to mean"] < rows[0]["busiest to mean"]


def test_no_capacity_factor_is_a_choice_and_no_number_that_is_missing(capsys):
    from ndparallel.lessons.main import main

    assert main(load(LESSON), ["--sweep", "capacity", "--engine", "inline"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[4:9]]
    assert [row[0] for row in rows] == ["none", "2.00x", "1.50x", "1.25x", "1.00x"] and "-" not in sum(
        rows, []
    )


def test_what_zero_2_and_3_share_out_comes_back_as_buffers():
    """AdamW's states are twice the weights: what ZeRO-1 saves on two ranks is the size of the weights."""
    with Runner(POCKET, "inline") as runner:
        sweep = load(LESSON).sweep("zero", runner, Job(model=replace(SMALL, layers=4, heads=8)))
    held, buffers = ([row[key] for row in sweep.rows] for key in ("memory_bytes", "buffers_bytes"))
    weights = held[0] - held[1]
    assert buffers == pytest.approx([0, 0, weights, 2 * weights], rel=0.01)
    assert held[2:] == pytest.approx([held[1] + weights / 2, held[1] + weights], rel=0.01)
    least, two, three = (si(size, "B") for size in (held[1], *buffers[2:]))
    assert f"ZeRO-1 needs the least memory, {least}. What is shared out beyond that" in sweep.sentence
    assert sweep.sentence.endswith(f"in buffers: {two} with ZeRO-2 and {three} with ZeRO-3.")


def test_whole_experts_over_all_ranks_send_a_row_once_where_cut_ones_hand_it_on_over_tp():
    """Of R rows that a rank sends each way, ep=2 takes half to the other rank, and then tp all of them to the
    other slice. Whole experts on all four ranks take three quarters, and nothing more."""
    model = SMALL.replace(experts=8, top_k=2, balance_loss=0.0)
    sent, job = {}, Job(model=model, batch=2, sizes_only=True)
    for mesh in (Mesh(tp=2, dp=2, ep=2), Mesh(tp=2, dp=2, ep=4, etp=1)):
        results = run(on_mesh(LESSON, "TP2 x PP2 x DP2", mesh), job, 4)
        sent[mesh.etp] = {row["axis"]: row["sent_bytes"] for row in hierarchy(results, POCKET)}
    rows = model.sequence // 2 * model.top_k  # a sequence on each dp rank
    each_way = 4 * model.layers * rows * model.hidden * 4  # forward and backward, there and back
    assert sent[2]["ep"] == pytest.approx(each_way / 2, rel=0.01)  # beside the counts of rows
    assert sent[1]["ep"] == pytest.approx(each_way * 3 / 4, rel=0.01)
    assert sent[2]["tp"] - sent[1]["tp"] == pytest.approx(each_way, rel=0.01)


def test_the_sweep_says_what_whole_experts_send_and_how_long_they_take():
    with Runner(POCKET, "inline") as runner:
        sweep = load(LESSON).sweep("folding", runner, Job(model=replace(SMALL, layers=4, heads=8)))
    rows = {(row["etp"], row["ep"]): row for row in sweep.rows}
    cut, whole = rows[2, 2], rows[1, 4]
    assert f"it sends {whole['sent_bytes'] / cut['sent_bytes']:.2f}x the bytes" in sweep.sentence
    assert whole["sent_bytes"] < 0.8 * cut["sent_bytes"]
    faster = whole["step_seconds"] < cut["step_seconds"]
    assert ("less" if faster else "longer") in sweep.sentence.split("the bytes")[1]
    busiest = (f"{row['busiest to mean']:.2f}x" for row in (whole, cut))
    assert "rank has {} the mean rank's rows, in place of {}.".format(*busiest) in sweep.sentence
    held = [rows[1, ep]["memory_bytes"] for ep in (1, 2, 4)]
    assert held == sorted(held, reverse=True) and rows[2, 1]["memory_bytes"] < held[0]


def test_the_command_folds_experts_over_tp(capsys):
    from ndparallel.lessons.main import main

    options = [
        "--gpus",
        "4",
        "--tp",
        "2",
        "--ep",
        "4",
        "--etp",
        "1",
        "--engine",
        "inline",
        "--timeline",
        "none",
    ]
    assert main(load(LESSON), options) == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("TP2"))
    assert row.startswith("TP2 x EP4 x ETP1 x DP2 ") and row.endswith(" =")


@pytest.mark.parametrize("name", ["orders", "layouts", "zero", "capacity", "folding"])
def test_a_sweep_of_which_nothing_fits_into_memory_says_so(name):
    with Runner(replace(POCKET, memory_bytes=1e4), "inline") as runner:
        sweep = load(LESSON).sweep(name, runner, Job(model=replace(SMALL, layers=8, heads=8)))
    assert sweep.sentence == "None of them fits into the memory of a GPU."
    assert all(row["step_seconds"] is None for row in sweep.rows)


def test_json_says_what_of_its_work_a_strategy_has_for_itself():
    """The head of the record is the lesson's model: its experts are 0 in the lesson on experts too."""
    told = run_lesson(load(LESSON), Job(**load(LESSON).defaults), POCKET, 8, [], "inline").report.as_dict()
    own = {row["name"]: row["model"] for row in told["strategies"] if "model" in row}
    assert told["model"]["experts"] == 0
    assert own == {
        "with experts, EP": {"experts": 8},
        "CP2 x TP2 x DP2, 2x sequence": {
            "sequence": 2 * told["model"]["sequence"],
            "batch": told["model"]["batch"] // 2,
        },
    }
