"""A torchtitan job as the model, the job and the plan that it trains.

Idea   The settings (settings.py) are those that a recipe is written with (write.py). A setting that is
       missing means what torchtitan means without it, and this is said; so is one that changes time or memory
       in a way that the planner does not model.
Limit  The models that torchtitan has. The number of GPUs is often the launcher's: it can be given beside.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from gpu import Hardware
from ndparallel.base.errors import UserError, check_known, unknown
from ndparallel.base.quoting import brief
from ndparallel.launch_flags import fields
from ndparallel.launch_flags.frozen import note_on_defaults, release
from ndparallel.launch_flags.launcher import gpus_started
from ndparallel.launch_flags.reading import NOTHING, Beside, Reading
from ndparallel.launch_flags.settings import Configuration, notes_on_keys
from ndparallel.launch_flags.shell.reader import read_script
from ndparallel.launch_flags.shell.script import Script
from ndparallel.launch_flags.shell.slurm import scheduled
from ndparallel.launch_flags.torchtitan.models import MODELS
from ndparallel.launch_flags.torchtitan.read_plan import LOCAL_BATCH, RESHARD, asks_for_host, plan_from
from ndparallel.launch_flags.torchtitan.settings import (
    EXPERT_TP,
    ROTATION,
    TorchtitanSettings,
    idle_tables,
    lacking_keys,
    of_command,
    of_recipe,
    of_toml,
    of_words,
    renamed,
)
from ndparallel.planner.job import TOGETHER, Plan, TrainingJob
from ndparallel.planner.legality import check
from ndparallel.planner.models.presets import find_model
from ndparallel.planner.models.shape import ModelShape
from ndparallel.planner.software import TORCHTITAN, TORCHTITAN_COMPILED
from ndparallel.planner.stack import Stack

GRAPHS = "training.disable_cuda_graphs"
PROGRAM = re.compile(r"torchtitan\.train|(?:.*/)?train\.py")
DTYPES = {  # of the layers' matmuls, by the converter that makes them
    "Float8LinearConverter": "fp8-row",
    "Float8LinearConverter rowwise": "fp8-row",
    "Float8LinearConverter tensorwise": "fp8-current",
    "MXFP8LinearConverter": "mxfp8",
    "NVFP4LinearConverter": "nvfp4",
}
EXPERTS_TOO = ("Float8GroupedExpertsConverter", "MXFP8GroupedExpertsConverter")
DISPATCHERS = {"None": "alltoall", "standard": "alltoall", "deepep": "deepep", "hybridep": "hybridep"}
NOT_MODELLED = {  # settings: what is priced without a word, and what in place of others
    "training.mixed_precision_param": (("bfloat16",), "layers compute in bfloat16"),
    "parallelism.pipeline_parallel_schedule_csv": (("", None), "the schedule is that of its name"),
    "parallelism.enable_fsdp_symm_mem": ((False,), "FSDP's messages are NCCL's"),
    "parallelism.context_parallel_load_balancer": (("headtail",), "sequences are cut in head and tail"),
    "parallelism.disable_loss_parallel": ((False,), "tp ranks share the loss"),
    "debug.deterministic": ((False,), "kernels are the quickest"),
    **{
        f"{table}.enable_fsdp_float8_all_gather": ((False,), "FSDP gathers weights in 16 bits")
        for table in ("float8", "quantize.linear.float8")
    },
}


def read_torchtitan(text: str, hardware: Hardware, beside: Beside = NOTHING) -> Reading:
    """Read a recipe in Python, a file of TOML, or a command line with --module and --config. Of the variables
    those with numbers are arguments of torchtitan's, as --training.seq_len 4096.

    Raises UserError, in a sentence, for what is none of these, contradicts itself, or cannot be trained.
    """
    given, launched = settings_of(text, beside.variables, beside.name, beside.folder)
    settings = TorchtitanSettings(renamed(given))
    shape = beside.with_vocab(shape_of(settings))
    plan = plan_from(settings, shape, launched if beside.gpus is None else beside.gpus)
    job = job_from(settings, shape, hardware, plan)
    check(job, plan)
    return Reading(job, plan, tuple(notes(settings, job, plan)))


def settings_of(
    text: str, variables: Mapping[str, str], name: str, folder: Path | None
) -> tuple[Configuration, int]:
    """What is set, and how many GPUs a launcher starts: 0 where nobody says."""
    own = [value for number, value in variables.items() if number.isdecimal()]
    if (toml := of_toml(text)) is not None:
        return toml | of_words(own), 0
    if name.endswith(".py") or re.search(r"^def \w+\(", text, re.MULTILINE):
        words = of_words(own)
        chosen = words.pop("config", None)
        return of_recipe(text, chosen and str(chosen), folder) | words, 0
    script = read_script(text, variables, scheduled(text, variables), folder)
    launcher, program = command_of(script)
    arguments = [*program, *(own if "$@" in text else [])]
    return of_command(arguments, folder), gpus_started(launcher, script.variables)


def command_of(script: Script) -> tuple[list[str], list[str]]:
    """The launcher's words, and the program's, of the last command that starts torchtitan. Raises UserError
    where none does."""
    for words in script.commands[::-1]:
        for place, word in enumerate(words):
            if PROGRAM.fullmatch(word):
                return words[:place], words[place + 1 :]
    raise UserError(
        "it is no recipe of torchtitan, no file of TOML with its settings, and no command that starts "
        "torchtitan.train."
    )


def shape_of(settings: TorchtitanSettings) -> ModelShape:
    """The model, by the name of its flavor. Raises UserError for one that the planner does not know."""
    own = {(found.module, found.flavor): name for name, found in MODELS.items()}
    module, flavor = settings.text("model.module"), settings.text("model.flavor")
    check_known("module of torchtitan", module, sorted({of for of, _ in own}))
    if (module, flavor) not in own:
        raise unknown(f"flavor of {module}", flavor, [known for of, known in own if of == module])
    shape = find_model(own[module, flavor])
    return replace(shape, prediction_layers=settings.number("model.num_mtp_layers", 0))


# ---------------------------------------------------------------------------------------------------- the job


def job_from(settings: TorchtitanSettings, shape: ModelShape, hardware: Hardware, plan: Plan) -> TrainingJob:
    each = plan.dp * settings.number(LOCAL_BATCH)
    batch = settings.number("training.global_batch_size")
    batch = each if batch == -1 else batch
    if batch % each:
        raise UserError(
            f"training.global_batch_size {batch} is no multiple of {plan.dp} data-parallel ranks times "
            f"{LOCAL_BATCH} {each // plan.dp}."
        )
    return TrainingJob(
        shape,
        hardware,
        stack_from(settings, shape, plan),
        settings.number("training.seq_len"),
        batch,
        dtype=dtype_from(settings, shape),
        half=settings.word("training.dtype", {"bfloat16": True, "float32": False}),
        offload=TOGETHER if plan.zero == 3 and asks_for_host(settings) else (),
    )


def stack_from(settings: TorchtitanSettings, shape: ModelShape, plan: Plan) -> Stack:
    compiled = settings.switch("compile.enable") and "model" in settings.texts("compile.components")
    base = TORCHTITAN_COMPILED if compiled else TORCHTITAN
    asynchronous = settings.switch("compile.enable_async_tensor_parallel")
    backend = DISPATCHERS.get(settings.text("model.moe_comm_backend"), base.dispatcher)
    return replace(
        base,
        tp_overlap="products" if asynchronous else base.tp_overlap,
        dispatcher=backend if shape.experts and plan.ep > 1 else base.dispatcher,
        context_parallel="ring" if settings.given.get(ROTATION) == "alltoall" else base.context_parallel,
        expert_tp=cuts_experts(settings, shape, plan),
        reshards=plan.zero != 3 or plan.pp > 1 or settings.text(RESHARD) != fields.TITAN_RESHARD[2],
    )


def cuts_experts(settings: TorchtitanSettings, shape: ModelShape, plan: Plan) -> bool:
    """Whether tp cuts experts: without expert parallelism always, else where an older release is told so."""
    alone = bool(shape.experts) and plan.ep == 1
    return bool(plan.tp > 1 and (alone or settings.given.get(EXPERT_TP) == plan.tp))


def dtype_from(settings: TorchtitanSettings, shape: ModelShape) -> str:
    """The type of the layers' matmuls: of experts only where they are converted too."""
    found = settings.texts("model.converters")
    types = [DTYPES[name] for name in found if name in DTYPES]
    return types[0] if types and (not shape.experts or {*EXPERTS_TOO} & {*found}) else "bf16"


