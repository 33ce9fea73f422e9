"""Claims about the presets, about files of one's own, and about the price of a matrix multiplication."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu import CLASSROOM, Operation
from ndparallel.base.errors import UserError
from ndparallel.hardware.accelerator import (
    Accelerator,
    data_sheets,
    find_hardware,
    hardware_names,
    host_bandwidth,
    host_launch,
    host_size,
    optimizer_fraction,
    slower_host,
)
from ndparallel.hardware.accelerator import accelerator as from_table
from ndparallel.hardware.architecture import (
    capability,
    has_bf16,
    has_multicast,
    nvlink_ranks,
    shares_nvlink,
)
from ndparallel.hardware.figures import KERNEL_OVERHEAD_SECONDS, MEMORY_FRACTION
from ndparallel.hardware.matmul_efficiency import tile_fill
from ndparallel.planner.groups import GroupLinks
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.models.presets import find_model
from ndparallel.planner.prediction import time_step
from ndparallel.planner.software import find_stack
from ndparallel.validation.hardware import hardware_of
from tests.support.accelerators import accelerator


def matmul(m, n, k, dtype="bfloat16"):
    return Operation("matmul", "matmul", (m, n, k), dtype, 2.0 * m * n * k, 2.0 * (m * k + k * n + m * n))


@pytest.mark.parametrize(
    ("name", "bf16", "memory_gib", "memory_bandwidth", "gpus_per_node", "inside", "across_gbit"),
    [
        ("v100", 125e12, 32, 900e9, 8, 150e9, 50),
        ("a100-40", 312e12, 40, 1555e9, 8, 300e9, 200),
        ("a100-80", 312e12, 80, 2039e9, 8, 300e9, 200),
        ("h100", 989e12, 80, 3350e9, 8, 450e9, 400),
        ("h200", 989e12, 140, 4800e9, 8, 450e9, 400),
        ("b200", 2250e12, 179, 8000e9, 8, 900e9, 400),
        ("gb200", 2500e12, 185, 8000e9, 72, 900e9, 400),
        ("rtx-4090", 165e12, 24, 1008e9, 8, 16e9, 400),
        ("l40s", 362e12, 48, 864e9, 8, 32e9, 400),
        ("h800", 989e12, 80, 3350e9, 8, 200e9, 400),
        ("h20", 148e12, 96, 4000e9, 8, 450e9, 400),
        ("mi300x", 1307e12, 192, 5300e9, 8, 7 * 64e9, 400),
        ("b300", 2250e12, 268, 8000e9, 8, 900e9, 800),
        ("gb300", 2500e12, 268, 8000e9, 72, 900e9, 800),
    ],
)
def test_presets_are_the_data_sheets_times_one_fraction_for_each_resource(
    name, bf16, memory_gib, memory_bandwidth, gpus_per_node, inside, across_gbit
):
    found = accelerator(name.upper())
    assert found.peak("bfloat16") == pytest.approx(bf16)
    assert found.memory_bytes == memory_gib * 2**30
    assert found.memory_bandwidth_bytes_per_second == pytest.approx(MEMORY_FRACTION * memory_bandwidth)
    assert found.gpus_per_node == gpus_per_node
    reached = 0.673 if name in ("b200", "gb200", "b300", "gb300") else 0.8  # of NVLink, by NCCL
    assert found.inside.bandwidth_bytes_per_second == pytest.approx(reached * inside)
    assert found.across.bandwidth_bytes_per_second == pytest.approx(0.9 * across_gbit * 1e9 / 8)
    assert (found.inside.latency_seconds, found.across.latency_seconds) == (8e-6, 14e-6)
    assert found.source


def test_an_nvl72_is_18_hosts_of_4_and_a_dgx_is_one_host():
    assert [host_size(find_hardware(name)) for name in ("gb200", "gb300", "b300", "pocket")] == [4, 4, 8, 4]


def test_hosts_that_do_not_fill_a_node_are_refused_and_a_smaller_node_is_one_host(tmp_path):
    path = tmp_path / "rack.toml"
    path.write_text('based_on = "gb200"\ngpus_per_host = 5\n')
    with pytest.raises(UserError, match="hosts of 5 GPUs do not fill a node of 72"):
        find_hardware(str(path))
    path.write_text('based_on = "gb200"\ngpus_per_node = 2\n')
    assert host_size(find_hardware(str(path))) == 2


def test_linked_gpus_that_do_not_fill_a_node_are_refused_and_a_smaller_node_has_a_part_of_their_links(
    tmp_path,
):
    path = tmp_path / "cards.toml"
    path.write_text('based_on = "mi300x"\ngpus_linked_directly = 3\n')
    with pytest.raises(UserError, match="groups of 3 linked GPUs do not fill a node of 8"):
        find_hardware(str(path))
    for node, linked in ((4, 8), (8, 4), (16, 8)):
        path.write_text(f'based_on = "mi300x"\ngpus_linked_directly = {linked}\ngpus_per_node = {node}\n')
        found: Any = find_hardware(str(path))
        assert found.gpus_linked_directly == linked


def test_classroom_is_found_beside_the_data_sheets():
    assert find_hardware("classroom") is CLASSROOM
    assert set(hardware_names()) == {"classroom", "pocket", *data_sheets()}


@pytest.mark.parametrize("name", ["a100-80", "h100", "h200", "b200", "gb200"])
def test_float32_lessons_cost_twice_the_seconds_of_bf16_so_that_all_ratios_stay(name):
    hardware = accelerator(name)
    assert hardware.peak("float32") == pytest.approx(hardware.peak("bfloat16") / 2, rel=1e-3)


def test_a_dtype_that_the_gpu_lacks_is_refused_and_what_it_has_is_said():
    with pytest.raises(UserError, match="a100-80 does not multiply fp8: it has tf32, fp32, bf16"):
        find_hardware("a100-80").rate(matmul(4096, 4096, 4096, "fp8"))


LARGE = matmul(132 * 128, 32 * 256, 8192)  # whole tiles, whole waves of an H100


def test_a_large_matmul_runs_at_what_the_boards_power_sustains():
    hardware = find_hardware("h100")
    assert hardware.rate(LARGE) == pytest.approx(700 / 1.03e-12, rel=1e-9)
    assert hardware.seconds(LARGE) == pytest.approx(
        LARGE.flops / (700 / 1.03e-12) + KERNEL_OVERHEAD_SECONDS, rel=1e-9
    )


def test_no_power_makes_a_matmul_faster_than_the_best_kernel(tmp_path):
    path = tmp_path / "cool.toml"
    path.write_text('based_on = "h100"\npower = "7 kW"\n')
    assert find_hardware(str(path)).rate(LARGE) == pytest.approx(0.803 * 989e12)


def test_no_limit_allows_more_power_than_the_board_has(tmp_path):
    path = tmp_path / "hot.toml"
    path.write_text('based_on = "h100"\npower_limit = "900 W"\n')
    assert find_hardware(str(path)).rate(LARGE) == find_hardware("h100").rate(LARGE)


def test_one_tile_more_than_a_full_wave_halves_the_rate():
    one_wave, and_one_tile = tile_fill((132 * 128, 256, 1), 132), tile_fill((133 * 128, 256, 1), 132)
    assert one_wave == 1
    assert and_one_tile == pytest.approx(133 / 264)


@given(st.integers(1, 40_000), st.integers(1, 40_000))
def test_tiles_never_do_more_than_all_the_work_nor_depend_on_which_side_is_which(m, n):
    assert 0 < tile_fill((m, n, 1), 108) <= 1
    assert tile_fill((m, n, 1), 108) == tile_fill((n, m, 1), 108)


def test_arrays_of_shapes_are_priced_as_one_by_one():
    hardware, sizes = find_hardware("b200"), np.array([1, 300, 4096, 20_000])
    together = hardware.seconds(matmul(sizes, 4096, 1024))
    assert together == pytest.approx([hardware.seconds(matmul(int(m), 4096, 1024)) for m in sizes], rel=1e-12)


def test_a_multiplication_of_few_numbers_is_bound_by_memory():
    hardware = find_hardware("a100-40")
    thin = matmul(1, 8192, 8192)
    assert hardware.seconds(thin) == pytest.approx(
        thin.bytes / (MEMORY_FRACTION * 1555e9) + KERNEL_OVERHEAD_SECONDS
    )


def test_a_measured_curve_takes_the_place_of_tiles(tmp_path):
    path = tmp_path / "measured.toml"
    path.write_text('based_on = "h100"\nefficiency = [[1e9, 0.2], [1e11, 0.6], [1e13, 0.7]]\n')
    hardware = find_hardware(str(path))
    rates = [
        hardware.rate(matmul(1, 1, flops / 2)) / 989e12 for flops in (1e6, 1e9, 1e10, 1e11, 1e12, 1e13, 1e16)
    ]
    assert rates == pytest.approx([0.2, 0.2, 0.4, 0.6, 0.65, 0.7, 0.7])


@pytest.mark.parametrize(
    "curve",
    ["[[1e9, 0.2], [1e9, 0.3]]", "[[1e9, 1.2]]", "[[0, 0.5]]", "[1e9, 0.5]", '"fast"', "3", "[[nan, 0.5]]"],
)
def test_a_curve_that_is_none_is_refused(tmp_path, curve):
    path = tmp_path / "odd.toml"
    path.write_text(f'based_on = "h100"\nefficiency = {curve}\n')
    with pytest.raises(UserError, match="hardware 'odd': efficiency"):
        find_hardware(str(path))


def test_a_power_limit_lowers_the_rate_in_proportion(tmp_path):
    path = tmp_path / "capped.toml"
    path.write_text(
        'based_on = "h100"\npower_limit = "500 W"\nmemory = "96GiB"\nmemory_bandwidth = "2.4TB/s"\n'
    )
    capped = accelerator(str(path))
    assert (capped.name, capped.memory_bytes) == ("capped", 96 * 2**30)
    assert capped.matmul_fraction == pytest.approx(accelerator("h100").matmul_fraction * 5 / 7)


def test_flash_attention_runs_at_its_kernels_own_share_of_the_peak():
    forward = Operation("attention", "flash2 forward", (1, 4096, 128), "bfloat16", 1e15)
    assert find_hardware("h100").rate(forward) == pytest.approx(319e12)
    assert find_hardware("a100-80").rate(forward) == pytest.approx(0.55 * 312e12, rel=0.02)


def test_a_whole_data_sheet_in_json_reads_like_the_preset(tmp_path):
    path = tmp_path / "h100.json"
    path.write_text(json.dumps(data_sheets()["h100"]))
    assert find_hardware(str(path)) == find_hardware("h100")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('based_on = "h1000"', "Did you mean 'h100'"),
        ('based_on = "h100"\nmemry = "80GiB"', "'memry'. Did you mean 'memory'"),
        ('based_on = "h100"\nmemory = "80Gb/s"', "measures bytes per second"),
        ('based_on = "h100"\nmemory_bandwidth = "0 GB/s"', "memory_bandwidth must be above 0"),
        (
            'based_on = "h100"\ngpus_per_node = 0',
            "gpus_per_node must be a whole number from 1 to 16,777,216",
        ),
        ('based_on = "h100"\nmatmul_fraction = 1.2', "from 1e-18 to 1, not 1.2"),
        ('based_on = "h100"\npeak = { fp16 = "9 TFLOP/s" }', "at least bf16"),
        ('based_on = "h100"\npeak = { bf16 = "9 TFLOP/s", fp9 = "9 TFLOP/s" }', "Did you mean 'fp8'"),
        ('peak = { bf16 = "9 TFLOP/s" }', "lacks matmul_fraction, gpus_per_node, multiprocessors, memory,"),
        ("based_on =", "this is not TOML"),
        ('based_on = ["h100"]', "unknown hardware"),
        (
            'based_on = "h100"\njoules_per_flop = "x"',
            "must be a number from 1e-18 to 1e+24, not 'x'",
        ),
        (
            'based_on = "h100"\njoules_per_flop = nan',
            "must be a number from 1e-18 to 1e+24, not nan",
        ),
        ('based_on = "h100"\npower_limit = "0 W"', "power_limit must be above 0"),
        ('based_on = "h100"\nattention = 0.5', "attention must be a table of fractions"),
        (
            'based_on = "h100"\nbandwidth_across = 200',
            'bandwidth_across = 200 would be 200 bytes per second: write "200 Gb/s" (bits) or "200 GB/s"',
        ),
        ('based_on = "h100"\narchitecture = "90"', "is '90': write a compute capability as \"sm_90\"."),
        ('based_on = "h100"\narchitecture = "sm90"', "is 'sm90': write a compute capability as"),
        ('based_on = "h100"\narchitecture = 9.0', "write a compute capability as"),
    ],
)
def test_a_wrong_file_is_refused_in_a_sentence_that_names_the_key(tmp_path, text, said):
    path = tmp_path / "own.toml"
    path.write_text(text)
    with pytest.raises(UserError) as error:
        find_hardware(str(path))
    assert said in str(error.value)


@pytest.mark.parametrize(("size", "refused"), [(256_000, False), (256_001, True)])
def test_a_file_is_read_up_to_256_kilobytes(tmp_path, size, refused):
    path, based, line = tmp_path / "own.toml", 'based_on = "h100"\n', "#" * 99 + "\n"
    path.write_text((based + line * 3000)[: size - 1] + "\n")
    if refused:
        with pytest.raises(UserError, match="at most 256 kB are read"):
            find_hardware(str(path))
    else:
        assert find_hardware(str(path)).memory_bytes == find_hardware("h100").memory_bytes


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(UserError, match=r"Did you mean 'a100-80'.*\? ndparallel plan --help lists all \d+"):
        find_hardware("a100-8O")
    with pytest.raises(UserError, match="there is no file nowhere.toml"):
        find_hardware("nowhere.toml")
    with pytest.raises(UserError, match="unknown hardware ''"):
        find_hardware("")


def test_every_preset_is_an_accelerator_with_a_source_for_its_numbers():
    for name in data_sheets():
        hardware = find_hardware(name)
        assert isinstance(hardware, Accelerator) and hardware.description
        assert any(word in hardware.source for word in ("data sheet", "white paper", "arXiv")), name


def test_a_gpu_based_on_another_differs_in_what_its_own_source_gives():
    h800, h100, mi325x = (accelerator(name) for name in ("h800", "h100", "mi325x"))
    assert replace(h800, inside=h100.inside, name="", source="", description="") == replace(
        h100, name="", source="", description=""
    )
    assert mi325x.peak("fp8") == accelerator("mi300x").peak("fp8") == pytest.approx(2615e12)


def test_a_node_is_one_host_where_nothing_else_is_said():
    assert accelerator("h100").gpus_per_host == 0 and host_size(accelerator("h100")) == 8


@pytest.mark.parametrize(("products", "share"), [(1, 64 / 64), (2, 128 / 128), (3, 192 / 264)])
def test_products_that_are_launched_together_share_the_multiprocessors(products, share):
    """Each is 64 tiles: two fill a part of the 132, the work of three takes a second wave."""
    h100, shape = accelerator("h100"), (1024, 2048, 64)
    together = Operation("scores", "matmul", shape, "bfloat16", flops=2.0 * 1024 * 2048 * 64 * products)
    limit = h100.peak("bfloat16") * h100.matmul_fraction
    assert h100.rate(together) == pytest.approx(limit * share)


@pytest.mark.parametrize(("limit", "share"), [("150 W", 0.5), ("300 W", 1.0), ("600 W", 1.0)])
def test_without_joules_a_power_limit_lowers_matmuls_by_its_share_and_never_raises_them(
    limit, share, tmp_path
):
    path = tmp_path / "mine.toml"
    path.write_text(f'based_on = "v100"\npower_limit = "{limit}"\n')
    assert accelerator(str(path)).matmul_fraction == pytest.approx(0.8 * share)


MEASURED: dict[str, Any] = dict.fromkeys(
    ("bandwidth_inside", "bandwidth_across", "memory_bandwidth"), "1 GB/s"
) | {
    "peak": {"bf16": "9 TFLOP/s"},
    "matmul_fraction": 0.8,
    "gpus_per_node": 1,
    "memory": "1 GiB",
    "efficiency": [[1e9, 0.4]],
}


def test_a_measured_curve_needs_no_multiprocessors_and_what_no_watts_limit_needs_no_power():
    product = Operation("product", "matmul", (1000, 1000, 500), "bfloat16", flops=1e9)
    own = from_table("own", MEASURED)
    assert own.rate(product) == pytest.approx(0.4 * 9e12)
    assert own.flops_per_second == pytest.approx(0.8 * 9e12)


@pytest.mark.parametrize(
    ("change", "lacking"),
    [
        ({"efficiency": []}, "multiprocessors"),
        ({"power_limit": "9 W"}, "power"),
        ({"joules_per_flop": 1}, "power"),
    ],
)
def test_what_a_key_is_computed_with_is_asked_for(change, lacking):
    with pytest.raises(UserError, match=f"lacks {lacking};"):
        from_table("own", MEASURED | change)


def test_a_gpu_reaches_24_8_of_the_32_gb_a_second_to_its_host():
    """As nvbandwidth gives on eight A100s, with pinned memory."""
    assert accelerator("a100-80").host_bytes_per_second == pytest.approx(24.8e9)


@pytest.mark.parametrize("hardware", [CLASSROOM, from_table("own", MEASURED)])
def test_a_link_to_the_host_that_is_not_stated_is_asked_for(hardware):
    with pytest.raises(UserError, match="does not say how fast its link to the host is"):
        host_bandwidth(hardware)


def test_a_group_beyond_a_leaf_switch_has_the_share_that_its_uplinks_leave(tmp_path):
    path = tmp_path / "fabric.toml"
    path.write_text('based_on = "h100"\ngpus_per_leaf = 256\nleaf_share = 0.5\n')
    whole, fabric = find_hardware("h100"), find_hardware(str(path))
    for ranks, share in ((256, 1), (512, 0.5)):
        ports = [GroupLinks(ranks, 1, hardware).spread_bandwidth for hardware in (whole, fabric)]
        assert ports[1] == share * ports[0]
    spread = [GroupLinks(np.array([64, 64]), np.array([1, 8]), fabric).spread_bandwidth]
    assert list(spread[0] / ports[0]) == [1, 0.5]


def test_cards_in_bridged_pairs_have_the_bridge_inside_a_pair_and_pcie_beyond_it():
    """A100 PCIe: a bridge of 600 GB/s, both ways together. A pair is two neighbours."""
    pairs = find_hardware("a100-pcie-bridged")
    bridge, pcie = pairs.inside.bandwidth_bytes_per_second, host_bandwidth(pairs)
    assert bridge == 0.8 * 300e9 and pcie == pytest.approx(24.8e9)
    for ranks, stride, expected in (
        (2, 1, bridge),
        (4, 1, pcie),
        (8, 1, pcie),
        (2, 2, pcie),
        (64, 8, bridge),
    ):
        assert GroupLinks(ranks, stride, pairs).inside_bandwidth == expected
    assert GroupLinks(np.array([2, 4]), 1, pairs).inside_bandwidth.tolist() == [bridge, pcie]


@pytest.mark.parametrize(
    ("name", "ranks", "bridge"),
    [("h100-pcie-bridged", 2, 300e9), ("h100-nvl-bridged", 2, 300e9), ("h200-nvl-bridged", 4, 450e9)],
)
def test_bridged_cards_have_the_data_sheets_bridge_up_to_its_ranks(name, ranks, bridge):
    cards, plain = find_hardware(name), find_hardware(name.removesuffix("-bridged"))
    assert GroupLinks(ranks, 1, cards).inside_bandwidth == pytest.approx(0.8 * bridge)
    assert GroupLinks(2 * ranks, 1, cards).inside_bandwidth == host_bandwidth(cards)
    assert cards.memory_bytes == plain.memory_bytes
    assert hardware_of({"gpu": f"{name.replace('-', ' ').upper()}"}).gpus_linked_directly == ranks


def test_leaf_share_alone_is_the_share_between_nodes_and_a_measured_run_may_state_it():
    fabric = hardware_of({"gpu": "H100", "leaf_share": 0.5})
    port = fabric.across.bandwidth_bytes_per_second
    assert [GroupLinks(ranks, 1, fabric).across_bandwidth for ranks in (8, 16)] == [port, 0.5 * port]
    pod = hardware_of({"gpu": "H100", "leaf_share": 0.5, "gpus_per_leaf": 256})
    assert [GroupLinks(ranks, 1, pod).spread_bandwidth for ranks in (256, 512)] == [port, 0.5 * port]


def test_fsdps_ring_pays_where_a_leafs_uplinks_are_fewer_than_a_nodes_ports_and_all_of_its_copies_do():
    """Leaves of four nodes: one node's ring leaves a leaf, and the gradients of copies leave it from each."""
    h100 = accelerator("h100")
    job = TrainingJob(find_model("llama-3-8b"), h100, find_stack("torchtitan"), 4096, 128)

    def longer(share, plan):
        narrow = replace(job, hardware=replace(h100, gpus_per_leaf=32, leaf_share=share))
        return time_step(narrow, plan).seconds - time_step(job, plan).seconds

    ring, copies = Plan(dp=64, zero=3), Plan(dp=64, zero=3, shards=32)
    assert longer(1 / 4, ring) == 0 and longer(1 / 8, ring) > 0.09
    assert longer(1 / 2, copies) > 0


