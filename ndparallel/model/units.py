"""What every unit of the model shares: its flat arrays, its saved activations, and mathematics that charges
the clock.

Idea   A unit (embedding, block, head) is what FSDP gathers, what a bucket is filled by, what a pipeline stage
       is made of. What it computes is priced where it is computed, by the shapes of the very arrays, so that
       numbers and seconds cannot part.

Glossary
    saved      what a unit keeps of one microbatch from its forward to its backward pass, counted as
               activations
    w, g       the unit's weights and gradients by short name, views of flat arrays
    phase      what an operation is done for: forward, backward, weight (gradients alone) or recompute
    charge     move the GPU's clock on by an operation's price (ndparallel/model/costs.py)
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np

from gpu import GPU, Operation
from ndparallel.base.bfloat16 import NAME as BFLOAT16
from ndparallel.base.bfloat16 import narrow, wide_dtype, zeros
from ndparallel.base.errors import UserError
from ndparallel.base.size_only import SizeOnly
from ndparallel.model import costs, functional
from ndparallel.model.nonfinite import NonFiniteWatch
from ndparallel.parallel.context import ContextParallel
from ndparallel.parallel.expert import ExpertParallel
from ndparallel.parallel.slices import Parameter, views
from ndparallel.parallel.tensor import TensorParallel

MOST_OPERATIONS = 4096  # that a rank keeps in mind: experts make ever new ones


@dataclass(frozen=True)
class ModelConfig:
    """A Llama-style transformer. Weights are (outputs, inputs), as in torch.

    With `experts` above 0 every block has a router and that many experts of width `expert_ffn` in place of
    its MLP. A token goes to `top_k` of them, weighed by their probabilities (which `renormalise` makes add up
    to 1), and to all `shared_experts`. `capacity_factor` bounds what an expert takes (None: it takes all);
    `balance_loss` weighs the loss that keeps the experts equally busy.
    """

    layers: int = 8
    hidden: int = 32
    heads: int = 8
    kv_heads: int = 2
    ffn: int = 88
    vocab: int = 256
    sequence: int = 64
    experts: int = 0
    top_k: int = 2
    expert_ffn: int = 44
    shared_experts: int = 0
    capacity_factor: float | None = None
    renormalise: bool = True
    balance_loss: float = 0.01
    tied: bool = False  # embedding and head share their table

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads

    def replace(self, **changes) -> "ModelConfig":
        return replace(self, **changes)


class Routed(NamedTuple):
    """Where one microbatch's tokens went at one layer's experts, on one rank."""

    expert_rows: tuple[int, ...]  # rows that each of the rank's experts worked on
    sent_rows: tuple[int, ...] = ()  # rows that the rank's own tokens sent to each expert of the layer
    dropped: int = 0  # of the rank's own tokens' choices, those that were over an expert's capacity
    balance_loss: float = 0.0  # of whole sequences, already weighed


@dataclass
class Context:
    """What the units of one rank share. `loss_scale` weighs a microbatch, `targets` are its tokens to
    predict, (s, b)."""

    gpu: GPU
    config: ModelConfig
    tp: TensorParallel
    cp: ContextParallel
    ep: ExpertParallel
    dtype: str = "float32"
    recompute: str = "none"
    grad_reduce_in_bf16: bool = False
    loss_scale: float = 1.0
    targets: dict[int, np.ndarray] = field(default_factory=dict)
    losses: dict[int, float] = field(default_factory=dict)
    routed: dict[tuple[str, int], Routed] = field(default_factory=dict)
    watch: NonFiniteWatch | None = None
    phase: str = "forward"  # forward, backward, weight or recompute: the first word of an event's name

    @property
    def gradient_dtype(self) -> str:
        """What gradients are kept and reduced in: float32 for bfloat16 weights, unless told otherwise."""
        return self.dtype if self.grad_reduce_in_bf16 else wide_dtype(self.dtype)

    def in_dtype(self, x: np.ndarray) -> np.ndarray:
        """Round an array of float32, in its own memory, where the context's dtype is bfloat16."""
        return narrow(x) if self.dtype == BFLOAT16 else x

    @cached_property
    def positions(self) -> Sequence[int]:
        """Where in the sequence this rank's tokens stand."""
        return self.cp.positions(self.config.sequence)

    @property
    def all_positions(self) -> Sequence[int]:
        """Where the tokens of all ranks of cp stand, rank by rank."""
        return self.cp.all_positions(self.config.sequence)

    @property
    def rows(self) -> Any:
        """An index that takes this rank's tokens out of the sequence."""
        return list(self.positions)

    def zeros(self, *shape: int, dtype: str | None = None) -> np.ndarray:
        return zeros(shape, dtype or self.dtype)

    def draw(self, parameter: Parameter, seed: int) -> np.ndarray:
        """This rank's slice of a parameter's initial weights."""
        return parameter.draw(seed, self.dtype)

    def rotations(self) -> np.ndarray:
        """Rotary positions of this rank's tokens, (s, d, d)."""
        return functional.rotations_at(self.positions, self.config.head_dim, self.dtype)

    def causal_bias(self, queries: Sequence[int], keys: Sequence[int]) -> np.ndarray:
        """The causal mask of queries and keys at these positions, to be added to their scores."""
        return functional.causal_bias(queries, keys, self.dtype)

    @contextmanager
    def within(self, phase: str) -> Iterator[None]:
        """Name the operations of the block after another phase."""
        outer, self.phase = self.phase, phase
        try:
            yield
        finally:
            self.phase = outer

    @cached_property
    def price(self) -> Callable[..., Operation]:
        return priced_in(self.dtype)


