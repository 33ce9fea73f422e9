"""Claims about what a file of runs may say: what nobody would read is refused, and the rest passes."""

import json
from pathlib import Path

import pytest

from ndparallel.base.errors import UserError
from ndparallel.commands.command_line import main
from ndparallel.commands.validate import show_sweeps
from ndparallel.validation.cases import express, read_cases
from ndparallel.validation.fields import FIELDS, NAMES, framework_known

RUN = json.loads((Path(__file__).resolve().parents[2] / "docs" / "runs_example.json").read_text("utf-8"))[0]
CANNOT_BE = [-4, 0, "two", True, 1.5, [4], 10**400]


def written(path: Path, table: str, field: str, value: object) -> Path:
    """The document's run in a file, with one field changed, of a table or ("") of its own."""
    changes = {table: {**RUN.get(table, {}), field: value}} if table else {field: value}
    (file := path / "runs.json").write_text(json.dumps([{**RUN, "id": "mine", **changes}]))
    return file


@pytest.mark.parametrize(("table", "key", "nearest"), [
    ("", "recomputation", "recompute"), ("parallel", "tpp", "tp"),
    ("model", "num_hidden_layer", "num_hidden_layers"),
    ("batch", "globl", "global"), ("measured", "step_second", "step_seconds"),
    ("hardware", "gpu_per_node", "gpus_per_node"),
    ("software", "frame", "framework"), ("parallel", "tensor", None),
])  # fmt: skip
def test_a_key_that_nobody_reads_is_refused_with_the_nearest(table, key, nearest, tmp_path):
    hint = f" Did you mean '{nearest}'?" if nearest else ""
    with pytest.raises(UserError) as refused:
        read_cases(written(tmp_path, table, key, 4))
    told = str(refused.value)
    assert told.startswith(f"run 'mine': unknown key of {table or 'a run'}: '{key}'.{hint} There are: ")


@pytest.mark.parametrize(("table", "field", "word", "nearest"), [
    ("parallel", "schedule", "zigzag", None), ("parallel", "zero", "banana", None),
    ("", "recompute", "selctive", "selective"), ("", "precision", "fp7", "fp8"),
    ("", "offload", "optimiser", "optimizer"),
    ("software", "framework", "torchtitn", "torchtitan"), ("software", "framework", "Telepathy 2025", None),
    ("model", "activation", "swigl", "swiglu"),
])  # fmt: skip
def test_a_word_that_nobody_knows_is_refused_with_the_nearest(table, field, word, nearest, tmp_path):
    hint = f" Did you mean '{nearest}'?" if nearest else ""
    with pytest.raises(UserError) as refused:
        read_cases(written(tmp_path, table, field, word))
    label = f"{table}.{field}" if table else field
    assert str(refused.value).startswith(f"run 'mine': unknown {label} '{word}'.{hint} There are: ")


@pytest.mark.parametrize("value", CANNOT_BE, ids=lambda value: str(value)[:8])
@pytest.mark.parametrize(("table", "field"), [
    ("parallel", "tp"), ("parallel", "ep"), ("batch", "micro"), ("batch", "global"), ("", "gpus"),
    ("hardware", "gpus_per_node"),
])  # fmt: skip
def test_a_number_that_cannot_be_is_refused_and_does_not_count_as_not_stated(table, field, value, tmp_path):
    with pytest.raises(UserError, match="it must be a whole number from 1, or null") as refused:
        read_cases(written(tmp_path, table, field, value))
    assert f"run 'mine': {table + '.' * bool(table)}{field} is " in str(refused.value)


@pytest.mark.parametrize("value", ["15 s", -3, 0])
def test_a_measured_figure_that_is_no_number_is_not_dropped(value, tmp_path, capsys):
    assert main(["validate", "--cases", str(written(tmp_path, "measured", "step_seconds", value))]) == 2
    told = f"error: run 'mine': measured.step_seconds is {value!r}; it must be a number above 0, or null"
    assert capsys.readouterr().err.startswith(told)


def test_expert_parallelism_of_a_model_without_experts_is_refused(tmp_path):
    (run,) = read_cases(written(tmp_path, "parallel", "ep", 8))
    with pytest.raises(UserError, match="llama3-8b has no experts for ep=8 ranks to share; ep must be 1"):
        express(run)


def test_every_published_run_passes_with_all_its_keys_and_words(tmp_path):
    (file := tmp_path / "runs.json").write_text(json.dumps(read_cases()))
    assert read_cases(file) == read_cases()


@pytest.mark.parametrize(("table", "field", "value"), [
    ("parallel", "tp", "2"), ("parallel", "tp", None), ("parallel", "sp", "yes"),
    ("parallel", "sp", 4), ("parallel", "shards", 0),
    ("parallel", "zero", "FSDP, full shard"), ("parallel", "zero", "none"),
    ("parallel", "schedule", "DualPipe V"),
    ("", "recompute", "every 2 layers"), ("", "recompute", False), ("", "recompute", {"granularity": "full"}),
    ("", "recompute", ["moe_act", "mlp"]), ("", "precision", "bf16, fp32 grad accum"),
    ("", "precision", "unknown"),
    ("", "offload", ["optimizer"]), ("", "note", "by hand"), ("software", "framework", "in-house trainer"),
    ("software", "framework", None), ("model", "num_key_value_heads", 8), ("hardware", "leaf_share", 0.5),
])  # fmt: skip
def test_whatever_is_read_passes(table, field, value, tmp_path):
    assert len(read_cases(written(tmp_path, table, field, value))) == 1


def test_every_word_that_a_refusal_names_is_one_that_passes():
    assert all(framework_known(name) for name in NAMES)
    kinds = [kind for table in FIELDS.values() for kind in table.values()]
    assert all(kind.fits(choice) for kind in kinds for choice in kind.choices)


@pytest.mark.parametrize("changes", [{"recompute": None}, {"batch": {"global": 16, "sequence": 8192}}])
def test_ep_without_experts_is_refused_also_where_the_rest_is_not_stated(changes):
    run = {**RUN, "parallel": {"ep": 2, "tp": 2}, **changes}
    with pytest.raises(UserError, match="has no experts for ep=2"):
        express(run)


def test_one_sweep_is_called_one(capsys):
    show_sweeps(
        dict.fromkeys(("mean_regret", "max_regret", "mean_regret_of_a_guess"), 0.1)
        | {"sweeps": 1, "layouts": 5}
    )
    assert capsys.readouterr().out.startswith("1 sweep of 5 layouts: ")
