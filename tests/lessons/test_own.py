"""Claims about `--with FILE.py:FUNCTION`: a reader's own idea is a row like any other."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from ndparallel.base.errors import UserError
from ndparallel.commands.command_line import main
from ndparallel.engines import time_limit
from ndparallel.hardware.pocket import POCKET
from ndparallel.lessons import runner
from ndparallel.lessons.lesson import Strategy
from ndparallel.lessons.main import main as lesson_main
from ndparallel.lessons.own import strategy_of
from ndparallel.lessons.registry import load
from ndparallel.parallel.mesh import Mesh
from ndparallel.training.job import Job

PAGE = Path(__file__).resolve().parents[2] / "docs" / "exercises.md"
SECTION = PAGE.read_text("utf-8").partition("## Your own idea in a lesson")[2].partition("\n## ")[0]
EXAMPLES = "\n\n".join(re.findall(r"```python\n(.*?)```", SECTION, re.DOTALL))
OWN = """
import numpy as np


def fails(gpu, job):
    return gpu.nothing


def forgets_to_average(gpu, job):
    replica = Replica(gpu, job)
    for microbatches in replica.steps():
        for microbatch in microbatches:
            replica.forward(microbatch)
            replica.backward(microbatch)
        replica.optimizer_step()
    return replica.outcome


def forgets_one_wait(gpu, job):
    replica = Replica(gpu, job, bucket_mb=0)
    for microbatches in replica.steps():
        for microbatch in microbatches:
            replica.forward(microbatch)
            replica.backward(microbatch)
        _, *handles = [bucket.all_reduce(async_op=True) for bucket in replica.buckets]
        for handle in handles:
            handle.wait()
        replica.optimizer_step()
    return replica.outcome


def no_outcome(gpu, job):
    for microbatches in Replica(gpu, job).steps():
        pass


def no_step(gpu, job):
    return Replica(gpu, job).outcome


def leaves_its_loop(gpu, job):
    replica = Replica(gpu, job)
    for microbatches in replica.steps():
        for microbatch in microbatches:
            replica.forward(microbatch)
            replica.backward(microbatch)
        replica.optimizer_step()
        break
    return replica.outcome


def says_it_in_lines(gpu, job):
    raise ValueError("this\\nand that")


def raises_several(gpu, job):
    raise ExceptionGroup("both", [ValueError("this"), KeyError("that")])


def returns_its_replica(gpu, job):
    return Replica(gpu, job)


def no_job(gpu):
    pass


def no_microbatches(rank, ranks):
    yield "F", rank, 0


def stuck(rank, ranks, microbatches):
    yield "B", rank, 0


def breaks(rank, ranks, microbatches):
    yield "F", rank, 1 // 0


def no_layout(gpus):
    return {"shedule": "gpipe"}


def no_dict(gpus):
    return gpus


