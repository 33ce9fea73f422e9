"""Run one collective with each of its algorithms, or with one, and say how long it takes and what is sent.

Idea   Every rank runs the algorithm over gpu.send and gpu.receive, with arrays that are only sizes; its
       closed form stands beside it. Without --algorithm there is a table of all, and the sizes at which the
       fastest changes. --show draws every hop.
Cost   Up to 64 ranks are executed, message by message. More advance in lockstep, one vector operation a hop,
       which gives the same seconds; --engine asks for the one or the other.
Limit  A message costs its latency and its bytes, and nothing else.

  ndparallel collective all_reduce --algorithm ring --ranks 8 --bytes 1e6 --latency 5e-6
  ndparallel collective all_reduce --ranks 4 --show
  ndparallel collective all_reduce --ranks 4096
"""

import argparse
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

from collectives import ALGORITHMS, Group
from gpu import Hardware, Link, MismatchError, si
from ndparallel.base.errors import UserError, unknown
from ndparallel.base.quantities import number, parse_quantity, si_or_dash
from ndparallel.base.words import count
from ndparallel.collective import hops
from ndparallel.collective.algorithms import candidates, nodes_of
from ndparallel.collective.prices import choose_algorithm, envelope, find_algorithm
from ndparallel.collective.runs import LOCKSTEP, Measured, measure
from ndparallel.engines.launch import ENGINES, DeadlockError
from ndparallel.hardware.accelerator import find_hardware
from ndparallel.results.printing import plain_console, print_json, prose
from ndparallel.results.tables import quiet_table

MOST_EXECUTED, MOST_RANKS, MOST_BYTES = 64, 65_536, 1e15
# algorithms of about as many steps as there are ranks, and for how many ranks that takes seconds
STEP_FOR_EVERY_RANK = {"ring": 16_384, "hierarchical": 16_384, "chain": 16_384, "direct": 8192}
MOST_IN_MESSAGES = 2048  # where every message is one of an engine
LEAST_IN_A_PIECE, UNEVEN = 1000, 1e-3  # bytes; the share that a byte more in a piece may be
MANY_MESSAGES = (
    "Here a sender pays for bytes alone. A real one also pays for every message, of which a rank of "
    "a tree sends fewer."
)
COLUMNS = ("algorithm", "time", "closed form", "most sent by a rank", "in messages", "sent in all")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    option("collective", metavar="NAME", help=", ".join(ALGORITHMS))
    option("--algorithm", metavar="NAME", help="only this one (default: all of them, in one table)")
    option("--ranks", type=int, default=8, metavar="N", help="GPUs in the group (default 8)")
    option("--bytes", default="1e6", metavar="SIZE", help="size of the whole array: 1e6, 64MiB (default 1e6)")
    add_link_options(parser)
    option(
        "--engine",
        choices=(*ENGINES, LOCKSTEP),
        help=f"what runs the ranks (default: inline, for more than {MOST_EXECUTED} lockstep)",
    )
    output = parser.add_mutually_exclusive_group()
    output.add_argument(
        "--show", action="store_true", help="draw, hop by hop, what each rank holds and what moves"
    )
    output.add_argument("--json", action="store_true", help="print JSON and nothing else")


