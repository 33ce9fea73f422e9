"""What the kind of a layer says (ModelShape.kind): dense or experts, behind linear- or window-; and which
layers are of a kind."""

from collections.abc import Sequence
from typing import Any

WORDS = {  # what is said behind "a layer", by kind
    "dense": "",
    "experts": " with experts",
    "window-dense": " with a window",
    "window-experts": " with a window and experts",
    "linear-dense": " with linear attention",
    "linear-experts": " with linear attention and experts",
}


def has_experts(kind: str) -> bool:
    """Whether layers of this kind are mixtures of experts."""
    return kind.endswith("experts")


def is_linear(kind: str) -> bool:
    """Whether layers of this kind have linear attention."""
    return kind.startswith("linear-")


def has_window(kind: str) -> bool:
    """Whether queries in layers of this kind see a window of the sequence."""
    return kind.startswith("window-")


def layers_with(kind: Any, kinds: Sequence[Any]) -> tuple[int, ...]:
    """The numbers of the layers of one kind, of which `kinds` has one for each layer."""
    return tuple(layer for layer, each in enumerate(kinds) if each == kind)
