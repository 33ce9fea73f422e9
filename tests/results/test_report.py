"""The table and the JSON: stable keys, never NaN, at most 100 columns, and the numbers' own remarks."""

import io
import json
import math
from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from gpu import si
from ndparallel.base.json_text import json_text
from ndparallel.base.quantities import si_or_dash
from ndparallel.planner.memory.total import STAGE_MEMORY_KINDS
from ndparallel.results.against_one_gpu import Tolerance, WeightTolerance
from ndparallel.results.columns import LEAST_SHARE, heads
from ndparallel.results.measure import Contention, LinkDemand, Measurement, failed, measure
from ndparallel.results.remarks import how_far, largest_loss
from ndparallel.results.report import MEMORY_HEADS, Report, Run
from ndparallel.results.show import strategies_table
from ndparallel.results.tables import cell_style, quiet_table
from tests.support.synthetic import HARDWARE, data_parallel

SECONDS = [
    "compute_seconds",
    "exposed_communication_seconds",
    "hidden_communication_seconds",
    "bubble_seconds",
]
REST = [
    "bytes_sent_per_gpu",
    "bytes_sent_max",
    "peak_memory_bytes",
    "loss",
    "max_gradient_difference",
    "max_loss_difference",
    "max_weight_difference",
    "weight_step_difference",
    "error",
]
KEYS = ["name", "gpus", "step_seconds", "speedup", "efficiency", *SECONDS, *REST]
KINDS = ["total", "weights", "gradients", "optimizer", "activations", "buffers"]


def report(*rows, **changes):
    one = measure("single GPU", data_parallel(1), HARDWARE, losses=[5.5], max_gradient_difference=0.0)
    head: dict[str, Any] = {
        "lesson": "1d",
        "hardware": {"name": "bench", "bandwidth": math.inf},
        "model": {"layers": np.int64(3)},
    }
    return Report(**head | {"strategies": (one, *rows), "baseline": one} | changes)


@pytest.mark.parametrize(
    ("compute", "exposed", "lost_to"),
    [(6.0, 3.5, "exposed communication"), (7.0, 2.5, "compute that more GPUs do not shorten")],
)
def test_what_a_strategy_loses_most_to_is_beside_the_work_that_is_shared_out(compute, exposed, lost_to):
    """Four GPUs share out the single GPU's 12 s of compute: 3 s each, of a step of 10 s."""
    seconds = {"compute_seconds": compute, "exposed_communication_seconds": exposed, "bubble_seconds": 0.5}
    one: Any = SimpleNamespace(row=row(**seconds, step_seconds=10.0), seconds_alone=12.0)
    assert largest_loss(one) == lost_to


def row(name="ddp", difference=1e-7, loss=5.5, **changes):
    values = vars(
        measure(name, data_parallel(4), HARDWARE, losses=[loss], max_gradient_difference=difference)
    )
    return Measurement(**values | changes)


def printed(renderable, width=200):
    out = io.StringIO()
    Console(file=out, width=width, color_system=None).print(renderable)
    return out.getvalue().rstrip("\n").split("\n")


def test_json_has_the_stable_keys_in_their_order():
    read = json.loads(json_text(report(row()).as_dict()))
    assert list(read) == ["lesson", "hardware", "model", "strategies"]
    for strategy in read["strategies"]:
        assert list(strategy) == KEYS
        assert list(strategy["peak_memory_bytes"]) == KINDS


def test_json_keeps_full_precision():
    read = json.loads(json_text(report(row()).as_dict()))["strategies"][1]
    alone, measured = (measure("ddp", data_parallel(gpus), HARDWARE).step_seconds for gpus in (1, 4))
    assert alone and measured
    assert read["step_seconds"] == measured
    assert read["speedup"] == alone / measured
    assert read["efficiency"] == read["speedup"] / 4


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, np.float32("nan")])
def test_json_says_null_for_what_is_not_finite(value):
    text = json_text(report(row(loss=value, difference=value)).as_dict())
    assert "NaN" not in text and "Infinity" not in text
    read = json.loads(text)
    assert (
        read["strategies"][1]["loss"]
        is read["strategies"][1]["max_gradient_difference"]
        is read["hardware"]["bandwidth"]
        is None
    )


