"""Claims about what a lesson refuses: at once, and with sizes that all of its strategies can be cut to."""

import re

import pytest

from ndparallel.commands.command_line import main
from ndparallel.training.pipeline_stages import schedule_of


def refused(capsys, *words: str) -> str:
    assert main(["lesson", words[0], "--engine", "inline", "--timeline", "none", *words[1:]]) == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(("lesson", "batch"), [("0d", 9), ("1d", 12), ("3d", 9), ("4d", 24)])
def test_the_batch_that_is_advised_does_for_the_whole_lesson(capsys, lesson, batch):
    said = refused(capsys, lesson, "--microbatches", "3")
    assert re.findall(r"the nearest batch that can is (\d+)", said) == [str(batch)]


def test_the_microbatches_that_are_advised_do_for_the_whole_lesson(capsys):
    said = refused(capsys, "1d", "--microbatches", "3")
    assert "nearest number of microbatches is 2 (--microbatches 2)" in said and "is 12 (--batch 12);" in said
    assert "nearest number of microbatches is 1" in refused(capsys, "4d", "--microbatches", "3")


def test_a_number_of_gpus_is_advised_only_where_it_cuts_the_batch_otherwise(capsys):
    """TP x FSDP has two data-parallel parts on any number of GPUs."""
    told = refused(capsys, "2d", "--microbatches", "8", "--strategy", "TP x FSDP")
    assert "the nearest number of microbatches is 4 (--microbatches 4)." in told and "--gpus" not in told
    assert "--gpus 8" in refused(capsys, "1d", "--gpus", "16", "--strategy", "DDP ring")


def test_only_strategies_that_are_asked_for_count(capsys):
    told = refused(capsys, "4d", "--microbatches", "3", "--strategy", "TP2 x PP2 x DP2")
    assert "the nearest batch that can is 6" in told


def test_too_many_stages_are_refused_before_a_schedule_is_written(capsys, monkeypatch):
    """But for the two stages of 'MLP on two GPUs'."""
    written = []

    def spied(name, ranks, *rest):
        written.append(ranks)
        return schedule_of(name, ranks, *rest)

    monkeypatch.setattr("ndparallel.training.job.schedule_of", spied)
    told = refused(capsys, "3d", "--gpus", "100")
    assert written == [2]
    assert "8 layers cannot fill 100 stages: with the embedding and the head they fill at most 10." in told


def test_a_sequence_longer_than_the_text_is_refused_before_anything_runs(capsys, monkeypatch):
    monkeypatch.setattr("ndparallel.lessons.main.run_lesson", None)
    told = refused(capsys, "1d", "--sequence", "100000000")
    assert "bytes; a batch of 8 sequences of 100000000 needs at least 800000001. Name a longer text" in told


@pytest.mark.parametrize(
    ("words", "can_be"),
    [
        ("ep --gpus 3", "--gpus can be 1, 2, 4, 8."),
        ("ep --gpus 3 --batch 4", "--gpus can be 1, 2, 4."),  # 8 GPUs would have half a sequence each
        # one GPU has no ring
        ("cp --gpus 3", "--gpus can be 2, 4, 8, 16, 32; the nearest sequence that can is 66"),
        ("2d --gpus 3", "--gpus can be 1, 2, 4, 8."),
        ("4d --cp 3 --gpus 6", "cp can be 1, 2, 4, 8, 16, 32; the"),  # --gpus would not change cp
    ],
)
def test_a_degree_that_gpus_alone_set_is_told_as_gpus(capsys, words, can_be):
    assert f"; {can_be}" in refused(capsys, *words.split())


@pytest.mark.parametrize(("sequence", "near"), [(63, 64), (3, 8), (67, 64)])
def test_the_sequence_that_is_advised_can_be_cut(capsys, sequence, near):
    """Of 63 tokens no lesson on context parallelism has a part for every GPU, so that no cp would do."""
    told = refused(capsys, "cp", "--sequence", str(sequence))
    assert f"; the nearest sequence that can is {near} (--sequence {near})." in told
    options = ["--strategy", "CP", "--engine", "inline", "--timeline", "none"]
    assert main(["lesson", "cp", "--sequence", str(near), *options]) == 0


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["3d", "--schedule", "ZB-v"], "; that is --strategy ZB-V"),
        (["3d", "--schedule=gpipe"], "; that is --strategy GPipe"),
        (["2d", "--sequence-parallel", "sp"], "; that is --strategy 'TP + SP'"),
        (["3d", "--schedule", "zb-h2"], "; --schedule is an option of 4d_combined.py"),
        (["1d", "--chunks", "2"], "; --chunks is an option of 3d_pipeline_parallel.py"),
        (["1d", "--nothing-like-it", "2"], " 2"),
    ],
)
def test_what_is_no_option_here_is_told_as_a_strategy_or_as_another_lessons_option(capsys, words, meant):
    assert f"{meant} (ndparallel lesson {words[0]} --help" in refused(capsys, *words)


def test_degrees_that_would_do_are_found_for_a_sequence_of_any_length(capsys):
    """A million million and 2 tokens: all numbers up to it would take hours."""
    told = refused(capsys, "cp", "--gpus", "2", "--sizes-only", "--sequence", str(10**12 + 2))
    assert "cp=2 cannot cut a sequence of 1000000000002 into 4 pieces; --gpus can be 3, " in told


def test_a_model_that_nobody_knows_is_refused_for_its_name(capsys):
    told = refused(capsys, "1d", "--model", "llama-3-9b")
    assert "unknown model or file 'llama-3-9b'. Did you mean" in told
