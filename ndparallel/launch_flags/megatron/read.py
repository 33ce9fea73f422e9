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
from ndparallel.launch_flags import fields
from ndparallel.launch_flags.frozen import megatron_flags, release
from ndparallel.launch_flags.launcher import launcher_and_program, world_size
from ndparallel.launch_flags.megatron.beyond import ANOTHER_MODEL, ANOTHER_PROGRAM, NO_TRAINING
from ndparallel.launch_flags.megatron.given import GivenFlags, given_flags
from ndparallel.launch_flags.megatron.read_model import shape_from
from ndparallel.launch_flags.megatron.read_notes import example_notes, not_read, notes
from ndparallel.launch_flags.megatron.read_plan import plan_from
from ndparallel.launch_flags.megatron.yaml_flags import script_of
from ndparallel.launch_flags.reading import NOTHING, Beside, Reading
from ndparallel.launch_flags.shell.example import Example, example_of
from ndparallel.launch_flags.shell.reader import read_script
from ndparallel.launch_flags.shell.script import Script
from ndparallel.launch_flags.shell.slurm import scheduled
from ndparallel.parallel.context import CP_COMM_TYPES
from ndparallel.planner.attention_kernels import fitting_kernel
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.launches import graphs_of
from ndparallel.planner.legality import check
from ndparallel.planner.models.shape import ModelShape
from ndparallel.planner.software import FP8_PARAM_GATHER, MEGATRON_CORE, NEMO
from ndparallel.planner.stack import Stack

BACKENDS = {"auto": "", "fused": "cudnn", "flash": "flash2", "unfused": "unfused", "local": "unfused"}


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


# ---------------------------------------------------------------------------------------------------- the job


def job_from(flags: GivenFlags, shape: ModelShape, hardware: Hardware, plan: Plan) -> TrainingJob:
    each_step = plan.dp * plan.micro_batch
    batch = flags.number(
        "--global-batch-size", each_step, f"{each_step} (one microbatch on each data-parallel rank)"
    )
    flags.one_of({"--bf16": "bf16", "--fp16": "fp16"}, "bf16")
    if not flags.has("--bf16") and not flags.has("--fp16"):
        flags.assume("--bf16", "float32, which is priced as bf16")
    capacity = flags.fraction(fields.CAPACITY) if flags.has(fields.CAPACITY) and shape.experts else None
    stack = stack_from(flags, shape, hardware, plan)
    return TrainingJob(
        shape,
        hardware,
        stack,
        flags.number("--seq-length"),
        batch,
        dtype=dtype_from(flags),
        capacity_factor=capacity_of(capacity),
        moments=moments_from(flags),
        offload=("optimizer",) if on_host(flags) else (),
    )


def dtype_from(flags: GivenFlags) -> str:
    """The type of the layers' matmuls; where a recipe is a class of the reader's own, Megatron's default."""
    recipes = {"fp8": fields.FP8_RECIPES, "fp4": fields.FP4_RECIPES}
    bits = flags.one_of({"--fp8-format": "fp8", "--fp4-format": "fp4"}, "bf16")
    if bits == "bf16":
        return bits
    usual = next(iter(recipes[bits]))
    recipe = flags.text(f"--{bits}-recipe") or usual
    return recipes[bits].get(recipe, recipes[bits][usual])


def moments_from(flags: GivenFlags) -> str:
    """What both moments are kept in, where that is one of the planner's; else float32."""
    first, second = (flags.text(flag) for flag in ("--exp-avg-dtype", "--exp-avg-sq-dtype"))
    return "bf16" if flags.has(fields.AWARE) and first == second == "bf16" else "fp32"


def on_host(flags: GivenFlags) -> bool:
    """Whether the whole optimizer is on the host, and not a fraction of it."""
    share = flags.fraction(fields.HOST_SHARE) if flags.has(fields.HOST_SHARE) else 1
    return flags.has(fields.ON_HOST) and share == 1


def capacity_of(factor: float | None) -> float | None:
    """Below 0 is none, as in Megatron. Raises UserError for what no expert can take."""
    if factor is None or factor < 0:
        return None
    if not 0 < factor < float("inf"):
        raise UserError(f"{fields.CAPACITY} {factor:g}: an expert takes something; give a number above 0.")
    return factor


def stack_from(flags: GivenFlags, shape: ModelShape, hardware: Hardware, plan: Plan) -> Stack:
    base = NEMO if flags.has(fields.PARTS_BESIDE) else MEGATRON_CORE
    reduces, gathers = flags.has(fields.GRADIENTS_BESIDE), flags.has(fields.WEIGHTS_BESIDE)
    cut = cuts_experts(flags, shape, plan)
    return replace(
        base,
        attention=attention_from(flags, shape, hardware),
        dropout=dropout_from(flags),
        vocabulary_multiple=vocabulary_multiple_from(flags, base),
        accumulates=not flags.has("--no-gradient-accumulation-fusion"),
        gradient_bytes=gradient_bytes_from(flags),
        scales_gradients=not flags.has("--ddp-average-in-collective"),
        cast_weights=cast_weights_from(flags, base),
        dp_overlap=reduces,
        gathers_first=gathers if plan.zero else reduces,
        prefetch=gathers if plan.zero == 3 else reduces,
        context_parallel=CP_COMM_TYPES.get(flags.text("--cp-comm-type") or "p2p", "ring"),
        pp_overlap=not flags.has(fields.MESSAGES_NOT_BESIDE),
        dispatcher=dispatcher_from(flags, plan, base, cut) if shape.experts else base.dispatcher,
        expert_tp=cut,
        hides_dispatch=hides_dispatch(flags) and plan.ep > 1,
        graphs=graphs_from(flags),
        fused_permutation=flags.has(fields.OF_MIXTURES["fused_permutation"]),
        fused_router=flags.has(fields.OF_MIXTURES["fused_router"]),
        fp32_router=flags.text(fields.ROUTER_TYPE) in ("fp32", "fp64"),
    )


