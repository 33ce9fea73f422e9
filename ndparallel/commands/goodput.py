"""What failures, checkpoints and restarts leave of a cluster's time, and how often to checkpoint.

Idea   Young's and Daly's formulas beside a simulation, failure after failure, that knows neither. `ndparallel
       plan --tokens` says how many days a training takes where nothing fails; --days makes real ones of them.
       With a plan, as for `ndparallel plan`, and its job, step, days and size of a checkpoint are the plan's.
Limit  The default rate is that of Llama 3's 16,384 GPUs (arXiv 2407.21783, table 5: 419 unexpected
       interruptions in 54 days). Checkpoint and restart times are of your system: the defaults are
       assumptions.

  ndparallel goodput --gpus 16384
  ndparallel goodput --gpus 1024 --checkpoint 2min --restart 20min --days 30
  ndparallel goodput --model llama-3-70b --gpus 64 --global-batch 64 \\
      --plan DP64,zero3,mbs1,full --tokens 1e12 --checkpoint-bandwidth 50GB/s
"""

import argparse
import math
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from ndparallel.base.errors import UserError
from ndparallel.base.quantities import parse_quantity
from ndparallel.base.words import option_of, three_digits
from ndparallel.launch_flags.options import warn_of_memory
from ndparallel.planner import goodput
from ndparallel.planner.goodput import DAY, HOUR, LLAMA_3_FAILURES_PER_GPU_HOUR, Duration, FailureModel
from ndparallel.planner.option_groups import add_job_options, add_plan_options
from ndparallel.planner.options import JOB_DEFAULTS, job_and_plan, plan_options_given, with_defaults
from ndparallel.planner.prediction import predict
from ndparallel.planner.state_options import add_state_options
from ndparallel.results.printing import plain_console, print_json, print_paragraphs, prose
from ndparallel.results.tables import quiet_table

