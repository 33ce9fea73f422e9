"""Two nodes.

Eight GPUs stand in two nodes of four. Inside a node the link is fast; between the nodes it is
ten times slower, and a message that crosses pays more latency as well. One ring through all
eight crosses twice, and goes at the pace of its slowest link:

        node 0   GPU 0 ═ GPU 1 ═ GPU 2 ═ GPU 3              ═ fast
                   │                       │                │ slow: each GPU has one such link of its own
        node 1   GPU 7 ═ GPU 6 ═ GPU 5 ═ GPU 4

Given   all_reduce, reduce_scatter and all_gather of collectives.py, for a group of ranks: Group(name, ranks).
        All members must call the same in the same order:

        all_reduce(gpu, array, group)                   the sum of all members' arrays, in `array`
        reduce_scatter(gpu, output, array, group)       its own piece of the sum, in `output`
        all_gather(gpu, output, piece, group)           all members' pieces, in `output`

        np.array_split(array, 4)[i] is the piece of the member with number i of four.

Right is the sum of all eight on every GPU, and as well with 3 nodes of 2 or 2 nodes of 3, whatever the
length of the array. Then the seconds count.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from collectives import Group, all_gather, all_reduce, reduce_scatter
from gpu import CLASSROOM, GPU, Link
from ndparallel.engines.launch import RankResult
from ndparallel.exercises import sums
from ndparallel.exercises.exercise import Attempt, Exercise
from ndparallel.exercises.runs import attempt_of, called, first_fault, on_gpus, right_everywhere

# nodes, GPUs in each, and elements: the first is measured
WORLDS = ((2, 4, 800), (3, 2, 801), (2, 3, 802))
LEVELS = "hierarchical"
SLOW = Link(latency_seconds=0.2, bandwidth_bytes_per_second=CLASSROOM.inside.bandwidth_bytes_per_second / 10)


def sum_over_nodes(gpu: GPU, array: np.ndarray, nodes: int, gpus_per_node: int) -> None:
    """Put the sum of all GPUs' arrays into `array`, on every GPU."""
    node, place = divmod(gpu.rank, gpus_per_node)
    inside = Group("inside", tuple(range(node * gpus_per_node, (node + 1) * gpus_per_node)))
    across = Group("across", tuple(range(place, nodes * gpus_per_node, gpus_per_node)))
    piece = np.empty_like(np.array_split(array, gpus_per_node)[place])
    reduce_scatter(gpu, piece, array, inside)
    all_reduce(gpu, piece, across)
    all_gather(gpu, array, piece, inside)


def attempt(answer) -> Attempt:
    name = "With {} nodes of {} GPUs and {} elements"
    return right_everywhere(lambda *world: in_world(answer, *world), name, *WORLDS)


def in_world(answer, nodes: int, gpus_per_node: int, size: int) -> Attempt:
    ranks = nodes * gpus_per_node

    def program(gpu: GPU) -> np.ndarray:
        array = sums.part(gpu.rank, ranks, size)
        answer.on(gpu.rank).sum_over_nodes(gpu, array, nodes, gpus_per_node)
        return array

    results = on_gpus(program, ranks, replace(CLASSROOM, gpus_per_node=gpus_per_node, across=SLOW))
    expected = sums.whole(ranks, size)
    wrong = first_fault(sums.explain(result.rank, result.value, expected, ranks) for result in results)
    return attempt_of(results, ("step_seconds",), wrong or ready_made_levels(results))


def ready_made_levels(results: Sequence[RankResult]) -> str:
    """Say that an answer calls the algorithm that it is asked to write; nothing where it does not."""
    if LEVELS not in (algorithm for _, algorithm in called(results)):
        return ""
    return (
        f"The numbers are right, but the algorithm {LEVELS!r} does what you are asked to write: call the "
        "collectives without it."
    )


def over_par(yours: Attempt, par: Attempt) -> str:
    if yours.figures["step_seconds"] < 2 * par.figures["step_seconds"]:
        return (
            "Only what must cross should cross: is every slow link carrying a quarter, or one of them more? "
            "And inside a node, is the whole array on its way where a quarter is enough?"
        )
    return (
        "The slow links decide. What has been summed inside a node need cross only once, and each of the "
        "four GPUs can take a quarter of it across on a link of its own."
    )


EXERCISE = Exercise(
    file=__file__,
    chapter="1D",
    minutes=20,
    asks={"sum_over_nodes": sum_over_nodes},
    attempt=attempt,
    hints=(
        "all_reduce(gpu, array, Group('all', tuple(range(nodes * gpus_per_node)))) is right, and slow. How "
        "many bytes cross the slow links, and how few could?",
        "Sum inside each node first. If one GPU of each node then talks across, three slow links do nothing: "
        "let every GPU of a node own its piece of the sum.",
        "reduce_scatter inside the node, all_reduce of that piece with the GPUs at the same place in the "
        "other nodes, all_gather inside the node.",
    ),
    learned="a hierarchical all-reduce sends the slow way only what it must: 1/m of the array for each of m "
    "GPUs in a node.",
    page="docs/book/1d.md",
    over_par=over_par,
    least={"step_seconds": 0.6},  # every number crosses, a quarter on each link
    as_much=0.01,  # for the latencies inside a node, which are not the point
)
