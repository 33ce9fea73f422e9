"""Kernels of a layer that move little, and what the CPU pays to launch one.

Idea   Matmuls, attention and large copies are in the lists of ndparallel.planner.layers. Beside them software
       launches kernels that a list of arrays does not show: gradients of biases and of norms' weights, their
       sums into the gradients that stay, copies between layouts, states of random numbers. They are counted
       in the framework's code, one record each. A GPU waits where launching takes longer than the kernels.
Cost   One launch takes the CPU `host_launch` seconds in plain eager PyTorch, a figure of the hardware, times
       what the code around it takes more or less.
Limit  Kernels of one kind are all alike; the Python between layers is not counted.

Where the numbers come from. NVIDIA/TransformerEngine, issue 2053, times the CPU in a linear layer's forward
pass, which is one kernel: torch.nn.Linear 13.48 us on a DGX H100's Xeon, 33.17 us on a GH200, 37.08 us on a
GB200; Transformer Engine's module 90.53 and 99.66 us there, 2.73 and 2.69 times as much. Megatron's modules
are as deep in Python (autograd.Function, groups, contexts). meta-pytorch/tritonbench, pull request 1017:
6.8 us for a kernel of torch.compile on a GB200, 3.0 us for the driver's launch alone.

Glossary
    launches   kernels that the CPU hands to the GPU
    calls      what the CPU does beside launching; each takes as long as a launch
    waits      where the CPU reads what a kernel has computed, and so launches nothing until the GPU has done
               all that was launched before
    of         whose: attention's half of a layer, linear attention's, the MLP's (or experts'), a mixture's
               router, its rows where they arrive, or a layer that is recomputed
    elements   of the array that is moved: qkv, hidden, ffn (of the rank's rows), or none worth counting
    when       what the model or the software must have: a bias of these matrices, dropout, unfused attention,
               a dispatcher, and its permutation fused or plain, its mask in one kernel or masked
    graphs     launches that CUDA graphs hold, and the CPU makes at once: of the whole step; of all but the
               experts and the ways to them (Transformer Engine's scopes attn, moe_router, moe_preprocess); or
               of the router and what it prepares alone
"""

from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache

from gpu import Hardware, Operation

MODULE = 2.71  # of plain PyTorch's seconds: the mean of 2.73 and 2.69
COMPILED = 6.8 / 37.08
DRIVER = 3.0 / 37.08  # of kernels that one call launches in a loop of its own, in C++

# the CPU's seconds for one launch, in those of plain eager PyTorch, as published; hardware may have its own
LAUNCH_COSTS = {"none": 0.0, "compiled": COMPILED, "eager": 1.0, "modules": MODULE}

GRAPHS = ("", "preprocess", "router", "step")
# of Transformer Engine's: the scopes that are said together
GRAPH_SCOPES = {
    "router": ("attn", "moe_router", "moe_preprocess"),
    "preprocess": ("moe_router", "moe_preprocess"),
}
OUTSIDE_OF_ROUTER_GRAPHS = ("experts", "ep ", "swiglu", "gelu", "permute", "layout")
PREPROCESS = ("router", "choose experts", "balance", "counts")


def graphs_of(scopes: Collection[str]) -> str:
    """What CUDA graphs of these scopes hold, in a word of GRAPHS; "" of others."""
    return next((graphs for graphs, held in GRAPH_SCOPES.items() if {*held} == {*scopes}), "")


def in_graph(graphs: str, name: str) -> bool:
    """Whether CUDA graphs hold what is called so."""
    if graphs in ("", "step"):
        return graphs == "step"
    outside = name.startswith(OUTSIDE_OF_ROUTER_GRAPHS)
    return name.startswith(PREPROCESS) if graphs == "preprocess" else not outside


def launch_cost(hardware: Hardware, launching: str) -> float:
    """The CPU's seconds for one launch, in those of plain eager PyTorch on this hardware."""
    return (LAUNCH_COSTS | getattr(hardware, "host_launch_multiples", {}))[launching]


def launches_of(operation: Operation, cost: float):
    """The CPU's work for an operation, in plain PyTorch's launches. An element-by-element operation is as
    many calls as it has kernels. Products of several experts are one call, with a choice of algorithm
    for each, as in plain PyTorch, and Python launches the kernels of linear attention's rule one by one; a
    fused kernel or a cast is one call that launches all its own."""
    if operation.kind in ("host", "wait"):
        return cost * operation.shape[0]
    if operation.kind == "elementwise" or not cost:
        return cost * operation.kernels
    each = 1.0 if operation.kind.startswith(("matmul", "delta-rule")) else DRIVER
    return cost + min(cost, each) * (operation.kernels - 1)


