"""The options that describe a job and a plan, group by group as --help shows them.

Idea   Our names and Megatron's mean the same. A parser leaves out what was not given: the defaults stand in
       one place, ndparallel/planner/options.py.
"""

import argparse
from typing import Any

from ndparallel.base.options import spelled
from ndparallel.base.words import option_of, paragraph
from ndparallel.hardware.accelerator import hardware_names
from ndparallel.model.costs import RECOMPUTE
from ndparallel.parallel.context import CP_COMM_TYPES, VARIANTS
from ndparallel.pipeline.catalog import RECIPES
from ndparallel.planner.dispatchers import DISPATCHERS
from ndparallel.planner.launches import GRAPHS
from ndparallel.planner.legality import DTYPE_SPELLINGS, DTYPES
from ndparallel.planner.models.presets import presets
from ndparallel.planner.software import STACKS
from ndparallel.planner.stack import MODULES

MODEL_FLAGS = {  # our name: Megatron's, meaning
    "layers": ("--num-layers", "layers"),
    "hidden": ("--hidden-size", "width of the residual stream"),
    "heads": ("--num-attention-heads", "attention heads"),
    "kv_heads": ("--num-query-groups", "heads of keys and values (default: heads)"),
    "head_dim": ("--kv-channels", "width of a head (default: hidden / heads)"),
    "ffn": ("--ffn-hidden-size", "width of the MLP"),
    "vocab": ("--vocab-size", "vocabulary"),
    "experts": ("--num-experts", "experts of a layer"),
    "top_k": ("--moe-router-topk", "experts that a token goes to"),
    "expert_ffn": ("--moe-ffn-hidden-size", "width of an expert"),
}
OVERLAPS = ("tp", "dp", "pp", "cp", "ep")
NUMBER: dict[str, Any] = {"type": int, "metavar": "N"}
RATIO: dict[str, Any] = {"type": float, "metavar": "X"}
Group = argparse._ArgumentGroup


def add_job_options(
    parser: argparse.ArgumentParser, needed: str = "--model NAME|FILE --gpus N --global-batch N"
) -> None:
    """Add the model, the work, and the software that does it; of so many options the usage names those that
    are `needed`."""
    parser.usage = f"{parser.prog} {needed} [options]"
    add_model(group(parser, "the model"))
    add_work(group(parser, "the job"))
    add_software(group(parser, "the software"))
    add_routing(group(parser, "the router of experts"))


def add_plan_options(parser: argparse.ArgumentParser) -> None:
    """Add what cuts the model and the batch, and what is kept of both."""
    add_degrees(group(parser, "the plan: its degrees"))
    add_pipeline(group(parser, "the plan: its pipeline"))
    add_sharding(group(parser, "the plan: what is sharded"))
    add_recomputation(group(parser, "the plan: what is computed again in the backward pass"))


def group(parser: argparse.ArgumentParser, title: str) -> Group:
    return parser.add_argument_group(title, argument_default=argparse.SUPPRESS)


# --------------------------------------------------------------------------------------------------- the job


def add_model(model: Group) -> None:
    model.description = paragraph(f"Presets: {', '.join(presets())}.", 76)
    model.add_argument(
        "--model",
        metavar="NAME|FILE",
        help="a preset, or a Hugging Face config.json; or the sizes of a Llama (SwiGLU, untied), one by one:",
    )
    for name, (megatron, meaning) in MODEL_FLAGS.items():
        model.add_argument(option_of(name), megatron, help=meaning, **NUMBER)


def add_work(job: Group) -> None:
    job.description = paragraph(f"Presets of hardware: {', '.join(hardware_names())}.", 76)
    file = "a preset, or a JSON or TOML file (default h100)"
    job.add_argument("--hardware", metavar="NAME|FILE", help=file)
    job.add_argument("--gpus", "--world-size", help="GPUs in all", **NUMBER)
    job.add_argument("--sequence", "--seq-length", help="tokens in a sequence (default 4096)", **NUMBER)
    job.add_argument("--global-batch", "--global-batch-size", help="sequences in a step", **NUMBER)
    job.add_argument(
        "--dtype",
        type=spelled(DTYPE_SPELLINGS),
        choices=DTYPES,
        help="the type of the layers' matmuls (default bf16)",
    )
    job.add_argument("--fp8-format", dest="dtype", action="store_const", const="fp8", help=argparse.SUPPRESS)


def add_software(software: Group) -> None:
    software.add_argument(
        "--software",
        metavar="NAME",
        help=f"one of {', '.join(STACKS)} (default megatron-core; pocket on pocket)",
    )
    flash = software.add_mutually_exclusive_group()
    flash.add_argument("--flash-attention", "--use-flash-attn", action="store_true", help="fused attention")
    flash.add_argument(
        "--no-flash-attention", dest="flash_attention", action="store_false", help="scores go through memory"
    )
    ways = software.add_mutually_exclusive_group()
    ways.add_argument(
        "--context-parallel",
        choices=VARIANTS,
        help="how keys and values travel; all-to-all: Ulysses (default: as in the software)",
    )
    ways.add_argument("--cp-comm-type", choices=CP_COMM_TYPES, help=argparse.SUPPRESS)
    software.add_argument(
        "--overlap",
        metavar="LIST",
        help=f"what hides behind compute, of {','.join(OVERLAPS)}; or none (default: the software's)",
    )
    software.add_argument(
        "--cuda-graphs",
        choices=[graphs or "none" for graphs in GRAPHS],
        help="what CUDA graphs hold (default: the software's)",
    )


