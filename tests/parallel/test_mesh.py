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

from collectives import Group
from ndparallel.base.errors import UserError
from ndparallel.commands.command_line import main
from ndparallel.commands.mesh import axes_of, headline
from ndparallel.hardware.pocket import POCKET
from ndparallel.parallel.divisibility import divisors
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


@st.composite
def drawn_meshes(draw: st.DrawFn) -> Mesh:
    tp, cp, dp, pp = (draw(degrees) for _ in range(4))
    etp = draw(st.sampled_from(divisors(tp)))
    ep = draw(st.sampled_from(divisors(tp * cp * dp // etp)))
    return Mesh(tp, cp, dp, pp, ep, "-".join(draw(st.permutations(AXES))), etp)


meshes = drawn_meshes()


@given(meshes)
def test_groups_are_megatrons_in_every_order(mesh):
    """Megatron counts the ranks twice, by one order: with ep=1 for all but experts, and for experts with
    cp=1, tp=etp and the ranks that are left as dp. It asserts that both counts have the same pp groups."""
    sizes = {axis: mesh.sizes.get(axis, 1) for axis in mesh.order.split("-")}
    for axis in ("tp", "cp", "dp", "pp"):
        assert mesh.groups(axis).tolist() == megatrons_groups(sizes, {axis})
    for name, (inner, outer) in {"dp_cp": ("cp", "dp"), "tp_cp": ("tp", "cp")}.items():
        if mesh.order.index(inner) < mesh.order.index(outer):
            assert mesh.groups(name).tolist() == megatrons_groups(sizes, {inner, outer})
    same = mesh.world_size // (mesh.etp * mesh.ep * mesh.pp)
    experts = sizes | {"tp": mesh.etp, "cp": 1, "ep": mesh.ep, "dp": same}
    if megatrons_groups(experts, {"pp"}) == megatrons_groups(sizes, {"pp"}):
        for axis, spans in {"etp": {"tp"}, "ep": {"ep"}, "expert_dp": {"dp"}}.items():
            assert mesh.groups(axis).tolist() == megatrons_groups(experts, spans)


@given(meshes)
def test_experts_parts_are_all_on_one_stage_whatever_the_order(mesh):
    """Also where Megatron would refuse the order."""
    for stage in range(mesh.pp):
        ranks = {rank for rank in range(mesh.world_size) if mesh.coordinates(rank)["pp"] == stage}
        for rank in ranks:
            assert {*mesh.group("ep", rank).ranks, *mesh.group("etp", rank).ranks} <= ranks


def test_experts_may_be_folded_over_tp_and_cp():
    """Whole experts on neighbours (Megatron's expert_tensor_parallel_size of 1): an ep group has all tp ranks
    of two dp ranks. With etp=tp it has the same place in each tp group, of cp as well."""
    mesh = Mesh(tp=2, dp=4, ep=4, etp=1)
    assert mesh.groups("ep").tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert mesh.groups("expert_dp").tolist() == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert Mesh(tp=2, cp=2, dp=2, ep=4).groups("ep").tolist() == [[0, 2, 4, 6], [1, 3, 5, 7]]


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
    assert mesh.world_size == mesh.pp * prod(mesh.expert_sizes.values())
    experts = set()
    for rank in range(mesh.world_size):
        here = mesh.coordinates(rank)
        assert mesh.rank(**here) == rank
        experts.add(tuple(here[axis] for axis in ("pp", "etp", "ep", "expert_dp")))
    assert len(experts) == mesh.world_size


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
        (
            {"tp": 2, "cp": 3, "dp": 2, "ep": 5},
            "ep=5 does not divide cp*dp=6, whose ranks the experts are spread over; ep can be 1, 2, 3, 6.",
        ),
        ({"tp": 2, "dp": 2, "ep": 3, "etp": 1}, "ep=3 does not divide tp*dp=4, whose ranks"),
        ({"tp": 4, "dp": 2, "ep": 3, "etp": 2}, "ep=3 does not divide tp*dp/etp=4, whose ranks"),
        (
            {"tp": 4, "etp": 3},
            "etp=3 does not divide tp=4, whose ranks hold the parts of an expert; etp can be 1, 2, 4.",
        ),
        ({"etp": -1}, "etp is -1; a degree of parallelism is at least 1."),
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
    assert Mesh(dp=4, order="dp").order == "dp-tp-cp-ep-pp"


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
    dense = {"tp": 1, "cp": 0, "dp": 0, "pp": 1}
    assert told["coordinates"][5] == dense | {"etp": 1, "ep": 0, "expert_dp": 0}


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


def test_every_order_is_told_with_its_own_links_of_experts_axes(capsys):
    """Whichever of etp, ep and expert_dp an order counts first."""
    told = described(capsys, "--tp", "4", "--dp", "4", "--ep", "2", "--etp", "2")["orders"]
    assert len(told) > 3
    for entry in told:
        mesh = Mesh(tp=4, dp=4, ep=2, etp=2, order=entry["order"])
        assert list(entry["links"]) == ["tp", "dp", "etp", "ep", "expert_dp"]
        assert entry["links"] == {axis: mesh.link(axis, POCKET) for axis in entry["links"]}


def test_ep_innermost_is_no_dp_innermost(capsys):
    """In ep-tp-dp neighbours share matrices; in ep-dp-tp they share the batch."""
    _, out, _ = command(capsys, "--tp", "4", "--dp", "2", "--ep", "4", "--etp", "2")
    assert "With dp innermost (ep-dp-tp-cp-pp) tp goes from inside to both" in " ".join(out.split())


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
        (["--tp", "2", "--etp", "0"], "etp is 0; a degree of parallelism is at least 1."),
        (["--gpus", "0"], "0 GPUs cannot train anything"),
        (["--gpus-per-node", "0"], "a node of 0 GPUs does not exist"),
    ],
)
def test_sizes_that_do_not_fit_are_one_sentence_that_says_what_would(capsys, options, sentence):
    code, out, err = command(capsys, *options)
    assert (code, out) == (2, "") and sentence in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("mesh", "told"),
    [
        (Mesh(tp=2, dp=2), "tp 2 x dp 2"),
        (Mesh(tp=2, dp=2, etp=1), "tp 2 x dp 2 (etp 1)"),
        (Mesh(cp=2, dp=2, ep=4), "cp 2 x dp 2 (experts spread over 4 ranks of cp*dp: ep 4)"),
        (Mesh(tp=4, ep=2, etp=2), "tp 4 (experts spread over 2 ranks of tp*dp/etp: ep 2, etp 2)"),
    ],
    ids=repr,
)
def test_the_first_line_says_where_experts_are(mesh, told):
    assert f": {told}, on 1 node of 4;" in headline(mesh, POCKET)


@pytest.mark.parametrize(
    ("mesh", "axes"),
    [
        (Mesh(tp=2, dp=2), ["tp", "dp"]),
        (Mesh(tp=2, dp=2, ep=2), ["tp", "dp", "ep"]),
        (Mesh(tp=2, dp=2, etp=1), ["tp", "dp", "expert_dp"]),
        (Mesh(tp=4, etp=2), ["tp", "etp", "expert_dp"]),
    ],
    ids=repr,
)
def test_axes_of_experts_are_told_where_they_are_other_ones(mesh, axes):
    assert axes_of(mesh) == axes


def test_experts_that_tp_cuts_use_the_group_of_tp():
    """So their messages wait for those of the matrices, as on one stream."""
    assert Mesh(tp=2, dp=2).expert_slices(3) == Group("tp", (2, 3))
    assert Mesh(tp=4, dp=2, etp=2).expert_slices(3) == Group("etp", (2, 3))
    assert Mesh(tp=2, dp=2, etp=1).expert_slices(3).size == 1


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
