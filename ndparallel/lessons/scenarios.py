"""What if: the same strategies on another network, another model, another batch, and whether the winner
changes.

Idea   A ranking of strategies is true for one model on one network. Each scenario changes one thing and runs
       everything again.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpu import Hardware
from ndparallel.base.words import listed
from ndparallel.hardware.disturbances import slower
from ndparallel.results.report import Run, Sweep
from ndparallel.training.job import Job


@dataclass(frozen=True)
class Scenario:
    """One change: of the hardware, of the job, or of both."""

    name: str
    hardware: Callable[[Hardware], Hardware] = lambda hardware: hardware
    job: Callable[[Job], Job] = lambda job: job


def slower_network(hardware: Hardware) -> Hardware:
    return replace(hardware, across=slower(hardware.across, 30))


def one_network(hardware: Hardware) -> Hardware:
    return replace(hardware, across=hardware.inside)


def wider(job: Job) -> Job:
    model = job.model
    return job.replace(model=model.replace(hidden=2 * model.hidden, ffn=2 * model.ffn))


def more_microbatches(job: Job) -> Job:
    """Four times the batch, in microbatches as large as before, or of one sequence in a pipeline."""
    return job.replace(batch=4 * job.batch, microbatches=4 * job.microbatches)


SCENARIOS = (
    Scenario("as it is"),
    Scenario("network across nodes 30x slower", hardware=slower_network),
    Scenario("network across nodes as fast as inside", hardware=one_network),
    Scenario("model twice as wide", job=wider),
    Scenario("four times the batch", job=more_microbatches),
)


def what_if(runs: Sequence[tuple[Scenario, Run]]) -> Sweep:
    """Return a scenario's row: the fastest strategy on each number of GPUs, and its speedup."""
    rows = [row(scenario, run) for scenario, run in runs]
    others = [repr(row["what if"]) for row in rows[1:] if winners(row) != winners(rows[0])]
    sentence = (
        f"Others win than as it is in {listed(others)}: a ranking is of one model, batch and network."
        if others
        else "The winner is the same in all of them."
    )
    return Sweep("What if: the fastest strategy in each case", rows, sentence)


def winners(row: Mapping) -> list[str]:
    return [value for key, value in row.items() if key.startswith("fastest")]


def row(scenario: Scenario, run: Run) -> dict:
    found: dict = {"what if": scenario.name}
    parallel = [one for one in run.report.against_one_gpu if one.row.gpus > 1 and one.speedup]
    for gpus in sorted({one.row.gpus for one in parallel}):
        best = max((one for one in parallel if one.row.gpus == gpus), key=lambda one: one.speedup or 0)
        found |= {f"fastest on {gpus}": best.row.name, f"speedup on {gpus}": best.speedup}
    return found
