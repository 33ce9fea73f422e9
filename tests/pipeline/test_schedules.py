"""The lists of the published schedules: their order, their memory, what they refuse."""

import json
from collections import Counter
from itertools import takewhile

import numpy as np
import pytest
from hypothesis import given

from ndparallel.base.errors import UserError
from ndparallel.pipeline.actions import Layout
from ndparallel.pipeline.catalog import RECIPES, build, names_in, written_schedules
from ndparallel.pipeline.checker import explain
from ndparallel.pipeline.schedules import group_size
from ndparallel.pipeline.timing import time_schedule
from ndparallel.pipeline.work import Work
from tests.support.pipelines import SCHEDULES, is_legal, schedules, timed

GRID = [(1, 1), (1, 3), (2, 4), (3, 6), (3, 7), (4, 8), (4, 9), (5, 17), (8, 16), (8, 40)]


def letters(name: str, ranks: int, microbatches: int, rank: int, chunks=None) -> str:
    """One rank's list: an op's letter, small in every second chunk, and the microbatch from 1, as papers
    number them."""
    schedule = build(name, ranks, microbatches, chunks)
    small = [schedule.layout.chunk(action.stage) % 2 for action in schedule.actions[rank]]
    actions = zip(schedule.actions[rank], small)
    return " ".join(
        f"{action.op.lower() if low else action.op}{action.microbatch + 1}" for action, low in actions
    )


@given(schedules())
def test_every_schedule_can_run_and_does_everything_once(schedule):
    assert is_legal(schedule)


@pytest.mark.parametrize("name", written_schedules())
def test_64_ranks_and_8_chunks_run_too(name):
    assert explain(build(name, 64, 128, None if RECIPES[name].chunks else 8)) is None


@pytest.mark.parametrize("name", ["zb-v", "dualpipev", "v-half", "v-min"])
def test_batches_too_short_to_fill_the_pipeline_run_too(name):
    for ranks in range(1, 11):
        assert [explain(build(name, ranks, microbatches)) for microbatches in range(1, 2 * ranks)] == [
            None
        ] * (2 * ranks - 1)


def test_1f1b_is_the_figure_of_megatron():
    assert letters("1f1b", 4, 8, rank=0) == "F1 F2 F3 F4 B1 F5 B2 F6 B3 F7 B4 F8 B5 B6 B7 B8"
    assert letters("1f1b", 4, 8, rank=3) == "F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7 F8 B8"


def test_gpipe_does_all_forwards_then_all_backwards():
    assert letters("gpipe", 4, 3, rank=2) == "F1 F2 F3 B1 B2 B3"


def test_naive_has_one_microbatch_in_the_pipeline_at_a_time():
    assert letters("naive", 4, 3, rank=0) == "F1 B1 F2 B2 F3 B3"


def test_eager_1f1b_starts_twice_as_far_ahead():
    assert letters("eager-1f1b", 3, 6, rank=0) == "F1 F2 F3 F4 F5 B1 F6 B2 B3 B4 B5 B6"


def test_interleaved_is_the_figure_of_megatron():
    """arXiv 2104.04473, figure 4, the first device: P=4, M=8, V=2."""
    first = "F1 F2 F3 F4 f1 f2 f3 f4 F5 F6 F7 b1 F8 b2 f5 b3 f6 b4 f7 B1 f8 B2 B3 B4 b5 b6 b7 b8 B5 B6 B7 B8"
    assert letters("interleaved", 4, 8, rank=0, chunks=2) == first


def test_interleaved_in_groups_is_the_table_of_megatron():
    """schedules.py, get_schedule_table, 5 microbatches in groups of 3 on 2 ranks of 2 chunks: microbatches
    0 1 2 0 1 2 3 4 3 4 through chunks 0 0 0 1 1 1 0 0 1 1; the last rank does 3 before the turns begin."""
    last = "F1 F2 F3 f1 b1 f2 b2 f3 b3 F4 B1 F5 B2 f4 B3 f5 b4 b5 B4 B5"
    assert letters("interleaved", 2, 5, rank=1, chunks=2) == last


