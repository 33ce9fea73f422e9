"""What mpirun starts in tests: programs of all kinds one after another, and how each ended; or one that
fails."""

import json
import sys
from hashlib import sha256
from random import Random

import numpy as np

from gpu import CLASSROOM
from ndparallel.engines.launch import Ranks
from tests.engines.test_fuzz import check, draw
from tests.engines.test_fuzz import outcome as fuzzed
from tests.support import rank_programs

RANDOM_PROGRAMS = 200


def outcomes(engine):
    """Name to how each program ended, in words and plain numbers."""
    return {name: outcome(engine, *rest) for name, *rest in programs()}


def programs():
    for size in (0, 7, 1000, 100_000):
        yield f"ring of {size}", 4, rank_programs.ring_of, 4, size, "float64"
    yield "a ring of 3, and one rank idle", 3, rank_programs.ring_of, 3, 1000, "float32"
    yield "never blocks, small", 2, rank_programs.flood, 500, 10
    yield "never blocks, large", 2, rank_programs.flood, 10, 500_000
    yield "left unread", 2, rank_programs.leave_unread, 20, 3000
    yield "last first", 2, rank_programs.last_first, 100
    yield "a long name", 2, rank_programs.long_name
    for kind in rank_programs.odd_arrays():
        yield f"array: {kind}", 2, rank_programs.echo_odd, kind
    yield "circle", 4, rank_programs.circle, 4
    yield "one has ended", 2, rank_programs.one_has_ended
    yield "two left unread", 3, rank_programs.two_left_unread
    yield "ended, but not the third", 3, rank_programs.ended_but_not_the_third
    yield "mismatch", 2, rank_programs.mismatch
    yield "several roots", 3, rank_programs.several_roots
    yield "scatter from all", 2, rank_programs.scatter_from_all
    yield "reduce on one", 2, rank_programs.reduce_on_one
    yield "all_reduce on some", 3, rank_programs.all_reduce_on_some
    yield "no receive", 3, rank_programs.send_to_no_receive
    yield "to nobody", 2, rank_programs.to_nobody
    yield "from nobody", 2, rank_programs.from_nobody
    yield "several fail", 4, rank_programs.fail_one_after_another, 500
    for kind in ("out of memory", "user", "exit", "nonsense"):
        yield kind, 4, rank_programs.raise_in, 2, kind
    yield "and after all that", 4, rank_programs.ring_of, 4, 10, "float32"


def outcome(engine, world_size, program, *arguments):
    try:
        with Ranks(world_size, engine) as ranks:
            results = ranks.run(program, CLASSROOM, *arguments)
    except Exception as error:
        return [type(error).__name__, str(error).split("\n\n")[0], *getattr(error, "__notes__", [])]
    return [
        [plain(result.value), sha256(repr(result.events).encode()).hexdigest(), result.end_seconds]
        for result in results
    ]


def plain(value):
    if isinstance(value, np.ndarray):
        return [str(value.dtype), list(value.shape), sha256(value.tobytes()).hexdigest()]
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def wrong_random_programs():
    """Those of the fuzz test's programs that end otherwise than it says, or otherwise than inline."""
    kept = {size: Ranks(size, "mpi") for size in range(2, 6)}
    return [
        number for number in range(RANDOM_PROGRAMS) if not ends_rightly(kept, *draw(Random(f"mpi {number}")))
    ]


def ends_rightly(kept, scripts, legal):
    found = fuzzed(kept[len(scripts)], scripts)
    try:
        check(found, scripts, legal)
    except AssertionError:
        return False
    return isinstance(found, Exception) or found == fuzzed(Ranks(len(scripts), "inline"), scripts)


if __name__ == "__main__":
    if sys.argv[1:2] == ["endless"]:
        Ranks(4, "mpi").run(rank_programs.rings_without_end, CLASSROOM, 4, sys.argv[2])
    elif sys.argv[1:]:
        Ranks(2, "mpi").run(rank_programs.raise_in, CLASSROOM, 1, sys.argv[1])
    else:
        print(json.dumps({"outcomes": outcomes("mpi"), "wrong": wrong_random_programs()}, default=str))
