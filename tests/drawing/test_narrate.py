"""The narration: every event once, in the order of time, in words that are true."""

from functools import cache

import pytest

from gpu import COLLECTIVE, COMPUTE, MEMORY, MEMORY_KINDS, RECEIVE, SEND, si
from ndparallel.drawing.narrate import gpus, in_order, narrate
from ndparallel.drawing.narrate_units import narrate_units
from ndparallel.lessons.registry import single_gpu
from ndparallel.training.job import Job
from tests.support.common import run, strategy
from tests.support.synthetic import Run, data_parallel, pipeline

RUNS = data_parallel()
STEP = max(run.end_seconds for run in RUNS)
STORY = list(narrate(RUNS[1], STEP))


def test_every_event_is_told_once_and_changes_of_memory_at_one_instant_together():
    told = [
        line
        for line in STORY
        if any(
            verb in line for verb in ("computes", "sends", "receives", "begins", "waits", "before it needs")
        )
    ]
    assert len(told) == sum(event[2] != MEMORY for event in RUNS[1].events)
    instants = {event.start for event in in_order(RUNS[1].events) if event.kind == MEMORY}
    assert sum("; holds" in line for line in STORY) == len(instants)


def test_it_begins_with_the_weights_and_ends_with_the_step():
    assert STORY[0] == "GPU 1, in the order of time ('on dp': on the stream of dp, beside compute):"
    assert STORY[1].strip() == "0 s  allocates 160 kB of weights; holds 160 kB."
    assert STORY[2].strip() == "0 s  computes forward embedding norm1 for 22.4 us (20.4 kFLOP)."
    assert STORY[-1].endswith("the step ends.") and si(STEP, "s") in STORY[-1]


def test_on_is_explained_with_a_stream_that_the_story_has():
    for strategy_, gpus_, words in (
        (strategy("3d_pipeline_parallel", "1F1B"), 4, " ('on pp': on the stream of pp, beside compute)"),
        (single_gpu(), 1, ""),
    ):
        first = next(narrate(run(strategy_, Job(microbatches=4), gpus_)[0], 1.0))
        assert first == f"GPU 0, in the order of time{words}:"


def test_the_order_is_that_of_time():
    starts = [event.start for event in in_order(RUNS[1].events)]
    assert starts == sorted(starts)


def test_a_collective_is_told_before_its_messages_which_are_indented():
    words = "on dp begins ring all-reduce 1: 32.0 kB with GPUs 0 to 3, for "
    begin = next(number for number, line in enumerate(STORY) if words in line)
    assert "      on dp sends 8.00 kB to GPU 2, in 8.00 us: hop 0 of collective 1." in STORY[begin + 1]


def test_what_starts_together_is_told_as_the_program_ran():
    freed = next(number for number, line in enumerate(STORY) if "begins ring all-reduce 0" in line)
    assert "frees 3.00 kB of activations" in STORY[freed - 1]


def test_waiting_for_a_message_is_told_after_the_bubble_before_it():
    last = pipeline()[1]
    story = list(narrate(last, last.end_seconds))
    assert story[1].strip() == "0 s  has nothing to do for 32.0 us: bubble."
    assert (
        story[2].strip()
        == "32.0 us  receives 20.0 kB from GPU 0, after 22.0 us: activations of microbatch 0 for stage 1."
    )
    assert any(
        "has 20.0 kB from GPU 0 before it needs them: activations of microbatch 1 for stage 1." in line
        for line in story
    )


def test_a_gpu_that_is_always_busy_has_no_bubble():
    alone = data_parallel(1)[0]
    assert not any("bubble" in line for line in narrate(alone, alone.end_seconds))


def test_the_tail_is_told_as_bubble():
    first, last = pipeline()
    story = list(narrate(first, last.end_seconds))
    assert "has nothing to do for" in story[-2] and story[-2].endswith("bubble.")


