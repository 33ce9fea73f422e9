"""What runs again of a layer before its backward pass.

Glossary: see `ndparallel.planner.layers.operations`.
"""

from dataclasses import dataclass
from itertools import count

from gpu import Operation
from ndparallel.planner.layers.attention.half import AttentionLists
from ndparallel.planner.layers.attention.linear import LinearAttentionLists
from ndparallel.planner.layers.experts.half import ExpertLists
from ndparallel.planner.layers.parts import MLP, LayerParts
from ndparallel.planner.models.kinds import has_experts

Mixer = AttentionLists | LinearAttentionLists


@dataclass(frozen=True)
class Recomputation(LayerParts):
    """Writes what one layer recomputes."""

    experts: ExpertLists

    def again(self, kind: str, mixer: Mixer, attention: list, mlp: list, recompute: str) -> list:
        """What runs again of both halves of a layer of this kind before the backward pass; `mixer` writes the
        first one."""
        if recompute == "full":
            needed = mlp[: _last_matmul(mlp)] if self.stack.early_stop else mlp
            return self.small_kernels.of_part("recompute", False) + attention + needed
        modules = self.stack.selective if recompute == "selective" else ()
        return [item for module in modules for item in self.module(module, kind, mixer, attention, mlp)]

    def module(self, name: str, kind: str, mixer: Mixer, attention: list, mlp: list) -> list:
        """What one module of selective recomputation runs again; nothing where the layer has none."""
        experts = has_experts(kind)
        if name in ("mlp", "moe"):
            return mlp[len(self.norms_before(MLP, False)) : -1] if experts == (name == "moe") else []
        return {
            "core_attn": mixer.core_again,
            "layernorm": lambda: self.norms(kind),
            "mla_up_proj": mixer.latent_again,
            "moe_act": lambda: [self.experts.matrices.between(False)] if experts else [],
            "half": lambda: self.every_second(mixer, attention + mlp),
        }[name]()

    def norms(self, kind: str) -> list[Operation]:
        return [norm for half in self.norms_alone(kind) for norm in self.norms_before(half, False)]

    def every_second(self, mixer: Mixer, items: list) -> list:
        """What torchtitan's selective recomputation runs again: every second matrix, everything small, and
        linear attention's rule, as far as anything needs it; attention and what is exchanged never
        (2410.06511; _save_list in torchtitan of 2024, parallelisms/parallelize_llama.py)."""
        operations = [item for item in items if isinstance(item, Operation)]
        needed = operations[: _last_matmul(operations)] if self.stack.early_stop else operations
        small = [item for item in needed if item.kind == "elementwise" or item.kind.startswith("delta-rule")]
        shares = self.second_shares(mixer)
        matmuls = [(item, self.again_share(item, shares)) for item in needed if item.kind == "matmul"]
        return small + [partly(matmul, share) for matmul, share in matmuls if share]

    def again_share(self, matmul: Operation, shares: dict[str, float]) -> float:
        """The share of a product that runs again: all of what is no aten.mm, as experts' and in fewer bits,
        and of the router."""
        name = matmul.name.removesuffix(" forward")
        return shares.get(name, 1.0) if matmul.dtype == self.share.dtype else 1.0

    def second_shares(self, mixer: Mixer) -> dict[str, float]:
        """The share of each matrix's outputs, outside experts, that every second product makes, as torch
        counts them: queries, keys, values and what else linear attention has, output, gate, up, down."""
        sizes = {"qkv": mixer.shape.qkv_outputs(mixer.kv_heads), "gate_up": (1, 1)}
        if self.shape.linear:
            sizes["linear_in"] = self.shape.linear.products
        places, shares = count(1), {}
        for matrix in (*mixer.matrices, *self.shape.mlp(self.shape.ffn)):
            parts = sizes.get(matrix.name, (1,))
            shares[matrix.name] = sum(part for part in parts if next(places) % 2 == 0) / sum(parts)
        return shares


def _last_matmul(items: list) -> int:
    return max(
        place for place, item in enumerate(items) if isinstance(item, Operation) and item.kind == "matmul"
    )


def partly(matmul: Operation, share: float) -> Operation:
    """A share of the products that a list has as one."""
    m, n, k = matmul.shape
    return matmul._replace(flops=matmul.flops * share, bytes=matmul.bytes * share, shape=(m, n * share, k))