def test_two_runs_give_byte_identical_json():
    assert json_text(report(row()).as_dict()) == json_text(report(row()).as_dict())


def test_of_rows_with_other_work_the_step_that_their_speedup_divides_is_said():
    """4.17 s for experts: the reader can recompute every speedup. Nothing where all have the same work."""
    more, most = (row("alone", step_seconds=seconds) for seconds in (4.17, 4.68))
    rows = row("EP", baseline=more), row("with experts, EP", baseline=more), row("CP", baseline=most)
    assert report(*rows, row()).remarks()[0] == (
        "Speedups are against one GPU with the same work, whose step is 4.17 s for 'EP', 'with experts, EP' "
        "and 4.68 s for 'CP'."
    )
    assert not any("same work" in remark for remark in report(row()).remarks())


def test_without_a_baseline_there_is_no_speedup():
    assert report(row(), baseline=None).as_dict()["strategies"][1]["speedup"] is None
    made = report(row(), baseline=failed("0D", 1, "too large"))
    assert made.against_one_gpu[1].speedup is None


def test_a_row_with_a_baseline_of_its_own_is_measured_against_that():
    other = row("its own", step_seconds=3.0, loss=7.0)
    made = report(row("ddp", step_seconds=1.5, loss=7.0, baseline=other))
    assert made.against_one_gpu[1].speedup == 2 and made.equal()
    assert not report(row("ddp", loss=7.0)).equal()


WIDE = row(
    "a strategy with a name much longer than any of ours",
    3.3e-10,
    -123.456,
    step_seconds=0.9876,
    bubble_seconds=9.876e-5,
)


@pytest.mark.parametrize("rows", [(), (row(),), (row(), WIDE), (failed("too large", 8, "does not fit"),)])
@pytest.mark.parametrize("width", [80, 100, 140])
def test_the_table_fits_its_terminal_and_loses_nothing(rows, width):
    made, wide = report(*rows), width == 140
    lines = printed(quiet_table(heads(wide), list(made.rows(wide)), width))
    assert max(map(len, lines)) <= width
    assert [head.replace("eff.", "efficiency") for head in lines[0].split()] == heads(wide)
    for cells in made.rows(wide):
        assert any(all(cell in line for cell in cells[1:]) for line in lines)


def test_nine_columns_are_shown_and_the_rest_with_wide():
    nine = ["strategy", "GPUs", "step", "speedup", "exposed", "bubble", "sent", "memory", "=0D"]
    assert heads() == nine and set(heads(wide=True)) - set(nine) == {
        "efficiency",
        "compute",
        "hidden",
        "loss",
    }


def test_what_cannot_change_the_steps_three_digits_is_shown_as_nothing_and_stays_in_json():
    step = 2.11
    rows = [
        row(name, step_seconds=step, bubble_seconds=share * step)
        for name, share in (("less", 0.99 * LEAST_SHARE), ("more", 1.01 * LEAST_SHARE))
    ]
    made = report(*rows)
    bubbles = [cells[heads().index("bubble")] for cells in made.rows()][1:]
    assert bubbles == ["0 s", "1.07 ms"]
    assert made.as_dict()["strategies"][1]["bubble_seconds"] > 1e-3


def test_a_name_is_folded_only_where_nothing_else_makes_room():
    lines = printed(quiet_table(heads(), list(report(row("overlapped, 25 MB buckets")).rows())))
    assert any("overlapped, 25 MB buckets" in line for line in lines) and max(map(len, lines)) <= 100


@pytest.mark.parametrize("names", ["FSDP", "overlapped, 25 MB buckets"])
def test_a_wide_table_without_room_says_what_it_leaves_out_and_cuts_neither_names_nor_numbers(names):
    run = Run(report(row(names)), HARDWARE, {})
    table, words = strategies_table(run, True, 80)
    assert printed(table, 80) == printed(quiet_table(heads(), list(run.report.rows()), 80), 80)
    least = int(str(words).split()[2])
    assert "efficiency, compute, hidden and loss are left out." in " ".join(str(words).split())
    (table,) = strategies_table(run, True, least)
    lines = printed(table, least)
    assert max(map(len, lines)) <= least and lines[2].split() == " ".join(next(run.report.rows(True))).split()
    assert len([*strategies_table(run, True, least - 1)]) == 2