def test_without_a_switch_a_group_has_the_links_that_lead_to_its_members():
    """HGX H200 4-GPU: 6 of a GPU's 18 links to each other one. MI300X: 1 of 7."""
    board, switch = (hardware_of({"gpu": "H200", "gpus_per_node": 4, "switched": on}) for on in (None, True))
    whole = switch.inside.bandwidth_bytes_per_second
    for ranks, stride, share in ((2, 1, 1 / 3), (4, 1, 1), (2, 2, 1 / 3), (8, 1, 1)):
        assert GroupLinks(ranks, stride, board).inside_bandwidth == pytest.approx(share * whole)
        assert GroupLinks(ranks, stride, switch).inside_bandwidth == whole
    alone = hardware_of({"gpu": "H200", "gpus_per_node": 1, "switched": False})
    assert GroupLinks(2, 1, alone).inside_bandwidth == whole
    amd = find_hardware("mi300x")
    assert GroupLinks(2, 1, amd).inside_bandwidth == pytest.approx(amd.inside.bandwidth_bytes_per_second / 7)
    tray = hardware_of({"gpu": "GB200", "gpus_per_node": 4})
    assert (tray.gpus_linked_directly, tray.gpus_per_node, tray.gpus_per_host) == (0, 72, 4)


def test_a_leafs_share_is_no_more_than_all(tmp_path):
    path = tmp_path / "fabric.toml"
    path.write_text('based_on = "h100"\nleaf_share = 2\n')
    with pytest.raises(UserError, match="leaf_share"):
        find_hardware(str(path))


