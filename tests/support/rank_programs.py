"""Programs that tests run on ranks: at the top level of a file, so that every engine and start method finds
them."""

import os
import signal
import sys
import time

import numpy as np

from collectives import Group, all_reduce, broadcast, reduce, scatter
from gpu import CLASSROOM, GPU, Operation
from ndparallel.base.errors import UserError
from ndparallel.engines.launch import launch


def ring_all_reduce(gpu, world_size, array, name=("ring", 0)):
    """Sum `array` over all ranks, in place, by a ring written out over send and receive. Returns it."""
    pieces = np.array_split(array, world_size)
    right, left = (gpu.rank + 1) % world_size, (gpu.rank - 1) % world_size
    for step in range(2 * (world_size - 1)):
        gpu.send(right, pieces[(gpu.rank - step) % world_size], (name, step))
        into = pieces[(gpu.rank - step - 1) % world_size]
        gpu.receive(left, (name, step), into=into, combine=np.add if step < world_size - 1 else None)
    return array


def ring_of(gpu, world_size, size, dtype):
    """A ring after work that differs from rank to rank. Returns (the summed array, the seconds on its
    clock)."""
    gpu.compute(Operation("work", flops=1 + gpu.rank))
    array = np.arange(size).astype(dtype) + np.array(gpu.rank, dtype)
    return ring_all_reduce(gpu, world_size, array), gpu.now


def rings_without_end(gpu, world_size, file):
    """Say which process this is, and all-reduce until somebody ends it. Every tenth time is noted in the
    file, too."""
    say(file, f"rank {gpu.rank} {os.getpid()}")
    array = np.zeros(1_000_000, np.float32)
    for number in range(10**9):
        ring_all_reduce(gpu, world_size, array, ("ring", number))
        if gpu.rank == 0 and number % 10 == 0:
            say(file, f"round {number}")


def say(file, line):
    with open(file, "a") as lines:
        print(line, file=lines)


def echo(gpu, arrays):
    """Rank 0 sends arrays and overwrites them at once; rank 1 returns what came."""
    if gpu.rank == 0:
        for number, array in enumerate(arrays):
            gpu.send(1, array, number)
            if array.flags.writeable:
                array[...] = np.zeros_like(array)
        return None
    return [gpu.receive(0, number) for number in range(len(arrays))]


def odd_arrays():
    """Arrays of every kind that is easily forgotten. Made where they are sent: pickling would straighten
    them."""
    return {
        "no dimension": np.array(3.5),
        "nothing": np.zeros((3, 0, 2)),
        "every other": np.arange(100_000)[::2],
        "backwards": np.arange(100)[::-1],
        "transposed": np.arange(100_000.0).reshape(2, 50_000).T,
        "Fortran order": np.asfortranarray(np.arange(12).reshape(3, 4)),
        "read-only": np.frombuffer(b"abcd", np.uint8),
        "booleans": np.arange(50_000) % 3 == 0,
        "complex": np.arange(10) * (1 + 2j),
        "half": np.arange(10, dtype=np.float16),
        "big-endian": np.arange(50_000, dtype=">i4"),
        "days": np.array(["2020-01-01", "2021-02-03"], "datetime64[D]"),
        "text": np.array(["a", "bcd"]),
        "records": np.array([(1, 2.5), (3, 4.5)], [("a", "i4"), ("b", "f8")]),
    }


def echo_odd(gpu, name):
    return echo(gpu, [odd_arrays()[name]])


def flood(gpu, messages, size):
    """Everybody sends everything before anybody receives. Returns the sum of what came."""
    other = 1 - gpu.rank
    for number in range(messages):
        gpu.send(other, np.full(size, number, np.float32), number)
    return sum(float(gpu.receive(other, number)[0]) for number in range(messages))


def leave_unread(gpu, messages, size):
    """Rank 0 sends more than any pipe holds to rank 1, which ends without reading it."""
    if gpu.rank == 0:
        for _ in range(messages):
            gpu.send(1, np.zeros(size, np.uint8), "unread")


