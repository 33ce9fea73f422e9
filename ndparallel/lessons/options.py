"""The options that every lesson and `compare` share, and what they mean."""

import argparse
from argparse import SUPPRESS
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gpu import Hardware
from ndparallel.base.errors import UserError
from ndparallel.base.options import spelled
from ndparallel.engines.launch import ENGINES
from ndparallel.engines.world import default_engine
from ndparallel.hardware.disturbances import add_disturbance_options, disturbances_from
from ndparallel.hardware.pocket import IDEALIZED
from ndparallel.model.data import tokens_for
from ndparallel.model.optimizer import OPTIMIZERS
from ndparallel.model.units import ModelConfig
from ndparallel.training.job import DTYPES, MODEL_SIZES, Job

LONG_SEQUENCE = 4096  # tokens, as of `ndparallel plan`
TIMELINES = ("auto", "all", "none")


def add_common_options(parser: argparse.ArgumentParser, gpus: int | None) -> None:
    """Add the options; `gpus` is the default, None where each strategy comes with its own.
    Where it is 1 there is no other, and --help leaves it out."""
    add_cluster_options(parser, gpus)
    add_model_options(parser)
    add_batch_options(parser)
    add_precision_options(parser)
    add_optimizer_options(parser)
    parser.add_argument(
        "--strategy",
        action="append",
        default=[],
        metavar="NAME",
        help="only this one; may be given several times",
    )
    parser.add_argument(
        "--contention",
        action="store_true",
        help="replay every run with ports that its messages share, and say what that adds to the step",
    )
    add_disturbance_options(parser)
    add_run_options(parser)


def add_cluster_options(parser: argparse.ArgumentParser, gpus: int | None) -> None:
    option = parser.add_argument_group("the GPUs").add_argument
    option(
        "--gpus",
        type=int,
        default=gpus,
        metavar="N",
        help=SUPPRESS if gpus == 1 else f"how many GPUs (default {gpus or 'what each lesson takes'})",
    )
    option(
        "--gpus-per-node",
        type=int,
        metavar="N",
        help="how many of them share a node (default: the hardware's)",
    )
    option(
        "--hardware",
        default="pocket",
        metavar="NAME|FILE",
        help="a preset, or a JSON or TOML file (default pocket)",
    )


def add_model_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the model")
    option, model = group.add_argument, group.add_mutually_exclusive_group()
    model.add_argument(
        "--model-size", default="default", choices=MODEL_SIZES, help="large does not fit on one pocket GPU"
    )
    model.add_argument(
        "--model", metavar="NAME|FILE", help="a model that `ndparallel plan` takes; with --sizes-only"
    )
    option(
        "--sequence",
        type=int,
        metavar="N",
        help=f"tokens in a sequence (default {ModelConfig.sequence}, with --model {LONG_SEQUENCE})",
    )
    option(
        "--sizes-only",
        action="store_true",
        help="arrays have no content: all messages, clocks and memory, and no numbers",
    )
    option("--tied", action="store_true", help="embedding and head share one table, as in GPT-2")


