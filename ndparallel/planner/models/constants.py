"""Numbers of a model that change no second and no byte, and without which a launch script would train another
model.

Idea   They are read with the model, carried along in the ModelShape, and written where a framework is
       launched.
Limit  None is "the file does not say", and no default is taken.

Glossary
    base            of rotary positions: the base of the wavelengths
    share           the part of a head that is turned
    unrotated       layers without positions, by their numbers
    rotated_first   queries and keys are turned before they are normed, and not after
    zero_centered   norms multiply by 1 + weight, and not by the weight
    clamp           gpt-oss's activation: its inputs' largest size, beside a gate of its own
    scaling         how a longer sequence is met
    renormalized    the chosen experts' weights sum to 1
    scores          how a router makes weights of its numbers: "softmax", "sigmoid"
    scaled_inputs   these weights multiply what goes into an expert, and not what comes out
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Constants:
    """Numbers of a model; None where its file does not say. `others` are keys with their values, as they
    stand in the file."""

    norm_epsilon: float | None = None
    rotary_base: float | None = None
    rotary_share: float | None = None
    rotary_scaling: tuple[tuple[str, Any], ...] = ()
    router_scaling: float | None = None
    renormalized: bool | None = None
    scores: str = ""
    scaled_inputs: bool = False
    balance_loss: float | None = None
    balance_by_sequence: bool | None = None
    activation_clamp: float | None = None
    unrotated: tuple[int, ...] = ()
    rotated_first: bool = False
    zero_centered: bool = False
    others: tuple[tuple[str, Any], ...] = ()

    @property
    def scaling(self) -> dict[str, Any]:
        return dict(self.rotary_scaling)
