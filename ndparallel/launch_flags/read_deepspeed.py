"""A DeepSpeed job as the job and the plan that it trains.

Idea   Its configuration (deepspeed_settings.py) says how states are sharded, what tensor and expert
       parallelism there is, and the batch. The program's arguments may name the model, its sequences, and
       recomputation, as transformers' and TRL's do.
Limit  What only the program knows is given beside the file (--model, --sequence, --set NAME=VALUE). Stages of
       a pipeline are read where the configuration names them. Ulysses' sequence parallelism is refused.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from gpu import Hardware
from ndparallel.base.errors import UserError
from ndparallel.base.quoting import brief
from ndparallel.launch_flags import fields
from ndparallel.launch_flags.deepspeed_settings import WEIGHTS_HOST, filled, job_of
from ndparallel.launch_flags.frozen import frozen, release
from ndparallel.launch_flags.reading import NOTHING, Beside, Reading
from ndparallel.launch_flags.settings import Configuration, Settings, read_value, unknown_keys
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.legality import check
from ndparallel.planner.models.presets import find_model
from ndparallel.planner.models.shape import ModelShape
from ndparallel.planner.software import DEEPSPEED
from ndparallel.planner.stack import Stack

MODEL = ("model_name_or_path", "model", "model_id", "base_model", "model_name")  # the program's arguments
SEQUENCE = (
    *("max_seq_length", "max_length", "model_max_length", "cutoff_len", "block_size", "max_seq_len"),
    *("sequence_len", "seq_length"),
)
RECOMPUTES = (fields.TRANSFORMERS_RECOMPUTE, "activation_checkpointing", "grad_checkpoint")
ADAPTERS = (  # the first that is there decides
    *(
        "use_peft",
        "use_lora",
        "use_llm_lora",
        "lora_enable",
        "qlora",
        "adapter",
        "finetuning_type",
        "tuner_type",
    ),
    *("train_type", "sft_type", "lora_r", "lora_rank", "lora_alpha"),
)
ULYSSES = ("sequence_parallel_size", "context_parallel_size", "sequence_parallel_degree")
ADAM = re.compile(
    r"(?:paged_)?(?:mu)?adamw?(?:_(?:hf|torch|fused|apex|npu|xla|bnb|8bit|32bit))*", re.IGNORECASE
)
MICRO, BATCH, ACCUMULATION = fields.DEEPSPEED_MICRO, "train_batch_size", fields.DEEPSPEED_STEPS
DEGREES = fields.DEEPSPEED_DEGREES
STAGE, HOST = fields.DEEPSPEED_ZERO, fields.DEEPSPEED_HOST
NOT_MODELLED = {  # settings: what is priced without a word, and what in place of others
    HOST: (("none", "cpu", None), "it is on the host"),
    WEIGHTS_HOST: (("none", None), "weights stay on the GPU"),
    "zero_optimization.offload_optimizer.super_offload": ((False,), "the host steps it as DeepSpeedCPUAdam"),
    "zero_optimization.contiguous_gradients": ((True,), "gradients wait in one buffer"),
    "zero_optimization.reduce_scatter": ((True,), "gradients go to their shard alone"),
    "zero_optimization.offload_optimizer.ratio": ((1, 1.0), "all of the optimizer is on the host"),
    "zero_optimization.zero_hpz_partition_size": ((0, 1), "weights are gathered over all ranks"),
    "zero_optimization.zero_quantized_weights": ((False,), "weights travel in 16 bits"),
    "zero_optimization.zero_quantized_gradients": ((False,), "gradients travel in 16 bits"),
    "zero_optimization.mics_shard_size": ((-1, 0), "weights are sharded over all ranks"),
    "bf16.bf16_master_weights_and_grads": ((False,), "the optimizer's weights have 32 bits"),
    "bf16.bf16_optimizer_states": ((False,), "moments have 32 bits"),
    "fp16.fp16_master_weights_and_grads": ((False,), "the optimizer's weights have 32 bits"),
    "torch_autocast.enabled": ((False,), "weights have 16 bits"),
    "amp.enabled": ((False,), "weights have 16 bits"),
    "communication_data_type": ((None, "bf16", "fp16"), "gradients travel in 16 bits"),
    "data_types.grad_accum_dtype": ((None, "bf16", "fp16"), "gradients are kept in 16 bits"),
    "activation_checkpointing.cpu_checkpointing": ((False,), "what recomputation keeps stays on the GPU"),
    "activation_checkpointing.partition_activations": ((False,), "tp ranks all keep it whole"),
    "expert_parallel.expert_tensor_parallel_size": ((1,), "experts are not cut"),
    "tensor_parallel.tp_overlap_comm": ((False,), "sums over tp are beside no compute"),
    "compile.deepcompile": ((False,), "layers are eager"),
    "progressive_layer_drop.enabled": ((False,), "every layer runs"),
    "curriculum_learning.enabled": ((False,), "sequences are all as long"),
    "data_efficiency.enabled": ((False,), "sequences are all as long"),
    "wall_clock_breakdown": ((False,), "nothing waits to be timed"),
    "hybrid_engine.enabled": ((False,), "it trains and generates nothing"),
}
PARTS = {  # tables of which none is there, or none of their switches is on
    "zero_optimization.zenflow": "every step updates all weights",
    "compression_training": "weights and activations are whole, in 16 bits",
}
PROGRAMS = {  # the same of the program's arguments
    "torch_compile": "layers are eager",
    **dict.fromkeys(("use_liger_kernel", "enable_liger_kernel", "use_liger"), "logits are whole"),
    **dict.fromkeys(("freeze_llm", "tune_mm_mlp_adapter"), "all weights are trained"),
    **dict.fromkeys(
        ("beta", "pref_beta", "rlhf_type", "rl"), "it learns the next token of one sequence each"
    ),
    **dict.fromkeys(("vision_tower", "vision_path"), "the model is the language's alone"),
}


def read_deepspeed(text: str, hardware: Hardware, beside: Beside = NOTHING) -> Reading:
    """Read a configuration, a file of Accelerate's, or a script that launches DeepSpeed. The variables are
    arguments of the program too.

    Raises UserError, in a sentence, for what is none of these, contradicts itself, or cannot be trained.
    """
    found = job_of(text, beside.variables, beside.folder)
    settings = Settings(filled(found), frozen("deepspeed")["defaults"] | found.defaults)
    words = {name: read_value(value) for name, value in found.arguments.items()}
    shape = shape_of(found.arguments, beside.model)
    plan = plan_from(settings, words, found.gpus if beside.gpus is None else beside.gpus)
    job = TrainingJob(
        replace(shape, vocab=beside.vocab) if beside.vocab else shape,
        hardware,
        stack_from(settings, shape),
        sequence_of(words, beside.sequence),
        plan.dp * plan.micro_batch * accumulation(settings, plan),
        moments="8bit" if "8bit" in optimizer_of(settings, words) else "fp32",
        offload=("optimizer",) if is_on_host(settings) else (),
        adapters=beside.adapters,
    )
    check(job, plan)
    unsaid = what_the_program_leaves(words, job, plan, beside)
    by = f"{release('deepspeed')}{' under Accelerate' if found.defaults else ''}"
    return Reading(
        job, plan, (*notes_on_settings(settings, job, by), *of_optimizer(settings, words), *unsaid)
    )


def shape_of(arguments: Mapping[str, str], model: str | ModelShape | None) -> ModelShape:
    """The model that is given, or that the program's arguments name. Raises UserError for none."""
    if isinstance(model, ModelShape):
        return model
    named = next((name for name in MODEL if name in arguments), None)
    if not model and not named:
        raise UserError("which model? Its configuration does not say it: add --model.")
    try:
        return find_model(model or arguments[named or ""])
    except UserError as error:
        raise error if model else UserError(f"--{named}: {error} Add --model.") from None


