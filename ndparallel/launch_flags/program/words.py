"""What the arguments of a program say of the model and of training, in the words of transformers, TRL and
the programs around them.

Limit  Words that no such program has are not known.
"""

import re
from collections.abc import Iterator, Mapping

from ndparallel.base.errors import UserError
from ndparallel.base.quoting import brief
from ndparallel.launch_flags import fields
from ndparallel.launch_flags.program.adapters import note_on_matrices, switch_of
from ndparallel.launch_flags.reading import Beside
from ndparallel.launch_flags.settings import Configuration
from ndparallel.planner.job import Plan, TrainingJob
from ndparallel.planner.models.presets import find_model
from ndparallel.planner.models.shape import ModelShape

MODEL = ("model_name_or_path", "model", "model_id", "base_model", "model_name")
SEQUENCE = (
    *("max_seq_length", "max_length", "model_max_length", "cutoff_len", "block_size", "max_seq_len"),
    *("sequence_len", "seq_length"),
)
RECOMPUTES = (fields.TRANSFORMERS_RECOMPUTE, "activation_checkpointing", "grad_checkpoint")
ADAM = re.compile(
    r"(?:paged_)?(?:mu)?adamw?(?:_(?:hf|torch|fused|apex|npu|xla|bnb|8bit|32bit))*", re.IGNORECASE
)
NOT_MODELLED = {  # what is priced in place of what they ask for
    "torch_compile": "layers are eager",
    "fp8": "matmuls are in 16 bits",
    **dict.fromkeys(("cut_cross_entropy", "liger_fused_linear_cross_entropy"), "logits are whole"),
    **dict.fromkeys(("use_liger_kernel", "enable_liger_kernel", "use_liger"), "logits are whole"),
    **dict.fromkeys(("freeze_llm", "tune_mm_mlp_adapter"), "all weights are trained"),
    **dict.fromkeys(
        ("beta", "pref_beta", "rlhf_type", "rl"), "it learns the next token of one sequence each"
    ),
    **dict.fromkeys(("use_dora", "modules_to_save", "lora_modules_to_save"), "adapters are plain, and alone"),
    **dict.fromkeys(("vision_tower", "vision_path"), "the model is the language's alone"),
}


def shape_of(arguments: Mapping[str, str], beside: Beside) -> ModelShape:
    """The model that is given, or that the program's arguments name. Raises UserError for none."""
    return beside.with_vocab(model_of(arguments, beside.model))


def model_of(arguments: Mapping[str, str], model: str | ModelShape | None) -> ModelShape:
    if isinstance(model, ModelShape):
        return model
    named = next((name for name in MODEL if name in arguments), None)
    if not model and not named:
        raise UserError("which model? Its configuration does not say it: add --model.")
    try:
        return find_model(model or arguments[named or ""])
    except UserError as error:
        raise error if model else UserError(f"--{named}: {error} Add --model.") from None


def sequence_of(words: Configuration, given: int | None) -> int:
    """Tokens in a sequence: those that are given, else the program's, else 4096."""
    named = (words[name] for name in SEQUENCE if type(words.get(name)) is int)
    return given or next(named, 4096)


def what_the_program_leaves(
    words: Configuration, optimizer: str, job: TrainingJob, plan: Plan, beside: Beside
) -> Iterator[str]:
    """Sentences about what its arguments do not say, or say and is not read; of other optimizers than Adam,
    and of one whose gradients travel in 1 bit."""
    if not ADAM.fullmatch(optimizer):
        yield f"Optimizer {brief(optimizer)} is not modelled: it is priced as AdamW."
    if (switch := switch_of(words)) and not beside.adapters:
        unread = f"--{switch} of the program is not read: give --lora or --qlora, with the rank."
        yield from note_on_matrices(words) if job.adapters else [unread]
    for name, instead in NOT_MODELLED.items():
        if words.get(name, False) is not False:
            yield f"--{name} of the program is not modelled: {instead}."
    if not beside.sequence and not words.keys() & {*SEQUENCE}:
        yield f"No argument of the program says how long sequences are: {job.sequence} tokens (--sequence)."
    if not words.keys() & {*RECOMPUTES} and plan.pp == 1 and plan.recompute == "none":
        yield (
            f"No argument says --{RECOMPUTES[0]}: nothing is computed again. TRL, LLaMA-Factory and "
            f"ms-swift do by default (--set {RECOMPUTES[0]}=true)."
        )