def lays_nothing_out(gpus):
    return {"dp": 8 // (gpus - 8)}


def zero_5(gpus):
    return {"dp": gpus, "zero": 5}


def zero_1_in_quotes(gpus):
    return {"dp": gpus, "zero": "1"}


def no_parts(gpus):
    return {"dp": gpus, "microbatches": None}


def parts_of_numpys(gpus):
    return {"dp": np.int64(gpus), "microbatches": np.int32(3)}


def chunks_in_quotes(gpus):
    return {"pp": 4, "dp": gpus // 4, "schedule": "interleaved", "stage_chunks": "2"}


def order_in_a_list(gpus):
    return {"tp": 2, "dp": gpus // 2, "order": ["dp", "tp"]}


def a_schedules_number(gpus):
    return {"pp": 4, "dp": gpus // 4, "schedule": 1}


def sp_yes(gpus):
    return {"tp": 2, "dp": gpus // 2, "sequence_parallel": True}


def computes_for_ever(gpu, job):
    while gpu.rank == gpu.rank:
        pass


def sends_for_ever(gpu, job):
    replica = Replica(gpu, job)
    for microbatches in replica.steps():
        while True:
            replica.buckets[0].all_reduce()


def orders_for_ever(rank, ranks, microbatches):
    while microbatches:
        pass


def lays_out_for_ever(gpus):
    while gpus:
        pass
"""


@pytest.fixture
def file(tmp_path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(EXAMPLES + OWN, "utf-8")
    return path


def row(capsys, lesson: str, words: str, *options: str) -> dict:
    """The one row of a function's run."""
    name = words.rpartition(":")[2]
    code = main(["lesson", lesson, "--with", words, "--strategy", name, "--json", *options])
    out, err = capsys.readouterr()
    assert code in (0, 1), err
    (found,) = json.loads(out)["strategies"]
    assert found["name"] == name
    return found


@pytest.mark.parametrize("engine", ["inline", "processes"])
@pytest.mark.parametrize(
    ("lesson", "name"), [("1d", "every_second"), ("3d", "in_pairs"), ("4d", "inside_the_node")]
)
def test_the_pages_examples_equal_one_gpu_on_every_engine(capsys, file, lesson, name, engine):
    found = row(capsys, lesson, f"{file}:{name}", "--engine", engine)
    assert found["max_gradient_difference"] < 1e-5
    assert found["speedup"] > 1


@pytest.mark.parametrize(("degrees", "experts"), [({"etp": 1}, 8), ({"ep": 2}, 8), ({"ep": 1}, 0)], ids=str)
def test_a_layout_that_says_who_shares_experts_has_some(capsys, tmp_path, degrees, experts):
    path = tmp_path / "mine.py"
    path.write_text(f"def mine(gpus):\n    return {{'tp': 2, 'dp': gpus // 2, **{degrees}}}\n")
    found = row(capsys, "4d", f"{path}:mine", "--engine", "inline")
    assert found.get("model", {"experts": 0})["experts"] == experts
    assert found["max_gradient_difference"] < 1e-5


def test_what_one_gpu_does_not_compute_is_no_equal_row(capsys, file):
    assert (
        row(capsys, "1d", f"{file}:forgets_to_average", "--engine", "inline")["max_gradient_difference"] > 0.1
    )


def test_an_answer_to_an_exercise_is_a_row(capsys, tmp_path):
    main(["exercise", "leave_early", "--folder", str(tmp_path)])
    capsys.readouterr()
    found = row(capsys, "1d", f"{tmp_path}/leave_early.py:ddp", "--engine", "inline")
    assert found["exposed_communication_seconds"] == pytest.approx(26.9e-3, rel=0.01)


def test_the_row_stands_below_the_lessons_and_is_drawn(capsys, file):
    options = ["--with", f"{file}:in_pairs", "--engine", "inline"]
    assert main(["lesson", "3d", *options]) == 0
    shown = capsys.readouterr().out
    rows = [line.split()[0] for line in shown.splitlines() if "x  " in line and line.endswith("=")]
    assert rows[-1] == "in_pairs"
    assert re.findall(r"^(\w+)  [\d.]+ s$", shown, re.MULTILINE) == ["1F1B", "in_pairs"]


@pytest.mark.parametrize("engine", ["inline", "processes"])
def test_it_is_told_which_wait_was_forgotten(capsys, file, engine):
    options = ["--with", f"{file}:forgets_one_wait", "--strategy", "DDP ring", "--engine", engine]
    assert main(["lesson", "1d", *options]) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert "GPU 0 never waited for its all_reduce (ring), collective 0 of group 'dp': no result" in shown


def test_it_is_a_row_beside_the_strategies_that_are_asked_for(capsys, file):
    options = ["--with", f"{file}:in_pairs", "--strategy", "1F1B", "--engine", "inline", "--json"]
    assert main(["lesson", "3d", *options]) == 0
    shown = json.loads(capsys.readouterr().out)["strategies"]
    assert [strategy["name"] for strategy in shown] == ["1F1B", "in_pairs"]


@pytest.mark.parametrize(
    ("lesson", "name", "sentence"),
    [
        (
            "1d",
            "fails",
            "rank 0 raised AttributeError: 'GPU' object has no attribute 'nothing' (mine.py, line",
        ),
        (
            "1d",
            "no_outcome",
            "no_outcome: GPU 0 returned None, and not its outcome: end with `return replica.outcome`.",
        ),
        ("1d", "no_step", "GPU 0 never stepped its optimizer: call replica.optimizer_step() in every step."),
        ("1d", "leaves_its_loop", "GPU 0 left its loop before the last step was over: go through all of"),
        ("1d", "says_it_in_lines", "rank 0 raised ValueError: this and that (mine.py, line"),
        ("1d", "raises_several", "rank 0 raised ExceptionGroup: both (2 sub-exceptions) (mine.py, line"),
        ("1d", "no_job", "mine.py:no_job takes (gpu): it must take (gpu, job)."),
        ("3d", "no_microbatches", "takes (rank, ranks): it must take (rank, ranks, microbatches)."),
        ("3d", "stuck", "rank 0 never does F of microbatch 0 on stage 0"),
        ("3d", "breaks", "ZeroDivisionError: integer division or modulo by zero (line"),
        ("4d", "no_layout", "mine.py:no_layout returned: 'shedule'. Did you mean 'schedule'? There are: "),
        ("4d", "no_dict", "mine.py:no_dict returned 8: return a dict of context_parallel, cp, dp, ep, "),
        ("4d", "lays_nothing_out", "lays_nothing_out raised ZeroDivisionError: integer division or modulo"),
        ("4d", "zero_5", "zero is 5; it must be at most 3, which shares out all."),
        ("4d", "zero_1_in_quotes", "zero is '1'; it must be a whole number."),
        ("4d", "no_parts", "--microbatches is None; it must be a whole number."),
        ("4d", "parts_of_numpys", "cannot be cut into 8 data-parallel parts of 3 microbatches; the nearest"),
        ("4d", "chunks_in_quotes", "a GPU cannot hold '2' stages of 8 layers; choose 1 to 10 chunks."),
        ("4d", "order_in_a_list", "the order ['dp', 'tp'] is no order of tp, cp, ep, dp, pp"),
        ("4d", "a_schedules_number", "schedule is 1; it must be a name, such as '1f1b'."),
        ("4d", "sp_yes", "unknown sequence_parallel 'True'. There are: none, sp, sp-regather."),
        ("1d", "missing", "defines no function missing"),
    ],
)
def test_what_is_wrong_with_it_is_one_sentence(capsys, file, lesson, name, sentence):
    words = ["lesson", lesson, "--with", f"{file}:{name}", "--strategy", name, "--engine", "inline"]
    assert main(words) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(("engine", "said"), [("inline", "not its outcome"), ("processes", "be pickled")])
def test_what_is_returned_and_is_no_outcome_is_one_sentence_on_every_engine(capsys, file, engine, said):
    words = ["--with", f"{file}:returns_its_replica", "--strategy", "returns_its_replica"]
    assert main(["lesson", "1d", *words, "--engine", engine]) == 2
    told = capsys.readouterr().err
    assert said in told and told.count("\n") == 1


PAIRS = """
from ndparallel.lessons.registry import module_of


def pair(gpu, job):
    return module_of("2d_tensor_parallel").sum_beside_weights(gpu, job)


def attention(gpu, job):
    return module_of("cp_context_parallel").ring_overlapped(gpu, job)
"""


@pytest.mark.parametrize(
    ("lesson", "name", "seconds"), [("2d", "pair", 53.3e-3), ("cp", "attention", 162e-3)]
)
def test_a_program_of_another_model_of_the_lessons_is_held_to_its_single_gpu(
    capsys, tmp_path, lesson, name, seconds
):
    path = tmp_path / "pairs.py"
    path.write_text(PAIRS)
    found = row(capsys, lesson, f"{path}:{name}", "--engine", "inline")
    of_sizes = row(capsys, lesson, f"{path}:{name}", "--engine", "inline", "--sizes-only")
    assert found["max_gradient_difference"] < 1e-5
    assert found["step_seconds"] == pytest.approx(seconds, rel=1e-2) and 3 < found["speedup"] < 4
    assert of_sizes["speedup"] == pytest.approx(found["speedup"], rel=1e-6)


def test_a_program_of_a_model_that_the_lesson_has_not_is_told_what_it_trains(capsys, tmp_path):
    path = tmp_path / "pairs.py"
    path.write_text(PAIRS)
    assert main(["lesson", "1d", "--with", f"{path}:pair", "--strategy", "pair", "--engine", "inline"]) == 2
    assert "pair trains a and b, and no single GPU of this lesson does." in capsys.readouterr().err


@pytest.mark.parametrize("engine", ["inline", "processes"])
@pytest.mark.parametrize("name", ["computes_for_ever", "sends_for_ever"])
def test_a_program_that_never_ends_is_ended_in_words_on_every_engine(capsys, file, monkeypatch, name, engine):
    monkeypatch.setattr(runner, "CPU_SECONDS", 0.3)
    monkeypatch.setattr(runner, "TIMES_ALONE", 1e-3)
    assert main(["lesson", "1d", "--with", f"{file}:{name}", "--strategy", name, "--engine", engine]) == 2
    told = capsys.readouterr().err
    line = 1 + file.read_text("utf-8").splitlines().index(f"def {name}(gpu, job):")
    assert "error: a rank was ended that was still computing (mine.py, line " in told
    assert line < int(re.findall(r"mine.py, line (\d+)", told)[0]) < line + 6
    assert "Does a loop end?" in told


def test_a_single_gpus_program_that_never_ends_is_ended_too(capsys, file, monkeypatch):
    monkeypatch.setattr(runner, "CPU_SECONDS", 0.3)
    monkeypatch.setattr(runner, "TIMES_ALONE", 1e-3)
    assert (
        main(["lesson", "0d", "--with", f"{file}:computes_for_ever", "--strategy", "computes_for_ever"]) == 2
    )
    assert "Does a loop end?" in capsys.readouterr().err


def test_a_program_may_compute_longer_where_the_work_takes_one_gpu_longer(file):
    def seconds(batch: int) -> float:
        with runner.Runner(POCKET, "inline") as running:
            strategy = strategy_of(load("1d"), f"{file}:every_second", 4)
            limit = running.limit_of(strategy, Job(batch=batch, mesh=Mesh(dp=4)))
            assert limit and limit.file == file
            return limit.cpu_seconds

    assert time_limit.CPU_SECONDS < seconds(8) < seconds(64)


@pytest.mark.parametrize(("lesson", "name"), [("3d", "orders_for_ever"), ("4d", "lays_out_for_ever")])
def test_an_order_and_a_layout_that_never_end_are_ended_in_words(capsys, file, monkeypatch, lesson, name):
    monkeypatch.setattr(time_limit, "CPU_SECONDS", 0.3)
    words = ["lesson", lesson, "--with", f"{file}:{name}", "--strategy", name, "--engine", "inline"]
    assert main(words) == 2
    assert f"{name} was ended: after 0.3 s it was still computing" in capsys.readouterr().err


def test_a_file_that_never_ends_by_itself_is_ended_in_words(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(time_limit, "CPU_SECONDS", 0.3)
    path = tmp_path / "endless.py"
    path.write_text("x = 0\nwhile True:\n    x += 1\n")
    for words in (["lesson", "1d", "--with", f"{path}:f"], ["schedule", f"{path}:f"]):
        assert main(words) == 2
        assert re.search(r"still computing \(line [23]\)\. Does a loop end\?", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [("mine.py", "names no function"), ("nowhere.py:f", "nowhere.py"), (":", "names no function")],
)
def test_words_that_name_no_function_are_refused(capsys, words, sentence):
    assert main(["lesson", "1d", "--with", words]) == 2
    assert sentence in capsys.readouterr().err


def test_the_schedule_command_draws_it_too(capsys, file):
    words = ["schedule", f"{file}:in_pairs", "1f1b", "--stages", "4", "--microbatches", "8", "--json"]
    assert main(words) == 0
    own, known = json.loads(capsys.readouterr().out)
    assert own["makespan"] > known["makespan"] == 33


def test_a_strategys_field_that_no_job_has_is_told_the_nearest():
    strategy = Strategy("mine", lambda gpu, job: None, lambda gpus: Mesh(dp=gpus), {"microbatchs": 2})
    with pytest.raises(UserError, match="of the job of 'mine' 'microbatchs'. Did you mean 'microbatches'"):
        strategy.job(Job(), 2)


def test_a_notice_of_one_sentence_need_be_no_list(capsys):
    lesson = replace(load("0d"), notice=lambda run: "One sentence.")
    assert lesson_main(lesson, ["--timeline", "none", "--engine", "inline"]) == 0
    assert capsys.readouterr().out.endswith("What to notice\n- One sentence.\n")
