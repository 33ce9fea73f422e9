"""What only a GPU or several processes take of calibration, called on a torch that records and computes
nothing."""

from types import SimpleNamespace

import pytest

from ndparallel.base.errors import UserError
from ndparallel.calibration import links
from ndparallel.calibration.kernels import (
    CHAIN,
    SIZES,
    Kernel,
    clock_of,
    in_graph,
    kernel_samplers,
    kernels,
    more_kernels,
)
from ndparallel.calibration.links import BYTES, MeasuredTransfer, fitted_links, slowdown
from ndparallel.calibration.timing import Budget, Windows

ANSWERS = {"cuda.is_available": True, "cuda.get_device_capability": (9, 0)}


class FakeTorch:
    """Records the names of what is called, with the arguments that are text or numbers."""

    def __init__(self, name: str = "", calls: list | None = None, answers: dict | None = None) -> None:
        self._name, self.calls = name, [] if calls is None else calls
        self._answers = answers or ANSWERS

    def __getattr__(self, name: str) -> "FakeTorch":
        return FakeTorch(f"{self._name}.{name}".lstrip("."), self.calls, self._answers)

    def __call__(self, *arguments, **options):
        self.calls.append((self._name, *(one for one in arguments if isinstance(one, str | int))))
        return self._answers.get(self._name, self)

    def __enter__(self):
        self.calls.append((f"{self._name} begins",))

    def __exit__(self, *_):
        self.calls.append((f"{self._name} ends",))

    def __matmul__(self, other):
        self.calls.append(("matmul",))
        return self

    def __mul__(self, other):
        return self

    def names(self) -> list[str]:
        return [name for name, *_ in self.calls]


