"""The scripts in in_pytorch/ and the lessons compute the same, and send what is said of them."""

import json
import os
import re
import runpy
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.in_pytorch import needs_torch

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted((ROOT / "in_pytorch").glob("*_*.py"))
DTYPES = {2: "float32", 4: "float64"}  # by ranks: both dtypes on both would take twice as long
MOST = {"float32": 1e-5, "float64": 1e-11}

pytestmark = [needs_torch, pytest.mark.timeout(900)]


@cache
def compared(ranks: int) -> dict[str, dict]:
    """All strategies on so many ranks, in one launch, by script and name."""
    run = launched(ranks, "in_pytorch/compare.py", "--json", "--dtype", DTYPES[ranks])
    assert run.stdout, run.stderr
    return {f"{row['script']} {row['strategy']}": row for row in json.loads(run.stdout)}


@cache
def odd_jobs() -> dict[str, dict[str, float | str]]:
    """What every strategy says to options that do not fit 3 processes, in one launch."""
    return json.loads(launched(3, "tests/support/odd_jobs.py").stdout)


def launched(ranks: int, *words: str) -> subprocess.CompletedProcess:
    """What the ranks of a script printed."""
    launch = [sys.executable, "tests/support/forked_ranks.py", f"{ranks}", *words]
    run = subprocess.run(launch, cwd=ROOT, env=alone(), capture_output=True, text=True)
    assert "Traceback" not in run.stderr, run.stderr
    return run


def alone() -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}


def traffic(name: str) -> tuple[dict, dict]:
    row = compared(4)[name]
    return row["torch_traffic"], row["lesson_traffic"]


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("what", ["loss", "gradient", "weight"])
def test_every_strategy_of_torch_computes_what_the_lesson_computes(ranks, what):
    most = MOST[DTYPES[ranks]]
    found = {name: row[f"{what}_difference"][DTYPES[ranks]] for name, row in compared(ranks).items()}
    assert {name: value for name, value in found.items() if not value <= most} == {}
    assert len(found) == {2: 26, 4: 31}[ranks]


def test_every_strategy_of_every_script_is_compared():
    names = {path.stem for path in SCRIPTS if "STRATEGIES = {" in path.read_text("utf-8")}
    assert len(names) == 7 and {name.split()[0] for name in odd_jobs()} == names
    assert set(odd_jobs()) == set(compared(4))


def test_what_torch_and_the_lesson_send_is_equal_or_the_table_says_why():
    rows = [*compared(2).values(), *compared(4).values()]
    unexplained = [
        row["strategy"] for row in rows if row["torch_traffic"] != row["lesson_traffic"] and not row["why"]
    ]
    assert unexplained == []


def test_fsdp_gathers_every_unit_twice_and_reduces_it_once_as_the_lesson_does():
    units, weights = 10, 104_992 * 8  # embedding, 8 blocks, head; bytes in float64
    expected = {"all_gather": [2 * units, 2 * weights], "reduce_scatter": [units, weights]}
    assert traffic("1d_data_parallel FSDP") == (expected, expected)


def test_hsdp_reduces_across_nodes_what_each_node_has_scattered():
    torch, lesson = traffic("1d_data_parallel HSDP")
    assert torch == lesson and torch["all_reduce"] == [10, 104_992 * 8 / 2]


def test_a_plan_with_prepared_inputs_has_four_collectives_a_layer():
    torch, lesson = traffic("2d_tensor_parallel TP")
    ends = 5  # the embedding's sum, three of the loss, and the head's input backward
    assert torch == lesson and torch["all_reduce"][0] == 4 * 8 + ends


def test_with_sequence_parallelism_gathers_and_scatters_are_the_lessons_to_the_byte():
    torch, lesson = traffic("2d_tensor_parallel TP + SP")
    for name in ("all_gather", "reduce_scatter"):
        assert torch[name] == lesson[name] and torch[name][0] == 4 * 8 + 2


@pytest.mark.parametrize(
    "name", ["GPipe, by hand", "1F1B, by hand", "1F1B", "interleaved", "ZB-V", "DualPipeV"]
)
def test_a_schedule_sends_the_lessons_messages(name):
    torch, lesson = traffic(f"3d_pipeline_parallel {name}")
    assert torch == lesson and list(torch) == ["send"]


