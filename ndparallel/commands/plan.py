"""What a training step of a large model costs: how long, what bounds it, whether it fits, and how sure that is.

Idea   A layer's operations are priced on the hardware, layers make stages, the schedule's own actions are timed, and gradients travel
       beside them: the model of the lessons, at any size (tests hold the two together).
Limit  docs/planner.md says what is assumed, and docs/validation.md how far measured runs are from it.

  ndparallel plan --model llama-3-70b --hardware h100 --gpus 512 --tp 8 --pp 4 --global-batch 512 --sequence 8192 --zero 1
  ndparallel plan --model config.json --gpus 64 --zero 3 --global-batch 256 --software torchtitan
"""

import argparse
import json
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from gpu import si
from ndparallel.errors import UserError
from ndparallel.planner.answer import Answer, answer
from ndparallel.planner.flops import DEFINITIONS
from ndparallel.planner.memory import KINDS
from ndparallel.planner.options import add_job_options, add_plan_options
from ndparallel.planner.picture import some, timeline_of
from ndparallel.planner.plan import Plan
from ndparallel.report import quiet_table
from ndparallel.show import WIDTH, prose
from ndparallel.timeline import Timelines
from ndparallel.words import count

NEGLIGIBLE = 0.0005  # shares of the step that the table leaves out
WORDS = {"compute": "compute", "bubble": "bubble", "optimizer": "optimizer"} | {
    group: f"exposed {group}" for group in ("tp", "cp", "ep", "dp", "pp")
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_job_options(parser)
    add_plan_options(parser)
    output = parser.add_argument_group("the answer")
    output.add_argument("--tokens", type=float, default=1e12, metavar="N", help="to train on: how many days? (default 1e12)")
    output.add_argument("--timeline", choices=("auto", "none"), default="auto", help="the picture of a step (default auto)")
    flags = parser.add_argument_group("launch flags")
    flags.add_argument(
        "--emit", choices=("megatron", "torchtitan"), help="print this framework's launch script or recipe, and nothing else"
    )
    flags.add_argument("--from-megatron", metavar="FILE", help="the job and the plan of a launch script of Megatron-LM, instead of options")
    output.add_argument("--json", action="store_true", help="print JSON and nothing else")


def run(arguments: argparse.Namespace) -> int:
    if not 0 < arguments.tokens < float("inf"):
        raise UserError(f"--tokens {arguments.tokens:g} cannot be trained on; give a number above 0.")
    from ndparallel.launch_flags.options import described, launch  # whose tables cost some milliseconds

    asked = described(arguments)
    found = answer(asked.job, asked.plan)
    if arguments.json:
        told = {"days": found.days(arguments.tokens), "tokens": arguments.tokens, "notes": asked.notes}
        print(json.dumps(found.as_dict() | told | launch(arguments.emit, found), indent=2, allow_nan=False))
        return 0
    if arguments.emit:
        print(launch(arguments.emit, found)["launch"], end="")
        return 0
    console = Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False)
    show(console, found, arguments, asked.notes)
    return 0


def show(console: Console, found: Answer, arguments: argparse.Namespace, notes: Sequence[str] = ()) -> None:
    width = min(console.width, WIDTH)
    title = found.job.shape.name
    console.print(prose(f"{title}  {headline(found)}", width, bold=title), end="\n\n")
    for table in (times(found, width), memory(found, width)):
        console.print(table)
        console.print()
    for sentence in [*sentences(found, arguments.tokens), *notes]:
        console.print(prose(sentence, width))
    if arguments.timeline != "none":
        console.print()
        console.print(Timelines([timeline_of(found.job, found.plan)]))


def headline(found: Answer) -> str:
    """The job and the plan, what was derived included."""
    job, plan, microbatches = found.job, found.plan, int(found.plan.microbatches(found.job))
    billions, gpus = job.shape.parameters().total / 1e9, count(int(plan.gpus), "GPU")
    parts = f"{microbatches} microbatch{'es' * (microbatches != 1)} of {plan.micro_batch}"
    return (
        f"{billions:.4g} billion parameters on {gpus} ({job.hardware.name}), {job.dtype}, {job.stack.name}. {', '.join(layout(plan))}. "
        f"Batch {job.global_batch} x {job.sequence}: {parts} for each of {count(plan.dp, 'data-parallel rank')}."
    )


def layout(plan: Plan) -> list[str]:
    """The plan in words, without what it does not use."""
    degrees = " x ".join(f"{name.upper()}{value}" for name in ("tp", "cp", "pp", "dp") if (value := getattr(plan, name)) > 1)
    words = [
        degrees or "one GPU",
        f"EP{plan.ep}" * (plan.ep > 1),
        ("", "ZeRO-1", "ZeRO-2", "FSDP")[plan.zero],
        "SP" * plan.sequence_parallel,
    ]
    words += [plan.schedule + f" with {plan.chunks} chunks" * (plan.chunks > 1)] if plan.pp > 1 else []
    words += [f"{plan.recompute} recomputation"] if plan.recompute != "none" else []
    return [word for word in words if word]


def times(found: Answer, width: int) -> Table:
    parts = sorted(found.step.breakdown.items(), key=lambda part: -part[1])
    rows = [(WORDS[kind], si(float(part), "s"), f"{part / found.seconds:.1%}") for kind, part in parts if part > NEGLIGIBLE * found.seconds]
    return quiet_table(("where the time goes", "seconds", "share"), [("step", si(found.seconds, "s"), ""), *rows], width)


def memory(found: Answer, width: int) -> Table:
    ranks = some(len(found.memory))
    rows = [[f"{rank}", *(si(float(part), "B") for part in (found.memory[rank].total, *held(found, rank)))] for rank in ranks]
    return quiet_table(("pipeline rank", "memory", *KINDS), rows, width)


def held(found: Answer, rank: int) -> list[float]:
    return [getattr(found.memory[rank], kind) for kind in KINDS]


def sentences(found: Answer, tokens: float) -> list[str]:
    """What the tables do not say."""
    room, has = found.missing_bytes, si(found.job.hardware.memory_bytes, "B")
    fits = (
        f"It does not fit: the fullest GPU has {has} and needs {si(room, 'B')} more."
        if room > 0
        else f"It fits: {si(-room, 'B')} of {has} are left."
    )
    bound = max(found.step.breakdown, key=lambda kind: found.step.breakdown[kind] if kind != "compute" else 0.0)
    lost = found.step.breakdown[bound] / found.seconds
    return [
        f"A step takes {si(found.seconds, 's')} {found.error_bar.sentence}",
        f"{found.tokens_per_second_per_gpu:,.0f} tokens/s and {found.flops_per_second_per_gpu / 1e12:.4g} TFLOP/s per GPU; "
        f"{tokens:.3g} tokens take {found.days(tokens):.3g} days.",
        f"MFU {found.mfu:.1%}: {DEFINITIONS['mfu']}. HFU {found.hfu:.1%}: {DEFINITIONS['hfu']}.",
        f"Beside compute, {WORDS[bound]} takes most: {lost:.1%} of the step. {fits}",
    ]
