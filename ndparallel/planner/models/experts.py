"""A mixture of experts, by its sizes.

Glossary: see `ndparallel.planner.models.shape`.
"""

from dataclasses import dataclass

from ndparallel.base.errors import UserError
from ndparallel.planner.models.matrices import Linear, count
from ndparallel.planner.models.sizes import checked_size, checked_sizes, near_divisors


@dataclass(frozen=True)
class Experts:
    """The mixture of experts that takes the place of the MLP in every layer but `dense_layers` (their
    numbers, from 0).

    `ffn` is the width of one expert, `shared_ffn` that of one of the `shared_experts`, which serve every
    token. `shared_gate` is Qwen2-MoE's gate on them; `router_bias` DeepSeek-V3's number per expert that
    balances the load. With `own_norms` (Gemma 4) router, experts and shared experts each norm their input for
    themselves, the latter two their results as well, and each expert's weight has a scale. A token goes to
    experts of `top_groups` of the `groups` that they are split into, in the order of their numbers
    (DeepSeek-V3: of 4 of 8, arXiv 2412.19437, section 4.2).
    """

    experts: int
    top_k: int
    ffn: int
    shared_experts: int = 0
    shared_ffn: int = 0
    shared_gate: bool = False
    router_bias: bool = False
    own_norms: bool = False
    groups: int = 1
    top_groups: int = 1
    dense_layers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        checked_sizes(self, ("experts", "top_k", "ffn", "groups", "top_groups"))
        checked_size(self.shared_experts, "shared_experts", least=0)
        checked_size(self.shared_ffn, "shared_ffn", least=int(self.shared_experts > 0))
        if self.top_k > self.experts:
            raise UserError(
                f"top_k is {self.top_k}, but there are only {self.experts} experts to choose from."
            )
        if self.own_norms and not self.shared_experts:
            raise UserError(
                "own_norms are those of experts and shared experts, but there are no shared ones."
            )
        self._check_groups()

    def _check_groups(self) -> None:
        """Raise UserError where a router cannot keep a token to these groups."""
        if self.experts % self.groups:
            near = near_divisors(self.experts, self.groups)
            raise UserError(
                f"{self.experts} experts make no {self.groups} groups of equal size; nearest: {near}."
            )
        if self.top_groups > self.groups:
            raise UserError(
                f"top_groups is {self.top_groups}, but there are only {self.groups} groups of experts."
            )
        if self.top_k > (allowed := self.top_groups * self.experts // self.groups):
            raise UserError(
                f"top_k is {self.top_k}, but a token may choose among {allowed} experts only: those of "
                f"{self.top_groups} of {self.groups} groups."
            )

    def router(self, hidden: int) -> tuple[Linear, ...]:
        choose = Linear("router", hidden, self.experts, self.router_bias, "whole")
        return (choose, Linear("shared_gate", hidden, 1, False, "whole")) if self.shared_gate else (choose,)

    def router_parameters(self, hidden: int, norm: int) -> int:
        """Parameters of the router's matrices; with `own_norms` of three norms of `norm` parameters beside
        the layer's, and of the router's, which has a scale alone, and the experts' scales."""
        return count(self.router(hidden)) + self.own_norms * (3 * norm + hidden + self.experts)
