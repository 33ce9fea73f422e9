"""The lessons' initial weights: drawn by name, so that a script and its lesson begin with the same numbers.

Limit  Whole tensors only: a script draws its model, and then cuts it.
"""

import re
import zlib

import numpy as np
import torch
from torch import nn

from model import Config


def name_in_lessons(name: str) -> str:
    """layers.0.attention.q.weight, or what a wrapper makes of it, is layers.0.q."""
    return re.sub(r"^(module|\d+)\.|attention\.|mlp\.|\.weight$", "", name)


def deviation(name: str, config: Config) -> float:
    if name.endswith(".table"):
        return 1.0
    writes_to_residual = name.endswith((".out", ".down"))
    return config.hidden**-0.5 / ((2 * config.layers) ** 0.5 if writes_to_residual else 1)


@torch.no_grad()
def draw(model: nn.Module, config: Config, seed: int = 0) -> nn.Module:
    """Draw all weights but the norms', which start as ones."""
    for torch_name, weight in model.named_parameters():
        name = name_in_lessons(torch_name)
        if weight.dim() > 1:
            generator = np.random.default_rng([seed, zlib.crc32(name.encode())])
            drawn = deviation(name, config) * generator.standard_normal(tuple(weight.shape))
            weight.copy_(torch.from_numpy(drawn))
    return model
