"""What a notebook shows of a run: its timeline, its memory, its schedule, each as the SVG that the command
line would write.

Importing this module registers the pictures; `import ndparallel` and the use of any of its names does so.
"""

from ndparallel.drawing.memory import MemoryHistory
from ndparallel.drawing.spans import Timeline
from ndparallel.drawing.svg.memory import draw_memory
from ndparallel.drawing.svg.schedules import draw_schedules
from ndparallel.drawing.svg.timelines import draw_timelines
from ndparallel.pipeline.timing import Timing

PICTURES = {Timeline: draw_timelines, MemoryHistory: draw_memory, Timing: draw_schedules}

for _kind, _draw in PICTURES.items():
    _kind._repr_svg_ = lambda self, draw=_draw: draw([self])  # type: ignore[attr-defined]
