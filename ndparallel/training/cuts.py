"""Whether a mesh can cut a model and a batch, and what would do where it cannot.

Idea   A degree that cannot is told the degrees that can, and a batch the nearest that can: one thing changed
       alone. The rules are those of ndparallel.parallel.divisibility, as the planner's are.
"""

from collections.abc import Iterator

from ndparallel.base.errors import UserError
from ndparallel.base.words import choices, count
from ndparallel.model.units import ModelConfig
from ndparallel.parallel.divisibility import (
    context_rules,
    divides,
    divisors,
    expert_rules,
    expert_width_rules,
    head_rules,
    routed_rules,
    tensor_rules,
)
from ndparallel.parallel.mesh import Mesh

MOST_ROWS = 2**31 - 1  # that an int32 counts


class BatchError(UserError):
    """A batch that cannot be cut so. Each hint is one thing that could be changed; one may be the GPUs."""

    def __init__(self, words: str, hints: list[str]) -> None:
        super().__init__(f"{words}; {'; '.join(hints)}.")
        self.words, self.hints = words, hints

    def without_gpus(self) -> "BatchError":
        return BatchError(self.words, [hint for hint in self.hints if "--gpus" not in hint])


class DegreeError(UserError):
    """A degree of one axis that cannot cut a job. `legal` are those that can, and `otherwise` is what else
    could be changed; `gpus` says that they are numbers of GPUs, where --gpus alone sets the degree."""

    def __init__(
        self, axis: str, degree: int, fails: str, legal: list[int], otherwise: str = "", gpus: bool = False
    ) -> None:
        can_be = f"{'--gpus' if gpus else axis} can be {choices(legal, degree)}"
        super().__init__(f"{axis}={degree} {fails}; {can_be}{otherwise}.")
        self.axis, self.legal = axis, legal
        self.degree, self.fails, self.otherwise = degree, fails, otherwise

    def in_gpus(self, sizes: list[int]) -> "DegreeError":
        """The same, with these numbers of GPUs."""
        return DegreeError(self.axis, self.degree, self.fails, sizes, self.otherwise, gpus=True)


def check_batch(batch: int, microbatches: int, dp: int, gpus_each: int = 1) -> None:
    """Raise BatchError unless all data-parallel ranks, of so many GPUs each, and all their microbatches, get
    equally many sequences."""
    if batch % (dp * microbatches):
        into = [count(dp, "data-parallel part")] if dp > 1 else []
        into += [count(microbatches, "microbatch", "es")] if microbatches > 1 else []
        raise BatchError(
            f"a batch of {count(batch, 'sequence')} cannot be cut into {' of '.join(into)}",
            list(ways_to_cut(batch, microbatches, dp, gpus_each)),
        )