@pytest.mark.parametrize(
    "column, cell, style",
    [
        ("speedup", "0.99x", "yellow"),
        ("speedup", "1.00x", ""),
        ("speedup", "-", ""),
        # fmt: skip
        ("=0D", "2e-03", "bold red"),
        ("=0D", "nan", "bold red"),
        ("=0D", "=", ""),
    ],
)
def test_what_is_slower_or_wrong_stands_out(column, cell, style):
    assert cell_style(column, cell) == style


def test_the_table_of_memory_shows_every_kind():
    lines = printed(quiet_table(MEMORY_HEADS, list(report(row()).memory_rows())))
    assert max(map(len, lines)) <= 100
    assert lines[0].split() == ["strategy", "peak", "memory", *KINDS[1:]]
    assert si(row().peak_memory_bytes["gradients"], "B") in lines[-1]


def test_four_gpus_slower_than_one_are_called_slower():
    remarks = report(row()).remarks()
    assert len(remarks) == 1
    assert remarks[0].startswith("ddp is slower on 4 GPUs than one GPU alone (0.93x): ")
    assert not report(row(step_seconds=1e-3)).remarks()


def test_many_that_are_slower_are_told_in_one_paragraph_by_what_costs_most():
    rows = [
        row(name, exposed_communication_seconds=seconds, bubble_seconds=0.0)
        for name, seconds in (("a", 1.0), ("b", 1.0), ("c", 0.0))
    ]
    slower, most = (
        "a (0.93x), b (0.93x) and c (0.93x)",
        "exposed communication for a and b; compute that more GPUs do not shorten for c",
    )
    assert report(*rows).remarks() == [f"Slower than one GPU alone are {slower}. What costs most is {most}."]


def test_what_costs_most_in_all_that_are_slower_is_told_without_their_names():
    words = report(*map(row, "abc")).remarks()[0]
    assert words.endswith(". What costs all of them most is compute that more GPUs do not shorten.")


def test_those_that_have_no_numbers_for_the_same_reason_are_told_of_together():
    rows = [
        failed(name, 4, reason) for name, reason in (("a", "12 stages."), ("b", "no."), ("c", "12 stages."))
    ]
    assert report(*rows).remarks() == ["a and c have no numbers: 12 stages.", "b has no numbers: no."]


@pytest.mark.parametrize(
    "difference, loss, said",
    [(1e-7, 5.5, "="), (2e-3, 5.5, "2e-03"), (0.0, 5.6, "2e-02"), (math.nan, 5.5, "nan")],
)
def test_equal_to_0d_means_loss_and_gradients_within_the_tolerance(difference, loss, said):
    made = report(row(difference=difference, loss=loss))
    assert list(made.rows())[1][-1] == said
    assert made.equal() == (said == "=")
    assert any("does not compute what one GPU computes" in remark for remark in made.remarks()) == (
        said != "="
    )


@pytest.mark.parametrize(
    ("step", "loss", "equal"),
    [
        (0, 5.5 * (1 + 2e-5), False),  # before anything was stepped there is no rounding to grow
        (9, 5.5 * (1 + 4e-5), True),
        (9, 5.5 * (1 + 8e-5), False),
        (49, 5.5 * (1 + 3e-3), True),  # what 4D with experts was found to have
        (49, 5.5 * (1 + 6e-2), False),
        (20, math.nan, False),
    ],
)
def test_every_steps_loss_is_held_against_a_bound_that_grows_as_rounding_does(step, loss, equal):
    earlier = [5.5] * 50
    earlier[step] = loss
    one = measure(
        "single GPU", data_parallel(1), HARDWARE, 51, losses=[5.5] * 51, max_gradient_difference=0.0
    )
    assert report(row(losses=[*earlier, 5.5], baseline=one)).equal() == equal


