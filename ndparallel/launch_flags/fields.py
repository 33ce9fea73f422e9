"""Which field of a model, a job or a plan is which flag of Megatron-Core, or key of torchtitan, DeepSpeed or
Accelerate.

Idea   What is one number in both is one row: the same rows write a launch line and read one. What is a choice
       of words has a row for each word. `ndparallel flags` prints the tables (tables.py).

Glossary
    MLA    multi-head latent attention
    FSDP   fully sharded data parallelism: of Megatron-Core its own, Megatron-FSDP
"""

from collections.abc import Mapping

from ndparallel.planner.launches import GRAPH_SCOPES
from ndparallel.planner.software import FP8_PARAM_GATHER

SIZES = {  # of a model
    "layers": "--num-layers",
    "hidden": "--hidden-size",
    "heads": "--num-attention-heads",
    "ffn": "--ffn-hidden-size",
    "vocab": "--vocab-size",
}
LATENT_SIZES = {  # of multi-head latent attention
    "kv_rank": "--kv-lora-rank",
    "nope_dim": "--qk-head-dim",
    "rope_dim": "--qk-pos-emb-head-dim",
    "value_dim": "--v-head-dim",
}
LINEAR_SIZES = {  # of linear attention
    "key_heads": "--linear-num-key-heads",
    "value_heads": "--linear-num-value-heads",
    "key_dim": "--linear-key-head-dim",
    "value_dim": "--linear-value-head-dim",
    "conv": "--linear-conv-kernel-dim",
}
EXPERT_SIZES = {
    "experts": "--num-experts",
    "top_k": "--moe-router-topk",
    "ffn": "--moe-ffn-hidden-size",
}
EXPERT_GROUPS = {  # of a router that keeps each token to some of them
    "groups": "--moe-router-num-groups",
    "top_groups": "--moe-router-group-topk",
}
JOB_SIZES = {
    "sequence": "--seq-length",
    "global_batch": "--global-batch-size",
}
DEGREES = {  # of a plan
    "tp": "--tensor-model-parallel-size",
    "pp": "--pipeline-model-parallel-size",
    "cp": "--context-parallel-size",
    "ep": "--expert-model-parallel-size",
    "micro_batch": "--micro-batch-size",
}
KV_HEADS = "--group-query-attention --num-query-groups"
HEAD_DIM = "--kv-channels"
CHUNKS = "--num-virtual-stages-per-pipeline-rank"
LAYOUT = "--pipeline-model-parallel-layout"
GROUP = "--microbatch-group-size-per-virtual-pipeline-stage"
WINDOW, WINDOWED = "--window-size", "--window-attn-skip-freq"
VARIANT, LINEAR_LAYERS = "--experimental-attention-variant", "--linear-attention-freq"
OUTPUT_GATE = "--attention-output-gate"
MULTIPLE = "--make-vocab-size-divisible-by"
PREDICTION = "--mtp-num-layers"
REPLICAS = "--num-distributed-optimizer-instances"
FSDP = (
    "--use-megatron-fsdp --use-distributed-optimizer --ckpt-format fsdp_dtensor "
    "--data-parallel-sharding-strategy"
)

