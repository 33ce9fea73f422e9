"""Measured training runs that others published, read as jobs and plans.

Idea   A file lists runs in one format, each with its source. What a run does not state is filled by a rule,
       the same for all.
Limit  What the format cannot say: ranks that differ. What cannot be expressed says why.

The rules for what is not stated
    GPU                   by its name (hardware/presets.toml); an unknown one by its data
                          sheet, else as the preset whose peak is nearest
    framework             words.py; an unknown one is Megatron-Core, or PyTorch where it shards weights,
                          with a wider error bar
    attention             the software's; fused or not where the run says so
    model                 the preset of its name; else as GPT where the MLP has no gate, as Llama where it has
    vocabulary            32,000, SentencePiece's usual size
    what tp does not cut  heads, MLP and vocabulary are padded; Megatron's vocabulary to 128 for each tp rank
    dp                    what the GPUs leave
    sequence parallelism  used with tensor parallelism by Megatron-Core, NeMo and torchtitan; a number above 1
                          without tensor parallelism is Ulysses', and taken as context parallelism
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
    offload               nothing, or of `offload` ("activations", "optimizer", or a list of both); of
                          activations `offload_share`, or all
    seconds               of a step, or from tokens/s, samples/s, TFLOP/s or MFU, the first of them that is
                          stated
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ndparallel.base.errors import UserError
from ndparallel.base.files import read_json
from ndparallel.base.quoting import brief
from ndparallel.pipeline.catalog import RECIPES, default_schedule
from ndparallel.planner.dispatchers import DISPATCHERS
from ndparallel.planner.job import OFFLOADS, Plan, TrainingJob
from ndparallel.planner.legality import violations
from ndparallel.planner.models.shape import ModelShape
from ndparallel.planner.models.sizes import checked_size
from ndparallel.planner.software import STACKS
from ndparallel.planner.stack import Stack
from ndparallel.validation.hardware import hardware_of, number_in, numbers_in
from ndparallel.validation.measured import measured_bytes, measured_seconds
from ndparallel.validation.microbatch import least_recomputation, states_microbatch, usual_microbatch
from ndparallel.validation.model import shape_of
from ndparallel.validation.precision import SINGLE_BITS, half_of, in_four_bytes
from ndparallel.validation.recipes import ReleaseSwitches, recipe_of
from ndparallel.validation.words import (
    DEEPSPEEDS_PIPELINE,
    STATED,
    attention_kernel,
    cuts_experts,
    drops_tokens,
    gradient_bytes,
    habits_of,
    modules_of,
    not_known,
    number_of_bits,
    number_type_of,
    read_software,
    recompute_of,
    schedule_named,
    shards_of,
    stack_name,
    stack_of_framework,
    states_recomputation,
    stops_late,
    year_in,
    zero_stage,
)

AXES = ("tp", "pp", "dp", "ep", "cp")
TWO_CHUNKS = "titan"  # frameworks that cut a pipeline rank in two where nobody says otherwise
MOST_BYTES = 16e6  # of a file of runs
TABLES = ("hardware", "model", "batch", "software", "parallel", "measured")
MAY_LACK = TABLES[3:]
BOOLEANS = {"yes": True, "true": True, "no": False, "false": False}
PRICED = (  # rules that are broken by what was run all the same: an uneven cut is priced as the even one
    "dp not divisible by ep",
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
    degrees, hardware = degrees_of(run), hardware_of(run["hardware"])
    stack, bits = stack_of(run), number_of_bits(run.get("precision"))
    shape = shape_of(run, degrees["tp"], stack)
    plan = plan_of(run, degrees, shape, stack, hardware.gpus_per_node)
    batch = global_batch(run["batch"], plan)
    framework = str(run["software"].get("framework")).lower()
    half = half_of(run.get("precision"), stack, plan, framework)
    dtype = number_type_of(run.get("precision"), framework)
    job = TrainingJob(
        shape,
        hardware,
        stack,
        run["batch"]["sequence"],
        batch,
        half,
        dtype,
        capacity_factor=capacity_of(run) if shape.experts else None,
        **offloads_of(run),
    )
    if number_in(run["batch"].get("global")) and not states_microbatch(run["batch"]):
        plan = usual_microbatch(job, plan, framework)
    plan = in_groups(job, plan if states_recomputation(run) else least_recomputation(job, plan))
    refuse_impossible(job, plan)
    seconds, part = measured_seconds(run["measured"], job, plan)
    job = in_four_bytes(job, "tf32" if bits == SINGLE_BITS else "fp32") if bits >= SINGLE_BITS else job
    source, widened = str(run.get("source") or ""), 1 + (bits >= SINGLE_BITS)
    held = measured_bytes(run["measured"], source)
    notes, unknown = not_known(run["software"]), "" if stack_of_framework(framework) else brief(framework)
    return Case(str(run.get("id", "?")), job, plan, seconds, held, part, source, widened, notes, unknown)


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


def offloads_of(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is kept on the host, and which share of the activations."""
    named = str(run.get("offload") or "")
    words = tuple(word for word in OFFLOADS if word in named)
    share = min(1.0, number_in(run.get("offload_share")) or 1.0)
    return {"offload": words, "offload_share": share}


