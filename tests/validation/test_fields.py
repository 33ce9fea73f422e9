"""Claims about what a file of runs may say: what nobody would read has a note, and the rest has none."""

import json
from pathlib import Path
from typing import Any

import pytest

from ndparallel.commands.command_line import main
from ndparallel.commands.validate import show_sweeps
from ndparallel.validation.cases import express, read_cases
from ndparallel.validation.fields import FIELDS, unread

RUN = json.loads((Path(__file__).resolve().parents[2] / "docs" / "runs_example.json").read_text("utf-8"))[0]
CANNOT_BE = [-4, 0, "two", True, 1.5, [4], 10**400]


def changed(table: str, field: str, value: object) -> dict[str, Any]:
    """The document's run with one field changed, of a table or ("") of its own."""
    changes = {table: {**RUN.get(table, {}), field: value}} if table else {field: value}
    return {**RUN, **changes}


@pytest.mark.parametrize(("table", "key", "nearest"), [
    ("", "recomputation", "recompute"), ("parallel", "tpp", "tp"),
    ("model", "num_hidden_layer", "num_hidden_layers"),
    ("batch", "globl", "global"), ("measured", "step_second", "step_seconds"),
    ("hardware", "gpu_per_node", "gpus_per_node"), ("software", "frame", "framework"),
])  # fmt: skip
def test_a_key_that_nobody_reads_has_a_note_with_the_nearest(table, key, nearest):
    name = f"{table}.{key}" if table else key
    assert unread(changed(table, key, 4)) == [
        f"nobody here reads its key {name!r}. Did you mean {nearest!r}?"
    ]


@pytest.mark.parametrize(("table", "field", "word", "nearest"), [
    ("parallel", "schedule", "zigzag", None), ("parallel", "zero", "banana", None),
    ("", "recompute", "selctive", "selective"), ("", "precision", "fp7", "fp8"),
    ("", "offload", "optimiser", "optimizer"), ("model", "activation", "swigl", "swiglu"),
])  # fmt: skip
def test_a_word_that_nobody_knows_has_a_note_with_the_nearest(table, field, word, nearest):
    name = f"{table}.{field}" if table else field
    (note,) = unread(changed(table, field, word))
    assert note.startswith(f"its {name} {word!r} is not known here, and counts as not stated.")
    assert note.endswith(f" Did you mean {nearest!r}?" if nearest else "not stated.")


@pytest.mark.parametrize("value", CANNOT_BE, ids=lambda value: str(value)[:8])
@pytest.mark.parametrize(("table", "field"), [
    ("parallel", "tp"), ("parallel", "ep"), ("batch", "micro"), ("batch", "global"), ("", "gpus"),
    ("hardware", "gpus_per_node"),
])  # fmt: skip
def test_a_number_that_cannot_be_has_a_note(table, field, value):
    (note,) = unread(changed(table, field, value))
    name = f"{table}.{field}" if table else field
    assert note.startswith(f"its {name} is ") and "should be a whole number from 1, or null" in note


@pytest.mark.parametrize("value", ["15 s", -3, 0])
def test_notes_are_printed_below_the_table(value, tmp_path, capsys):
    (file := tmp_path / "runs.json").write_text(json.dumps([changed("measured", "step_seconds", value)]))
    assert main(["validate", "--cases", str(file)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert f"its measured.step_seconds is {value!r}, and should be a number above 0, or null" in printed


def test_experts_that_a_model_does_not_have_are_spread_over_none():
    case = express(changed("parallel", "ep", 8))
    assert case.plan.ep == 1
    assert "its ep is 8, and its model has no experts: it counts as 1." in case.notes


@pytest.mark.parametrize(("degrees", "gpus"), [({"zero": 3}, 1), ({"tp": 4, "pp": 2}, 8), ({"dp": 16}, 16)])
def test_a_run_without_gpus_counts_as_on_those_of_its_degrees_and_says_so(degrees, gpus):
    run = {**RUN, "gpus": None, "parallel": degrees, "batch": {"micro": 1, "global": 16, "sequence": 8192}}
    case = express(run)
    assert case.plan.gpus == gpus and case.notes == (f"it does not give its gpus: they count as {gpus}.",)
    assert express({**run, "gpus": 16}).notes == ()


def test_no_published_run_has_a_note_on_its_keys_and_words():
    assert [note for run in read_cases() for note in express(run).notes if "nobody here reads" in note] == []
    assert [note for run in read_cases() for note in express(run).notes if "should be" in note] == []


@pytest.mark.parametrize(("table", "field", "value"), [
    ("parallel", "tp", 2), ("parallel", "tp", None), ("parallel", "sp", True),
    ("parallel", "sp", 4), ("parallel", "shards", 0),
    ("parallel", "zero", "FSDP, full shard"), ("parallel", "zero", "none"),
    ("parallel", "schedule", "DualPipe V"),
    ("", "recompute", "every 2 layers"), ("", "recompute", False), ("", "recompute", {"granularity": "full"}),
    ("", "recompute", ["moe_act", "mlp"]), ("", "precision", "bf16, fp32 grad accum"),
    ("", "precision", "unknown"), ("", "offload", ["optimizer"]), ("", "note", "by hand"),
    ("software", "framework", "in-house trainer"), ("software", "framework", None),
    ("model", "num_key_value_heads", 8), ("hardware", "leaf_share", 0.5),
])  # fmt: skip
def test_whatever_is_read_has_no_note(table, field, value):
    assert unread(changed(table, field, value)) == []


def test_every_word_that_a_note_names_is_one_that_is_known():
    kinds = [kind for table in FIELDS.values() for kind in table.values()]
    assert all(kind.fits(choice) for kind in kinds for choice in kind.choices)


def test_one_sweep_is_called_one(capsys):
    show_sweeps(
        dict.fromkeys(("mean_regret", "max_regret", "mean_regret_of_a_guess"), 0.1)
        | {"sweeps": 1, "layouts": 5}
    )
    assert capsys.readouterr().out.startswith("1 sweep of 5 layouts: ")
