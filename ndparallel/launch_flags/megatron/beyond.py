"""Flags of Megatron-Core that change time or memory and that the planner does not model, each with what it
assumes instead."""

import re

from ndparallel.launch_flags.fields import EXPERT_TP, FP4_RECIPES, FP8_RECIPES
from ndparallel.parallel.context import CP_COMM_TYPES

ONE_STEP = "the step is one of the full batch"
ON_GPU = "all of it is counted on the GPU"
ADAM = "Adam's weights and moments are counted in float32"
KERNELS = "kernels are priced as the planner's list has them"
ORDER = "ranks stand in the order tp, cp, dp, pp"
SHORT = "every layer multiplies in fewer bits"
HIDDEN = "messages hide behind compute as the planner's list has them"

ANOTHER_MODEL = (  # which cannot be read as a transformer of our layers
    "--hybrid-layer-pattern",
    "--hybrid-override-pattern",
    "--is-hybrid-model",
    "--heterogeneous-layers-config-path",
    "--heterogeneous-layers-config-encoded-json",
    "--yaml-cfg",
    "--spec",
    "--decoder-num-layers",  # of an encoder and a decoder
    "--decoder-seq-length",  # of these, or of what sees: --seq-length is then the other's
)
ANOTHER_PROGRAM = re.compile(r"pretrain_(?:bert|t5|ict|retro|vision_\w+|vlm)\.py$")
NO_TRAINING = re.compile(r"(?:^|/)(?!pretrain|train|finetune)\w*(?:generat|inference|export|convert)\w*\.py$")
BEYOND = {
    "--use-checkpoint-args": "the sizes are the command line's",
    "--fp16": "priced as bf16",
    "--rampup-batch-size": ONE_STEP,
    "--step-batch-size-schedule": ONE_STEP,
    "--optimizer-cpu-offload": ON_GPU,
    "--cpu-offloading-num-layers": ON_GPU,
    "--fine-grained-activation-offloading": ON_GPU,
    "--cuda-graph-impl": "every kernel keeps the time that its launch takes",
    "--enable-cuda-graph": "every kernel keeps the time that its launch takes",
    "--external-cuda-graph": "every kernel keeps the time that its launch takes",
    "--moe-latent-size": "the latent projections are left out",
    "--moe-layer-recompute": "it is not recomputed",
    "--moe-shared-expert-overlap": "shared experts are computed after the others",
    "--distribute-saved-activations": "every tp rank keeps a layer's whole input",
    "--use-precision-aware-optimizer": ADAM,
    "--main-params-dtype": ADAM,
    "--main-grads-dtype": ADAM,
    "--exp-avg-dtype": ADAM,
    "--exp-avg-sq-dtype": ADAM,
    "--deterministic-mode": KERNELS,
    "--batch-invariant-mode": KERNELS,
    "--cross-entropy-loss-fusion": KERNELS,
    "--fused-residual-rmsnorm": KERNELS,
    "--no-bias-swiglu-fusion": KERNELS,
    "--no-bias-gelu-fusion": KERNELS,
    "--no-bias-dropout-fusion": KERNELS,
    "--openai-gelu": KERNELS,
    "--no-masked-softmax-fusion": KERNELS,
    "--no-persist-layer-norm": KERNELS,
    "--disable-jit-fuser": KERNELS,
    "--use-te-activation-func": KERNELS,
    "--use-transformer-engine-op-fuser": KERNELS,
    "--use-kitchen-attention": KERNELS,
    "--flash-attention-version": KERNELS,
    "--mla-down-proj-fusion": KERNELS,
    "--fp16-lm-cross-entropy": KERNELS,
    "--use-grouped-gemm-for-dense-mlp": KERNELS,
    "--optimizer-cuda-graph": KERNELS,
    "--qk-l2-norm": KERNELS,
    "--fp32-residual-connection": "residuals are kept, moved and sent in 16 bits",
    "--first-last-layers-bf16": SHORT,
    "--num-layers-at-start-in-bf16": SHORT,
    "--num-layers-at-end-in-bf16": SHORT,
    "--no-fp8-wgrad": SHORT,
    "--disable-fp8-wgrad": SHORT,
    "--freeze-all-layers": "all weights are trained",
    "--mtp-use-repeated-layer": "every prediction layer has weights of its own",
    "--use-mp-args-from-checkpoint-args": "the degrees are the command line's",
    "--defer-embedding-wgrad-compute": "the head's gradient is computed with every microbatch",
    "--overlap-p2p-communication-warmup-flush": HIDDEN,
    "--overlap-dispatch-backward-with-experts-wgrad": HIDDEN,
    "--overlap-param-gather-with-optimizer-step": HIDDEN,
    "--tp-comm-overlap-rs-dgrad": HIDDEN,
    "--tp-comm-overlap-cfg": HIDDEN,
    **dict.fromkeys(
        (
            f"--{no}-tp-comm-{part}"
            for no in ("no", "disable")
            for part in ("bulk-dgrad", "bulk-wgrad", "overlap-ag", "overlap-rs", "split-ag", "split-rs")
        ),
        HIDDEN,
    ),
    "--reset-attention-mask": "each token attends to all before it, of other documents too",
    "--fsdp-double-buffer": "memory is counted as PyTorch's allocator gives it",
    "--use-nccl-ub": "collectives take as much from compute as they do from buffers that nobody registers",
    "--use-sharp": "sums are made by the GPUs, and not by the switches",
    "--hierarchical-context-parallel-sizes": "keys and values go round one ring",
    "--tensor-parallel-num-weight-shards": "weights are cut over tp alone",
    "--expert-tensor-parallel-num-weight-shards": "experts are cut over tp, or not at all",
    "--use-tp-pp-dp-mapping": ORDER,
    "--megatron-fsdp-main-params-dtype": ADAM,
    "--outer-dp-sharding-strategy": "replicas of a shard keep an optimizer each",
}
# flag by flag the words that the planner does assume, and what it assumes in place of any other
ASSUMED_WORDS = {
    "--fp8-recipe": (tuple(FP8_RECIPES), "priced with delayed scales"),
    "--fp4-recipe": (tuple(FP4_RECIPES), "priced as nvfp4"),
    "--optimizer": (("adam",), ADAM),
    "--cp-comm-type": (tuple(CP_COMM_TYPES), "keys and values go round one ring"),
    "--transformer-impl": (("transformer_engine",), KERNELS),
    "--cuda-graph-impl": (("none",), BEYOND.pop("--cuda-graph-impl")),
    "--moe-token-dispatcher-type": (
        ("alltoall", "allgather", "flex"),
        "tokens go to their experts by all-to-all",
    ),
    "--moe-flex-dispatcher-backend": (
        ("deepep", "hybridep"),
        "rows go to their experts as HybridEP sends them, and experts take no more room than their rows",
    ),
    "--moe-router-dtype": (("fp32",), "priced as fp32"),
    "--megatron-fsdp-grad-comm-dtype": (("auto",), "gradients travel in the type in which they are added up"),
    "--mlp-chunks-for-training": (("1",), "an MLP takes all tokens of a microbatch at once"),
    EXPERT_TP: (("1",), "experts stay whole, on the ranks of ep"),
}