def last_first(gpu, messages):
    """Rank 1 asks for the messages of rank 0 in the opposite order."""
    if gpu.rank == 0:
        for number in range(messages):
            gpu.send(1, np.array(number), number)
        return None
    return [int(gpu.receive(0, number)) for number in reversed(range(messages))]


def equal_names(gpu, messages):
    """Rank 0 sends messages of one name and ends. Halfway it lets rank 1 empty the pipe between them, which
    was full before."""
    if gpu.rank == 0:
        for number in range(messages):
            gpu.send(1, np.array(number), "same")
            if number == messages // 2:
                time.sleep(0.2)
        return None
    return [int(gpu.receive(0, "same")) for _ in range(messages)]


def long_name(gpu):
    name = "a very long name, " * 1000
    gpu.send(gpu.rank, np.arange(3), name)
    return gpu.receive(gpu.rank, name).tolist()


def circle(gpu, world_size):
    """Everybody waits for the next one, and nobody sends; but rank 0 got something that nobody asked for."""
    if gpu.rank == 1:
        gpu.send(0, np.zeros(3), ("F", 1, 5))
    gpu.receive((gpu.rank + 1) % world_size, ("B", 2, gpu.rank))


def circle_of_two_among_three(gpu):
    """Ranks 0 and 1 wait for each other, and rank 2 works on."""
    while gpu.rank == 2:
        gpu.compute(Operation("work", flops=1))
    gpu.receive(1 - gpu.rank, ("F", 0, gpu.rank))


def one_has_ended(gpu):
    if gpu.rank == 1:
        gpu.receive(0, "goodbye")


def two_left_unread(gpu):
    """Rank 0 reads rank 2's last message first, and then waits in vain."""
    if gpu.rank == 0:
        gpu.receive(2, "last")
        gpu.receive(1, "goodbye")
    if gpu.rank == 1:
        gpu.send(0, np.zeros(1), "one")
        gpu.send(2, np.zeros(1), "go on")
    if gpu.rank == 2:
        gpu.receive(1, "go on")
        gpu.send(0, np.zeros(1), "two")
        gpu.send(0, np.zeros(1), "last")


def ended_but_not_the_third(gpu):
    """Rank 0 ends at once; ranks 1 and 2 still talk for a long while."""
    if gpu.rank == 0:
        return 0
    other = 3 - gpu.rank
    for number in range(200):
        gpu.send(other, np.array(number), number)
        gpu.receive(other, number)
    return number


def stop_in_debugger(gpu):
    """Stop in the debugger between two messages. Returns the sum of the ranks that have talked to this
    one."""
    for other in range(gpu.rank):
        gpu.send(other, np.array(gpu.rank), "before")
    breakpoint()
    for other in range(gpu.rank + 1, 3):
        gpu.receive(other, "before")
        gpu.send(other, np.array(gpu.rank), "after")
    return sum(1 + int(gpu.receive(other, "after")) for other in range(gpu.rank))


def play(gpu, scripts):
    """Send and receive as written: scripts[rank] is a list of ("send" or "receive", other rank, name)."""
    for action, other, name in scripts[gpu.rank]:
        if action == "send":
            gpu.send(other, np.array(gpu.rank), name)
        else:
            assert gpu.receive(other, name) == other
    return gpu.now


def all_reduce_on_some(gpu):
    """Rank 0 leaves it out."""
    if gpu.rank:
        all_reduce(gpu, np.ones(3), Group("dp", (0, 1, 2)), algorithm="ring")


def raise_in(gpu, culprit, kind):
    """One rank raises, while the others wait for it."""
    if gpu.rank == culprit:
        if kind == "out of memory":
            gpu.allocate("weights", 2 * CLASSROOM.memory_bytes)
        if kind == "user":
            raise UserError("the batch does not fit.")
        if kind == "no memory":
            raise MemoryError("this much")
        if kind == "exit":
            sys.exit(3)
        if kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "leave":
            os._exit(7)
        if kind == "leave quietly":
            os._exit(0)
        raise KeyError("nonsense")
    gpu.receive(culprit, "never sent")


