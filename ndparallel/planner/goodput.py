"""Goodput: the share of a cluster's time in which training moves on, once failures, checkpoints and restarts
have taken theirs.

Idea   Something fails, everybody restarts from the last checkpoint, and what was computed since then is lost.
       Checkpoints that are rarer cost less time and lose more work: there is a best interval between them.
       Formulas say which; a simulation of failure after failure, which knows no formula, says so too.
Cost   Waste is about checkpoint / interval + (interval / 2 + restart) / MTBF, least where interval = sqrt(2
       checkpoint MTBF).
Limit  Failures are independent and equally likely at any time (exponential gaps); all GPUs stop for a
       checkpoint and for a failure; a restart always succeeds on as many GPUs, unless it is interrupted
       itself.

Glossary
    MTBF       mean time between failures of the cluster: of one GPU, divided by how many there are
    interval   seconds of training between the end of one checkpoint and the start of the next
    restart    from the failure until training goes on: noticing, replacing, loading the checkpoint
    lost       training that no checkpoint has kept, and checkpoints that were not finished

Sources
    Young      J. W. Young, A first order approximation to the optimum checkpoint interval, CACM 17(9), 1974
    Daly       J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart dumps, FGCS
               22(3), 2006
    Llama 3    The Llama 3 Herd of Models, arXiv 2407.21783, table 5: 419 unexpected interruptions in 54 days
               on 16,384 GPUs
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real

import numpy as np

from ndparallel.base.errors import UserError
from ndparallel.base.quoting import brief

HOUR, DAY = 3600.0, 86_400.0
LLAMA_3_FAILURES_PER_GPU_HOUR = 419 / (54 * 24 * 16_384)
FAILURES_IN_A_RUN = 4000  # about as many, that a search looks at, for each interval
MOST_FAILURES = 5000  # after so many a run that gets nowhere is given up
FAR_BEYOND = 100 * MOST_FAILURES  # no run of a training that is simulated meets so many
LEAST_GOODPUT = 1e-3  # of which less is called none
SEARCHED = 17  # intervals at a time
TOLERABLE = 0.01  # share of the best goodput
RUNS = 100  # simulated for one answer


def check_number(name: str, value: object, may_be_0: bool = False) -> None:
    """Raise UserError for what is no finite number above 0, or 0 where it may be that."""
    if not (isinstance(value, Real) and (0 < float(value) < math.inf or value == 0 and may_be_0)):
        least = "at least 0" if may_be_0 else "above 0"
        raise UserError(f"{name} is {brief(value)}; it must be a finite number {least}.")


@dataclass(frozen=True)
class FailureModel:
    """GPUs that fail at a rate, and what it takes to keep the work and to come back to it. Raises UserError
    for numbers that no cluster has."""

    gpus: int
    failures_per_gpu_hour: float = LLAMA_3_FAILURES_PER_GPU_HOUR
    checkpoint_seconds: float = 10.0
    restart_seconds: float = 600.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            check_number(name, value, may_be_0=name == "restart_seconds")

    @property
    def mtbf_seconds(self) -> float:
        return HOUR / (self.failures_per_gpu_hour * self.gpus)


# --------------------------------------------------------------------------------------------------- formulas


def young_interval(cluster: FailureModel) -> float:
    """Seconds between checkpoints, to first order: sqrt(2 C M)."""
    return math.sqrt(2 * cluster.checkpoint_seconds * cluster.mtbf_seconds)


def daly_interval(cluster: FailureModel) -> float:
    """Seconds between checkpoints, to higher order (Daly 2006, eq. 37); the MTBF itself where a checkpoint
    takes more than two of them."""
    ratio = cluster.checkpoint_seconds / (2 * cluster.mtbf_seconds)
    if ratio >= 1:
        return cluster.mtbf_seconds
    return young_interval(cluster) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - cluster.checkpoint_seconds


def expected_goodput(cluster: FailureModel, interval_seconds: float) -> float:
    """Share of the time that training keeps in the long run: interval / (M e^(R/M) (e^((interval + C)/M) -
    1)) (Daly 2006, eq. 20)."""
    mtbf = cluster.mtbf_seconds
    check_number("interval_seconds", interval_seconds)
    round_share = (interval_seconds + cluster.checkpoint_seconds) / mtbf
    restart_share = cluster.restart_seconds / mtbf
    if round_share + restart_share > 700:  # more than the largest float
        return 0.0
    return interval_seconds / mtbf / (math.exp(restart_share) * math.expm1(round_share))


# ------------------------------------------------------------------------------------------------- simulation


@dataclass
class SimulatedRun:
    """What became of a training run, in seconds."""

    kept: float = 0.0
    checkpoints: float = 0.0
    lost: float = 0.0
    restarts: float = 0.0
    failures: int = 0

    @property
    def elapsed(self) -> float:
        return self.kept + self.checkpoints + self.lost + self.restarts

    @property
    def goodput(self) -> float:
        return self.kept / self.elapsed if self.elapsed else 1.0


def simulate(
    cluster: FailureModel,
    interval_seconds: float,
    work_seconds: float,
    seed: int | Sequence[int] = 0,
    most_failures: int = MOST_FAILURES,
) -> SimulatedRun:
    """Train until so much work is kept, from failure to failure; a run that gets nowhere ends after
    `most_failures` of them."""
    generator, run, restart = np.random.default_rng(seed), SimulatedRun(), 0.0
    while run.kept < work_seconds and run.failures < most_failures:
        until_failure = float(generator.exponential(cluster.mtbf_seconds))
        if until_failure < restart:
            run.restarts += until_failure
        else:
            run.restarts += restart
            if train(cluster, interval_seconds, work_seconds, until_failure - restart, run):
                break
        run.failures += 1
        restart = cluster.restart_seconds
    return run


def train(
    cluster: FailureModel,
    interval_seconds: float,
    work_seconds: float,
    until_failure: float,
    run: SimulatedRun,
) -> bool:
    """Train and checkpoint until the failure, or return True where the work is done before it. Quiet rounds
    pass all at once."""
    round_seconds = interval_seconds + cluster.checkpoint_seconds
    wanted = (work_seconds - run.kept) / interval_seconds
    rounds = int(min(until_failure // round_seconds, wanted))
    run.kept += rounds * interval_seconds
    run.checkpoints += rounds * cluster.checkpoint_seconds
    left, last = until_failure - rounds * round_seconds, work_seconds - run.kept
    if last < interval_seconds and last <= left:
        run.kept = work_seconds
        return True
    run.lost += left
    return False


def best_interval(cluster: FailureModel, seed: int = 0, step_seconds: float = 0.0) -> float:
    """Seconds between checkpoints that keep most in simulated runs; all intervals meet the same failures.

    Looks at intervals from a hundredth of the MTBF, or of a checkpoint, to three of them, and then again
    about the best. With `step_seconds` an interval is of whole steps.
    """
    check_number("step_seconds", step_seconds, may_be_0=True)
    mtbf = cluster.mtbf_seconds
    low, high = min(mtbf, cluster.checkpoint_seconds) / 100, 3 * mtbf
    for _ in range(2):
        intervals = [whole_steps(interval, step_seconds) for interval in rising(low, high, SEARCHED)]
        kept = [long_run(cluster, interval, seed).goodput for interval in intervals]
        best = int(np.argmax(kept))
        low, *_, high = intervals[max(best - 1, 0) : best + 2]
    return intervals[best]


def long_run(cluster: FailureModel, interval_seconds: float, seed: int) -> SimulatedRun:
    return simulate(cluster, interval_seconds, FAILURES_IN_A_RUN * cluster.mtbf_seconds, seed)


def rising(low: float, high: float, number: int) -> list[float]:
    """So many seconds from `low` to `high`, each as many times the one before: to nine digits, as the last
    ones are others from numpy to numpy."""
    return [float(f"{each:.9g}") for each in np.geomspace(low, high, number).tolist()]


def whole_steps(interval_seconds: float, step_seconds: float) -> float:
    """The nearest number of whole steps, at least one; any interval where a step is not given (0)."""
    return max(1, round(interval_seconds / step_seconds)) * step_seconds if step_seconds else interval_seconds


# ---------------------------------------------------------------------------------------------------- answers


def tolerable_intervals(cluster: FailureModel, step_seconds: float = 0.0) -> tuple[float, float]:
    """The shortest and the longest interval, of whole steps where one is given, that loses at most TOLERABLE
    of what the best such one keeps."""
    daly = daly_interval(cluster)
    about = rising(1e-3 * daly, 1e3 * daly, 6001)
    intervals = np.unique([whole_steps(each, step_seconds) for each in about])
    kept = np.array([expected_goodput(cluster, float(interval)) for interval in intervals])
    near = intervals[kept >= (1 - TOLERABLE) * kept.max()]
    return float(near[0]), float(near[-1])


@dataclass(frozen=True)
class Duration:
    """How long a run of `work_days` takes: on average, and in 9 of 10 simulated ones, which are None where
    there would be too many failures to simulate. All are None where it would hardly ever end."""

    work_days: float
    days: float | None = None
    shortest_days: float | None = None
    longest_days: float | None = None
    failures: float | None = None


def duration(cluster: FailureModel, interval_seconds: float, work_days: float, seed: int = 0) -> Duration:
    """How long so many days of work take where GPUs fail, of RUNS simulated runs with failures of their own;
    by Daly's formula where these would be too long."""
    check_number("work_days", work_days, may_be_0=True)
    goodput = expected_goodput(cluster, interval_seconds)
    if goodput < LEAST_GOODPUT:
        return Duration(work_days)
    expected = work_days / goodput
    if (failures := expected * DAY / cluster.mtbf_seconds) > MOST_FAILURES:
        return Duration(work_days, expected, failures=failures)
    return simulated_duration(cluster, interval_seconds, work_days, seed)


def simulated_duration(
    cluster: FailureModel, interval_seconds: float, work_days: float, seed: int
) -> Duration:
    """How long so many days of work take in RUNS simulated runs, however many failures one of them meets."""
    runs = [
        simulate(cluster, interval_seconds, work_days * DAY, [seed, number], FAR_BEYOND)
        for number in range(RUNS)
    ]
    days = [run.elapsed / DAY for run in runs]
    shortest, longest = np.quantile(days, (0.05, 0.95))
    failures = float(np.mean([run.failures for run in runs]))
    return Duration(work_days, float(np.mean(days)), float(shortest), float(longest), failures)
