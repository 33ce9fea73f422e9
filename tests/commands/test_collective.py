"""Claims about `ndparallel collective`: what it prints is what was executed, and it teaches."""

import json
import re

import pytest

from collectives import ALGORITHMS, Group
from ndparallel.collective import hops
from ndparallel.collective.prices import choose_algorithm
from ndparallel.collective.runs import LOCKSTEP, measure
from ndparallel.commands.collective import MANY_MESSAGES, Setting, by_size
from ndparallel.commands.command_line import main
from ndparallel.hardware.accelerator import find_hardware

LINK = ["--latency", "5e-6", "--bandwidth", "50e9"]
NODES = [*LINK, "--gpus-per-node", "4", "--latency-across", "20us", "--bandwidth-across", "100Gb/s"]
PAIRS = [(collective, name) for collective, algorithms in ALGORITHMS.items() for name in algorithms]


def run(capsys, *arguments):
    assert main(["collective", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def run_json(capsys, *arguments):
    return json.loads(run(capsys, *arguments, "--json"))


def test_the_title_names_the_hardware_unless_its_links_are_given(capsys):
    assert "among 4 ranks (h100), in one node:" in run(capsys, "all_gather", "--ranks", 4)
    assert "among 4 ranks (a100-80)," in run(capsys, "all_gather", "--ranks", 4, "--hardware", "a100-80")
    assert "among 4 ranks, in one node:" in run(capsys, "all_gather", "--ranks", 4, *LINK)


# ------------------------------------------------------------------------------------------------------- JSON


def test_a_ring_all_reduce_of_a_megabyte_on_eight_ranks(capsys):
    found = run_json(capsys, "all_reduce", "--algorithm", "ring", "--ranks", 8, "--bytes", "1e6", *LINK)
    assert found["seconds"] == pytest.approx(2 * 7 * (5e-6 + 1e6 / 8 / 50e9), rel=1e-9)
    assert found["formula_seconds"] == pytest.approx(found["seconds"], rel=1e-9)
    assert found["bytes_sent_per_rank"] == 1.75e6
    assert found["messages_per_rank"] == 14
    assert found["bytes_sent_total"] == 14e6


@pytest.mark.parametrize(("collective", "algorithm"), PAIRS)
def test_every_algorithm_takes_its_formula_on_one_tier(collective, algorithm, capsys):
    found = run_json(capsys, collective, "--algorithm", algorithm, "--ranks", 8, "--bytes", "8e5", *LINK)
    assert found["seconds"] == pytest.approx(found["formula_seconds"], rel=1e-9)
    assert found["bytes_sent_total"] <= 8 * found["bytes_sent_per_rank"]


def test_a_hierarchy_is_the_sum_of_its_rings(capsys):
    found = run_json(
        capsys, "all_reduce", "--algorithm", "hierarchical", "--ranks", 8, "--bytes", "8e5", *NODES
    )
    inside, across = 5e-6 + 2e5 / 50e9, 20e-6 + 1e5 / 12.5e9
    assert found["seconds"] == pytest.approx(2 * 3 * inside + 2 * across, rel=1e-9)
    assert found["formula_seconds"] == pytest.approx(found["seconds"], rel=1e-9)


def test_on_links_of_two_kinds_a_tree_has_no_formula_and_a_ring_has_one(capsys):
    tree, ring = (
        run_json(capsys, "all_reduce", "--algorithm", name, "--ranks", 8, "--bytes", "8e5", *NODES)
        for name in ("tree", "ring")
    )
    assert tree["formula_seconds"] is None
    assert ring["formula_seconds"] == pytest.approx(ring["seconds"], rel=1e-9)


@pytest.mark.parametrize(("collective", "algorithm"), PAIRS)
@pytest.mark.parametrize("ranks", [1, 2, 8, 64])
def test_lockstep_measures_what_is_executed(collective, algorithm, ranks):
    group, hardware = Group("test", tuple(range(ranks))), find_hardware("h100")
    executed, advanced = (
        vars(measure(collective, algorithm, group, hardware, 10_007, engine))
        for engine in ("inline", LOCKSTEP)
    )
    assert advanced.pop("seconds") == pytest.approx(executed.pop("seconds"), rel=1e-12, abs=0)
    assert (executed.pop("engine"), advanced.pop("engine")) == ("inline", LOCKSTEP)
    assert advanced == executed


def test_the_table_as_json_has_every_algorithm_and_where_the_fastest_changes(capsys):
    found = run_json(capsys, "all_reduce", "--ranks", 16, "--bytes", "64MiB")
    assert {row["algorithm"] for row in found["algorithms"]} == set(ALGORITHMS["all_reduce"])
    assert min(found["algorithms"], key=lambda row: row["seconds"])["algorithm"] == found["chosen"]
    group, hardware = Group("test", tuple(range(16))), find_hardware("h100")
    for step in found["fastest"]:
        assert choose_algorithm("all_reduce", group, hardware, step["from_bytes"] * 1.01) == step["algorithm"]


def test_4096_ranks_run_in_lockstep_and_say_so(capsys):
    found = run_json(
        capsys, "all_reduce", "--ranks", 4096, "--algorithm", "hierarchical", "--bytes", "4096e4"
    )
    assert found["engine"] == LOCKSTEP
    assert found["seconds"] == pytest.approx(found["formula_seconds"], rel=1e-9)
    assert found["messages_per_rank"] == 2 * 7 + 2 * 511
    assert "in lockstep" in run(capsys, "all_reduce", "--ranks", 4096, "--algorithm", "tree")


def test_processes_give_the_same_json_as_inline(capsys):
    arguments = ("all_to_all", "--algorithm", "direct", "--ranks", 3, "--bytes", 1000)
    inline, processes = (
        run_json(capsys, *arguments, "--engine", engine) for engine in ("inline", "processes")
    )
    assert processes.pop("engine") == "processes" and inline.pop("engine") == "inline" and processes == inline


# --------------------------------------------------------------------------------------------------- pictures


def test_the_ring_turns_one_place_a_hop(capsys):
    out = run(capsys, "all_reduce", "--ranks", 4, "--show", "--bytes", 2000, "--hardware", "classroom")
    frames = re.split(r"hop \d of 6, at ", out)[1:]
    assert [frame.split("\n")[0] for frame in frames] == [
        "1.30 s",
        "2.60 s",
        "3.90 s",
        "5.20 s",
        "6.50 s",
        "7.80 s",
    ]
    for hop, frame in enumerate(frames):
        for rank, line in enumerate(frame.split("\n")[1:5]):
            cells = line.split("rank", 1)[1].split("from")[0].split()[1:]
            assert [place for place, cell in enumerate(cells) if cell.startswith("[")] == [
                (rank - hop - 2) % 4
            ]
            assert line.endswith(f"from rank {(rank - 1) % 4}")
    assert frames[-1].count("abcd") == 16
    assert "6 hops in 7.80 s; no rank sent more than 3.00 kB." in out


@pytest.mark.parametrize(("collective", "algorithm"), [pair for pair in PAIRS if pair[0] != "barrier"])
@pytest.mark.parametrize("p", [1, 2, 4, 8])
def test_every_algorithm_can_be_drawn_and_ends_with_the_right_boards(collective, algorithm, p):
    group, hardware = Group("test", tuple(range(p))), find_hardware("pocket")
    show = hops.watch(collective, algorithm, group, hardware, 840 * 8.0)
    boards, size, all_ranks = show.frames[-1].boards, hops.BOARD_BYTES // p, (1 << p) - 1
    whole = {
        "all_reduce": range(p),
        "broadcast": range(p),
        "all_gather": range(p),
        "reduce": [0],
        "gather": [0],
    }
    for rank in range(p):
        piece = boards[rank][rank * size : (rank + 1) * size]
        if collective in ("reduce_scatter",):
            assert set(piece) == {all_ranks}
        elif collective == "scatter":
            assert set(piece) == {hops.address(0, rank)}
        elif collective == "all_to_all":
            assert boards[rank].tolist() == [
                hops.address(source, rank) for source in range(p) for _ in range(size)
            ]
        elif rank in whole[collective]:
            pieces = {
                "broadcast": [1],
                "all_gather": [1 << r for r in range(p)],
                "gather": [1 << r for r in range(p)],
            }
            assert list(dict.fromkeys(boards[rank])) == pieces.get(collective, [all_ranks])
    measured = measure(collective, algorithm, group, hardware, 840 * 8, LOCKSTEP)
    assert show.frames[-1].seconds == pytest.approx(measured.seconds, rel=1e-9)
    assert show.bytes_sent == pytest.approx(measured.bytes_sent_per_rank)
    assert all(len(line) <= 100 for line in hops.draw(show))


def shown(p, collective="all_reduce", algorithm="ring"):
    return hops.watch(collective, algorithm, Group("test", tuple(range(p))), find_hardware("pocket"), 840)


def test_the_legend_names_the_last_rank_and_the_sum_of_all_of_which_runs_are_short_from_six_ranks_on():
    for p, last, whole in ((2, "b", "ab"), (5, "e", "abcde"), (6, "f", "a-f")):
        said = f"a is what rank 0 brought, {last} what rank {p - 1} brought, and {whole} the sum of all."
        assert said in hops.legend(shown(p))
    assert "a3 goes from rank 0 to rank 3." in hops.legend(shown(4, "all_to_all", "direct"))


def test_only_the_sums_of_all_ranks_are_green():
    """Cells that are green have all letters; after the ring's reduce-scatter, in hop 3 of 6, each rank has
    one."""
    lines = [line for line in hops.draw(shown(4)) if line.plain.startswith("  rank")]
    green = [
        [line.plain[span.start : span.end].strip(" []") for span in line.spans if "green" in f"{span.style}"]
        for line in lines
    ]
    assert {cell for cells in green for cell in cells} == {"abcd"}
    assert [len(cells) for cells in green] == [0] * 12 + [1] * 4 + [2] * 4 + [3] * 4 + [4] * 4


def test_a_table_shows_the_fastest_by_size_and_fits_100_columns(capsys):
    out = run(capsys, "broadcast", "--ranks", 300)
    assert re.search(r"By size: .* up to .*B, .* from there on", " ".join(out.split()))
    assert all(len(line) <= 100 for line in out.splitlines())
    assert all(name in out for name in ALGORITHMS["broadcast"])


def test_a_barrier_has_no_size(capsys):
    assert run(capsys, "barrier").startswith("barrier among 8 ranks (h100)")


@pytest.mark.parametrize(("smallest", "said"), [("naive", True), ("one-by-one", True), ("tree", False)])
def test_that_messages_cost_nothing_is_said_where_it_makes_one_sender_the_fastest(smallest, said):
    setting = Setting("all_reduce", Group("test", (0, 1)), find_hardware("h100"), 2 * 10**6, "inline")
    first, *more = by_size(setting, ["ring", smallest], "ring", [(0, smallest), (10**6, "ring")])
    assert first == f"Fastest for 2.00 MB: ring. By size: {smallest} up to 1.00 MB, ring from there on."
    assert more == [MANY_MESSAGES] * said
    assert len(by_size(setting, ["ring", smallest], "ring", [(0, "ring"), (10**6, smallest)])) == 1


def test_there_is_no_choice_where_there_is_one_algorithm(capsys):
    for collective in ("all_to_all", "barrier", "gather"):
        assert "Fastest" not in run(capsys, collective)


# ----------------------------------------------------------------------------------------------------- errors

WRONG = [
    (["all_redoce"], "unknown collective 'all_redoce'. Did you mean 'all_reduce'?"),
    (["all_reduce", "--algorithm", "rign"], "unknown algorithm of all_reduce: 'rign'. Did you mean 'ring'?"),
    (["all_reduce", "--ranks", "0"], "--ranks 0 cannot be: choose 1 or more."),
    (["all_reduce", "--ranks", "1000000000"], "up to 65536"),
    (["all_reduce", "--gpus-per-node", "-1"], "--gpus-per-node -1 cannot be"),
    (["all_reduce", "--bytes", "1.5"], "--bytes = '1.5' must be a whole number of bytes"),
    (["all_reduce", "--bytes", "1e16"], "up to 1e+15"),
    (["all_reduce", "--bytes", "5us"], "which measures seconds"),
    (["all_reduce", "--latency", "nan"], "--latency = nan is not a number"),
    (["all_reduce", "--bandwidth", "0"], "--bandwidth = '0' lets nothing through"),
    (["all_reduce", "--bandwidth-across", "0GB/s"], "--bandwidth-across"),
    (["all_reduce", "--hardware", "h10"], "Did you mean 'h100', 'h100-pcie', "),
    (["barrier", "--show"], "a barrier moves no data"),
    (["all_reduce", "--show", "--ranks", "9"], "--show draws up to 8 ranks"),
    (
        ["all_reduce", "--algorithm", "hierarchical", "--ranks", "6", "--gpus-per-node", "4"],
        "needs --ranks 4",
    ),
]


@pytest.mark.parametrize(("arguments", "said"), WRONG)
def test_what_cannot_be_is_one_sentence_and_exit_code_2(arguments, said, capsys):
    assert main(["collective", *arguments]) == 2
    captured = capsys.readouterr()
    assert said in captured.err and captured.err.count("\n") == 1 and not captured.out


def test_letters_in_an_algorithms_sentence_are_explained(capsys):
    ring = " ".join(run(capsys, "all_reduce", "--ranks", 4, "--show").split())
    assert "each rank sends 2 (p-1)/p n. (p: ranks; n: bytes of the array.) a is what" in ring
    tree = run(capsys, "all_reduce", "--ranks", 4, "--algorithm", "tree", "--show")
    assert "(p: " not in tree and "(n: " not in tree