def test_groups_are_the_smallest_that_megatron_takes():
    """From P to M microbatches, with a last group of none or at least P (schedules.py,
    forward_backward_pipelining_with_interleaving)."""
    for ranks in range(1, 10):
        for microbatches in range(ranks, 8 * ranks):
            legal = [n for n in range(ranks, microbatches + 1) if not 0 < microbatches % n < ranks]
            assert group_size(microbatches, ranks) == legal[0]
    assert group_size(np.array([4, 9, 11, 33]), 4).tolist() == [4, 5, 6, 7]


def test_interleaved_goes_chunk_by_chunk_where_all_microbatches_are_one_group():
    goes, microbatches = RECIPES["interleaved"].chunk_by_chunk, np.arange(1.0, 100)
    for ranks in range(1, 20):
        one_group = group_size(microbatches, ranks) == microbatches
        assert goes and (goes(microbatches, ranks) == one_group).all()


def test_groups_are_torchs_rounds_where_torch_takes_the_microbatches():
    """torch.distributed.pipelining, ScheduleInterleaved1F1B: M // P rounds, which divide M."""
    for ranks in range(1, 10):
        for microbatches in range(ranks, 8 * ranks):
            rounds = microbatches // ranks
            if microbatches % rounds == 0:
                assert group_size(microbatches, ranks) == microbatches // rounds


def test_looped_bfs_sends_all_microbatches_through_one_chunk_before_the_next():
    assert letters("looped-bfs", 2, 3, rank=1, chunks=2) == "F1 F2 F3 f1 f2 f3 b1 b2 b3 B1 B2 B3"


def test_zb_h1_starts_weight_gradients_later_on_later_ranks():
    assert letters("zb-h1", 3, 4, rank=0) == "F1 F2 F3 I1 W1 F4 I2 W2 I3 W3 I4 W4"
    assert letters("zb-h1", 3, 4, rank=2) == "F1 I1 F2 I2 F3 I3 W1 F4 I4 W2 W3 W4"


def test_zb_h2_fills_the_wait_for_the_first_gradient_with_forwards():
    assert letters("zb-h2", 3, 6, rank=0) == "F1 F2 F3 F4 F5 I1 W1 F6 I2 W2 I3 W3 I4 W4 I5 W5 I6 W6"


def test_zb_v_turns_round_at_the_last_rank():
    assert letters("zb-v", 2, 4, rank=1).startswith("F1 f1 F2 f2 i1 w1 F3 I1 W1 f3 i2 w2 F4 I2 W2 f4 i3 w3")
    assert letters("zb-v", 2, 4, rank=0).startswith("F1 F2 F3 f1 i1 w1 f2 i2 w2 F4 I1 W1 f3 i3 w3")


def ticks_beyond_the_work(name: str, ranks: int, microbatches: int) -> float:
    """Of a schedule of two chunks, with a tick for F, I and W of each: every microbatch is work of six."""
    return timed(name, ranks, microbatches, 2, 2, 2).makespan - 6 * microbatches


@pytest.mark.parametrize("ranks", [*range(1, 10), 12, 16])
def test_zb_v_is_as_short_as_its_authors_from_p_microbatches_on(ranks):
    """sail-sg/zero-bubble-pipeline-parallelism, zbv.py: 6M + P - 1, which is the bound."""
    for microbatches in range(ranks, 2 * ranks + 2):
        assert ticks_beyond_the_work("zb-v", ranks, microbatches) == ranks - 1


def test_zb_v_of_fewer_microbatches_than_ranks_is_as_short_as_its_authors():
    ticks = {
        ranks: [ticks_beyond_the_work("zb-v", ranks, few) for few in range(1, ranks)] for ranks in (5, 8)
    }
    assert ticks == {5: [15, 11, 8, 6], 8: [27, 23, 19, 15, 13, 11, 9]}


def test_zb_v_keeps_what_1f1b_keeps():
    for ranks in range(1, 10):
        for microbatches in range(1, 3 * ranks):
            peak = min(2 * microbatches, 2 * ranks)
            assert timed("zb-v", ranks, microbatches).peak_held == [peak] * ranks


