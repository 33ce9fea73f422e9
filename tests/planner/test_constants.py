"""Every constant that a second, a byte or a choice depends on, with where it comes from: none is fitted to a
run or a family, but for the four that were, once, on the first 44 runs; they may become fewer."""

import ast
import importlib

import pytest

from ndparallel.hardware.accelerator import data_sheets

MODULES = {
    "ndparallel.hardware.figures": {
        "MEMORY_FRACTION": "fitted",
        "KERNEL_OVERHEAD_SECONDS": "fitted",
        "INSIDE_FRACTION": "NCCL, src/graph/topo.h: 20 of the 25 GB/s of an NVLink",
        "ACROSS_FRACTION": "stas00/ml-engineering, network/README.md: 364.87 of 400 GB/s on 32 H200s",
        "HOST_FRACTION": "nvbandwidth, forums.developer.nvidia.com/t/352186",
        "HOST_LAUNCH_SECONDS": "NVIDIA/TransformerEngine, issue 2053",
        "LATENCY_INSIDE_SECONDS": "MooreThreads/SimuMax, configs/system/b200_bf16_ceperm.json",
        "LATENCY_ACROSS_SECONDS": "NCCL, src/graph/tuning.cc, hwLat",
    },
    "ndparallel.hardware.accelerator": {
        "WIDE_HEAD": "the widest head of arXiv:2407.08608, figure 5, beside 256",
    },
    "ndparallel.hardware.collective_links": {"SLOWDOWN": "arXiv:2507.03114, mean over four GPUs"},
    "ndparallel.hardware.matmul_efficiency": {"TILE": "cutlass/media/docs, the largest default tile"},
    "ndparallel.planner.launches": {
        "MODULE": "NVIDIA/TransformerEngine, issue 2053",
        "COMPILED": "meta-pytorch/tritonbench, pull request 1017",
        "DRIVER": "meta-pytorch/tritonbench, pull request 1017",
    },
    "ndparallel.planner.layers.collective_time": {
        "START_SECONDS": "MooreThreads/SimuMax, configs/system/b200_bf16_ceperm.json",
        "LL_INSIDE_SECONDS": "NCCL, src/graph/tuning.cc, hwLatencies: a tree on NVLink, protocol LL",
        "LL_ACROSS_SECONDS": "the same, on the network",
        "LL128_HOP": "the same: a ring on the network, LL128, 4.0 of Simple's 14.0 us",
        "LL128_HOP_OF_ONE": "the same of a tree, 8.5 us, which a ring of one GPU a node takes",
        "LL128_START_SECONDS": "the same, baseLatencies: LL128's 14.0 less Simple's 8.4 us",
        "LL128_BANDWIDTH": "the same, ncclTopoTuneModel: 0.92 of a ring's",
    },
    "ndparallel.planner.layers.operations": {
        "SCORE_DROPOUT": "counted: read, write, and a mask of one byte",
    },
    "ndparallel.planner.memory.outside": {
        "CUDA_CONTEXT_BYTES": "pytorch/pytorch, pull request 86509: between 0.29 and 0.67 GB",
        "WORKSPACE_BYTES": "PyTorch, aten/src/ATen/cuda/CublasHandlePool.cpp: three of 32 MiB",
        "RINGS": "NCCL, src/graph/search.cc, speedArrayIntra: 240 GB/s of 40, 370.8 of 60",
        "BLACKWELL_RINGS": "the same: 720 of 90",
        "BLACKWELL_NVLINK": "NVIDIA, B200 data sheet: 900 GB/s each way, of which NCCL counts 0.8",
        "NCCL_CHANNEL_BYTES": "NCCL, src/init.cc, computeBuffSizes: a buffer for each of three protocols",
    },
    "ndparallel.planner.layers.kept": {
        "IN_TRANSIT": "counted: the layer that computes, the one that travels"
    },
    "ndparallel.planner.number_types": {"HOPPER_COPIES": "counted: along rows, and along columns"},
    "ndparallel.planner.step.framework": {
        "SPREAD": "arXiv:2208.11035: 8%, read as four standard deviations",
    },
    "ndparallel.planner.step.parameter_kernels": {"CPU_ADAM_SECONDS": "arXiv:2101.06840, table 4"},
    "ndparallel.planner.job": {"HEADROOM": "assumption"},
    "ndparallel.search.kinds": dict.fromkeys(
        ("NEAR", "MOST_TIMED", "PER_KIND", "SAME", "ROOM"), "assumption"
    ),
    "ndparallel.calibration.timing": dict.fromkeys(
        ("MOST_SPREAD", "LEAST_SHARE", "FEWEST_ROUNDS"), "assumption"
    ),
}
NO_SECONDS = (  # sizes of numbers, limits of files, and how a search goes on
    *("MOST_BYTES", "MOST_COUNT", "LEAST_BARE", "HALF", "SINGLE", "ATTENTION", "MLP"),
)


@pytest.mark.parametrize("module", MODULES)
def test_every_number_that_a_module_gives_a_name_has_a_source(module):
    named = set(numbers_of(module)) - set(NO_SECONDS)
    assert named == set(MODULES[module])


def numbers_of(module: str):
    """Names that a module gives to plain numbers, or to pairs and quotients of them."""
    path = importlib.import_module(module).__file__
    assert path
    with open(path, encoding="utf-8") as file:
        for node in ast.parse(file.read()).body:
            if isinstance(node, ast.Assign) and is_number(node.value):
                for target in node.targets:
                    yield from [one.id for one in ast.walk(target) if isinstance(one, ast.Name)]


def is_number(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp):
        return is_number(node.left) and is_number(node.right)
    if isinstance(node, ast.Tuple):
        return all(map(is_number, node.elts))
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float)


def test_no_more_than_two_of_them_and_two_energies_were_ever_fitted():
    fitted = [name for names in MODULES.values() for name, source in names.items() if source == "fitted"]
    assert sorted(fitted) == ["KERNEL_OVERHEAD_SECONDS", "MEMORY_FRACTION"]
    energies = {table["joules_per_flop"] for table in data_sheets().values() if "joules_per_flop" in table}
    assert energies - {0.923e-12, 0.751e-12} == {1.6e-12, 1.03e-12}


def test_nothing_that_a_prediction_depends_on_is_an_assumption():
    """What has no source decides how a search or a calibration goes on, and no second and no byte."""
    assumed = {module for module, names in MODULES.items() if "assumption" in names.values()}
    assert assumed == {
        "ndparallel.planner.job",
        "ndparallel.search.kinds",
        "ndparallel.calibration.timing",
    }


def test_every_data_sheet_has_a_source():
    assert all(table["source"] for table in data_sheets().values())
