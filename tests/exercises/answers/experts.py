"""Wrong and slow answers to `experts`. The docstring of each is in what its reader is told."""

import numpy as np

from ndparallel.exercises.tasks.experts import through_experts


def everything_to_everybody(gpu, rows, expert_of, expert, ranks):
    """Rows travel that nobody needs"""
    others = [other for other in range(ranks) if other != gpu.rank]
    for other in others:
        gpu.send(other, rows, "rows")
        gpu.send(other, expert_of, "experts")
    mine = [(gpu.rank, rows, expert_of)]
    mine += [(other, gpu.receive(other, "rows"), gpu.receive(other, "experts")) for other in others]
    for source, theirs, chosen in mine:
        done = expert(theirs[chosen == gpu.rank])
        if source == gpu.rank:
            own = done
        else:
            gpu.send(source, done, "back")
    results = np.empty_like(rows)
    results[expert_of == gpu.rank] = own
    for other in others:
        results[expert_of == other] = gpu.receive(other, "back")
    return results


def forgets_the_order(gpu, rows, expert_of, expert, ranks):
    """it is what expert"""
    order = np.argsort(expert_of, kind="stable")
    return through_experts(gpu, rows[order], expert_of[order], expert, ranks)


def own_expert_for_all(gpu, rows, expert_of, expert, ranks):
    """Row 1 should come from expert 2; it is what expert 0 made of row 1"""
    return expert(rows)


def returns_what_arrived(gpu, rows, expert_of, expert, ranks):
    """should return one row for each of its 64 rows"""
    others = [other for other in range(ranks) if other != gpu.rank]
    for other in others:
        gpu.send(other, rows[expert_of == other], "rows")
    arrived = [rows[expert_of == gpu.rank], *(gpu.receive(other, "rows") for other in others)]
    return expert(np.concatenate(arrived))[:-1]


def back_to_the_next(gpu, rows, expert_of, expert, ranks):
    """disagree about"""
    results, right, left = np.empty_like(rows), (gpu.rank + 1) % ranks, (gpu.rank - 1) % ranks
    gpu.send(right, rows[expert_of == right], "rows")
    gpu.receive(left, "rows", into=results)
    return results


def sends_to_itself(gpu, rows, expert_of, expert, ranks):
    """One whose expert is on its own GPU stays"""
    for other in range(ranks):
        gpu.send(other, rows[expert_of == other], "rows")
    arrived = [gpu.receive(other, "rows") for other in range(ranks)]
    done = np.split(expert(np.concatenate(arrived)), np.cumsum([len(part) for part in arrived])[:-1])
    for other, part in enumerate(done):
        gpu.send(other, part, "back")
    results = np.empty_like(rows)
    for other in range(ranks):
        results[expert_of == other] = gpu.receive(other, "back")
    return results


def receives_into_a_copy(gpu, rows, expert_of, expert, ranks):
    """it is zero: nothing was written there"""
    others = [other for other in range(ranks) if other != gpu.rank]
    for other in others:
        gpu.send(other, rows[expert_of == other], "rows")
    for other in others:
        gpu.send(other, expert(gpu.receive(other, "rows")), "back")
    results = np.zeros_like(rows)
    for other in others:
        gpu.receive(other, "back", into=results[expert_of == other])
    return results


def one_pair_after_another(gpu, rows, expert_of, expert, ranks):
    """to all before you receive from any"""
    results = np.empty_like(rows)
    results[expert_of == gpu.rank] = expert(rows[expert_of == gpu.rank])
    for source in range(ranks):
        for other in range(ranks):
            if source != other and gpu.rank == source:
                gpu.send(other, rows[expert_of == other], "rows")
                results[expert_of == other] = gpu.receive(other, "back")
            elif source != other and gpu.rank == other:
                gpu.send(source, expert(gpu.receive(source, "rows")), "back")
    return results


def row_by_row(gpu, rows, expert_of, expert, ranks):
    """run the expert on many rows at once"""

    def one_by_one(many):
        return np.concatenate([many[:0], *(expert(row[None]) for row in many)])

    return through_experts(gpu, rows, expert_of, one_by_one, ranks)


def only_for_4_gpus(gpu, rows, expert_of, expert, ranks):
    """With 3 GPUs and 10 rows on each:"""
    return through_experts(gpu, rows, expert_of, expert, 4)


def only_for_64_rows(gpu, rows, expert_of, expert, ranks):
    """With 3 GPUs and 10 rows on each: GPU 0 returns"""
    results = np.zeros((64, rows.shape[1]), rows.dtype)
    results[: len(rows)] = through_experts(gpu, rows, expert_of, expert, ranks)
    return results
