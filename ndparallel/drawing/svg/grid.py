"""The grid of GPUs in their nodes: who talks to whom along which axis, how much, and over which link.

Idea   A line joins two GPUs of one group, as thick as the bytes that a GPU sends along that axis in a step: a
       thick line between nodes is what makes a layout slow. GPUs of one colour share the same matrices.
Limit  Two nodes of four GPUs, three axes of two. Bytes are means over all GPUs of an executed run.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from gpu import si
from ndparallel.drawing.palette import ACTIVITIES, COMMUNICATION
from ndparallel.drawing.svg.parts import document, number, text
from ndparallel.drawing.svg.shapes import NARROW, PART_PAINTS, box, part_class, stroke, titled
from ndparallel.parallel.mesh import Mesh

DASHES = {"tp": "", "pp": "3 4", "dp": "9 4"}
PAINTS = PART_PAINTS | {COMMUNICATION: ACTIVITIES[COMMUNICATION]}
PANEL_HEIGHT, GPU_WIDTH, GPU_HEIGHT, THICKEST = 196, 42, 24, 16.0
NODE_LEFT, NODE_WIDTH, NODE_TOP, NODE_HEIGHT = (14, 254), 212, 52, 134


class GridRun(NamedTuple):
    """A strategy on a mesh: seconds of a step, and bytes that a GPU sends by axis."""

    name: str
    mesh: Mesh
    step_seconds: float
    sent_bytes: Mapping[str, float]


def draw_grids(layouts: Sequence[GridRun]) -> str:
    """Draw layouts below one another, and under them what the lines mean."""
    most = max(size for layout in layouts for size in layout.sent_bytes.values())
    body = [
        shape
        for place, layout in enumerate(layouts)
        for shape in panel(layout, place * PANEL_HEIGHT, THICKEST / most)
    ]
    bottom = len(layouts) * PANEL_HEIGHT
    body += [*key(layouts[0].sent_bytes, bottom, THICKEST / most)]
    names = " and ".join(layout.name for layout in layouts)
    return document(f"Who talks to whom in {names}", bottom + 66, PAINTS, body, NARROW)


def panel(layout: GridRun, top: float, per_byte: float) -> Iterator[str]:
    """Draw one layout: nodes, then lines, then GPUs."""
    yield text(14, top + 17, layout.name, "name")
    yield text(NARROW - 14, top + 17, f"{si(layout.step_seconds, 's')} a step", "end")
    for node, left in enumerate(NODE_LEFT):
        size = f'width="{NODE_WIDTH}" height="{NODE_HEIGHT}" rx="10"'
        yield f'<rect class="grid" x="{left}" y="{top + NODE_TOP}" {size}/>'
        yield text(left + 8, top + NODE_TOP - 5, f"node {node}", "small")
    for axis, sent in sorted(layout.sent_bytes.items(), key=lambda item: -item[1]):
        for first, second in layout.mesh.groups(axis).tolist():
            yield connection(axis, first, second, max(sent * per_byte, 1.0), top, si(sent, "B"))
    for rank in range(layout.mesh.world_size):
        yield gpu(layout.mesh, rank, top)


def centre(rank: int, top: float) -> tuple[float, float]:
    """Return where a GPU stands: four in a node, two by two."""
    left, within = NODE_LEFT[rank // 4], rank % 4
    return left + 46 + within % 2 * 120, top + NODE_TOP + 34 + within // 2 * 66


def connection(axis: str, first: int, second: int, width: float, top: float, words: str) -> str:
    """Draw the line between two GPUs of a group: straight in a node, in a bow from node to node."""
    (x, y), (to_x, to_y) = centre(first, top), centre(second, top)
    bow = 0 if first // 4 == second // 4 else (-26 if first % 4 < 2 else 26)
    middle = f"{number((x + to_x) / 2)} {number((y + to_y) / 2 + 2 * bow)}"
    path = f"M{number(x)} {number(y)}Q{middle} {number(to_x)} {number(to_y)}"
    shape = stroke(COMMUNICATION, path, width, DASHES[axis])
    return titled(shape, f"{axis}: GPU {first} and GPU {second}, each sends {words}")


def gpu(mesh: Mesh, rank: int, top: float) -> str:
    """Draw a GPU in the colour of its tensor-parallel group."""
    x, y = centre(rank, top)
    groups = mesh.groups("tp").tolist()
    own = next(place for place, members in enumerate(groups) if rank in members)
    return box(part_class(own), x - GPU_WIDTH / 2, y - GPU_HEIGHT / 2, GPU_WIDTH, GPU_HEIGHT, f"GPU {rank}")


def key(sent_bytes: Mapping[str, float], top: float, per_byte: float) -> Iterator[str]:
    """Say what the lines and the colours mean."""
    for place, (axis, sent) in enumerate(sent_bytes.items()):
        x, width = 14 + place * 156, max(sent * per_byte, 1.0)
        yield stroke(COMMUNICATION, f"M{x} {number(top + 18)}h34", width, DASHES[axis])
        yield text(x + 42, top + 22, f"{axis}: {si(sent, 'B')}")
    yield text(14, top + 44, "A line is as thick as the bytes that a GPU sends along it in a step.", "small")
    yield text(14, top + 58, "GPUs of one colour have slices of the same matrices.", "small")