def refuse_impossible(job: TrainingJob, plan: Plan) -> None:
    """Raise UserError for the first violated rule without which the plan cannot be priced."""
    for reason in violations(job, plan):
        if reason.rule not in PRICED:
            raise UserError(reason.sentence)


# --------------------------------------------------------------------------------------------------- software


def stack_of(run: Mapping[str, Any]) -> Stack:
    """Return the software stack that stands for the run's, with its attention kernel and recomputation."""
    software, words = read_software(run["software"]), str(run["software"].get("framework") or "").lower()
    flash, compiled = software.get("flash_attention"), "compile" in words or software.get("compiled")
    name = stack_name(words, flash, zero_stage(run["parallel"].get("zero"), words) == 3)
    stack = STACKS[f"{name}-compiled" if compiled and f"{name}-compiled" in STACKS else name]
    stack = replace(stack, **switches_of(run, software))
    parallel, once = run["parallel"], DISPATCHERS[stack.dispatcher].once
    return replace(
        stack,
        attention=attention_kernel(stack.attention, flash, year_in(words)),
        selective=modules_of(recomputed(run)) or stack.selective,
        expert_tp=stack.expert_tp
        or (not once and cuts_experts(parallel.get("etp"), words, *tp_and_ep(parallel))),
        gradient_bytes=gradient_bytes(stack.gradient_bytes, words, number_of_bits(run.get("precision"))),
        pp_in_turn=stack.pp_in_turn or bool(re.search(DEEPSPEEDS_PIPELINE, words)),
        early_stop=stack.early_stop and not stops_late(name, run.get("precision")),
        **habits_of(software, run.get("note"), recipe_for(run).habits),
    )


def switches_of(run: Mapping[str, Any], software: Mapping[str, Any]) -> dict[str, Any]:
    """Return the stack's switches: as stated, else as in the recipe of the run's release."""
    stated = {ours: software[key] for key, ours in STATED.items() if software.get(key) is not None}
    return {**recipe_for(run).switches, **stated}


def recipe_for(run: Mapping[str, Any]) -> ReleaseSwitches:
    framework, model = str(run["software"].get("framework") or ""), str(run["model"].get("name") or "")
    dtype, gpu = number_type_of(run.get("precision"), framework.lower()), str(run["hardware"].get("gpu"))
    return recipe_of(framework, str(run.get("source") or ""), model, gpu, dtype)


def recomputed(run: Mapping[str, Any]) -> Any:
    """Return what is stated of recomputation, or what the recipe of the run's release computes again."""
    return run["recompute"] if states_recomputation(run) else recipe_for(run).recompute or None


def capacity_of(run: Mapping[str, Any]) -> float | None:
    """Return the capacity factor of a mixture that drops tokens, by the run, its note or its recipe."""
    stated = run["software"].get("capacity_factor")
    return drops_tokens(recipe_for(run).capacity_factor if stated is None else stated, run.get("note"))