def add_batch_options(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument_group("the batch, and how often").add_argument
    option(
        "--batch",
        type=int,
        default=Job.batch,
        metavar="N",
        help=f"sequences a step, over all GPUs (default {Job.batch})",
    )
    option("--microbatches", type=int, metavar="M", help="parts in which a GPU takes its share of the batch")
    option(
        "--steps",
        type=int,
        default=1,
        metavar="N",
        help="training steps; times are per step, the loss is the last one's (default 1)",
    )
    option("--seed", type=int, default=0, metavar="N", help="the seed of weights and batches (default 0)")
    option(
        "--text",
        metavar="FILE",
        help="train on this file's bytes (default: a text that comes with the package)",
    )


def add_precision_options(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument_group("the numbers").add_argument
    option(
        "--dtype",
        default="float32",
        type=spelled({"fp32": "float32", "fp64": "float64", "bf16": "bfloat16"}),
        choices=DTYPES,
        help="the type of weights and activations (default float32); bfloat16 keeps float32 masters of the "
        "weights, and sums gradients in float32, as Megatron-Core does",
    )
    option(
        "--grad-reduce-in-bf16",
        action="store_true",
        help="keep and sum gradients in bfloat16 too, with --dtype bfloat16 (Megatron-Core's name)",
    )


def add_optimizer_options(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument_group("the optimizer").add_argument
    option(
        "--optimizer",
        default=Job.optimizer,
        choices=OPTIMIZERS,
        help="adamw, or sgd, which remembers nothing (default adamw)",
    )
    option(
        "--clip-grad-norm",
        type=float,
        metavar="NORM",
        help="scale all gradients down together to this global norm; all GPUs wait for it (as torch's "
        "clip_grad_norm_; Megatron's --clip-grad adds up in one all-reduce, and not axis by axis)",
    )


def add_run_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the run, and what is shown of it")
    option = group.add_argument
    option(
        "--engine",
        choices=ENGINES,
        help="what runs the GPUs (default: under mpirun mpi, else processes on Linux and inline elsewhere)",
    )
    option(
        "--timeline",
        default="auto",
        choices=TIMELINES,
        help="timelines to draw: of the two strategies that show most, of all, or none (default auto)",
    )
    option("--memory", action="store_true", help="add the table of memory by kind")
    option("--wide", action="store_true", help="add efficiency, compute, hidden and loss to the table")
    option("--kernels", action="store_true", help="tell every operation and message, with --narrate")
    option("--svg", metavar="FILE", help="draw the timelines into an SVG")
    option("--trace", metavar="FILE", help="write the same strategies as a Chrome trace, one below the other")
    printed = group.add_mutually_exclusive_group()
    printed.add_argument(
        "--narrate",
        type=int,
        nargs="?",
        const=0,
        metavar="RANK",
        help="tell the last of them as one GPU lived it (default: GPU 0), unit by unit",
    )
    printed.add_argument("--json", action="store_true", help="print JSON and nothing else")


def job_from(arguments: argparse.Namespace, defaults: Mapping[str, Any] | None = None, gpus: int = 1) -> Job:
    """Return the job that the options describe, on one of the `gpus` that will share it; `defaults` fill in
    what they leave open. Raises UserError for impossible sizes."""
    if arguments.seed < 0:
        raise UserError(f"--seed is {arguments.seed}; it must be 0 or more.")
    given = {
        key: value
        for key, value in vars(arguments).items()
        if key in Job.__dataclass_fields__ and value is not None
    }
    usual = dict(defaults or {})
    if "microbatches" in usual:
        usual["microbatches"] = most_parts(arguments.batch, usual["microbatches"], gpus)
    job = Job(**(usual | given | {"model": model_from(arguments)}))
    if not job.sizes_only:
        tokens_for(job.text, job.model.sequence, job.batch)  # before anything is built for a longer sequence
    return job


def model_from(arguments: argparse.Namespace) -> ModelConfig:
    """Return the lessons' model of the size that the options name, or with the sizes of a real one."""
    if arguments.sequence is not None and arguments.sequence < 1:
        raise UserError(f"a sequence of {arguments.sequence} tokens cannot be; choose 1 or more.")
    if arguments.model is None:
        model = MODEL_SIZES[arguments.model_size]
        return model.replace(sequence=arguments.sequence or model.sequence, tied=arguments.tied)
    # only where a real model is asked for
    from ndparallel.planner.lesson_runs.model import config_of_shape
    from ndparallel.planner.models.presets import find_model

    shape = find_model(arguments.model)
    if not arguments.sizes_only:
        raise UserError(f"--model {arguments.model} is run without its numbers: add --sizes-only.")
    config = config_of_shape(shape, arguments.sequence or LONG_SEQUENCE)
    return config.replace(tied=config.tied or arguments.tied)


def engine_from(arguments: argparse.Namespace) -> str:
    """Return the engine that is asked for, or the usual one. Raises UserError where sizes alone are to be run
    in several processes."""
    if arguments.sizes_only and arguments.engine not in (None, "inline"):
        raise UserError(f"--sizes-only runs all GPUs in one process: leave --engine {arguments.engine} out.")
    return arguments.engine or ("inline" if arguments.sizes_only else default_engine())


def most_parts(batch: int, most: int, ranks: int) -> int:
    """Return the largest number of equal parts, up to `most`, that a batch can be cut into; if possible,
    whole rounds of `ranks`, with which interleaved schedules keep least."""
    numbers = [parts for parts in range(most, 0, -1) if batch % parts == 0]
    return next((parts for parts in numbers if parts % max(ranks, 1) == 0), numbers[0])


def named_hardware(name_or_path: str) -> Hardware:
    """Return what find_hardware finds, and read its data sheets only for what is not idealized."""
    if name_or_path.lower() in IDEALIZED:
        return IDEALIZED[name_or_path.lower()]
    from ndparallel.hardware.accelerator import find_hardware

    return find_hardware(name_or_path)


def hardware_from(arguments: argparse.Namespace) -> Hardware:
    """Return the hardware that the options name, with nodes of the size they ask for."""
    hardware = named_hardware(arguments.hardware)
    if arguments.gpus is not None and arguments.gpus < 1:
        raise UserError(f"{arguments.gpus} GPUs cannot train anything; choose 1 or more.")
    if arguments.gpus_per_node is None:
        return hardware
    if arguments.gpus_per_node < 1:
        raise UserError(f"a node of {arguments.gpus_per_node} GPUs does not exist; choose 1 or more.")
    return replace(hardware, gpus_per_node=arguments.gpus_per_node)


def disturbed_hardware_from(arguments: argparse.Namespace) -> Hardware:
    """Return the same hardware with the disturbances of --slow-gpu, --slow-link and --jitter."""
    return replace(hardware_from(arguments), disturbances=disturbances_from(arguments))
