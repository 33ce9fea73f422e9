"""The colours and letters of every picture, said once: blues and teal for compute, sand for communication, rose for waiting.

Idea   What a GPU does has one colour and one letter, the same on the terminal and in a file, so that a picture reads without colours too.
Limit  Few colours, because few can be told apart by everybody: the hues follow Paul Tol's qualitative "muted" and "bright" schemes
       (personal.sron.nl/~pault), and a test measures their distance as people with each kind of colour blindness see them.

Glossary
    light, dark   the colour on a light and on a dark ground
    phase         the first word of an operation's name: forward, backward, recompute, optimizer
    waiting       communication that the compute stream waits for (exposed)
    idle          nothing to do and nothing to wait for: bubble
"""

from typing import NamedTuple


class Paint(NamedTuple):
    letter: str
    light: str
    dark: str


FORWARD, BACKWARD, RECOMPUTE, OPTIMIZER, OTHER = "forward", "backward", "recompute", "optimizer", "compute"
COMMUNICATION, WAITING, IDLE = "communication", "waiting", "idle"

ACTIVITIES = {
    FORWARD: Paint("F", "#88bfe8", "#7fb8e6"),
    BACKWARD: Paint("B", "#4173a8", "#3f74b0"),
    RECOMPUTE: Paint("R", "#b9a3d6", "#a58fc6"),
    OPTIMIZER: Paint("O", "#2f9c8a", "#2f9484"),
    OTHER: Paint("C", "#8a93a0", "#7d8794"),
    COMMUNICATION: Paint("=", "#dcc566", "#cdb456"),
    WAITING: Paint("w", "#c25b6d", "#cf6678"),
    IDLE: Paint(".", "#eceff3", "#262c36"),
}
PHASES = (FORWARD, BACKWARD, RECOMPUTE, OPTIMIZER)

MEMORY = {
    "weights": ACTIVITIES[BACKWARD],
    "gradients": ACTIVITIES[FORWARD],
    "optimizer": ACTIVITIES[OPTIMIZER],
    "activations": ACTIVITIES[COMMUNICATION],
    "buffers": ACTIVITIES[WAITING],
}

GROUND, INK, FAINT_INK, GRID = ("#ffffff", "#0d1117"), ("#1f2328", "#e6edf3"), ("#59636e", "#9198a1"), ("#d1d9e0", "#3d444d")
