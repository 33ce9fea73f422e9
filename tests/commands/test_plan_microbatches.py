"""Claims about `ndparallel plan` with more microbatches than anyone would time one by one."""

import pytest

from ndparallel.commands.command_line import main
from tests.commands.test_plan import LLAMA, answered

SIZES = {"--layers": 4, "--hidden": 16, "--heads": 4, "--ffn": 24, "--vocab": 256, "--sequence": 32}
POCKET = [
    "--hardware",
    "pocket",
    "--timeline",
    "none",
    *(str(word) for size in SIZES.items() for word in size),
]
MANY = ["--global-batch", "10000000"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([*LLAMA[:2], "--gpus", "16", "--tp", "2", "--pp", "8", "--schedule", "zb-1p", *MANY], "zb-1p tries"),
        ([*POCKET, "--gpus", "2", "--pp", "2", *MANY], "choose at most 16,666 microbatches"),
        (
            [*POCKET, "--gpus", "1", "--tp", "1", *MANY],
            "10,000,000 microbatches through 6 units are too many",
        ),
    ],
)
def test_more_microbatches_than_can_be_timed_one_by_one_are_refused(capsys, options, said):
    assert main(["plan", *options]) == 2
    assert said in capsys.readouterr().err


def test_ten_million_microbatches_of_a_written_schedule_take_no_longer_to_time_than_a_few_rounds(capsys):
    plan = [*LLAMA[:2], "--gpus", "16", "--tp", "2", "--pp", "8", "--sequence", "2048"]
    few, many = (answered(capsys, *plan, "--global-batch", batch) for batch in ("1000", MANY[1]))
    assert many["step_seconds"] == pytest.approx(1e4 * few["step_seconds"], rel=0.02)


def test_an_imbalance_of_the_lessons_own_run_needs_no_sentence(capsys):
    """A head as wide as 4 layers together."""
    grid = ["--gpus", "64", "--global-batch", "128", "--pp", "4", "--tp", "4", "--dp", "4"]
    assert main(["plan", *POCKET, *grid]) == 0
    printed = capsys.readouterr().out
    assert "stage imbalance takes most" in printed and "Stage imbalance:" not in printed
