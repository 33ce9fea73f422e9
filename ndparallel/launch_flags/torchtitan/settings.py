"""What a torchtitan job sets, from wherever it is written.

Idea   A recipe of Python, a file of TOML (before release 0.3), a command line, and a configuration of
       torchtitan's own that it starts from: each gives fields with their values, by the dotted names of the
       release, and what comes later counts. Of a model they keep how it is named and converted.
Limit  Older names are known as far back as 0.2.0.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from ndparallel.base.errors import UserError, check_known, unknown
from ndparallel.base.files import parse_toml, read_text
from ndparallel.base.quoting import brief
from ndparallel.launch_flags.frozen import frozen
from ndparallel.launch_flags.settings import Configuration, Settings, flat, read_value
from ndparallel.launch_flags.shell.files import beside
from ndparallel.launch_flags.shell.words import LARGEST
from ndparallel.launch_flags.torchtitan.recipe_file import Call, Words, chosen, recipes_in

SECTIONS = frozenset({"training", "parallelism", "compile", "debug"})
PACKAGE = re.compile(r"(?:torchtitan\.models\.)?(?P<module>\w+)(?:\.config_registry)?")
REGISTRY = re.compile(r"torchtitan\.models\.(?P<module>\w+)\.config_registry\.(?P<name>\w+)")
OLDER = {
    "model.name": "model.module",
    "parallelism.enable_async_tensor_parallel": "compile.enable_async_tensor_parallel",
    "parallelism.expert_parallel_comm_backend": "model.moe_comm_backend",
    "activation_checkpoint.mode": "activation_checkpoint",
    # of 2024 (torchtitan/config_manager.py)
    "training.batch_size": "training.local_batch_size",
    "training.compile": "compile.enable",
    "experimental.enable_async_tensor_parallel": "compile.enable_async_tensor_parallel",
    "training.data_parallel_replicate_degree": "parallelism.data_parallel_replicate_degree",
    "training.data_parallel_shard_degree": "parallelism.data_parallel_shard_degree",
    "training.fsdp_reshard_after_forward": "parallelism.fsdp_reshard_after_forward",
    "training.tensor_parallel_degree": "parallelism.tensor_parallel_degree",
    "experimental.context_parallel_degree": "parallelism.context_parallel_degree",
    "experimental.pipeline_parallel_degree": "parallelism.pipeline_parallel_degree",
    "experimental.pipeline_parallel_schedule": "parallelism.pipeline_parallel_schedule",
}
OLDER_FLOAT8 = "float8.enable_float8_linear"  # of 2024, when nothing else named a converter
OLDER_CONVERTERS = {
    "float8": "Float8LinearConverter {recipe}",
    "quantize.linear.float8": "Float8LinearConverter {recipe}",
    "quantize.grouped_mm.float8": "Float8GroupedExpertsConverter",
    "mx": "MXFP8LinearConverter",
    "quantize.linear.mx": "MXFP8LinearConverter",
    "quantize.grouped_mm.mx": "MXFP8GroupedExpertsConverter",
}
POLICIES = {"selective": "SelectiveAC", "full": "FullAC", "memory_budget": "MemoryBudgetAC", "none": None}
OLDER_DEFAULTS = {
    "activation_checkpoint.mode": "selective",
    "activation_checkpoint.selective_ac_option": "2",
    "training.disable_cuda_graphs": True,
}
ROTATION = "parallelism.context_parallel_rotate_method"
EXPERT_TP = "parallelism.expert_tensor_parallel_degree"
GONE = {  # names that the release no longer has
    *(ROTATION, EXPERT_TP, "parallelism.disable_loss_parallel", "training.dataset", "training.dataset_path"),
    "parallelism.pipeline_parallel_expert_parallel_overlap",
}


@dataclass
class TorchtitanSettings(Settings):
    defaults: Mapping[str, Any] = field(default_factory=lambda: frozen("torchtitan")["defaults"])

    def value(self, key: str) -> Any:
        """A setting, or torchtitan's default. Raises UserError for one that only Python could work out."""
        value = super().value(key)
        if isinstance(value, Call | Words):
            words = value.words if isinstance(value, Call) else value
            raise UserError(
                f"{key} = {words[:80]} is not worked out here: give its value with --script-arguments "
                f'"--{key} ...".'
            )
        return value


# ---------------------------------------------------------------------------- torchtitan's own configurations


@cache
def own_configurations() -> Mapping[str, Configuration]:
    """torchtitan's own configurations, as "llama3.llama3_8b": what they set."""
    return frozen("torchtitan")["configurations"]


def own_configuration(module: str, name: str) -> Configuration:
    """One of them by its name. Raises UserError for one that torchtitan does not have."""
    if (full := f"{module}.{name}") not in own_configurations():
        modules = sorted({each.partition(".")[0] for each in own_configurations()})
        check_known("module of torchtitan", module, modules)
        own = [each for each in own_configurations() if each.startswith(f"{module}.")]
        raise unknown(f"configuration of {module}", name, [each.partition(".")[2] for each in own])
    return dict(own_configurations()[full])


def imported_configuration(name: str) -> Configuration | None:
    """The configuration of a function by its full name; None where it is none of torchtitan's."""
    found = REGISTRY.fullmatch(name)
    return own_configuration(found["module"], found["name"]) if found else None


# ---------------------------------------------------------------------------------------------------- recipes


def of_recipe(text: str, name: str | None, folder: Path | None = None) -> Configuration:
    """The settings of a function in Python. Raises UserError for what is no recipe."""
    package = f"torchtitan.models.{folder.name}" if folder else ""
    try:
        return settled(chosen(recipes_in(text, SECTIONS, imported_configuration, package), name))
    except RecursionError:
        raise UserError("an expression in it is nested too deeply.") from None