def add_link_options(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument_group("the links").add_argument
    option("--hardware", metavar="NAME|FILE", help="whose links they are (default h100)")
    option(
        "--latency",
        metavar="TIME",
        help="latency of a link inside a node: 5e-6, 5us (default: the hardware's)",
    )
    option(
        "--bandwidth",
        metavar="RATE",
        help="bandwidth of a link inside a node: 50e9, 50GB/s, 400Gb/s (default: the hardware's)",
    )
    option(
        "--gpus-per-node",
        type=int,
        metavar="N",
        help="GPUs in a node (default: the hardware's, or all ranks where only a link inside is given)",
    )
    option(
        "--latency-across", metavar="TIME", help="latency of a link between nodes (default: the hardware's)"
    )
    option(
        "--bandwidth-across",
        metavar="RATE",
        help="bandwidth of a link between nodes (default: the hardware's)",
    )


@contextmanager
def in_a_sentence(algorithm: str, collective: str) -> Iterator[None]:
    """Raise UserError where an algorithm, which a reader may have added, gets stuck."""
    try:
        yield
    except (DeadlockError, MismatchError) as error:
        raise UserError(f"{collective} {algorithm}: {error}".replace("\n", " ")) from error


@dataclass(frozen=True)
class Setting:
    """What is to be run, and on what."""

    collective: str
    group: Group
    hardware: Hardware
    nbytes: int
    engine: str

    def measure(self, algorithm: str) -> Measured:
        with in_a_sentence(algorithm, self.collective):
            return measure(self.collective, algorithm, self.group, self.hardware, self.nbytes, self.engine)

    def as_dict(self) -> dict[str, Any]:
        node = min(self.hardware.gpus_per_node, self.group.size)
        return {
            "collective": self.collective,
            "ranks": self.group.size,
            "gpus_per_node": node,
            "bytes": self.nbytes,
        }


def run(arguments: argparse.Namespace) -> None:
    collective, algorithm = names_from(arguments)
    ranks = counted("--ranks", arguments.ranks, MOST_RANKS)
    hardware, nbytes = hardware_from(arguments), bytes_from(arguments.bytes)
    setting = Setting(
        collective, Group("collective", tuple(range(ranks))), hardware, nbytes, engine_from(arguments)
    )
    check_nodes(setting, algorithm)
    check_size(setting, algorithm)
    if arguments.show:
        show_hops(setting, algorithm or next(iter(ALGORITHMS[collective])))
    elif algorithm:
        show_one(setting, algorithm, arguments.json)
    else:
        show_all(setting, arguments.json)


# ------------------------------------------------------------------------------------------ what is asked for


def names_from(arguments: argparse.Namespace) -> tuple[str, str | None]:
    """The collective and the algorithm, with "-" and "_" alike. Raises UserError for names that do not
    exist."""
    collective = arguments.collective.replace("-", "_")
    if collective not in ALGORITHMS:
        raise unknown("collective", arguments.collective, ALGORITHMS)
    if arguments.algorithm is None:
        return collective, None
    algorithm = arguments.algorithm.replace("_", "-")
    find_algorithm(collective, algorithm)
    return collective, algorithm


def check_nodes(setting: Setting, algorithm: str | None) -> None:
    """Raise UserError where the nodes do not suit the algorithm."""
    sizes = [len(node) for node in nodes_of(setting.group, setting.hardware.gpus_per_node)]
    if algorithm == "hierarchical" and len(set(sizes)) > 1:
        p, full = setting.group.size, sizes[0]
        raise UserError(
            f"{p} ranks on nodes of {full} leave the last node {sizes[-1]}: a hierarchy needs --ranks "
            f"{p // full * full}, say."
        )


def check_size(setting: Setting, algorithm: str | None) -> None:
    """Raise UserError where an algorithm that is asked for would send too many messages to wait for."""
    if setting.collective in ("gather", "scatter"):
        return  # one message for every rank
    p, names = setting.group.size, candidates(setting.collective, setting.group, setting.hardware)
    for name in [algorithm] if algorithm else names:
        most = STEP_FOR_EVERY_RANK.get(name, MOST_RANKS)
        if name in STEP_FOR_EVERY_RANK and setting.engine != LOCKSTEP:
            most = MOST_IN_MESSAGES
        if p > most:
            raise UserError(
                f"{name} among {p:,} ranks sends too many messages to wait for: choose --ranks {most} at "
                "most, or --algorithm for one that sends fewer."
            )


def hardware_from(arguments: argparse.Namespace) -> Hardware:
    """The hardware's links, but for what the options say of them; then they have no name."""
    hardware = find_hardware("h100" if arguments.hardware is None else arguments.hardware)
    one_link = (arguments.latency or arguments.bandwidth) and not (
        arguments.latency_across or arguments.bandwidth_across
    )
    gpus_per_node = arguments.gpus_per_node
    if gpus_per_node is None:
        gpus_per_node = arguments.ranks if one_link and not arguments.hardware else hardware.gpus_per_node
    links = arguments.latency, arguments.bandwidth, arguments.latency_across, arguments.bandwidth_across
    return replace(
        hardware,
        name="" if any(links) else hardware.name,
        gpus_per_node=counted("--gpus-per-node", gpus_per_node),
        inside=link_from(arguments, "", hardware.inside),
        across=link_from(arguments, "_across", hardware.across),
    )


def link_from(arguments: argparse.Namespace, where: str, link: Link) -> Link:
    given = vars(arguments)
    latency, bandwidth = given[f"latency{where}"], given[f"bandwidth{where}"]
    option = where.replace("_", "-")
    if latency is not None:
        link = replace(link, latency_seconds=si_number(latency, "seconds", f"--latency{option}"))
    if bandwidth is not None:
        link = replace(
            link, bandwidth_bytes_per_second=si_number(bandwidth, "bytes per second", f"--bandwidth{option}")
        )
    if not link.bandwidth_bytes_per_second:
        raise UserError(f"--bandwidth{option} = {bandwidth!r} lets nothing through: it must be above 0.")
    return link


def si_number(text: str, quantity: str, option: str) -> float:
    """A quantity with its unit, or a bare number, which is in SI: bytes, seconds."""
    try:
        value: str | float = number(text)
    except UserError:
        value = text
    return parse_quantity(value, quantity, option)


def bytes_from(text: str) -> int:
    value = si_number(text, "bytes", "--bytes")
    if value != int(value) or value > MOST_BYTES:
        raise UserError(f"--bytes = {text!r} must be a whole number of bytes, up to {MOST_BYTES:g}.")
    return int(value)


def counted(option: str, number: int, most: float = float("inf")) -> int:
    if not 1 <= number <= most:
        raise UserError(
            f"{option} {number} cannot be: choose 1 or more{f', up to {most}' if number > 1 else ''}."
        )
    return number


def engine_from(arguments: argparse.Namespace) -> str:
    return arguments.engine or ("inline" if arguments.ranks <= MOST_EXECUTED else LOCKSTEP)


# ---------------------------------------------------------------------------------------------- what is shown


def show_one(setting: Setting, algorithm: str, as_json: bool) -> None:
    measured = setting.measure(algorithm)
    if as_json:
        print_json(setting.as_dict() | asdict(measured))
    else:
        show_table(setting, [measured], [how(setting), *of_closed_forms([measured], setting)])


def show_all(setting: Setting, as_json: bool) -> None:
    names = candidates(setting.collective, setting.group, setting.hardware)
    rows = [setting.measure(name) for name in names]
    steps = envelope(setting.collective, setting.group, setting.hardware)
    chosen = choose_algorithm(setting.collective, setting.group, setting.hardware, setting.nbytes)
    if as_json:
        fastest = [{"from_bytes": size, "algorithm": name} for size, name in steps]
        whole = setting.as_dict() | {
            "chosen": chosen,
            "algorithms": [asdict(row) for row in rows],
            "fastest": fastest,
        }
        print_json(whole)
    else:
        show_table(
            setting,
            rows,
            [*by_size(setting, names, chosen, steps), how(setting), *of_closed_forms(rows, setting)],
        )


def show_hops(setting: Setting, algorithm: str) -> None:
    engine = "inline" if setting.engine == LOCKSTEP else setting.engine
    with in_a_sentence(algorithm, setting.collective):
        show = hops.watch(
            setting.collective, algorithm, setting.group, setting.hardware, setting.nbytes, engine
        )
    console, width = plain_console()
    console.print(
        prose(f"{algorithm} {title(setting)}", width, bold=f"{algorithm} {setting.collective}"), end="\n\n"
    )
    console.print(prose(f"{hops.idea(show)} {hops.legend(show)}", width), end="\n\n")
    for line in hops.draw(show):
        console.print(line, soft_wrap=True)
    console.print(hops.conclusion(show))


def show_table(setting: Setting, rows: Sequence[Measured], remarks: Sequence[str]) -> None:
    console, width = plain_console()
    console.print(prose(title(setting), width, bold=setting.collective), end="\n\n")
    console.print(quiet_table(COLUMNS, [cells(row) for row in rows], width))
    for remark in remarks:
        console.print()
        console.print(prose(remark, width))


def cells(row: Measured) -> tuple[str, ...]:
    times = si_or_dash(row.seconds, "s"), si_or_dash(row.formula_seconds, "s")
    return (
        row.algorithm,
        *times,
        si(row.bytes_sent_per_rank, "B"),
        f"{row.messages_per_rank:,}",
        si(row.bytes_sent_total, "B"),
    )


def title(setting: Setting) -> str:
    """What is run: "all_reduce of 1.00 MB among 16 ranks (h100), 8 a node: 3.40 us and 360 GB/s inside, 14.0
    us and 45.0 GB/s across"."""
    p, node = setting.group.size, setting.hardware.gpus_per_node
    inside, across = (link_words(link) for link in (setting.hardware.inside, setting.hardware.across))
    nodes = f"in one node: {inside}" if node >= p else f"one a node: {across}"
    if 1 < node < p:
        nodes = f"{node} a node: {inside} inside, {across} across"
    ranks = count(p, "rank") + f" ({setting.hardware.name})" * bool(setting.hardware.name)
    size = "" if setting.collective == "barrier" else f" of {si(setting.nbytes, 'B')}"
    return f"{setting.collective}{size} among {ranks}, {nodes}"


def link_words(link: Link) -> str:
    return f"{si(link.latency_seconds, 's')} and {si(link.bandwidth_bytes_per_second, 'B/s')}"


def how(setting: Setting) -> str:
    if setting.engine == LOCKSTEP:
        return (
            "Run in lockstep: all ranks' clocks move at once, one vector operation a hop, to the same "
            "seconds as message by message."
        )
    return f"Executed message by message, on the engine {setting.engine}."


def by_size(
    setting: Setting, names: Sequence[str], chosen: str, steps: Sequence[tuple[int, str]]
) -> list[str]:
    """Which is the fastest here, and at other sizes; nothing where there is no choice."""
    if len(names) == 1:
        return []
    if len(steps) == 1:
        return [f"Fastest at every size: {chosen}."]
    ranges = [f"{name} up to {si(size, 'B')}" for (_, name), (size, _) in pairwise(steps)]
    here = (
        f"Fastest for {si(setting.nbytes, 'B')}: {chosen}. By size: {', '.join(ranges)}, {steps[-1][1]} from "
        "there on."
    )
    return [here, *(MANY_MESSAGES for _, name in steps[:1] if name in ("naive", "one-by-one"))]


def of_closed_forms(rows: Sequence[Measured], setting: Setting) -> Iterator[str]:
    """Name the algorithms whose closed form does not hold here, and say where one is not the run's time, as
    one that a reader has added may be. Of pieces of a few bytes some are larger than others by a share that
    no closed form knows."""
    names = [row.algorithm for row in rows if row.formula_seconds is None]
    if names:
        yield f"No closed form on links of two kinds: {', '.join(names)}."
    if setting.nbytes >= LEAST_IN_A_PIECE * setting.group.size:
        yield from map(contradiction, filter(is_contradicted, rows))


def is_contradicted(row: Measured) -> bool:
    formula = row.formula_seconds
    return formula is not None and not math.isclose(formula, row.seconds, rel_tol=UNEVEN)


def contradiction(row: Measured) -> str:
    assert row.formula_seconds is not None
    return (
        f"{row.algorithm} takes {si(row.seconds, 's')}, and its closed form says "
        f"{si(row.formula_seconds, 's')}, by which it is priced and chosen: one of the two is wrong."
    )
