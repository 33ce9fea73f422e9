"""The mesh: ranks stand where Megatron puts them, groups part the ranks, and the order decides which links an
axis runs on."""

import json
from dataclasses import replace
from itertools import accumulate, permutations
from math import prod
from operator import mul

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ndparallel.base.errors import UserError
from ndparallel.commands.command_line import main
from ndparallel.commands.mesh import headline
from ndparallel.hardware.pocket import POCKET
from ndparallel.parallel.mesh import AXES, DEFAULT_ORDER, SPANS, Mesh

# ------------------------------------------------------------ Megatron's layout, written out on its own terms


def digits(number: int, radices: list[int]) -> list[int]:
    """A number in mixed radix, the first digit counting fastest."""
    return [number // stride % radix for stride, radix in zip(strides(radices), radices)]


def strides(radices: list[int]) -> list[int]:
    return list(accumulate(radices[:-1], mul, initial=1)) if radices else []


def dot(numbers: list[int], others: list[int]) -> int:
    return sum(a * b for a, b in zip(numbers, others, strict=True))


def megatrons_groups(sizes: dict[str, int], axes: set[str]) -> list[list[int]]:
    """Groups along `axes`, after Megatron-LM's megatron/core/parallel_state.py
    (generate_masked_orthogonal_rank_groups): group g has the ranks dot(digits of i over the axes, their
    strides) + dot(digits of g over the other axes, their strides), for i = 0, 1, ..."""
    stride = dict(zip(sizes, strides(list(sizes.values()))))
    inside, outside = ([name for name in sizes if (name in axes) is member] for member in (True, False))
    size, number = (prod(sizes[name] for name in names) for names in (inside, outside))

    def part(place: int, names: list[str]) -> int:
        return dot(digits(place, [sizes[name] for name in names]), [stride[name] for name in names])

    return [[part(i, inside) + part(g, outside) for i in range(size)] for g in range(number)]


degrees = st.sampled_from([1, 2, 3, 4])
meshes = st.builds(
    lambda tp, cp, ep, expert_dp, pp, order: Mesh(tp, cp, ep * expert_dp, pp, ep, "-".join(order)),
    degrees,
    degrees,
    degrees,
    degrees,
    degrees,
    st.permutations(AXES),
)


@given(meshes)
def test_groups_are_megatrons_in_every_order(mesh):
    """Experts' axes with dp as ep x expert_dp; all others with dp whole, where the order keeps ep and dp side
    by side."""
    with_experts = mesh.sizes
    for axis, spans in {"tp": {"tp"}, "cp": {"cp"}, "pp": {"pp"}, "ep": {"ep"}, "expert_dp": {"dp"}}.items():
        assert mesh.groups(axis).tolist() == megatrons_groups(with_experts, spans)
    if "ep-dp" in mesh.order:
        without = {
            axis: mesh.dp if axis == "dp" else size for axis, size in mesh.sizes.items() if axis != "ep"
        }
        assert mesh.groups("dp").tolist() == megatrons_groups(without, {"dp"})
        if "cp-ep-dp" in mesh.order:
            assert mesh.groups("dp_cp").tolist() == megatrons_groups(without, {"cp", "dp"})


def test_sixteen_gpus_stand_as_in_megatrons_own_example():
    """Its docstring's: tp 2 and pp 4 on 16 GPUs make tp groups [g0, g1], ..., pp groups [g0, g4, g8, g12],
    ..., dp groups [g0, g2], ..."""
    mesh = Mesh(tp=2, dp=2, pp=4)
    assert mesh.groups("tp").tolist() == [[rank, rank + 1] for rank in range(0, 16, 2)]
    assert mesh.groups("pp").tolist() == [[first, first + 4, first + 8, first + 12] for first in range(4)]
    assert mesh.groups("dp").tolist() == [
        [0, 2],
        [1, 3],
        [4, 6],
        [5, 7],
        [8, 10],
        [9, 11],
        [12, 14],
        [13, 15],
    ]


@given(meshes, st.sampled_from(list(SPANS)))
def test_the_groups_of_an_axis_part_the_ranks_and_a_rank_finds_its_own(mesh, axis):
    groups = mesh.groups(axis).tolist()
    assert sorted(rank for group in groups for rank in group) == list(range(mesh.world_size))
    assert groups == sorted(groups)
    for group in groups:
        assert all(list(mesh.group(axis, rank).ranks) == group for rank in group)


@given(meshes)
def test_coordinates_name_a_rank_and_expert_parallelism_adds_none(mesh):
    assert mesh.world_size == mesh.tp * mesh.cp * mesh.dp * mesh.pp == prod(mesh.sizes.values())
    for rank in range(mesh.world_size):
        here = mesh.coordinates(rank)
        assert mesh.rank(**(here | {"dp": here["expert_dp"]})) == rank
        assert here["dp"] == here["expert_dp"] * mesh.ep + here["ep"]


@given(meshes, st.integers(1, 9), st.sampled_from(list(SPANS)))
def test_a_groups_link_is_that_of_the_hops_of_its_rings(mesh, gpus_per_node, axis):
    hops = [
        (a, b) for group in mesh.groups(axis).tolist() for a, b in zip(group, group[1:] + group[:1]) if a != b
    ]
    kinds = {"inside" if a // gpus_per_node == b // gpus_per_node else "across" for a, b in hops}
    expected = {(): "none", ("inside",): "inside", ("across",): "across", ("across", "inside"): "both"}[
        tuple(sorted(kinds))
    ]
    assert mesh.link(axis, replace(POCKET, gpus_per_node=gpus_per_node)) == expected


def test_megatrons_order_keeps_tp_inside_and_dp_innermost_does_not():
    usual, dp_first = Mesh(tp=2, dp=2, pp=2), Mesh(tp=2, dp=2, pp=2, order="dp-pp-ep-cp-tp")
    assert [usual.link(axis, POCKET) for axis in ("tp", "dp", "pp")] == ["inside", "inside", "across"]
    assert [dp_first.link(axis, POCKET) for axis in ("tp", "dp", "pp")] == ["across", "inside", "inside"]


@pytest.mark.parametrize(
    ("degrees", "sentence"),
    [
        ({"tp": 0}, "tp is 0; a degree of parallelism is at least 1."),
        (
            {"dp": 4, "ep": 3},
            "ep=3 does not divide dp=4, whose ranks the experts are spread over; ep can be 1, 2, 4.",
        ),
        ({"order": "tp-dp-dp"}, "the order 'tp-dp-dp' is no order of tp, cp, ep, dp, pp;"),
        ({"order": "tp-xp"}, "the order 'tp-xp' is no order of"),
        (
            {"tp": 2, "pp": 4, "order": "tp-dp"},
            "the order 'tp-dp' leaves out pp (4 ranks); only axes of one rank may be left out",
        ),
        ({"dp": 4, "ep": 2, "order": "tp"}, "leaves out ep (2 ranks) and dp (4 ranks)"),
    ],
)
def test_a_mesh_that_cannot_be_is_one_sentence(degrees, sentence):
    with pytest.raises(UserError) as error:
        Mesh(**degrees)
    assert sentence in str(error.value)


def test_an_order_may_leave_out_axes_of_one_rank_which_go_outermost():
    assert Mesh(tp=2, dp=2, pp=2, order="dp-tp-pp") == Mesh(tp=2, dp=2, pp=2, order="dp-tp-pp-cp-ep")
    assert Mesh(dp=4, ep=4, order="ep").order == "ep-tp-cp-dp-pp", "dp is whole in ep"


# ------------------------------------------------------------------------------------------------ the command


def command(capsys, *options: str) -> tuple[int, str, str]:
    code = main(["mesh", *options])
    return code, *capsys.readouterr()


def described(capsys, *options: str) -> dict:
    code, out, _ = command(capsys, *options, "--json")
    assert code == 0
    return json.loads(out)


EIGHT = ["--tp", "2", "--pp", "2", "--dp", "2"]


def test_json_tells_nodes_coordinates_groups_and_links(capsys):
    told = described(capsys, *EIGHT)
    assert (told["world_size"], told["order"], told["gpus_per_node"]) == (8, DEFAULT_ORDER, 4)
    assert told["nodes"] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert told["groups"]["dp"] == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert [told["links"][axis] for axis in ("tp", "cp", "dp", "pp")] == [
        "inside",
        "none",
        "inside",
        "across",
    ]
    assert told["coordinates"][5] == {"tp": 1, "cp": 0, "ep": 0, "dp": 0, "pp": 1, "expert_dp": 0}


def test_one_order_is_told_for_every_way_to_use_the_links(capsys):
    told = described(capsys, *EIGHT)["orders"]
    assert told[0] == {"order": DEFAULT_ORDER, "links": {"tp": "inside", "dp": "inside", "pp": "across"}}
    every = {
        tuple(
            Mesh(2, 1, 2, 2, order="-".join([*order, "cp", "ep"])).link(axis, POCKET)
            for axis in ("tp", "dp", "pp")
        )
        for order in permutations(("tp", "dp", "pp"))
    }
    assert {tuple(entry["links"].values()) for entry in told} == every and len(told) == len(every) == 3


def test_the_drawing_shows_every_gpu_where_it_stands(capsys):
    code, out, _ = command(capsys, *EIGHT)
    lines = out.splitlines()
    assert code == 0 and lines[0] == "8 GPUs: tp 2 x dp 2 x pp 2, on 2 nodes of 4; order tp-cp-ep-dp-pp"
    drawn = {line.split()[0]: line.split() for line in lines[2:6]}
    assert drawn["node"] == ["node", "0", "0", "1", "2", "3", "node", "1", "4", "5", "6", "7"]
    for axis in ("tp", "dp", "pp"):
        places = [str(Mesh(2, 1, 2, 2).coordinates(rank)[axis]) for rank in range(8)]
        assert drawn[axis] == [axis, *places[:4], axis, *places[4:]]
    assert any(" ".join(line.split()) == "pp 2 across 0 4 | 1 5 | 2 6 | 3 7" for line in lines)
    assert (
        "With dp innermost (dp-pp-tp-cp-ep) tp goes from inside to across and pp goes from across to inside."
        in " ".join(out.split())
    )


def test_experts_are_a_second_view_of_dp(capsys):
    _, out, _ = command(capsys, "--dp", "4", "--ep", "2", "--tp", "2")
    assert "8 GPUs: tp 2 x dp 4 (experts spread over 2 ranks of dp: ep 2)" in out
    rows = {
        line.split()[0]: line.split()[1:3]
        for line in out.splitlines()
        if line.startswith(("ep ", "expert_dp ", "dp "))
    }
    assert rows == {"dp": ["4", "both"], "ep": ["2", "inside"], "expert_dp": ["2", "across"]}


@pytest.mark.parametrize(
    "options",
    [["--tp", "8", "--pp", "16", "--gpus", "16384", "--gpus-per-node", "8"], EIGHT, [], ["--tp", "8"]],
)
def test_a_mesh_of_any_size_fits_a_page_of_100_columns(capsys, options):
    code, out, _ = command(capsys, *options)
    assert code == 0
    assert max(map(len, out.splitlines())) <= 100 and out.count("\n") < 75


def test_what_the_gpus_leave_is_dp(capsys):
    assert described(capsys, "--tp", "4", "--gpus", "24")["sizes"]["dp"] == 6


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            ["--tp", "2", "--gpus", "7"],
            "tp * cp * pp is 2, which does not divide 7 GPUs: choose 6 or 8 GPUs.",
        ),
        (["--tp", "8", "--gpus", "4"], "tp * cp * pp is 8, which does not divide 4 GPUs: choose 8 GPUs."),
        (
            ["--tp", "2", "--dp", "3", "--gpus", "8"],
            "tp * cp * dp * pp is 6, not 8 GPUs: dp=4 would fill them.",
        ),
        (
            ["--gpus", "8", "--ep", "3"],
            "ep=3 does not divide dp=8, whose ranks the experts are spread over; ep can be 1, 2, 4, 8.",
        ),
        (["--tp", "-1"], "tp is -1; a degree of parallelism is at least 1."),
        (["--gpus", "0"], "0 GPUs cannot train anything"),
        (["--gpus-per-node", "0"], "a node of 0 GPUs does not exist"),
    ],
)
def test_sizes_that_do_not_fit_are_one_sentence_that_says_what_would(capsys, options, sentence):
    code, out, err = command(capsys, *options)
    assert (code, out) == (2, "") and sentence in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("dp", "nodes"),
    [
        (3, "1 node of 4;"),
        (4, "1 node of 4;"),
        (6, "2 nodes of 4, 2 in the last;"),
        (8, "2 nodes of 4;"),
        (11, "3 nodes of 4, 3 in the last;"),
    ],
)
def test_a_last_node_that_is_not_full_is_told(dp, nodes):
    assert f"on {nodes}" in headline(Mesh(dp=dp), POCKET)