def settled(configuration: Configuration) -> Configuration:
    """The configuration with its calls as what they name: a model's flavor, recomputation, converters."""
    found = dict(configuration)
    if isinstance(model := found.pop("model_spec", None), Call):
        found = {key: value for key, value in found.items() if not key.startswith("model.")}
        found |= of_model(model)
    if isinstance(policy := found.get("activation_checkpoint"), Call):
        found["activation_checkpoint"] = last_name(policy)
    return found


def of_model(model: Call) -> Configuration:
    """What model_registry("8B", converters=[...]) names."""
    found = {f"model.{option}": value for option, value in model.options.items()}
    if model.arguments:
        found["model.flavor"] = model.arguments[0]
    if isinstance(given := found.get("model.converters"), list):
        found["model.converters"] = [converter(each) for each in given]
    return found | {"model.module": model.name.removeprefix("torchtitan.models.").partition(".")[0]}


def converter(made: Any) -> str:
    """The name of a converter, and behind it its recipe."""
    if not isinstance(made, Call):
        return str(made)
    return " ".join(filter(None, [last_name(made), str(made.options.get("recipe_name", ""))]))


def last_name(call: Call) -> str:
    """FullAC of torchtitan.distributed.activation_checkpoint.FullAC.Config."""
    return call.name.removesuffix(".Config").rpartition(".")[2]


# ------------------------------------------------------------------------------------------------------- TOML


def of_toml(text: str) -> Configuration | None:
    """The settings of a file of TOML, and its release's defaults; None for what is none."""
    try:
        tables = parse_toml(text)
    except (ValueError, RecursionError):
        return None
    return OLDER_DEFAULTS | flat(tables) if any(map(tables.get, SECTIONS)) else None


def renamed(given: Configuration) -> Configuration:
    """The settings by today's names, whatever release they are of."""
    found = {OLDER.get(key, key): value for key, value in given.items()}
    if isinstance(policy := found.get("activation_checkpoint"), str):
        found["activation_checkpoint"] = POLICIES.get(policy, policy)
    if found.pop(OLDER_FLOAT8, False) is True:
        found.setdefault("model.converters", ["float8"])
    if converters := found.get("model.converters"):
        recipe = found.get("quantize.linear.float8.recipe_name") or found.get("float8.recipe_name")
        names = map(str, converters if isinstance(converters, list) else [converters])
        older = {name: now.format(recipe=recipe or "tensorwise") for name, now in OLDER_CONVERTERS.items()}
        found["model.converters"] = [older.get(name, name) for name in names]
    return found


def idle_tables(settings: Settings) -> list[str]:
    """Tables of converters that model.converters does not name, so that nothing is converted."""
    named = {name.split()[0] for name in settings.texts("model.converters")}
    idle = [table for table, now in OLDER_CONVERTERS.items() if now.split()[0] not in named]
    return [table for table in idle if any(key.startswith(f"{table}.") for key in settings.given)]


# ---------------------------------------------------------------------------------------------- command lines


def of_words(words: Iterable[str]) -> Configuration:
    """What a command line sets: --training.seq_len 4096, --training.seq-len=4096, --compile.enable,
    --training.no-disable-cuda-graphs, activation-checkpoint:full."""
    found: Configuration = {}
    left = [*words][::-1]
    while left:
        word = left.pop()
        if word.startswith("activation-checkpoint:") or word.startswith("activation_checkpoint:"):
            found["activation_checkpoint"] = word.partition(":")[2].replace("-", "_")
        if not word.startswith("--"):
            continue
        key, equals, value = word[2:].partition("=")
        if not equals and left and not left[-1].startswith("--") and ":" not in left[-1]:
            value, equals = left.pop(), " "
        found |= switched(key.replace("-", "_"), read_value(value) if equals else True)
    return found


def switched(key: str, value: Any) -> Configuration:
    """A field; of one that "no_" switches off, False."""
    section, _, name = key.rpartition(".")
    off = name.startswith("no_") and value is True
    return {f"{section}.{name[3:]}": False} if off else {key: value}


def of_command(words: list[str], folder: Path | None) -> Configuration:
    """The settings of torchtitan's command line: those of the configuration that it names, and its own.

    Raises UserError where it names none, or one that is not found.
    """
    own = of_words(words)
    module, name, file = (own.pop(key, None) for key in ("module", "config", "job.config_file"))
    if file:
        return found_toml(str(file), folder) | own
    if not name:
        raise UserError(
            "it names no configuration: give --module and --config, or --job.config_file of older releases."
        )
    return found_configuration(str(module), str(name), folder) | own


def found_configuration(module: str, name: str, folder: Path | None) -> Configuration:
    """A configuration of torchtitan's own, or of a file in the folder."""
    path = beside(module.replace(".", "/") + ".py", folder)
    if path:
        return of_recipe(read_text(path, 4 * LARGEST), name)
    found = PACKAGE.fullmatch(module)
    return own_configuration(found["module"] if found else module, name)


def found_toml(file: str, folder: Path | None) -> Configuration:
    """The settings of a TOML file that lies in the folder, by its path or its name."""
    path = beside(file, folder) or beside(file.rpartition("/")[2], folder)
    if not path:
        raise UserError(
            f"it takes its settings from {brief(file)}, which is not found: put it beside this file."
        )
    if (found := of_toml(read_text(path, 4 * LARGEST))) is None:
        raise UserError(f"it takes its settings from {brief(file)}, which is no TOML of torchtitan.")
    return found


def lacking_keys(settings: Configuration) -> list[str]:
    """The keys that the release does not have."""
    names = {*frozen("torchtitan")["keys"], *GONE}
    return [key for key in settings if key.partition(".")[0] in SECTIONS and key not in names]
