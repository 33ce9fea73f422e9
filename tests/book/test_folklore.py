"""The page of folklore: every claim has a verdict and a command, and every command that is shown is one that
makes the page's numbers."""

import re

import pytest

from ndparallel.book.check import NUMBERS, lines_of
from ndparallel.lessons.registry import ROOT
from ndparallel.planner.software import STACKS

TEXT = (ROOT / "docs" / "folklore.md").read_text("utf-8")
PYTORCH = (ROOT / "docs" / "pytorch.md").read_text("utf-8")
CLAIMS = re.findall(r"^\| (\d+) \| (.+?) \| (.+?) \| (.+?) \|$", TEXT, re.MULTILINE)
SHOWN = [
    (line.partition("  # ")[0], line.partition("  # ")[2])
    for block in re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL)
    for line in block.splitlines()
]


def test_claims_are_numbered_through_and_there_are_all_that_circulate_most():
    assert [int(number) for number, *_ in CLAIMS] == list(range(1, len(CLAIMS) + 1)) and len(CLAIMS) >= 20
    assert f"quotes {len(CLAIMS)} of them" in TEXT
    circulating: tuple[str, ...] = (
        "ring all-reduce",
        "all-gather",
        "ZeRO-1, 2, 3",
        "(N-1)/(N+M-1)",
        "(P-1)/(2MV)",
        "M >= 4N",
        "inside a node",
        "across nodes",
    )
    circulating += (
        "InfiniBand",
        "Sequence parallelism",
        "1F1B",
        "4 to 8 times",
        "80-95%",
        "naive pipeline",
        "Broadcasting",
        "TP8 x PP16",
    )
    claims = " ".join(claim for _, claim, *_ in CLAIMS)
    assert [words for words in (*circulating, "multiplicatively") if words not in claims] == []


def test_what_claim_8_calls_fastest_and_slower_is_so_by_its_own_numbers():
    said = TEXT[TEXT.index("**8.**") :]
    times = re.search(
        r"(\d+) ms for DDP, (\d+) ms for ZeRO-1 and (\d+) ms for\s+FSDP: FSDP is the fastest", said
    )
    assert times and float(times[3]) < min(float(times[1]), float(times[2]))
    parts = re.search(r"FSDP waits longer\s+for messages, ([\d.]+) ms against ([\d.]+) ms", said)
    assert parts and float(parts[1]) > float(parts[2])
    many = re.search(r"it is slower than ZeRO-1: ([\d.]+) s against ([\d.]+) s", said)
    assert many and float(many[1]) > float(many[2])


@pytest.mark.parametrize(
    ("number", "verdict", "finding"), [(number, verdict, finding) for number, _, verdict, finding in CLAIMS]
)
def test_every_claim_has_a_verdict_a_number_and_a_command(number, verdict, finding):
    assert re.match(r"true\b|false\b", verdict) and re.search(r"\d", finding)
    assert any(number in re.findall(r"\d+", numbers.partition(",also")[0]) for _, numbers in SHOWN), (
        f"no command shows claim {number}"
    )


def test_every_command_shown_is_one_that_the_numbers_come_from():
    run = {block["command"].strip() for block in NUMBERS.finditer(TEXT)}
    assert [command for command, _ in SHOWN if command not in run] == []


def test_no_figure_of_another_command_is_copied_into_an_expression():
    expressions = [line[1] for block in NUMBERS.finditer(TEXT) for line in lines_of(block)]
    assert [words for words in expressions if re.search(r"\d\.\d{3}", words)] == []


def test_what_claim_4_says_of_zero_1_in_torch_is_what_was_counted():
    (counted,) = re.findall(r"^ZeRO-1 .* (\d+) broadcast ([\d,]+ kB)$", PYTORCH, re.MULTILINE)
    verdict, finding = next(words[2:] for words in CLAIMS if words[0] == "4")
    assert (
        verdict.startswith("false")
        and "a step of torch's ZeRO-1: {} broadcasts, {}".format(*counted) in finding
    )


def test_that_tp16_crosses_nodes_is_not_what_it_waits_for():
    said = TEXT[TEXT.index("**12.**") :]
    shares = re.search(r"waits (\d+)% of its step. With 64 GPUs on one NVLink it waits as long: (\d+)%", said)
    assert shares and shares[1] == shares[2]


def test_who_hides_sums_behind_weight_gradients_is_what_the_planner_says():
    overlap = {name: STACKS[name].tp_overlap for name in ("megatron-2021", "megatron-2022", "torchtitan")}
    assert overlap == {"megatron-2021": "none", "megatron-2022": "backward", "torchtitan": "none"}
    # megatron-2021 is the Megatron of 2104.04473, of April
    assert "Megatron has done it since September 2021, PyTorch's DTensor does it only with async TP" in TEXT
