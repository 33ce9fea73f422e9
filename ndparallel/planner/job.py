"""A training job, and one way to lay it out on GPUs.

Idea   The job is given: model, machine, software, batch. The plan is chosen: degrees, microbatch, schedule.
       What follows from both (dp, the number of microbatches) is derived. Numbers of a plan may be numpy
       arrays: then it stands for that many plans.
Limit  The three choices that are words (schedule, recompute, sequence parallelism) are the same for all plans
       of one array.

Glossary
    tp, pp, dp, ep, cp   degrees of tensor, pipeline, data, expert and context parallelism; ep divides tp * cp
                         * dp and adds no ranks
    chunks               parts of the model on one pipeline rank
    zero                 what data parallelism shards: 0 nothing, 1 optimizer, 2 and gradients, 3 and weights
                         (FSDP)
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from gpu import Hardware
from ndparallel.base.errors import UserError, check_known
from ndparallel.base.quoting import brief
from ndparallel.hardware.accelerator import Accelerator
from ndparallel.pipeline.actions import Layout
from ndparallel.pipeline.catalog import RECIPES
from ndparallel.pipeline.recipe import Recipe
from ndparallel.planner.adapters import Adapters
from ndparallel.planner.dispatchers import DISPATCHERS
from ndparallel.planner.models.shape import ModelShape
from ndparallel.planner.number_types import NUMBER_TYPES, NumberType
from ndparallel.planner.numbers import smaller
from ndparallel.planner.stack import Stack
from ndparallel.planner.token_counts import TokenCounts

# bytes of each of the optimizer's moments; 8bit: bitsandbytes', with a float32 for every block of 256
# (Dettmers et al. 2110.02861, section 2)
MOMENTS = {"fp32": 4, "bf16": 2, "8bit": 1 + 4 / 256}
OFFLOADS = ("optimizer", "weights", "activations")
TOGETHER = ("optimizer", "weights")  # of a rank all states, as FSDP2 has them on the host
WEIGHTS_LEAVE = ("deepspeed", "fsdp2")  # whose ZeRO-3 may keep its shards of weights on the host
# share of a GPU's memory that a search leaves free: memory is predicted to 4% on average
# (docs/validation.md), and the allocator's fragments need some
HEADROOM = 0.08


def check_kinds(job: "TrainingJob") -> None:
    """Raise UserError for a name where the thing itself is asked for."""
    for field, find in (("shape", "find_model"), ("hardware", "find_hardware"), ("stack", "find_stack")):
        if isinstance(name := getattr(job, field), str):
            raise UserError(f"{field} of a job is the name {brief(name)}: give {find}({brief(name)}).")


def check_words(job: "TrainingJob") -> None:
    """Raise UserError, with the nearest, for a word that its field does not know."""
    offload: Any = job.offload
    if isinstance(offload, str):
        raise UserError(f"offload is {offload!r}; it must be a tuple of words, as ({offload!r},).")
    fields = (("dtype", (job.dtype,), NUMBER_TYPES), ("moments", (job.moments,), MOMENTS))
    for field, words, known in (*fields, ("offload", offload, OFFLOADS)):
        for word in words:
            check_known(field, word, known)


def check_shares(job: "TrainingJob") -> None:
    """Raise UserError for what no router can do, and for a share that is none."""
    imbalance, capacity, share = job.routing_imbalance, job.capacity_factor, job.offload_share
    if not 1 <= imbalance < math.inf:
        raise UserError(
            f"--routing-imbalance {imbalance:g}: the busiest rank has at least the mean; give a number from "
            "1 on."
        )
    if capacity is not None and not 0 < capacity < math.inf:
        raise UserError(f"--capacity-factor {capacity:g}: an expert takes something; give a number above 0.")
    if not 0 < share <= 1:
        raise UserError(f"--offload-share is {share:g}; it must be above 0, and at most 1.")


@dataclass(frozen=True)
class TrainingJob:
    """What is trained, on what, with what. `global_batch` in sequences; `half` keeps weights, gradients and
    optimizer in 16 bits; `offload` names what is kept on the host, out of OFFLOADS."""

    shape: ModelShape
    hardware: Hardware
    stack: Stack
    sequence: int
    global_batch: int
    half: bool = False
    dtype: str = "bf16"  # of the layers' matmuls: one of NUMBER_TYPES
    routing_imbalance: float = 1.0  # rows of the busiest rank's experts, in those of the mean rank
    # an expert takes so many times its even share, and drops the rest; None: it takes all
    capacity_factor: float | None = None
    token_counts: TokenCounts | None = None  # of an executed run, which its prediction then follows
    moments: str = "fp32"  # of the optimizer, out of MOMENTS
    offload: tuple[str, ...] = ()
    offload_share: float = 1.0  # of each layer's activations, that go to the host where they are offloaded
    adapters: Adapters | None = None  # which alone are trained

    def __post_init__(self) -> None:
        check_kinds(self)
        check_words(self)
        check_shares(self)
        if self.token_counts and not self.stack.executed:
            raise UserError(
                f"token counts are of a lesson's run; of software {self.stack.name} say routing_imbalance."
            )

    def usable_bytes(self, headroom: float = HEADROOM) -> float:
        """What a plan may hold on a GPU."""
        return self.hardware.memory_bytes * (1 - headroom)

    @property
    def peak(self) -> float:
        """FLOP/s of the data sheet for the type of number; of idealized hardware, what it achieves."""
        if not isinstance(self.hardware, Accelerator):
            return self.hardware.flops_per_second
        return self.hardware.peak(NUMBER_TYPES[self.dtype].dtype)

    @property
    def gradient_bytes(self) -> int:
        return 2 if self.half else self.stack.gradient_bytes

    def matrix_bytes(self, zero: int) -> float:
        """Bytes of a weight of a layer's matrix: in 16 bits, and as Transformer Engine keeps it cast from a
        step's first microbatch on; of both, what its software has. It keeps no casts alone without a sharded
        optimizer (validate_args in megatron/training/arguments.py, fp8_param_gather)."""
        cast = NUMBER_TYPES[self.dtype].copies_bytes(self.before_blackwell) if self.stack.keeps_cast else 0
        return cast + (0 if cast and zero and self.casts_weights_alone else 2)

    @property
    def gathered_matrix_bytes(self) -> float:
        """Bytes of a weight of a layer's matrix on its way to the ranks that share an optimizer."""
        number_type = NUMBER_TYPES[self.dtype]
        return number_type.copy if self.casts_weights_alone and number_type.gathered_cast else 2

    @property
    def casts_weights_alone(self) -> bool:
        return self.dtype in self.stack.cast_weights

    @property
    def moment_bytes(self) -> float:
        return MOMENTS["bf16" if self.half and self.moments == "fp32" else self.moments]

    @property
    def weights_away(self) -> bool:
        """Whether ZeRO-3's shards of weights are on the host."""
        return "weights" in self.offload

    @property
    def states_away(self) -> bool:
        """Whether its gradients and optimizer are there, too, as PyTorch has it."""
        return self.weights_away and self.stack.offloads_together

    @property
    def steps_copies(self) -> bool:
        """Whether ZeRO-3's shards are kept in 16 bits, beside what is stepped. PyTorch's are stepped
        themselves, but where weights are frozen, or the optimizer alone is on the host."""
        alone = "optimizer" in self.offload and not self.states_away
        return bool(self.adapters or alone or not self.stack.has_torch_fsdp)

    @property
    def shard_bytes(self) -> int:
        """Bytes of a weight in its shard of ZeRO-3."""
        return 2 if self.half or self.steps_copies else 4

    @property
    def activations_away(self) -> float:
        """The share of the layers' activations that is kept on the host."""
        return self.offload_share if "activations" in self.offload else 0.0

    @property
    def before_blackwell(self) -> bool:
        """Whether the GPU is older: its products of 8 bits need their inner dimension contiguous."""
        return "mxfp8" not in getattr(self.hardware, "peak_flops_per_second", ())

    @property
    def busiest(self) -> float:
        """Rows of the busiest rank's experts, in those of the mean rank when nothing is dropped."""
        return (
            self.routing_imbalance
            if self.capacity_factor is None
            else min(self.routing_imbalance, self.capacity_factor)
        )