# a choice of words: {its value: flags}; "" where the framework does so by itself
ACTIVATIONS = {"swiglu": "--swiglu", "relu2": "--squared-relu", "gelu": ""}
NORMS = {"rmsnorm": "--normalization RMSNorm", "layernorm": "--normalization LayerNorm"}
ZERO_CENTERED = "--apply-layernorm-1p"
POSITIONS = {
    "rotary": "--position-embedding-type rope",
    "learned": "--position-embedding-type learned_absolute",
}
QK_NORMS = {"": "", "head": "--qk-layernorm", "unscaled": "--qk-l2-norm"}
YARN = "--position-embedding-type yarn"
SINKS = "--softmax-type learnable"
UNROTATED = "--no-rope-freq"
BIASES = {
    (): "--disable-bias-linear",
    ("qkv",): "--disable-bias-linear --add-qkv-bias",
    ("qkv", "output", "mlp"): "",
}
LATENT_BIASES = {(): BIASES[()], ("output", "mlp"): ""}  # queries, keys and values have none
DTYPES = {
    "bf16": "--bf16",
    "fp8": "--bf16 --fp8-format hybrid",
    "fp8-current": "--bf16 --fp8-format hybrid --fp8-recipe tensorwise",
    "fp8-block": "--bf16 --fp8-format e4m3 --fp8-recipe blockwise",
    "mxfp8": "--bf16 --fp8-format e4m3 --fp8-recipe mxfp8",
    "nvfp4": "--bf16 --fp4-format e2m1 --fp4-recipe nvfp4",
}
# what --fp8-recipe and --fp4-recipe mean; the first is the default
FP8_RECIPES = {"delayed": "fp8", "tensorwise": "fp8-current", "blockwise": "fp8-block", "mxfp8": "mxfp8"}
FP4_RECIPES = {"nvfp4": "nvfp4"}
# of types whose weights are kept cast alone; it needs an optimizer that dp ranks share
CAST_WEIGHTS = dict.fromkeys(FP8_PARAM_GATHER, "--fp8-param-gather") | {
    "mxfp8": "--fp8-param-gather --reuse-grad-buf-for-mxfp8-param-ag"
}
EXPERT_TP = "--expert-tensor-parallel-size"
SCORES = "--moe-router-score-function"
SCALED_INPUTS = "--moe-apply-probs-on-input"
CAPACITY = "--moe-expert-capacity-factor"
AWARE = "--use-precision-aware-optimizer"
MOMENTS = {"fp32": "", "bf16": "--exp-avg-dtype bf16 --exp-avg-sq-dtype bf16"}
ON_HOST, HOST_SHARE = "--optimizer-cpu-offload", "--optimizer-offload-fraction"
ATTENTION = {
    "cudnn": "--attention-backend fused",
    "flash2": "--attention-backend flash",
    "unfused": "--attention-backend unfused",
}
DISPATCHERS = {
    "alltoall": "--moe-token-dispatcher-type alltoall",
    "allgather": "--moe-token-dispatcher-type allgather",
    "deepep": "--moe-token-dispatcher-type flex",
    "hybridep": "--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend hybridep",
}
ROUTER_TYPE = "--moe-router-dtype"
OF_MIXTURES = {  # switches of the software
    "fused_permutation": "--moe-permute-fusion",
    "fused_router": "--moe-router-fusion",
    "fp32_router": f"{ROUTER_TYPE} fp32",
}
GRAPHS = {
    "": "",
    **{
        graphs: f"--cuda-graph-impl transformer_engine --cuda-graph-modules {' '.join(modules)}"
        for graphs, modules in GRAPH_SCOPES.items()
    },
    "step": "--cuda-graph-impl full_iteration --no-check-for-nan-in-loss-and-grad",
}
# layers of the first and of the last pipeline rank
ENDS = ("--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers")
PADDED = "--moe-pad-expert-input-to-capacity"
CONTEXT_PARALLEL = {
    "ring": "",
    "all-gather": "--cp-comm-type all_gather",
    "all-to-all": "--cp-comm-type a2a",
}
# beside compute: tp's messages in parts, gradients, weights; rows, beside another microbatch
PARTS_BESIDE = "--tp-comm-overlap"
GRADIENTS_BESIDE = "--overlap-grad-reduce"
WEIGHTS_BESIDE = "--overlap-param-gather"
ROWS_BESIDE = "--overlap-moe-expert-parallel-comm --delay-wgrad-compute"
MESSAGES_NOT_BESIDE = "--no-overlap-p2p-communication"
SEQUENCE_PARALLEL = "--sequence-parallel"
RECOMPUTE = {
    "none": "",
    "selective": "--recompute-granularity selective",
    "full": "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
}
# of the layers of a stage
RECOMPUTE_SOME = "--recompute-granularity full --recompute-method block --recompute-num-layers"
RECOMPUTED = "--recompute-modules"
# that both name, and selective recomputation can run again
MODULES = ("core_attn", "layernorm", "moe_act", "mla_up_proj", "mlp", "moe")
# gradients of FSDP as they are added up and reduced, by their bytes; without it in the weights' 16 bits
FSDP_GRADIENTS, FSDP_GRADIENT_BYTES = "--megatron-fsdp-main-grads-dtype", {"fp32": 4, "bf16": 2}
ZERO = {0: "", 1: "--use-distributed-optimizer", 2: f"{FSDP} optim_grads", 3: f"{FSDP} optim_grads_params"}