def sequence_of(words: Configuration, given: int | None) -> int:
    """Tokens in a sequence: those that are given, else the program's, else 4096."""
    named = (words[name] for name in SEQUENCE if type(words.get(name)) is int)
    return given or next(named, 4096)


def plan_from(settings: Settings, words: Configuration, gpus: int) -> Plan:
    """The plan that the configuration lays out. Raises UserError for degrees that do not divide the GPUs, or
    GPUs that nobody names."""
    refuse_ulysses(words)
    refuse_ulysses({ULYSSES[0]: settings.number(ULYSSES[0])})
    if not gpus:
        raise UserError("how many GPUs? Its configuration does not say it: add --gpus.")
    tp = max(1, settings.number(DEGREES["tp"], 0))
    pp = 1 if settings.text(DEGREES["pp"]) == "auto" else settings.number(DEGREES["pp"])
    if gpus % (tp * pp):
        raise UserError(f"tp {tp} x pp {pp} does not divide {gpus} GPUs: change one.")
    ep = settings.number(DEGREES["ep"]) if settings.switch("expert_parallel.enabled") else 1
    plan = Plan(
        tp=tp,
        pp=pp,
        dp=gpus // (tp * pp),
        ep=ep,
        zero=settings.number(STAGE, 0),
        recompute=recompute(settings, words, pp),
    )
    return replace(plan, micro_batch=micro_batch(settings, plan))


