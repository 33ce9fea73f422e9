"""What only a GPU or several processes take of calibration, called on a torch that records and computes
nothing: not tried on a GPU."""

from types import SimpleNamespace

import pytest

from ndparallel.base.errors import UserError
from ndparallel.calibration import links
from ndparallel.calibration.kernels import CHAIN, SIZES, Kernel, clock_of, in_graph, kernels, more_kernels
from ndparallel.calibration.links import BYTES, MeasuredTransfer, hidden_shares, links_by_collective
from ndparallel.calibration.table import launch_seconds_by_mode

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


def test_a_launch_is_a_part_of_its_chain():
    samples = {Kernel("launch graph", "bfloat16", (50,)): [1e-4], Kernel("launch", "bfloat16", (100,)): [9.0]}
    assert launch_seconds_by_mode(samples) == {"graph": pytest.approx(2e-6)}


# ------------------------------------------------------------------------------------------ several processes


def test_a_rank_that_is_refused_ends_all_with_its_sentence(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "3")

    def all_gather_object(every: list, mine: str) -> None:
        every[:] = ["", "", "spread by 65%"]

    torch = SimpleNamespace(distributed=SimpleNamespace(all_gather_object=all_gather_object))
    with pytest.raises(UserError, match="rank 2: spread by 65%"):
        links.refuse_together(torch, "")


def transfers(kind: str, ranks: int, seconds) -> dict[MeasuredTransfer, list[float]]:
    return {MeasuredTransfer(kind, "across", ranks, size): [seconds(size)] for size in BYTES}


def test_each_collective_shows_latency_and_bandwidth_of_a_step_of_its_ring():
    latency, bandwidth, p = 8e-6, 5e9, 4
    ring = {"all_reduce": 2 * (p - 1), "all_gather": p - 1, "reduce_scatter": p - 1, "all_to_all": p - 1}
    samples = transfers("point_to_point", p, lambda size: latency + size / bandwidth)
    for kind, steps in ring.items():
        samples |= transfers(kind, p, lambda size, steps=steps: steps * (latency + size / p / bandwidth))
    found = links_by_collective(samples)
    assert {link["kind"] for link in found} == {*ring, "point_to_point"}
    for link in found:
        assert link["latency_seconds"] == pytest.approx(latency)
        assert link["bandwidth_bytes_per_second"] == pytest.approx(bandwidth)


@pytest.mark.parametrize(("both", "hidden"), [(3.0, 1.0), (5.0, 0.0), (4.0, 0.5), (6.0, -0.5)])
def test_what_is_hidden_of_the_shorter_is_what_both_at_once_save(both, hidden):
    samples = transfers("all_reduce", 2, lambda size: 2.0) | transfers("matmul", 2, lambda size: 3.0)
    samples |= transfers("all_reduce_and_matmul", 2, lambda size: both)
    assert {one["hidden"] for one in hidden_shares(samples)} == {hidden}
