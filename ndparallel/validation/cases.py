"""Measured training runs that others published, read as jobs and plans.

Idea   A file lists runs in one format, each with its source. What a run does not state is filled by a rule,
       the same for all.
Limit  What the format cannot say: ranks that differ. What cannot be expressed says why. A run has a note on
       keys and words that nobody reads (fields.py).

The rules for what is not stated
    GPU                   by its name (hardware/presets.toml); an unknown one by its data
                          sheet, else as the preset whose peak is nearest
    framework             words/frameworks.py; an unknown one is Megatron-Core, or PyTorch where it shards
                          weights, with a wider error bar
    attention             the software's; fused or not where the run says so
    model                 the preset of its name; else as GPT where the MLP has no gate, as Llama where it has
    vocabulary            32,000, SentencePiece's usual size
    what tp does not cut  heads, MLP and vocabulary are padded; Megatron's vocabulary to 128 for each tp rank
    dp                    what the GPUs leave
    GPUs                  the product of the degrees, with a note: a run on more would be another one
    sequence parallelism  used with tensor parallelism by Megatron-Core, NeMo and torchtitan; a number above 1
                          without tensor parallelism is Ulysses': context parallelism by heads
    context parallelism   what `cp_comm_type` says (p2p, all_gather, a2a), else the software's own; a ring
                          where the ranks cannot share the heads
    ZeRO                  3 where the framework is one that shards weights, else 0; 2 in a pipeline is 1, for
                          gradients are reduced with the last microbatch (backward_maybe_with_nosync in
                          torch/distributed/pipelining/stage.py), but for Megatron-FSDP's
    experts               whole, on ep ranks; in Megatron-Core with plain all-to-alls cut by tp besides, where
                          no etp is stated; with ep=1, or where etp says so, taken as spread over tp too
    dispatcher            what the software's `dispatcher` says (alltoall, allgather, deepep,
                          hybridep); its release's where nothing is known
    microbatch            what the stated number of microbatches leaves; in torchtitan's pipelines one
                          sequence, until 2024 what as many microbatches as ranks leave; else of 1, 2, 4 and 8
                          sequences the quickest that fits
    layers of a stage     split evenly, or `stage_layers`, a number for every stage
    chunks                the schedule's own; where it is interleaved, two in torchtitan
                          (torchtitan/distributed/pipeline_parallel.py), and else one layer to a chunk
    recompute             none, or of the fewest layers with which it fits, so too where fms-fsdp's is
                          selective; a number of layers is a stage's;
                          modules that are not known here cost nothing; offloading is free
    pipeline              DeepSpeed's engine in Megatron-DeepSpeed and GPT-NeoX
    schedule              1F1B, interleaved with several chunks; with fewer microbatches than pipeline
                          ranks, looped breadth-first
    CUDA graphs           what the software's `cuda_graphs` says (false, "router", "step"), or what the
                          recipes of a release of Megatron-Bridge capture; none of others
    async TP, fused loss  what the software's `async_tp` and `fused_loss` say, or the run's note; no
    gradients             in 16 bits in Megatron-Bridge's performance recipes, NeMo's in fp8, and where the
                          benchmark's own recipe says so (recipes.py)
    precision             16 bits. fp8 where it is named, with delayed scaling where nobody says otherwise
                          (of Megatron-Bridge and torchtitan scaled by the tensor itself). TF32, fp32: the
                          same bytes as 16 bits on a machine whose memory and links are half as large and
                          fast, at that type's peak
    fp8_param_gather      NeMo's and Megatron-Bridge's, but for blocks and nvfp4
    weights in 16 bits    where the precision says "pure", or on PyTorch, but for mixed precision under FSDP 1
    head width            hidden / heads; 128 in a mixture of experts
    model FLOPs           6 for each parameter but the embedding's and 6 * layers * hidden * sequence (causal)
                          for each token
    offload               nothing, or of `offload` ("activations", "optimizer", "weights" of DeepSpeed's
                          ZeRO-3, or of FSDP2, which has the optimizer there, too; or a list of them); of
                          activations `offload_share`, or all
    seconds               of a step, or from tokens/s, samples/s, TFLOP/s or MFU, the first of them that is
                          stated
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ndparallel.base.errors import UserError
from ndparallel.base.files import read_json
from ndparallel.base.quoting import brief
from ndparallel.hardware.accelerator import Accelerator
from ndparallel.planner.job import OFFLOADS, WEIGHTS_LEAVE, Plan, TrainingJob
from ndparallel.planner.legality import violations
from ndparallel.planner.models.shape import ModelShape
from ndparallel.planner.models.sizes import checked_size
from ndparallel.planner.stack import Stack
from ndparallel.validation.fields import unread
from ndparallel.validation.hardware import hardware_of, number_in
from ndparallel.validation.measured import measured_bytes, measured_seconds
from ndparallel.validation.microbatch import least_recomputation, states_microbatch, usual_microbatch
from ndparallel.validation.model import shape_of
from ndparallel.validation.plan import degrees_of, global_batch, in_groups, plan_of, sharing_sequences
from ndparallel.validation.precision import SINGLE_BITS, half_of, in_four_bytes
from ndparallel.validation.software import capacity_of, framework_of, stack_of
from ndparallel.validation.words.frameworks import stack_of_framework
from ndparallel.validation.words.number_types import number_of_bits, number_type_of
from ndparallel.validation.words.recomputation import states_recomputation
from ndparallel.validation.words.software import not_known

MOST_BYTES = 16e6  # of a file of runs
TABLES = ("hardware", "model", "batch", "software", "parallel", "measured")
MAY_LACK = TABLES[3:]
BOOLEANS = {"yes": True, "true": True, "no": False, "false": False}
PRICED = (  # rules that are broken by what was run all the same: an uneven cut is priced as the even one
    "experts not divisible by tp",
    "sequence not divisible by tp",
    "sequence not divisible by 2 cp",
    "tp cannot share the KV heads",
)


@dataclass(frozen=True)
class Case:
    """One measured run. `measured_seconds` are of a step, or of one layer's passes (`part`); memory is in
    bytes; None where nothing was measured. `widened` is the ratio of the run's bytes to the priced ones: 2
    for TF32 and float32. `notes` are sentences on what the run states and nobody here knows, `software` a
    framework that the job's stack only stands for."""

    name: str
    job: TrainingJob
    plan: Plan
    measured_seconds: float | None
    measured_bytes: float | None
    part: str = "step"
    source: str = ""
    widened: int = 1
    notes: tuple[str, ...] = ()
    software: str = ""

    @property
    def one_layer(self) -> bool:
        return self.part != "step"


