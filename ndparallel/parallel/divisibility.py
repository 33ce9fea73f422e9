"""What can be cut by how many: the rules of tensor, context, expert and pipeline parallelism, for the lessons
and for the planner.

Idea   A rule says what a degree has to do, and which degrees can. The lessons' jobs and the planner's plans
       ask the same rules, and each words what is broken in its own way.
Limit  Memory, and how fast a plan is, are no rules.

Glossary
    tokens    of a sequence that one context-parallel rank has
    routed    whether these tokens go to experts, each tensor-parallel rank sending a shard of them
"""

from collections.abc import Callable, Iterable
from math import isqrt
from typing import NamedTuple

MOST_STAGES_ABOVE_LAYERS = 2  # embedding and head may have stages of their own


class Rule(NamedTuple):
    """A rule for one degree. `holds` tells whether a degree keeps it, `what` says what a degree that
    breaks it cannot do, divisors of `number` keep it, and `name` counts the plans that break it."""

    name: str
    what: str
    number: int
    holds: Callable[[int], bool]


def divisors(number: int) -> list[int]:
    """The divisors of `number`, smallest first."""
    small = [d for d in range(1, isqrt(number) + 1) if number % d == 0]
    return small + [number // d for d in reversed(small) if d * d != number]


def divides(name: str, what: str, number: int) -> Rule:
    return Rule(name, what, number, lambda degree: number % degree == 0)


def head_rules(name: str, heads: int, kv_heads: int, copies: bool = True) -> list[Rule]:
    """Return the rules for what cuts attention by its heads: tp, or tp * cp. Ranks beyond the heads of keys
    have copies of these, or there are none."""
    shared = Rule(
        f"{name} cannot share the KV heads",
        f"share {kv_heads} KV heads",
        kv_heads,
        lambda ranks: kv_heads % ranks == 0 or (copies and ranks % kv_heads == 0),
    )
    return [divides(f"heads not divisible by {name}", f"cut {heads} heads", heads), shared]


def mlp_rules(ffn: int) -> list[Rule]:
    """Return the rule for tp in an MLP."""
    return [divides("MLP not divisible by tp", f"cut an MLP of {ffn}", ffn)]


def tensor_rules(heads: int, kv_heads: int, ffn: int | None) -> list[Rule]:
    """Return the rules for tp; `ffn` is None where every layer has experts instead of an MLP."""
    return [*head_rules("tp", heads, kv_heads), *(mlp_rules(ffn) if ffn else [])]


def sequence_rules(tokens: int) -> list[Rule]:
    """Return the rule for tp under sequence parallelism."""
    return [
        divides(
            "sequence not divisible by tp", f"cut the {tokens} tokens of a sequence that a rank has", tokens
        )
    ]


def expert_width_rules(widths: Iterable[int], which: str = "experts") -> list[Rule]:
    """Return the rules for the ranks that cut experts of these widths."""
    rule = "experts not divisible by tp"
    return [divides(rule, f"cut {which} of width {width}", width) for width in widths]


def routed_rules(tokens: int) -> list[Rule]:
    """Return the rule for tp in a model with experts: it cuts the tokens that they are sent."""
    return [divides("sequence not divisible by tp", f"cut the tokens of a sequence, {tokens}", tokens)]


def context_rules(sequence: int) -> list[Rule]:
    """Return the rule for cp: every rank has an early and a late chunk of the sequence."""
    what = f"cut a sequence of {sequence}"
    return [
        Rule("sequence not divisible by 2 cp", what, sequence, lambda cp: cp == 1 or sequence % (2 * cp) == 0)
    ]


def expert_rules(experts: int) -> list[Rule]:
    """Return the rule for ep."""
    return [divides("experts not divisible by ep", f"share out {experts} experts evenly", experts)]


def can_fill(layers: int, stages: int) -> bool:
    """Return whether every stage has a layer, the embedding or the head."""
    return stages <= layers + MOST_STAGES_ABOVE_LAYERS
