"""1D over nodes: FSDP in two levels, HSDP with a copy in each node; who sends what across, and when."""

import json
from dataclasses import replace

import pytest

from gpu import COLLECTIVE, COMPUTE, SEND, WAIT, Event
from ndparallel.base.errors import UserError
from ndparallel.hardware.pocket import POCKET
from ndparallel.lessons.main import main
from ndparallel.lessons.registry import load
from ndparallel.lessons.runner import Runner
from ndparallel.training.job import Job
from tests.support.common import (
    SMALL,
    measured,
    reference,
    run,
    strategy,
)

LESSON = "1d_data_parallel"
DEFAULT, EIGHT = Job(), Job(model=SMALL)
FSDP, HSDP = (strategy(LESSON, name) for name in ("FSDP prefetch", "HSDP"))


def events(results, kind: str) -> list[Event]:
    return [event for result in results for event in map(Event._make, result.events) if event.kind == kind]


def bytes_across(results) -> float:
    """Bytes that a GPU sends to other nodes, as a mean over the GPUs."""
    return sum(event.bytes for event in events(results, SEND) if event.rank // 4 != event.peer // 4) / len(
        results
    )


def gradient_bytes() -> int:
    return 4 * sum(holding.array.size for holding in reference(DEFAULT).value.weights)


def test_hsdp_divides_the_states_by_the_gpus_of_a_node_and_fsdp_by_all():
    n = gradient_bytes()
    for over_nodes, parts in ((FSDP, 8), (HSDP, 4)):
        held = run(over_nodes, DEFAULT, 8)[0].held_bytes
        assert (held["weights"], held["gradients"], held["optimizer"]) == (
            n / parts,
            n / parts,
            2 * n / parts,
        )


def test_across_nodes_hsdp_sends_one_all_reduce_of_its_shard_and_fsdp_a_half_more():
    """g = 4, m = 2: 2 (m-1)/m n / g against 3 (m-1)/m n / g."""
    n = gradient_bytes()
    assert bytes_across(run(HSDP, DEFAULT, 8)) == 2 * (1 / 2) * n / 4
    assert bytes_across(run(FSDP, DEFAULT, 8)) == 3 * (1 / 2) * n / 4


def test_bytes_sent_in_all():
    """FSDP 3 (N-1)/N n; HSDP 3 (g-1)/g n inside and 2 (m-1)/m n / g across."""
    n = gradient_bytes()
    sent = {
        over_nodes.name: measured(LESSON, over_nodes.name, DEFAULT, 8).bytes_sent_per_gpu
        for over_nodes in (FSDP, HSDP)
    }
    assert sent == {FSDP.name: 3 * 7 / 8 * n, HSDP.name: (3 * 3 / 4 + 2 * 1 / 2 / 4) * n}


