"""The tables that `ndparallel flags` prints: what becomes of every option of a job and its plan.

Idea   A field, and behind "=" one of its words; then the flags or keys that `--emit` writes for it. What has
       none says why, in brackets.
"""

from ndparallel.launch_flags import fields
from ndparallel.pipeline.catalog import names_in

DEFAULT, REFUSED = "(its own default)", "(refused)"
TORCHRUN = "(none: torchrun's nodes, and its processes on each)"
MEGATRON_OTHERS = {
    "model": {
        "model": "(none: its sizes)",
        "kv_heads": f"{fields.KV_HEADS} N",
        "head_dim": f"{fields.HEAD_DIM} N",
    },
    "job": {
        "hardware": TORCHRUN,
        "gpus": TORCHRUN,
        "capacity_factor": f"{fields.CAPACITY} X",
        "routing_imbalance": "(none: the script's header says it)",
        "moments = bf16": f"{fields.AWARE} {fields.MOMENTS['bf16']}",
        "moments = 8bit": REFUSED,
        "offload = optimizer": f"{fields.AWARE} {fields.ON_HOST} {fields.HOST_SHARE} 1",
        **dict.fromkeys(("offload = weights", "offload = activations"), REFUSED),
        **dict.fromkeys(("offload_share", "half", "lora", "qlora", "lora_on"), REFUSED),
    },
    "software": {
        "software": "(none: megatron-core or nemo; others refused)",
        "etp": f"{fields.EXPERT_TP} 1, or tp",
        **fields.OF_MIXTURES,
        "overlap = tp": f"(its own default; of nemo in parts, {fields.PARTS_BESIDE})",
        "overlap = dp": f"{fields.GRADIENTS_BESIDE} {fields.WEIGHTS_BESIDE}",
        "overlap without pp": fields.MESSAGES_NOT_BESIDE,
        "overlap = cp": DEFAULT,
        "overlap = ep": fields.ROWS_BESIDE,
    },
    "plan": {
        "dp": "(none: what the other degrees leave)",
        "schedule": "(none: by chunks 1f1b or interleaved; others refused)",
        "chunks": f"{fields.CHUNKS} N",
        "stage_layers": f'{fields.LAYOUT} "Et*2|t*3|t*2L"',
        "shards": f"{fields.REPLICAS} dp*cp/N",
        "sequence_parallel": fields.SEQUENCE_PARALLEL,
        "recompute_layers": f"{fields.RECOMPUTE_SOME} N",
        "recompute_modules": f"{fields.RECOMPUTED} NAMES",
    },
}
TITAN_OTHERS = {
    "model": {"model": 'model_spec = model_registry("FLAVOR"), of its own models; others (refused)'},
    "job": {
        "hardware": TORCHRUN,
        "gpus": TORCHRUN,
        "sequence": "training.seq_len = N",
        "global_batch": "training.global_batch_size = N",
        "dtype = bf16": DEFAULT,
        "dtype = fp8-row": "model_spec, with a Float8LinearConverter; others (refused)",
        "half": 'training.dtype = "bfloat16"',
        "routing_imbalance": "(none: no key sets it)",
        "offload = optimizer, weights": f"{fields.TITAN_HOST} = True",
        "offload, others": REFUSED,
        **dict.fromkeys(("moments", "offload_share", "lora", "qlora", "lora_on"), REFUSED),
        "capacity_factor": REFUSED,
    },
    "software": {
        "software = torchtitan": "compile.enable = False",
        "software = torchtitan-compiled": 'compile.enable = True, compile.components = ["model", "loss"]',
        "context_parallel = ring": REFUSED,
        "context_parallel = all-gather": DEFAULT,
        **dict.fromkeys(("attention", "overlap"), "(its own; others refused)"),
        "etp = 1": "(its own default with ep > 1)",
        "etp = tp": "(its own default with ep = 1)",
        "dispatcher = alltoall": DEFAULT,
        "dispatcher = allgather": REFUSED,
        "dispatcher = deepep": 'model_spec, with moe_comm_backend = "deepep"',
        "dispatcher = hybridep": 'model_spec, with moe_comm_backend = "hybridep"',
        **dict.fromkeys(fields.OF_MIXTURES, REFUSED),
        "cuda_graphs = none": "training.disable_cuda_graphs = True",
    },
    "plan": {
        "dp": "parallelism.data_parallel_replicate_degree = N",
        "shards": "parallelism.data_parallel_shard_degree = N/cp",
        "micro_batch": "training.local_batch_size = N",
        "micro_batch, pp > 1": "parallelism.pipeline_parallel_microbatch_size = N",
        **dict.fromkeys(("chunks", "stage_layers"), "parallelism.module_fqns_per_model_part = [...]"),
        "sequence_parallel": "parallelism.enable_sequence_parallel = True",
        **dict.fromkeys(("recompute_layers", "recompute_modules", "zero = 1"), REFUSED),
    },
}
PROGRAM = "(none: the program's)"
DEEPSPEED_OTHERS = {
    "model": {"model": PROGRAM},
    "job": {
        **dict.fromkeys(("hardware", "gpus"), "(none: --num_nodes and --num_gpus of its launcher)"),
        "sequence": PROGRAM,
        "global_batch": f"{fields.DEEPSPEED_STEPS} = N/dp/micro_batch",
        "dtype = bf16": "bf16.enabled = true",
        "dtype, others": REFUSED,
        "moments = 8bit": f"(--optim {fields.TRANSFORMERS_MOMENTS['8bit']} of transformers)",
        "offload = optimizer": f'{fields.DEEPSPEED_HOST} = "cpu"',
        "offload = weights": f'{fields.DEEPSPEED_WEIGHTS} = "cpu"',
        **dict.fromkeys(("lora", "qlora", "lora_on"), PROGRAM),
        "routing_imbalance": "(none: no key sets it)",
        **dict.fromkeys(("moments = bf16", "offload = activations", "offload_share", "half"), REFUSED),
        "capacity_factor": REFUSED,
    },
    "software": {
        "software": "(none: deepspeed; others refused)",
        "attention": PROGRAM,
        "context_parallel = all-to-all": DEFAULT,
        **dict.fromkeys(("context_parallel = ring", "context_parallel = all-gather"), REFUSED),
        "overlap = dp": f"{fields.DEEPSPEED_BESIDE} = true",
        "overlap, others": DEFAULT,
        "etp = 1": DEFAULT,
        "etp = tp": REFUSED,
        "dispatcher = alltoall": DEFAULT,
        "dispatcher, others": REFUSED,
        **dict.fromkeys((*fields.OF_MIXTURES, "cuda_graphs"), REFUSED),
    },
    "plan": {
        "dp": "(none: what the other degrees leave)",
        "ep > 1": "expert_parallel.enabled = true",
        "micro_batch": f"{fields.DEEPSPEED_MICRO} = N",
        "schedule = 1f1b": DEFAULT,
        "schedule, others": REFUSED,
        "zero": f"{fields.DEEPSPEED_ZERO} = N",
        "recompute = full": f"(--{fields.TRANSFORMERS_RECOMPUTE} true of transformers)",
        "recompute = full, pp > 1": f"{fields.DEEPSPEED_INTERVAL} = 1",
        "recompute = selective": REFUSED,
        **dict.fromkeys(("chunks", "stage_layers", "shards", "sequence_parallel"), REFUSED),
        **dict.fromkeys(("recompute_layers", "recompute_modules"), REFUSED),
    },
}


