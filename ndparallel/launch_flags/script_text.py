"""What launch scripts have in common: the words that they open with, and how a program is wrapped.

Idea   DeepSpeed and Accelerate wrap a program that has the model. Their scripts write a file of settings, and
       add to the program's arguments those that have to say the same.
"""

from collections.abc import Iterable, Iterator

from ndparallel.base.quoting import shell_comment
from ndparallel.base.words import count
from ndparallel.launch_flags.frozen import release
from ndparallel.planner.job import Plan, TrainingJob


def opening(job: TrainingJob, plan: Plan, framework: str, names: str = "Keys") -> Iterator[str]:
    """What is launched, and whose `names` the script has."""
    gpus, number = count(int(plan.gpus), "GPU"), count(int(plan.microbatches(job)), "microbatch", "es")
    yield f"{job.shape.name} on {gpus} ({job.hardware.name}), as planned by ndparallel."
    yield f"Derived: data-parallel size {plan.dp}, {number} in a step. {names} of {release(framework)}."


def note_on_imbalance(job: TrainingJob, end: str = ".") -> Iterator[str]:
    """How uneven a router's load is planned for."""
    if job.routing_imbalance > 1:
        yield f"Planned for a busiest rank with {job.routing_imbalance:g} times the mean's rows{end}"


def programs_part(job: TrainingJob, by_transformers: bool) -> Iterator[str]:
    """What the program that is wrapped decides."""
    yield (
        "This script's arguments are the program that trains and its own: the model, sequences of "
        f"{job.sequence} tokens, data, learning rate, checkpoints."
    )
    if by_transformers:
        yield "It takes transformers' TrainingArguments, as a program does that uses its Trainer or TRL's."


def wrapping_script(
    remarks: Iterable[str],
    file: str,
    settings: Iterable[str],
    command: Iterable[str],
    arguments: Iterable[tuple[str, str]],
) -> str:
    """A script that writes a file of settings, and starts a program by a command, with arguments added."""
    options = (f"--{name} {value}" for name, value in arguments)
    return "\n".join(
        [
            "#!/bin/bash",
            *map(shell_comment, remarks),
            ': "${1:?name the program that trains, as in: bash launch.sh train.py}"',
            f"cat > {file} <<'END'",
            *settings,
            "END",
            " \\\n  ".join([*command, *options]),
            "",
        ]
    )
