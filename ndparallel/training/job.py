"""The job: everything that a rank program is told, in one frozen value that travels to its process."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from ndparallel.base.bfloat16 import NAME as BFLOAT16
from ndparallel.base.errors import UserError, check_known, check_whole
from ndparallel.base.options import at_least_one
from ndparallel.base.quoting import brief
from ndparallel.base.words import choices, count, option_of
from ndparallel.model.costs import RECOMPUTE
from ndparallel.model.optimizer import OPTIMIZERS
from ndparallel.model.stages import layers_per_stage
from ndparallel.model.units import ModelConfig
from ndparallel.parallel.context import VARIANTS
from ndparallel.parallel.divisibility import (
    MOST_STAGES_ABOVE_LAYERS,
    context_rules,
    divides,
    divisors,
    expert_rules,
    expert_width_rules,
    head_rules,
    routed_rules,
    tensor_rules,
)
from ndparallel.parallel.mesh import Mesh
from ndparallel.parallel.tensor import SEQUENCE_PARALLEL, TP_OVERLAP
from ndparallel.training.pipeline_stages import schedule_of

MODEL_SIZES = {
    "default": ModelConfig(),
    "large": ModelConfig(layers=16, hidden=128, heads=8, kv_heads=2, ffn=352),
}
MOST_STEPS = 1_000_000  # of a pipeline, in all its stages
MOST_ZERO = 3  # which is FSDP
MOST_TRAINED = 10_000  # steps of a run, which keeps the events of all
MOST_ROWS = 2**31 - 1  # that an int32 counts
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
        check_tensor_parallel(self)
        check_overlap(self)
        check_context_parallel(self)
        check_experts(self)
        check_pipeline(self)
        check_batch(self.batch, self.microbatches, self.mesh.dp, self.mesh.world_size // self.mesh.dp)

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


class BatchError(UserError):
    """A batch that cannot be cut so. Each hint is one thing that could be changed; one may be the GPUs."""

    def __init__(self, words: str, hints: list[str]) -> None:
        super().__init__(f"{words}; {'; '.join(hints)}.")
        self.words, self.hints = words, hints

    def without_gpus(self) -> "BatchError":
        return BatchError(self.words, [hint for hint in self.hints if "--gpus" not in hint])


class DegreeError(UserError):
    """A degree of one axis that cannot cut a job. `legal` are those that can, and `otherwise` is what else
    could be changed; `gpus` says that they are numbers of GPUs, where --gpus alone sets the degree."""

    def __init__(
        self, axis: str, degree: int, fails: str, legal: list[int], otherwise: str = "", gpus: bool = False
    ) -> None:
        can_be = f"{'--gpus' if gpus else axis} can be {choices(legal, degree)}"
        super().__init__(f"{axis}={degree} {fails}; {can_be}{otherwise}.")
        self.axis, self.legal = axis, legal
        self.degree, self.fails, self.otherwise = degree, fails, otherwise

    def in_gpus(self, sizes: list[int]) -> "DegreeError":
        """The same, with these numbers of GPUs."""
        return DegreeError(self.axis, self.degree, self.fails, sizes, self.otherwise, gpus=True)


def check_batch(batch: int, microbatches: int, dp: int, gpus_each: int = 1) -> None:
    """Raise BatchError unless all data-parallel ranks, of so many GPUs each, and all their microbatches, get
    equally many sequences."""
    if batch % (dp * microbatches):
        into = [count(dp, "data-parallel part")] if dp > 1 else []
        into += [count(microbatches, "microbatch", "es")] if microbatches > 1 else []
        raise BatchError(
            f"a batch of {count(batch, 'sequence')} cannot be cut into {' of '.join(into)}",
            list(ways_to_cut(batch, microbatches, dp, gpus_each)),
        )


def ways_to_cut(batch: int, microbatches: int, dp: int, gpus_each: int) -> Iterator[str]:
    """Yield what could be changed, one thing alone, so that a batch can be cut."""
    parts = dp * microbatches
    near = max(parts, (batch + (parts - 1) // 2) // parts * parts)
    yield f"the nearest batch that can is {near} (--batch {near})"
    if batch % dp == 0:
        fewer = max(parts for parts in divisors(batch // dp) if parts < microbatches)
        yield f"the nearest number of microbatches is {fewer} (--microbatches {fewer})"
    if batch % microbatches == 0:
        sizes = divisors(batch // microbatches)
        below, above = [size for size in sizes if size < dp], [size for size in sizes if size > dp]
        gpus = [f"{size * gpus_each}" for size in below[-1:] + above[:1]]
        yield f"the nearest number of GPUs is {' or '.join(gpus)} (--gpus {gpus[0]})"


def check_tensor_parallel(job: Job) -> None:
    """Raise UserError, naming the degrees that would do, where tp cannot cut this model."""
    model, tp = job.model, job.mesh.tp
    rules = tensor_rules(model.heads, model.kv_heads, None if model.experts else model.ffn)
    if job.sequence_parallel != "none":
        rules.append(divides("", f"cut a sequence of {model.sequence}", model.sequence))
    broken = [rule.what for rule in rules if not rule.holds(tp)]
    if broken:
        legal = [degree for degree in range(1, model.heads + 1) if all(rule.holds(degree) for rule in rules)]
        fails = f"can neither {' nor '.join(broken)}" if len(broken) > 1 else f"cannot {broken[0]}"
        raise DegreeError("tp", tp, fails, legal)


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


def check_context_parallel(job: Job) -> None:
    """Raise UserError where the sequence cannot be cut into an early and a late piece for each rank, and
    further over tp."""
    cp, tp, sequence = job.mesh.cp, job.mesh.tp, job.model.sequence
    (rule,) = context_rules(sequence)
    if not rule.holds(cp):
        near = [degree for degree in divisors(sequence) if rule.holds(degree)]
        length = max(1, round(sequence / (2 * cp))) * 2 * cp
        longer = f"; the nearest sequence that can is {length} (--sequence {length})"
        raise DegreeError("cp", cp, f"cannot {rule.what} into {2 * cp} pieces", near, longer)
    if job.sequence_parallel != "none" and sequence // cp % tp:
        raise UserError(
            f"tp={tp} cannot cut the {sequence // cp} tokens of a sequence that each of cp={cp} ranks has."
        )
    if sequence // cp % job.parts:
        raise UserError(
            f"the {sequence // cp} tokens of a sequence that each of cp={cp} ranks has cannot be cut into "
            f"{job.parts} parts."
        )
    if job.context_parallel == "all-to-all":
        check_heads(job)


def check_heads(job: Job) -> None:
    """Raise UserError where cp, beside tp, cannot cut attention by its heads."""
    model, tp, cp = job.model, job.mesh.tp, job.mesh.cp
    rules = head_rules("tp*cp", model.heads, model.kv_heads)
    if broken := [rule.what for rule in rules if not rule.holds(tp * cp)]:
        legal = [
            degree
            for degree in range(1, model.heads // tp + 1)
            if all(rule.holds(tp * degree) for rule in rules)
        ]
        beside = f" beside tp={tp}" if tp > 1 else ""
        raise DegreeError("cp", cp, f"cannot {broken[0]}{beside}, which an all-to-all gives the ranks", legal)


def check_experts(job: Job) -> None:
    """Raise UserError where tokens cannot choose as many experts, or ep cannot divide the experts."""
    model, mesh = job.model, job.mesh
    if model.experts == 0:
        if mesh.ep > 1:
            raise UserError(
                f"ep={mesh.ep} shares out experts, and this model has none: choose ep=1 or a model with "
                "experts."
            )
        return
    if not 1 <= model.top_k <= model.experts:
        raise UserError(
            f"a token cannot go to {model.top_k} of {model.experts} experts; top_k can be 1 to "
            f"{model.experts}."
        )
    if model.capacity_factor is not None and not model.capacity_factor > 0:
        raise UserError(
            f"the capacity factor is {model.capacity_factor}; it must be above 0, or None for no limit."
        )
    for rule in expert_rules(model.experts):
        if not rule.holds(mesh.ep):
            near = [degree for degree in range(1, model.experts + 1) if rule.holds(degree)]
            raise DegreeError("ep", mesh.ep, f"cannot {rule.what}", near)
    check_expert_cuts(job)
    check_rows(job)


def check_expert_cuts(job: Job) -> None:
    """Raise UserError where etp cannot cut the experts, or tp the shared ones and the tokens of all."""
    model, mesh = job.model, job.mesh
    of_tp = [
        *expert_width_rules([model.shared_experts * model.expert_ffn], "shared experts"),
        *routed_rules(model.sequence // mesh.cp),
    ]
    of_etp = expert_width_rules([model.expert_ffn])
    for name, degree, rules in (("etp", mesh.etp, of_etp), ("tp", mesh.tp, of_tp)):
        for rule in rules:
            if not rule.holds(degree):
                name = "tp" if degree == mesh.tp else name
                raise UserError(f"{name}={degree} cannot {rule.what}; choose one that divides it.")


def check_rows(job: Job) -> None:
    """Raise UserError where a router in balance sends an expert more rows than their number can count."""
    model, mesh = job.model, job.mesh
    ranks = mesh.dp * mesh.cp * job.microbatches
    rows = job.batch * model.sequence * model.top_k // (ranks * model.experts)
    if rows > MOST_ROWS:
        raise UserError(
            f"every expert gets {rows:,} rows of each GPU, and {MOST_ROWS:,} is the most that an int32, in "
            "which they are counted, can be: choose a shorter sequence."
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
