"""Who says how to choose a plan, and what was said on the way to one."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Guide:
    """Who gives a rule, and where."""

    name: str
    source: str


MEGATRON = Guide(
    "Megatron-Core",
    "NVIDIA/Megatron-LM, megatron/core/transformer/moe/README.md, Tuning Guide of Parallel Mappings",
)
PLAYBOOK = Guide(
    "Ultra-Scale Playbook",
    "huggingface.co/spaces/nanotron/ultrascale-playbook, Finding the Best Training Configuration",
)
TORCHTITAN = Guide(
    "torchtitan", "Liang et al. 2410.06511, section 3, and its recipes of Llama 3.1 8B, 70B and 405B"
)
BRIDGE = Guide(
    "Megatron-Bridge",
    "NVIDIA-NeMo/Megatron-Bridge, docs/performance-guide.md, Parallel Mapping Strategies",
)
EXPERTS = Guide(
    "Megatron-Core's MoE",
    "NVIDIA/Megatron-LM, megatron/core/transformer/moe/README.md, Communication Bottleneck",
)
GUIDES = (MEGATRON, PLAYBOOK, TORCHTITAN, BRIDGE, EXPERTS)


@dataclass(frozen=True)
class Branch:
    """One question, the numbers that answer it, what follows, and which guide says so."""

    question: str
    numbers: dict[str, float]
    follows: str
    guide: Guide

    def as_dict(self) -> dict[str, Any]:
        return vars(self) | {"guide": self.guide.name, "source": self.guide.source}
