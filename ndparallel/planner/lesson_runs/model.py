"""The lessons' model for a planner's job, and what their runs do not do."""

from ndparallel.base.errors import UserError
from ndparallel.base.words import listed
from ndparallel.model.units import ModelConfig
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.models.shape import ModelShape

LIKE_LLAMA = (  # fields of a shape that the lessons' model has as they are where nothing is said
    "activation",
    "norm",
    "position",
    "biases",
    "norms",
    "norm_weights",
    "qk_norm",
    "sinks",
    "embedding_norm",
    "parallel",
    "prediction_layers",
    "latent",
    "value_width",
    "keys_as_values",
    "windowed",
    "output_gate",
)

MOST_PASSES = 100_000  # of units, one after another: the grid takes some ten seconds


def check_executed(job: TrainingJob, plan: Plan) -> None:
    """Raise UserError for what the lessons' own runs do not do."""
    units, microbatches = job.shape.layers + 2, int(plan.microbatches(job))
    if microbatches * units > MOST_PASSES:
        raise UserError(
            f"the lessons' run is timed pass by pass, and {microbatches:,} microbatches through {units} "
            f"units are too many: choose at most {MOST_PASSES // units:,} microbatches, by a smaller "
            "--global-batch or a larger --micro-batch."
        )
    if plan.recompute_layers or plan.modules(job.stack) != ("core_attn",):
        raise UserError(
            "the lessons recompute all layers or none, and selectively attention's core: choose so."
        )
    if job.routing_imbalance > 1:
        raise UserError(
            "the lessons' routers decide for themselves: leave out --routing-imbalance, or name other "
            "--software."
        )
    if job.token_counts and not (job.stack.grid and job.shape.experts):
        raise UserError(
            "token counts are those of experts in the lessons' grid: leave them out, or take the pocket "
            "stack as it is."
        )
    if plan.shards:
        raise UserError(
            "the lessons' grid shards over all of dp: leave out --shards, or name other --software."
        )


def config_of(job: TrainingJob) -> ModelConfig:
    """The lessons' model of a job's shape."""
    return config_of_shape(job.shape, job.sequence).replace(capacity_factor=job.capacity_factor)


def config_of_shape(shape: ModelShape, sequence: int) -> ModelConfig:
    """The lessons' model of this shape, for sequences of so many tokens. Raises UserError for what it cannot
    have."""
    check_shape(shape, sequence)
    sizes = (shape.layers, shape.hidden, shape.heads, shape.kv_heads, shape.ffn, shape.vocab)
    config = ModelConfig(*sizes, sequence=sequence, tied=shape.tied_embeddings)
    some = shape.experts
    if some is None:
        return config
    return config.replace(
        experts=some.experts, top_k=some.top_k, expert_ffn=some.ffn, shared_experts=some.shared_experts
    )


def check_shape(shape: ModelShape, sequence: int) -> None:
    """Raise UserError where a model is not built as the lessons' is: like Llama, with or without experts."""
    some = shape.experts
    if some and (
        some.dense_layers or some.shared_gate or some.own_norms or some.shared_ffn not in (0, some.ffn)
    ):
        raise UserError(
            "the lessons' model has experts in every layer, and shared ones as wide as the others, behind "
            "one norm: name other --software."
        )
    others = [name for name in LIKE_LLAMA if getattr(shape, name) != getattr(ModelShape, name)]
    others += ["window"] * (0 < shape.window < sequence)
    others += ["head_dim"] * (shape.head_dim * shape.heads != shape.hidden)
    if others:
        raise UserError(
            f"{shape.name} is not built like Llama, as the lessons' model is, in its {listed(others)}: name "
            "a model that is, or plan with other --software."
        )