# -------------------------------------------------------------------------------------------------- the notes


def notes(settings: TorchtitanSettings, job: TrainingJob, plan: Plan) -> Iterator[str]:
    """Sentences about what was assumed, what is not modelled, and what was passed over."""
    idle = idle_tables(settings)
    used = {key: value for key, value in settings.given.items() if not key.startswith((*idle,))}
    yield from notes_on_keys("torchtitan", used, lacking_keys(settings.given), NOT_MODELLED)
    for table in idle:
        yield f"[{table}] has no effect: model.converters does not name its converter, which alone casts."
    yield from notes_on_layers(settings, job, plan)
    yield from notes_on_the_step(settings, job, plan)
    assumed = (
        f"{key} {value}"
        for key, value in settings.assumed.items()
        if value is not None and not key.startswith("model.")
    )
    yield from note_on_defaults(release("torchtitan"), assumed)


def notes_on_layers(settings: TorchtitanSettings, job: TrainingJob, plan: Plan) -> Iterator[str]:
    policy = settings.text("activation_checkpoint")
    if policy != "None" and f"{policy}.Config()" not in fields.TITAN_RECOMPUTE.values():
        yield f"activation_checkpoint {policy} is not modelled: nothing is computed again."
    if plan.recompute_layers:
        yield (
            "Every layer that activation checkpointing computes again is taken for one of the first "
            f"{plan.recompute_layers} of its stage."
        )
    if job.dtype == "bf16" and (found := settings.texts("model.converters")):
        yield f"{', '.join(found)}: not modelled for this model, whose matmuls are in bfloat16 here."
    if (backend := settings.text("model.moe_comm_backend")) not in DISPATCHERS and plan.ep > 1:
        yield f"moe_comm_backend {brief(backend)} is not modelled: rows go by {job.stack.dispatcher}."
    if settings.value("compile.enable") and job.stack.fusion != "compiled":
        parts = ", ".join(settings.texts("compile.components"))
        yield f"Of the components {parts} alone are compiled, which is priced as eager."


def notes_on_the_step(settings: TorchtitanSettings, job: TrainingJob, plan: Plan) -> Iterator[str]:
    if not settings.switch(GRAPHS):
        instead = "refuses in a pipeline" if plan.pp > 1 else "captures, are not modelled"
        yield f"CUDA graphs, which torchtitan {instead}: set {GRAPHS}."
    if plan.pp > 1 and (passes := job.global_batch // (plan.dp * settings.value(LOCAL_BATCH))) > 1:
        yield (
            f"The pipeline fills and drains {passes} times in a step, which is not modelled: it does so once "
            f"for all {plan.microbatches(job)} microbatches."
        )
    if plan.pp > 1 and settings.value(RESHARD) == "always":
        yield f"{RESHARD} always is not modelled in a pipeline: gathered weights stay whole."
    if asks_for_host(settings) and not job.offload:
        yield f"{fields.TITAN_HOST} without ZeRO-3 is not modelled: all states stay on the GPU."