def test_weights_never_cross_between_the_nodes_of_hsdp():
    crossing = [
        event
        for event in events(run(HSDP, EIGHT, 8), COLLECTIVE)
        if len({rank // 4 for rank in event.peer}) > 1
    ]
    assert {(event.stream, event.what[2]) for event in crossing} == {("dp replicate", "all_reduce")}


@pytest.mark.parametrize("name", ["DDP overlapped", "ZeRO-1", "ZeRO-2", "FSDP", "FSDP prefetch"])
def test_groups_over_nodes_of_several_gpus_talk_in_two_levels_and_others_in_rings(name):
    def algorithms(gpus_per_node):
        results = run(strategy(LESSON, name), EIGHT, 8, replace(POCKET, gpus_per_node=gpus_per_node))
        return {event.what[3] for event in events(results, COLLECTIVE)}

    assert algorithms(4) == {"hierarchical"}
    assert algorithms(8) == algorithms(1) == algorithms(3) == {"ring"}


def test_two_levels_send_the_bytes_of_one_ring_but_a_seventh_of_them_over_the_busiest_link_between_nodes():
    rings, levels = (
        run(strategy(LESSON, "DDP ring"), DEFAULT, 8),
        run(strategy(LESSON, "DDP overlapped"), DEFAULT, 8),
    )
    busiest = [max(bytes_across([result]) for result in results) for results in (rings, levels)]
    assert busiest[1] == pytest.approx(busiest[0] / 7)
    assert sum(event.bytes for event in events(rings, SEND)) == sum(
        event.bytes for event in events(levels, SEND)
    )


def test_gradients_go_across_as_soon_as_they_are_reduced_inside_while_the_backward_pass_goes_on():
    mine = [event for event in events(run(HSDP, DEFAULT, 8), COLLECTIVE) if event.rank == 0]
    inside = [event for event in mine if event.what[2] == "reduce_scatter"]
    across = [event for event in mine if event.what[2] == "all_reduce"]
    assert len(inside) == len(across) == DEFAULT.model.layers + 2
    free = 0.0
    for first, second in zip(inside, across):
        assert second.start == max(first.end, free), "nothing else holds it up"
        free = second.end
    last_of_backward = max(
        event.end for event in events(run(HSDP, DEFAULT, 8), COMPUTE) if event.what.startswith("backward")
    )
    assert across[-3].end < last_of_backward < across[-1].end


def test_who_waits_for_the_all_reduce_waits_for_the_reduce_scatter_before_it_too():
    """The tail of the step is exposed communication from the last backward operation to the optimizer, and no
    bubble."""
    mine = run(HSDP, DEFAULT, 8)[0]
    backward = max(event.end for event in events([mine], COMPUTE) if event.what.startswith("backward"))
    optimizer = min(event.start for event in events([mine], COMPUTE) if event.what.startswith("optimizer"))
    waits = [event for event in events([mine], WAIT) if backward <= event.start and event.end <= optimizer]
    assert sum(event.end - event.start for event in waits) == pytest.approx(optimizer - backward, rel=1e-12)


def test_hsdp_on_one_node_is_fsdp_and_with_one_gpu_a_node_sends_what_ddp_sends():
    one_node, one_gpu = (replace(POCKET, gpus_per_node=size) for size in (8, 1))
    steps = [
        measured(LESSON, over_nodes.name, DEFAULT, 8, one_node).step_seconds for over_nodes in (FSDP, HSDP)
    ]
    assert steps[0] == pytest.approx(steps[1], rel=1e-12)
    sent = [
        measured(LESSON, name, DEFAULT, 8, one_gpu).bytes_sent_per_gpu for name in ("DDP ring", HSDP.name)
    ]
    assert sent[0] == sent[1]


def test_nodes_of_unequal_numbers_are_one_sentence():
    with pytest.raises(
        UserError,
        match="these 8 GPUs stand 6 and 2 in a node: choose a number of GPUs that nodes of 6 divide",
    ):
        run(HSDP, EIGHT, 8, replace(POCKET, gpus_per_node=6))


def test_hsdp_waits_less_than_fsdp_for_more_memory():
    fsdp, hsdp = (measured(LESSON, over_nodes.name, DEFAULT, 8) for over_nodes in (FSDP, HSDP))
    assert hsdp.exposed_communication_seconds < fsdp.exposed_communication_seconds
    assert hsdp.peak_memory_bytes["total"] > fsdp.peak_memory_bytes["total"]


def test_what_is_left_of_a_rings_waiting_is_told_by_the_names_of_the_rows(capsys):
    names = ("DDP ring", "DDP hierarchical", "DDP ring overlapped", "DDP overlapped")
    waits = [measured(LESSON, name, DEFAULT, 8).exposed_communication_seconds for name in names]
    assert main(load(LESSON), ["--gpus=8", "--engine=inline", "--timeline=none"]) == 0
    told = " ".join(capsys.readouterr().out.split()).partition("Of DDP ring's waiting, ")[2]
    left = [f"{wait / waits[0]:.0%}" for wait in waits[1:]]
    clauses = f"{left[0]} is left by {names[1]}, {left[1]} by {names[2]}, and {left[2]} by {names[3]}."
    assert told.startswith(clauses)


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        (("--gpus=8",), {"DDP hierarchical", "DDP ring overlapped", "HSDP"}),
        (("--gpus=6", "--batch=12"), {"HSDP"}),
        (("--gpus=4", "--gpus-per-node=1"), {"HSDP"}),
        (("--gpus=4",), set()),
    ],
)
def test_what_the_nodes_make_equal_to_another_row_is_no_row_and_nothing_is_said_of_it(options, rows, capsys):
    assert main(load(LESSON), ["--engine=inline", "--sizes-only", "--timeline=none", *options]) == 0
    told = capsys.readouterr().out
    names = {line.partition("  ")[0] for line in told.splitlines()}
    assert names & {"DDP hierarchical", "DDP ring overlapped", "HSDP"} == rows
    assert ("DDP hierarchical" in told) == ("DDP hierarchical" in rows)


# -------------------------------------------------------------------------------------- gradient accumulation


def test_the_sweep_over_microbatches_says_what_each_part_costs():
    """n bytes of gradients on N ranks: DDP and ZeRO-1 2 (N-1)/N n whatever m, ZeRO-2 (m + 1), FSDP 3 m and
    without resharding 2 m."""
    job = Job(model=SMALL)
    with Runner(POCKET, "inline") as runner:
        sweep = load(LESSON).sweep("microbatches", runner, job)
    n = 4 * sum(holding.array.size for holding in reference(job).value.weights)
    halves = {
        "DDP overlapped": lambda m: 2,
        "ZeRO-1": lambda m: 2,
        "ZeRO-2": lambda m: m + 1,
        "FSDP prefetch": lambda m: 3 * m,
    }
    halves["FSDP no reshard"] = lambda m: 2 * m
    assert {(row["strategy"], row["microbatches"]) for row in sweep.rows} == {
        (name, m) for name in halves for m in (1, 2, 4, 8)
    }
    for row in sweep.rows:
        assert row["sent_bytes"] == halves[row["strategy"]](row["microbatches"]) * 3 / 4 * n
    assert (
        "the same with DDP overlapped and ZeRO-1, 4.5x as many with ZeRO-2 and 8.0x as many with "
        "FSDP prefetch and FSDP no reshard: " in sweep.sentence
    )


@pytest.mark.parametrize(
    ("options", "last"), [([], "FSDP no reshard"), (["--gpus=8"], "HSDP"), (["--strategy=HSDP"], "HSDP")]
)
def test_hsdp_is_shown_where_there_are_several_nodes_or_where_it_is_asked_for(options, last, capsys):
    assert main(load(LESSON), [*options, "--engine=inline", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["strategies"][-1]["name"] == last