@pytest.mark.parametrize("odd", ["batch 8", "batch 6, 3 microbatches"])
def test_on_3_processes_a_strategy_computes_one_gpus_loss_or_refuses_in_a_sentence(odd):
    found = {name: said[odd] for name, said in odd_jobs().items()}
    losses = {name: loss for name, loss in found.items() if not isinstance(loss, str)}
    assert list(losses.values()) == pytest.approx(
        [losses["0d_single_gpu single GPU"]] * len(losses), rel=1e-5
    )
    assert len(losses) > 10 and all(name[:2] in ("0d", "1d", "3d") for name in losses)
    assert found["2d_tensor_parallel TP"] == "4 heads can be cut into 1, 2, 4 equal parts, and not into 3."


@pytest.mark.parametrize("odd", ["batch 8, 5 microbatches", "more than the text"])
def test_what_fits_no_strategy_is_refused(odd):
    refused = [name for name, said in odd_jobs().items() if isinstance(said[odd], str)]
    in_microbatches = [
        name for name in odd_jobs() if name.startswith(("3d", "0d_single_gpu microbatches", "4d"))
    ]
    assert set(in_microbatches) <= set(refused)


def test_no_strategy_that_takes_any_number_of_microbatches_has_one_in_its_name():
    assert not [name for name in odd_jobs() if re.search(r"\d+ microbatches", name)]


@pytest.fixture
def in_scripts(monkeypatch):
    """Where their modules are found, and not the lessons' of the same names."""
    monkeypatch.syspath_prepend(str(ROOT / "in_pytorch"))
    for path in SCRIPTS:
        monkeypatch.delitem(sys.modules, path.stem, raising=False)
    yield
    for path in SCRIPTS:
        sys.modules.pop(path.stem, None)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["compare.py", "2d_data_parallel"], "no script is called 2d_data_parallel; choose from 0d_"),
        (["compare.py", "--strategy", "FSDPP"], "no strategy is called FSDPP; choose from single GPU;"),
        (
            ["compare.py", "1d_data_parallel", "--strategy", "TP"],
            "no strategy is called TP; choose from DDP ring;",
        ),
        (["1d_data_parallel.py", "--microbatches", "3"], "unrecognized arguments: --microbatches"),
        (["3d_pipeline_parallel.py", "--microbatches", "0"], "--microbatches is 0; it must be at least 1."),
        (["1d_data_parallel.py", "--steps", "0"], "--steps is 0; it must be at least 1."),
        (["1d_data_parallel.py", "--text", "none"], "there is no file none."),
        (["1d_data_parallel.py", "FSDPP"], "no strategy is called FSDPP; choose from DDP ring;"),
        (["1d_data_parallel.py", "FSDP"], "torchrun starts this: torchrun --nproc-per-node 4"),
    ],
)
def test_a_mistake_is_one_sentence(words, sentence, in_scripts, monkeypatch, capsys):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setattr(sys, "argv", [str(ROOT / "in_pytorch" / words[0]), *words[1:]])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(sys.argv[0], run_name="__main__")
    assert ended.value.code == 2 and sentence in capsys.readouterr().err


def test_the_model_is_short():
    assert len((ROOT / "in_pytorch" / "model.py").read_text().splitlines()) < 120


def test_steps_are_counted_in_every_epoch(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "in_pytorch"))
    from running import Job

    first, second = (tokens.tolist() for tokens, _ in Job(steps=1, epochs=2).batches())
    assert first != second and len(list(Job(steps=3, epochs=2).batches())) == 6


def test_the_ranks_of_a_sampler_share_every_epoch_out(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "in_pytorch"))
    from data import TEXT, SameOrder, Windows

    windows = Windows(TEXT, 64)

    def epoch(number: int) -> list[int]:
        samplers = [SameOrder(windows, num_replicas=4, rank=rank, drop_last=True) for rank in range(4)]
        for sampler in samplers:
            sampler.set_epoch(number)
        return [index for sampler in samplers for index in sampler]

    for number in (0, 1):
        assert len(set(epoch(number))) == len(epoch(number)) == len(windows) // 4 * 4
    assert epoch(0) != epoch(1)
