"""`--emit torchtitan`: the recipe of torchtitan for a job and a plan.

Idea   torchtitan's recipe is a Python function that returns a configuration: it starts from one of
       torchtitan's own, which brings data, optimizer and learning rate, and sets what the plan decides.
       Stages are written out layer by layer, so that they are the plan's.
Limit  The models that torchtitan has; a plan that it cannot run is refused.

Glossary
    reshard    to free gathered weights after the forward pass (ZeRO-3); where they stay it is ZeRO-2
"""

from collections.abc import Iterator
from dataclasses import replace

from ndparallel.base.quoting import in_docstring
from ndparallel.base.words import count
from ndparallel.launch_flags import fields
from ndparallel.launch_flags.frozen import release
from ndparallel.launch_flags.nodes import torchrun_nodes
from ndparallel.launch_flags.rules import refuse, refuse_other_software
from ndparallel.launch_flags.torchtitan.models import Flavor, flavor_of, torchtitan_lacks
from ndparallel.launch_flags.torchtitan.rules import RULES, compiled
from ndparallel.launch_flags.torchtitan.switches import names_dispatcher, refuse_other_switches
from ndparallel.pipeline.catalog import names_in
from ndparallel.planner.describe import state_words
from ndparallel.planner.job import TOGETHER, Plan, TrainingJob
from ndparallel.planner.legality import check
from ndparallel.planner.stages import split_of

STACKS = ("torchtitan", "torchtitan-compiled")
FLOAT8 = "fp8-row"  # as Float8LinearConverter scales it (torchtitan/components/quantization/float8.py)
OTHER_FLOAT8 = ("fp8", "fp8-current", "fp8-block")


def emit_torchtitan(job: TrainingJob, plan: Plan) -> str:
    """A Python file with the recipe. Raises UserError, saying what, for what torchtitan cannot run."""
    check(job, plan)
    refuse_other_software(job, "torchtitan", STACKS)
    found = flavor_of(job)
    refuse(RULES, job, plan)
    refuse_other_switches(job, plan)
    refuse_other_states(job)
    refuse_other_number_types(job)
    settings = {f"config.{key}": value for key, value in settings_of(job, plan)}
    settings |= {f"config.{key}": value for key, value in settings_of_model(job, plan, found)}
    body = [f"    {name} = {value}" for name, value in settings.items()]
    return "\n".join(
        [*header(job, plan, found), *imports(job, plan, found), "", "", "def plan():"]
        + [f"    config = {found.base}()", *body, "    return config", ""]
    )


def header(job: TrainingJob, plan: Plan, found: Flavor) -> Iterator[str]:
    number = int(plan.microbatches(job))
    title = f"{job.shape.name} on {count(plan.gpus, 'GPU')} ({job.hardware.name})"
    yield f'"""{in_docstring(title)}, as planned by ndparallel, for {release("torchtitan")}.'
    yield ""
    yield (
        f"Derived: {plan.dp} data-parallel ranks, {count(number, 'microbatch', 'es')} in a step. Save "
        "it as plan.py; launch it with"
    )
    yield f"torchrun {torchrun_nodes(job, plan)} -m torchtitan.train --module plan --config plan"
    if job.states_away:
        yield (
            "The host steps, and torchrun gives each process one thread for it: set OMP_NUM_THREADS to the "
            "host's cores for each GPU."
        )
    if found.assets:
        yield (
            "It has no configuration of its own: data, optimizer and learning rate are those of "
            f"{found.base}."
        )
    if job.shape.prediction_layers and not predicts_further(job, plan, found):
        yield "Its model has no multi-token prediction, which the plan counts: with pp or cp there is none."
    yield '"""'
    yield ""


def imports(job: TrainingJob, plan: Plan, found: Flavor) -> Iterator[str]:
    if found.module == "kimi_k2_7":
        yield "from torchtitan.components.optimizer import default_adamw"
    if job.dtype == FLOAT8:
        yield "from torchtitan.components.quantization import Float8LinearConverter"
    if plan.recompute != "none":
        yield (
            "from torchtitan.distributed.activation_checkpoint import "
            f"{fields.TITAN_RECOMPUTE[plan.recompute].partition('.')[0]}"
        )
    yield f"from torchtitan.models.{found.module} import model_registry"
    yield f"from torchtitan.models.{found.module}.config_registry import {found.base}"
    if predicts_further(job, plan, found):
        yield f"from torchtitan.models.{found.module}.mtp import MTPLoss"


def predicts_further(job: TrainingJob, plan: Plan, found: Flavor) -> bool:
    """Whether it has multi-token prediction: MTPDecoder in torchtitan/models/deepseek_v3/mtp.py."""
    alone = plan.pp == 1 and plan.cp == 1
    return bool(job.shape.prediction_layers) and found.module == "deepseek_v3" and alone


def settings_of_model(job: TrainingJob, plan: Plan, found: Flavor) -> Iterator[tuple[str, str]]:
    if found.assets:
        yield "hf_assets_path", f'"./assets/hf/{found.assets}"'
    if found.module == "kimi_k2_7":  # whose configuration has Muon
        yield "optimizer", "default_adamw(lr=3e-4)"
    if predicts_further(job, plan, found):
        yield "loss", f"MTPLoss.Config(global_vocab_size={job.shape.vocab})"
    options = "".join(f", {option}" for option in options_of_model(job, plan, found))
    yield "model_spec", f'model_registry("{found.flavor}"{options})'