def ways_to_cut(batch: int, microbatches: int, dp: int, gpus_each: int) -> Iterator[str]:
    """Yield what could be changed, one thing alone, so that a batch can be cut."""
    parts = dp * microbatches
    near = max(parts, (batch + (parts - 1) // 2) // parts * parts)
    yield f"the nearest batch that can is {near} (--batch {near})"
    if batch % dp == 0:
        fewer = max(parts for parts in divisors(batch // dp) if parts < microbatches)
        yield f"the nearest number of microbatches is {fewer} (--microbatches {fewer})"
    if batch % microbatches == 0:
        sizes = divisors(batch // microbatches)
        below, above = [size for size in sizes if size < dp], [size for size in sizes if size > dp]
        gpus = [f"{size * gpus_each}" for size in below[-1:] + above[:1]]
        yield f"the nearest number of GPUs is {' or '.join(gpus)} (--gpus {gpus[0]})"


def check_tensor_parallel(model: ModelConfig, tp: int, sequence_parallel: str) -> None:
    """Raise UserError, naming the degrees that would do, where tp cannot cut this model."""
    rules = tensor_rules(model.heads, model.kv_heads, None if model.experts else model.ffn)
    if sequence_parallel != "none":
        rules.append(divides("", f"cut a sequence of {model.sequence}", model.sequence))
    broken = [rule.what for rule in rules if not rule.holds(tp)]
    if broken:
        legal = [degree for degree in range(1, model.heads + 1) if all(rule.holds(degree) for rule in rules)]
        fails = f"can neither {' nor '.join(broken)}" if len(broken) > 1 else f"cannot {broken[0]}"
        raise DegreeError("tp", tp, fails, legal)


def check_context_parallel(model: ModelConfig, mesh: Mesh, sequence_parallel: str, parts: int) -> None:
    """Raise UserError where the sequence cannot be cut into an early and a late piece for each rank, and
    further over tp or in parts of an activation."""
    cp, tp, sequence = mesh.cp, mesh.tp, model.sequence
    (rule,) = context_rules(sequence)
    if not rule.holds(cp):
        near = [degree for degree in divisors(sequence) if rule.holds(degree)]
        length = max(1, round(sequence / (2 * cp))) * 2 * cp
        longer = f"; the nearest sequence that can is {length} (--sequence {length})"
        raise DegreeError("cp", cp, f"cannot {rule.what} into {2 * cp} pieces", near, longer)
    if sequence_parallel != "none" and sequence // cp % tp:
        raise UserError(
            f"tp={tp} cannot cut the {sequence // cp} tokens of a sequence that each of cp={cp} ranks has."
        )
    if sequence // cp % parts:
        raise UserError(
            f"the {sequence // cp} tokens of a sequence that each of cp={cp} ranks has cannot be cut into "
            f"{parts} parts."
        )


def check_heads(model: ModelConfig, tp: int, cp: int) -> None:
    """Raise UserError where cp, beside tp, cannot cut attention by its heads."""
    rules = head_rules("tp*cp", model.heads, model.kv_heads)
    if broken := [rule.what for rule in rules if not rule.holds(tp * cp)]:
        legal = [
            degree
            for degree in range(1, model.heads // tp + 1)
            if all(rule.holds(tp * degree) for rule in rules)
        ]
        beside = f" beside tp={tp}" if tp > 1 else ""
        raise DegreeError("cp", cp, f"cannot {broken[0]}{beside}, which an all-to-all gives the ranks", legal)


def check_experts(model: ModelConfig, mesh: Mesh) -> None:
    """Raise UserError where tokens cannot choose as many experts, or ep cannot divide the experts."""
    if model.experts == 0:
        if mesh.ep > 1:
            raise UserError(
                f"ep={mesh.ep} shares out experts, and this model has none: choose ep=1 or a model with "
                "experts."
            )
        return
    if not 1 <= model.top_k <= model.experts:
        raise UserError(
            f"a token cannot go to {model.top_k} of {model.experts} experts; top_k can be 1 to "
            f"{model.experts}."
        )
    if model.capacity_factor is not None and not model.capacity_factor > 0:
        raise UserError(
            f"the capacity factor is {model.capacity_factor}; it must be above 0, or None for no limit."
        )
    for rule in expert_rules(model.experts):
        if not rule.holds(mesh.ep):
            near = [degree for degree in range(1, model.experts + 1) if rule.holds(degree)]
            raise DegreeError("ep", mesh.ep, f"cannot {rule.what}", near)
    check_expert_cuts(model, mesh)


def check_expert_cuts(model: ModelConfig, mesh: Mesh) -> None:
    """Raise UserError where etp cannot cut the experts, or tp the shared ones and the tokens of all."""
    of_tp = [
        *expert_width_rules([model.shared_experts * model.expert_ffn], "shared experts"),
        *routed_rules(model.sequence // mesh.cp),
    ]
    of_etp = expert_width_rules([model.expert_ffn])
    for name, degree, rules in (("etp", mesh.etp, of_etp), ("tp", mesh.tp, of_tp)):
        for rule in rules:
            if not rule.holds(degree):
                name = "tp" if degree == mesh.tp else name
                raise UserError(f"{name}={degree} cannot {rule.what}; choose one that divides it.")


def check_rows(model: ModelConfig, mesh: Mesh, batch: int, microbatches: int) -> None:
    """Raise UserError where a router in balance sends an expert more rows than their number can count."""
    ranks = mesh.dp * mesh.cp * microbatches
    rows = batch * model.sequence * model.top_k // (ranks * model.experts)
    if rows > MOST_ROWS:
        raise UserError(
            f"every expert gets {rows:,} rows of each GPU, and {MOST_ROWS:,} is the most that an int32, in "
            "which they are counted, can be: choose a shorter sequence."
        )