def test_a_bubble_is_told_when_it_begins_though_others_happened_before_it_ended():
    events = [
        (0, "dp", SEND, "x", 0.002, 0.004, 8.0, 0, 1),
        (0, COMPUTE, "compute", "forward", 0.005, 0.006, 0.0, 0, None),
    ]
    told = [line.split()[:3] for line in narrate(Run(0, tuple(events), 0.006, {}), 0.006)][1:]
    assert told == [
        ["0", "s", "has"],
        ["2.00", "ms", "on"],
        ["5.00", "ms", "computes"],
        ["6.00", "ms", "the"],
    ]


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        ((0, 1), "GPUs 0, 1"),
        ((4, 5, 6, 7), "GPUs 4 to 7"),
        ((1, 3, 5, 7), "GPUs 1, 3, 5, 7"),
        (tuple(range(0, 64, 8)), "8 GPUs from 0 to 56"),
    ],
)
def test_many_gpus_are_told_in_few_words(ranks, said):
    assert gpus(ranks) == said


def test_a_line_is_at_most_100_columns_wide_on_any_stream_and_what_needs_more_is_folded():
    def event(stream, kind, what, peer):
        return (15, stream, kind, what, 0.111, 0.222, 1.11e5, 0, peer)

    def held(kind):
        return (15, COMPUTE, MEMORY, kind, 0.0, 0.0, 1.11e5, 0, None)

    events = [
        event(
            "dp replicate",
            COLLECTIVE,
            ("dp replicate", 111, "reduce_scatter", "hierarchical"),
            tuple(range(0, 160, 10)),
        ),
        event("dp replicate", SEND, (("dp replicate", 111), ("inside reduce-scatter", 11)), 10),
        event("pp receive backward", RECEIVE, ("B", 15, 11), 10),
        event("cp", RECEIVE, ("gradients of keys and values", 11), 10),
        *map(held, MEMORY_KINDS),
    ]
    lines = list(narrate(Run(15, tuple(events), 0.3, {}), 0.3))
    assert max(map(len, lines)) <= 100 and not any("\n" in line for line in lines)
    assert any(line.startswith(" " * 10) and line.endswith("holds 555 kB.") for line in lines)
    assert any(
        "on pp receives 111 kB from GPU 10, after 111 ms: gradients of microbatch 11 for stage 15." in line
        for line in lines
    )


def test_memory_at_one_instant_is_one_sentence_with_the_net_change():
    def memory(kind, size):
        return (0, COMPUTE, MEMORY, kind, 0.0, 0.0, size, 0, None)

    def told(*events):
        return list(narrate(Run(0, events, 0.0, {}), 0.0))[1].strip()

    assert (
        told(memory("weights", 10), memory("buffers", 5))
        == "0 s  allocates 10.0 B of weights, 5.00 B of buffers; holds 15.0 B."
    )
    assert (
        told(memory("weights", 10), memory("weights", 0)) == "0 s  allocates and frees the same; holds 0 B."
    )


@cache
def told_of(name: str, rank: int) -> list[str]:
    """1F1B on four GPUs, told by one of them."""
    results = run(strategy("3d_pipeline_parallel", name), Job(microbatches=8), 4)
    return narrate_units(results[rank], max(result.end_seconds for result in results))


def sentence(story: list[str], words: str) -> str:
    return next(line for line in story if words in line)


def test_what_a_stage_sends_is_told_of_the_action_that_computed_it_with_whom_it_goes_to():
    first, second = told_of("1F1B", 0), told_of("1F1B", 1)
    assert "; sends activations to GPU 1;" in sentence(first, "of microbatch 0, layer 1")
    assert "sends" not in sentence(first, "of microbatch 1, embedding")
    assert "sends" not in sentence(first, "of microbatch 4, embedding")
    assert "sends" not in sentence(second, "optimizer:")
    told = " ".join(" ".join(second).split())
    assert told.count("sends activations to GPU 2") == told.count("sends gradients to GPU 0") == 8


def test_a_bubble_is_told_with_the_message_that_ends_it():
    assert "has nothing to do for 269 ms: bubble, until GPU 1 sends gradients of microbatch 0." in sentence(
        told_of("1F1B", 0), "269 ms"
    )
    assert told_of("1F1B", 1)[-2].endswith(": bubble.")


def test_the_halves_of_a_backward_pass_are_told_by_their_names():
    story = told_of("ZB-H1", 3)
    assert "input gradient of microbatch 0, layers 6-7 and head" in sentence(story, "input gradient")
    assert "weight gradient of microbatch 0, layers 6-7 and head" in sentence(story, "weight gradient")
    assert not any("backward of" in line for line in story)
