"""`ndparallel schedule`: its JSON, its picture, its sentences."""

import itertools
import json
from dataclasses import replace

import pytest
from rich.style import Style
from rich.text import Text

from ndparallel.commands.command_line import main
from ndparallel.drawing.terminal import schedules as terminal_schedules
from ndparallel.engines import time_limit
from ndparallel.pipeline.catalog import SEARCHED, build, written_schedules
from ndparallel.pipeline.timing import Timing, time_schedule
from ndparallel.pipeline.work import Work
from tests.drawing.test_timeline import SIGHT, distance


def command(capsys, *words: object) -> str:
    assert main(["schedule", *map(str, words)]) == 0
    return capsys.readouterr().out


def asked(capsys, *words: object) -> dict:
    return json.loads(command(capsys, *words, "--json"))


def drawn(name: str, ranks=4, microbatches=8, width=100, plain=False, **times) -> list[Text]:
    schedule = build(name, ranks, microbatches)
    timing = time_schedule(schedule, Work.of_whole_stages(schedule.chunks, **times))
    return list(
        terminal_schedules.draw(timing, terminal_schedules.columns_per_second([timing], width), plain).split()
    )


def test_what_is_missing_is_said_with_what_can_be_given(capsys):
    assert main(["schedule"]) == 2
    assert "needs NAME: naive, gpipe, 1f1b, " in capsys.readouterr().err
    assert main(["flags"]) == 2
    assert "needs framework: megatron, torchtitan, deepspeed, accelerate (" in capsys.readouterr().err


def test_what_else_is_wrong_is_said_with_what_is_missing(capsys):
    assert main(["schedule", "--forward", "-1"]) == 2
    said = capsys.readouterr().err
    assert "--forward -1 is no time: give 0 or more. And ndparallel schedule needs NAME: naive, " in said


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("search", "ndparallel plan --search"),
        ("1d", "ndparallel lesson 1d"),
        ("1f1b", "ndparallel schedule 1f1b"),
        ("all_reduce", "ndparallel collective all_reduce"),
        ("--grade", "ndparallel exercise --grade"),
    ],
)
def test_a_word_that_a_command_takes_is_told_with_that_command(capsys, word, meant):
    assert main([word]) == 2
    assert f"unknown command '{word}'. Did you mean {meant}? " in capsys.readouterr().err


def test_help_is_a_command_too(capsys):
    for words, beside in (["help"], ["--help"]), (["help", "mesh"], ["mesh", "--help"]):
        assert main(words) == main(beside) == 0
        first, second = capsys.readouterr().out.split("usage: ")[1:]
        assert first == second


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["goodput", "--gpus", "64", "--step", "-3s"], "--step = '-3s' is negative"),
        (["collective", "all_reduce", "--bytes", "-1GB"], "--bytes = '-1GB' is negative"),
        (["lesson", "1d", "--slow-gpu", "-1:2"], "--slow-gpu '-1:2': write RANK:FACTOR"),
    ],
)
def test_a_negative_quantity_with_its_unit_is_a_value_and_no_option(capsys, words, said):
    assert main(words) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["schedule", "1f1b", "--algorithm", "ring"], "; --algorithm is an option of ndparallel collective"),
        (["mesh", "--schedule", "1f1b"], "; --schedule is an option of ndparallel plan, goodput and explain"),
        (["mesh", "--nothing-like-it", "2"], " 2"),
    ],
)
def test_an_option_of_another_command_is_told_as_its_own(capsys, words, meant):
    assert main(words) == 2
    assert f"{meant} (ndparallel {words[0]} --help" in capsys.readouterr().err


