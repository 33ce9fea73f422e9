"""Lay the ranks of a mesh out on nodes: where each stands, who is in whose group, and which links the groups
run on.

Idea   Ranks count through the axes of the order, innermost first, and fill one node after another. So the
       innermost axes stay inside nodes, where links are fast, and the outermost go across: the order decides
       who is whose neighbour.
Limit  A group's link is that of the hops of its ring: inside the nodes, across nodes at every hop, or both.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import permutations
from typing import Any

from rich.columns import Columns
from rich.table import Table
from rich.text import Text

from gpu import Hardware
from ndparallel.base.errors import UserError, check_whole
from ndparallel.base.words import count, listed
from ndparallel.drawing.palette import PARTS
from ndparallel.drawing.terminal.timelines import on
from ndparallel.lessons.options import hardware_from
from ndparallel.parallel.mesh import AXES, DEFAULT_ORDER, OF_EXPERTS, SPANS, Mesh
from ndparallel.results.printing import plain_console, print_json, prose
from ndparallel.results.tables import quiet_table

NODES_DRAWN = 8
LARGEST_MESH = 100_000
GROUPS_WIDTH = 60
GROUNDS = [paint.light for paint in PARTS]
WHAT = {
    "tp": "matrices",
    "cp": "sequences",
    "dp": "the batch; what --gpus leaves",
    "pp": "layers",
    "ep": "experts",
    "etp": "each expert: 1, or another divisor of tp",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    for axis, what in WHAT.items():
        usual = "tp" if axis == "etp" else "1"
        add(f"--{axis}", type=int, metavar="N", help=f"GPUs that share {what} (default {usual})")
    add("--gpus", type=int, metavar="N", help="how many there are in all (default: the product of the axes)")
    add(
        "--order",
        default=DEFAULT_ORDER,
        metavar="A-B-...",
        help=f"the order of the axes above 1, innermost first (default {DEFAULT_ORDER})",
    )
    add(
        "--gpus-per-node",
        type=int,
        metavar="N",
        help="how many of them share a node (default: the hardware's)",
    )
    add(
        "--hardware",
        default="pocket",
        metavar="NAME|FILE",
        help="a preset, or a JSON or TOML file (default pocket)",
    )
    add("--json", action="store_true", help="print JSON and nothing else")


def run(arguments: argparse.Namespace) -> None:
    hardware, mesh = hardware_from(arguments), mesh_from(arguments)
    if arguments.json:
        print_json(describe(mesh, hardware))
    else:
        show(mesh, hardware)


def mesh_from(arguments: argparse.Namespace) -> Mesh:
    """The mesh that is asked for; what --gpus leaves is dp. Raises UserError, and says what would fit, where
    it does not fill the GPUs."""
    degrees = {axis: value for axis in WHAT if (value := getattr(arguments, axis)) is not None}
    for axis, degree in degrees.items():
        check_whole(axis, degree, words="a degree of parallelism is")
    # ep must divide what has dp, which may be yet to be found
    mesh = Mesh(order=arguments.order, **(degrees | {"ep": 1}))
    gpus, each = arguments.gpus or mesh.world_size, mesh.world_size // mesh.dp
    if max(gpus, mesh.world_size) > LARGEST_MESH:
        raise UserError(
            f"a mesh of {max(gpus, mesh.world_size):,} GPUs is too large to be laid out: choose at most "
            f"{LARGEST_MESH:,}."
        )
    if gpus % each:
        below = gpus - gpus % each
        fit = " or ".join(str(number) for number in (below, below + each) if number)
        raise UserError(f"tp * cp * pp is {each}, which does not divide {gpus} GPUs: choose {fit} GPUs.")
    if "dp" in degrees and mesh.world_size != gpus:
        raise UserError(
            f"tp * cp * dp * pp is {mesh.world_size}, not {gpus} GPUs: dp={gpus // each} would fill them."
        )
    return Mesh(order=arguments.order, **(degrees | {"dp": gpus // each}))


# ---------------------------------------------------------------------------------------------- what there is


def axes_of(mesh: Mesh) -> list[str]:
    """The axes with more than one rank; with experts, theirs too."""
    names = [axis for axis in ("tp", "cp", "dp", "pp") if getattr(mesh, axis) > 1]
    if mesh.ep == 1 and mesh.etp == mesh.tp:
        return names
    own = [axis for axis in OF_EXPERTS.values() if mesh.expert_sizes[axis] > 1]
    return names + [axis for axis in own if axis != "etp" or mesh.etp < mesh.tp]


def links_of(mesh: Mesh, hardware: Hardware) -> dict[str, str]:
    return {axis: mesh.link(axis, hardware) for axis in axes_of(mesh)}


def nodes_of(mesh: Mesh, hardware: Hardware) -> list[range]:
    size, world = hardware.gpus_per_node, mesh.world_size
    return [range(first, min(first + size, world)) for first in range(0, world, size)]


def orders(mesh: Mesh) -> list[str]:
    """This mesh's order, then all that differ in the axes with more than one rank."""
    used = [axis for axis in mesh.order.split("-") if getattr(mesh, axis) > 1]
    unused = [axis for axis in mesh.order.split("-") if axis not in used]
    return [mesh.order, *("-".join([*order, *unused]) for order in permutations(used))]