def fail_one_after_another(gpu, messages):
    """Rank 3 fails first, with more on its way to rank 1 than a pipe holds; rank 1 fails last, when it has
    read all of that."""
    if gpu.rank == 3:
        for number in range(messages):
            gpu.send(1, np.zeros(1000, np.uint8), number)
    if gpu.rank == 1:
        time.sleep(0.2)
        for number in range(messages):
            gpu.receive(3, number)
    if gpu.rank == 0:
        gpu.receive(1, "never sent")
    raise UserError(f"rank {gpu.rank} cannot go on.")


def fail_beside_one_that_works_on(gpu):
    while gpu.rank == 0:
        gpu.compute(Operation("work", flops=1))
    raise UserError(f"rank {gpu.rank} cannot go on.")


def leave_beside_one_that_fails(gpu, first):
    """Rank 1 leaves without a word and rank 2 raises; `first` is the one that does so first."""
    if gpu.rank == 0:
        gpu.receive(1, "never sent")
    time.sleep(0.1 * (gpu.rank != first))
    if gpu.rank == 1:
        os._exit(7)
    raise UserError("rank 2 cannot go on.")


def mismatch(gpu):
    if gpu.rank == 0:
        gpu.send(1, np.zeros(3), "x")
    else:
        gpu.receive(0, "x", into=np.zeros(4))


def several_roots(gpu):
    """A broadcast in which rank 1 takes itself for the root."""
    broadcast(gpu, np.zeros(3), Group("all", (0, 1, 2)), root=int(gpu.rank == 1))


def scatter_from_all(gpu):
    scatter(gpu, np.zeros(2), np.zeros(4), Group("pair", (0, 1)), root=gpu.rank)


def reduce_on_one(gpu):
    """A reduce that only a rank that is not its root calls."""
    if gpu.rank == 1:
        reduce(gpu, np.zeros(3), Group("pair", (0, 1)), root=0)


def send_to_no_receive(gpu):
    if gpu.rank == 0:
        gpu.send(1, np.zeros(3), ("F", 1, 5))


def to_nobody(gpu):
    gpu.send(5, np.zeros(3), "x")


def from_nobody(gpu):
    gpu.receive(5, "x")


def unpicklable(gpu):
    return lambda: None


def send_objects(gpu):
    gpu.send(0, np.array([object()]), "x")


class Argument:
    """A kind of argument that is defined where the program is."""

    def __init__(self, number):
        self.number = number


def change_argument(gpu, argument, numbers):
    numbers.append(gpu.rank)
    return argument.number, numbers


def rank_number(gpu):
    return gpu.rank


def process_number(gpu):
    return os.getpid()


def module_name(gpu):
    return __name__


def gpu_on_its_own(transport):
    return GPU(0, CLASSROOM, transport)


def cores(gpu):
    """The cores that this rank may run on."""
    return sorted(os.sched_getaffinity(0))


def number_or_error(gpu, number):
    """Return the number, but on rank 1 raise for one that is negative."""
    if number < 0 and gpu.rank == 1:
        raise UserError(f"{number} is negative.")
    return number


def generator(gpu):
    yield gpu.rank


async def coroutine(gpu):
    return gpu.rank


def launches(gpu):
    return launch(rank_number, 2, CLASSROOM)


class UntoldError(Exception):
    def __str__(self):
        raise ValueError("no words")


def raise_odd(gpu, kind):
    if gpu.rank == 1:
        raise GeneratorExit if kind == "exit of a generator" else UntoldError


class Unreadable:
    """Can be pickled, and not read again."""

    def __reduce__(self):
        return refuse, ()


def refuse():
    raise ValueError("no")


def unreadable(gpu):
    return Unreadable()
