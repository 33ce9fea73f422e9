"""What is measured is what its name says: every run is called on a torch of numpy arrays that counts FLOPs,
elements and messages."""

import json
import sys
from collections import Counter
from itertools import chain, product
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ndparallel.base.errors import UserError
from ndparallel.calibration import steps
from ndparallel.calibration.kernels import CHAIN, HEADS, ROW, SIZES, Kernel, Sizes, kernels
from ndparallel.calibration.links import BYTES, MAKERS, MeasuredTransfer, transfers
from ndparallel.calibration.steps import GRIDS, grid
from ndparallel.calibration.table import ARRAYS, flops
from ndparallel.calibration.timing import Windows
from ndparallel.hardware.matmul_efficiency import TILE

RECORDED = json.loads(Path(__file__).with_name("recorded.json").read_text("utf-8"))
SMALL = Sizes(("float32", "float64"), ((8, 4, 2), (16, 32, 8)), (8, 16), 16, 4, 1024, 64)


class Array(np.ndarray):
    """A numpy array with what of torch's tensors is used."""

    def to(self, device):
        return self

    def view(self, *shape):  # type: ignore[override]
        assert min(shape) >= -1  # numpy takes any number below 0
        return self.reshape(shape)

    def numel(self):
        return self.size

    device = "cpu"


class CountingTorch:
    """Computes nothing but shapes: `done` counts FLOPs, elements and backward passes; `moved` has the sizes
    that each collective is given."""

    float32, float64, bfloat16 = np.float32, np.float64, np.float16

    def __init__(self) -> None:
        self.done: Counter = Counter()
        self.moved: dict[str, tuple] = {}
        self.cuda = SimpleNamespace(is_available=lambda: False)
        self.nn = SimpleNamespace(
            Parameter=lambda weight: weight,
            functional=SimpleNamespace(
                linear=self.linear,
                scaled_dot_product_attention=self.attention,
                silu=lambda x: self.pass_over(x),
                rms_norm=self.norm,
            ),
        )
        self.autograd = SimpleNamespace(grad=self.grad)
        self.optim = SimpleNamespace(AdamW=self.adamw)
        self.distributed = SimpleNamespace(
            all_reduce=lambda whole, group: self.moves("all_reduce", whole),
            all_gather_single=lambda whole, part, group: self.moves("all_gather", part, whole),
            reduce_scatter_single=lambda part, whole, group: self.moves("reduce_scatter", whole, part),
            all_to_all_single=lambda to, leaving, group: self.moves("all_to_all", leaving, to),
            get_rank=lambda group: 0,
            get_global_rank=lambda group, rank: 10 + rank,
            isend="send",
            irecv="receive",
            P2POp=lambda *operation: operation,
            batch_isend_irecv=self.batch,
        )

    def randn(self, shape, dtype=np.float32, **_):
        return np.zeros(shape, dtype).view(Array)

    def zeros(self, *shape, **_):
        return self.randn(shape)

    def empty_like(self, other):
        return np.empty_like(other)

    def linear(self, x, weight):
        (m, k), (n, also_k) = x.shape, weight.shape
        assert k == also_k
        self.done["flops"] += 2 * m * n * k
        return self.zeros(m, n)

    def attention(self, q, k, v, is_causal):
        assert is_causal and q.shape == k.shape == v.shape
        batch, heads, length, width = q.shape
        self.done["flops"] += 4 * batch * heads * width * length * (length + 1) // 2
        return q

    def norm(self, rows, widths, weight):
        assert rows.shape[1:] == widths == weight.shape
        return self.pass_over(rows)

    def pass_over(self, x):
        self.done["elements"] += x.size
        return x

    def grad(self, y, inputs, dy=None):
        """Twice what went forward: a product has two gradients, attention as here counted too."""
        assert dy is None or dy.shape == y.shape
        self.done["flops"] *= 3
        self.done["backward"] += 1

    def adamw(self, weights):
        def step():
            self.done["elements"] += sum(weight.grad.size for weight in weights)

        return SimpleNamespace(step=step)

    def moves(self, name, *arrays):
        self.moved[name] = tuple(array.shape[0] for array in arrays)

    def batch(self, operations):
        ((_, leaving, to, _), (_, arriving, source, _)) = operations
        assert [each[0] for each in operations] == ["send", "receive"] and leaving is not arriving
        self.moved["point_to_point"] = leaving.size, arriving.size, to, source
        return [SimpleNamespace(wait=lambda: None)] * 2


