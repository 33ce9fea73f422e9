"""The constants of a model as flags of Megatron-Core, and back: epsilon, rotary positions, router.

Idea   What config.json says is a flag, or a sentence of the script's header; so is what it leaves to the
       framework. They change no second, but without them the run trains another model.
Limit  Other scalings than Llama 3's, YaRN and a linear one are named, not set.
"""

from collections.abc import Iterator
from typing import Any

from ndparallel.launch_flags import fields
from ndparallel.launch_flags.megatron.given import GivenFlags
from ndparallel.planner.models.constants import Constants
from ndparallel.planner.models.shape import ModelShape

NUMBERS = {
    "norm_epsilon": "--norm-epsilon",
    "rotary_base": "--rotary-base",
    "rotary_share": "--rotary-percent",
}
ROUTER_NUMBERS = {
    "router_scaling": "--moe-router-topk-scaling-factor",
    "balance_loss": "--moe-aux-loss-coeff",
}
BALANCE, PRE_SOFTMAX = "--moe-router-load-balancing-type", "--moe-router-pre-softmax"
YARN = {"factor": "--rotary-scaling-factor", "mscale": "--mscale", "mscale_all_dim": "--mscale-all-dim"}
# what Megatron-Core's own scalings are fixed to
LLAMA3 = {"low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 8192}
STRETCHED = {  # YaRN without latent attention (megatron/training/argument_utils.py)
    "factor": YARN["factor"],
    "original_max_position_embeddings": "--yarn-original-max-position-embeddings",
    "beta_fast": "--yarn-beta-fast",
    "beta_slow": "--yarn-beta-slow",
    "mscale": YARN["mscale"],
    "mscale_all_dim": YARN["mscale_all_dim"],
}
UNROUNDED = "--no-yarn-correction-range-round-to-int"
INTERPOLATION = "--rotary-seq-len-interpolation-factor"
CLAMP, OFFSET = "--activation-func-clamp-value", "--glu-linear-offset"
YARN_FIXED = {"beta_fast": 32, "beta_slow": 1, "original_max_position_embeddings": 4096}
# what is asked of every model: its own words, Megatron-Core's default
ASKED = {"norm_epsilon": ("the norms' epsilon", "1e-05"), "rotary_base": ("the rotary base", "10000")}


def constant_flags(shape: ModelShape) -> Iterator[str]:
    """Flags of all that the file says and Megatron-Core can set."""
    given = shape.constants
    for name, flag in NUMBERS.items():
        value = getattr(given, name)
        if value is not None and (name == "norm_epsilon" or shape.position == "rotary"):
            yield f"{flag} {plain(value)}"
    yield from scaling_flags(shape)
    yield from router_flags(shape) if shape.experts else ()


def is_stretched(shape: ModelShape) -> bool:
    """Whether its positions are YaRN's, and not latent attention's."""
    return scaling_kind(shape) == "yarn" and not shape.latent


def scaling_flags(shape: ModelShape) -> Iterator[str]:
    """Latent attention is YaRN's, or without the fusion that knows no other."""
    kind, scaling = scaling_kind(shape), shape.constants.scaling
    names = STRETCHED if is_stretched(shape) else YARN
    if kind == "yarn":
        yield "--rope-type yarn" if shape.latent else ""
        yield " ".join(f"{flag} {plain(scaling[key])}" for key, flag in names.items() if key in scaling)
        yield UNROUNDED if scaling.get("truncate") is False else ""
    elif shape.latent:
        yield "--rope-type rope --no-rope-fusion"
    if kind == "llama3":
        yield f"--use-rope-scaling --rope-scaling-factor {plain(scaling['factor'])}"
    if kind == "linear":
        yield f"{INTERPOLATION} {plain(scaling['factor'])}"


def scaling_kind(shape: ModelShape) -> str:
    """How rotary positions are scaled, if Megatron-Core can do it; else nothing."""
    scaling = shape.constants.scaling
    match scaling.get("type"), bool(shape.latent):
        case "yarn", True:
            known = is_fixed(scaling, YARN_FIXED)
        case "yarn", False:
            known = "original_max_position_embeddings" in scaling and "attention_factor" not in scaling
        case "llama3", False:
            known = is_fixed(scaling, LLAMA3)
        case "linear", False:
            known = is_whole(scaling.get("factor"))
        case _:
            known = False
    return scaling["type"] if known and "factor" in scaling else ""


def is_fixed(scaling: dict[str, Any], fixed: dict[str, int]) -> bool:
    return all(scaling.get(key, value) == value for key, value in fixed.items())


def is_whole(value: Any) -> bool:
    return isinstance(value, int | float) and float(value).is_integer()


def clamp_flags(shape: ModelShape) -> str:
    """gpt-oss's activation: a quick GELU's gate, beside what it lets pass plus 1."""
    return f"--quick-geglu {OFFSET} 1 {CLAMP} {plain(shape.constants.activation_clamp)}"


def is_balanced(shape: ModelShape) -> bool:
    """Whether the router has numbers that balance its load, and not the bias that every matrix has."""
    return bool(shape.experts and shape.experts.router_bias and "mlp" not in shape.biases)


def router_flags(shape: ModelShape) -> Iterator[str]:
    """Softmax over all experts before the choice is what leaves weights as they are; with one expert it is
    all that can be."""
    given, some = shape.constants, shape.experts
    assert some
    by_sigmoid = is_balanced(shape) or given.scores == "sigmoid"
    before = not by_sigmoid and (given.renormalized is False or some.top_k == 1)
    yield PRE_SOFTMAX if before else ""
    if given.router_scaling not in (None, 1) and (before or by_sigmoid):
        yield f"{ROUTER_NUMBERS['router_scaling']} {plain(given.router_scaling)}"
    if given.balance_loss:
        kind = "seq_aux_loss" if given.balance_by_sequence else "aux_loss"
        yield f"{BALANCE} {kind} {ROUTER_NUMBERS['balance_loss']} {plain(given.balance_loss)}"


def constant_remarks(shape: ModelShape, release: str) -> Iterator[str]:
    """What the file says and no flag does, and what it does not say."""
    given = shape.constants
    named = [f"{key} {value}" for key, value in given.others]
    if given.rotary_scaling and not scaling_kind(shape):
        named.append(f"rope_scaling {', '.join(f'{key} {value}' for key, value in given.rotary_scaling)}")
    if named:
        yield f"{release} has no flags for what its config says of {'; '.join(named)}: mend the model there."
    silent = [
        f"{what} ({default})"
        for name, (what, default) in ASKED.items()
        if getattr(given, name) is None and (name == "norm_epsilon" or shape.position == "rotary")
    ]
    silent += ["the router's balance loss (0)"] * bool(shape.experts and given.balance_loss is None)
    if silent:
        yield f"Not said by the model, so as {release} has it: {', '.join(silent)}."


def plain(value: Any) -> str:
    """A number as argparse takes it: 500000, 0.707, 1e-05."""
    if not isinstance(value, int | float):
        return str(value)
    return str(int(value)) if value == int(value) else repr(float(value))


def constants_from(flags: GivenFlags) -> Constants:
    """The constants that a command line gives."""
    numbers: dict[str, Any] = {
        name: flags.fraction(flag)
        for name, flag in (NUMBERS | ROUTER_NUMBERS | {"activation_clamp": CLAMP}).items()
        if flags.has(flag) and is_number(flags.text(flag))
    }
    flags.heed("--no-rope-fusion", OFFSET)
    return Constants(
        **numbers,
        rotary_scaling=scaling_from(flags),
        renormalized=False if flags.has(PRE_SOFTMAX) else None,
        scores=flags.text(fields.SCORES) or "",
        scaled_inputs=flags.has(fields.SCALED_INPUTS),
        zero_centered=flags.has(fields.ZERO_CENTERED),
        balance_by_sequence=(flags.text(BALANCE) or "") == "seq_aux_loss" or None,
    )


def scaling_from(flags: GivenFlags) -> tuple[tuple[str, Any], ...]:
    """Latent attention is YaRN's by itself; other attention where its positions are."""
    latent = flags.has("--multi-latent-attention")
    kind = (flags.text("--rope-type") or "yarn") if latent else flags.text("--position-embedding-type")
    if kind == "yarn":
        given = [(key, flags.text(flag)) for key, flag in (YARN if latent else STRETCHED).items()]
        sizes = {"factor": 1.0} | {key: float(text) for key, text in given if text and is_number(text)}
        return (("type", "yarn"), *sizes.items(), *[("truncate", False)] * flags.has(UNROUNDED))
    if is_number(factor := flags.text(INTERPOLATION)):
        return (("type", "linear"), ("factor", float(factor or 1)))
    factor = flags.text("--rope-scaling-factor") or "8"
    if flags.has("--use-rope-scaling") and is_number(factor):
        return (("type", "llama3"), ("factor", float(factor)))
    return ()


def is_number(text: str | None) -> bool:
    try:
        float(text or "")
    except ValueError:
        return False
    return True