def test_json_has_the_lists_the_times_and_the_figures(capsys):
    told = asked(
        capsys,
        "1f1b",
        "--stages",
        4,
        "--microbatches",
        8,
        "--forward",
        1,
        "--backward-input",
        0.5,
        "--backward-weight",
        0.5,
    )
    assert list(told) == [
        *("name", "layout", "actions", "fused", "makespan", "busy"),
        *("bubble_ratio", "bubble_over_ideal", "span_bubble_ratio", "peak_held", "peak_live"),
    ]
    assert (told["name"], told["layout"]) == ("1f1b", "loop")
    assert told["actions"][3][:4] == [["F", 3, 0], ["B", 3, 0], ["F", 3, 1], ["B", 3, 1]]
    assert told["fused"] == [[], [], [], []]
    assert told["makespan"] == 22
    assert told["busy"] == [16, 16, 16, 16]
    assert told["bubble_ratio"] == pytest.approx(3 / 11)
    assert told["bubble_over_ideal"] == pytest.approx(3 / 8)
    assert told["peak_held"] == told["peak_live"] == [4, 3, 2, 1]


def test_json_of_dualpipev_names_its_pairs(capsys):
    told = asked(capsys, "dualpipev", "--stages", 2, "--microbatches", 4, "--fused", 2)
    assert told["layout"] == "v"
    for actions, positions in zip(told["actions"], told["fused"]):
        assert positions and all(actions[at][0] + actions[at + 1][0] == "FB" for at in positions)
    # 4 (F + I + W) less the half second that each of 3 pairs saves, of a chunk's F + B = 1.5
    assert told["busy"] == [10.5, 10.5]


@pytest.mark.parametrize("name", [*written_schedules(), SEARCHED])
def test_every_schedule_is_told_and_drawn(capsys, name):
    assert asked(capsys, name, "--stages", 3, "--microbatches", 6, "--p2p", 0.1)["name"] == name
    assert name in command(capsys, name, "--stages", 3, "--microbatches", 6)


def test_times_are_a_whole_ranks_and_a_chunk_takes_its_part(capsys):
    for chunks in (1, 2, 4):
        told = asked(capsys, "interleaved", "--stages", 4, "--microbatches", 8, "--chunks", chunks)
        assert told["busy"] == pytest.approx([24.0] * 4)
        assert told["makespan"] == pytest.approx(24 + 9 / chunks)


def test_sizes_that_are_not_given_are_those_of_the_documents(capsys):
    for name in ("1f1b", "interleaved"):
        assert asked(capsys, name) == asked(capsys, name, "--stages", 4, "--microbatches", 8)
    assert asked(capsys, "interleaved") == asked(capsys, "interleaved", "--chunks", 2)


def test_several_schedules_are_compared_under_the_same_work(capsys):
    told = asked(capsys, "naive", "1f1b", "zb-v", "--stages", 4, "--microbatches", 8)
    assert [one["makespan"] for one in told] == [96, 33, 25.5]
    assert [one["busy"] for one in told] == [[24.0] * 4] * 3


def test_chunks_are_for_those_that_have_a_choice(capsys):
    told = asked(capsys, "1f1b", "interleaved", "zb-v", "--stages", 4, "--microbatches", 8, "--chunks", 4)
    assert [max(stage for actions in one["actions"] for _, stage, _ in actions) for one in told] == [3, 15, 7]


def test_searched_keeps_to_the_memory_limit(capsys):
    for limit in (2, 4, 7):
        assert (
            max(
                asked(capsys, "searched", "--stages", 4, "--microbatches", 9, "--memory-limit", limit)[
                    "peak_held"
                ]
            )
            == limit
        )


def test_the_numbers_stand_in_one_line(capsys):
    last = command(capsys, "1f1b", "--stages", 4, "--microbatches", 8).splitlines()[-1]
    assert last == "makespan 33, bubble 27.3% (37.5% over ideal), peak held 4 3 2 1, live 4 3 2 1"


def test_the_bubble_of_the_span_is_told_where_it_is_another(capsys):
    last = command(capsys, "zb-h2", "--stages", 4, "--microbatches", 8).splitlines()[-1]
    assert "bubble 11.1% (12.5% over ideal, 0.0% of the span), " in last


