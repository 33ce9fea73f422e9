"""The plan that a command line of Megatron-Core lays out.

Idea   Degrees are numbers; chunks, sharding and recomputation can each be said in several ways, and two that
       contradict are refused.
Limit  Where nothing says how many layers a stage has they are spread as the planner does it.
"""

import re

from ndparallel.base.errors import UserError
from ndparallel.base.words import count, listed
from ndparallel.launch_flags import fields
from ndparallel.launch_flags.megatron.given import GivenFlags
from ndparallel.pipeline.catalog import default_schedule
from ndparallel.planner.job import Plan
from ndparallel.planner.models.shape import ModelShape
from ndparallel.planner.models.sizes import near_divisors
from ndparallel.planner.software import MEGATRON_CORE
from ndparallel.planner.stack import ordered_modules
from ndparallel.planner.stages import layers_by_stage

SHARDING = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
LONGEST_LAYOUT = 20_000  # letters
COUNTED = tuple(f"--account-for-{end}-in-pipeline-split" for end in ("embedding", "loss"))


def plan_from(flags: GivenFlags, shape: ModelShape, gpus: int) -> Plan:
    degrees = {
        name: flags.number_or(flag, 1) for name, flag in fields.DEGREES.items() if name != "micro_batch"
    }
    tp, pp, cp = degrees["tp"], degrees["pp"], degrees["cp"]
    if min(gpus, *degrees.values()) < 1 or gpus % (tp * pp * cp):
        raise UserError(
            f"tp*pp*cp = {tp}*{pp}*{cp} does not divide {gpus} GPUs: change one, or say how many there are "
            "with --gpus."
        )
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
        sequence_parallel=flags.has(fields.SEQUENCE_PARALLEL) and tp > 1,
        recompute=recompute_from(flags),
        recompute_layers=recompute_layers_from(flags),
        recompute_modules=recompute_modules_from(flags),
        schedule=default_schedule(chunks),
        stage_layers=stage_layers_from(flags, shape, pp, chunks),
    )


def chunks_from(flags: GivenFlags, shape: ModelShape, pp: int) -> int:
    """Chunks of a pipeline rank, by any of the three flags that give them. Raises UserError for layers that
    cannot be dealt out."""
    ways = (fields.CHUNKS, fields.LAYOUT, "--num-layers-per-virtual-pipeline-stage")
    if len(there := [flag for flag in ways if flags.has(flag)]) > 1:
        raise UserError(f"{listed(there)} contradict one another: keep one.")
    if text := flags.text(fields.LAYOUT):
        refuse_other_prediction(text, shape)
        return chunks_of(stages_of(text), pp)
    counted = shape.layers + sum(map(flags.has, COUNTED))
    uneven = "--deepspeed" in flags.unknown or any(map(flags.has, fields.ENDS))
    if counted % pp and not uneven:
        raise UserError(
            f"{counted} layers do not divide by pp={pp} pipeline ranks; nearest: "
            f"{near_divisors(counted, pp)}."
        )
    if each := flags.number_or(ways[2], 0):
        if counted // pp % each:
            raise UserError(f"{ways[2]} {each} does not divide a pipeline rank's {counted // pp} layers.")
        return counted // pp // each
    chunks = max(1, flags.number_or(fields.CHUNKS, 1))
    if counted // pp % chunks and not uneven:
        raise UserError(f"{fields.CHUNKS} {chunks} does not divide a pipeline rank's {counted // pp} layers.")
    return chunks


def stages_of(layout: str) -> list[int]:
    """Layers of each stage of a --pipeline-model-parallel-layout, as in "Et*2|(t|)*3L"."""
    return [stage.count("t") for stage in letters_of(layout)]


def letters_of(layout: str) -> list[str]:
    """The letters of each stage of a layout. Raises UserError for one that is none."""
    text = layout.strip("\"'").replace(",", "")
    for repeated in (r"\(([^()]+)\)\*(\d{1,4})", r"([Etm|L])\*(\d{1,4})"):
        if sum(len(found[1]) * int(found[2]) for found in re.finditer(repeated, text)) > LONGEST_LAYOUT:
            raise UserError(f"{fields.LAYOUT} {layout[:60]!r} has more layers than any model.")
        text = re.sub(repeated, lambda found: found[1] * int(found[2]), text)
    if not re.fullmatch(r"E[tm|]*L", text):
        raise UserError(f"{fields.LAYOUT} {layout[:60]!r} is not made of E, t, m, L and |.")
    return text.split("|")


def refuse_other_prediction(layout: str, shape: ModelShape) -> None:
    """Raise UserError where a layout has not the model's prediction layers."""
    if (there := sum(stage.count("m") for stage in letters_of(layout))) != shape.prediction_layers:
        raise UserError(
            f"{fields.LAYOUT} has {count(there, 'prediction layer')} (m), and {fields.PREDICTION} says "
            f"{shape.prediction_layers}: change one."
        )


