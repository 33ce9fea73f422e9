"""The options of what is trained, how it is kept, and what runs again instead: what makes a model fit.

Idea   None of them is a part of the plan: they change what the optimizer does, or how precisely.
"""

import argparse
import re
from collections.abc import Collection
from typing import Any

from ndparallel.base.errors import UserError, check_known, unknown
from ndparallel.hardware.accelerator import host_bandwidth
from ndparallel.planner.adapters import NF4_BITS, TARGETS, Adapters, adapted_names
from ndparallel.planner.job import MOMENTS, OFFLOADS, TrainingJob
from ndparallel.planner.models.shape import ModelShape
from ndparallel.planner.models.sizes import checked_size
from ndparallel.planner.stack import MODULES, Stack, ordered_modules

PARAMETERS = re.compile(r"\bparam(?:eter)?s?\b")  # as DeepSpeed says to weights

STATE_DEFAULTS: dict[str, Any] = {
    "half": False,
    "moments": "fp32",
    "offload": None,
    "offload_share": 1.0,
    "lora": None,
    "qlora": None,
    "lora_on": None,
}


def add_state_options(parser: argparse.ArgumentParser) -> None:
    """Add what is trained and how it is kept: what makes a model fit."""
    states = parser.add_argument_group("what is trained, and kept", argument_default=argparse.SUPPRESS)
    states.add_argument(
        "--half",
        action="store_true",
        help="weights, gradients and optimizer in 16 bits, without a copy in 32",
    )
    states.add_argument(
        "--moments", choices=MOMENTS, help="the optimizer's moments (default fp32; 8bit: bitsandbytes')"
    )
    states.add_argument(
        "--offload", metavar="LIST", help=f"what is kept on the host, of {','.join(OFFLOADS)} (default: none)"
    )
    states.add_argument(
        "--offload-share",
        type=float,
        metavar="SHARE",
        help="the share of each layer's activations that is kept there (default: 1)",
    )
    states.add_argument(
        "--lora", type=int, metavar="RANK", help="train adapters of this rank, beside a frozen model"
    )
    states.add_argument("--qlora", type=int, metavar="RANK", help="the same, beside a model kept in 4 bits")
    states.add_argument("--lora-on", metavar="LIST", help=f"matrices, of {', '.join(TARGETS)} (default: all)")


def states_from(arguments: argparse.Namespace, job: TrainingJob) -> dict[str, Any]:
    """What is trained, and how it is kept. Raises UserError for what no job can have."""
    states = {
        "half": arguments.half,
        "moments": arguments.moments,
        "offload": words_from("offload", PARAMETERS.sub("weights", arguments.offload or ""), OFFLOADS),
        "offload_share": arguments.offload_share,
        "adapters": on_model(adapters_from(arguments), job.shape),
    }
    if states["offload_share"] < 1 and "activations" not in states["offload"]:
        raise UserError("--offload-share is of activations: add --offload activations.")
    if job.stack.executed and any(states[name] for name in ("half", "offload", "adapters")):
        raise UserError(f"software {job.stack.name} keeps all of a model on the GPU, and trains all of it.")
    if states["offload"]:
        host_bandwidth(job.hardware)
    return states


def on_model(adapters: Adapters | None, shape: ModelShape) -> Adapters | None:
    """Return the adapters. Raises UserError for a matrix that the model does not have."""
    for matrix in adapters.matrices if adapters else ():
        check_known(f"matrix of {shape.name} for --lora-on:", matrix, adapted_names(shape))
    return adapters


def adapters_from(arguments: argparse.Namespace) -> Adapters | None:
    if None not in (arguments.lora, arguments.qlora):
        raise UserError("--lora and --qlora are two ways to train adapters: choose one.")
    rank = arguments.lora if arguments.qlora is None else arguments.qlora
    matrices = words_from("lora-on", arguments.lora_on, TARGETS)
    if rank is None:
        if matrices:
            raise UserError("--lora-on names matrices of adapters: add their rank, as --lora 16.")
        return None
    checked_size(rank, "the adapters' rank")
    return Adapters(rank, matrices, 16 if arguments.qlora is None else NF4_BITS)


def words_from(option: str, words: str | None, choices: Collection[str]) -> tuple[str, ...]:
    """A list of words, in the order of the choices. Raises UserError for one that is none of them."""
    wanted = {word.strip() for word in (words or "").split(",")} - {"none", ""}
    for word in sorted(wanted.difference(choices)):
        raise unknown(f"--{option}:", word, choices)
    return tuple(choice for choice in choices if choice in wanted)


def recomputed_modules(arguments: argparse.Namespace, stack: Stack) -> tuple[str, ...]:
    """Return the modules, each once; none where the software runs just these again. Raises UserError for what
    is none, or where nothing is recomputed selectively."""
    for module in arguments.recompute_modules:
        check_known("--recompute-modules:", module, MODULES)
    if arguments.recompute_modules and arguments.recompute != "selective":
        raise UserError("--recompute-modules names what --recompute selective runs again: add that.")
    modules = ordered_modules(arguments.recompute_modules)
    return modules if modules != stack.selective else ()


def recomputed_layers(arguments: argparse.Namespace) -> int:
    """Layers of each stage that run again, 0 for all. Raises UserError where that means nothing."""
    layers = arguments.recompute_layers
    if layers and arguments.recompute != "full":
        raise UserError("--recompute-layers says how many layers --recompute full runs again: add that.")
    if layers < 0:
        raise UserError(f"--recompute-layers is {layers}; give 0 for all layers of a stage, or how many.")
    if arguments.recompute_method == "uniform" and layers > 1:
        raise UserError(
            "--recompute-method uniform keeps the input of every layer here: choose --recompute-num-layers 1."
        )
    return 0 if arguments.recompute_method == "uniform" else layers