def test_a_schedule_over_the_limit_is_marked(capsys):
    told = command(capsys, "gpipe", "--stages", 4, "--microbatches", 8, "--memory-limit", 4)
    assert "over the limit of 4" in " ".join(told.split())
    rows = command(
        capsys, "gpipe", "1f1b", "--stages", 4, "--microbatches", 8, "--memory-limit", 4
    ).splitlines()[-2:]
    assert [row.split()[-1] for row in rows] == ["over", "fits"]


@pytest.mark.parametrize("microbatches", [8, 200])
@pytest.mark.parametrize("name", written_schedules())
def test_every_line_fits_100_columns(capsys, name, microbatches):
    lines = command(
        capsys, name, "1f1b", "--stages", 4, "--microbatches", microbatches, "--p2p", 0.1
    ).splitlines()
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize("p2p", [0, 0.1])
@pytest.mark.parametrize("name", written_schedules())
def test_no_action_is_drawn_in_no_column_however_long_the_step(name, p2p):
    schedule = build(name, 8, 32)
    timing = time_schedule(schedule, Work.of_whole_stages(schedule.chunks, p2p=p2p, fused=1.0))
    scale = terminal_schedules.columns_per_second([timing], 100)
    drawn = [cell for rank in range(8) for cell in terminal_schedules.cells(timing, rank, scale)]
    assert len(drawn) == sum(map(len, schedule.actions)) and min(cell.columns for cell in drawn) >= 1


def test_a_step_too_long_for_the_picture_is_drawn_from_its_beginning_and_says_where_it_ends(capsys):
    lines = command(capsys, "1f1b", "--stages", 8, "--microbatches", 32).splitlines()
    assert lines[2].startswith("rank 0 FFFFFFFF···") and lines[3].startswith("       01234567   ")
    assert lines[16].startswith("rank 7 ·······FB FB ") and lines[17].startswith("              00 11 ")
    assert lines[19] == "The picture of 1f1b ends at 93 of 117. --svg FILE draws all of it."
    assert not any("picture" in line for line in command(capsys, "1f1b").splitlines())


def test_the_picture_of_a_schedule_without_a_name_is_called_the_picture():
    """As that of an exercise's answer."""
    timing = time_schedule(replace(build("1f1b", 8, 32), name=""), Work.of_whole_stages(1))
    assert terminal_schedules.left_out(timing, 1.0, 100) == "The picture ends at 93 of 117."


def test_actions_far_shorter_than_the_others_do_not_stretch_the_picture_and_that_is_said(capsys):
    told = command(capsys, "zb-h1", "--backward-weight", 0.1)
    assert "The picture of zb-h1 leaves out actions shorter than 0.25. --svg FILE draws all" in told


def test_the_picture_is_one_row_per_rank_above_an_axis():
    rows = [line.plain for line in drawn("1f1b", backward_input=0.5, backward_weight=0.5)]
    assert len(rows) == 5
    assert [row[:7] for row in rows] == ["rank 0 ", "rank 1 ", "rank 2 ", "rank 3 ", "       "]
    assert " ".join(rows[0][7:].replace("·", "").split()) == "0 1 2 3 0 4 1 5 2 6 3 7 4 5 6 7"
    assert rows[4].split() == ["0", "2", "4", "6", "8", "10", "12", "14", "16", "18", "20", "22"]


def test_actions_of_the_same_length_are_equally_wide():
    for line in drawn("zb-h1")[:4]:
        spans = [span.end - span.start for span in line.spans if "on " in str(span.style)]
        assert set(spans) == {3}


def test_ops_and_chunks_have_their_own_colours():
    lines = drawn("zb-v")[:4]
    shades = {
        str(span.style).split(" on ")[1] for line in lines for span in line.spans if " on " in str(span.style)
    }
    assert len(shades) == 6  # F, I, W on the first chunk and on the second


@pytest.mark.parametrize("sight", SIGHT)
def test_any_two_ops_and_chunks_can_be_told_apart_however_one_sees(sight):
    colours = [terminal_schedules.shade(op, lightness) for op in "FBW" for lightness in (0, 1)]
    assert min(distance(one, other, SIGHT[sight]) for one, other in itertools.combinations(colours, 2)) > 9


