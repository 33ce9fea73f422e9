"""The colours and letters of every picture, said once: terminal, SVG, trace and the explorer's page.

Idea   A colour has one meaning in the whole book: activities, kinds of memory, and the parts that GPUs hold
       have colours of their own. Colours that usually touch differ in lightness, as forward and backward do;
       all others have a line of the ground between them.
Cost   A contrast of 3:1 needs a factor of three in luminance, so that a page has room for two steps above its
       ground: "bright" and "dark" colours.
Limit  Hues were chosen by search, such that those with any kind of colour blindness can tell a set apart;
       tests measure that, and the contrast. Pictures have letters, numbers, names or hatching beside them.

Glossary
    light, dark   the colour on a light and on a dark ground
    trace         the nearest of the names that Chrome's trace viewer has for colours
    phase         the first word of an operation's name: forward, backward, weight, recompute, optimizer
    weight        the half of a backward pass that finds the weights' gradients (W), where a schedule puts it
                  off
    input         the other half (I), which finds the gradient of a stage's input
    waiting       communication that the compute stream waits for: exposed, in tables and legends; hatched
    idle          what is needed has not been sent yet: bubble, in tables and legends; the ground itself, with
                  an outline
    part          what one of several GPUs holds or is: a slice of a matrix, a piece of a ring, a group
"""

from collections.abc import Collection
from typing import NamedTuple


class Paint(NamedTuple):
    letter: str
    light: str
    dark: str
    trace: str = ""


FORWARD = "forward"
BACKWARD = "backward"
INPUT = "input"
WEIGHT = "weight"
RECOMPUTE = "recompute"
OPTIMIZER = "optimizer"
OTHER = "compute"
COMMUNICATION, WAITING, IDLE = "communication", "waiting", "idle"

GROUND = ("#ffffff", "#0d1117")
INK = ("#1f2328", "#e6edf3")
FAINT_INK = ("#59636e", "#9198a1")
GRID = ("#d1d9e0", "#3d444d")
ACCENT = ("#0550ae", "#4493f8")  # what is chosen or has the focus, on a page

ACTIVITIES = {
    FORWARD: Paint("F", "#039dde", "#a9ddff", "thread_state_runnable"),
    BACKWARD: Paint("B", "#542b05", "#94500d", "thread_state_iowait"),
    INPUT: Paint("I", "#581799", "#8422e6", "light_memory_dump"),
    WEIGHT: Paint("W", "#01a658", "#78dc98", "good"),
    RECOMPUTE: Paint("R", "#ac70fe", "#ccb0ff", "detailed_memory_dump"),
    OPTIMIZER: Paint("O", "#07484c", "#006f75", "rail_load"),
    OTHER: Paint("C", "#86929d", "#c6d1db", "grey"),
    COMMUNICATION: Paint("=", "#b18b15", "#ffd04d", "yellow"),
    WAITING: Paint("x", "#770429", "#bd224a", "terrible"),
    IDLE: Paint(".", *GROUND, "white"),
}
PER_MICROBATCH = (FORWARD, BACKWARD, INPUT, WEIGHT, RECOMPUTE)
PHASES = (*PER_MICROBATCH, OPTIMIZER)

HALVES = {INPUT: "input gradient", WEIGHT: "weight gradient"}  # of a backward pass, as legends name them
TERMS = HALVES | {WAITING: "exposed", IDLE: "bubble"}  # what legends say: the words of the tables


def legend_words(activities: Collection[str]) -> dict[str, str]:
    """Return what a legend says of activities."""
    return {name: TERMS.get(name, name) for name in ACTIVITIES if name in activities}


MEMORY = {
    "weights": Paint("w", "#2814a1", "#4c56d3"),
    "gradients": Paint("g", "#e77409", "#feaf7c"),
    "optimizer": Paint("o", "#014029", "#00754d"),
    "activations": Paint("a", "#dc58d2", "#fec4f7"),
    "buffers": Paint("b", "#4a4000", "#6f631b"),
}

LOGITS = Paint("l", "#86947b", "#cad8be")  # a sixth kind, which only the planner tells from activations

PARTS = tuple(
    Paint(str(number), light, dark)
    for number, (light, dark) in enumerate(
        (("#0f9daa", "#6cd6e2"), ("#05407c", "#2967ae"), ("#fb5a79", "#fea8b1"), ("#600650", "#974583"))
    )
)


def luminance(colour: str) -> float:
    """Return the relative luminance of "#rrggbb", from 0 to 1 (WCAG 2.2)."""
    parts = (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colours, from 1 to 21 (WCAG 2.2)."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def ink_on(colour: str) -> str:
    """Return black or white, whichever reads better on a colour."""
    return max((GROUND[1], GROUND[0]), key=lambda ink: contrast(ink, colour))