def outcomes(mesh: Mesh, hardware: Hardware) -> dict[str, dict[str, str]]:
    """The first order of every way in which orders let the axes run over links."""
    different: dict[tuple, str] = {}
    for order in orders(mesh):
        different.setdefault(tuple(links_of(replace(mesh, order=order), hardware).values()), order)
    return {order: dict(zip(axes_of(mesh), links)) for links, order in different.items()}


def describe(mesh: Mesh, hardware: Hardware) -> dict[str, Any]:
    return {
        "world_size": mesh.world_size,
        "order": mesh.order,
        "gpus_per_node": hardware.gpus_per_node,
        "sizes": {axis: mesh.groups(axis).shape[1] for axis in SPANS},
        "nodes": [list(node) for node in nodes_of(mesh, hardware)],
        "coordinates": [mesh.coordinates(rank) for rank in range(mesh.world_size)],
        "groups": {axis: mesh.groups(axis).tolist() for axis in SPANS},
        "links": {axis: mesh.link(axis, hardware) for axis in SPANS},
        "orders": [{"order": order, "links": links} for order, links in outcomes(mesh, hardware).items()],
    }


# ---------------------------------------------------------------------------------------------- what is shown


def show(mesh: Mesh, hardware: Hardware) -> None:
    console, width = plain_console()
    console.print(prose(headline(mesh, hardware), width), end="\n\n")
    console.print(Columns(drawn_nodes(mesh, hardware), padding=(1, 4)))
    if not axes_of(mesh):
        return
    console.print()
    console.print(group_table(mesh, hardware, width))
    console.print()
    console.print(order_table(mesh, hardware, width))
    console.print()
    console.print(prose(f"Notice: {notice(mesh, hardware)}", width, bold="Notice:"))


def headline(mesh: Mesh, hardware: Hardware) -> str:
    nodes = nodes_of(mesh, hardware)
    degrees = " x ".join(
        f"{axis} {getattr(mesh, axis)}" for axis in AXES if axis != "ep" and getattr(mesh, axis) > 1
    )
    whole = f"etp {mesh.etp}" if mesh.etp < mesh.tp else ""
    spread = f"experts spread over {mesh.ep} ranks of {mesh.spread_over}: ep {mesh.ep}" if mesh.ep > 1 else ""
    experts = f" ({', '.join(filter(None, (spread, whole)))})" if spread or whole else ""
    last = (
        f", {len(nodes[-1])} in the last"
        if len(nodes) > 1 and len(nodes[-1]) < hardware.gpus_per_node
        else ""
    )
    shape = f": {degrees}{experts}" if degrees else ""
    return (
        f"{count(mesh.world_size, 'GPU')}{shape}, on {count(len(nodes), 'node')} of "
        f"{hardware.gpus_per_node}{last}; order {mesh.order}"
    )


