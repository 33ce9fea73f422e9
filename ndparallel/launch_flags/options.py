"""The options of `ndparallel plan` about launch scripts: `--emit NAME`, and `--from-NAME` where they can be
read."""

import argparse
import re
import shlex
import sys
from dataclasses import replace
from pathlib import Path

from gpu import si
from ndparallel.base.errors import UserError
from ndparallel.base.files import read_text
from ndparallel.base.quoting import brief
from ndparallel.base.words import option_of, option_words
from ndparallel.hardware.accelerator import find_hardware
from ndparallel.launch_flags.frameworks import FRAMEWORKS, Framework, emit
from ndparallel.launch_flags.reading import Beside, Reading
from ndparallel.launch_flags.shell.example import by_number
from ndparallel.launch_flags.shell.words import LARGEST
from ndparallel.planner.describe import room_words
from ndparallel.planner.job import TrainingJob
from ndparallel.planner.options import (
    JOB_DEFAULTS,
    PLAN_DEFAULTS,
    job_from,
    plan_from,
    routing_from,
    stack_from,
    travelling,
)
from ndparallel.planner.prediction import Prediction
from ndparallel.planner.state_options import adapters_from, on_model

BESIDE_A_FILE = ("hardware", "gpus", "vocab", "routing_imbalance")  # what may be given beside a script


def add_launch_options(parser: argparse.ArgumentParser) -> None:
    """Add --emit, and --from-NAME for each framework whose launch scripts can be read."""
    group = parser.add_argument_group("launch flags")
    group.add_argument(
        "--framework",
        choices=FRAMEWORKS,
        help="plans that it can launch, on its software (default: by --software)",
    )
    group.add_argument(
        "--emit",
        choices=FRAMEWORKS,
        help="print this framework's launch script or recipe, and nothing else",
    )
    for name in (framework.name for framework in FRAMEWORKS.values() if framework.read):
        group.add_argument(
            f"--from-{name}",
            metavar="FILE",
            help=f"the job and the plan of a launch script of {name}, instead of options",
        )
    group.add_argument(
        "--set",
        dest="variables",
        metavar="NAME=VALUE",
        action="append",
        help="a variable of the launch script, whatever it sets itself; 1 is its first argument",
    )
    group.add_argument(
        "--script-arguments", metavar="WORDS", help="the launch script's own arguments, quoted"
    )


def job_words(arguments: argparse.Namespace) -> str:
    """The options of the job that were given, as one writes them behind a command."""
    names = [*JOB_DEFAULTS, "framework"]
    given = {name: value for name in names if (value := getattr(arguments, name, None)) is not None}
    return "".join(f" {option_words(name, value)}" for name, value in given.items())


def script_given(arguments: argparse.Namespace) -> tuple[Framework, Path] | None:
    """The launch script that is given instead of options, and whose it is. Raises UserError for its
    variables without it."""
    scripts = (
        (framework, Path(path))
        for framework in FRAMEWORKS.values()
        if (path := getattr(arguments, f"from_{framework.name}", None)) is not None
    )
    script = next(scripts, None)
    if not script and (arguments.variables or arguments.script_arguments):
        options = ", ".join(f"--from-{name}" for name, framework in FRAMEWORKS.items() if framework.read)
        raise UserError(f"--set and --script-arguments are about a launch script: name it with {options}.")
    return script


def described(arguments: argparse.Namespace) -> Reading:
    """The job and the plan that the options describe, or the launch script that they name. Raises UserError
    for both at once."""
    if not (script := script_given(arguments)):
        return from_options(arguments)
    found = from_file(arguments, *script)
    return replace(found, job=priced(arguments, found.job))


def from_options(arguments: argparse.Namespace) -> Reading:
    """The plan is made for the software that is priced, whose defaults it takes."""
    job = priced(arguments, job_from(arguments))
    return Reading(job, plan_from(arguments, job), job.shape.notes)