@pytest.mark.parametrize("ranks", [*range(3, 14), 16])
def test_v_half_and_v_min_keep_the_memory_of_their_paper_and_are_no_longer_than_its_authors(ranks):
    """Qi et al., arXiv 2405.15362: of 1F1B's P microbatches (P + 2) // 2 and (P + 4) // 3, in two chunks
    each. Of its bubble, 6 (P - 1) ticks, sail-sg/zero-bubble-pipeline-parallelism, zbv_greedy.py, leaves as
    much as is asserted here, or more: with P microbatches, and in V-Min with 2, 5, 8 ... ranks."""
    for name, held, bubble in (
        ("v-half", 2 * ((ranks + 2) // 2), 6 * ((ranks - 1) // 2) - 1),
        ("v-min", 2 * ((ranks + 4) // 3), 6 * (2 * (ranks - 1) // 3) - 1),
    ):
        for microbatches in (ranks, ranks + 1, ranks + 2, 3 * ranks // 2, 2 * ranks, 3 * ranks + 1):
            short_of_room = (name, ranks, microbatches) == ("v-min", 5, 5)
            assert ticks_beyond_the_work(name, ranks, microbatches) == bubble + 2 * short_of_room
            timing = timed(name, ranks, microbatches)
            assert timing.peak_held == [min(2 * microbatches, held)] * ranks
            assert explain(timing.schedule) is None


def test_v_half_and_v_min_of_two_ranks_meet_the_bound_in_the_memory_of_1f1b():
    for name in ("v-half", "v-min"):
        assert {ticks_beyond_the_work(name, 2, microbatches) for microbatches in range(1, 9)} <= {1, 3}
        assert ticks_beyond_the_work(name, 2, 8) == 1 and timed(name, 2, 8).peak_held == [4, 4]


def test_a_forward_leaves_room_for_those_that_were_planned_before_it():
    """Rank 0 holds 4 chunks, and F4 can run long before f1 comes back up the V. With F4 it would be full, and
    f1, without which nothing is freed, could never run."""
    assert letters("v-half", 3, 4, rank=0).startswith("F1 F2 F3 f1 i1 w1 f2")


def test_dualpipev_fuses_each_forward_with_a_backward_of_the_other_chunk():
    schedule = build("dualpipev", 4, 10)
    for rank, positions in enumerate(schedule.fused):
        assert len(positions) == 2 * 10 - 3 * 4 + rank + 1 - (rank == 3)
        for position in positions:
            forward, backward = schedule.actions[rank][position : position + 2]
            assert (forward.op, backward.op) == ("F", "B")
            assert schedule.layout.chunk(forward.stage) != schedule.layout.chunk(backward.stage)


def test_dualpipev_is_the_published_order():
    """github.com/deepseek-ai/DualPipe: eight steps; here the last of 2 ranks, whose first pair runs apart."""
    first = "F1 F2 F3 f1 i1 w1 f2 F4 b2 f3 B1 b3 f4 B2 b4 I3 W3 I4 W4"
    last = "F1 f1 F2 f2 F3 b1 f3 B1 F4 b2 f4 B2 b3 B3 i4 I4 w4 W4"
    assert [letters("dualpipev", 2, 4, rank=rank) for rank in (0, 1)] == [first, last]


@pytest.mark.parametrize(("ranks", "microbatches"), GRID)
def test_peak_activations_are_the_published_ones(ranks, microbatches):
    P, M, every = ranks, microbatches, range(ranks)
    held = {name: timed(name, P, M).peak_held for name in SCHEDULES if name != "interleaved"}
    assert held["naive"] == [1] * P
    assert held["gpipe"] == [M] * P
    assert held["1f1b"] == [min(M, P - r) for r in every]
    assert held["eager-1f1b"] == [min(M, 2 * (P - 1 - r) + 1) for r in every]
    assert held["looped-bfs"] == [2 * M] * P
    assert held["zb-h1"] == [P if M >= P else M] * P
    assert held["zb-h2"] == [min(M, 2 * P - 1)] * P
    if M >= 2 * P:
        assert held["zb-v"] == [2 * P] * P
        assert held["dualpipev"] == [2 * P + 1] * P


@pytest.mark.parametrize("chunks", [1, 2, 3, 8])
@pytest.mark.parametrize(
    ("ranks", "microbatches", "group"),
    [(1, 1, 1), (2, 2, 2), (2, 6, 2), (2, 5, 3), (4, 4, 4), (4, 8, 4), (4, 20, 4), (4, 7, 7), (4, 9, 5)],
)
def test_interleaved_peak_is_megatrons(ranks, microbatches, group, chunks):
    P, M, V = ranks, microbatches, chunks
    assert timed("interleaved", P, M, chunks=V).peak_held == [
        min(M * V, (V - 1) * group + 2 * (P - 1 - r) + 1) for r in range(P)
    ]


def test_p4_m8_peak_is_4_3_2_1_for_1f1b_against_8_8_8_8_for_gpipe():
    assert timed("1f1b", 4, 8).peak_held == [4, 3, 2, 1]
    assert timed("gpipe", 4, 8).peak_held == [8, 8, 8, 8]


def test_live_activations_of_zb_h1_are_those_of_1f1b():
    """I needs what F kept; what W still needs is what zb-h1 holds more."""
    assert timed("zb-h1", 4, 8).peak_live == timed("1f1b", 4, 8).peak_live == [4, 3, 2, 1]


def test_the_v_puts_first_and_last_stage_on_the_first_rank():
    layout = Layout("v", ranks=4, chunks=2)
    assert [layout.stage(0, 0), layout.stage(0, 1), layout.stage(3, 0), layout.stage(3, 1)] == [0, 7, 3, 4]
    assert [Layout("loop", 4, 2).stage(rank, 1) for rank in range(4)] == [4, 5, 6, 7]


@pytest.mark.parametrize("kind", ["loop", "v"])
def test_layouts_know_the_way_back(kind):
    layout = Layout(kind, ranks=5, chunks=3)
    places = [(layout.rank(stage), layout.chunk(stage)) for stage in range(layout.stages)]
    assert sorted(places) == sorted((rank, chunk) for rank in range(5) for chunk in range(3))
    assert [layout.stage(*place) for place in places] == list(range(15))


@pytest.mark.parametrize(
    ("request_", "sentence"),
    [
        (
            ("interleaved", 4, 3),
            "interleaved sends microbatches round in groups of at least 4, one per rank: take 4 or more, not "
            "3.",
        ),
        (("zb-v", 4, 8, 3), "zb-v keeps 2 chunks per rank, not 3: take 2, or interleaved with 3."),
        (("1f1b", 4, 8, 2), "1f1b keeps 1 chunk per rank, not 2: take 1, or interleaved with 2."),
        (("searched", 4, 8, 2), "searched keeps 1 chunk per rank, not 2: take 1, or interleaved with 2."),
        (("1f1b", 0, 8), "the rank count of a schedule is 0; it must be at least 1."),
        (("1f1b", 4, 0), "the microbatch count of a schedule is 0; it must be at least 1."),
        (("interleaved", 4, 8, 0), "the chunk count of a schedule is 0; it must be at least 1."),
    ],
)
def test_what_a_schedule_cannot_do_is_one_sentence(request_, sentence):
    with pytest.raises(UserError) as error:
        build(*request_)
    assert str(error.value) == sentence


def test_a_misspelt_name_is_answered_with_the_nearest():
    with pytest.raises(UserError, match="Did you mean 'zb-h1'"):
        build("zbh1", 4, 8)


def test_every_recipe_says_what_it_is_and_where_it_comes_from():
    assert all(recipe.summary and recipe.source for recipe in RECIPES.values())


@pytest.mark.parametrize("name", written_schedules())
def test_a_record_says_what_the_lists_show(name):
    """What bounds a schedule's seconds from below is in its lists: split backwards, pairs, and the first
    rank's head start."""
    recipe, schedule = RECIPES[name], build(name, 4, 16)
    ops = {action.op for actions in schedule.actions for action in actions}
    assert recipe.splits == ("W" in ops)
    assert recipe.pairs == any(schedule.fused)
    if recipe.head_start:
        first = [action.op for action in schedule.actions[0]]
        assert recipe.head_start(4) == first.index("I")
    if recipe.one_at_a_time:
        assert recipe.peak_in_flight(16, 0, 4, 1) == max(timed(name, 4, 16).peak_held) == 1


@given(schedules(written_schedules()))
def test_a_rank_takes_as_many_microbatches_forward_before_its_first_backward_as_its_record_says(schedule):
    """Where backwards are split, and with one chunk of interleaved, it may take more."""
    recipe, layout = RECIPES[schedule.name], schedule.layout
    for rank, actions in enumerate(schedule.actions):
        ahead = takewhile(lambda action: action.op == "F", actions)
        passes = Counter(action.stage for action in ahead)
        through_all = min(passes[stage] for stage in layout.stages_of(rank))
        said = recipe.microbatches_ahead(schedule.microbatches, rank, schedule.ranks, schedule.chunks)
        assert said <= through_all
        assert recipe.splits or (recipe.group and schedule.chunks == 1) or said == through_all


def test_frameworks_have_the_schedules_whose_record_has_their_name():
    assert [*names_in("megatron")] == ["1f1b", "interleaved"]
    assert names_in("torchtitan")["zb-v"] == "ZBVZeroBubble"
    assert names_in("another") == {}


@pytest.mark.parametrize(
    ("name", "chunks"), [("1f1b", 1), ("interleaved", 2), ("interleaved", 3), ("looped-bfs", 3)]
)
def test_a_recipe_says_how_many_chunks_backward_passes_are_begun_and_not_ended(name, chunks):
    for ranks, microbatches in ((2, 2), (3, 5), (4, 4), (4, 8), (2, 6)):
        made = build(name, ranks, microbatches, chunks)
        most = max(most_chunks_begun(actions, microbatches) for actions in made.actions)
        assert RECIPES[name].chunks_begun(microbatches, ranks, chunks) == most


def most_chunks_begun(actions, microbatches):
    done, most = dict.fromkeys((action.stage for action in actions), 0), 0
    for action in actions:
        done[action.stage] += action.op == "B"
        most = max(most, sum(0 < count < microbatches for count in done.values()) or 1)
    return most


def test_a_schedule_of_ones_own_may_count_with_numpy(tmp_path):
    """Whose numbers json cannot write."""
    file = tmp_path / "mine.py"
    file.write_text(
        "import numpy as np\n\n"
        "def order(rank, ranks, microbatches):\n"
        "    for op in 'FB':\n"
        "        yield from ((op, np.int64(rank), number) for number in np.arange(microbatches))\n"
    )
    (first, *_), *_ = build(f"{file}:order", 2, 4).actions
    assert json.loads(json.dumps(first)) == ["F", 0, 0]


def test_a_schedule_of_ones_own_may_have_several_chunks_on_a_rank(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "def order(rank, ranks, microbatches):\n"
        "    stages = [rank, rank + ranks]\n"
        "    yield from (('F', stage, number) for stage in stages for number in range(microbatches))\n"
        "    yield from (('B', stage, number) for stage in stages[::-1] for number in range(microbatches))\n"
    )
    schedule = build(f"{file}:order", 2, 4, chunks=2)
    assert (schedule.chunks, schedule.layout.stages) == (2, 4)
    assert time_schedule(schedule, Work()).makespan == 2 * 4 * (1 + 2) + (2 - 1) * (1 + 2)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("(rank): yield 'F', rank, 0", "takes (rank): it must take (rank, ranks, microbatches)"),
        (
            "(rank, ranks, microbatches): yield 'F'",
            "yields 'F' for GPU 0: yield Action(op, stage,",
        ),
        (
            "(rank, ranks, microbatches): yield 'F', rank, None",
            "yields ('F', 0, None) for GPU 0: yield Action(op, stage,",
        ),
        ("(rank, ranks, microbatches): yield 'F', rank, 0.5", "a letter and two whole numbers."),
        ("(rank, ranks, microbatches): yield [], rank, 0", "an op is one of F, B, I, W"),
        ("(rank, ranks, microbatches): return", "returned None for GPU 0: yield its actions"),
        ("(rank, ranks, microbatches): yield 'F', 1 / 0, 0", "raised ZeroDivisionError"),
    ],
)
def test_a_readers_schedule_that_is_none_is_told_what_to_yield(lines, said, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(f"def order{lines}\n")
    with pytest.raises(UserError) as raised:
        build(f"{file}:order", 2, 2)
    assert said in str(raised.value)