FUSED = "Transformer Engine's fused kernels"
SWITCHES = {  # of a software stack for mixtures, with Megatron's flags
    ("--fused-permutation", "--moe-permute-fusion"): f"rows are permuted for their experts in {FUSED}",
    ("--fused-router", "--moe-router-fusion"): f"scores are made and the best experts chosen in {FUSED}",
    ("--fp32-router",): "the router's scores are in 32 bits (Megatron's --moe-router-dtype fp32)",
}


def add_routing(router: Group) -> None:
    router.add_argument(
        "--etp",
        "--expert-tensor-parallel-size",
        choices=("1", "tp"),
        help="ranks of tp that share out each expert's matrices (default: the software's)",
    )
    router.add_argument(
        "--dispatcher", choices=DISPATCHERS, help="how rows get to experts (default: the software's)"
    )
    for spellings, what in SWITCHES.items():
        router.add_argument(*spellings, action="store_true", help=what)
    router.add_argument(
        "--routing-imbalance", help="rows of the busiest rank's experts / their mean (default 1)", **RATIO
    )
    router.add_argument(
        "--capacity-factor",
        "--moe-expert-capacity-factor",
        help="an expert takes X even shares, no more",
        **RATIO,
    )


# -------------------------------------------------------------------------------------------------- the plan


def add_degrees(plan: Group) -> None:
    plan.add_argument(
        "--plan", metavar="NAME", help="the whole plan by its name, which a search prints and explains; or:"
    )
    plan.add_argument("--tp", "--tensor-model-parallel-size", help="tensor parallelism (default 1)", **NUMBER)
    plan.add_argument("--pp", "--pipeline-model-parallel-size", help="pipeline ranks (default 1)", **NUMBER)
    plan.add_argument("--dp", help="data parallelism (default: what the GPUs leave)", **NUMBER)
    plan.add_argument(
        "--ep",
        "--expert-model-parallel-size",
        help="expert parallelism, within tp*cp*dp (default 1)",
        **NUMBER,
    )
    plan.add_argument("--cp", "--context-parallel-size", help="context parallelism (default 1)", **NUMBER)
    size = "sequences in a microbatch (default 1)"
    plan.add_argument("--micro-batch", "--micro-batch-size", help=size, **NUMBER)


def add_pipeline(plan: Group) -> None:
    plan.add_argument(
        "--schedule",
        metavar="NAME",
        help=f"one of {', '.join(RECIPES)} (default 1f1b; interleaved with chunks)",
    )
    plan.add_argument(
        "--chunks", help="chunks of the model per pipeline rank (default: the schedule's)", **NUMBER
    )
    plan.add_argument(
        "--num-layers-per-virtual-pipeline-stage",
        dest="layers_per_stage",
        help="the same, by the layers of one",
        **NUMBER,
    )
    plan.add_argument(
        "--stage-layers", metavar="N,N,...", help="layers of each stage (default: split evenly)"
    )


def add_sharding(plan: Group) -> None:
    plan.add_argument(
        "--zero", type=int, metavar="0-3", help="what dp shards: optimizer, gradients, weights (3: FSDP)"
    )
    plan.add_argument(
        "--use-distributed-optimizer", dest="zero", action="store_const", const=1, help="the same as --zero 1"
    )
    plan.add_argument(
        "--shards", help="ranks to shard over, with replicas of these (HSDP); with --zero 3", **NUMBER
    )
    plan.add_argument(
        "--sequence-parallel",
        action=argparse.BooleanOptionalAction,
        help="whether tp also cuts norms and residuals (default: the software's)",
    )


def add_recomputation(plan: Group) -> None:
    plan.add_argument(
        "--recompute",
        "--recompute-granularity",
        choices=RECOMPUTE,
        help="how much is computed again (default none)",
    )
    plan.add_argument(
        "--recompute-layers",
        "--recompute-num-layers",
        help="layers of each stage, with --recompute full (default: all)",
        **NUMBER,
    )
    plan.add_argument("--recompute-method", choices=("block", "uniform"), help=argparse.SUPPRESS)
    plan.add_argument(
        "--recompute-modules",
        nargs="+",
        metavar="NAME",
        help=f"what, with --recompute selective: some of {', '.join(MODULES)}",
    )
    plan.add_argument(
        "--recompute-activations",
        dest="recompute",
        action="store_const",
        const="selective",
        help="--recompute selective",
    )
