"""A plan and its prediction in words: for the terminal, and for the page of `ndparallel explore`."""

from dataclasses import replace

from gpu import si
from ndparallel.base.words import count, listed, three_digits
from ndparallel.hardware.accelerator import Accelerator, host_size
from ndparallel.planner.groups import Groups
from ndparallel.planner.imbalance import imbalance_sentences
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.layers.flops import DEFINITIONS
from ndparallel.planner.layers.layer import lists_of
from ndparallel.planner.legality import is_folded
from ndparallel.planner.number_types import NUMBER_TYPES
from ndparallel.planner.numbers import larger
from ndparallel.planner.prediction import Prediction
from ndparallel.planner.software import find_stack

NODE = "the node by the same port of a GPU"
NEGLIGIBLE = 0.0005  # share of the step: what takes less is left out
WORDS = {
    "compute": "compute",
    "bubble": "bubble",
    "imbalance": "stage imbalance",
    "optimizer": "optimizer",
    "launches": "waiting for launches",
} | {group: f"exposed {group}" for group in ("tp", "cp", "ep", "dp", "pp", "host")}

SHARED_SEQUENCES = {  # but by a ring, in words
    "all-gather": "keys and values gathered",
    "all-to-all": "heads exchanged over cp (Ulysses)",
}
FOLDED = (
    "EP{plan.ep} does not divide DP{plan.dp}: experts are spread over {others}context-parallel ranks too "
    "(folded expert parallelism, Megatron's with expert tensor parallelism {etp})."
)


def folded_words(found: Prediction) -> list[str]:
    """Say over which ranks experts are spread beyond the data-parallel ones."""
    plan = found.plan
    others, etp = ("", plan.tp) if found.job.stack.expert_tp else ("tensor- and ", 1)
    return [FOLDED.format(plan=plan, others=others, etp=etp)] * is_folded(plan)


def layout_words(plan: Plan) -> list[str]:
    """The plan in words, without what it does not use."""
    degrees = " x ".join(
        f"{name.upper()}{value}" for name in ("tp", "cp", "pp", "dp") if (value := getattr(plan, name)) > 1
    )
    fsdp = f"HSDP with {plan.shards} shards" if 0 < plan.shards < plan.dp * plan.cp else "FSDP"
    words = [
        degrees or "one GPU",
        f"EP{plan.ep}" * (plan.ep > 1),
        ("", "ZeRO-1", "ZeRO-2", fsdp)[plan.zero],
        "SP" * plan.sequence_parallel,
    ]
    words += [plan.schedule + f" with {plan.chunks} chunks" * (plan.chunks > 1)] if plan.pp > 1 else []
    stages = [str(each) for each in plan.stage_layers]
    words += [f"stages of {listed(stages)} layers"] if stages else []
    some = f" of {plan.recompute_layers} layers a stage" * (plan.recompute_layers > 0)
    words += [f"{plan.recompute} recomputation{some}"] if plan.recompute != "none" else []
    return [word for word in words if word]


def unusual_words(job: TrainingJob, plan: Plan) -> list[str]:
    """What else is not as usual, in words: modules that run again, uneven routing, experts that tp cuts,
    context parallelism that is no ring."""
    again = plan.modules(job.stack) if plan.recompute == "selective" else ()
    modules = again if again != find_stack(job.stack.name).selective else ()
    received, way = float(plan.share(job).received), job.stack.context_parallel
    no_more = ", and no rank can have more" * (received < job.busiest)
    words = {
        f"recomputing {' and '.join(modules)}": modules,
        f"the busiest rank's experts with {received:g} times the mean's rows{no_more}": received > 1,
        f"capacity factor {job.capacity_factor or 0:g}": job.capacity_factor,
        SHARED_SEQUENCES.get(way, ""): plan.cp > 1 and way in SHARED_SEQUENCES,
        cut_words(job, plan): cut_words(job, plan),
    }
    return [*(word for word, holds in words.items() if holds), *state_words(job)]


