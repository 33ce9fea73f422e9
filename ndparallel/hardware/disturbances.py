"""What if a GPU is slow, a link has lost lanes, or no kernel takes as long as the one before? Disturbances,
exact and repeatable.

Idea   A disturbance belongs to the hardware: a factor on what one GPU computes, on the bandwidth of one link,
       or on each kernel. Nothing else changes, so what a strategy loses is what it makes the others wait.
Cost   One multiplication a kernel.
Limit  The single GPU that all are held against is not disturbed. Collectives choose their algorithm knowing
       of a slow link, and not of a slow GPU; a link on which no message goes slows nobody.

Glossary
    factor   how many times as long it takes: 2 is half the speed
    jitter   each kernel's time multiplied by a lognormal factor of mean 1, so that the work on average stays
             the same; PERCENT is its standard deviation
"""

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpu import Hardware, Link
from ndparallel.base.errors import UserError
from ndparallel.base.quantities import number, whole_number
from ndparallel.base.quoting import brief
from ndparallel.base.words import listed

DRAWN_AT_ONCE = 256
MOST_JITTER_PERCENT, MOST_FACTOR = 1000.0, 1e6


@dataclass(frozen=True)
class Disturbances:
    """Slow GPUs, slow links and jitter. `slow_gpus` are (rank, factor), `slow_links` (rank, rank, factor);
    `jitter` is the standard deviation of a kernel's time as a share of it."""

    slow_gpus: tuple[tuple[int, float], ...] = ()
    slow_links: tuple[tuple[int, int, float], ...] = ()
    jitter: float = 0.0
    seed: int = 0

    def __bool__(self) -> bool:
        return bool(self.slow_gpus or self.slow_links or self.jitter)

    @property
    def ranks(self) -> dict[int, str]:
        """Yield each named GPU with the option that names it."""
        links = {
            rank: f"--slow-link {a}-{b}:{factor:g}" for a, b, factor in self.slow_links for rank in (a, b)
        }
        return links | {rank: f"--slow-gpu {rank}:{factor:g}" for rank, factor in self.slow_gpus}

    # ---- what gpu.py and the lockstep clocks ask

    def slowdown(self, rank: int) -> Callable[[str], float] | None:
        """Return a function that gives the slowdown factor of the next kernel on a stream of this GPU, or
        None where the GPU is not disturbed."""
        slow = math.prod(factor for slow_rank, factor in self.slow_gpus if slow_rank == rank)
        if not self.jitter:
            return None if slow == 1 else lambda stream: slow
        streams: dict[str, Iterator[float]] = {}
        return lambda stream: (
            slow * next(streams.get(stream) or streams.setdefault(stream, self._factors(rank, stream)))
        )

    def _factors(self, rank: int, stream: str) -> Iterator[float]:
        """Yield the factors of a stream's kernels in their order. Each depends on seed, rank, stream and
        its number alone."""
        variance = math.log1p(self.jitter**2)
        generator = np.random.default_rng([self.seed, rank, *stream.encode()])
        while True:
            logarithms = generator.normal(-variance / 2, math.sqrt(variance), DRAWN_AT_ONCE)
            # exp's last digit is not the same on all machines
            yield from np.exp(logarithms).round(9).tolist()

    def link(self, a: int, b: int, link: Link) -> Link:
        factor = float(self.link_factor(np.array(a), np.array(b)))
        return link if factor == 1 else slower(link, factor)

    def link_factor(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Return the factor that divides the bandwidth between ranks `a` and `b`, in both directions.
        Takes arrays of ranks too."""
        factors = np.ones(np.broadcast_shapes(np.shape(a), np.shape(b)))
        for one, other, factor in self.slow_links:
            factors = np.where(
                ((a == one) & (b == other)) | ((a == other) & (b == one)), factors * factor, factors
            )
        return factors

    def slows_a_link_among(self, ranks: Sequence[int]) -> bool:
        """Return whether one of the slowed links connects two of these ranks."""
        return any(a in ranks and b in ranks for a, b, _ in self.slow_links)

    # ---- what people read

    def __str__(self) -> str:
        gpus = [f"GPU {rank} {factor:g}x slower" for rank, factor in self.slow_gpus]
        links = [f"link {a}-{b} {factor:g}x slower" for a, b, factor in self.slow_links]
        return listed(
            [*gpus, *links, *([f"{100 * self.jitter:g}% jitter of every kernel"] if self.jitter else [])]
        )

    def as_dict(self) -> dict[str, Any]:
        gpus = [{"gpu": rank, "factor": factor} for rank, factor in self.slow_gpus]
        links = [{"gpus": [a, b], "factor": factor} for a, b, factor in self.slow_links]
        return {
            "slow_gpus": gpus,
            "slow_links": links,
            "jitter_percent": 100 * self.jitter,
            "seed": self.seed,
        }

    def check(self, gpus: int) -> None:
        """Raise UserError where an option names a GPU that does not exist among `gpus`, the number that
        the largest strategy has."""
        for rank, option in self.ranks.items():
            if rank >= gpus:
                have = f"GPUs 0 to {gpus - 1}" if gpus > 1 else "GPU 0 alone"
                raise UserError(f"{option}: there is no GPU {rank}; what runs here has {have}.")


def slower(link: Link, times: float) -> Link:
    """A link with the same latency, on which a byte takes so many times as long."""
    return replace(link, bandwidth_bytes_per_second=link.bandwidth_bytes_per_second / times)


def undisturbed(hardware: Hardware) -> Hardware:
    return replace(hardware, disturbances=None) if hardware.disturbances else hardware


# ------------------------------------------------------------------------------------------------ the options


def add_disturbance_options(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument_group("what if").add_argument
    option(
        "--slow-gpu",
        action="append",
        default=[],
        metavar="RANK:FACTOR",
        help="this GPU takes so many times as long to compute",
    )
    option(
        "--slow-link",
        action="append",
        default=[],
        metavar="A-B:FACTOR",
        help="the link between two GPUs has 1/FACTOR of its bandwidth",
    )
    option(
        "--jitter",
        type=float,
        default=0.0,
        metavar="PERCENT",
        help="by how much every kernel's time varies: lognormal, drawn from --seed",
    )


def disturbances_from(arguments: argparse.Namespace) -> Disturbances | None:
    """Return the disturbances that the options ask for, or None. Raises UserError for a wrong one."""
    if not 0 <= arguments.jitter <= MOST_JITTER_PERCENT:
        given, most = (f"{percent:g}" for percent in (arguments.jitter, MOST_JITTER_PERCENT))
        raise UserError(
            f"--jitter {given} is no percentage of a kernel's time: give 0 to {most}, as in --jitter 5."
        )
    found = Disturbances(
        tuple(slow_gpu(text) for text in arguments.slow_gpu),
        tuple(slow_link(text) for text in arguments.slow_link),
        arguments.jitter / 100,
        arguments.seed,
    )
    return found or None


def slow_gpu(text: str) -> tuple[int, float]:
    """Read RANK:FACTOR. Raises UserError for anything else."""
    rank, _, factor = text.partition(":")
    form = "write RANK:FACTOR, as in --slow-gpu 2:1.5 for a GPU 2 that takes 1.5 times as long"
    (gpu,) = ranks_from(f"--slow-gpu {brief(text)}", form, rank)
    return gpu, factor_from(f"--slow-gpu {brief(text)}", form, factor)


def slow_link(text: str) -> tuple[int, int, float]:
    """Read A-B:FACTOR. Raises UserError for anything else, and for a link from a GPU to itself."""
    ends, _, factor = text.partition(":")
    form = "write A-B:FACTOR, as in --slow-link 0-1:4 for a quarter of the bandwidth of that link"
    a, b = ranks_from(f"--slow-link {brief(text)}", form, *ends.partition("-")[::2])
    if a == b:
        raise UserError(f"--slow-link {brief(text)}: a GPU has no link to itself; name two GPUs.")
    return a, b, factor_from(f"--slow-link {brief(text)}", form, factor)


def ranks_from(given: str, form: str, *words: str) -> list[int]:
    if not all(word.isdecimal() for word in words):
        raise UserError(f"{given}: {form}.")
    return [whole_number(word, given) for word in words]


def factor_from(given: str, form: str, factor: str) -> float:
    try:
        value = number(factor)
    except UserError:
        value = math.nan
    if not 1 <= value <= MOST_FACTOR:
        raise UserError(f"{given}: {form}. The factor is a number from 1 to {MOST_FACTOR:,.0f}.")
    return value