def test_a_process_takes_its_gpu_before_it_joins_and_leaves_the_group_at_the_end(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    torch = FakeTorch()
    with links.joined(torch):
        kernels(torch, SIZES["cuda"])
    done = [call for call in torch.calls if call != ("cuda.is_available",)]
    assert done[:2] == [("cuda.set_device", 1), ("distributed.init_process_group", "nccl")]
    assert done[2][0] == "randn" and torch.names()[-1] == "distributed.destroy_process_group"


def test_the_group_is_left_where_measuring_fails(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    torch = FakeTorch()
    with pytest.raises(UserError), links.joined(torch):
        raise UserError("busy")
    assert torch.names()[-1] == "distributed.destroy_process_group"


@pytest.mark.parametrize("rank, ends_with", [("0", UserError), ("1", SystemExit)])
def test_where_measuring_is_refused_the_first_process_alone_says_why(rank, ends_with, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", rank)
    with pytest.raises(ends_with) as ended, links.measuring(FakeTorch(), Budget(1.0)):
        raise UserError("busy")
    assert f"{ended.value}" == {"0": "busy", "1": "2"}[rank]


def test_variables_that_no_torchrun_has_set_are_told(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "two")
    with pytest.raises(UserError, match="WORLD_SIZE: not a whole number: 'two'"):
        links.launched()

    def refuse(backend):
        raise ValueError("MASTER_ADDR expected, but not set")

    torch = SimpleNamespace(
        cuda=SimpleNamespace(is_available=lambda: False),
        distributed=SimpleNamespace(init_process_group=refuse),
    )
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="2 processes, which torch cannot join: MASTER_ADDR"):
        links.joined(torch).__enter__()


def test_a_rank_that_is_left_over_keeps_no_process_alone_from_printing(monkeypatch):
    monkeypatch.setenv("RANK", "3")
    assert links.is_first()


def test_a_gpus_clock_waits_for_all_that_was_launched():
    torch = FakeTorch()
    clock = clock_of(torch, cpu_time=False)
    clock()
    assert torch.names()[-1] == "cuda.synchronize"


def test_a_graph_records_the_whole_chain_after_it_ran_once_and_is_replayed():
    torch = FakeTorch()
    chain = more_kernels(torch, SIZES["cuda"], compiled=False)[Kernel("launch eager", "bfloat16", (CHAIN,))]
    torch.calls.clear()
    replay = in_graph(torch, chain)
    names = torch.names()
    begin, end = names.index("cuda.graph begins"), names.index("cuda.graph ends")
    assert names[:begin].count("matmul") == names[begin:end].count("matmul") == CHAIN
    assert "cuda.synchronize" in names[:begin]
    replay()
    assert torch.names()[-1] == "cuda.CUDAGraph.replay"


ON_HOST, ON_DEVICE = 1e-4, 2e-5  # seconds of a run: as the host launches it, and from a graph


class FakeKernel:
    """Takes the host's seconds, and none while a graph records it; a replay takes the device's for each."""

    def __init__(self, torch: FakeTorch) -> None:
        self.torch = torch

    def __call__(self) -> None:
        self.torch.calls.append(("run",))

    def now(self) -> float:
        seconds, recorded, recording = 0.0, 0, False
        for name in self.torch.names():
            recording = name == "cuda.graph begins" or (recording and name != "cuda.graph ends")
            recorded += recording and name == "run"
            seconds += ON_HOST * (name == "run" and not recording)
            seconds += ON_DEVICE * recorded * (name == "cuda.CUDAGraph.replay")
        return seconds


@pytest.mark.parametrize(
    ("kind", "seconds"), [("matmul", ON_DEVICE), ("attention both", ON_DEVICE), ("launch", ON_HOST)]
)
def test_a_gpus_short_kernels_count_without_their_launches(kind, seconds):
    torch = FakeTorch()
    kernel, run = Kernel(kind, "bfloat16", (1, 1, 1)), FakeKernel(torch)
    (sampler,) = kernel_samplers(torch, {kernel: run}, Windows(2, 1e-3), run.now).values()
    assert sampler() == pytest.approx(seconds)


def test_the_first_kernel_of_a_gpu_is_a_launch_in_autograds_thread():
    """cuBLAS warns where it is the first there."""
    torch = FakeTorch()
    kernel_samplers(torch, {}, Windows(1, 1.0), lambda: 0.0)
    assert torch.names().index("autograd.grad") < torch.names().index("cuda.graph_pool_handle")


@pytest.mark.parametrize(("capability", "has_fp8"), [((8, 0), False), ((8, 9), True), ((9, 0), True)])
def test_8_bits_are_measured_from_ada_on(capability, has_fp8):
    torch = FakeTorch(answers=ANSWERS | {"cuda.get_device_capability": capability})
    found = more_kernels(torch, SIZES["cuda"], compiled=True)
    assert any(kernel.dtype == "float8" for kernel in found) is has_fp8
    assert {kernel.kind for kernel in found} - {"matmul forward"} == {
        "launch eager",
        "launch compiled",
        "launch graph",
    }


# ------------------------------------------------------------------------------------------ several processes


def test_a_rank_that_is_refused_ends_all_with_its_sentence(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "3")

    def all_gather_object(every: list, mine: str) -> None:
        every[:] = ["", "", "spread by 65%"]

    torch = SimpleNamespace(distributed=SimpleNamespace(all_gather_object=all_gather_object))
    with pytest.raises(UserError, match="rank 2: spread by 65%"):
        links.refuse_together(torch, lambda: None)


def transfers(kind: str, ranks: int, seconds) -> dict[MeasuredTransfer, list[float]]:
    return {MeasuredTransfer(kind, "across", ranks, size): [seconds(size)] for size in BYTES}


def test_each_collective_shows_latency_and_bandwidth_as_the_planner_prices_it():
    latency, bandwidth, p = 8e-6, 5e9, 4
    ring = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}
    samples = transfers("point_to_point", p, lambda size: latency + size / bandwidth)
    samples |= transfers("all_to_all", p, lambda size: latency + (p - 1) * size / p / bandwidth)
    for kind, times in ring.items():
        around = times * (p - 1)
        samples |= transfers(kind, p, lambda size, steps=around: steps * (latency + size / p / bandwidth))
    found = fitted_links(samples)
    assert set(found) == {(kind, "across") for kind in (*ring, "all_to_all", "point_to_point")}
    for link in found.values():
        assert link.latency_seconds == pytest.approx(latency)
        assert link.bandwidth_bytes_per_second == pytest.approx(bandwidth)


@pytest.mark.parametrize(
    ("both", "expected"), [(30.0, 0.0), (31.0, 1.0), (30.5, 1 / 3), (29.0, 0.0), (40.0, 99.0)]
)
def test_compute_beside_a_collective_gets_less_done_while_it_is_under_way(both, expected):
    """An all-reduce of 2 s beside products of 30 s: where both take 31 s, half of 2 s of compute was lost."""
    alone = {"all_reduce": 2.0, "matmul": 30.0, "all_reduce_and_matmul": both}
    samples = {MeasuredTransfer(kind, "inside", 2, BYTES[-1]): [taken] for kind, taken in alone.items()}
    assert slowdown(samples) == pytest.approx(expected)