def test_fused_pairs_are_underlined():
    styles = [span.style for span in drawn("dualpipev", width=300)[3].spans]
    # 2M - 3P + r, of two halves
    assert sum(isinstance(style, Style) and bool(style.underline) for style in styles) == 2 * 7


def test_without_colours_letters_say_the_op_and_numbers_the_microbatch():
    rows = [line.plain for line in drawn("zb-h1", plain=True)]
    assert rows[3].startswith("rank 3 ·········F0 I0 F1 I1 F2 I2 F3 I3 W0 F4 ")
    first = drawn("zb-h1", plain=True)[0]
    assert [first.plain[span.start : span.end] for span in first.spans if span.style == "bold"] == ["rank 0 "]
    assert first.style == ""
    narrow = [line.plain for line in drawn("zb-v", plain=True, width=60)]
    assert len(narrow) == 2 * 4 + 1
    assert narrow[0].startswith("rank 0 FFFFFFFfiwfiwfiw")
    assert narrow[1].startswith("       0123456000111222")


def test_a_fused_pair_is_joined_without_colours():
    timing = time_schedule(build("dualpipev", 2, 4), Work.of_whole_stages(2))
    assert "f2&" in terminal_schedules.draw(timing, 8.0, plain=True).plain.splitlines()[0].replace(" ", "")


def test_the_legend_names_what_occurs_and_no_more(capsys):
    one = command(capsys, "1f1b", "--stages", 4, "--microbatches", 8).splitlines()[-2]
    assert one.split() == ["F", "forward", "B", "backward", "·", "bubble"]
    alone = command(capsys, "1f1b", "--stages", 1, "--microbatches", 8).splitlines()[-2]
    assert alone.split() == ["F", "forward", "B", "backward"]
    all_of_it = " ".join(command(capsys, "dualpipev", "--stages", 4, "--microbatches", 8).splitlines()[-3:-1])
    for words in (
        "F  forward",
        "B  backward",
        "I  input gradient",
        "W  weight gradient",
        "small letters: a later chunk",
        "&: two run as one",
    ):
        assert words in all_of_it


@pytest.mark.parametrize("fused", ["1", "1.5", "2", "3", "4"])
@pytest.mark.parametrize("sizes", [(4, 8), (8, 20), (8, 60)])
def test_the_sign_of_a_pair_is_in_the_legend_just_where_it_is_in_the_picture(capsys, sizes, fused):
    lines = command(
        capsys, "dualpipev", "--stages", sizes[0], "--microbatches", sizes[1], "--fused", fused
    ).splitlines()
    assert any("&" in line for line in lines if line.startswith("rank")) == ("&: two run as one" in lines[-2])


def test_a_time_in_the_middle_of_a_column_is_in_that_one_however_it_was_added_up():
    assert [terminal_schedules.column(seconds, 5) for seconds in (0.3, 0.1 + 0.2, 0.31)] == [1, 1, 2]


def test_a_pair_of_three_columns_has_room_for_its_sign():
    assert "f&B" in drawn("dualpipev", plain=True, width=100)[0].plain


def test_digits_of_large_microbatches_are_cut_from_the_left():
    timing = time_schedule(build("naive", 1, 130), Work())
    row = terminal_schedules.draw(timing, 2.0).plain.splitlines()[0]
    assert row.startswith("rank 0 0  0  1  1 ") or row.startswith("rank 0 0  0   1  1  ")
    assert "29" in row and "129" in row


@pytest.mark.parametrize(
    ("name", "microbatches", "is_cut"),
    [("1f1b", 8, False), ("1f1b", 11, False), ("1f1b", 24, True), ("zb-v", 10, False), ("zb-v", 11, True)],
)
def test_where_numbers_are_cut_the_legend_says_so(capsys, name, microbatches, is_cut):
    """On two stages 11 microbatches of 1F1B have two columns for a forward, and 24 have one."""
    legend = command(capsys, name, "--stages", 2, "--microbatches", microbatches).splitlines()[-2]
    assert ("a number without room: its last digits" in legend) == is_cut


