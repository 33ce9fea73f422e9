"""What every unit of the model shares: its flat arrays, its saved activations, and its price list.

Idea   A unit (embedding, block, head) is what FSDP gathers, what a bucket is filled by, what a pipeline stage is made of.

Glossary
    saved      what a unit keeps of one microbatch from its forward to its backward pass, counted as activations
    w, g       the unit's weights and gradients by short name, views of flat arrays
    charge     a price list from ndparallel/costs.py: operations are looked up by name, held against the real shapes and charged
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from gpu import GPU, Operation
from ndparallel import costs
from ndparallel.costs import Sizes
from ndparallel.parameters import Parameter, part, views
from ndparallel.tensor_parallel import TensorParallel

RECOMPUTE = ("none", "selective", "full")


@dataclass(frozen=True)
class ModelConfig:
    """A Llama-style transformer. Weights are (outputs, inputs), as in torch."""

    layers: int = 8
    hidden: int = 32
    heads: int = 8
    kv_heads: int = 2
    ffn: int = 88
    vocab: int = 256
    sequence: int = 64
    tied: bool = False  # embedding and head share their table

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads


@dataclass
class Context:
    """What the units of one rank share. `loss_scale` weighs a microbatch, `targets` are its tokens to predict, (s, b)."""

    gpu: GPU
    config: ModelConfig
    tp: TensorParallel
    dtype: str = "float32"
    recompute: str = "none"
    loss_scale: float = 1.0
    targets: dict[int, np.ndarray] = field(default_factory=dict)
    losses: dict[int, float] = field(default_factory=dict)

    def sizes(self, batch: int) -> Sizes:
        return local_sizes(self.config, batch, self.tp.size, self.tp.index, self.tp.sequence_parallel, self.dtype)


@lru_cache(maxsize=256)
def local_sizes(config: ModelConfig, batch: int, tp: int, index: int, sequence_parallel: str, dtype: str) -> Sizes:
    """One tp rank's sizes of a layer, for a microbatch of `batch` sequences."""
    tokens, heads = config.sequence * batch, config.heads // tp
    shard = tokens if sequence_parallel == "none" else tokens // tp
    return Sizes(
        tokens=tokens,
        shard_tokens=shard,
        kept_tokens=shard if sequence_parallel == "sp-regather" else tokens,
        pairs=batch * heads * config.sequence * (config.sequence + 1) // 2,
        scores=batch * heads * config.sequence**2,
        hidden=config.hidden,
        heads=heads,
        kv_heads=max(1, config.kv_heads // tp),
        head_dim=config.head_dim,
        ffn=config.ffn // tp,
        vocab=part(config.vocab, tp, index).stop - part(config.vocab, tp, index).start,
        dtype=dtype,
    )


class Saved(dict[str, np.ndarray]):
    """Arrays kept for the backward pass; keeping and popping moves the GPU's memory counter."""

    def __init__(self, gpu: GPU) -> None:
        super().__init__()
        self.gpu = gpu

    def keep(self, **arrays: np.ndarray) -> None:
        for name, array in arrays.items():
            self.gpu.allocate("activations", array.nbytes)
            self[name] = array

    def take(self, name: str) -> np.ndarray:
        array = self.pop(name)
        self.gpu.free("activations", array.nbytes)
        return array

    def drop(self) -> None:
        for name in list(self):
            self.take(name)


class Charge:
    """The price list of one pass through one unit: charge an operation by its name."""

    def __init__(self, gpu: GPU, operations: dict[str, Operation]) -> None:
        self.gpu, self.operations = gpu, operations

    def __call__(self, name: str) -> None:
        self.gpu.compute(self.operations[name])

    def matmul(self, name: str, a: np.ndarray, b: np.ndarray, chunks: int = 1) -> np.ndarray:
        """Multiply (m, k) and (k, n), and charge for just that; `a` may be one of `chunks` equal chunks of what is priced."""
        operation = self.operations[name] if chunks == 1 else costs.chunk(self.operations[name], chunks)
        if operation.shape != (a.shape[0], b.shape[1], a.shape[1]):
            raise AssertionError(f"{operation.name} is priced as {operation.shape} and multiplies {a.shape} with {b.shape}")
        self.gpu.compute(operation)
        return a @ b


@lru_cache(maxsize=4096)
def price_list(prefix: str, operations: Callable[[Sizes], list[Operation]], sizes: Sizes) -> dict[str, Operation]:
    return {operation.name: operation._replace(name=f"{prefix} {operation.name}") for operation in operations(sizes)}


def rows(x: np.ndarray) -> np.ndarray:
    """(s, b, h) to (s * b, h)."""
    return x.reshape(-1, x.shape[-1])


class Unit:
    """A piece of the model with its parameters in one flat array. Call its passes as

    forward(x, microbatch) -> y;  backward(dy, microbatch) -> dx, or its halves backward_input(dy, microbatch) -> dx and, any time
    later, backward_weight(microbatch). Gradients are added to what `g` holds.
    """

    def __init__(self, name: str, context: Context, parameters: list[Parameter]) -> None:
        self.name, self.context, self.gpu, self.parameters = name, context, context.gpu, parameters
        self.size = sum(parameter.size for parameter in parameters)
        self.w: dict[str, np.ndarray] = {}
        self.g: dict[str, np.ndarray] = {}
        self.saved: dict[Any, Saved] = {}
        self.defers = True

    def attach(self, weights: np.ndarray | None = None, gradients: np.ndarray | None = None) -> None:
        """Let the unit's parameters be views of these flat arrays."""
        if weights is not None:
            self.w = self._short_names(weights)
        if gradients is not None:
            self.g = self._short_names(gradients)

    def _short_names(self, flat: np.ndarray) -> dict[str, np.ndarray]:
        named = {name.rsplit(".", 1)[-1]: view for name, view in views(self.parameters, flat).items()}
        return named | self.fused(flat, named)

    def fused(self, flat: np.ndarray, named: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Views that span several parameters that lie side by side."""
        return {}

    def initial_weights(self, seed: int) -> np.ndarray:
        return np.concatenate([parameter.draw(seed, self.context.dtype).reshape(-1) for parameter in self.parameters])

    def keep(self, key: Any) -> Saved:
        return self.saved.setdefault(key, Saved(self.gpu))

    def charge(self, phase: str, operations: Callable[[Sizes], list[Operation]], batch: int) -> Charge:
        return Charge(self.gpu, price_list(f"{phase} {self.name}", operations, self.context.sizes(batch)))

    forward: Callable[[Any, int], Any]
    backward_input: Callable[[Any, int], Any]
    backward_weight: Callable[[int], None]

    def parameter_gradients(self) -> Iterator[tuple[Parameter, np.ndarray]]:
        for parameter in self.parameters:
            yield parameter, self.g[parameter.name.rsplit(".", 1)[-1]]

    def backward(self, dy: Any, microbatch: int) -> Any:
        """Both halves at once: every weight's gradient as soon as its inputs are there."""
        self.defers = False
        try:
            return self.backward_input(dy, microbatch)
        finally:
            self.defers = True
