"""2,000 random rank programs, legal and broken: each ends in the right result or in the right explanation, on
both local engines.

A program is drawn as a list of messages and collectives in which all agree. Most are then broken: on one rank
something is left out, done twice, done too early or late, or done otherwise, or it raises. The oracle runs
every rank alone and writes down what it sends and receives; then it lets each go on until it waits for what
was not sent. That ends the same in whatever order the ranks are looked at.
"""

import re
from collections import deque
from random import Random

import numpy as np
import pytest

from collectives import Group, all_gather, all_reduce, barrier, broadcast, reduce_scatter
from gpu import CLASSROOM, GPU, MismatchError
from ndparallel.engines.launch import DeadlockError, RankError, Ranks
from ndparallel.engines.waiting import deadlocked

PROGRAMS = {"inline": 1700, "processes": 120}
PARTS = 4
DTYPES = ("float32", "float64", "int32")
KINDS = ("all_reduce", "all_reduce", "all_gather", "reduce_scatter", "broadcast", "barrier")


# ------------------------------------------------------------------------------------------ drawing a program


def draw(random):
    """(scripts by rank, whether nothing was broken)"""
    world_size = random.randint(2, 5)
    scripts: list[list] = [[] for _ in range(world_size)]
    for number in range(random.randint(1, 7)):
        if random.random() < 0.5:
            source, target = random.sample(range(world_size), 2)
            name, size, dtype = random.randrange(2), random.randrange(6), random.choice(DTYPES)
            scripts[source].append(("send", target, name, size, dtype))
            scripts[target].append(("receive", source, name, size, dtype))
        else:
            ranks = tuple(random.sample(range(world_size), random.randint(1, world_size)))
            action = (
                random.choice(KINDS),
                ranks,
                number,
                random.randrange(9),
                random.choice(DTYPES),
                random.random() < 0.3,
            )
            for rank in ranks:
                scripts[rank].append(action)
    breaks = random.choice((0, 1, 1, 2))
    for _ in range(breaks):
        break_one(random, random.choice(scripts), world_size)
    return scripts, breaks == 0


def break_one(random, script, world_size):
    place = random.randrange(len(script) + 1)
    how = random.choice(("raise", "drop", "twice", "move", "size", "dtype", "other"))
    if how == "raise" or place == len(script):
        script.insert(place, ("raise", 0, 0, 0, "int32", False))
        return
    action = script.pop(place)
    if how == "twice":
        script[place:place] = [action, action]
    elif how == "move":
        script.insert(random.randrange(len(script) + 1), action)
    elif how == "size":
        script.insert(place, (*action[:3], action[3] + 1, *action[4:]))
    elif how == "dtype":
        script.insert(place, (*action[:4], "complex128", *action[5:]))
    elif how == "other":
        # perhaps without this rank
        ranks = tuple(random.sample(range(world_size), random.randint(1, world_size)))
        script.insert(place, (random.choice(KINDS), ranks, 0, 4, "float64", False))


def perform(gpu, scripts):
    """The rank program. Returns what this rank got, and the time."""
    got, handles = [], []
    for action in scripts[gpu.rank]:
        if action[0] == "raise":
            raise ArithmeticError("on purpose")
        if action[0] == "send":
            gpu.send(action[1], content(gpu.rank, *action[3:]), action[2])
        elif action[0] == "receive":
            got.append(gpu.receive(action[1], action[2], into=content(gpu.rank, *action[3:])))
        else:
            result, handle = collective(gpu, *action)
            got.append(result)
            handles += [handle] if action[-1] else []
    for handle in handles:
        handle.wait()
    return [array.tolist() for array in got], gpu.now


def content(rank, size, dtype):
    return (np.arange(size) % 3 + 10 * rank).astype(dtype)


def collective(gpu, kind, ranks, root, size, dtype, async_op):
    group, mine = Group("-".join(map(str, ranks)), ranks), content(gpu.rank, size, dtype)
    piece = np.array_split(mine, len(ranks))[group.index(gpu.rank)].copy()
    match kind:
        case "all_reduce":
            return mine, all_reduce(gpu, mine, group, async_op=async_op)
        case "all_gather":
            return mine, all_gather(gpu, mine, piece, group, async_op=async_op)
        case "reduce_scatter":
            return piece, reduce_scatter(gpu, piece, mine, group, async_op=async_op)
        case "broadcast":
            return mine, broadcast(gpu, mine, group, root % len(ranks), async_op=async_op)
        case "barrier":
            return piece[:0], barrier(gpu, group, async_op=async_op)


# ------------------------------------------------------------------------------------------------- the oracle


class Recorder(GPU):
    """A rank alone: it notes what it would send and receive."""

    notes: list[tuple]

    def send(self, target, array, what):
        self.notes.append(("send", target, what, self.call, array.shape, array.dtype))

    def receive(self, source, what, into=None, combine=None):
        self.notes.append(("receive", source, what, self.call, into.shape, into.dtype))
        return into


