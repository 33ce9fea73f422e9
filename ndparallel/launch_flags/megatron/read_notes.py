"""What is said about a launch script that was read: what was assumed, not modelled, and passed over.

Idea   Every flag of a command line is used, assumed, not modelled or passed over, and each of these is a
       sentence, so that nothing is left out in silence.
"""

from collections.abc import Iterator

from ndparallel.base.quoting import brief
from ndparallel.base.words import listed
from ndparallel.launch_flags import fields
from ndparallel.launch_flags.frozen import note_on_defaults, release
from ndparallel.launch_flags.megatron.beyond import ASSUMED_WORDS, BEYOND
from ndparallel.launch_flags.megatron.forks import NOT_MODELLED
from ndparallel.launch_flags.megatron.given import GivenFlags, unknown_sentence
from ndparallel.launch_flags.megatron.read_plan import letters_of
from ndparallel.launch_flags.megatron.rules import precision_aware
from ndparallel.launch_flags.megatron.write import group_of
from ndparallel.launch_flags.shell.example import Example
from ndparallel.launch_flags.shell.files import ENDINGS
from ndparallel.launch_flags.shell.script import Script
from ndparallel.planner.job import Plan, TrainingJob

IDLE = {  # what changes no kernel of some jobs
    "--no-masked-softmax-fusion": lambda job: job.stack.attention != "unfused",
    "--no-bias-gelu-fusion": lambda job: job.shape.activation != "gelu",
    "--no-bias-swiglu-fusion": lambda job: job.shape.activation != "swiglu",
}


def example_notes(example: Example) -> Iterator[str]:
    if example.arguments:
        words = " ".join(example.arguments.values())
        yield (
            f"Its arguments are those of the example in its line {example.line}: {brief(words)}. "
            "--script-arguments gives others."
        )


def notes(flags: GivenFlags, script: Script, job: TrainingJob, plan: Plan) -> Iterator[str]:
    """Sentences about what was assumed, what is not modelled, and what was passed over."""
    yield from notes_on_names(flags)
    yield from notes_on_script(script)
    for flag in filter(NOT_MODELLED.__contains__, flags.unknown):
        yield f"{flag} is not modelled: {NOT_MODELLED[flag]}."
    yield from beyond(flags, job, plan)
    yield from note_on_defaults(release("megatron"), flags.defaults)
    if passed := [flag for flag in flags.unused if flag not in BEYOND and flag not in ASSUMED_WORDS]:
        yield f"Passed over, for no plan depends on them: {', '.join(passed)}."


def notes_on_names(flags: GivenFlags) -> Iterator[str]:
    """Sentences about flags that are given twice, by other names, or that Megatron-Core does not have."""
    if flags.repeated:
        yield f"Given twice, and the last counts: {', '.join(flags.repeated)}."
    if flags.translated:
        yield f"Of a fork or an older release, read as Megatron-Core's: {', '.join(flags.translated)}."
    if lacking := [flag for flag in flags.unknown if flag not in NOT_MODELLED]:
        yield unknown_sentence(lacking)


def notes_on_script(script: Script) -> Iterator[str]:
    """Sentences about files that it includes, and variables that it does not set."""
    if read := [str(path) for path in script.included.values() if path]:
        yield f"Included and read: {listed(list(map(brief, read[:4])))}."
    if said := not_read(script).strip():
        yield said
    if script.never_set:
        yield f"Tested and never set, so empty: {', '.join([*script.never_set][:8])} (--set gives a value)."
    if script.skipped:
        names = listed([*script.skipped][:8])
        yield f"Set in loops or behind conditions that the file does not decide, so not known: {names}."


def beyond(flags: GivenFlags, job: TrainingJob, plan: Plan) -> Iterator[str]:
    """What the command line asks for and the planner does not model."""
    for flag, instead in BEYOND.items():
        if flag in flags.flags and not is_modelled(flag, job):
            yield f"{flag} is not modelled: {instead}."
    for flag, (words, instead) in ASSUMED_WORDS.items():
        if " ".join(flags.flags.get(flag, words[:1])) not in words and not is_modelled(flag, job):
            yield f"{flag} {' '.join(flags.flags[flag])[:40]} is not modelled: {instead}."
    yield from beyond_groups(flags, job, plan)
    yield from beyond_layout(flags)
    if flags.has(fields.REPLICAS) and plan.zero in (1, 2) and flags.number(fields.REPLICAS) > 1:
        replicas = f"{fields.REPLICAS} {flags.number(fields.REPLICAS)}"
        yield f"{replicas} is not modelled: with ZeRO-{plan.zero} all dp ranks share one optimizer."
    yield from beyond_recompute(flags, plan)


def beyond_recompute(flags: GivenFlags, plan: Plan) -> Iterator[str]:
    """Say which layers or modules are not recomputed here as the flags ask for."""
    if plan.recompute == "full" and not plan.recompute_layers and flags.number("--recompute-num-layers") > 1:
        yield "--recompute-method uniform is of one layer at a time here, whatever --recompute-num-layers."
    if others := set((flags.text(fields.RECOMPUTED) or "").split()) - {*fields.MODULES}:
        yield (
            f"--recompute-modules {' '.join(sorted(others))[:60]} is not modelled: it can recompute "
            f"{', '.join(fields.MODULES)}."
        )


def beyond_groups(flags: GivenFlags, job: TrainingJob, plan: Plan) -> Iterator[str]:
    """Say which groups of microbatches are taken in place of others that are not modelled."""
    there = flags.has(fields.GROUP)
    stated, group = flags.number_or(fields.GROUP, plan.pp), group_of(job, plan)
    if group not in (0, stated):
        given = f"{stated} is not modelled" if there else f"is {stated} where it is not given"
        number = plan.microbatches(job)
        yield f"{fields.GROUP} {given}: here {number} microbatches go round in groups of {group}."


def beyond_layout(flags: GivenFlags) -> Iterator[str]:
    """Say where a layout has prediction layers that are on the last stage here."""
    stages = letters_of(text) if (text := flags.text(fields.LAYOUT)) else []
    if elsewhere := [number for number, letters in enumerate(stages[:-1], 1) if "m" in letters]:
        yield (
            f"{fields.LAYOUT} has prediction layers (m) on stage {elsewhere[0]} of {len(stages)}, which is "
            "not modelled: here they are on the last one."
        )


def is_modelled(flag: str, job: TrainingJob) -> bool:
    """Whether this job has what the flag asks for after all: CUDA graphs hold some sets of modules."""
    if flag in IDLE:
        return IDLE[flag](job)
    if flag in (fields.AWARE, fields.ON_HOST):
        return precision_aware(job) and (flag == fields.AWARE or bool(job.offload))
    if flag == fields.EXPERT_TP:
        return job.stack.expert_tp or not job.shape.experts
    if flag.startswith("--exp-avg"):
        return job.moments == "bf16"
    return "cuda-graph" in flag and bool(job.stack.graphs)


def not_read(script: Script) -> str:
    """A sentence about the scripts that a script includes, and that do not lie beside it."""
    names = [
        brief(name.rpartition("/")[2])
        for name, path in script.included.items()
        if name.endswith(ENDINGS) and not path
    ]
    if not names:
        return ""
    return f" Included and not found: {listed(names[:4])}; put them beside the script, or their lines in it."
