"""Whatever a lesson or a command is given: one sentence, exit code 2, no traceback, nothing printed, nothing
written."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from ndparallel.base.errors import write_what_cannot_be_encoded
from ndparallel.commands.command_line import COMMANDS
from ndparallel.commands.command_line import main as command_line
from ndparallel.lessons.main import main as lesson_main
from ndparallel.lessons.registry import LESSONS, load

ROOT = Path(__file__).resolve().parents[2]
LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "vocab_size": 32000,
    "hidden_act": "silu",
}
NAN = float("nan")
DIGITS, LETTERS = "9" * 5000, "x" * 5000


def hardware(**changes):
    return json.dumps({"based_on": "h100"} | changes)


def config(**changes):
    return json.dumps(LLAMA | changes)


FILES = {
    "empty.txt": "",
    "short.txt": "abc",
    "bytes.json": b'{"a": "\xff"}',
    "bytes.toml": b"\xff\xff",
    "cut.json": '{"a": ',
    "cut.toml": "a = = 3",
    "dots.toml": ".".join(["a"] * 20_000) + "=1",
    "list.json": "[1, 2]",
    "null.json": "null",
    "deep.json": "[" * 100_000,
    "h-nan.json": hardware(bandwidth_inside=NAN),
    "h-nan-text.json": hardware(bandwidth_inside="nan GB/s"),
    "h-zero.json": hardware(bandwidth_across=0),
    "h-negative.json": hardware(memory=-5),
    "h-count.json": hardware(gpus_per_node="8"),
    "h-peak.json": hardware(peak="fast"),
    "h-peak-nan.json": hardware(peak={"bf16": NAN}),
    "h-attention.json": hardware(attention=3),
    "h-joules.json": hardware(joules_per_flop="x"),
    "h-joules-nan.json": hardware(joules_per_flop=NAN),
    "h-power.json": hardware(power_limit=0),
    "h-latency.json": hardware(latency_inside=[1]),
    "h-base.json": hardware(based_on=7),
    "h-fraction.json": hardware(matmul_fraction=NAN),
    "h-peak-tiny.json": hardware(peak={"bf16": "1e-320 FLOP/s"}),
    "h-latency-huge.json": hardware(latency_across="1e308 s"),
    "h-memory-huge.json": hardware(memory=10**400),
    "h-count-huge.json": hardware(gpus_per_node=10**30),
    "h-curve-huge.json": hardware(efficiency=[[10**400, 1]]),
    "h-fraction-tiny.json": hardware(matmul_fraction=5e-324),
    "h-null.json": hardware(bandwidth_inside=None),
    "h-null-count.json": hardware(multiprocessors=None),
    "h-long.json": hardware(**{LETTERS: 1}),
    "h-long-value.json": hardware(bandwidth_inside=LETTERS),
    "c-10000.json": config(num_hidden_layers=10_000),
    "c-endless.json": config(num_hidden_layers=10**12),
    "c-negative.json": config(hidden_size=-4096),
    "c-text.json": config(hidden_size="4096"),
    "c-nan.json": config(hidden_size=NAN),
    "c-null.json": config(num_hidden_layers=None),
    "c-list.json": config(num_hidden_layers=[3]),
    "c-half.json": config(num_hidden_layers=3.5),
    "c-true.json": config(num_hidden_layers=True),
    "c-heads.json": config(num_attention_heads=7),
    "c-no-heads.json": config(num_attention_heads=0),
    "c-kv.json": config(num_key_value_heads=-1),
    "c-vocab.json": config(vocab_size=0),
    "c-type.json": config(model_type=5),
    "c-tied.json": config(tie_word_embeddings="perhaps"),
}
SPECIAL = ("pipe.json", "huge.json", "device.json")  # whose reading would not end, or not soon
BROKEN = (
    *SPECIAL,
    "bytes.json",
    "cut.json",
    "list.json",
    "null.json",
    "deep.json",
    "directory.json",
    "missing.json",
)
TOML = ("bytes.toml", "cut.toml", "dots.toml", "pipe.toml", "huge.toml", "device.toml")
HARDWARE = [name for name in FILES if name.startswith("h-")] + [
    *BROKEN,
    "bytes.toml",
    "cut.toml",
    "nope",
    "",
    *TOML,
]
WRONG_IN_CONFIGS = {
    name: key
    for name, text in FILES.items()
    if name.startswith("c-")
    for key, value in json.loads(text).items()
    if LLAMA.get(key) != value
} | {"c-heads.json": "7 heads"}
CONFIGS = [name for name in FILES if name.startswith("c-")] + [*BROKEN, "nope", ""]
FOR_ALL_RUNS: dict[str, Sequence[str]] = {
    "--text": (*SPECIAL, "missing.txt", "directory.json", "empty.txt", "short.txt", ""),
    "--gpus": ("0", "-1", "x", "1.5", "٣", DIGITS),
    "--gpus-per-node": ("0", "-2"),
    "--hardware": ("nope", "h-nan.json", "directory.json"),
    "--batch": ("0", "-8", "1000000000000"),
    "--microbatches": ("0", "-1"),
    "--steps": ("0", "-1", DIGITS, "2147483648"),
    "--seed": ("-1",),
    "--dtype": ("int8",),
    "--strategy": ("nope", "", LETTERS),
    "--engine": ("nope",),
    "--timeline": ("nope",),
    "--svg": ("directory.json", "nowhere/a.svg", ""),
    "--trace": ("directory.json", "nowhere/a.json", "empty.txt/a.json", "", LETTERS),
    "--slow-gpu": ("99:2", "nonsense", "0:1e308", DIGITS, f"{DIGITS}:2", f"0:{DIGITS}", "٣:2"),
    "--slow-link": ("0-99:2", "nonsense", "0-1:1e308", f"0-{DIGITS}:2", "0-0:2"),
    "--jitter": ("nan", "-1", "x"),
}
OF_ONE: dict[str, dict[str, Sequence[str]]] = {
    "1d_data_parallel": {
        "--bucket-mb": ("nan", "-1", "x"),
        "--unit-mb": ("nan", "-1"),
        "--hardware": HARDWARE,
        "--sweep": ("nope",),
    },
    "2d_tensor_parallel": {"--parts": ("0", "-1", "7")},
    "3d_pipeline_parallel": {"--chunks": ("0", "-1", "1000000")},
    "4d_combined": {
        "--tp": ("0", "-1", "100000"),
        "--ep": ("0", "-1"),
        "--order": ("", "tp", "a-b-c"),
        "--schedule": ("", "nope"),
    },
}
PLAN = ("--model", "llama-3-8b", "--gpus", "64", "--global-batch", "64", "--tp", "8")
OF_PLANS = {
    "--model": CONFIGS,
    "--hardware": HARDWARE,
    "--gpus": ("0", "-1", "x", "65"),
    "--global-batch": ("0", "-1", "7"),
    "--sequence": ("0", "-1"),
    "--tp": ("0", "-1", "3", "1000000000"),
    "--pp": ("0", "-1", "5"),
    "--dp": ("0", "-1", "7"),
    "--ep": ("0", "-1", "2"),
    "--cp": ("0", "-3", "3"),
    "--micro-batch": ("0", "-1", "7"),
    "--chunks": ("0", "-2", "99"),
    "--num-layers-per-virtual-pipeline-stage": ("0", "-1"),
    "--schedule": ("", "nope"),
    "--zero": ("9", "-1"),
    "--shards": ("-1", "3"),
    "--software": ("", "nope"),
    "--overlap": ("x",),
    "--dtype": ("x",),
    "--layers": ("4",),
}
MODEL = ("--layers=4", "--hidden=64", "--heads=4", "--ffn=128", "--vocab=100")
SIZES = ("--gpus=8", "--global-batch=8", *MODEL)
COMMANDS_OPTIONS: dict[tuple[str, ...], dict[str, Sequence[str]]] = {
    ("plan", *PLAN): OF_PLANS | {"--tokens": ("nan", "0", "-1", "inf", "x")},
    ("explain", *PLAN): OF_PLANS,
    ("plan", *PLAN[:-2]): {
        "--gpus": ("0", "-1"),
        "--global-batch": ("0", "-1"),
        "--top": ("0", "-1", "x", "1000000000"),
        **dict.fromkeys(
            ("--from-megatron", "--from-torchtitan"),
            (*SPECIAL, "directory.json", "missing.json", "empty.txt", ""),
        ),
        "--fix": ("tp=0", "tp=x", "tp", "nope=1", f"tp={DIGITS}", "tp=٣", f"{LETTERS}=1"),
        "--max-memory": ("nan", "-1", "80", "x"),
        "--what-if": (
            "nope*2",
            "bandwidth_across",
            "bandwidth_across*nan",
            "bandwidth_across*0",
            "bandwidth_inside=0",
            "memory=nan",
            "bandwidth_inside*1e-320",
            "bandwidth_inside=1e-300B/s",
            "bandwidth_inside/inf",
        ),
    },
    ("plan", *SIZES): {
        "--layers": ("0", "-1"),
        "--heads": ("0", "7"),
        "--vocab": ("0",),
        "--top-k": ("9",),
        "--experts": ("-1", "8"),
    },
    ("collective", "all_reduce"): {
        "--bytes": ("nan", "-1", "abc", "inf", "", "5us", "1e400"),
        "--ranks": ("0", "-1", "1000000000", "x"),
        "--latency": ("nan", "-1", "x", LETTERS, "1e-320s"),
        "--bandwidth": ("0", "nan", "-1"),
        "--gpus-per-node": ("0", "-1"),
        "--hardware": HARDWARE,
        "--algorithm": ("nope", ""),
        "--engine": ("nope",),
    },
    ("schedule", "1f1b", "--stages", "4", "--microbatches", "8"): {
        "--stages": ("0", "-1", "x", "1000000000"),
        "--microbatches": ("0", "-1", "1000000000000"),
        "--chunks": ("0", "-1", "99"),
        "--forward": ("nan", "-1", "inf"),
        "--backward-input": ("nan", "-1"),
        "--backward-weight": ("nan", "-1"),
        "--p2p": ("nan", "-1"),
        "--fused": ("nan", "-1"),
        "--memory-limit": ("nan", "-1", "0"),
        "--released-by-input": ("nan", "-1", "7"),
        "--svg": ("directory.json", "nowhere/a.svg", ""),
    },
    ("scaling", *PLAN[:-2]): {
        "--svg": ("directory.json", "nowhere/a.svg", "empty.txt/a.svg", ""),
        "--sizes": ("", "x", "0", "8,-1", DIGITS, ",".join(map(str, range(1, 1000)))),
        "--gpus": ("0",),
    },
    ("mesh",): {f"--{axis}": ("0", "-1", "x", "1000000000") for axis in ("tp", "cp", "dp", "pp", "ep")}
    | {
        "--gpus": ("0", "-1"),
        "--order": ("", "x"),
        "--gpus-per-node": ("0",),
        "--hardware": ("nope", "h-nan.json"),
    },
    ("schedule", "searched", "--stages", "64"): {"--microbatches": ("4000",)},
    ("collective", "all_to_all"): {"--ranks": ("8193", "65536")},
    ("collective", "all_reduce", "--algorithm", "ring"): {"--ranks": ("65536",)},
    ("collective", "all_reduce", "--engine", "inline"): {"--ranks": ("4096",)},
    ("validate",): {"--cases": (*BROKEN, "c-text.json", "")},
    ("goodput", "--gpus", "8"): {
        "--gpus": ("0", "x", DIGITS),
        "--checkpoint": ("0s", "0", "10", "nan", "inf", "-1", "nan s"),
        "--interval": ("0", "nan"),
        "--step": ("0", "inf", "1e-320s"),
        "--days": ("x", "nan"),
        "--failure-rate": ("nan", "0", "1e-320", "5e-324", "1e308"),
    },
}


def cases():
    """(program, arguments), each with one thing that is wrong."""
    for program in (*LESSONS, "compare"):
        for option, values in (FOR_ALL_RUNS | OF_ONE.get(program, {})).items():
            yield from (
                (program, (option, value, *(("--engine", "inline") if option != "--engine" else ())))
                for value in values
            )
    for (program, *usual), options in COMMANDS_OPTIONS.items():
        yield from (
            (program, (*usual, option, value)) for option, values in options.items() for value in values
        )
    yield from ((program, ("--nope", f"--{LETTERS}", *("x" * 2000))) for program in (*LESSONS, *COMMANDS))
    yield from [
        ("", ()),
        ("nope", ()),
        (LETTERS, ()),
        ("--nope", ()),
        ("goodput", ()),
        ("collective", ("nope",)),
        ("flags", ("nope",)),
    ]


def run(program, arguments):
    return (
        lesson_main(load(program), list(arguments))
        if program in LESSONS
        else command_line([program, *arguments])
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("hostile")
    (path / "directory.json").mkdir()
    for ending in ("json", "toml"):
        os.mkfifo(path / f"pipe.{ending}")
        (path / f"huge.{ending}").touch()
        os.truncate(path / f"huge.{ending}", 10**9)
        (path / f"device.{ending}").symlink_to("/dev/zero")
    for name, content in FILES.items():
        (path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


BY_PROGRAM: dict[str, list[tuple[str, ...]]] = {}
for program, arguments in cases():
    BY_PROGRAM.setdefault(program, []).append(arguments)


@pytest.mark.parametrize("program", BY_PROGRAM)
def test_hostile_input_is_one_sentence_and_exit_code_2(program, folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    before = sorted(os.listdir())
    wrong = [
        (arguments, *ending)
        for arguments in BY_PROGRAM[program]
        if not is_told(*(ending := ending_of(program, arguments, capsys)))
    ]
    assert wrong == []
    assert sorted(os.listdir()) == before


def ending_of(program, arguments, capsys):
    """(exit code, output, what it says is wrong)"""
    try:
        code = run(program, arguments)
    except Exception as error:  # a traceback, to a user
        code = error
    return code, *capsys.readouterr()


def is_told(code, out, err):
    one_sentence = err.startswith("error: ") and err.count("\n") == 1 and len(err) < 1000
    echoed = any(run in err for run in ("x" * 200, "9" * 200, "x " * 100))
    return (
        code == 2
        and out == ""
        and one_sentence
        and not echoed
        and not any(word in err for word in ("Error(", "object at 0x", "NoneType"))
    )


def test_what_the_wrong_files_change_is_right_before(folder, monkeypatch, capsys):
    (folder / "whole.json").write_text(config())
    (folder / "h-whole.json").write_text(hardware())
    monkeypatch.chdir(folder)
    given = {"--model": "whole.json", "--hardware": "h-whole.json", "--gpus": "64", "--global-batch": "64"}
    assert run("plan", [word for pair in given.items() for word in pair] + ["--tp", "8"]) == 0


@pytest.mark.parametrize("name", WRONG_IN_CONFIGS)
def test_a_wrong_config_is_refused_for_the_key_that_is_wrong(name, folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    assert run("plan", ("--model", name, *PLAN[2:])) == 2
    assert WRONG_IN_CONFIGS[name] in capsys.readouterr().err


def test_text_that_is_no_utf_8_is_trained_on_byte_by_byte(folder, monkeypatch, capsys):
    (folder / "bytes.txt").write_bytes(b"\xff\xfe\x80" * 1000)
    monkeypatch.chdir(folder)
    assert (
        run(
            "1d_data_parallel",
            ("--text", "bytes.txt", "--strategy", "DDP ring", "--engine", "inline", "--json"),
        )
        == 0
    )
    assert json.loads(capsys.readouterr().out)["strategies"][0]["loss"] > 0


# ------------------------------------------------------------------------- what can only be seen from outside

LESSON = ("1d_data_parallel.py", "--strategy", "DDP ring", "--engine", "inline")


needs_dev_full = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")


def outside(*arguments, shell):
    """(exit code, standard error) of a lesson whose output goes where the shell says."""
    command = f'"{sys.executable}" ' + " ".join(f'"{argument}"' for argument in arguments) + f" {shell}"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True)
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("shell", "code", "says"),
    [
        ("| true; exit ${PIPESTATUS[0]}", 141, ""),
        pytest.param(">/dev/full", 2, "error: No space left on device.\n", marks=needs_dev_full),
        (">&-", 0, ""),
    ],
)
def test_output_that_nobody_can_take_is_one_sentence_at_most(shell, code, says):
    assert outside(*LESSON, shell=shell) == (code, says)


# that of the C locale without UTF-8 is the last
@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "ascii:surrogateescape"])
def test_a_terminal_that_has_no_blocks_shows_digits_and_says_so(encoding, monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", encoding)
    assert outside(*LESSON, shell="| grep -q 'Block: how much of it, 1 little to 8 all'") == (0, "")
    assert outside(*LESSON, shell="| grep -q '[?]'") == (1, "")


def test_what_has_nothing_plain_in_its_place_is_a_question_mark():
    write_what_cannot_be_encoded()
    assert "a → b, Σ ▄▄".encode("latin-1", "plainly") == b"a > b, ? 44"


@pytest.mark.parametrize("option", ["--svg", "--trace"])
def test_a_file_whose_name_is_no_unicode_is_written_and_named(option, tmp_path):
    path = os.fsencode(tmp_path) + b"/\xff.json"
    command = [sys.executable, *LESSON, "--timeline", "none", option, path]
    environment = os.environ | {"PYTHONIOENCODING": "utf-8:strict"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"") and os.path.getsize(path) > 1000
    assert b"\\udcff.json" in done.stdout