def test_what_a_data_sheet_does_not_say_takes_nothing_away():
    h100 = find_hardware("h100")
    assert isinstance(h100, Accelerator)
    assert (h100.gpus_per_leaf, h100.gpus_linked_directly, h100.leaf_share) == (0, 0, 1)
    assert (host_launch(CLASSROOM), optimizer_fraction(CLASSROOM)) == (0, 1)
    wide_alone = replace(h100, narrow_heads={})
    narrow, wide = (Operation("core", "cudnn forward", (1e9, 4096, width)) for width in (64, 128))
    assert wide_alone.attention_rate(narrow) == wide_alone.attention_rate(wide) > h100.attention_rate(narrow)


def test_a_slower_host_takes_twice_as_long_for_a_launch():
    h100 = find_hardware("h100")
    assert host_launch(slower_host(h100)) == 2 * host_launch(h100) > 0
    assert slower_host(CLASSROOM) == CLASSROOM


@pytest.mark.parametrize(
    ("gpu", "known", "ranks", "multicast"),
    [
        ("v100", 70, 8, False),
        ("a100-80", 80, 8, False),
        ("a100-pcie-bridged", 80, 2, False),
        ("l40s", 89, 1, False),  # PCIe
        ("rtx-4090", 89, 1, False),
        ("h100", 90, 8, True),
        ("h100-nvl", 90, 1, False),
        ("gb300", 103, 72, True),
        ("mi300x", None, 8, False),
        ("gh200", 90, 1, False),  # one GPU on a node
        ("pocket", None, 4, True),
    ],
)
def test_a_gpus_architecture_and_links_say_what_it_can_do(gpu, known, ranks, multicast):
    hardware = find_hardware(gpu)
    assert (capability(hardware), nvlink_ranks(hardware), has_multicast(hardware)) == (
        known,
        ranks,
        multicast,
    )
    assert has_bf16(hardware) == (gpu != "v100") and shares_nvlink(hardware) == (gpu == "gb300")


def test_a_file_that_says_no_architecture_lacks_nothing():
    unknown = replace(accelerator("v100"), architecture="")
    assert capability(unknown) is None and has_bf16(unknown) and has_multicast(unknown)