COLUMNS = ("by", "interval", "kept", "simulated", "checkpoint", "lost work", "restart")
LARGEST_CLUSTER = 10**9
EXAMPLE = '"30s" or "2min"'
DEFAULTS = {"days": 54.0, "checkpoint": f"{FailureModel(1).checkpoint_seconds:g}s"}
OF_A_PLAN = ("tokens", "checkpoint_bandwidth", *(name for name in JOB_DEFAULTS if name != "gpus"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_failure_options(parser)
    option = parser.add_argument_group("the training").add_argument
    option(
        "--step",
        metavar="TIME",
        help="time of a step: checkpoints come after whole steps (default: at any time)",
    )
    option("--days", type=float, metavar="N", help="days of training, if nothing failed (default 54)")
    option("--seed", type=int, default=0, metavar="N", help="the simulation's seed (default 0)")
    option("--json", action="store_true", help="print JSON and nothing else")
    add_planned_training(parser)


def add_failure_options(parser: argparse.ArgumentParser) -> None:
    option, usual = parser.add_argument_group("failures and checkpoints").add_argument, FailureModel(1)
    option(
        "--failure-rate",
        type=float,
        default=LLAMA_3_FAILURES_PER_GPU_HOUR,
        metavar="RATE",
        help=f"failures per GPU-hour (default {LLAMA_3_FAILURES_PER_GPU_HOUR:.2e}, Llama 3's)",
    )
    option(
        "--checkpoint",
        metavar="TIME",
        help=f"how long training stops for a checkpoint (default {usual.checkpoint_seconds:g}s)",
    )
    option(
        "--restart",
        default=f"{usual.restart_seconds / 60:g}min",
        metavar="TIME",
        help="time from a failure until training goes on (default 10min)",
    )
    option("--interval", metavar="TIME", help="time between checkpoints: show this one, too")


def add_planned_training(parser: argparse.ArgumentParser) -> None:
    plan = parser.add_argument_group("a plan, given with its job: its step, days and checkpoints are meant")
    plan.add_argument("--tokens", type=float, metavar="N", help="tokens to train on, instead of --days")
    plan.add_argument(
        "--checkpoint-bandwidth",
        metavar="RATE",
        help="storage's bandwidth, instead of --checkpoint: as 50GB/s",
    )
    add_job_options(parser, needed="--gpus N")
    add_state_options(parser)
    add_plan_options(parser)


def run(arguments: argparse.Namespace) -> int:
    is_assumed = arguments.days is None and arguments.tokens is None
    arguments = completed(arguments)
    cluster = cluster_from(arguments)
    step_seconds = time_from(arguments, "step", "it is the time of one training step")
    if not 0 < arguments.days < math.inf:
        raise UserError(f"--days {arguments.days:g} of training cannot be; give a number above 0.")
    rows = [
        row(cluster, name, interval, arguments.seed)
        for name, interval in intervals(cluster, arguments, step_seconds).items()
    ]
    best = max(rows, key=lambda row: row["simulated_goodput"])
    lasts = goodput.duration(cluster, best["interval_seconds"], arguments.days, arguments.seed)
    tolerable = goodput.tolerable_intervals(cluster, step_seconds)
    if arguments.json:
        print_json(document(cluster, rows, tolerable, lasts, arguments.seed))
    else:
        show(cluster, rows, [*sentences(best, tolerable, lasts)], assumption() if is_assumed else "")
    return 0


# ------------------------------------------------------------------------------------------ what is asked for


def completed(arguments: argparse.Namespace) -> argparse.Namespace:
    """What follows from the plan where it is not given itself, and else the defaults. Raises UserError for
    what needs a plan that is not there."""
    if not hasattr(arguments, "gpus"):
        raise UserError("--gpus is needed: all of them stop when one fails.")
    planned = plan_options_given(arguments)
    follows = of_plan(arguments) if planned else {}
    given = {name: value for name, value in vars(arguments).items() if value is not None}
    if not planned and (alone := [name for name in OF_A_PLAN if name in given]):
        raise UserError(f"{option_of(alone[0])} is of a plan: give the plan too, as --tp 8 or --plan.")
    if twice := [name for name in follows if name in given]:
        raise UserError(
            f"{option_of(twice[0])} is given, and follows from the plan too: leave one of the two out."
        )
    return argparse.Namespace(**vars(arguments) | DEFAULTS | follows | given)


def of_plan(arguments: argparse.Namespace) -> dict[str, Any]:
    """The plan's step, the days that its tokens take, and the time of a checkpoint. A plan that does not fit
    says so beside it."""
    found = predict(*job_and_plan(with_defaults(arguments)))
    warn_of_memory(found)
    follows: dict[str, Any] = {"step": f"{found.seconds:.9g}s"}
    if (tokens := arguments.tokens) is not None:
        if not 0 < tokens < math.inf:
            raise UserError(f"--tokens {tokens:g} cannot be trained on; give a number above 0.")
        follows["days"] = found.days(tokens)
    if arguments.checkpoint_bandwidth is not None:
        rate = parse_quantity(
            arguments.checkpoint_bandwidth, "bytes per second", "--checkpoint-bandwidth", '"50GB/s"'
        )
        if not rate:
            raise UserError("--checkpoint-bandwidth must be above 0: no checkpoint would ever end.")
        follows["checkpoint"] = f"{found.checkpoint_bytes / rate:.9g}s"
    return follows


def cluster_from(arguments: argparse.Namespace) -> FailureModel:
    """The cluster that the options describe. Raises UserError for what no cluster can be."""
    if not 1 <= arguments.gpus <= LARGEST_CLUSTER:
        raise UserError(f"--gpus {arguments.gpus} is no cluster; choose 1 to {LARGEST_CLUSTER:,}.")
    if not 0 < arguments.failure_rate < math.inf:
        raise UserError(
            f"--failure-rate {arguments.failure_rate:g} must be a finite number above 0: failures per "
            f"GPU-hour, as {2e-5:.0e}."
        )
    if arguments.seed < 0:
        raise UserError(f"--seed is {arguments.seed}; it must be 0 or more.")
    checkpoint = time_from(arguments, "checkpoint", "a checkpoint that takes no time needs no interval")
    return FailureModel(arguments.gpus, arguments.failure_rate, checkpoint, time_from(arguments, "restart"))


def time_from(arguments: argparse.Namespace, name: str, why_not_zero: str = "") -> float:
    """Seconds; 0 where the option is not given. Raises UserError for what is no time, and for 0 where there
    is a reason."""
    text = getattr(arguments, name)
    seconds = 0.0 if text is None else parse_quantity(text, "seconds", f"--{name}", EXAMPLE)
    if text is not None and why_not_zero and not seconds:
        raise UserError(f"--{name} = {text!r} must be above 0, as {EXAMPLE}: {why_not_zero}.")
    return seconds


def intervals(cluster: FailureModel, arguments: argparse.Namespace, step_seconds: float) -> dict[str, float]:
    """Seconds between checkpoints, by who says so."""
    found = {
        "Young": goodput.young_interval(cluster),
        "Daly": goodput.daly_interval(cluster),
        "simulation": goodput.best_interval(cluster, arguments.seed, step_seconds),
    }
    if arguments.interval is not None:
        found["you"] = time_from(arguments, "interval", "it is the time between two checkpoints")
    return {name: goodput.whole_steps(interval, step_seconds) for name, interval in found.items()}


def row(cluster: FailureModel, name: str, interval: float, seed: int) -> dict[str, Any]:
    run = goodput.long_run(cluster, interval, seed)
    return {
        "by": name,
        "interval_seconds": interval,
        "expected_goodput": goodput.expected_goodput(cluster, interval),
        "simulated_goodput": run.goodput,
        "checkpoint_share": run.checkpoints / run.elapsed,
        "lost_share": run.lost / run.elapsed,
        "restart_share": run.restarts / run.elapsed,
    }


# ------------------------------------------------------------------------------------------- what is answered


def document(
    cluster: FailureModel,
    rows: list[dict[str, Any]],
    tolerable: tuple[float, float],
    lasts: Duration,
    seed: int,
) -> dict[str, Any]:
    head = asdict(cluster) | {"mtbf_seconds": cluster.mtbf_seconds, "seed": seed}
    return head | {
        "intervals": rows,
        "tolerable_interval_seconds": tolerable,
        "training": asdict(lasts),
    }


def assumption() -> str:
    days = DEFAULTS["days"]
    return f" {days:g} days of training are assumed: --days, or --tokens of a plan, says how many."


def show(cluster: FailureModel, rows: list[dict[str, Any]], said: list[str], assumed: str = "") -> None:
    (console, width), title = plain_console(), "Goodput"
    several, rate = cluster.gpus > 1, three_digits(cluster.failures_per_gpu_hour)
    head = (
        f"{title}  {cluster.gpus:,} GPU{'s, each' if several else ','} failing "
        f"{rate} times an hour: {'one does' if several else 'it does so'} "
        f"every {in_words(cluster.mtbf_seconds)}. A checkpoint stops all for "
        f"{in_words(cluster.checkpoint_seconds)}, a failure for "
        f"{in_words(cluster.restart_seconds)}.{assumed}"
    )
    console.print(prose(head, width, bold=title), end="\n\n")
    console.print(quiet_table(COLUMNS, [cells(row) for row in rows], width))
    console.print()
    print_paragraphs(console, said, width)


def cells(row: dict[str, Any]) -> list[str]:
    shares = ("expected_goodput", "simulated_goodput", "checkpoint_share", "lost_share", "restart_share")
    return [row["by"], in_words(row["interval_seconds"]), *(f"{row[share]:.1%}" for share in shares)]


def sentences(best: dict[str, Any], tolerable: tuple[float, float], lasts: Duration) -> Iterator[str]:
    """What follows for the training, with the interval that keeps most in the simulation."""
    training = f"training of {three_digits(lasts.work_days)} day{'s' * (lasts.work_days != 1)}"
    if lasts.days is None:
        yield f"{training.capitalize()} would hardly ever end: less than a thousandth of the time is kept."
        return
    shortest, longest = map(in_words, tolerable)
    some = f"Any interval from {shortest} to {longest}" if shortest != longest else f"Only {shortest}"
    yield f"{some} keeps at least 99% of what the best interval does."
    yield (
        f"With a checkpoint every {in_words(best['interval_seconds'])} ({best['by']}), {training} takes "
        f"{in_days(lasts.days)} and meets {failure_words(lasts)}."
    )


def failure_words(lasts: Duration) -> str:
    """How many failures a training meets, and how far its simulated runs lie apart."""
    if not (failures := lasts.failures or 0.0):
        return f"no failure in any of {goodput.RUNS} simulated runs"
    many = f"{failures:,.0f}" if failures >= 10 else f"{failures:{'.1f' if failures >= 1 else '.2g'}}"
    if lasts.shortest_days is None:
        return f"{many} failures, by Daly's formula: too many to simulate"
    return (
        f"{many} failures on average; in 9 of 10 simulated runs {in_days(lasts.shortest_days)} to "
        f"{in_days(lasts.longest_days)} days"
    )


def in_days(days: float | None) -> str:
    """Write days to a tenth, and less than one with three digits."""
    days = days or 0.0
    return f"{days:,.1f}" if days >= 1 else three_digits(days)


def in_words(seconds: float) -> str:
    """Write a time with three digits, in the largest unit of which it is at least one."""
    for unit, size in (("days", DAY), ("h", HOUR), ("min", 60.0)):
        if seconds >= size:
            return f"{three_digits(seconds / size)} {unit}"
    return f"{seconds:.3g} s"
