"""LoRA: a frozen model, and beside some of its matrices two small ones, which alone are trained.

Idea   A matrix W of inputs x outputs becomes W x + B (A x), where A is inputs x rank and B rank x outputs
       (Hu et al. 2106.09685). Only A and B have gradients and an optimizer. QLoRA keeps the frozen matrices
       of the layers in 4 bits, and makes each whole where it is used (Dettmers et al. 2305.14314).
       Whose software it is says what a pair stands on, and what tp cuts of it:
         most             each of Hugging Face's matrices, of every expert; tp cuts B of a column matrix and
                          A of a row matrix (_lora_adapter_sharding in torchtitan/components/lora.py)
         Megatron-Bridge  a matrix as it is fused, qkv and gate_up, and all experts of a rank together
                          (target_modules and share_expert_adapters in src/megatron/bridge/peft/lora.py); tp
                          cuts A and B of both (ParallelLinearAdapter in utils.py beside it). Matrices that
                          Hugging Face's names are given of have one each (canonical_lora.py)
Limit  Adapters stand on attention and MLP, not on router, embedding or head; prediction layers have none.
       Gates as wide as heads are part of q_proj, as in Qwen3-Next, where they have a matrix of their own too.
       They multiply beside experts, as PEFT's do where an expert is made of nn.Linear. Where all experts are
       one parameter, PEFT instead makes B A whole and adds it (ParamWrapper in peft/tuners/lora/layer.py).
       Without names all matrices have adapters; PEFT's defaults for Llama are q_proj and v_proj
       (TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING in peft/utils/constants.py), and
       Megatron-Bridge's leave out what leads to latent attention's ranks, and linear attention.

Glossary
    share   of a fused matrix's outputs that one of Hugging Face's has: qkv is q_proj, k_proj, v_proj
"""

from dataclasses import dataclass

from ndparallel.planner.models.matrices import Linear
from ndparallel.planner.models.shape import ModelShape
from ndparallel.planner.stack import Stack

# 4 bits, and for each block of 64 a constant of 8 bits, whose own constants are in float32, one for 256 of
# them (2305.14314, section 3)
NF4_BITS = 4 + 8 / 64 + 32 / (64 * 256)
NAMES = {  # ours and Hugging Face's, which PEFT's target_modules have
    "attention_output": "o_proj",
    "head_gate": "g_proj",
    "query": "q_proj",
    "query_down": "q_a_proj",
    "query_up": "q_b_proj",
    "kv_down": "kv_a_proj_with_mqa",
    "kv_up": "kv_b_proj",
    "linear_out": "out_proj",
    "up": "up_proj",
    "down": "down_proj",
}
LINEAR_IN = ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "in_proj_qkvz", "in_proj_ba")
BRIDGE_NAMES = {  # ours and Megatron-Bridge's; with other software each part of such a matrix has its own
    "qkv": "linear_qkv",
    "attention_output": "linear_proj",
    "gate_up": "linear_fc1",
    "up": "linear_fc1",
    "down": "linear_fc2",
}
HUGGING_FACES = ("q_proj", "k_proj", "v_proj", *NAMES.values(), "gate_proj", *LINEAR_IN)
TARGETS = tuple(dict.fromkeys((*HUGGING_FACES, *BRIDGE_NAMES.values())))


@dataclass(frozen=True)
class Adapters:
    """Adapters of one rank on the matrices named, or on all; the frozen ones are kept in `base_bits`."""

    rank: int
    matrices: tuple[str, ...] = ()
    base_bits: float = 16

    @property
    def quantized(self) -> bool:
        return self.base_bits < 16

    def shares(self, shape: ModelShape, matrix: str, stack: Stack) -> list[float]:
        """The share of the outputs that each adapted part of one of our matrices has."""
        parts = adapted_parts(shape, matrix)
        whole = not self.matrices or BRIDGE_NAMES.get(matrix) in self.matrices
        if stack.bridge_adapters and whole:
            return [1.0] if parts else []
        return [share for name, share in parts.items() if whole or name in self.matrices]

    def elements(self, shape: ModelShape, matrices: tuple[Linear, ...], tp, stack: Stack):
        """Parameters of the adapters of these matrices on one tp rank."""
        both = stack.bridge_adapters
        return self.rank * sum(
            matrix.inputs / (tp if both or matrix.split == "rows" else 1)
            + share * matrix.outputs / (tp if both or matrix.split == "columns" else 1)
            for matrix in matrices
            for share in self.shares(shape, matrix.name, stack)
        )


def adapted_parts(shape: ModelShape, matrix: str) -> dict[str, float]:
    """Hugging Face's matrices in one of ours, with their shares of its outputs; none for a router or the
    head."""
    outputs = {
        "qkv": dict(zip(("q_proj", "k_proj", "v_proj"), shape.qkv_outputs(shape.kv_heads))),
        "gate_up": {"gate_proj": 1, "up_proj": 1},
        "linear_in": linear_outputs(shape),
        **{ours: {theirs: 1} for ours, theirs in NAMES.items()},
    }.get(matrix, {})
    return {name: part / sum(outputs.values()) for name, part in outputs.items()}


def adapted_names(shape: ModelShape) -> tuple[str, ...]:
    """The matrices of a model on which adapters can stand, in Hugging Face's names and Megatron-Bridge's."""
    attention = [(each, matrix) for each in shape.with_heads for matrix in each.attention()]
    others = [(shape, matrix) for matrix in (*shape.linear_attention(), *shape.mlp(shape.ffn))]
    names = [name for each, matrix in attention + others for name in adapted_parts(each, matrix.name)]
    fused = [BRIDGE_NAMES[matrix.name] for _, matrix in attention + others if matrix.name in BRIDGE_NAMES]
    return tuple(dict.fromkeys((*names, *fused)))


def linear_outputs(shape: ModelShape) -> dict[str, int]:
    """The outputs of the matrices into linear attention (Qwen3NextGatedDeltaNet, where they are joined, and
    Qwen3_5GatedDeltaNet in transformers)."""
    if not (net := shape.linear):
        return {}
    if net.joined:
        return {"in_proj_qkvz": net.mixed + net.values, "in_proj_ba": 2 * net.value_heads}
    gates = {"in_proj_b": net.value_heads, "in_proj_a": net.value_heads}
    return {"in_proj_qkv": net.mixed, "in_proj_z": net.values, **gates}