def read_cases(path: Path | None = None) -> list[dict[str, Any]]:
    """Read the runs of a file, by default of the project's own collection."""
    file = path or Path(__file__).with_name("measured_runs.json")
    cases = read_json(file, MOST_BYTES)
    if not isinstance(cases, list) or not all(isinstance(case, dict) for case in cases):
        example = "ndparallel/validation/measured_runs.json"
        raise UserError(
            f"{file} must hold a list of runs, each a table of keys and values, as {example} does."
        )
    return cases


def express(run: Mapping[str, Any]) -> Case:
    """Turn one run into a Case. Raises UserError with the reason where that is impossible."""
    run = with_tables(run)
    degrees, hardware, stack = degrees_of(run), hardware_of(run["hardware"]), stack_of(run)
    shape, framework = shape_of(run, degrees["tp"], stack), framework_of(run)
    stated = plan_of(run, degrees, shape, stack, hardware.gpus_per_node)
    job = job_of(run, shape, hardware, sharing_sequences(stack, run["parallel"], shape, degrees), stated)
    plan = completed(stated, job, run)
    refuse_impossible(job, plan)
    seconds, part = measured_seconds(run["measured"], job, plan)
    bits, source = number_of_bits(run.get("precision")), str(run.get("source") or "")
    wide = bits >= SINGLE_BITS
    return Case(
        str(run.get("id", "?")),
        in_four_bytes(job, "tf32" if bits == SINGLE_BITS else "fp32") if wide else job,
        plan,
        measured_seconds=seconds,
        measured_bytes=measured_bytes(run["measured"], source),
        part=part,
        source=source,
        widened=2 if wide else 1,
        notes=(*unread(run), *no_gpus(run, plan), *no_experts(run, shape), *not_known(run["software"])),
        software="" if stack_of_framework(framework) else brief(framework),
    )


