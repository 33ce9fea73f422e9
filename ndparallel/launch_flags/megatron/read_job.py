"""The job that a command line of Megatron-Core trains: its batch, the types of its numbers, and the software
with its switches.
"""

from dataclasses import replace

from gpu import Hardware
from ndparallel.base.errors import UserError
from ndparallel.launch_flags import fields
from ndparallel.launch_flags.megatron.given import GivenFlags
from ndparallel.parallel.context import CP_COMM_TYPES
from ndparallel.planner.attention_kernels import fitting_kernel
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.launches import graphs_of
from ndparallel.planner.models.shape import ModelShape
from ndparallel.planner.software import FP8_PARAM_GATHER, MEGATRON_CORE, NEMO
from ndparallel.planner.stack import Stack

BACKENDS = {"auto": "", "fused": "cudnn", "flash": "flash2", "unfused": "unfused", "local": "unfused"}


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
