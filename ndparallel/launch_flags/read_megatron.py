"""A command line of Megatron-Core as the model, the job and the plan that it trains.

Idea   The rows that write a launch line read one (fields.py). A flag that is missing means what Megatron means without it, and this is
       said; so is a flag that changes time or memory in a way that the planner does not model, and one that Megatron does not have.
Limit  pretrain_gpt.py's models. The vocabulary is often a file's, and the number of GPUs the scheduler's: both can be given beside.

Glossary
    reading   the job, the plan, and what is to be told about how they were found
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from gpu import Hardware
from ndparallel.errors import UserError
from ndparallel.launch_flags import fields
from ndparallel.launch_flags.beyond import ANOTHER_MODEL, BEYOND, BUT, SPREAD
from ndparallel.launch_flags.frozen import megatron_flags, release
from ndparallel.launch_flags.given import Given, given, strange_sentence
from ndparallel.launch_flags.read_model import shape_from
from ndparallel.launch_flags.shell import Script, read_script
from ndparallel.planner.legality import check
from ndparallel.planner.plan import Job, Plan
from ndparallel.planner.shape import ModelShape
from ndparallel.planner.sizes import near_divisors
from ndparallel.planner.stack import MEGATRON_CORE, NEMO, Stack
from ndparallel.planner.workload import layers_by_stage
from ndparallel.words import listed

BACKENDS = {"auto": "cudnn", "fused": "cudnn", "flash": "flash2", "unfused": "unfused", "local": "unfused"}
SHARDING = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
LONGEST_LAYOUT = 20_000  # letters
PER_NODE, NODES = ("--nproc-per-node", "--nproc_per_node"), ("--nnodes",)


@dataclass(frozen=True)
class Reading:
    """What a command line trains, and sentences about what was assumed and what was left out."""

    job: Job
    plan: Plan
    notes: tuple[str, ...]


def read_megatron(text: str, hardware: Hardware, *, gpus: int | None = None, vocab: int | None = None) -> Reading:
    """Read a shell script or a bare command line. `gpus` and `vocab` stand in for what it does not say, or overrule it.

    Raises UserError, one sentence, for what is no such command line, contradicts itself, or cannot be trained.
    """
    script = read_script(text)
    launcher, words = command_of(script)
    flags = given(words)
    for flag in ANOTHER_MODEL:
        if flags.has(flag):
            raise UserError(f"{flag} makes another model than the planner's layers: it cannot be priced.")
    shape = shape_from(flags, vocab)
    plan = plan_from(flags, shape, world_size(launcher, script.variables) if gpus is None else gpus)
    job = job_from(flags, shape, hardware, plan)
    check(job, plan)
    return Reading(job, plan, tuple(notes(flags, script, job, plan)))


def command_of(script: Script) -> tuple[list[str], list[str]]:
    """The launcher's words and the program's, of the command that has most of Megatron's flags; commands that are flags alone count as one.

    Raises UserError where none has any.
    """
    bare = [word for words in script.commands if words[0].startswith("--") for word in words]
    best = max([bare, *script.commands], key=known_flags)
    if not known_flags(best):
        raise UserError(f"there is no command line of {release('megatron')} in it: none of its words is a flag of pretrain_gpt.py.")
    program = next((place for place, word in enumerate(best) if word.endswith(".py")), -1)
    return best[: program + 1], best[program + 1 :]


def known_flags(words: list[str]) -> int:
    return sum(word.partition("=")[0] in megatron_flags() for word in words)


def world_size(words: list[str], variables: Mapping[str, list[str]]) -> int:
    """What the launcher starts. Raises UserError where the file does not say."""
    launched = {word.partition("=")[0]: word.partition("=")[2] or after for word, after in zip(words, [*words[1:], ""])}
    each = next((launched[name] for name in PER_NODE if name in launched), "")
    nodes = next((launched[name] for name in NODES if name in launched), "1")
    if each.isdecimal() and nodes.isdecimal() and len(each + nodes) < 12:
        return int(each) * int(nodes)
    if (known := " ".join(variables.get("WORLD_SIZE", []))).isdecimal() and len(known) < 12:
        return int(known)
    raise UserError("how many GPUs? The file does not say it in numbers (--nnodes, --nproc-per-node): add --gpus.")


# ------------------------------------------------------------------------------------------------------------ the plan


def plan_from(flags: Given, shape: ModelShape, gpus: int) -> Plan:
    degrees = {name: flags.number(flag) if flags.has(flag) else 1 for name, flag in fields.DEGREES.items() if name != "micro_batch"}
    tp, pp, cp = degrees["tp"], degrees["pp"], degrees["cp"]
    if min(gpus, *degrees.values()) < 1 or gpus % (tp * pp * cp):
        raise UserError(f"tp*pp*cp = {tp}*{pp}*{cp} does not divide {gpus} GPUs: change one, or say how many there are with --gpus.")
    dp = gpus // (tp * pp * cp)
    chunks = chunks_from(flags, shape, pp)
    zero = zero_from(flags)
    return Plan(
        **degrees,
        dp=dp,
        chunks=chunks,
        micro_batch=flags.number("--micro-batch-size"),
        zero=zero,
        shards=shards_from(flags, dp * cp) if zero == 3 else 0,
        sequence_parallel=flags.has("--sequence-parallel") and tp > 1,
        recompute=recompute_from(flags),
        schedule="interleaved" if chunks > 1 else "1f1b",
    )


def chunks_from(flags: Given, shape: ModelShape, pp: int) -> int:
    """Chunks of a pipeline rank, by any of the three flags that give them. Raises UserError for layers that cannot be dealt out."""
    ways = (fields.CHUNKS, fields.LAYOUT, "--num-layers-per-virtual-pipeline-stage")
    if len(there := [flag for flag in ways if flags.has(flag)]) > 1:
        raise UserError(f"{listed(there)} contradict one another: keep one.")
    if text := flags.text(fields.LAYOUT):
        return chunks_of(stages_of(text), pp)
    counted = shape.layers + sum(flags.has(f"--account-for-{end}-in-pipeline-split") for end in ("embedding", "loss"))
    uneven = any(flags.has(f"--decoder-{end}-pipeline-num-layers") for end in ("first", "last"))
    if counted % pp and not uneven:
        raise UserError(f"{counted} layers do not divide by pp={pp} pipeline ranks; nearest: {near_divisors(counted, pp)}.")
    if each := flags.number(ways[2], 0) if flags.has(ways[2]) else 0:
        if counted // pp % each:
            raise UserError(f"{ways[2]} {each} does not divide a pipeline rank's {counted // pp} layers.")
        return counted // pp // each
    return max(1, flags.number(fields.CHUNKS)) if flags.has(fields.CHUNKS) else 1


def stages_of(layout: str) -> list[int]:
    """Layers of each stage of a --pipeline-model-parallel-layout, as in "Et*2|(t|)*3L". Raises UserError for one that is none."""
    text = layout.strip("\"'").replace(",", "")
    for repeated in (r"\(([^()]+)\)\*(\d{1,4})", r"([Etm|L])\*(\d{1,4})"):
        if sum(len(found[1]) * int(found[2]) for found in re.finditer(repeated, text)) > LONGEST_LAYOUT:
            raise UserError(f"{fields.LAYOUT} {layout[:60]!r} has more layers than any model.")
        text = re.sub(repeated, lambda found: found[1] * int(found[2]), text)
    if not re.fullmatch(r"E[tm|]*L", text):
        raise UserError(f"{fields.LAYOUT} {layout[:60]!r} is not made of E, t, m, L and |.")
    return [stage.count("t") for stage in text.split("|")]


def chunks_of(stages: list[int], pp: int) -> int:
    if len(stages) % pp:
        raise UserError(f"{fields.LAYOUT} has {len(stages)} stages, which pp={pp} does not divide.")
    return len(stages) // pp


def zero_from(flags: Given) -> int:
    optimizer, fsdp, torch = map(flags.has, ("--use-distributed-optimizer", "--use-megatron-fsdp", "--use-torch-fsdp2"))
    if torch and (fsdp or optimizer):
        raise UserError("--use-torch-fsdp2 contradicts --use-megatron-fsdp and --use-distributed-optimizer: keep one.")
    sharding = flags.word("--data-parallel-sharding-strategy", "optim_grads_params", SHARDING)
    flags.has("--ckpt-format")
    if torch:
        return 2 if flags.has("--torch-fsdp2-no-reshard-after-forward") else 3
    return sharding if fsdp else int(optimizer)


def shards_from(flags: Given, ranks: int) -> int:
    replicas = max(1, flags.number(fields.REPLICAS, 1)) if flags.has(fields.REPLICAS) else 1
    if ranks % replicas:
        raise UserError(f"{fields.REPLICAS} {replicas} does not divide dp*cp = {ranks}; nearest: {near_divisors(ranks, replicas)}.")
    return 0 if replicas == 1 else ranks // replicas


def recompute_from(flags: Given) -> str:
    named = flags.word("--recompute-granularity", "none", {kind: kind for kind in fields.RECOMPUTE})
    if flags.has("--recompute-activations"):
        if named == "full":
            raise UserError("--recompute-activations (selective) contradicts --recompute-granularity full: keep one.")
        return "selective"
    return named


# ------------------------------------------------------------------------------------------------------------ the job


def job_from(flags: Given, shape: ModelShape, hardware: Hardware, plan: Plan) -> Job:
    each_step = plan.dp * plan.micro_batch
    batch = flags.number("--global-batch-size", each_step, f"{each_step} (one microbatch on each data-parallel rank)")
    flags.one_of({"--bf16": "bf16", "--fp16": "fp16"}, "bf16")
    flags.one_of({"--fp8-format": "fp8", "--fp4-format": "fp4"}, "none")
    if not flags.has("--bf16") and not flags.has("--fp16"):
        flags.assume("--bf16", "float32, which is priced as bf16")
    dtype = "fp8" if flags.has("--fp8-format") else "bf16"
    return Job(shape, hardware, stack_from(flags, shape, plan), flags.number("--seq-length"), batch, dtype=dtype)


def stack_from(flags: Given, shape: ModelShape, plan: Plan) -> Stack:
    base = NEMO if flags.has("--tp-comm-overlap") else MEGATRON_CORE
    attention = flags.word("--attention-backend", "auto", BACKENDS)
    if flags.has("--use-flash-attn"):
        attention = "flash2"
    dropout = flags.fraction("--hidden-dropout", 0.1) > 0
    flags.has("--attention-dropout")
    if dropout and not flags.has("--hidden-dropout"):
        flags.assume("--hidden-dropout", "0.1")
    reduces, gathers = flags.has("--overlap-grad-reduce"), flags.has("--overlap-param-gather")
    return replace(
        base,
        attention=attention,
        dropout=dropout,
        accumulates=not flags.has("--no-gradient-accumulation-fusion"),
        gradient_bytes=2 if flags.has("--grad-reduce-in-bf16") else 4,
        dp_overlap=reduces,
        gathers_first=gathers if plan.zero else reduces,
        prefetch=gathers if plan.zero == 3 else reduces,
        pp_overlap=not flags.has("--no-overlap-p2p-communication"),
        deduplicates=deduplicates_from(flags) if shape.experts else base.deduplicates,
    )


def deduplicates_from(flags: Given) -> bool:
    """The flexible dispatcher (DeepEP) sends a token once to a node."""
    kind = flags.text("--moe-token-dispatcher-type")
    if kind is None:
        flags.assume("--moe-token-dispatcher-type", "allgather, which is priced as all-to-all")
    return kind == "flex"


# ------------------------------------------------------------------------------------------------------------ what is to be told


def notes(flags: Given, script: Script, job: Job, plan: Plan) -> Iterator[str]:
    """Sentences about what was assumed, what is not modelled, and what was passed over."""
    if flags.strange:
        yield strange_sentence(flags.strange)
    if script.skipped:
        names = listed(list(dict.fromkeys(script.skipped))[:8])
        yield f"Conditions and loops of the script are not run: what they set is left out ({names})."
    yield from beyond(flags, job, plan)
    if flags.defaults:
        yield f"Not given, so as {release('megatron')} has it: {'; '.join(flags.defaults)}."
    if passed := [flag for flag in flags.unused if flag not in BEYOND and flag not in BUT]:
        yield f"Passed over, for no plan depends on them: {', '.join(passed)}."


def beyond(flags: Given, job: Job, plan: Plan) -> Iterator[str]:
    """What the command line asks for and the planner does not model."""
    for flag, instead in BEYOND.items():
        if flag in flags.flags and not (flag.startswith("--account") and layers_even(job, plan)):
            yield f"{flag} is not modelled: {instead}."
    for flag, (words, instead) in BUT.items():
        if flag in flags.flags and " ".join(flags.flags[flag]) not in words:
            yield f"{flag} {' '.join(flags.flags[flag])[:40]} is not modelled: {instead}."
    if job.shape.experts and plan.tp > 1 and "--expert-tensor-parallel-size" not in flags.flags:
        yield f"--expert-tensor-parallel-size is {plan.tp} where it is not given; here experts stay whole, on the ranks of ep."
    if (text := flags.text(fields.LAYOUT)) and stages_of(text) != layers_by_stage(job.shape.layers, plan.stages):
        yield f"{fields.LAYOUT} is not modelled: {SPREAD}."


def layers_even(job: Job, plan: Plan) -> bool:
    """Whether the planner's own uneven split is the one that counts embedding and loss as layers."""
    return bool(job.shape.layers % plan.stages)