@dataclass(frozen=True)
class Share:
    """One rank's share of a layer: degrees and microbatch, numbers or numpy arrays."""

    micro_batch: Any
    sequence: Any
    tp: Any = 1
    cp: Any = 1
    ep: Any = 1
    sequence_parallel: bool = False
    sent: Any = 1.0  # rows that go to experts, in those that the router chose
    # rows that the experts of the busiest rank get, in those of the mean rank when nothing is dropped
    received: Any = 1.0
    dtype: str = "bfloat16"
    dropless: bool = True  # experts take all rows, whose numbers nobody knows before
    # of the matmuls with weights, but for router and logits
    number_type: NumberType = NUMBER_TYPES["bf16"]
    transposes: bool = True  # a cast tensor is kept transposed, too
    adapters: Adapters | None = None

    @property
    def linear_dtype(self) -> str:
        return self.number_type.dtype if self.number_type.kernels else self.dtype

    @cached_property
    def rows(self):
        return self.micro_batch * self.sequence / self.cp

    @cached_property
    def shard(self):
        return self.rows / self.tp if self.sequence_parallel else self.rows


@dataclass(frozen=True)
class Plan:
    """One layout, or as many as its arrays have elements. Its defaults know no job: `plan_for` makes the plan
    that `ndparallel plan` prices, with sequence parallelism where the job's software has it."""

    tp: Any = 1
    pp: Any = 1
    dp: Any = 1
    ep: Any = 1
    cp: Any = 1
    chunks: Any = 1
    micro_batch: Any = 1
    zero: int = 0
    # with zero 3: ranks that a layer's weights are sharded over, 0 for all of dp and cp; the others are
    # replicas (HSDP)
    shards: Any = 0
    sequence_parallel: bool = False
    recompute: str = "none"
    recompute_layers: Any = 0  # with full recomputation: the first so many layers of a stage, 0 for all
    # with selective recomputation: what runs again, out of MODULES; (): the software's own
    recompute_modules: tuple[str, ...] = ()
    schedule: str = "1f1b"
    stage_layers: tuple[int, ...] = ()  # how many layers each stage has; (): split evenly (stages.py)

    @property
    def gpus(self):
        return self.tp * self.pp * self.dp * self.cp

    @property
    def stages(self):
        return self.pp * self.chunks

    @property
    def recipe(self) -> Recipe:
        """All that is known of its schedule."""
        return RECIPES[self.schedule]

    @cached_property
    def layout(self) -> Layout:
        """Which pipeline rank holds which stage."""
        return Layout(self.recipe.layout, self.pp, self.chunks)

    def modules(self, stack: Stack) -> tuple[str, ...]:
        """What selective recomputation runs again."""
        return self.recompute_modules or stack.selective

    def etp(self, stack: Stack):
        """Ranks that hold the slices of one expert (Megatron-Core's expert tensor parallelism)."""
        return self.tp if stack.expert_tp else 1

    def expert_parts(self, stack: Stack):
        """Ranks that hold different experts, or different slices of one."""
        return self.ep * self.etp(stack)

    @property
    def sharding_ranks(self):
        """Ranks that the states of what all of dp hold are sharded over: of ZeRO-3 perhaps fewer."""
        return (self.zero == 3 and self.shards) or self.dp * self.cp

    def keeps_rows(self, stack: Stack):
        """Whether rows go to no other rank, where software takes none of its dispatchers that send a row
        once (MoEFlexTokenDispatcher in megatron/core/transformer/moe/token_dispatcher.py)."""
        return DISPATCHERS[stack.dispatcher].once & (self.expert_parts(stack) == 1)

    def expert_ranks(self, stack: Stack):
        """Ranks that the states of the same experts are sharded over: as many as hold them among those that
        share all else (efsdp in torchtitan/distributed/parallel_dims.py,
        intra_partial_expert_data_parallel_size in megatron/core/parallel_state.py)."""
        return self.tp * self.sharding_ranks / self.expert_parts(stack)

    def sends_rows_beside(self, stack: Stack):
        """Whether rows go to other ranks' experts beside another microbatch's compute."""
        return stack.hides_dispatch and self.ep > 1

    def microbatches(self, job: TrainingJob):
        return job.global_batch // (self.dp * self.micro_batch)

    def most_received(self, job: TrainingJob):
        """Rows that the busiest rank's experts get, in those of the mean rank, where every token chooses as
        many of its experts as it can."""
        if not job.shape.experts:
            return 1.0
        chosen = job.shape.experts.top_k
        return self.ep * smaller(chosen, job.shape.experts.experts / self.ep) / chosen

    def share(self, job: TrainingJob) -> Share:
        dtype = job.stack.dtype
        sent = 1.0 if job.capacity_factor is None else min(1.0, job.capacity_factor)
        received = job.busiest if job.busiest <= 1 else smaller(job.busiest, self.most_received(job))
        return Share(
            self.micro_batch,
            job.sequence,
            self.tp,
            self.cp,
            self.ep,
            self.sequence_parallel,
            sent,
            received,
            dtype=dtype,
            dropless=job.capacity_factor is None,
            number_type=NUMBER_TYPES[job.dtype],
            transposes=job.before_blackwell,
            adapters=job.adapters,
        )