def stage_layers_from(flags: GivenFlags, shape: ModelShape, pp: int, chunks: int) -> tuple[int, ...]:
    """Return how many layers each stage has, where a layout, the layers of the first and the last pipeline
    rank, or what counts as a layer, deal them out as nobody else would."""
    text = flags.text(fields.LAYOUT)
    deal = flags, shape.layers, pp, chunks
    stages = stages_of(text) if text else stages_of_ranks(*deal) or stages_of_ends(*deal)
    even = layers_by_stage(shape.layers, len(stages), shape.prediction_layers) if stages else []
    return () if stages == even else tuple(stages)


def stages_of_ranks(flags: GivenFlags, layers: int, pp: int, chunks: int) -> list[int]:
    """Layers of each stage where the first or the last pipeline rank has its own number; none where neither
    has. The other ranks share the rest (megatron/core/transformer/transformer_block.py,
    get_num_layers_to_build). Raises UserError where they cannot."""
    ends = {rank: flags.number(flag) for rank, flag in zip((0, pp - 1), fields.ENDS) if flags.has(flag)}
    if not ends:
        return []
    left, others = layers - sum(ends.values()), pp - len(ends)
    each = left // max(1, others)
    ranks = [ends.get(rank, each) for rank in range(pp)]
    if sum(ranks) != layers or min(ranks) < 0 or any(number % chunks for number in ranks):
        given = listed([f"{flag} {flags.number(flag)}" for flag in fields.ENDS if flags.has(flag)])
        raise UserError(
            f"{given}: {left} layers are left for {others} other pipeline ranks of {chunks} chunks, which do "
            "not divide them."
        )
    return [number // chunks for _ in range(chunks) for number in ranks]


def stages_of_ends(flags: GivenFlags, layers: int, pp: int, chunks: int) -> list[int]:
    """Layers of each stage where embedding, loss or both count as one; none where neither does."""
    fewer = [flags.has(flag) for flag in COUNTED]
    each, left = divmod(layers + sum(fewer), pp * chunks)
    if pp == 1 or left or not any(fewer):
        return []
    middle = [each] * (pp * chunks - 2)
    return [each - fewer[0], *middle, each - fewer[1]]


def chunks_of(stages: list[int], pp: int) -> int:
    if len(stages) % pp:
        raise UserError(f"{fields.LAYOUT} has {len(stages)} stages, which pp={pp} does not divide.")
    return len(stages) // pp


def zero_from(flags: GivenFlags) -> int:
    optimizer, fsdp, torch = map(
        flags.has, ("--use-distributed-optimizer", "--use-megatron-fsdp", "--use-torch-fsdp2")
    )
    if torch and (fsdp or optimizer):
        raise UserError(
            "--use-torch-fsdp2 contradicts --use-megatron-fsdp and --use-distributed-optimizer: keep one."
        )
    sharding = flags.word("--data-parallel-sharding-strategy", "optim_grads_params", SHARDING)
    flags.heed("--ckpt-format")
    if torch:
        return 2 if flags.has("--torch-fsdp2-no-reshard-after-forward") else 3
    return sharding if fsdp else int(optimizer)


def shards_from(flags: GivenFlags, ranks: int) -> int:
    replicas = max(1, flags.number_or(fields.REPLICAS, 1))
    if ranks % replicas:
        raise UserError(
            f"{fields.REPLICAS} {replicas} does not divide dp*cp = {ranks}; nearest: "
            f"{near_divisors(ranks, replicas)}."
        )
    return 0 if replicas == 1 else ranks // replicas


def recompute_from(flags: GivenFlags) -> str:
    named = flags.word("--recompute-granularity", "none", {kind: kind for kind in fields.RECOMPUTE})
    if flags.has("--recompute-activations"):
        if named == "full":
            raise UserError(
                "--recompute-activations (selective) contradicts --recompute-granularity full: keep one."
            )
        return "selective"
    return named


def recompute_modules_from(flags: GivenFlags) -> tuple[str, ...]:
    """What selective recomputation runs again, of what the planner knows; () where it is Megatron's own."""
    asked = (flags.text(fields.RECOMPUTED) or "").split()
    modules = ordered_modules(module for module in asked if module in fields.MODULES)
    own = modules == MEGATRON_CORE.selective or recompute_from(flags) != "selective"
    return () if own else modules


def recompute_layers_from(flags: GivenFlags) -> int:
    """Return how many layers of a stage are recomputed, 0 for all. Raises UserError where Megatron does not
    say either."""
    method = flags.word("--recompute-method", "uniform", {"uniform": "uniform", "block": "block"})
    layers = flags.number_or("--recompute-num-layers", 0)
    if flags.text("--recompute-granularity") != "full":
        return 0
    if not (flags.has("--recompute-method") and layers):
        raise UserError(
            "--recompute-granularity full also needs --recompute-method, and a --recompute-num-layers from 1 "
            "on."
        )
    return layers if method == "block" else 0