def test_stepped_weights_may_differ_more_the_more_steps_there_were():
    held = WeightTolerance("max_weight_difference", 1e-6)
    one, eleven = (Tolerance(weights=held, steps=steps) for steps in (1, 11))
    assert one.weights_allowed == 1e-6 and eleven.weights_allowed == pytest.approx(1e-6 * 1.2**10)
    assert Tolerance(steps=11).weights_allowed == math.inf


def test_a_loss_that_is_not_a_number_is_never_equal():
    assert not report(row(loss=math.nan)).equal()


def test_a_strategy_that_does_not_fit_is_a_row_of_dashes_and_a_reason():
    made = report(failed("DDP", 4, "GPU 0 has 1 MB of memory and needs 2 MB"))
    assert list(made.rows())[1] == ("DDP", "4", *"-" * 7)
    assert made.remarks() == ["DDP has no numbers: GPU 0 has 1 MB of memory and needs 2 MB."]
    assert made.as_dict()["strategies"][1]["error"].endswith("needs 2 MB")


def test_an_overloaded_link_is_reported():
    demand = LinkDemand(rank=2, streams=3, seconds=1e-3, bandwidth_bytes_per_second=1e9)
    remarks = report(row(step_seconds=1e-3, overload=demand)).remarks()
    assert remarks == [
        "In 'ddp' some GPU sends two or more messages over one link at the same time. The clock lets each "
        "have the whole link: --contention says what sharing it adds to the step."
    ]


@pytest.mark.parametrize(
    ("sharing_seconds", "said"), [(5e-5, "50.0 us longer"), (-5e-5, "50.0 us shorter"), (0.0, "as long")]
)
def test_with_contention_an_overloaded_link_is_a_number_which_may_be_negative(sharing_seconds, said):
    demand = LinkDemand(rank=2, streams=3, seconds=1e-3, bandwidth_bytes_per_second=1e9)
    found = Contention(1e-3 + sharing_seconds, 0.0, sharing_seconds)
    (remark,) = report(row(step_seconds=1e-3, overload=demand, contention=found)).remarks()
    assert remark.endswith(f"link. Where GPUs share their ports, the step is {said}.")


def test_a_notebook_shows_the_same_cells_and_escapes_them():
    made = report(row("<b>ddp</b>"))
    html = made._repr_html_()
    assert "<b>" not in html and html.count("<tr>") == 3
    assert all(f"<td>{cell}</td>" in html for cell in list(made.rows())[1][1:])


def test_what_is_unknown_is_a_dash():
    assert (si_or_dash(None, "s"), si_or_dash(0.0, "s"), si_or_dash(1.5e-3, "s")) == ("-", "0 s", "1.50 ms")


def test_words_stand_to_the_left_numbers_to_the_right_and_the_last_words_are_folded():
    rows = [("a", "one", "10", "all of these words"), ("b", "four", "9", "few")]
    lines = printed(quiet_table(("x", "of", "n", "says"), rows, 24, words=("of", "says")), 24)
    assert [line.rstrip() for line in lines if "\u2500" not in line] == [
        "x of    n says",
        "a one  10 all of these",
        "          words",
        "b four  9 few",
    ]


MANY = [("single GPU", "1", "4.03 s", "1.00x", "40.5 ms", "191 ms", "1.30 MB", "18.5 MB", "=")]
MANY += [("DDP overlapped", "1024", "710 ms", "5.68x", "0 s", "0 s", "0 B", "1.56 MB", "=")]


@pytest.mark.parametrize("width", [30, 40, 50, 60, 70])
def test_a_narrow_terminal_cuts_no_letter_off(width):
    lines = printed(quiet_table(heads(), MANY, width), width)
    texts = "".join(text for cells in (heads(), *MANY) for text in cells)
    assert max(map(len, lines)) <= width
    assert Counter("".join(lines)) - Counter(" \u2500" * 10**4) == Counter(texts.replace(" ", ""))


