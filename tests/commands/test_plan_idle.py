"""Claims about options of `ndparallel plan` that would be ignored: they are named, or refused."""

import json

import pytest

from gpu import si
from ndparallel.commands.command_line import main


def printed(capsys, *words: str) -> str:
    assert main(["plan", *words]) == 0
    return capsys.readouterr().out


IDLE = [
    ("--cp 1 --context-parallel ring", "--context-parallel ring changes"),
    ("--cp-comm-type p2p --zero 1", "--cp-comm-type p2p changes"),
    ("--tp 1 --sequence-parallel --schedule zb-v", "--schedule zb-v and --sequence-parallel change"),
    ("--recompute full --recompute-layers 16", "--recompute-layers 16 changes"),
    ("--model mixtral-8x7b --zero 3 --etp 1", "--etp 1 changes"),
    ("--model mixtral-8x7b --zero 3 --dispatcher hybridep", "--dispatcher hybridep changes"),
    ("--model mixtral-8x7b --zero 3 --routing-imbalance 1.3", "--routing-imbalance 1.3 changes"),
    ("--cp 2 --context-parallel ring", ""),
    ("--model mixtral-8x7b --zero 3 --ep 8 --dispatcher hybridep", ""),
    ("--tp 2 --sequence-parallel --hardware h100 --dtype bf16 --software megatron-core", ""),
    ("--plan DP64,zero1,mbs1", ""),
]


@pytest.mark.parametrize(("options", "said"), IDLE)
def test_an_option_that_changes_nothing_is_named(options, said, capsys):
    """Its prediction is the same without it, and it is no default that is typed."""
    job = ["--model", "llama-3.2-1b", "--gpus", "64", "--global-batch", "128", "--timeline", "none"]
    words = [*job, *options.split()]
    told = " ".join(printed(capsys, *words).split())
    assert (f"{said} nothing in this plan" in told) if said else ("nothing in this plan" not in told)
    notes = " ".join(json.loads(printed(capsys, *words, "--json"))["notes"])
    assert ("nothing in this plan" in notes) == bool(said)


def test_an_option_that_changes_nothing_is_named_beside_a_script(capsys):
    words = ["--model", "llama-3.2-1b", "--gpus", "64", "--global-batch", "128", "--zero", "1"]
    assert main(["plan", *words, "--context-parallel", "ring", "--emit", "megatron"]) == 0
    assert "careful: --context-parallel ring changes nothing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ("--emit megatron --what-if gpus*2", "a launch script, and no answer to --what-if"),
        ("--emit megatron --tp 2 --measured 3s", "a launch script, and no answer to --measured"),
        ("--csv --price-per-gpu-hour 3", "plans, and no answer to --price-per-gpu-hour"),
        ("--csv --emit megatron", "--csv prints plans, and --emit a launch script: choose one"),
    ],
)
def test_a_question_beside_what_prints_no_answer_is_refused(options, named, capsys):
    words = ["--model", "llama-3.2-1b", "--gpus", "64", "--global-batch", "128"]
    assert main(["plan", *words, *options.split()]) == 2
    assert named in capsys.readouterr().err


def test_a_default_that_is_typed_beside_a_script_is_refused_as_any_other_value_is(tmp_path, capsys):
    script = tmp_path / "launch.sh"
    script.write_text("torchrun pretrain_gpt.py --num-layers 4 --tensor-model-parallel-size 2")
    assert main(["plan", "--from-megatron", str(script), "--tp", "1"]) == 2
    assert "--tp is the business of" in capsys.readouterr().err


MIXTURE = [
    *("--model", "qwen3-30b-a3b", "--gpus", "16", "--global-batch", "64", "--timeline", "none"),
    *("--pp", "2", "--ep", "8", "--zero", "1", "--recompute", "selective"),
]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--chunks", "4"], True),
        (["--chunks", "4", "--overlap", "tp,dp,pp,cp,ep"], False),
        (["--chunks", "1"], False),  # which Megatron-Core's pairs of microbatches cannot have in a pipeline
        (["--chunks", "4", "--software", "torchtitan"], False),
        (["--chunks", "4", "--ep", "1"], False),
    ],
)
def test_a_mixture_is_told_how_long_its_step_is_with_rows_beside_compute(options, said, capsys):
    told = " ".join(printed(capsys, *MIXTURE, *options).split())
    assert ("With --overlap tp,dp,pp,cp,ep rows travel" in told) == said
    if said:
        words = [*MIXTURE, *options, "--overlap", "tp,dp,pp,cp,ep", "--json"]
        seconds = json.loads(printed(capsys, *words))["step_seconds"]
        assert f"the step takes {si(seconds, 's')}" in told
