"""The job: everything that a rank program is told, in one frozen value that travels to its process."""

from dataclasses import dataclass, field, replace

from ndparallel.base.bfloat16 import NAME as BFLOAT16
from ndparallel.base.errors import UserError, check_known, check_whole
from ndparallel.base.options import at_least_one
from ndparallel.base.quoting import brief
from ndparallel.base.words import choices, option_of
from ndparallel.model.costs import RECOMPUTE
from ndparallel.model.optimizer import OPTIMIZERS
from ndparallel.model.stages import layers_per_stage
from ndparallel.model.units import ModelConfig
from ndparallel.parallel.context import VARIANTS
from ndparallel.parallel.divisibility import MOST_STAGES_ABOVE_LAYERS, divisors
from ndparallel.parallel.mesh import Mesh
from ndparallel.parallel.tensor import SEQUENCE_PARALLEL, TP_OVERLAP
from ndparallel.training.cuts import (
    check_batch,
    check_context_parallel,
    check_experts,
    check_heads,
    check_rows,
    check_tensor_parallel,
)
from ndparallel.training.pipeline_stages import schedule_of

MODEL_SIZES = {
    "default": ModelConfig(),
    "large": ModelConfig(layers=16, hidden=128, heads=8, kv_heads=2, ffn=352),
}
MOST_STEPS = 1_000_000  # of a pipeline, in all its stages
MOST_ZERO = 3  # which is FSDP
MOST_TRAINED = 10_000  # steps of a run, which keeps the events of all
DTYPES = ("float32", "float64", BFLOAT16)
WORDS = {
    "dtype": DTYPES,
    "recompute": RECOMPUTE,
    "optimizer": OPTIMIZERS,
    "tp_overlap": TP_OVERLAP,
    "sequence_parallel": SEQUENCE_PARALLEL,
    "context_parallel": VARIANTS,
}
STEPPED = ("optimizer", "learning_rate", "clip_grad_norm")
WORK = ("model", "batch", "steps", "seed", "dtype", "grad_reduce_in_bf16", "text", *STEPPED, "sizes_only")


@dataclass(frozen=True)
class Job:
    """A training run of the lessons: model, text, mesh and settings. `batch` is the global batch, in
    sequences; a step takes it in `microbatches` parts."""

    model: ModelConfig = field(default_factory=ModelConfig)
    mesh: Mesh = field(default_factory=Mesh)
    batch: int = 8
    microbatches: int = 1
    steps: int = 1
    seed: int = 0
    dtype: str = "float32"
    grad_reduce_in_bf16: bool = False  # keep and reduce gradients in bfloat16, and not in float32
    text: str | None = None
    optimizer: str = "adamw"
    learning_rate: float = 3e-3
    clip_grad_norm: float | None = None  # the most that the norm of all gradients may be
    all_reduce: str | None = None  # of buckets: its algorithm; without one, what suits their links
    bucket_mb: float = 0.1
    unit_mb: float = 0.0
    reshard_after_forward: bool = True
    recompute: str = "none"
    sequence_parallel: str = "none"
    parts: int = 1  # of an activation: one is summed while the next is multiplied
    tp_overlap: str = "none"  # or backward: sums of gradients travel beside the weights' gradients
    context_parallel: str = "ring"
    schedule: str = "1f1b"
    stage_chunks: int | None = None
    zero: int = 0
    watch: bool = False  # look for the first number that is not finite
    sizes_only: bool = False  # arrays have no content: all messages, clocks and memory, and no numbers

    def __post_init__(self) -> None:
        for name, words in WORDS.items():
            check_known(name, getattr(self, name), words)
        check_kinds(self)
        check_counts(self)
        for name in ("bucket_mb", "unit_mb"):
            if not getattr(self, name) >= 0:  # nor is NaN
                raise UserError(
                    f"{option_of(name)} is {getattr(self, name):g}; it must be 0 (every unit for itself) or "
                    "more (inf: all together)."
                )
        if self.clip_grad_norm is not None and not self.clip_grad_norm > 0:
            raise UserError(f"--clip-grad-norm is {self.clip_grad_norm:g}; it must be above 0.")
        check_bfloat16(self)
        check_cuts(self)

    @property
    def microbatch(self) -> int:
        """Sequences in a microbatch of one data-parallel rank."""
        return self.batch // (self.mesh.dp * self.microbatches)

    @property
    def work(self) -> "Job":
        """The same work on a single GPU, which takes the batch whole and recomputes nothing."""
        return Job(**{name: getattr(self, name) for name in WORK})

    def replace(self, **changes) -> "Job":
        return replace(self, **changes)


