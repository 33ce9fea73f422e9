"""What collectives reach of the links where they were measured, and what they take from compute.

Idea   Every collective reaches another part of a link's latency and bandwidth. One that was not measured has
       the hardware's links, and what NCCL takes before the first byte moves. One that was has links of its
       own, on which its start counts as latency.

Glossary
    shares    of a collective's latencies and bandwidths in those of the hardware: a link that a what-if makes
              twice as fast is so for all
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from gpu import Hardware, Link
from ndparallel.base.errors import UserError, check_known
from ndparallel.base.quantities import parse_quantity
from ndparallel.base.quoting import brief
from ndparallel.hardware.dtypes import positive

# how much slower a GPU computes while a collective is under way, which takes multiprocessors, memory
# bandwidth and power from it: the mean over A100, H100, MI210 and MI250 in Lee et al., arXiv:2507.03114
# (at most 0.40)
SLOWDOWN = 0.189
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "point_to_point")
UNITS = {
    f"{what}_{where}": unit
    for where in ("inside", "across")
    for what, unit in (("latency", "seconds"), ("bandwidth", "bytes per second"))
}
EXAMPLE = '{ all_gather = { latency_inside = "8 us", bandwidth_inside = "300 GB/s" } }'


class LinkShares(NamedTuple):
    """The links of one collective, in those of the hardware."""

    latency_inside: float = 1.0
    bandwidth_inside: float = 1.0
    latency_across: float = 1.0
    bandwidth_across: float = 1.0


def link_shares(subject: str, given: Any, inside: Link, across: Link) -> dict[str, LinkShares]:
    """Read a table of collectives, whose latencies and bandwidths are achieved ones. Raises UserError for
    anything else, and for a latency where the hardware's link has none."""
    if not isinstance(given, Mapping) or not all(isinstance(each, Mapping) for each in given.values()):
        raise UserError(f"{subject} must be a table of collectives, as in {EXAMPLE}, not {brief(given)}.")
    whole = {
        "latency_inside": inside.latency_seconds,
        "bandwidth_inside": inside.bandwidth_bytes_per_second,
        "latency_across": across.latency_seconds,
        "bandwidth_across": across.bandwidth_bytes_per_second,
    }
    for collective in given:
        check_known(f"collective of {subject}:", collective, COLLECTIVES)
    return {name: LinkShares(**shares(f"{subject}.{name}", each, whole)) for name, each in given.items()}


def shares(subject: str, given: Mapping[str, Any], whole: Mapping[str, float]) -> dict[str, float]:
    found = {}
    for key, value in given.items():
        check_known(f"key of {subject}:", key, UNITS)
        if not whole[key]:
            raise UserError(f"{subject}.{key} needs a link whose {key} is above 0.")
        found[key] = positive(f"{subject}.{key}", parse_quantity(value, UNITS[key], subject)) / whole[key]
    return found


def on_links_of(hardware: Hardware, collective: str) -> Hardware | None:
    """Return the hardware with the links that a collective was measured to have; None where it was not."""
    found = getattr(hardware, "collectives", {}).get(collective)
    if found is None:
        return None
    inside = scaled(hardware.inside, found.latency_inside, found.bandwidth_inside)
    across = scaled(hardware.across, found.latency_across, found.bandwidth_across)
    return replace(hardware, inside=inside, across=across)


def scaled(link: Link, latency: float, bandwidth: float) -> Link:
    return Link(link.latency_seconds * latency, link.bandwidth_bytes_per_second * bandwidth)


def slowdown_of(hardware: Hardware) -> float:
    """Return how much slower compute is beside a collective."""
    return float(getattr(hardware, "slowdown", SLOWDOWN))