ACCELERATE_OTHERS = {
    "model": {"model": PROGRAM},
    "job": {
        "hardware": "num_machines = N",
        "gpus": "num_processes = N",
        "sequence": PROGRAM,
        "global_batch": f"(--{fields.TRANSFORMERS_STEPS} N/dp/micro_batch of transformers)",
        "dtype = bf16": "mixed_precision = bf16",
        "dtype, others": REFUSED,
        "half": "mixed_precision = no",
        "offload = optimizer, weights": f"{fields.ACCELERATE_HOST} = true",
        "offload, others": REFUSED,
        **dict.fromkeys(("lora", "qlora", "lora_on"), PROGRAM),
        "routing_imbalance": "(none: no key sets it)",
        **dict.fromkeys(("moments", "offload_share", "capacity_factor"), REFUSED),
    },
    "software": {
        "software": "(none: accelerate; others refused)",
        "attention": PROGRAM,
        **{
            f"context_parallel = {way}": f"{fields.ACCELERATE_WAY} = {word}"
            for way, word in fields.ACCELERATE_WAYS.items()
        },
        "context_parallel = all-to-all": REFUSED,
        **dict.fromkeys(("overlap", "etp = 1", "dispatcher = alltoall"), DEFAULT),
        **dict.fromkeys(("etp = tp", "dispatcher, others"), REFUSED),
        **dict.fromkeys((*fields.OF_MIXTURES, "cuda_graphs"), REFUSED),
    },
    "plan": {
        "dp": f"{fields.ACCELERATE_SHARDS} = N/cp of shards, {fields.ACCELERATE_REPLICAS} of the rest",
        "shards": f"{fields.ACCELERATE_SHARDS} = N/cp",
        "micro_batch": f"(--{fields.TRANSFORMERS_MICRO} N of transformers)",
        "zero = 3": f"{fields.ACCELERATE_RESHARD} = true",
        "zero = 2": f"{fields.ACCELERATE_RESHARD} = false",
        "zero, others": REFUSED,
        "recompute = full": f"{fields.ACCELERATE_RECOMPUTE} = true",
        "recompute = selective": REFUSED,
        **dict.fromkeys(("tp", "pp", "ep", "schedule", "chunks", "stage_layers"), REFUSED),
        **dict.fromkeys(("sequence_parallel", "recompute_layers", "recompute_modules"), REFUSED),
    },
}