def check_kinds(job: Job) -> None:
    """Raise UserError for a schedule that is no name, and for no number of microbatches."""
    if not isinstance(job.schedule, str):
        raise UserError(f"schedule is {brief(job.schedule)}; it must be a name, such as '1f1b'.")
    check_whole("--microbatches", job.microbatches)


def check_counts(job: Job) -> None:
    """Raise UserError for what there is none of, or too many."""
    at_least_one(job, "batch", "microbatches", "steps", "parts")
    check_whole("zero", job.zero, 0)
    if job.zero > MOST_ZERO:
        raise UserError(f"zero is {job.zero}; it must be at most {MOST_ZERO}, which shares out all.")
    if job.steps > MOST_TRAINED:
        raise UserError(
            f"--steps is {job.steps:,}; choose {MOST_TRAINED:,} at most: a run keeps the events of all."
        )
    most = job.model.layers + MOST_STAGES_ABOVE_LAYERS
    if job.stage_chunks is not None and job.stage_chunks not in range(1, most + 1):
        raise UserError(
            f"a GPU cannot hold {brief(job.stage_chunks)} stages of {job.model.layers} layers; choose 1 to "
            f"{most} chunks."
        )


def check_bfloat16(job: Job) -> None:
    """Raise UserError for tokens that choose some of the experts in bfloat16, and for its gradients beside
    other weights."""
    if job.dtype == BFLOAT16 and job.model.top_k < job.model.experts and not job.sizes_only:
        raise UserError(
            "in bfloat16 rounding decides which experts a token goes to, and no run can be held against it: "
            "leave --dtype bfloat16 out, or add --sizes-only; from Python, a model with "
            f"top_k={job.model.experts} sends it to all."
        )
    if job.grad_reduce_in_bf16 and job.dtype != BFLOAT16:
        raise UserError(
            f"gradients are reduced in bfloat16 beside weights in bfloat16, and not in {job.dtype}: choose "
            "dtype bfloat16."
        )


def check_cuts(job: Job) -> None:
    """Raise UserError where the mesh cannot cut the model or the batch, as the job wants them cut."""
    model, mesh = job.model, job.mesh
    check_tensor_parallel(model, mesh.tp, job.sequence_parallel)
    check_overlap(job)
    check_context_parallel(model, mesh, job.sequence_parallel, job.parts)
    if job.context_parallel == "all-to-all":
        check_heads(model, mesh.tp, mesh.cp)
    check_experts(model, mesh)
    if model.experts:
        check_rows(model, mesh, job.batch, job.microbatches)
    check_pipeline(job)
    check_batch(job.batch, job.microbatches, mesh.dp, mesh.world_size // mesh.dp)


def check_overlap(job: Job) -> None:
    """Raise UserError where parts of an activation cannot hide the sums over tp, or cannot be cut."""
    model, tp = job.model, job.mesh.tp
    if job.parts > 1 and tp > 1 and job.tp_overlap != "none":
        raise UserError(
            "parts hide the sums behind the very matmuls: choose parts=1 with tp_overlap backward."
        )
    if job.parts > 1 and tp > 1 and job.sequence_parallel != "none":
        raise UserError(
            "parts overlap the all-reduces of plain tensor parallelism: choose parts=1 with sequence "
            "parallelism."
        )
    if model.sequence % job.parts:
        near = choices(divisors(model.sequence), job.parts)
        raise UserError(
            f"a sequence of {model.sequence} cannot be cut into {job.parts} parts; it can be cut into {near}."
        )


def check_pipeline(job: Job) -> None:
    """Raise UserError where the schedule or the layers cannot be cut to this pipeline."""
    if job.mesh.pp > 1:
        pp, chunks, microbatches = job.mesh.pp, job.stage_chunks or 1, job.microbatches
        if pp * chunks * microbatches > MOST_STEPS:
            of = f"{pp} GPUs, {chunks} chunks on each and {microbatches} microbatches"
            raise UserError(f"a pipeline of {of} takes more than {MOST_STEPS:,} steps: choose fewer.")
        # before the schedule is written, which takes long for many stages, and asks for microbatches first
        layers_per_stage(job.model, pp * chunks)
        schedule = schedule_of(job.schedule, job.mesh.pp, job.microbatches, job.stage_chunks)
        layers_per_stage(job.model, schedule.layout.stages)