@dataclass(frozen=True)
class SmallKernel:
    """One kind of kernel in one pass of a layer, and where the code launches it."""

    name: str
    of: str
    backward: bool
    source: str
    launches: int = 1
    calls: int = 0
    waits: bool = False
    elements: str = ""
    passes: float = 0.0
    when: str = ""


LEGACY = "megatron/model/transformer.py"
LINEAR = "megatron/core/tensor_parallel/layers.py, LinearWithGradAccumulationAndAsyncCommunication"
STATES = "megatron/core/tensor_parallel/random.py"
HOOK = "megatron/model/distributed.py, param_hook"
NORM = "apex: the gradients of a norm's weights are summed in a second kernel"

# Megatron-LM of 2021 to 2023, here as microsoft/Megatron-DeepSpeed 52e6368 has it
MEGATRON = (
    SmallKernel("qkv bias", "attention", False, f"{LINEAR}.forward", elements="qkv", passes=2, when="qkv"),
    SmallKernel(
        "random states", "attention", False, f"{STATES}, fork", launches=0, calls=4, when="score dropout"
    ),
    SmallKernel("norm weights wgrad", "attention", True, NORM),
    SmallKernel("output bias wgrad", "attention", True, LEGACY, elements="hidden", passes=1, when="output"),
    SmallKernel("scale scores", "attention", True, "torch.baddbmm's backward", launches=2, when="unfused"),
    SmallKernel("join q, k, v", "attention", True, "torch.split's backward", elements="qkv", passes=2),
    SmallKernel(
        "qkv bias wgrad", "attention", True, f"{LINEAR}.backward", elements="qkv", passes=1, when="qkv"
    ),
    SmallKernel("dropout dgrad", "attention", True, f"{LEGACY}, bias_dropout_add", when="dropout"),
    SmallKernel("add to gradients", "attention", True, HOOK, launches=2),
    SmallKernel("add to biases' gradients", "attention", True, HOOK, launches=2, when="qkv"),
    SmallKernel("norm weights wgrad", "mlp", True, NORM),
    SmallKernel("down bias wgrad", "mlp", True, LEGACY, elements="hidden", passes=1, when="mlp"),
    SmallKernel(
        "up bias wgrad",
        "mlp",
        True,
        "megatron/model/fused_bias_gelu.py",
        elements="ffn",
        passes=1,
        when="mlp",
    ),
    SmallKernel("dropout dgrad", "mlp", True, f"{LEGACY}, bias_dropout_add", when="dropout"),
    SmallKernel("add to gradients", "mlp", True, HOOK, launches=2),
    SmallKernel("add to biases' gradients", "mlp", True, HOOK, launches=2, when="mlp"),
    SmallKernel("random states", "recompute", False, f"{STATES}, CheckpointFunction", launches=0, calls=8),
)
TE = "transformer_engine/pytorch/module/layernorm_linear.py"
DDP = "megatron/core/distributed/distributed_data_parallel.py, _make_backward_post_hook"
HEADS = "megatron/core/transformer/attention.py, get_query_key_value_tensors: query.reshape"
LAYOUT = "transformer_engine/pytorch/attention/dot_product_attention/utils.py, get_qkv_layout: contiguous"
SPLIT = "transformer_engine/pytorch/utils.py, SplitAlongDim.backward: torch.cat, or nothing"
CONVOLUTION = "fla/modules/conv/triton/ops.py, causal_conv1d_bwd: a sum over chunks, a cast"
DELTA = "megatron/core/ssm/gated_delta_net/gdn.py"
LATENT = "megatron/core/transformer/multi_latent_attention.py: a split's backward"
# Megatron-Core on Transformer Engine, from 2024 on (NVIDIA/Megatron-LM)
MEGATRON_CORE = (
    SmallKernel(
        "queries apart", "attention", False, HEADS, elements="queries", passes=2, when="grouped_heads"
    ),
    SmallKernel("values apart", "attention", False, LAYOUT, elements="values", passes=2, when="rotary_heads"),
    SmallKernel("norm weights wgrad", "attention", True, TE),
    SmallKernel("join q, k, v", "attention", True, SPLIT, elements="qkv", passes=2, when="rotary_heads"),
    SmallKernel("join keys, values", "attention", True, LATENT, when="latent"),
    SmallKernel("add to gradients", "attention", True, DDP),
    SmallKernel("gates", "linear attention", False, f"{DELTA}, _compute_gates", launches=2),
    SmallKernel("gates", "linear attention", True, f"{DELTA}, _compute_gates", launches=2),
    SmallKernel("convolution wgrad", "linear attention", True, CONVOLUTION, launches=2),
    SmallKernel("norm weights wgrad", "linear attention", True, TE, launches=2),
    SmallKernel("add to gradients", "linear attention", True, DDP, launches=5),
    SmallKernel("norm weights wgrad", "mlp", True, TE),
    SmallKernel("add to gradients", "mlp", True, DDP),
)
MOE = "megatron/core/transformer/moe"
ROUTING = f"{MOE}/moe_utils.py, topk_routing_with_score_function"
BALANCE = f"{MOE}/router.py, _apply_aux_loss"
DISPATCHER = f"{MOE}/token_dispatcher.py"
PERMUTE = f"{MOE}/moe_utils.py, permute, sort_chunks_by_idxs, unpermute"
TE_PERMUTE = "transformer_engine/pytorch/permutation.py"
TE_ROUTER = "transformer_engine/pytorch/router.py"
MASK = f"{DISPATCHER}, _indices_to_multihot"
FUSED_MASK = "megatron/core/fusions/fused_indices_converter.py, with --enable-experimental"
DEEPEP = "deepseek-ai/DeepEP, csrc/deep_ep.cpp"
HYBRID = "deepseek-ai/DeepEP, branch hybrid-ep, deep_ep/hybrid_ep_buffer.py"
HYBRID_CORE = "the same branch, csrc/hybrid_ep/executor/executor.cu, metadata_preprocess_core"