def tp_and_ep(parallel: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple(int(number_in(parallel.get(axis))) or 1 for axis in ("tp", "ep"))


# --------------------------------------------------------------------------------------------------- the plan


def degrees_of(run: Mapping[str, Any]) -> dict[str, int]:
    """Return all degrees of parallelism; dp follows from the number of GPUs. Raises UserError where it is
    no whole number."""
    parallel, gpus = run["parallel"], run.get("gpus")
    degrees = {axis: int(number_in(parallel.get(axis))) or 1 for axis in AXES}
    ulysses = parallel.get("sp")
    if not isinstance(ulysses, bool) and number_in(ulysses) > 1 and degrees["tp"] == 1:
        degrees["cp"] *= int(number_in(ulysses))
    others = degrees["tp"] * degrees["pp"] * degrees["cp"]
    if gpus and gpus % others:
        raise UserError(
            f"tp*pp*cp = {others} does not divide the run's {gpus} GPUs: dp would be no whole number."
        )
    return degrees | ({"dp": gpus // others} if gpus else {})


def plan_of(
    run: Mapping[str, Any], degrees: dict[str, int], shape: ModelShape, stack: Stack, gpus_per_node: int
) -> Plan:
    parallel, framework = run["parallel"], str(run["software"].get("framework")).lower()
    zero = zero_stage(parallel.get("zero"), framework)
    if zero == 2 and degrees["pp"] > 1 and not re.search(r"megatron[- _]?fsdp", framework):
        zero = 1
    schedule, chunks = schedule_of(run, degrees["pp"], shape.layers)
    stated = parallel.get("sp")
    recompute, layers = recompute_of(recomputed(run), -(-shape.layers // (degrees["pp"] * chunks)))
    shards = shards_of(parallel, gpus_per_node)
    spread: dict[str, Any] = {"ep": spread_of_experts(parallel, degrees, shape)}
    return Plan(
        **degrees | spread,
        chunks=chunks,
        micro_batch=micro_batch(run["batch"], degrees["dp"]),
        zero=zero,
        shards=shards if zero == 3 and 1 < shards < degrees["dp"] * degrees["cp"] else 0,
        sequence_parallel=bool(stack.sequence_parallel if stated is None else stated) and degrees["tp"] > 1,
        recompute=recompute,
        recompute_layers=layers,
        schedule=schedule,
        stage_layers=numbers_in(parallel.get("stage_layers")),
    )


def spread_of_experts(parallel: Mapping[str, Any], degrees: Mapping[str, int], shape: ModelShape) -> int:
    """Return how many ranks the experts are spread over. Experts cut by tp take as many bytes on each rank
    as experts spread over tp."""
    if not shape.experts:
        return 1
    cut = int(number_in(parallel.get("etp"))) or (degrees["tp"] if degrees["ep"] == 1 else 1)
    spread = degrees["ep"] * cut
    return spread if shape.experts.experts % spread == 0 else degrees["ep"]


def schedule_of(run: Mapping[str, Any], pp: int, layers: int) -> tuple[str, int]:
    """Return our name of the schedule, and the chunks of a pipeline rank."""
    stated = schedule_named(run["parallel"].get("schedule"))
    chunks = int(number_in(run["parallel"].get("vp")))
    if pp == 1:
        return default_schedule(1), 1
    name = default_schedule(chunks) if stated in (None, default_schedule(1)) else stated
    if only := RECIPES[name].chunks:
        return name, only
    if chunks <= 1 and re.search(TWO_CHUNKS, str(run["software"].get("framework")).lower()):
        return name, 2
    return (name, chunks) if chunks > 1 else several_chunks(name, pp, layers)


def several_chunks(name: str, pp: int, layers: int) -> tuple[str, int]:
    """Return one layer a chunk, embedding and head counted; if that makes one chunk, there is nothing to
    interleave."""
    chunks = (layers + 2) // pp
    return (name, chunks) if chunks > 1 else (default_schedule(1), 1)


def in_groups(job: TrainingJob, plan: Plan) -> Plan:
    """Return the interleaved schedule from pp microbatches on, else the breadth-first one, which is
    nearest."""
    too_few = plan.recipe.group and plan.microbatches(job) < plan.pp
    return replace(plan, schedule="looped-bfs") if too_few else plan


def micro_batch(batch: Mapping[str, Any], dp: int) -> int:
    """Return the stated microbatch size, or the one that follows from the number of microbatches, or 1."""
    number = microbatches_of(batch)
    left = number_in(batch.get("global")) / (dp * number) if number else 0
    return int(number_in(batch.get("micro")) or (left if left == int(left) else 0)) or 1


def microbatches_of(batch: Mapping[str, Any]) -> int:
    return int(
        next(
            (
                number_in(batch[key])
                for key in ("microbatches", "gradient_accumulation")
                if number_in(batch.get(key))
            ),
            0,
        )
    )


def global_batch(batch: Mapping[str, Any], plan: Plan) -> int:
    stated = checked_size(int(number_in(batch.get("global"))), "global batch", least=0)
    return stated or plan.dp * plan.micro_batch * (microbatches_of(batch) or 1)