def test_sixty_columns_break_no_word_but_put_units_below_their_numbers():
    words = " ".join(printed(quiet_table(heads(), MANY, 60), 60)).split()
    assert {word for cells in (heads(), *MANY) for cell in cells for word in cell.split()} <= {*words}


def test_sixty_columns_break_no_head_of_a_plans_memory():
    row = ("0", "45.7 GB", "2.01 GB", "4.02 GB", "12.0 GB", "18.3 GB", "4.27 GB", "5.11 GB")
    columns = ("pipeline rank", "memory", *STAGE_MEMORY_KINDS)
    head = " ".join(printed(quiet_table(columns, [row], 60), 60)).partition("\u2500")[0].split()
    assert sorted(head) == sorted(
        ["pipeline", "rank", "memory", "weights", "grads", "optim.", "activ.", "logits", "buffers"]
    )


def test_a_first_column_for_which_there_is_no_room_is_one_letter_wide():
    lines = printed(quiet_table(("x", "step"), [("abc", "1234567890")], 10), 80)
    assert [line.split()[0] for line in lines[2:]] == ["a", "b", "c"]


def test_words_are_folded_before_a_heads_letters_or_a_unit_are_parted():
    row = ("1D", "ddp", "Everybody takes the same step", "10 min", "")
    columns, words = ("chapter", "exercise", "what it is", "time", "mark"), ("exercise", "what it is", "mark")
    lines = printed(quiet_table(columns, [row], 50, words=words), 50)
    assert lines[0].split() == ["chapter", "exercise", "what", "it", "is", "time", "mark"]
    assert lines[2].split() == ["1D", "ddp", "Everybody", "takes", "the", "10", "min"]


def test_a_long_answer_in_the_last_column_leaves_the_first_its_words():
    rows = [("how much PP until it fits?", "Megatron-Core", "an answer " * 12)]
    lines = printed(quiet_table(("question", "guide", "its answer"), rows, 100, words=("its answer",)), 100)
    assert lines[2].startswith("how much PP until it fits?") and len(lines) <= 5
    assert max(map(len, lines)) <= 100


def test_a_plans_name_that_is_longer_than_its_column_is_folded_behind_its_commas():
    name = "TP4xCP4xPP16xDP64,zero1,sp,interleaved8,mbs1,selective[layernorm]"
    for width, lines in (
        (120, [name]),
        (60, [name[:45], name[45:]]),
        (40, [name[:27], name[27:45], name[45:]]),
    ):
        table = quiet_table(("", "step", "plan"), [("run", "5.63 s", name)], width, words=("plan",))
        assert [line.split()[-1] for line in printed(table)[2:]] == lines


def test_a_plans_long_name_is_folded_behind_its_commas_and_beside_its_mark():
    names = ("= PP32xDP32xEP8,zero1,mbs1,selective[layernorm+moe_act]", "  DP1024,zero3")
    lines = printed(quiet_table(("  plan", "step"), [(name, "7.49 s") for name in names], 50))
    assert [line.rstrip() for line in lines[2:]] == [
        "= PP32xDP32xEP8,zero1,mbs1,    7.49 s",
        "  selective[layernorm+moe_act]",
        "  DP1024,zero3                 7.49 s",
    ]


def test_what_differs_too_much_is_told_of_gradients_first_and_of_weights_where_these_are_alike():
    weights = WeightTolerance("max_weight_difference", 1e-6)
    held, free = Tolerance(weights=weights), Tolerance()
    apart = {"difference": 1e-3, "max_weight_difference": 1e-2}
    for tolerance, changes, said in (
        (held, apart, "it differs by "),
        (free, {"difference": 1e-3}, "it differs by 1.0e-03, and 1e-05 is allowed"),
        (held, apart | {"difference": 1e-7}, "its stepped weights differ by 1.0e-02, and 1e-06 is allowed"),
    ):
        (one,) = report(row(**changes), tolerance=tolerance).against_one_gpu[1:]
        assert how_far(one).startswith(said)


def test_of_one_step_stepped_weights_may_differ_by_their_tolerance():
    held = WeightTolerance("max_weight_difference", 1e-6)
    assert Tolerance(weights=held).weights_allowed == 1e-6
