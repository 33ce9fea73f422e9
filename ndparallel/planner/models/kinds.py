"""What the kind of a layer says (ModelShape.kind): dense or experts, behind linear- or window-."""


def has_experts(kind: str) -> bool:
    """Whether layers of this kind are mixtures of experts."""
    return kind.endswith("experts")


def is_linear(kind: str) -> bool:
    """Whether layers of this kind have linear attention."""
    return kind.startswith("linear-")


def has_window(kind: str) -> bool:
    """Whether queries in layers of this kind see a window of the sequence."""
    return kind.startswith("window-")