def cut_words(job: TrainingJob, plan: Plan) -> str:
    """Say that tp cuts every expert; "" where it does not."""
    cut = job.shape.experts and plan.tp > 1 and job.stack.expert_tp
    return f"each expert cut over {plan.tp} tp ranks" if cut else ""


def state_words(job: TrainingJob) -> list[str]:
    """What is trained and how it is kept, where that is not as usual."""
    lora = job.adapters
    rank = lora.rank if lora else 0
    part = f"{job.offload_share:.0%} of " * (job.offload_share < 1)
    offloaded = [part * (word == "activations") + word for word in job.offload]
    words = {
        f"{'QLoRA' if lora and lora.quantized else 'LoRA'} of rank {rank}": lora,
        f"on {', '.join(lora.matrices) if lora else ''}": lora and lora.matrices,
        "all states in 16 bits": job.half,
        f"moments in {job.moments.replace('8bit', '8 bits')}": job.moments != "fp32",
        f"{listed(offloaded)} on the host": offloaded,
    }
    return [word for word, holds in words.items() if holds]


def bound(found: Prediction) -> tuple[str, float]:
    """What takes most beside the GPU's own compute, and which share of the step."""
    others = found.step.breakdown | {"launches": found.step.launch_seconds}
    others.pop("compute")
    kind = max(others, key=lambda kind: others[kind])
    return kind, float(others[kind] / found.seconds)


def shared_ports(found: Prediction) -> list[str]:
    """Say what it adds that several groups use a GPU's port at the same time: the prediction lets each have
    all of it."""
    across = groups_across(found)
    seconds, share = found.sharing_seconds, found.sharing_seconds / found.seconds
    several = len(across) > 1
    if share < NEGLIGIBLE:
        several &= bool({"TP", "CP", "EP"}.intersection(across))
        return [f"Ports shared: {listed(across)} leave {NODE}: nothing is added."] * several
    where = f"{listed(across)} leave {NODE}" if several else "of groups in a node"
    return [f"Ports shared: {where}: + {si(seconds, 's')} ({share:.1%}), not in the step."]


def shared_ports_named(found: Prediction) -> list[str]:
    """Say which groups share a port across nodes, without what that adds: to replay a plan takes longer than
    many a search."""
    across = groups_across(found)
    named = f"Ports shared: {listed(across)} leave {NODE}; `ndparallel plan --plan` says what that adds."
    return [named] * (len(across) > 1)


def groups_across(found: Prediction) -> list[str]:
    """The groups whose messages leave the node."""
    groups = Groups(found.plan, found.job)
    return [name.upper() for name in ("tp", "cp", "ep", "dp", "pp") if groups.links(name).nodes > 1]


def node_sentences(found: Prediction) -> list[str]:
    """Say where groups do not lie on nodes as whole parts of them."""
    return [*tensor_parallel_across(found), *assumed_nodes(found)]


def tensor_parallel_across(found: Prediction) -> list[str]:
    """Say by which links a tensor-parallel group leaves a node, and what it waits for its messages."""
    job, tp, links = found.job, found.plan.tp, Groups(found.plan, found.job).tp
    if links.nodes == 1:
        return []
    ports = 1 if job.stack.executed else int(larger(1, links.per_node * links.rail_share))
    port, together = (si(number * links.across_bandwidth, "B/s") for number in (1, ports))
    leaves = f"{ports} ports of {port}, together {together}" if ports > 1 else f"one port of {port}"
    waits = found.step.breakdown["tp"]
    return [
        f"TP{tp} lies on {links.nodes} nodes of {count(job.hardware.gpus_per_node, 'GPU')}: its messages "
        f"leave a node by {leaves}, where links inside have {si(links.inside_bandwidth, 'B/s')}. It waits "
        f"{si(waits, 's')} for them, {waits / found.seconds:.1%} of the step; --what-if gpus_per_node={tp} "
        "prices it inside a node."
    ]