def refuse_ulysses(words: Configuration) -> None:
    for name in ULYSSES:
        if words.get(name, 1) not in (0, 1):
            raise UserError(f"{name}: Ulysses' sequence parallelism is not priced; leave it out.")


def optimizer_of(settings: Settings, words: Configuration) -> str:
    """The optimizer's name: of two, the configuration's counts (deepspeed_optim_sched in
    transformers/integrations/deepspeed.py). One in 8 bits is DeepSpeedCPUAdam on the host
    (map_pytorch_optim_to_deepspeed in accelerate/utils/deepspeed.py)."""
    own, asked = settings.value("optimizer.type"), str(words.get("optim") or "adamw")
    replaced = is_on_host(settings) and settings.given.get("zero_force_ds_cpu_optimizer", True)
    return str(own or ("adamw" if replaced and "8bit" in asked else asked))


def is_on_host(settings: Settings) -> bool:
    return settings.text(HOST) not in ("none", "None")


def recompute(settings: Settings, words: Configuration, pp: int) -> str:
    """Whole layers, or nothing."""
    interval = settings.number(fields.DEEPSPEED_INTERVAL, 0) if pp > 1 else 0
    return "full" if interval or any(words.get(name) is True for name in RECOMPUTES) else "none"


def ranks(plan: Plan) -> int:
    """Those that DeepSpeed divides train_batch_size by: tp's too, of which it hears later (DeepSpeedConfig in
    deepspeed/runtime/config.py)."""
    return plan.dp if plan.pp > 1 else plan.dp * plan.tp


def micro_batch(settings: Settings, plan: Plan) -> int:
    """Sequences of one forward pass (_set_batch_related_parameters in deepspeed/runtime/config.py). Raises
    UserError where nothing says it."""
    if settings.value(MICRO) is not None:
        return settings.number(MICRO)
    if settings.value(BATCH) is None:
        raise UserError(
            f"{MICRO} is not given, or auto: add --set per_device_train_batch_size=N (transformers' own "
            "default is 8)."
        )
    return divided(settings, ranks(plan) * settings.number(ACCUMULATION))


def accumulation(settings: Settings, plan: Plan) -> int:
    """Forward passes of a step."""
    if settings.value(BATCH) is None or ACCUMULATION in settings.given:
        steps = settings.number(ACCUMULATION)
    else:
        steps = divided(settings, ranks(plan) * plan.micro_batch)
    batch, made = settings.value(BATCH), ranks(plan) * plan.micro_batch * steps
    if batch not in (None, made):
        raise UserError(
            f"{BATCH} is {batch}, and {ranks(plan)} ranks times {MICRO} {plan.micro_batch} times "
            f"{ACCUMULATION} {steps} make {made}: leave {BATCH} out."
        )
    return steps


def divided(settings: Settings, by: int) -> int:
    """A part of train_batch_size. Raises UserError where it is none."""
    if (batch := settings.number(BATCH)) % by:
        raise UserError(f"{BATCH} {batch} is no multiple of {by}: change it, or add --gpus.")
    return batch // by


def stack_from(settings: Settings, shape: ModelShape) -> Stack:
    """DeepSpeed, what travels beside compute (overlap_comm_valid in deepspeed/runtime/zero/config.py), and
    the buffer of gradients."""
    asked = settings.value(fields.DEEPSPEED_BESIDE)
    beside = settings.number(STAGE, 0) == 3 if asked is None else bool(asked)
    ahead = beside and settings.given.get("zero_optimization.stage3_prefetch_bucket_size") != 0
    return replace(DEEPSPEED, dp_overlap=beside, prefetch=ahead, reduce_bucket=bucket(settings, shape))