def done(kind: str) -> list[tuple[Kernel, Counter]]:
    """The kernels of a kind, with what one run of each does."""
    torch, found = CountingTorch(), []
    for kernel, run in kernels(torch, SMALL).items():
        if kernel.kind == kind:
            torch.done.clear()
            run()
            found.append((kernel, Counter(torch.done)))
    assert found
    return found


def test_the_recorded_machine_was_measured_with_the_sizes_of_a_cpu():
    torch = CountingTorch()
    names = [(one["kind"], one["dtype"], tuple(one["shape"])) for one in RECORDED["kernels"]]
    assert names == [tuple(kernel) for kernel in kernels(torch, SIZES["cpu"])]


def test_a_matmul_runs_the_three_products_whose_flops_are_its_rate():
    for kernel, ran in done("matmul"):
        assert ran == {"flops": flops(kernel), "backward": 1}
    assert [kernel.dtype for kernel, _ in done("matmul")] == ["float32"] * 2 + ["float64"] * 2


def test_attention_runs_forward_alone_and_with_its_backward_pass():
    for kernel, ran in done("attention forward"):
        batch, heads, length, _ = kernel.shape
        assert ran == {"flops": flops(kernel)} and (batch * length, heads) == (SMALL.tokens, HEADS)
    for kernel, ran in done("attention both"):
        assert ran["backward"] == 1 and ran["flops"] == 3 * flops(kernel)


@pytest.mark.parametrize("kind", ["silu", "norm", "optimizer"])
def test_a_kernel_passes_over_as_many_elements_as_its_name_says(kind):
    ((kernel, ran),) = done(kind)
    assert ran == {"elements": prod(kernel.shape)}


def test_a_sum_reads_two_arrays_and_writes_one():
    run: Any = kernels(CountingTorch(), SMALL)[Kernel("sum", "float32", (1024,))]
    assert run().size * ARRAYS["sum"] == 3 * 1024


def test_a_chain_launches_as_many_kernels_forward_as_backward():
    """Each multiplication by a number has one kernel, and its gradient another."""
    launched: list[int] = []

    class Link(Array):
        def __mul__(self, other):
            launched.append(1)
            return self

    class LinkTorch(CountingTorch):
        def randn(self, shape, dtype=np.float32, **_):
            return np.zeros(shape, dtype).view(Link)

    torch = LinkTorch()
    found = {kernel: run for kernel, run in kernels(torch, SMALL).items() if kernel.kind == "launch"}
    ((kernel, run),) = found.items()
    run()
    assert 2 * len(launched) == 2 * CHAIN == kernel.shape[0] and torch.done["backward"] == 1


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize("elements", [48, 100])
def test_a_collective_moves_all_elements_that_its_ranks_can_share_evenly(ranks, elements):
    torch, part = CountingTorch(), elements // ranks
    for make in MAKERS.values():
        make(torch, None, ranks, elements)()
    shared = part * ranks
    assert torch.moved == {
        "all_reduce": (elements,),
        "all_gather": (part, shared),
        "reduce_scatter": (shared, part),
        "all_to_all": (shared, shared),
        "point_to_point": (elements, elements, 11, 10 + ranks - 1),  # to the next, from the one before
    }