class SizeOnlyContext(Context):
    """A context whose arrays are only sizes: its units compute no numbers, and of positions how many there
    are is all that counts."""

    array = SizeOnly

    @cached_property
    def positions(self) -> Sequence[int]:
        return range(self.config.sequence // self.cp.size)

    @property
    def all_positions(self) -> Sequence[int]:
        return range(self.config.sequence)

    @property
    def rows(self) -> Any:
        return self.array((len(self.positions),), np.intp)

    def zeros(self, *shape: int, dtype: str | None = None) -> Any:
        return self.array(shape, dtype or self.dtype)

    def in_dtype(self, x: Any) -> Any:
        return self.zeros(*x.shape)

    def draw(self, parameter: Parameter, seed: int) -> Any:
        return self.zeros(*parameter.shape)

    def rotations(self) -> Any:
        return self.zeros(len(self.positions), self.config.head_dim, self.config.head_dim)

    def causal_bias(self, queries: Sequence[int], keys: Sequence[int]) -> Any:
        return self.zeros(len(queries), len(keys))


class Saved(dict[str, np.ndarray]):
    """Arrays kept for the backward pass; keeping and popping moves the GPU's memory counter."""

    def __init__(self, gpu: GPU) -> None:
        super().__init__()
        self.gpu = gpu
        self.shared: set[str] = set()  # two names of one array, which is counted once

    def keep(self, **arrays: np.ndarray) -> None:
        self.gpu.allocate("activations", sum([array.nbytes for array in arrays.values()]))
        self.update(arrays)

    def keep_as(self, name: str, kept: str) -> None:
        """Keep an array under another name too: its memory is freed with the later of both."""
        self[name], self.shared = self[kept], {name, kept}

    def take(self, name: str) -> np.ndarray:
        array = self.pop(name)
        self.gpu.free("activations", self._freed(name, array))
        return array

    def take_all(self, *names: str) -> list[np.ndarray]:
        arrays = [self.pop(name) for name in names]
        self.gpu.free("activations", sum(map(self._freed, names, arrays)))
        return arrays

    def _freed(self, name: str, array: np.ndarray) -> int:
        if name not in self.shared:
            return array.nbytes
        self.shared = set()
        return 0

    def drop(self) -> None:
        self.take_all(*self)


@cache
def priced_in(dtype: str) -> Callable[..., Operation]:
    """Return what makes `costs.matmul(name, m, n, k)` and its like in a dtype, and looks them up after that:
    price(costs.matmul, name, m, n, k)."""
    return lru_cache(MOST_OPERATIONS)(lambda make, *sizes: make(*sizes, dtype=dtype))


@cache
def event_name(phase: str, unit: str, name: str) -> str:
    """Return an operation's name in events: "forward layers.0 qkv"."""
    return f"{phase} {unit} {name}"


def rows(x: np.ndarray) -> np.ndarray:
    """Turn (s, b, h) into rows: (s * b, h)."""
    return x.reshape(-1, x.shape[-1])


class NotHeld(dict[str, np.ndarray]):
    """The parameters of a unit whose arrays have not been made yet."""

    def __init__(self, unit: str) -> None:
        self.unit = unit

    def __missing__(self, name: str) -> np.ndarray:
        raise UserError(
            f"{name!r} of {self.unit} has no array on this GPU. Where weights are sharded, gather() of a "
            "bucket comes first, and forward and backward are the bucket's, not the replica's"
        )


class Unit:
    """A piece of the model with its parameters in one flat array. Call its passes as

    forward(x, microbatch) -> y;  backward(dy, microbatch) -> dx, or its halves backward_input(dy, microbatch)
                                  -> dx and, any time
    later, backward_weight(microbatch). Gradients are added to what `g` holds.
    """

    is_copy = False  # of a table that another unit has
    is_experts = False  # which fewer ranks hold than everything else, and average
    begins_backward = False  # with the loss, and no gradient that comes from elsewhere

    def __init__(self, name: str, context: Context, parameters: list[Parameter]) -> None:
        self.name, self.context, self.gpu, self.parameters = name, context, context.gpu, parameters
        self.size = sum(parameter.size for parameter in parameters)
        self.w: dict[str, np.ndarray] = NotHeld(name)
        self.g: dict[str, np.ndarray] = NotHeld(name)
        self.saved: dict[Any, Saved] = {}
        self.inner: list[Unit] = []  # units inside, with buckets of their own
        self.defers = True

    @property
    def nbytes(self) -> int:
        """Bytes of its weights and of those of the units inside."""
        return sum(unit.size for unit in (self, *self.inner)) * costs.itemsize(self.context.dtype)

    def attach(self, weights: np.ndarray | None = None, gradients: np.ndarray | None = None) -> None:
        """Let the unit's parameters be views of these flat arrays."""
        if weights is not None:
            self.w = self._short_names(weights)
        if gradients is not None:
            self.g = self._short_names(gradients)

    def _short_names(self, flat: np.ndarray) -> dict[str, np.ndarray]:
        named = {parameter.short_name: view for parameter, view in views(self.parameters, flat)}
        return named | self.fused(flat, named)

    def fused(self, flat: np.ndarray, named: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Views that span several parameters that lie side by side."""
        return {}

    def keep(self, key: Any) -> Saved:
        if key not in self.saved:
            self.saved[key] = Saved(self.gpu)
        return self.saved[key]

    # ---- mathematics, priced where it is computed

    def matmul(self, name: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Multiply (m, k) and (k, n), and charge for it."""
        self.charge(costs.matmul, name, a.shape[0], b.shape[1], a.shape[1])
        product = a @ b
        if self.context.watch:
            self.context.watch.see(event_name(self.context.phase, self.name, name), product)
        return product

    def elementwise(self, name: str, elements: int, passes: int) -> None:
        """Charge for a kernel that moves `passes` arrays of so many elements; the caller computes it."""
        self.charge(costs.elementwise, name, elements, passes)

    def norm(self, name: str, x: np.ndarray) -> np.ndarray:
        """RMSNorm with the weight of this name."""
        if getattr(x, "shape", ())[-1:] != self.w[name].shape:
            raise UserError(
                f"forward of {self.name} takes what the unit before it returns: run the units from the first "
                "to the last"
            )
        self.elementwise(name, x.size, 2)
        return functional.rms_norm(x, self.w[name])

    def norm_backward(self, name: str, dy: np.ndarray, saved: Saved) -> np.ndarray:
        """Return the gradient of the input, which `saved` has as "x"; add up the weight's."""
        self.elementwise(name, dy.size, 3)
        dx, dweight = functional.rms_norm_backward(dy, saved.take("x"), self.w[name])
        self.g[name] += dweight
        return dx

    def charge(self, make: Callable[..., Operation], name: str, *sizes: int) -> None:
        context = self.context
        self.gpu.compute(context.price(make, name, *sizes), event_name(context.phase, self.name, name))

    # ---- the passes

    forward: Callable[[Any, int], Any]
    backward_input: Callable[[Any, int], Any]
    backward_weight: Callable[[int], None]

    def parameter_gradients(self) -> Iterator[tuple[Parameter, np.ndarray]]:
        for parameter in self.parameters:
            yield parameter, self.g[parameter.short_name]

    def backward(self, dy: Any, microbatch: int) -> Any:
        """Both halves at once: every weight's gradient as soon as its inputs are there. Raises UserError
        where something must come before."""
        self.require_inputs(dy, microbatch)
        self.defers = False
        try:
            return self.backward_input(dy, microbatch)
        finally:
            self.defers = True

    def require_inputs(self, dy: Any, microbatch: int) -> None:
        kept = [key[-1] if isinstance(key, tuple) else key for key, arrays in self.saved.items() if arrays]
        if microbatch not in kept:
            raise UserError(
                f"backward of {self.name}: microbatch {microbatch} has no forward yet, or its backward is "
                "done"
            )
        if dy is None and not self.begins_backward:
            raise UserError(
                f"backward of {self.name} takes the gradient of its output, and got None. Only the last unit "
                "begins with None: run the units from the last to the first"
            )
