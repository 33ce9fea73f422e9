"""The lessons' model in torch: a Llama-style transformer, its parameters drawn by the same names.

Idea   nn.Linear, nn.RMSNorm, nn.Embedding and scaled_dot_product_attention, and no line about parallelism:
       each strategy cuts the same modules from outside. Activations are (batch, sequence, hidden).
Limit  Attention and MLP are modules here, so that a plan can name their inputs: layers.0.attention.q.weight
       is the lessons' layers.0.q.

Glossary
    b, s, h     batch, sequence, hidden
    stage       the blocks that one rank of a pipeline has; the whole model is the only stage of one
"""

from collections import OrderedDict
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Config:
    layers: int = 8
    hidden: int = 32
    heads: int = 8
    kv_heads: int = 2
    ffn: int = 88
    vocab: int = 256
    sequence: int = 64

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads


def linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


def rotate(x: Tensor, positions: Tensor) -> Tensor:
    """Turn the pairs (i, i + d/2) of x (b, heads, s, d) by angles that grow with the position."""
    d = x.shape[-1]
    frequencies = 10000.0 ** (-torch.arange(0, d, 2, dtype=torch.float64, device=x.device) / d)
    angles = torch.outer(positions.to(x.device), frequencies)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)


class Attention(nn.Module):
    """Causal self-attention with rotary positions and grouped KV heads; (b, s, h) to (b, s, h)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.q = linear(config.hidden, config.heads * config.head_dim)
        self.k = linear(config.hidden, config.kv_heads * config.head_dim)
        self.v = linear(config.hidden, config.kv_heads * config.head_dim)
        self.out = linear(config.heads * config.head_dim, config.hidden)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (w(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for w in (self.q, self.k, self.v))
        positions = self.positions(q.shape[2])
        return self.out(self.mix(rotate(q, positions), rotate(k, positions), v).transpose(1, 2).flatten(2))

    def positions(self, tokens: int) -> Tensor:
        return torch.arange(tokens)

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


class MLP(nn.Module):
    """SwiGLU."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.gate, self.up = linear(config.hidden, config.ffn), linear(config.hidden, config.ffn)
        self.down = linear(config.ffn, config.hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.norm1, self.attention = nn.RMSNorm(config.hidden, eps=1e-5), Attention(config)
        self.norm2, self.mlp = nn.RMSNorm(config.hidden, eps=1e-5), MLP(config)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    """One stage: (b, s) tokens, or (b, s, h) from the stage before, to (b, s, vocab) or (b, s, h)."""

    def __init__(self, config: Config, stage: int = 0, stages: int = 1) -> None:
        super().__init__()
        mine = range(config.layers * stage // stages, config.layers * (stage + 1) // stages)
        table, logits = nn.Embedding(config.vocab, config.hidden), linear(config.hidden, config.vocab)
        self.embedding = nn.Sequential(OrderedDict(table=table) if stage == 0 else OrderedDict())
        self.layers = nn.ModuleDict({str(layer): Block(config) for layer in mine})
        head = OrderedDict(norm=nn.RMSNorm(config.hidden, eps=1e-5), logits=logits)
        self.head = nn.Sequential(head if stage == stages - 1 else OrderedDict())

    def forward(self, x: Tensor) -> Tensor:
        x = self.embedding(x)
        for layer in self.layers.values():
            x = layer(x)
        return self.head(x)


def loss_fn(logits: Tensor, targets: Tensor) -> Tensor:
    """The mean loss, in nats per token."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())