def attention_from(flags: GivenFlags, shape: ModelShape, hardware: Hardware) -> str:
    """The kernel that is named, or the one that Transformer Engine takes of itself."""
    named = flags.word("--attention-backend", "auto", BACKENDS)
    if flags.has("--use-flash-attn") and not shape.sinks:  # which Transformer Engine takes others for
        return "flash2"
    return named or fitting_kernel(MEGATRON_CORE.attention, hardware, shape)


def vocabulary_multiple_from(flags: GivenFlags, base: Stack) -> int:
    """What a rank's part of the vocabulary is a multiple of; 1 where the whole was padded by hand."""
    if flags.has("--padded-vocab-size"):
        flags.heed(fields.MULTIPLE)
        return 1
    return max(1, flags.number_or(fields.MULTIPLE, base.vocabulary_multiple))


def gradient_bytes_from(flags: GivenFlags) -> int:
    """Bytes of a gradient as it is added up and reduced; Megatron-FSDP's own choice is the weights' type
    (_resolve_group_grad_dtype in megatron_fsdp/param_and_grad_buffer.py)."""
    of_others = 2 if flags.has("--grad-reduce-in-bf16") else 4
    if not flags.has("--use-megatron-fsdp"):
        return of_others
    if not flags.has(fields.FSDP_GRADIENTS):
        flags.assume(fields.FSDP_GRADIENTS, "auto, the weights' 16 bits")
    return flags.word(fields.FSDP_GRADIENTS, "auto", {"auto": 2, "fp16": 2, **fields.FSDP_GRADIENT_BYTES})


def cast_weights_from(flags: GivenFlags, base: Stack) -> tuple[str, ...]:
    """Types in which weights are kept alone; it matters in fp8 only."""
    alone = flags.has("--fp8-param-gather")
    flags.heed("--reuse-grad-buf-for-mxfp8-param-ag")
    if not flags.has("--fp8-format"):
        return base.cast_weights
    return FP8_PARAM_GATHER if alone else ()


def dropout_from(flags: GivenFlags) -> bool:
    """Megatron's own rate is 0.1."""
    flags.heed("--attention-dropout")
    if flags.has("--hidden-dropout"):
        return flags.fraction("--hidden-dropout") > 0
    flags.assume("--hidden-dropout", "0.1")
    return True


def dispatcher_from(flags: GivenFlags, plan: Plan, base: Stack, cut: bool) -> str:
    """The dispatcher: Megatron-Core's default is allgather, and DeepEP of the flexible ones. NCCL's own, of
    HybridEP's kernels (_NCCLEPManager), counts as that. Raises UserError for one that Megatron-Core stops
    with, as rows go to no other rank."""
    flags.heed("--moe-enable-deepep")  # an older word for what flex does anyway
    kind, backend = flags.text("--moe-token-dispatcher-type"), flags.text("--moe-flex-dispatcher-backend")
    if kind is None:
        flags.assume("--moe-token-dispatcher-type", "allgather")
    flexible = "hybridep" if backend == "ncclep" else backend or "deepep"
    named = flexible if kind == "flex" else kind or "allgather"
    found = named if named in fields.DISPATCHERS else "alltoall"
    if plan.keeps_rows(replace(base, dispatcher=found, expert_tp=cut)):
        raise UserError(
            f"--moe-token-dispatcher-type flex takes rows to other ranks' experts by {found}, and with ep 1 "
            "and whole experts there are none, so that Megatron-Core stops: take alltoall."
        )
    return found


def cuts_experts(flags: GivenFlags, shape: ModelShape, plan: Plan) -> bool:
    """Whether tp cuts experts, as it does where nobody says otherwise (megatron/core/parallel_state.py)."""
    return bool(shape.experts) and plan.tp > 1 and flags.number(fields.EXPERT_TP, plan.tp) == plan.tp


def hides_dispatch(flags: GivenFlags) -> bool:
    beside, delayed = fields.ROWS_BESIDE.split()
    flags.heed(delayed)
    return flags.has(beside)


def graphs_from(flags: GivenFlags) -> str:
    """What CUDA graphs hold; "" also for what the planner does not know."""
    older = {"--enable-cuda-graph": "local", "--external-cuda-graph": "transformer_engine"}
    kind = flags.one_of(older, flags.text("--cuda-graph-impl") or "none")
    flags.heed(fields.PADDED, "--no-check-for-nan-in-loss-and-grad")
    modules = {*(flags.text("--cuda-graph-modules") or flags.text("--cuda-graph-scope") or "").split()}
    if kind == "none" or kind == "full_iteration" or "full_iteration" in modules:
        return "" if kind == "none" else "step"
    if kind == "local" and modules & {"moe_router", "moe_preprocess"}:  # which it takes together
        modules |= {"moe_router", "moe_preprocess"}
    return graphs_of(modules)
