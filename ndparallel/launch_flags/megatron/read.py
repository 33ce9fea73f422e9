"""A command line of Megatron-Core as the model, the job and the plan that it trains.

Idea   The rows that write a launch line read one (../fields.py). A flag that is missing means what Megatron
       means without it, and this is said; so is a flag that changes time or memory in a way that the planner
       does not model, and one that Megatron does not have.
Limit  pretrain_gpt.py's models. The vocabulary is often a file's, and the number of GPUs the scheduler's:
       both can be given beside.

Glossary
    reading   the job, the plan, and remarks on how they were found
"""

import re
from dataclasses import replace

from gpu import Hardware
from ndparallel.base.errors import UserError
from ndparallel.base.words import listed
from ndparallel.launch_flags.frozen import megatron_flags, release
from ndparallel.launch_flags.launcher import launcher_and_program, world_size
from ndparallel.launch_flags.megatron.beyond import ANOTHER_MODEL, ANOTHER_PROGRAM, NO_TRAINING
from ndparallel.launch_flags.megatron.given import GivenFlags, given_flags
from ndparallel.launch_flags.megatron.read_job import job_from
from ndparallel.launch_flags.megatron.read_model import shape_from
from ndparallel.launch_flags.megatron.read_notes import example_notes, not_read, notes
from ndparallel.launch_flags.megatron.read_plan import plan_from
from ndparallel.launch_flags.megatron.yaml_flags import script_of
from ndparallel.launch_flags.reading import NOTHING, Beside, Reading
from ndparallel.launch_flags.shell.example import Example, example_of
from ndparallel.launch_flags.shell.reader import read_script
from ndparallel.launch_flags.shell.script import Script
from ndparallel.launch_flags.shell.slurm import scheduled
from ndparallel.planner.legality import check


def read_megatron(text: str, hardware: Hardware, beside: Beside = NOTHING) -> Reading:
    """Read a shell script, a bare command line, or YAML with MODEL_ARGS. Without arguments given the example
    counts that its comments give under the script's name. What it includes is looked for around its folder,
    too.

    Raises UserError, one sentence that begins with the line it is about, for what is no such command line,
    contradicts itself, or cannot be trained.
    """
    given = dict(beside.variables)
    example = Example() if any(map(str.isdecimal, given)) else example_of(text, beside.name)
    shell = script_of(text, given)
    script = read_script(shell, example.arguments | given, scheduled(shell, given), beside.folder)
    try:
        found = reading(script, hardware, beside.gpus, beside.vocab)
    except UserError as error:
        raise UserError(f"{line_of(str(error), text)}{error}{not_read(script)}") from None
    return replace(found, notes=(*example_notes(example), *found.notes))


def line_of(said: str, text: str) -> str:
    """Write "line 12: " for the last line that has the first flag of a sentence."""
    flag = re.search(r"--[a-z][\w-]*", said)
    pattern = re.compile(rf"{re.escape(flag[0])}(?![\w-])") if flag else None
    lines = text.splitlines()
    found = [number for number, line in enumerate(lines, 1) if pattern and pattern.search(line)]
    return f"line {found[-1]}: " if found and len(lines) > 1 else ""


def reading(script: Script, hardware: Hardware, gpus: int | None, vocab: int | None) -> Reading:
    launcher, words = command_of(script)
    flags = given_flags(words)
    refuse_no_training(launcher)
    refuse_another_model(launcher, flags)
    shape = shape_from(flags, vocab)
    plan = plan_from(flags, shape, world_size(launcher, script.variables) if gpus is None else gpus)
    job = job_from(flags, shape, hardware, plan)
    check(job, plan)
    refuse_unknown_branches(flags, script)
    return Reading(job, plan, tuple(notes(flags, script, job, plan)))


def refuse_no_training(launcher: list[str]) -> None:
    """Raise UserError for a program that generates text, or writes a checkpoint in another form."""
    if named := [word for word in launcher if NO_TRAINING.search(word)]:
        raise UserError(f"{named[0]} trains nothing, and a plan is of a training step.")


def refuse_another_model(launcher: list[str], flags: GivenFlags) -> None:
    """Raise UserError for a program, or a flag, that makes another model than pretrain_gpt.py's."""
    programs = [word for word in launcher if ANOTHER_PROGRAM.search(word)]
    if named := [*programs, *filter(flags.has, ANOTHER_MODEL)]:
        raise UserError(f"{named[0]} makes another model than the planner's layers: it cannot be priced.")


def refuse_unknown_branches(flags: GivenFlags, script: Script) -> None:
    """Raise UserError where a word of the command may be flags that decide the plan."""
    for word in flags.unknown:
        name = word.strip('"${}')
        decisive = (
            [flag for flag in script.skipped.get(name, []) if flag in flags.used] if "$" in word else []
        )
        if decisive:
            raise UserError(
                f"{word} may hold {listed(sorted(set(decisive)))}, behind a condition that the file does not "
                f"decide: give --set {name}='...', or what the condition asks for."
            )


def command_of(script: Script) -> tuple[list[str], list[str]]:
    """The launcher's words and the program's, of the command that has most of Megatron's flags; commands that
    are flags alone count as one.

    Raises UserError where none has any, or its parts differ.
    """
    bare = [word for words in script.commands if words[0].startswith("--") for word in words]
    best = max([bare, *script.commands], key=known_flags)
    if not known_flags(best):
        raise no_command_in(script)
    return launcher_and_program(best)


def no_command_in(script: Script) -> UserError:
    """Say what lacks: Megatron's flags, or the command that takes them."""
    if names := [
        name for name, words in script.variables.items() if known_flags(" ".join(words).split()) > 1
    ]:
        holds = "has" if len(names) == 1 else "have"
        return UserError(
            f"{listed(names[:8])} {holds} flags of Megatron-Core, and no command here takes them: put the "
            "lines of the script that launches the program behind these."
        )
    return UserError(
        f"there is no command line of {release('megatron')} in it: none of its words is a flag of "
        "pretrain_gpt.py."
    )


def known_flags(words: list[str]) -> int:
    return sum(word.partition("=")[0] in megatron_flags() for word in words)
