"""The lessons' text, as a torch Dataset, and its distributed sampler.

Idea   A window of the text is an example: its bytes are tokens, and the targets are the same bytes one
       further on. DistributedSampler gives every rank its share of an epoch's permutation. The permutation
       is the lessons', so that a script and its lesson see the same batches.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler

TEXT = Path(__file__).parents[1] / "ndparallel" / "model" / "text.txt"


class Windows(Dataset):
    """Non-overlapping windows of a text: (sequence) tokens and (sequence) targets."""

    def __init__(self, path: Path, sequence: int) -> None:
        self.tokens = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8).long()
        self.sequence = sequence

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.sequence

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        window = self.tokens[index * self.sequence :][: self.sequence + 1]
        return window[:-1], window[1:]


class SameOrder(DistributedSampler):
    """A DistributedSampler whose permutation is numpy's and not torch's."""

    def __iter__(self) -> Iterator[int]:
        order = np.random.default_rng([self.seed, self.epoch]).permutation(len(self.dataset))
        return iter(order[self.rank :: self.num_replicas][: self.num_samples].tolist())


def loader(path: Path, sequence: int, batch: int, rank: int = 0, ranks: int = 1) -> DataLoader:
    """Batches of `batch` sequences over all ranks, of which this one has batch / ranks."""
    windows = Windows(path, sequence)
    sampler = SameOrder(windows, num_replicas=ranks, rank=rank, drop_last=True)
    return DataLoader(windows, batch_size=batch // ranks, sampler=sampler, drop_last=True)