def no_gpus(run: Mapping[str, Any], plan: Plan) -> list[str]:
    return [f"it does not give its gpus: they count as {plan.gpus:g}."] * (not run.get("gpus"))


def no_experts(run: Mapping[str, Any], shape: ModelShape) -> list[str]:
    stated = number_in(run["parallel"].get("ep"))
    return [f"its ep is {stated:g}, and its model has no experts: it counts as 1."] * (
        stated > 1 and not shape.experts
    )


def job_of(
    run: Mapping[str, Any], shape: ModelShape, hardware: Accelerator, stack: Stack, plan: Plan
) -> TrainingJob:
    precision, framework = run.get("precision"), framework_of(run)
    return TrainingJob(
        shape,
        hardware,
        stack,
        run["batch"]["sequence"],
        global_batch(run["batch"], plan),
        half_of(precision, stack, plan, framework),
        number_type_of(precision, framework),
        capacity_factor=capacity_of(run) if shape.experts else None,
        **offloads_of(run, stack, plan),
    )


def completed(plan: Plan, job: TrainingJob, run: Mapping[str, Any]) -> Plan:
    """The plan with what the run does not state: its microbatch, and what is computed again."""
    if number_in(run["batch"].get("global")) and not states_microbatch(run["batch"]):
        plan = usual_microbatch(job, plan, framework_of(run))
    return in_groups(job, plan if states_recomputation(run) else least_recomputation(job, plan))


def with_tables(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return the run with all its tables, and its numbers as numbers. Software, parallelism and
    measurements may be missing."""
    run = {**dict.fromkeys(TABLES), **tidy(run)}
    run["software"] = {"framework": run["software"]} if isinstance(run["software"], str) else run["software"]
    for table in TABLES:
        run[table] = {} if run[table] is None and table in MAY_LACK else run[table]
        if not isinstance(run[table], dict):
            raise UserError(f"the run does not give its {table}, a table of keys and values.")
    for what, value in (("gpus", run.get("gpus") or 1), ("sequence", run["batch"].get("sequence"))):
        if value is None:
            raise UserError("the run does not give the sequence length of its batch.")
        checked_size(value, what)
    return run


def tidy(value: Any) -> Any:
    """Turn numbers, yes, no, true and false written as words into what they say; infinite values and NaN
    count as not stated."""
    if isinstance(value, Mapping):
        return {key: tidy(each) for key, each in value.items()}
    if isinstance(value, list):
        return [tidy(each) for each in value]
    if isinstance(value, str) and re.fullmatch(r" *\d+(\.\d*)? *", value):
        return tidy(float(value))
    if isinstance(value, str):
        return BOOLEANS.get(value.strip().lower(), value)
    if isinstance(value, float):
        return None if not math.isfinite(value) else int(value) if value == int(value) else value
    return value


def offloads_of(run: Mapping[str, Any], stack: Stack, plan: Plan) -> dict[str, Any]:
    """Return what is kept on the host, and which share of the activations."""
    named = str(run.get("offload") or "")
    words = {word for word in OFFLOADS if word in named}
    if plan.zero < 3 or stack.sharding not in WEIGHTS_LEAVE:
        words -= {"weights"}
    elif stack.offloads_together and "weights" in words:
        words |= {"optimizer"}
    share = min(1.0, number_in(run.get("offload_share")) or 1.0)
    return {"offload": tuple(word for word in OFFLOADS if word in words), "offload_share": share}


def refuse_impossible(job: TrainingJob, plan: Plan) -> None:
    """Raise UserError for the first violated rule without which the plan cannot be priced."""
    for reason in violations(job, plan):
        if reason.rule not in PRICED:
            raise UserError(reason.sentence)
