"""What torchtitan prints as a GPU's memory, held to a replay: the tensors of FSDP's steps one after another,
through PyTorch's allocator."""

from dataclasses import dataclass, field

import pytest

from ndparallel.hardware.accelerator import find_hardware
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.models.presets import find_model
from ndparallel.planner.prediction import peak_memory
from ndparallel.planner.software import find_stack
from tests.support.caching_allocator import CachingAllocator, Tensor

H, F, KV, VOCAB, LAYERS, ROWS = 4096, 14336, 1024, 128256, 32, 2 * 8192  # Llama-3-8B; two sequences
LAYER = (H * H, H * KV, H * KV, H * H, H * F, H * F, H * F)  # weights
ENDS = (VOCAB * H, VOCAB * H)
WIDE, LONG, KEYS, LOGITS = ROWS * H, ROWS * F, ROWS * KV, ROWS * VOCAB  # numbers of an activation
STEPS = 3


@dataclass
class Replay:
    """The steps of one of `dp` ranks; sizes are in numbers of 16 bits unless they say otherwise."""

    dp: int
    compiled: bool
    memory: CachingAllocator = field(default_factory=CachingAllocator)
    gradients: list[Tensor] = field(default_factory=list)
    sent: list[Tensor] = field(default_factory=list)

    def run(self) -> CachingAllocator:
        units = [*[LAYER] * LAYERS, ENDS]
        self.single(number / self.dp for unit in units for number in unit)
        for step in range(STEPS):
            self.memory.free(*self.gradients)
            self.gradients = []
            self.step()
            if step == 0:  # AdamW's moments
                self.single(number / self.dp for unit in units for number in unit for _ in range(2))
        return self.memory

    def half(self, *numbers: float) -> list[Tensor]:
        return [self.memory.new(2 * number) for number in numbers]

    def single(self, numbers) -> list[Tensor]:
        return [self.memory.new(4 * number) for number in numbers]

    def step(self) -> None:
        ends = self.gathered(ENDS)
        inputs, kept = self.half(WIDE), []
        for _ in range(LAYERS):
            weights = self.gathered(LAYER)
            kept.append(self.forward(inputs))
            self.memory.free(*weights)
        head = self.loss(inputs.pop())
        grads = self.half(WIDE)
        for saved in reversed(kept):
            weights = self.gathered(LAYER)
            grads = self.backward(saved, inputs.pop(), grads)
            self.memory.free(*weights)
        self.memory.free(*grads)
        self.reduce(ENDS, [head, *self.half(VOCAB * H)])
        self.memory.free(*ends)

    def gathered(self, unit) -> list[Tensor]:
        """All-gathered into one block of another stream, which stays until the next unit has copied its
        shards, and copied out."""
        before = self.sent
        self.sent = [self.memory.new(2 * sum(unit) * share, "gather") for share in (1 / self.dp, 1)]
        self.memory.free(*before)
        return self.half(*unit)

    def forward(self, inputs: list[Tensor]) -> list[Tensor]:
        """Adds the layer's output to the inputs; what is kept are outputs of queries, values, attention,
        gate, and in eager code of the last matrix."""
        kept = self.half(WIDE, KEYS)
        with self.memory.some(
            *[2 * WIDE] * 5, 2 * KEYS
        ):  # norm, queries and keys turned, repeated keys, values
            kept += self.half(WIDE)
        with self.memory.some(2 * WIDE, 2 * WIDE):
            kept += self.half(LONG)
            with self.memory.some(2 * LONG, 2 * LONG, 2 * LONG):
                kept += self.half(*[WIDE] * (not self.compiled))
                inputs += self.half(WIDE)
        return kept

    def backward(self, kept: list[Tensor], layer_input: Tensor, grads: list[Tensor]) -> list[Tensor]:
        weights = []
        with self.memory.some(*[2 * WIDE] * 6, 2 * KEYS):  # what runs again
            with self.memory.some(*[2 * LONG] * 4):
                weights += self.half(*LAYER[4:])
            with self.memory.some(*[2 * WIDE] * 4):
                weights += self.half(*LAYER[:4])
        self.memory.free(*kept, layer_input, *grads)
        grads = self.half(WIDE)
        self.reduce(LAYER, weights)
        return grads

    def reduce(self, unit, gradients: list[Tensor]) -> None:
        """Reduce-scattered in 32 bits; the shards lie in another stream's blocks."""
        with self.memory.some(4 * sum(unit)):
            self.memory.free(*gradients)
            self.gradients.append(self.memory.new(4 * sum(unit) / self.dp, "reduce"))

    def loss(self, last: Tensor) -> Tensor:
        """Logits, and their log-softmax and gradients in 32 bits; returns the gradient of the head."""
        norm = self.half(WIDE)
        (logits,) = self.half(LOGITS)
        with self.memory.some(4 * LOGITS):  # as float32, until the log-softmax is there
            result = self.memory.new(4 * LOGITS)
        self.memory.free(logits)
        first, second = (self.memory.new(4 * LOGITS) for _ in range(2))
        self.memory.free(first, result)
        (back,) = self.half(LOGITS)
        self.memory.free(second)
        (gradient,) = self.half(VOCAB * H)
        self.memory.free(back, *norm, last)
        return gradient


@pytest.mark.parametrize("dp", [8, 128])
@pytest.mark.parametrize("compiled", [False, True])
def test_reserved_bytes_are_those_of_fsdps_tensors_through_the_allocator(dp, compiled):
    stack = find_stack("torchtitan-compiled" if compiled else "torchtitan")
    job = TrainingJob(find_model("llama-3-8b"), find_hardware("h100"), stack, 8192, 2 * dp)
    plan = Plan(dp=dp, micro_batch=2, zero=3, recompute="selective")
    replayed, memory = Replay(dp, compiled).run(), peak_memory(job, plan)
    assert memory.reserved == pytest.approx(replayed.reserved, rel=0.01)
