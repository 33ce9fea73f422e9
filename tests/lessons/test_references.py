"""Claims about when the single GPU's runs are made, which strategies are compared with."""

from gpu import Hardware
from ndparallel.engines.task import PendingRun
from ndparallel.hardware.pocket import POCKET
from ndparallel.lessons.lesson import Strategy
from ndparallel.lessons.registry import load
from ndparallel.lessons.runner import Runner, baseline, entry_of
from ndparallel.training.job import Job
from tests.support.common import SMALL


class Diary(Runner):
    """A runner that writes down what it begins."""

    def __init__(self) -> None:
        super().__init__(POCKET, "processes")
        self.begun: list[str] = []

    def begin(self, strategy: Strategy, job: Job, hardware: Hardware) -> PendingRun:
        self.begun.append(f"{strategy.name} of {job.batch}")
        return super().begin(strategy, job, hardware)


def test_a_reference_is_made_once_beside_the_ranks_before_those_that_it_is_compared_with():
    ddp = load("1d_data_parallel").strategies[0]
    entries = [
        baseline(Job(model=SMALL, batch=4)),
        *(entry_of(ddp, Job(model=SMALL, batch=batch), 2) for batch in (4, 4, 4, 8)),
    ]
    runner = Diary()
    with runner:
        rows = [row for row, _ in runner.measured_in_turn(entries)]
    alone, ours = "single GPU of", f"{ddp.name} of"
    before_ranks, *begun = runner.begun
    assert before_ranks == f"{alone} 4"  # the row, which is the reference's
    assert begun == [f"{ours} 4", f"{alone} 4", f"{ours} 4", f"{ours} 4", f"{alone} 8", f"{ours} 8"]
    assert all(row.max_gradient_difference is not None and row.max_gradient_difference < 1e-5 for row in rows)