def priced(arguments: argparse.Namespace, job: TrainingJob) -> TrainingJob:
    """The job on the software of the framework that --emit or --framework names, with the switches that are
    given; unless --software names another."""
    name = arguments.emit or arguments.framework
    if arguments.framework and arguments.software not in (None, *FRAMEWORKS[name].software):
        own = " or ".join(FRAMEWORKS[name].software)
        raise UserError(
            f"--framework {name} launches plans on its own software, {own}, and not on {arguments.software}: "
            "leave one of the two out."
        )
    if arguments.software or not name:
        return job
    found = FRAMEWORKS[name].priced(job)
    if script_given(arguments) or found.stack.name == job.stack.name:
        return replace(found, stack=travelling(found.stack, arguments))
    named = argparse.Namespace(**vars(arguments) | {"software": found.stack.name})
    return replace(found, stack=stack_from(named, job.hardware, job.shape))


def from_file(arguments: argparse.Namespace, framework: Framework, path: Path) -> Reading:
    assert framework.read
    refuse_other_options(arguments, framework, path)
    hardware, given = find_hardware(arguments.hardware), beside(arguments, framework, path)
    text = text_of(path)
    try:
        found = framework.read(text, hardware, given)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    on_model(given.adapters, found.job.shape)
    imbalance = routing_from(arguments, found.job.shape)["routing_imbalance"]
    return replace(found, job=replace(found.job, routing_imbalance=imbalance))


def beside(arguments: argparse.Namespace, framework: Framework, path: Path) -> Beside:
    """What is given beside a script; model and sequence where the framework leaves them to its program."""
    typed = {"model", "sequence"} & {*framework.asks} & arguments.typed
    return Beside(
        arguments.gpus,
        arguments.vocab,
        adapters=adapters_from(arguments),
        variables=variables_from(arguments),
        name=path.name,
        folder=path.resolve().parent,
        **{name: getattr(arguments, name) for name in typed},
    )


def variables_from(arguments: argparse.Namespace) -> dict[str, str]:
    """What is set from outside the script. Raises UserError for what is no NAME=VALUE."""
    given = numbered(arguments.script_arguments or "")
    for setting in arguments.variables or []:
        name, equals, value = setting.partition("=")
        if not equals or not re.fullmatch(r"\w+", name):
            raise UserError(f"--set {brief(setting)}: write NAME=VALUE, as in --set MODEL_SIZE=7B.")
        given[name] = value
    return given


def numbered(words: str) -> dict[str, str]:
    """A script's arguments by their numbers. Raises UserError for an open quotation mark."""
    try:
        return by_number(shlex.split(words))
    except ValueError:
        raise UserError(f"--script-arguments {brief(words)}: a quotation mark is never closed.") from None


def refuse_other_options(arguments: argparse.Namespace, framework: Framework, path: Path) -> None:
    """Raise UserError for a size or a degree beside a file that has its own."""
    allowed = {*BESIDE_A_FILE, *framework.asks}
    for name in JOB_DEFAULTS | PLAN_DEFAULTS:
        if name in arguments.typed and name not in allowed:
            raise UserError(
                f"{option_of(name)} is the business of {path} here: change it there, or leave "
                f"--from-{framework.name} out."
            )


def text_of(path: Path) -> str:
    """Read a file. Raises UserError for what is no readable text."""
    text = read_text(path, 4 * LARGEST)
    if "\0" in text or not text.strip():
        wrong = "it is empty" if not text.strip() else "it is no text: it has zero bytes"
        raise UserError(f"{path}: {wrong}.")
    return text


def launch_script(framework: str | None, found: Prediction) -> dict[str, str]:
    """The framework's launch script or recipe as "launch"; nothing where none is asked for. A plan that does
    not fit says so beside it."""
    if not framework:
        return {}
    text = emit(framework, found.job, found.plan)
    warn_of_memory(found)
    return {"launch": text}


def warn_of_memory(found: Prediction) -> None:
    """Say on standard error that a plan does not fit, or hardly."""
    if found.missing_bytes > 0:
        print(
            f"careful: the fullest GPU lacks {si(found.missing_bytes, 'B')} for this plan.", file=sys.stderr
        )
    if found.is_tight:
        print(f"careful: {room_words(found)}", file=sys.stderr)