def test_a_number_that_has_no_room_beside_its_letter_stands_below_it():
    first, below, *_ = (line.plain for line in drawn("1f1b", 4, 12, plain=True))
    assert first.startswith("rank 0 F F F F ··") and below.split()[-1] == "11" and "10" in below


def test_a_schedule_of_ones_own_whose_loop_never_ends_is_ended_with_its_gpu_and_line(
    capsys, tmp_path, monkeypatch
):
    monkeypatch.setattr(time_limit, "CPU_SECONDS", 0.3)
    (tmp_path / "mine.py").write_text(
        "def order(rank, ranks, microbatches):\n"
        "    while rank == 1:\n"
        "        try: pass\n"
        "        except Exception: pass\n"
        "    for m in range(microbatches):\n"
        '        yield from [("F", rank, m), ("B", rank, m)]\n',
        "utf-8",
    )
    assert main(["schedule", f"{tmp_path}/mine.py:order"]) == 2
    told = capsys.readouterr().err
    assert "after 0.3 s it was still computing the actions of GPU 1 (line " in told
    assert told.endswith("Does a loop end?\n")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("schedules.py",), "'schedules.py' names no function: write FILE.py:FUNCTION."),
        (("interleaved", "--stages", 4, "--microbatches", 3), "take 4 or more, not 3."),
        (("zb-v", "--stages", 4, "--microbatches", 8, "--chunks", 3), "zb-v keeps 2 chunks per rank, not 3"),
        (("zbv", "--stages", 4, "--microbatches", 8), "Did you mean 'zb-v'?"),
        (
            ("1f1b", "--stages", 4, "--microbatches", 8, "--forward", -1),
            "--forward -1 is no time: give 0 or more.",
        ),
        (
            ("1f1b", "--stages", 4, "--microbatches", 8, "--fused", -1),
            "--fused -1 is no time: give 0 or more.",
        ),
        (("1f1b", "--backward-weight", "-0.5"), "--backward-weight -0.5 is no time"),
        (("1f1b", "--p2p", "nan"), "--p2p nan is no time"),
        (("1f1b", "--p2p", "inf"), "--p2p inf is no time"),
        (
            ("searched", "--stages", 4, "--microbatches", 8, "--memory-limit", 0),
            "--memory-limit 0 is too low: give 1 or more.",
        ),
        (("1f1b", "--stages", 0), "--stages is 0; it must be at least 1."),
        (("gpipe", "--microbatches", -1), "--microbatches is -1; it must be at least 1."),
        (("interleaved", "--chunks", 0), "--chunks is 0; it must be at least 1."),
        (
            ("interleaved", "--chunks", 10**6),
            "4 stages, 8 microbatches and 1000000 chunks are too many: choose a product of 1,000,000",
        ),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(capsys, words, sentence):
    assert main(["schedule", *map(str, words)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert sentence in err and err.count("\n") == 1


def test_a_picture_that_cannot_be_written_is_refused_before_any_schedule_is_timed(capsys, monkeypatch):
    monkeypatch.setattr("ndparallel.commands.schedule.timed", None)
    assert main(["schedule", "1f1b", "--svg", "/no such folder/picture.svg"]) == 2
    assert "picture.svg" in capsys.readouterr().err


def test_makespan_is_the_same_in_json_and_in_timing(capsys):
    schedule = build("dualpipev", 3, 7)
    timing: Timing = time_schedule(schedule, Work.of_whole_stages(2, 1.0, 0.9, 0.7, 0.05, 2.0))
    words = ("--forward", 1, "--backward-input", 0.9, "--backward-weight", 0.7, "--p2p", 0.05, "--fused", 2)
    assert (
        asked(capsys, "dualpipev", "--stages", 3, "--microbatches", 7, *words)["makespan"] == timing.makespan
    )


def test_a_time_for_pairs_that_a_schedule_does_not_have_is_refused(capsys):
    assert main(["schedule", "1f1b", "--stages", "4", "--microbatches", "8", "--fused", "1"]) == 2
    assert "1f1b has none: take dualpipev" in capsys.readouterr().err
