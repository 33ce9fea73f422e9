"""`--emit` and `--from-megatron` of `ndparallel plan`."""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from gpu import si
from ndparallel.base.errors import UserError
from ndparallel.hardware.accelerator import find_hardware
from ndparallel.launch_flags.megatron import emit_megatron
from ndparallel.launch_flags.read_megatron import Reading, read_megatron
from ndparallel.launch_flags.shell import LARGEST
from ndparallel.launch_flags.torchtitan import emit_torchtitan
from ndparallel.planner.options import add_job_options, add_plan_options, job_and_plan, routing_from
from ndparallel.planner.prediction import Answer
from ndparallel.planner.software import find_stack

EMITTERS = {"megatron": emit_megatron, "torchtitan": emit_torchtitan}
BESIDE_A_FILE = ("hardware", "gpus", "vocab", "routing_imbalance")  # what may be given beside --from-megatron


def described(arguments: argparse.Namespace) -> Reading:
    """The job and the plan that the options describe, or the command line that they name. Raises UserError
    for both at once."""
    found = from_file(arguments) if arguments.from_megatron else Reading(*job_and_plan(arguments), ())
    if arguments.emit == "torchtitan" and not arguments.software:
        stack = replace(find_stack("torchtitan"), cp_gathers=found.job.stack.cp_gathers)
        return replace(found, job=replace(found.job, stack=stack))
    return found


def from_file(arguments: argparse.Namespace) -> Reading:
    refuse_other_options(arguments)
    path = Path(arguments.from_megatron)
    hardware = find_hardware(arguments.hardware)
    try:
        found = read_megatron(text_of(path), hardware, gpus=arguments.gpus, vocab=arguments.vocab)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    imbalance = routing_from(arguments, found.job.shape)["routing_imbalance"]
    return replace(found, job=replace(found.job, routing_imbalance=imbalance))


def refuse_other_options(arguments: argparse.Namespace) -> None:
    """Raise UserError for a size or a degree beside a file that has its own."""
    parser = argparse.ArgumentParser()
    add_job_options(parser)
    add_plan_options(parser)
    for name, default in vars(parser.parse_args([])).items():
        if getattr(arguments, name) not in (None, default) and name not in BESIDE_A_FILE:
            option = name.replace("_", "-")
            raise UserError(
                f"--{option} is the business of {arguments.from_megatron} here: change it there, or leave "
                "--from-megatron out."
            )


def text_of(path: Path) -> str:
    """Raises UserError for what is no readable text."""
    if not path.exists():
        raise UserError("there is no such file.")
    if not path.is_file() and path.is_dir():
        raise UserError("this is a directory; name the script itself.")
    try:
        with path.open("rb") as file:
            text = file.read(4 * LARGEST + 1).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"byte {error.start} is not UTF-8 text: this is no launch script.") from None
    if "\0" in text or not text.strip():
        raise UserError("it is empty." if not text.strip() else "it is no text: it has zero bytes.")
    return text


def launch(framework: str | None, found: Answer) -> dict[str, str]:
    """The framework's launch script or recipe as "launch"; nothing where none is asked for. A plan that does
    not fit says so beside it."""
    if not framework:
        return {}
    text = EMITTERS[framework](found.job, found.plan)
    if found.missing_bytes > 0:
        print(
            f"careful: the fullest GPU lacks {si(found.missing_bytes, 'B')} for this plan.", file=sys.stderr
        )
    return {"launch": text}
