"""Wrong and slow answers to `ulysses`. The docstring of each is in what its reader is told."""

import numpy as np

from ndparallel.exercises.tasks.ulysses import attend


def exchange(gpu, parts, ranks, what, order=None):
    for other in range(ranks):
        if other != gpu.rank:
            gpu.send(other, parts[other], what)
    return [
        parts[other] if other == gpu.rank else gpu.receive(other, what) for other in order or range(ranks)
    ]


def by_heads(gpu, q, k, v, ranks, order=None, back=None):
    heads = exchange(gpu, np.split(np.stack([q, k, v]), ranks, axis=2), ranks, "to heads", order)
    found = attend(gpu, *np.concatenate(heads, axis=1))
    return np.concatenate(exchange(gpu, np.split(found, ranks), ranks, "back", back), axis=1)


def own_tokens_only(gpu, q, k, v, ranks):
    """GPU 1: its tokens have wrong results in the heads of GPUs 0, 1, 2 and 3. Do keys"""
    return attend(gpu, q, k, v)


def own_tokens_first(gpu, q, k, v, ranks):
    """GPU 0: its tokens have wrong results in the heads of GPUs 1, 2 and 3."""
    return by_heads(gpu, q, k, v, ranks, order=[(gpu.rank + each) % ranks for each in range(ranks)])


def heads_in_another_order(gpu, q, k, v, ranks):
    """And do the heads, when they have come back?"""
    return by_heads(gpu, q, k, v, ranks, back=[(gpu.rank + 1 + each) % ranks for each in range(ranks)])


def one_head_twice(gpu, q, k, v, ranks):
    """its tokens have wrong results in the heads of GPU 3."""
    first, *others = np.split(by_heads(gpu, q, k, v, ranks), ranks, axis=1)
    return np.concatenate([first, *others[:-1], first], axis=1)


def stays_with_its_heads(gpu, q, k, v, ranks):
    """GPU 0 returns an array of shape (256, 2, 8), and should return its 64 tokens with all 8 heads:"""
    heads = exchange(gpu, np.split(np.stack([q, k, v]), ranks, axis=2), ranks, "to heads")
    return attend(gpu, *np.concatenate(heads, axis=1))


def returns_parts(gpu, q, k, v, ranks):
    """GPU 0 returns an array of shape (1, 64, 8, 8), and should return its 64 tokens with all 8 heads"""
    return [q]


def gathers_everything(gpu, q, k, v, ranks):
    """Numbers travel that nobody needs"""
    everything = exchange(gpu, [np.stack([q, k, v])] * ranks, ranks, "all")
    return np.split(attend(gpu, *np.concatenate(everything, axis=1)), ranks)[gpu.rank]


def three_messages(gpu, q, k, v, ranks):
    """put queries, keys and values for one GPU into one message"""
    heads = [
        np.concatenate(exchange(gpu, np.split(each, ranks, axis=1), ranks, what))
        for what, each in {"q": q, "k": k, "v": v}.items()
    ]
    return np.concatenate(exchange(gpu, np.split(attend(gpu, *heads), ranks), ranks, "back"), axis=1)


def as_float64(gpu, q, k, v, ranks):
    """It sends nothing to itself, and all as float32."""
    return by_heads(gpu, q.astype(float), k.astype(float), v.astype(float), ranks)


def all_to_the_first_gpu_first(gpu, q, k, v, ranks):
    """begin with the next GPU, so that not all send to the same one at once"""
    return by_heads(gpu, q, k, v, ranks)


def only_for_4_gpus(gpu, q, k, v, ranks):
    """With 3 GPUs, 96 tokens and 6 heads:"""
    return by_heads(gpu, q, k, v, 4)