def assumed_nodes(found: Prediction) -> list[str]:
    """Say how many GPUs of a node are in use where groups, or their parts in a node, do not fill it; else
    some of them would be cut by its end."""
    node, sizes, words = found.job.hardware.gpus_per_node, [], []
    for name in ("tp", "cp", "ep", "dp"):
        links = Groups(found.plan, found.job).links(name)
        here = -(-links.ranks // links.nodes)
        if here > 1 and node % (size := int(here * links.stride)):
            sizes.append(size)
            words.append(f"{name.upper()} in {'parts' if links.nodes > 1 else 'groups'} of {size} GPUs")
    if found.job.stack.executed or found.plan.gpus <= node or not sizes:
        return []
    used = node - node % max(sizes)
    return [
        f"{listed(words)} {'is' if len(words) == 1 else 'are'} priced inside a node: of its {node} "
        f"GPUs {used} are taken to be used, and {node - used} idle (--what-if gpus_per_node={used}, and "
        f"--gpus-per-node {used} of `ndparallel mesh`); on all {node} some would be cut by the end of a node."
    ]


def plan_words(plan: Plan) -> str:
    """The plan in one line."""
    size = [f"microbatches of {plan.micro_batch}"] if plan.micro_batch > 1 else []
    return ", ".join([*layout_words(plan), *size])


# ------------------------------------------------------------------------------------------- a prediction


def size_words(job: TrainingJob) -> str:
    """How many parameters the model has: in billions, or one by one where they are less than a million."""
    total = job.shape.parameters().total
    return f"{total / 1e9:.4g} billion parameters" if total >= 1e6 else f"{total:,.0f} parameters"


def headline(found: Prediction) -> str:
    """The job and the plan, what was derived included."""
    job, plan, microbatches = found.job, found.plan, found.microbatches
    size, gpus = size_words(job), count(int(plan.gpus), "GPU")
    parts = f"{count(microbatches, 'microbatch', 'es')} of {plan.micro_batch}"
    dtype = job.stack.dtype if job.stack.executed else job.dtype
    words = ", ".join([*layout_words(plan), *unusual_words(job, plan)])
    return (
        f"{size} on {gpus} ({job.hardware.name}), {dtype}, {job.stack.name}. "
        f"{words}. "
        f"Batch {job.global_batch} x {job.sequence}: {parts} for each of "
        f"{count(plan.dp, 'data-parallel rank')}."
    )


def parts(found: Prediction) -> list[tuple[str, float]]:
    """Where the time of a step goes: what takes it and its seconds, the longest first."""
    breakdown = sorted(found.step.breakdown.items(), key=lambda part: -part[1])
    return [
        (WORDS[kind], float(seconds)) for kind, seconds in breakdown if seconds > NEGLIGIBLE * found.seconds
    ]


def training_words(found: Prediction, tokens: float, price_per_gpu_hour: float | None) -> str:
    """How long so many tokens take, and what they cost in the price's currency."""
    many = f"{tokens:.3g}".replace("e+", "e")
    days = f"{many} tokens take {three_digits(found.days(tokens))} days"
    if price_per_gpu_hour is None:
        return days
    return (
        f"{days}, and cost {found.cost(tokens, price_per_gpu_hour):,.0f} at {price_per_gpu_hour:g} a GPU-hour"
    )


def assumed_links(job: TrainingJob, gpus: int) -> list[str]:
    """Say which links are assumed where GPUs of a host have none of their own: cards on PCIe, in whose preset
    the network is a data centre's."""
    hardware = job.hardware
    inside, across = (link.bandwidth_bytes_per_second for link in (hardware.inside, hardware.across))
    if gpus == 1 or inside >= across:
        return []
    return [
        f"Two GPUs of a host are taken to reach {si(inside, 'B/s')} over PCIe (GeForce cards through the "
        f"host's memory, without peer access), and {si(across, 'B/s')} to another host: a file for "
        "--hardware with bandwidth_inside and bandwidth_across says what yours do."
    ]


def room_words(found: Prediction, plan: str = "It") -> str:
    """Whether the plan fits, and how sure that is."""
    room, has = found.missing_bytes, si(found.job.hardware.memory_bytes, "B")
    if room > 0:
        return f"{plan} does not fit: the fullest GPU has {has} and needs {si(room, 'B')} more."
    if not found.is_tight:
        return f"{plan} fits: {si(-room, 'B')} of {has} are left."
    doubtful = f"memory is predicted to +- {found.memory_bar.fraction:.0%}, {si(found.doubtful_bytes, 'B')}"
    return f"{plan} fits, but is tight: {si(-room, 'B')} of {has} are left, and {doubtful}."


def peak_words(found: Prediction) -> str:
    """Name the peak that MFU is a share of, where it is not that of 16 bits."""
    job = found.job
    if not NUMBER_TYPES[job.dtype].needs or not isinstance(job.hardware, Accelerator):
        return ""
    in_16_bits = found.flops_per_second_per_gpu / job.hardware.peak("bf16")
    kind = NUMBER_TYPES[job.dtype].needs
    return f" of {kind}'s {job.peak / 1e12:,.0f} TFLOP/s ({in_16_bits:.1%} of bf16's)"


def host_words(found: Prediction) -> list[str]:
    """How much of its states a GPU leaves to its host."""
    if not (each := found.host_state_bytes):
        return []
    gpus = min(int(found.plan.gpus), host_size(found.job.hardware))
    together = f", {si(gpus * each, 'B')} for {gpus}" * (gpus > 1)
    return [f"A host keeps at least {si(each, 'B')} of states for each GPU{together}."]


def peak_in_step(found: Prediction) -> list[str]:
    """When memory peaks, where that is not in the backward pass."""
    if not found.job.stack.casts_gradients or found.fullest.activations:
        return []
    return [
        "Memory peaks in the optimizer's step, which makes gradients in float32: activations, logits and "
        "buffers are freed by then."
    ]


def whole_gradients(found: Prediction) -> list[str]:
    """What takes the room that lacks, where FSDP leaves gradients whole between microbatches."""
    whole = found.job.stack.whole_between and found.plan.zero == 3 and found.microbatches > 1
    if not whole or found.missing_bytes <= 0:
        return []
    return ["Buffers hold all gradients, which stay whole until the last microbatch."]


def idle_modules(found: Prediction) -> list[str]:
    """Which modules of the plan's recomputation run nothing again."""
    job, plan = found.job, found.plan
    idle = [name for name in plan.recompute_modules if not runs_again(job, plan, name)]
    why = "the model has no such module of its own, or keeps nothing of it"
    return [f"Nothing runs again of {listed(idle)}: {why}."] if idle else []


def runs_again(job: TrainingJob, plan: Plan, module: str) -> bool:
    lists = lists_of(job, replace(plan, recompute_modules=(module,)))
    return any(lists.unit(kind, "selective").recompute for kind in job.shape.layer_kinds)


def sentences(found: Prediction, tokens: float, price_per_gpu_hour: float | None = None) -> list[str]:
    """What the tables do not say."""
    kind, lost = bound(found)
    whose = f"rank {found.step.rank}'s step" if found.plan.pp > 1 else "the step"
    model = "frozen" if found.job.adapters else "mfu"
    return [
        f"A step takes {si(found.seconds, 's')} {found.error_bar.sentence}",
        f"{found.tokens_per_second_per_gpu:,.0f} tokens/s and {found.flops_per_second_per_gpu / 1e12:.4g} "
        "TFLOP/s per GPU; "
        f"{training_words(found, tokens, price_per_gpu_hour)}.",
        f"MFU {found.mfu:.1%}{peak_words(found)}: {DEFINITIONS[model]}. "
        f"HFU {found.hfu:.1%}: {DEFINITIONS['hfu']}.",
        f"Beside compute, {WORDS[kind]} takes most: {lost:.1%} of {whose}. {room_words(found)}",
        *host_words(found),
        *peak_in_step(found),
        *whole_gradients(found),
        *idle_modules(found),
        *imbalance_sentences(found),
        *assumed_links(found.job, int(found.plan.gpus)),
        *node_sentences(found),
        *folded_words(found),
    ]
