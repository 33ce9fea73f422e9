"""What is measured on one device: the kernels of a training step, in torch, by shape and type of number.

Idea   A kernel is a name, a type of number, a shape and something to run. Shapes are those of training:
       products of tokens with weights, causal attention of one batch.
       On a GPU matmuls and attention run from a CUDA graph: their seconds are the device's alone, however
       long the host takes to launch them.
Limit  torch's eager kernels; of compiled ones the launches alone.

Glossary
    matmul      forward and both gradients of a linear layer; "matmul forward" is the first of them
    launch      a chain of multiplications of one number, forward and backward: nothing but launches
    launch eager, launch compiled, launch graph
                a chain of products of matrices so small that nothing but launches is left of it: kernel by
                kernel, by torch.compile, which cannot make one kernel of them, and from a CUDA graph
    attention   forward alone, and forward with backward
"""

import importlib
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ndparallel.base.errors import UserError
from ndparallel.calibration.timing import Clock, Repeated, Run, Sampler, Windows, repetitions

HEADS = 8
ROW = 512  # elements that a norm norms
CHAIN = 50  # multiplications of a launch kernel
TINY = 16  # rows and columns of the matrices of such a chain
RECORDED = ("matmul", "attention")  # kinds that a GPU runs from a CUDA graph
RECORDED_SECONDS = 1e-3  # of runs in one CUDA graph: long beside the launch of it
FIRST_WITH_FP8 = (8, 9)  # compute capability: Ada, and Hopper after it
CPU_SHAPES = (
    (256, 64, 64),
    (512, 128, 128),
    (512, 256, 256),
    (512, 512, 512),
    (512, 1408, 512),
    (1024, 1024, 1024),
)
GPU_SHAPES = tuple((4096, size, size) for size in (512, 1024, 2048, 4096, 8192)) + ((8192, 8192, 8192),)


class Kernel(NamedTuple):
    """`shape` is (m, n, k) of a matmul, (batch, heads, length, width) of attention, (elements,) of an
    element-by-element kernel, (parameters,) of the optimizer, (kernels,) of a chain of launches."""

    kind: str
    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.kind} {' x '.join(map(str, self.shape))} in {self.dtype}"


class Sizes(NamedTuple):
    """What a kind of device is measured with: its first type of number is that of its training."""

    dtypes: tuple[str, ...]
    matmuls: tuple[tuple[int, int, int], ...]
    lengths: tuple[int, ...]
    tokens: int  # of all sequences of attention together; at least one sequence
    width: int  # of a head, of attention and of the steps that are measured
    elements: int  # of an activation
    parameters: int


SIZES = {
    "cpu": Sizes(("float32", "bfloat16"), CPU_SHAPES, (128, 256, 512, 1024), 1, 64, 2**19, 2**20),
    "cuda": Sizes(
        ("bfloat16", "float32"), GPU_SHAPES, (512, 1024, 2048, 4096, 8192), 2**14, 128, 2**26, 2**26
    ),
}


def load_torch() -> Any:
    """Import torch. Raises UserError where it is not installed."""
    try:
        return importlib.import_module("torch")
    except ImportError:
        raise UserError(
            "this measures with torch, which is not here: pip install 'ndparallel[torch]'."
        ) from None


def device_of(torch: Any) -> str:
    """The kind of device that torch would train on."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def clock_of(torch: Any, cpu_time: bool) -> Clock:
    """Return a clock that waits for the device; with `cpu_time` of this process's own seconds. Raises
    UserError where a GPU's seconds would be counted so."""
    if device_of(torch) == "cpu":
        return time.process_time if cpu_time else time.perf_counter
    if cpu_time:
        raise UserError("a GPU's seconds are no CPU seconds: leave out --cpu-time.")

    def when_done() -> float:
        torch.cuda.synchronize()
        return time.perf_counter()

    return when_done


def has_compiler() -> bool:
    """Whether there is the C++ compiler that torch.compile calls (CXX, or g++; on a Mac clang++)."""
    usual = "clang++" if sys.platform == "darwin" else "g++"
    return shutil.which(os.environ.get("CXX", usual)) is not None