class SlowTorch(CountingTorch):
    """One rank of two nodes of two, where an all-reduce takes 10 s and a product 3 s."""

    def __init__(self) -> None:
        super().__init__()
        self.now, torch = 0.0, self
        self.distributed.new_group = tuple
        self.distributed.get_rank = lambda group=(0,): 0
        self.distributed.get_global_rank = lambda group, rank: group[rank]
        self.distributed.ReduceOp = SimpleNamespace(MAX="max")
        self.distributed.all_reduce = self.all_reduce

        class Matrix(Array):
            def __matmul__(self, other):
                torch.now += 3.0
                torch.done["products"] += 1
                return self

        self.matrix = Matrix

    def zeros(self, *shape, **_):
        return np.zeros(shape).view(self.matrix) if len(shape) == 2 else super().zeros(*shape)

    def tensor(self, values, **_):
        return np.array(*values)

    def all_reduce(self, whole, group=None, op="sum", async_op=False):
        if op == "sum":
            self.now += 10.0
            self.moves("all_reduce", whole)
        return SimpleNamespace(wait=lambda: self.done.update(waits=1))


@pytest.fixture
def two_nodes_of_two(monkeypatch) -> SlowTorch:
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    return SlowTorch()


def test_collectives_move_the_bytes_of_their_names_in_numbers_of_four(two_nodes_of_two):
    torch = two_nodes_of_two
    found = transfers(torch, Windows(1, 1.0), lambda: torch.now)
    assert {(each.kind, each.where, each.bytes) for each in found} >= set(
        product(MAKERS, ("inside", "across"), BYTES)
    )
    sampler: Any
    for transfer, sampler in found.items():
        if transfer.kind in MAKERS:
            sampler.run()
            assert transfer.ranks == 2 and torch.moved[transfer.kind][0] in (
                transfer.bytes / 4,
                transfer.bytes / 8,
            )
    assert torch.moved["all_reduce"] == (BYTES[-1] / 4,)
    to, source = torch.moved["point_to_point"][2:]
    assert to == source == 2, "the other one of those across"


def test_the_products_beside_the_largest_all_reduce_take_twice_as_long(two_nodes_of_two):
    """10 s, of which 20 are six products of 3 s and some."""
    torch = two_nodes_of_two
    found = transfers(torch, Windows(1, 1.0), lambda: torch.now)
    for kind, moved in (("matmul", {}), ("all_reduce_and_matmul", {"all_reduce": (BYTES[-1] / 4,)})):
        sampler: Any = found[MeasuredTransfer(kind, "inside", 2, BYTES[-1])]
        torch.done.clear(), torch.moved.clear()
        sampler.run()
        assert torch.done["products"] == 7 and torch.moved == moved and torch.done["waits"] == len(moved)


@pytest.mark.parametrize(("device", "ranks"), [*product(GRIDS, (1, 2, 3, 4, 8))])
def test_the_sizes_of_a_step_fill_its_heads_its_ranks_and_its_plan(device, ranks):
    for case in grid(device, ranks):
        sizes, plan = case.sizes, case.plan
        assert sizes["heads"] * case.head == case.hidden and sizes["ffn"] * 4 == case.hidden * 11
        assert sizes["heads"] % sizes["kv_heads"] == 0 == sizes["kv_heads"] % plan.tp
        assert plan.gpus == ranks and plan.dp * plan.micro_batch == case.batch
    assert {case.twin.axis for case in grid(device, ranks)} >= {"dp"}


def test_a_script_is_loaded_once_by_a_name_that_no_lesson_has(tmp_path, monkeypatch):
    (tmp_path / "0d_of_tests.py").write_text("STRATEGIES = {}")
    monkeypatch.setattr(steps, "SCRIPTS", tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    module = steps.script("0d_of_tests.py")
    assert module.STRATEGIES == {} and steps.script("0d_of_tests.py") is module
    assert sys.modules.pop("in_pytorch_0d_of_tests") is module and str(tmp_path) in sys.path
    monkeypatch.setattr(steps, "SCRIPTS", tmp_path / "none")
    with pytest.raises(UserError, match="which a checkout has and a wheel has not"):
        steps.script("0d_of_tests.py")


def test_a_gpu_is_measured_with_whole_tiles():
    """What is none leaves multiprocessors idle (ndparallel/hardware/matmul_efficiency.py)."""
    sizes = SIZES["cuda"]
    numbers = [*chain(*sizes.matmuls), *sizes.lengths, sizes.width, sizes.tokens]
    assert {number % TILE[0] for number in numbers} == {0} and sizes.elements % ROW == 0
