"""The rules for what cuts a model's attention by its heads, which differ between layers in some models."""

from ndparallel.parallel.divisibility import Rule, head_rules
from ndparallel.planner.models.shape import ModelShape


def rules_for_heads(name: str, shape: ModelShape, copies: bool = True) -> list[Rule]:
    """The rules for tp, or tp * cp, in every kind of layer; what is one for two kinds is there once."""
    rules = [
        rule for each in shape.with_heads for rule in head_rules(name, each.heads, each.kv_heads, copies)
    ]
    return [*{rule.what: rule for rule in rules}.values()]
