"""What is said of a DeepSpeed job beside its plan: what was assumed, is not modelled, or was passed over.

Idea   A table of settings, each with the values that are priced without a word, and what is priced in place
       of others.
"""

from collections.abc import Iterator

from ndparallel.base.quoting import brief
from ndparallel.launch_flags import fields
from ndparallel.launch_flags.frozen import frozen, note_on_defaults
from ndparallel.launch_flags.settings import Settings, notes_on_keys
from ndparallel.planner.job import TrainingJob
from ndparallel.planner.memory.deepspeed import smallest_weight

STAGE, HOST, ACCUMULATION = fields.DEEPSPEED_ZERO, fields.DEEPSPEED_HOST, fields.DEEPSPEED_STEPS
WEIGHTS = fields.DEEPSPEED_WEIGHTS
PERSISTENT = "zero_optimization.stage3_param_persistence_threshold"
ON_HOST = {
    HOST: ("optimizer", "it is", "ZeRO's: without it the optimizer stays"),
    WEIGHTS: ("weights", "they are", "ZeRO-3's: without it weights stay"),
}
NOT_MODELLED = {  # settings: what is priced without a word, and what in place of others
    "zero_optimization.offload_optimizer.super_offload": ((False,), "the host steps it as DeepSpeedCPUAdam"),
    "zero_optimization.contiguous_gradients": ((True,), "gradients wait in one buffer"),
    "zero_optimization.reduce_scatter": ((True,), "gradients go to their shard alone"),
    "zero_optimization.offload_optimizer.ratio": ((1,), "all of the optimizer is on the host"),
    "zero_optimization.zero_hpz_partition_size": ((0, 1), "weights are gathered over all ranks"),
    "zero_optimization.zero_quantized_weights": ((False,), "weights travel in 16 bits"),
    "zero_optimization.zero_quantized_nontrainable_weights": ((False,), "frozen weights have 16 bits"),
    "zero_optimization.stage3_use_all_reduce_for_fetch_params": ((False,), "weights are gathered"),
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
    "elasticity.enabled": ((False,), "the batch is the one that is given"),
    "autotuning.enabled": ((False,), "it tunes nothing"),
    "eigenvalue.enabled": ((False,), "it computes no eigenvalues"),
    "quantize_training.enabled": ((False,), "weights stay in 16 bits"),
    "sparse_gradients": ((False,), "all gradients are dense"),
    "wall_clock_breakdown": ((False,), "nothing waits to be timed"),
    "hybrid_engine.enabled": ((False,), "it trains and generates nothing"),
}
PARTS = {  # tables of which none is there, or none of their switches is on
    "zero_optimization.zenflow": "every step updates all weights",
    "zero_optimization.zeropp_loco_param": "gradients travel in 16 bits, and no errors are kept",
    "sparse_attention": "attention sees all that its mask leaves",
    "compression_training": "weights and activations are whole, in 16 bits",
}


def notes_on_settings(settings: Settings, job: TrainingJob, by: str) -> Iterator[str]:
    """Sentences about what was assumed, what is not modelled, and what was passed over."""
    names = frozen("deepspeed")["keys"]
    lacking = [key for key in settings.given if not is_known(key, names)]
    yield from notes_on_keys("deepspeed", settings.given, lacking, NOT_MODELLED)
    for part, instead in PARTS.items():
        own = [key for key in settings.given if key.startswith(f"{part}.")]
        switches = [settings.given[key] for key in own if key.endswith(".enabled")]
        if any(switches or own):
            yield f"{part} is not modelled: {instead}."
    yield from notes_on_numbers(settings)
    yield from notes_on_host(settings, job)
    yield from note_on_persistence(settings, job)
    yield from note_on_defaults(by, (f"{key} {value}" for key, value in assumed(settings, job)))


def notes_on_host(settings: Settings, job: TrainingJob) -> Iterator[str]:
    """Sentences about what is to be on the host, and is elsewhere or in pages that can move."""
    for key, (word, it, why) in ON_HOST.items():
        device = settings.given.get(key)
        if word in job.offload:
            if device == "nvme":
                yield f"{key} = 'nvme' is not modelled: {it} in the host's memory."
            if not settings.switch(pinned := key.replace("device", "pin_memory")):
                yield f"{pinned} = False is not modelled: copies of pages that can move take longer."
        elif device in ("cpu", "nvme"):
            yield f"{key} is {why} on the GPU."


def assumed(settings: Settings, job: TrainingJob) -> Iterator[tuple[str, str]]:
    """What DeepSpeed takes for settings that are missing and change the step."""
    for key in (STAGE, ACCUMULATION):
        if key in settings.assumed:
            yield key, f"{settings.assumed[key]}"
    yield from ((key, "true") for key in settings.assumed if key.endswith(".pin_memory"))
    if fields.DEEPSPEED_BESIDE in settings.assumed and settings.number(STAGE, 0):
        yield fields.DEEPSPEED_BESIDE, f"{job.stack.dp_overlap}".lower()
    if fields.DEEPSPEED_BUCKET in settings.assumed and settings.number(STAGE, 0):
        yield fields.DEEPSPEED_BUCKET, f"{job.stack.reduce_bucket:.0f}"


def notes_on_numbers(settings: Settings) -> Iterator[str]:
    half, brain = (settings.switch(f"{name}.enabled") for name in ("fp16", "bf16"))
    if not brain:
        yield f"{'fp16.enabled: it' if half else 'Neither bf16 nor fp16 is asked for: it'} is priced as bf16."


def note_on_persistence(settings: Settings, job: TrainingJob) -> Iterator[str]:
    """A sentence on a threshold up to which weights stay whole, where that is more than the default's."""
    threshold = settings.given.get(PERSISTENT, 0)
    known = type(threshold) in (int, float)
    if settings.number(STAGE, 0) == 3 and not (known and threshold < smallest_weight(job)):
        yield f"{PERSISTENT} = {brief(threshold)} is not modelled: all matrices are sharded."


def is_known(key: str, names: list[str]) -> bool:
    """Whether it is a key, or one below a key of which no inner ones are kept."""
    parts = key.split(".")
    above = [".".join(parts[:depth]) for depth in range(1, len(parts) + 1)]
    known = [name for name in above if name in names]
    return bool(known) and (key in names or not any(each.startswith(f"{known[-1]}.") for each in names))