def kernels(torch: Any, sizes: Sizes) -> dict[Kernel, Run]:
    """Return what is measured, in the order of a round."""
    dtype, found = sizes.dtypes[0], dict[Kernel, Run]()
    for each in sizes.dtypes:
        for shape in sizes.matmuls:
            found[Kernel("matmul", each, shape)] = matmul(torch, each, shape)
    for length in sizes.lengths:
        batch = (max(1, sizes.tokens // length), HEADS, length, sizes.width)
        for kind, run in attention(torch, dtype, batch):
            found[Kernel(kind, dtype, batch)] = run
    for kind, run in element_by_element(torch, dtype, sizes.elements):
        found[Kernel(kind, dtype, (sizes.elements,))] = run
    found[Kernel("optimizer", dtype, (sizes.parameters,))] = adamw(torch, dtype, sizes.parameters)
    found[Kernel("launch", dtype, (2 * CHAIN,))] = launches(torch, dtype)
    return found


def more_kernels(torch: Any, sizes: Sizes, compiled: bool) -> dict[Kernel, Run]:
    """Return what a hardware file has beside the kernels of a step: matmuls of 8 bits where the device has
    them, and launches by mode; `compiled` ones take a compiler some seconds."""
    device, dtype = device_of(torch), sizes.dtypes[0]
    found: dict[Kernel, Run] = {}
    if device == "cuda" and torch.cuda.get_device_capability() >= FIRST_WITH_FP8:
        for shape in sizes.matmuls:
            found[Kernel("matmul forward", "float8", shape)] = fp8_matmul(torch, shape)
    chain = tiny_matmuls(torch, dtype)
    modes = {"eager": chain}
    if compiled:
        modes["compiled"] = torch.compile(chain)
    if device == "cuda":
        modes["graph"] = in_graph(torch, chain)
    return found | {Kernel(f"launch {mode}", dtype, (CHAIN,)): run for mode, run in modes.items()}


def kernel_samplers(
    torch: Any, runs: Mapping[Kernel, Run], windows: Windows, clock: Clock
) -> dict[Kernel, Sampler]:
    """Return a sampler of each kernel; on a GPU matmuls and attention are recorded."""
    if device_of(torch) == "cpu":
        return {kernel: Repeated(run, windows, clock) for kernel, run in runs.items()}
    launches(torch, "float32")()  # autograd's thread takes the GPU, which cuBLAS would warn about
    pool = torch.cuda.graph_pool_handle()  # graphs that never run together share what they compute
    return {
        kernel: recorded(torch, run, windows, clock, pool)
        if kernel.kind.startswith(RECORDED)
        else Repeated(run, windows, clock)
        for kernel, run in runs.items()
    }


def recorded(torch: Any, run: Run, windows: Windows, clock: Clock, pool: Any) -> Sampler:
    times = repetitions(run, RECORDED_SECONDS, clock)
    return Repeated(in_graph(torch, run, times, pool), windows, clock, times)


def drawn(torch: Any, dtype: str, *shape: int, gradient: bool = False) -> Any:
    return torch.randn(shape, device=device_of(torch), dtype=getattr(torch, dtype), requires_grad=gradient)


def matmul(torch: Any, dtype: str, shape: tuple[int, int, int]) -> Run:
    """The three products of a linear layer, called by autograd as in a step, whose own work counts with
    them: on a CPU a third more for narrow ones (docs/calibration.md)."""
    m, n, k = shape
    x, weight = (drawn(torch, dtype, *sizes, gradient=True) for sizes in ((m, k), (n, k)))
    dy = drawn(torch, dtype, m, n)
    return lambda: torch.autograd.grad(torch.nn.functional.linear(x, weight), (x, weight), dy)


def fp8_matmul(torch: Any, shape: tuple[int, int, int]) -> Run:
    """The forward product alone, with one scale for each whole matrix."""
    functional, one = torch.nn.functional, torch.ones((), device=device_of(torch))
    m, n, k = shape
    x, weight = (drawn(torch, "float32", *sizes).to(torch.float8_e4m3fn) for sizes in ((m, k), (n, k)))
    scale = (one, functional.ScalingType.TensorWise)
    return lambda: functional.scaled_mm(x, weight.t(), *scale, *scale)


def attention(torch: Any, dtype: str, shape: tuple[int, ...]) -> Iterator[tuple[str, Run]]:
    q, k, v = (drawn(torch, dtype, *shape, gradient=True) for _ in range(3))
    dy = drawn(torch, dtype, *shape)

    def mix() -> Any:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    yield "attention forward", mix
    yield "attention both", lambda: torch.autograd.grad(mix(), (q, k, v), dy)


def element_by_element(torch: Any, dtype: str, elements: int) -> Iterator[tuple[str, Run]]:
    """A residual's sum, an activation, and a norm over rows as wide as the model of a step."""
    x, y = drawn(torch, dtype, elements), drawn(torch, dtype, elements)
    rows, weight = x.view(-1, ROW), drawn(torch, dtype, ROW)
    yield "sum", lambda: x + y
    yield "silu", lambda: torch.nn.functional.silu(x)
    yield "norm", lambda: torch.nn.functional.rms_norm(rows, (ROW,), weight)


def adamw(torch: Any, dtype: str, parameters: int) -> Run:
    weight = torch.nn.Parameter(drawn(torch, dtype, parameters))
    weight.grad = drawn(torch, dtype, parameters)
    return torch.optim.AdamW([weight]).step


def launches(torch: Any, dtype: str) -> Run:
    x = drawn(torch, dtype, 1, gradient=True)

    def chain() -> None:
        y = x
        for _ in range(CHAIN):
            y = y * 1.0
        torch.autograd.grad(y, x)

    return chain


def tiny_matmuls(torch: Any, dtype: str) -> Run:
    x = torch.zeros(TINY, TINY, device=device_of(torch), dtype=getattr(torch, dtype))

    def chain() -> Any:
        y = x
        for _ in range(CHAIN):
            y = y @ x
        return y

    return chain


def in_graph(torch: Any, run: Run, times: int = 1, pool: Any = None) -> Run:
    """Record what so many runs launch, and return what launches all of it at once."""
    run()  # makes what cannot be made while a graph is recorded
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        for _ in range(times):
            run()
    return graph.replay