def drawn_nodes(mesh: Mesh, hardware: Hardware) -> Iterator[Text]:
    """A block for each node: its GPUs, and where they stand on every axis, in a colour for every place."""
    nodes = nodes_of(mesh, hardware)
    axes, digits = axes_of(mesh), len(str(mesh.world_size))
    for number, node in enumerate(nodes[:NODES_DRAWN]):
        places = [mesh.coordinates(rank) for rank in node]
        text = Text(f"{f'node {number}':<11}", "bold") + Text(
            "".join(f"{rank:>{digits + 1}} " for rank in node), "bold"
        )
        for axis in axes:
            text.append(f"\n  {axis:<9}")
            for place in places:
                text.append(f"{place[axis]:>{digits + 1}} ", style=shade(place[axis]))
        yield text
    if len(nodes) > NODES_DRAWN:
        yield Text(f"and {len(nodes) - NODES_DRAWN} more nodes", "dim")


def shade(place: int) -> str:
    return on(GROUNDS[place % len(GROUNDS)])


def group_table(mesh: Mesh, hardware: Hardware, width: int) -> Table:
    links = links_of(mesh, hardware)
    rows = [
        (axis, str(mesh.groups(axis).shape[1]), link, listed_groups(mesh.groups(axis).tolist()))
        for axis, link in links.items()
    ]
    return quiet_table(("axis", "size", "link", "groups"), rows, width, words=("groups",))


def listed_groups(groups: Sequence[Sequence[int]]) -> str:
    """As many groups as there is room for: "0 1 | 2 3 | 4 5"."""
    words = [" ".join(map(str, group)) for group in groups]
    shown = 1
    while shown < len(words) and len(" | ".join(words[: shown + 1])) <= GROUPS_WIDTH:
        shown += 1
    more = f" | and {len(words) - shown} more" if shown < len(words) else ""
    return shortened(" | ".join(words[:shown])) + more


def shortened(words: str) -> str:
    return (
        words
        if len(words) <= GROUPS_WIDTH
        else f"{words[: GROUPS_WIDTH // 2].rpartition(' ')[0]} ... {words.rpartition(' ')[2]}"
    )


def order_table(mesh: Mesh, hardware: Hardware, width: int) -> Table:
    """One order for every way in which the axes can run over links."""
    rows = [
        (order + " (this one)" * (order == mesh.order), *links.values())
        for order, links in outcomes(mesh, hardware).items()
    ]
    return quiet_table(("orders that differ, innermost first", *axes_of(mesh)), rows, width)


def notice(mesh: Mesh, hardware: Hardware) -> str:
    """What this order does to tp, and what one with dp innermost would change."""
    sentences, links = [], links_of(mesh, hardware)
    if "tp" in links:
        where = {
            "inside": "stays inside the nodes",
            "across": "goes across nodes at every hop",
            "both": "goes across nodes at some hops",
        }
        sentences.append(f"tp, which talks several times in every layer, {where[links['tp']]}.")
    for order in orders(mesh) if mesh.dp > 1 else ():
        other = replace(mesh, order=order)
        its = links_of(other, hardware)
        if is_innermost("dp", other) and its != links:
            changes = [
                f"{axis} goes from {links[axis]} to {its[axis]}" for axis in links if its[axis] != links[axis]
            ]
            return " ".join([*sentences, f"With dp innermost ({order}) {listed(changes)}."])
    return " ".join(sentences) or "these links are the same in every order that has dp innermost."


def is_innermost(axis: str, mesh: Mesh) -> bool:
    """Whether neighbouring ranks differ on this axis, of those that are no second view for experts."""
    return next(name for name, size in mesh.sizes.items() if size > 1) == axis