TITAN_DEGREES = {
    "tp": "parallelism.tensor_parallel_degree",
    "pp": "parallelism.pipeline_parallel_degree",
    "cp": "parallelism.context_parallel_degree",
    "ep": "parallelism.expert_parallel_degree",
}
TITAN_HOST = "training.enable_cpu_offload"  # of all states
TITAN_RESHARD = {2: "never", 3: "always"}  # after the forward pass, by ZeRO's stage
TITAN_RECOMPUTE = {"none": "None", "selective": "SelectiveAC.Config()", "full": "FullAC.Config()"}

DEEPSPEED_MICRO, DEEPSPEED_STEPS = "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"
DEEPSPEED_ZERO, DEEPSPEED_BESIDE = "zero_optimization.stage", "zero_optimization.overlap_comm"
DEEPSPEED_BUCKET = "zero_optimization.reduce_bucket_size"
DEEPSPEED_SIZES = {  # of its memory, by the fields of a software stack
    "reduce_bucket": DEEPSPEED_BUCKET,
    "live_weights": "zero_optimization.stage3_max_live_parameters",
    "reuse_distance": "zero_optimization.stage3_max_reuse_distance",
    "sub_group": "zero_optimization.sub_group_size",
}
DEEPSPEED_HOST = "zero_optimization.offload_optimizer.device"
DEEPSPEED_WEIGHTS = "zero_optimization.offload_param.device"
DEEPSPEED_DEGREES = {
    "tp": "tensor_parallel.autotp_size",
    "pp": "pipeline.stages",
    "ep": "expert_parallel.autoep_size",
    "cp": "sequence_parallel_size",
}
DEEPSPEED_INTERVAL = "pipeline.activation_checkpoint_interval"
# of transformers' TrainingArguments
TRANSFORMERS_MICRO, TRANSFORMERS_STEPS = "per_device_train_batch_size", "gradient_accumulation_steps"
TRANSFORMERS_RECOMPUTE, TRANSFORMERS_ACCELERATOR = "gradient_checkpointing", "accelerator_config"
TRANSFORMERS_MOMENTS = {"fp32": "", "8bit": "adamw_bnb_8bit"}  # --optim

# options of `accelerate launch`, and the tables in its file that hold those whose names begin so
ACCELERATE_TABLES = {"fsdp_": "fsdp_config", "parallelism_config_": "parallelism_config"}
ACCELERATE_VERSION, ACCELERATE_VERSIONS = "fsdp_version", {"fsdp1": 1, "fsdp2": 2}
ACCELERATE_WRAP = "fsdp_auto_wrap_policy"
ACCELERATE_RESHARD = "fsdp_reshard_after_forward"
ACCELERATE_STRATEGY = "fsdp_sharding_strategy"  # of FSDP1
ACCELERATE_RECOMPUTE = "fsdp_activation_checkpointing"
ACCELERATE_HOST = "fsdp_offload_params"  # of all states
ACCELERATE_REPLICAS = "parallelism_config_dp_replicate_size"
ACCELERATE_SHARDS = "parallelism_config_dp_shard_size"
ACCELERATE_DEGREES = {"cp": "parallelism_config_cp_size"}
ACCELERATE_WAY = "parallelism_config_cp_comm_strategy"
ACCELERATE_WAYS = {"all-gather": "allgather", "ring": "alltoall"}

NUMBERS: Mapping[str, Mapping[str, str]] = {
    "model": SIZES,
    "latent attention": LATENT_SIZES,
    "linear attention": LINEAR_SIZES,
    "experts": EXPERT_SIZES | EXPERT_GROUPS,
    "job": JOB_SIZES,
    "plan": DEGREES,
}
CHOICES: Mapping[str, Mapping[str, Mapping]] = {
    "model": {"activation": ACTIVATIONS, "norm": NORMS, "position": POSITIONS, "biases": BIASES},
    "job": {"dtype": DTYPES},
    "software": {
        "attention": ATTENTION,
        "context_parallel": CONTEXT_PARALLEL,
        "dispatcher": DISPATCHERS,
        "cuda_graphs": GRAPHS,
    },
    "plan": {"recompute": RECOMPUTE, "zero": ZERO},
}