def recorded(scripts, rank):
    gpu = Recorder(rank, CLASSROOM, None)
    gpu.notes = []
    try:
        perform(gpu, scripts)
    except Exception as error:
        gpu.notes.append(("raise", type(error).__name__))
    return gpu.notes


def fate(scripts):
    """How each rank ends: ("ended",), ("failed", kind) or ("waits", source); and if anything is left."""
    notes = [deque(recorded(scripts, rank)) for rank in range(len(scripts))]
    sent: dict[tuple, deque] = {}
    failed: dict[int, str] = {}
    moved = True
    while moved:
        moved = False
        for rank, mine in enumerate(notes):
            while mine and rank not in failed:
                kind, other, *message = mine[0]
                if kind == "raise":
                    failed[rank] = other
                elif kind == "send":
                    sent.setdefault((rank, other, message[0]), deque()).append(message)
                elif not sent.get((other, rank, message[0])):
                    break
                elif sent[other, rank, message[0]].popleft() != message:
                    failed[rank] = "MismatchError"
                mine.popleft()
                moved = True
    waits = [("waits", mine[0][1]) if mine else ("ended",) for mine in notes]
    ends = [("failed", failed[rank]) if rank in failed else end for rank, end in enumerate(waits)]
    return ends, any(sent.values())


def expected_numbers(scripts):
    """What every rank gets in a program in which all agree, from numpy alone."""
    got: list[list] = [[] for _ in scripts]
    for rank, script in enumerate(scripts):
        for kind, others, root, size, dtype, *_ in script:
            if kind == "receive":
                got[rank].append(content(others, size, dtype).tolist())
            elif kind != "send":
                got[rank].append(
                    expected_collective(kind, others, root, size, dtype, others.index(rank)).tolist()
                )
    return got


def expected_collective(kind, ranks, root, size, dtype, index):
    arrays = [content(rank, size, dtype) for rank in ranks]
    pieces = [np.array_split(array, len(ranks)) for array in arrays]
    match kind:
        case "all_reduce":
            return sum(arrays)
        case "reduce_scatter":
            return np.array_split(sum(arrays), len(ranks))[index]
        case "all_gather":
            return np.concatenate([pieces[place][place] for place in range(len(ranks))])
        case "broadcast":
            return arrays[root % len(ranks)]
        case "barrier":
            return arrays[0][:0]


# ------------------------------------------------------------------------------------------------- the claims


def outcome(ranks, scripts):
    try:
        return ranks.run(perform, CLASSROOM, scripts)
    except (DeadlockError, MismatchError, RankError) as error:
        return error


def check(found, scripts, legal):
    ends, is_left = fate(scripts)
    assert not legal or (ends == [("ended",)] * len(scripts) and not is_left)
    failed = {rank: end[1] for rank, end in enumerate(ends) if end[0] == "failed"}
    waits = {rank: end[1] for rank, end in enumerate(ends) if end[0] == "waits"}
    stuck = deadlocked(waits, lambda rank: ends[rank] == ("ended",))
    if isinstance(found, DeadlockError):
        assert waits and (not failed or stuck)
        told = re.match(r"deadlock: rank (\d+), in \S+, waits for .*? from rank (\d+)[,.]", str(found))
        assert told and waits[int(told[1])] == int(told[2])
    elif failed:
        first = min(failed)
        kind = found.kind if isinstance(found, RankError) else type(found).__name__
        assert kind == failed[first]
        assert f"rank {first} " in (str(found) if kind == "MismatchError" else f"rank {found.rank} ")
    else:
        assert not waits and isinstance(found, MismatchError) == is_left
        if legal:
            assert [result.value[0] for result in found] == expected_numbers(scripts)


@pytest.mark.parametrize("engine", PROGRAMS)
@pytest.mark.parametrize("part", range(PARTS))
def test_every_program_ends_in_the_right_result_or_the_right_explanation(engine, part):
    kept = {size: Ranks(size, engine) for size in range(2, 6)}
    try:
        for number in range(part, PROGRAMS[engine], PARTS):
            scripts, legal = draw(Random(f"{engine} {number}"))
            found = outcome(kept[len(scripts)], scripts)
            check(found, scripts, legal)
            if engine == "processes" and not isinstance(found, Exception):
                assert found == Ranks(len(scripts), "inline").run(perform, CLASSROOM, scripts)
    finally:
        for ranks in kept.values():
            ranks.close()


def test_the_programs_are_of_all_kinds():
    ends = [fate(draw(Random(f"inline {number}"))[0])[0] for number in range(300)]
    kinds = [{end[0] if end[0] != "failed" else end[1] for end in each} for each in ends]
    for kind in ("waits", "MismatchError", "ArithmeticError", "ValueError"):
        assert sum(kind in each for each in kinds) >= 5, kind
    assert sum(each == {"ended"} for each in kinds) >= 60
