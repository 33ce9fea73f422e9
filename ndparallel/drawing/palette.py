"""The colours and letters of every picture, said once: blues and green for compute, sand for communication,
red for waiting.

Idea   What a GPU does has one colour and one letter, the same on the terminal and in a file, so that a
       picture reads without colours too.
Limit  Few colours, because few can be told apart by everybody: hues in the manner of Paul Tol's qualitative
       schemes (personal.sron.nl/~pault), moved until those with any kind of colour blindness can tell them
       apart too: a test measures it.

Glossary
    light, dark   the colour on a light and on a dark ground
    phase         the first word of an operation's name: forward, backward, weight, recompute, optimizer
    weight        the half of a backward pass that finds the weights' gradients (W), where a schedule puts it
                  off
    waiting       communication that the compute stream waits for (exposed)
    idle          nothing to do and nothing to wait for: bubble
"""

from typing import NamedTuple


class Paint(NamedTuple):
    letter: str
    light: str
    dark: str


FORWARD, BACKWARD, WEIGHT, RECOMPUTE, OPTIMIZER, OTHER = (
    "forward",
    "backward",
    "weight",
    "recompute",
    "optimizer",
    "compute",
)
COMMUNICATION, WAITING, IDLE = "communication", "waiting", "idle"

ACTIVITIES = {
    FORWARD: Paint("F", "#8fc3ea", "#8cc2ec"),
    BACKWARD: Paint("B", "#3a6a9e", "#3f74b0"),
    WEIGHT: Paint("W", "#1f3047", "#24476b"),
    RECOMPUTE: Paint("R", "#a876d6", "#6d46b2"),
    OPTIMIZER: Paint("O", "#53bb96", "#4fc39b"),
    OTHER: Paint("C", "#858f9c", "#868e98"),
    COMMUNICATION: Paint("=", "#dcc25a", "#d4ba52"),
    WAITING: Paint("x", "#bd4a56", "#c0495a"),
    IDLE: Paint(".", "#eceff3", "#262c36"),
}
PER_MICROBATCH = (FORWARD, BACKWARD, WEIGHT, RECOMPUTE)
PHASES = (*PER_MICROBATCH, OPTIMIZER)

MEMORY = {
    "weights": ACTIVITIES[BACKWARD],
    "gradients": ACTIVITIES[FORWARD],
    "optimizer": ACTIVITIES[OPTIMIZER],
    "activations": ACTIVITIES[COMMUNICATION],
    "buffers": ACTIVITIES[WAITING],
}

# GPUs that share one matrix; the same on light and dark pages, for what is written on them is dark
RANKS = tuple(
    Paint(str(rank), colour, colour)
    for rank, colour in enumerate(("#4994df", "#95e495", "#dbb5e3", "#cf818e"))
)

GROUND, INK, FAINT_INK, GRID = (
    ("#ffffff", "#0d1117"),
    ("#1f2328", "#e6edf3"),
    ("#59636e", "#9198a1"),
    ("#d1d9e0", "#3d444d"),
)