def megatron_rows() -> list[tuple[str, str, str]]:
    """Numbers, each word of a choice that has flags, and what follows from several fields, or has no flag."""
    rows = [(of, name, f"{flag} N") for of, flags in fields.NUMBERS.items() for name, flag in flags.items()]
    choices = (
        (of, name, word, flags)
        for of, choice in fields.CHOICES.items()
        for name, words in choice.items()
        for word, flags in words.items()
    )
    rows += [(of, f"{name} = {in_words(word)}", flags or DEFAULT) for of, name, word, flags in choices]
    return in_groups(rows + listed_rows(MEGATRON_OTHERS))


def torchtitan_rows() -> list[tuple[str, str, str]]:
    schedules = [("plan", f"schedule = {ours}", theirs) for ours, theirs in names_in("torchtitan").items()]
    recompute = [
        ("plan", f"recompute = {word}", f"activation_checkpoint = {value}")
        for word, value in fields.TITAN_RECOMPUTE.items()
    ]
    reshard = [
        ("plan", f"zero = {zero}", f'parallelism.fsdp_reshard_after_forward = "{word}"')
        for zero, word in fields.TITAN_RESHARD.items()
    ]
    return in_groups(
        [*degree_rows(fields.TITAN_DEGREES), *schedules, *recompute, *reshard, *listed_rows(TITAN_OTHERS)]
    )


def deepspeed_rows() -> list[tuple[str, str, str]]:
    return in_groups(degree_rows(fields.DEEPSPEED_DEGREES) + listed_rows(DEEPSPEED_OTHERS))


def accelerate_rows() -> list[tuple[str, str, str]]:
    return in_groups(degree_rows(fields.ACCELERATE_DEGREES) + listed_rows(ACCELERATE_OTHERS))


def degree_rows(degrees: dict[str, str]) -> list[tuple[str, str, str]]:
    return [("plan", name, f"{key} = N") for name, key in degrees.items()]


def listed_rows(others: dict[str, dict[str, str]]) -> list[tuple[str, str, str]]:
    return [(of, name, becomes) for of, names in others.items() for name, becomes in names.items()]


def in_groups(rows: list[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    """The rows of one thing stand together, in the order in which they are described."""
    order = ("model", "latent attention", "linear attention", "experts", "job", "software", "plan")
    return sorted(rows, key=lambda row: order.index(row[0]))


def in_words(word: object) -> str:
    return (", ".join(word) if isinstance(word, tuple) else f"{word}") or "none"
