"""What a plan can cut of a model: its widths, its heads, its linear attention, its sequences.

Idea   As in legality.py: a rule is a sentence, with the nearest values that obey it.
"""

from collections.abc import Iterator
from math import gcd
from typing import NamedTuple

from ndparallel.parallel.divisibility import (
    Rule,
    context_rules,
    expert_width_rules,
    head_rules,
    mlp_rules,
    routed_rules,
    sequence_rules,
)
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.models.matrices import Linear
from ndparallel.planner.models.shape import ModelShape
from ndparallel.planner.models.sizes import near_divisors, near_values
from ndparallel.planner.number_types import NUMBER_TYPES

WIDEST_KEYS = 256  # chunk_gated_delta_rule_fwd_h in fla/ops/common/chunk_delta_h.py


class Violation(NamedTuple):
    """A rule that a plan breaks, by its name, and what is wrong, in a sentence."""

    rule: str
    sentence: str


def model_violations(job: TrainingJob, plan: Plan) -> Iterator[Violation]:
    shape, tokens = job.shape, job.sequence // plan.cp
    cut = rules_for_heads("tp", shape) + (mlp_rules(shape.ffn) if shape.moe_layers < shape.layers else [])
    cut += sequence_rules(tokens) if plan.sequence_parallel else []
    if shape.experts:
        cut += expert_width_rules(cut_routed_widths(job))
        cut += expert_width_rules(shared_widths(job), "shared experts") + routed_rules(tokens)
    yield from divisibility_violations("tp", plan.tp, cut + width_rules(job))
    yield from linear_violations(job, plan)
    yield from head_violations(job, plan)
    yield from adapter_violations(job, plan)
    for rule in context_rules(job.sequence):
        if not rule.holds(plan.cp):
            near = near_divisors(1 if job.sequence % 2 else job.sequence // 2, plan.cp)
            why = (
                f"cp={plan.cp} cuts a sequence in {2 * plan.cp} parts, which {job.sequence} tokens are no "
                f"multiple of; nearest: {near}."
            )
            yield Violation(rule.name, why)


def head_violations(job: TrainingJob, plan: Plan) -> Iterator[Violation]:
    """An all-to-all over cp cuts attention by its heads, beside tp, but no latent attention
    (attn_forward_func_with_cp in Transformer Engine's dot_product_attention/context_parallel.py)."""
    shape, ranks = job.shape, plan.tp * plan.cp
    if job.stack.context_parallel != "all-to-all" or plan.cp == 1:
        return
    if shape.latent:
        why = f"cp={plan.cp} cannot exchange heads of latent attention: take cp=1 or --context-parallel ring."
        yield Violation("latent attention not cut by an all-to-all", why)
    rules = rules_for_heads("tp*cp", shape, job.stack.shares_kv_heads)
    cut = [cp for cp in range(1, shape.heads + 1) if all(rule.holds(plan.tp * cp) for rule in rules)]
    for rule in rules:
        if not rule.holds(ranks):
            yield Violation(
                rule.name,
                f"cp={plan.cp} beside tp={plan.tp} cannot {rule.what}, which an all-to-all gives its ranks; "
                f"nearest: {near_values(cut, plan.cp)}.",
            )


def linear_violations(job: TrainingJob, plan: Plan) -> Iterator[Violation]:
    """Linear attention is cut by its heads, over tp and over cp too, where the software does."""
    net, cut_by = job.shape.linear, job.stack.linear_cut_by
    if net is None:
        return
    if cut_by is None:
        has = "take megatron-core, nemo, torchtitan, pytorch or deepspeed"
        why = f"{job.stack.name} has no linear attention: {has}."
        yield Violation("software without linear attention", why)
        return
    for name, degree in {"tp": plan.tp, "cp": plan.cp}.items():
        if degree > 1 and name not in cut_by:
            why = f"{job.stack.name} does not cut linear attention over {name}={degree}; {name} must be 1."
            yield Violation(f"linear attention not cut by {name}", why)
    if net.key_dim > WIDEST_KEYS:
        why = (
            f"a head of linear attention's keys is {net.key_dim} wide; the kernels of flash-linear-attention "
            f"take up to {WIDEST_KEYS}."
        )
        yield Violation("linear attention's keys wider than its kernels", why)
    if net.key_heads % (ranks := plan.tp * plan.cp):
        why = (
            f"tp*cp={ranks} cannot cut the {net.key_heads} heads of linear attention's keys; nearest: "
            f"{near_divisors(net.key_heads, ranks)}."
        )
        yield Violation("linear attention's heads not divisible by tp*cp", why)


def adapter_violations(job: TrainingJob, plan: Plan) -> Iterator[Violation]:
    """Megatron-Bridge cuts an adapter by its rank where its first matrix is a ColumnParallelLinear, which
    takes no other (linear_in in src/megatron/bridge/peft/utils.py, ParallelLinearAdapter)."""
    adapters, shape = job.adapters, job.shape
    if not (adapters and job.stack.bridge_adapters) or adapters.rank % plan.tp == 0:
        return
    columns = [matrix for matrix in adapted_matrices(job) if matrix.split != "rows"]
    if columns:
        near = near_divisors(gcd(adapters.rank, *(each.heads for each in shape.with_heads)), plan.tp)
        why = f"tp={plan.tp} cannot cut adapters of rank {adapters.rank} evenly; nearest: {near}."
        yield Violation("adapters' rank not divisible by tp", why)


def adapted_matrices(job: TrainingJob) -> list[Linear]:
    """The matrices of the model's layers that have adapters and that tp cuts."""
    shape, adapters = job.shape, job.adapters
    attention = [(each, matrix) for each in shape.with_heads for matrix in each.attention()]
    whole = (*shape.linear_attention(), *shape.mlp(shape.ffn))
    return [
        matrix
        for each, matrix in (*attention, *((shape, matrix) for matrix in whole))
        if adapters and adapters.shares(each, matrix.name, job.stack)
    ]


def divisibility_violations(name: str, degree: int, rules: list[Rule], ranks: int = 0) -> Iterator[Violation]:
    """Which rules a degree breaks, with the nearest that keep them; of these ranks, if any, divisors."""
    for rule in rules:
        if not rule.holds(degree):
            near = near_divisors(gcd(rule.number, ranks), degree)
            yield Violation(rule.name, f"{name}={degree} cannot {rule.what}; nearest: {near}.")


def width_violations(job: TrainingJob) -> Iterator[Violation]:
    multiple = NUMBER_TYPES[job.dtype].multiple
    for width in dict.fromkeys([job.shape.hidden, *cut_widths(job)]):
        if width % multiple:
            why = (
                f"{job.dtype} multiplies matrices whose sides are multiples of {multiple}, and "
                f"{job.shape.name} has one of {width}: choose bf16."
            )
            yield Violation("widths that the dtype does not take", why)


def cut_widths(job: TrainingJob) -> list[int]:
    """The sides of a layer's matrices that tp cuts."""
    shape = job.shape
    dense = [shape.ffn] if shape.moe_layers < shape.layers else []
    linear = [shape.linear.values, sum(shape.linear.products)] if shape.linear else []
    heads = dict.fromkeys(each.heads * each.value_dim for each in shape.with_heads)
    return [*heads, *linear, *dense, *cut_routed_widths(job), *shared_widths(job)]


def cut_routed_widths(job: TrainingJob) -> list[int]:
    """The width of the experts that a router chooses, where the software's tp cuts them."""
    return [job.shape.experts.ffn] if job.shape.experts and job.stack.expert_tp else []


def shared_widths(job: TrainingJob) -> list[int]:
    """The width of the shared experts, which tp always cuts."""
    some = job.shape.experts
    return [some.shared_experts * some.shared_ffn] if some and some.shared_experts else []


def width_rules(job: TrainingJob) -> list[Rule]:
    """Return the rules for tp that leave each rank a matrix whose sides the matmuls' type takes."""
    return [width_rule(job, width) for width in cut_widths(job)]


def width_rule(job: TrainingJob, width: int) -> Rule:
    multiple = NUMBER_TYPES[job.dtype].multiple

    def holds(tp: int) -> bool:
        refused_otherwise = width % tp > 0 or width % multiple > 0
        return refused_otherwise or width % (tp * multiple) == 0

    what = f"cut a width of {width} in multiples of {multiple}, which {job.dtype} takes"
    near = gcd(width // multiple, *(each.heads for each in job.shape.with_heads))  # which cut heads, too
    return Rule("widths cut to what the dtype does not take", what, near, holds)


def rules_for_heads(name: str, shape: ModelShape, copies: bool = True) -> list[Rule]:
    """The rules for tp, or tp * cp, in every kind of layer; what is one for two kinds is there once."""
    rules = [
        rule for each in shape.with_heads for rule in head_rules(name, each.heads, each.kv_heads, copies)
    ]
    return [*{rule.what: rule for rule in rules}.values()]