def wait(name: str, of: str, source: str, when: str) -> SmallKernel:
    """A point at which the CPU must know what the GPU has computed before it goes on."""
    return SmallKernel(name, of, False, source, launches=0, waits=True, when=when)


# dispatchers that take probabilities in 32 bits alone cast what a router gives in 16 (torchtitan's gives 32)
PROBABILITIES = tuple(
    SmallKernel(
        "layout, cast",
        "router",
        backward,
        f"{DISPATCHER}, dispatch: token_probs.float()",
        when=f"16-bit {one}",
    )
    for one in ("deepep", "hybridep")
    for backward in (False, True)
)
# A mixture's router and dispatcher in Megatron-Core (core_v0.16.0), beside the copies of rows
ROUTER = (
    SmallKernel("choose experts", "router", False, f"{ROUTING}: top-k, scatters", 9, when="plain router"),
    SmallKernel("balance", "router", False, f"{BALANCE}: scores, products", 12, when="plain router"),
    SmallKernel("choose experts", "router", True, ROUTING, 5, when="plain router"),
    SmallKernel("balance", "router", True, BALANCE, 7, when="plain router"),
    SmallKernel("choose experts", "router", False, TE_ROUTER, when="fused router"),
    SmallKernel("balance", "router", False, f"{TE_ROUTER}; {BALANCE}", 5, when="fused router"),
    SmallKernel("choose experts", "router", True, TE_ROUTER, when="fused router"),
    SmallKernel("balance", "router", True, TE_ROUTER, 2, when="fused router"),
    SmallKernel("counts", "router", False, f"{DISPATCHER}, preprocess: sums and copies", 8, when="alltoall"),
    SmallKernel(
        "permute", "router", False, f"{PERMUTE}: selects, joins, a scatter", 20, when="plain alltoall"
    ),
    SmallKernel("permute", "router", True, PERMUTE, 12, when="plain alltoall"),
    SmallKernel("permute", "router", False, f"{TE_PERMUTE}: maps 5, copies 4", 9, when="fused alltoall"),
    SmallKernel("permute", "router", True, TE_PERMUTE, 4, when="fused alltoall"),
    wait("counts known", "router", f"{DISPATCHER}, before_ep_alltoall", "alltoall"),
    wait("counts known", "arrival", f"{DISPATCHER}, local_map", "allgather"),
    SmallKernel("permute", "arrival", False, f"{PERMUTE}: selects, a scatter", 16, when="plain allgather"),
    SmallKernel("permute", "router", True, PERMUTE, 8, when="plain allgather"),
    SmallKernel("permute", "arrival", False, f"{TE_PERMUTE}: maps 3, copies 2", 5, when="fused allgather"),
    SmallKernel("permute", "router", True, TE_PERMUTE, 2, when="fused allgather"),
    SmallKernel("layout", "router", False, f"{DISPATCHER}, _DeepepManager", 6, when="deepep"),
    wait("counts known", "router", f"{DEEPEP}, dispatch: moe_recv_counter", "deepep"),
    SmallKernel("to a mask", "arrival", False, f"{MASK}: zeros, a comparison", 3, when="masked deepep"),
    wait("choices known", "arrival", f"{MASK}: indices[mask]", "masked deepep"),
    SmallKernel("to a mask", "arrival", False, f"{MASK}: the rest", 9, when="masked deepep"),
    SmallKernel("to a mask", "arrival", False, FUSED_MASK, when="one-kernel deepep"),
    SmallKernel("permute", "arrival", False, f"{PERMUTE}: selects, a scatter", 14, when="plain deepep"),
    SmallKernel("permute", "router", True, PERMUTE, 8, when="plain deepep"),
    SmallKernel("permute", "arrival", False, f"{TE_PERMUTE}: maps 3, copies 2", 5, when="fused deepep"),
    SmallKernel("permute", "router", True, TE_PERMUTE, 2, when="fused deepep"),
    SmallKernel("layout, permute", "router", False, HYBRID, 5, when="hybridep"),
    wait("counts known", "router", f"{HYBRID_CORE}: cudaStreamSynchronize", "hybridep"),
    SmallKernel("permute", "router", True, HYBRID, 2, when="hybridep"),
)
TITAN, DELTA_NET = "torchtitan/models/llama3/model.py", "torchtitan/models/qwen3_5/gdn.py"
# Layers in plain PyTorch, one kernel for each operator: their bytes are in the lists already
TORCH = (
    SmallKernel("rest of the norm", "attention", False, f"{TITAN}, RMSNorm", launches=7),
    SmallKernel("keys, values", "attention", False, f"{TITAN}, Attention: three matrices", launches=2),
    SmallKernel(
        "rest of rotary", "attention", False, f"{TITAN}, apply_rotary_emb", launches=9, when="rotary"
    ),
    SmallKernel("repeat keys, values", "attention", False, f"{TITAN}, repeat_kv", launches=2),
    SmallKernel("rest of the norm", "linear attention", False, f"{TITAN}, RMSNorm", launches=7),
    SmallKernel("keys, values, gates", "linear attention", False, f"{DELTA_NET}: six matrices", launches=5),
    SmallKernel("convolutions", "linear attention", False, f"{DELTA_NET}: three", launches=2),
    SmallKernel("gates", "linear attention", False, f"{DELTA_NET}: softplus, exponentials", launches=8),
    SmallKernel("rest of the gated norm", "linear attention", False, f"{DELTA_NET}, RMSNormGated", 12),
    SmallKernel("rest of the norm", "mlp", False, f"{TITAN}, RMSNorm", launches=7),
    SmallKernel("gate", "mlp", False, f"{TITAN}, FeedForward: silu, product, three matrices", launches=2),
    SmallKernel("rest of the norm", "attention", True, f"{TITAN}, RMSNorm", launches=11),
    SmallKernel("keys, values", "attention", True, f"{TITAN}: two gradients each, two sums", launches=6),
    SmallKernel("rest of rotary", "attention", True, f"{TITAN}, apply_rotary_emb", launches=9, when="rotary"),
    SmallKernel("repeat keys, values", "attention", True, f"{TITAN}, repeat_kv", launches=2),
    SmallKernel("rest of the norm", "linear attention", True, f"{TITAN}, RMSNorm", launches=11),
    SmallKernel("keys, values, gates", "linear attention", True, f"{DELTA_NET}: five sums", launches=15),
    SmallKernel("convolutions", "linear attention", True, f"{CONVOLUTION}, three times", launches=10),
    SmallKernel("gates", "linear attention", True, f"{DELTA_NET}: softplus, exponentials", launches=12),
    SmallKernel("rest of the gated norm", "linear attention", True, f"{DELTA_NET}, RMSNormGated", 22),
    SmallKernel("rest of the norm", "mlp", True, f"{TITAN}, RMSNorm", launches=11),
    SmallKernel("gate", "mlp", True, f"{TITAN}: two gradients, a sum, silu, product", launches=5),
)
SMALL_KERNELS: dict[str, tuple[SmallKernel, ...]] = {
    "": ROUTER,
    "megatron": MEGATRON + ROUTER,
    "megatron-core": MEGATRON_CORE + ROUTER + PROBABILITIES,
    "torch": TORCH + ROUTER,
}


@lru_cache
def small_kernels(software: str, of: str, backward: bool) -> tuple[SmallKernel, ...]:
    """The small kernels of a software in one part of a pass."""
    return tuple(one for one in SMALL_KERNELS[software] if one.of == of and one.backward == backward)