def options_of_model(job: TrainingJob, plan: Plan, found: Flavor) -> Iterator[str]:
    if names_dispatcher(job, plan):
        yield f'moe_comm_backend="{job.stack.dispatcher}"'
    if predicts_further(job, plan, found):
        yield f"num_mtp_layers={job.shape.prediction_layers}"
    yield from converters(job)


def refuse_other_number_types(job: TrainingJob) -> None:
    if job.dtype == "bf16":
        return
    if job.dtype in OTHER_FLOAT8:
        raise torchtitan_lacks(
            f"float8 with the scales of {job.dtype}",
            f"its Float8LinearConverter scales each row: take --dtype {FLOAT8}",
        )
    if job.dtype != FLOAT8:
        raise torchtitan_lacks(f"recipe written here in {job.dtype}", f"choose bf16 or {FLOAT8}")
    if job.shape.experts:
        raise torchtitan_lacks(f"recipe written here for experts in {FLOAT8}", "choose bf16")


def converters(job: TrainingJob) -> Iterator[str]:
    if job.dtype == FLOAT8:
        yield (
            'converters=[Float8LinearConverter.Config(recipe_name="rowwise", filter_fqns=["lm_head"], '
            f"model_compile_enabled={compiled(job)})]"
        )


def settings_of(job: TrainingJob, plan: Plan) -> Iterator[tuple[str, str]]:
    """Keys of torchtitan's configuration with their values, as Python writes them."""
    each_pass = job.global_batch // plan.dp if plan.pp > 1 else plan.micro_batch  # of one data-parallel rank
    yield "training.seq_len", f"{job.sequence}"
    yield "training.global_batch_size", f"{job.global_batch}"
    yield "training.local_batch_size", f"{each_pass}"
    yield "training.dtype", '"bfloat16"' if job.half else '"float32"'
    if job.states_away:
        yield fields.TITAN_HOST, "True"
    yield "training.disable_cuda_graphs", "True"  # which the planner does not model
    for name, key in fields.TITAN_DEGREES.items():
        yield key, f"{getattr(plan, name)}"
    yield "parallelism.enable_sequence_parallel", f"{plan.sequence_parallel}"
    yield from sharding(plan, job.stack.reshards)
    yield from pipeline(job, plan)
    yield "activation_checkpoint", fields.TITAN_RECOMPUTE[plan.recompute]
    yield "compile.enable", f"{compiled(job)}"
    if compiled(job):  # the configuration that a recipe starts from may compile its loss alone
        yield "compile.components", '["model", "loss"]'
    yield "compile.enable_async_tensor_parallel", f"{job.stack.tp_overlap == 'products'}"


def refuse_other_states(job: TrainingJob) -> None:
    """Raise UserError for what torchtitan keeps or drops in no other way."""
    if "optimizer" in job.offload and not job.states_away:
        raise torchtitan_lacks(
            "optimizer alone on the host",
            f"its {fields.TITAN_HOST} moves weights and gradients too: take --offload optimizer,weights with "
            "--zero 3, or leave --offload out",
        )
    others = tuple(word for word in job.offload if word not in TOGETHER)
    if words := state_words(replace(job, half=False, offload=others)):
        raise torchtitan_lacks(" or ".join(words), "leave that out")
    if job.capacity_factor is not None:
        raise torchtitan_lacks("capacity factor", "leave --capacity-factor out")


def sharding(plan: Plan, reshards: bool) -> Iterator[tuple[str, str]]:
    """torchtitan shards over cp too, and optimizers never alone. In a pipeline gathered weights stay, as they
    are priced: they come back for each microbatch where that is asked for, and are whole all the same."""
    shards = (plan.shards if plan.zero == 3 and plan.shards else plan.dp * plan.cp) if plan.zero else 1
    yield "parallelism.data_parallel_shard_degree", f"{shards // plan.cp}"
    yield "parallelism.data_parallel_replicate_degree", f"{plan.dp * plan.cp // shards}"
    if plan.zero:
        reshard = fields.TITAN_RESHARD[plan.zero] if reshards and plan.pp == 1 else "never"
        yield "parallelism.fsdp_reshard_after_forward", f'"{reshard}"'


def pipeline(job: TrainingJob, plan: Plan) -> Iterator[tuple[str, str]]:
    if plan.pp == 1:
        return
    known = names_in("torchtitan")
    yield "parallelism.pipeline_parallel_schedule", f'"{known[plan.schedule]}"'
    yield "parallelism.pipeline_parallel_microbatch_size", f"{plan.micro_batch}"
    yield (
        "parallelism.module_fqns_per_model_part",
        "[\n" + "".join(f"        {stage},\n" for stage in stages_of(job, plan)) + "    ]",
    )


def stages_of(job: TrainingJob, plan: Plan) -> Iterator[str]:
    """The modules of every stage, as a Python expression."""
    start = 0
    for stage, layers in enumerate(split_of(job.shape, plan)):
        names = f'[f"layers.{{layer}}" for layer in range({start}, {start + layers})]'
        first, last = stage == 0, stage == plan.stages - 1
        yield ('["tok_embeddings"] + ' if first else "") + names + (' + ["norm", "lm_head"]' if last else "")
        start += layers