def bucket(settings: Settings, shape: ModelShape) -> float:
    """Numbers in the buffer of gradients; "auto" is the model's width, squared (trainer_config_finalize in
    transformers/integrations/deepspeed.py). Raises UserError for none."""
    if (size := settings.value(fields.DEEPSPEED_BUCKET)) == "auto":
        return float(shape.hidden**2)
    if type(size) not in (int, float) or not 1 <= size < 1e15:
        raise UserError(f"{fields.DEEPSPEED_BUCKET} = {brief(size)}: give a number from 1 on, or auto.")
    return float(size)


# -------------------------------------------------------------------------------------------------- the notes


def notes_on_settings(settings: Settings, job: TrainingJob, by: str) -> Iterator[str]:
    """Sentences about what was assumed, what is not modelled, and what was passed over."""
    names = frozen("deepspeed")["keys"]
    if lacking := unknown_keys("deepspeed", [key for key in settings.given if not is_known(key, names)]):
        yield lacking
    for key, (modelled, instead) in NOT_MODELLED.items():
        if (value := settings.given.get(key, modelled[0])) not in modelled:
            yield f"{key} = {brief(value)} is not modelled: {instead}."
    for part, instead in PARTS.items():
        own = [key for key in settings.given if key.startswith(f"{part}.")]
        switches = [settings.given[key] for key in own if key.endswith(".enabled")]
        if any(switches or own):
            yield f"{part} is not modelled: {instead}."
    yield from notes_on_numbers(settings)
    if said := "; ".join(f"{key} {value}" for key, value in assumed(settings, job)):
        yield f"Not given, so as {by} has it: {said}."


def assumed(settings: Settings, job: TrainingJob) -> Iterator[tuple[str, str]]:
    """What DeepSpeed takes for settings that are missing and change the step."""
    for key in (STAGE, ACCUMULATION):
        if key in settings.assumed:
            yield key, f"{settings.assumed[key]}"
    if fields.DEEPSPEED_BESIDE in settings.assumed and settings.number(STAGE, 0):
        yield fields.DEEPSPEED_BESIDE, f"{job.stack.dp_overlap}".lower()
    if fields.DEEPSPEED_BUCKET in settings.assumed and settings.number(STAGE, 0):
        yield fields.DEEPSPEED_BUCKET, f"{job.stack.reduce_bucket:.0f}"


def what_the_program_leaves(
    words: Configuration, job: TrainingJob, plan: Plan, beside: Beside
) -> Iterator[str]:
    """Sentences about what its arguments do not say, or say and is not read."""
    found = next((name for name in ADAPTERS if name in words), "")
    if found and words[found] not in (False, "full", "none") and not beside.adapters:
        yield f"--{found} of the program is not read: give --lora or --qlora, with the rank."
    for name, instead in PROGRAMS.items():
        if words.get(name, False) is not False:
            yield f"--{name} of the program is not modelled: {instead}."
    if not beside.sequence and not words.keys() & {*SEQUENCE}:
        yield f"No argument of the program says how long sequences are: {job.sequence} tokens (--sequence)."
    if not words.keys() & {*RECOMPUTES} and plan.pp == 1:
        yield (
            f"No argument says --{RECOMPUTES[0]}: nothing is computed again. TRL, LLaMA-Factory and "
            f"ms-swift do by default (--set {RECOMPUTES[0]}=true)."
        )


def of_optimizer(settings: Settings, words: Configuration) -> Iterator[str]:
    """A sentence on another optimizer than Adam, or on one whose gradients travel in 1 bit."""
    if not ADAM.fullmatch(kind := optimizer_of(settings, words)):
        yield f"Optimizer {brief(kind)} is not modelled: it is priced as AdamW."


def notes_on_numbers(settings: Settings) -> Iterator[str]:
    half, brain = (settings.switch(f"{name}.enabled") for name in ("fp16", "bf16"))
    if not brain:
        yield f"{'fp16.enabled: it' if half else 'Neither bf16 nor fp16 is asked for: it'} is priced as bf16."


def is_known(key: str, names: list[str]) -> bool:
    """Whether it is a key, or one below a key of which no inner ones are kept."""
    parts = key.split(".")
    above = [".".join(parts[:depth]) for depth in range(1, len(parts) + 1)]
    known = [name for name in above if name in names]
    return bool(known) and (key in names or not any(each.startswith(f"{known[-1]}.") for each in names))
