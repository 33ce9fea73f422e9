"""Megatron's flags in a YAML file, as its functional tests and NVIDIA's MoE-ModelZoo write them, as a script.

    ENV_VARS:
      CUDA_DEVICE_MAX_CONNECTIONS: 1
    MODEL_ARGS:
      --num-layers: ${LAYERS}
      --swiglu: true                # a flag without a value; false leaves it out
      --recompute-modules: "[layernorm mlp]"

Limit  Reading it takes PyYAML. Of several MODEL_ARGS (MODEL_ARGS_2, of a second run) the first counts.
"""

import importlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ndparallel.base.errors import UserError

HAS_FLAGS = re.compile(r"^MODEL_ARGS:", re.MULTILINE)
VARIABLE = re.compile(r"\$\{(\w+)\}")
PROGRAM = "pretrain_gpt.py"
MERGED = ("tag:yaml.org,2002:merge", re.compile("<<"))
LARGEST = 50_000  # characters: what is published has 6,000
MOST_ALIASES = 16  # which say again what stands elsewhere, and that again: more could grow without end


def script_of(text: str, variables: Mapping[str, str]) -> str:
    """A shell script that runs what a YAML file says, with the variables that are known; any other text as it
    is. Raises UserError for YAML that cannot be read."""
    if not HAS_FLAGS.search(text):
        return text
    said = loaded(VARIABLE.sub(lambda found: variables.get(found[1], found[0]), text))
    environment, flags = (mapping(said, key) for key in ("ENV_VARS", "MODEL_ARGS"))
    lines = [f"{name}={quoted(value)}" for name, value in environment.items() if name.isidentifier()]
    command = [PROGRAM, *(word for flag, value in flags.items() for word in words_of(flag, value))]
    return "\n".join([*lines, " ".join(command)])


def loaded(text: str) -> Any:
    """Lists and mappings of words; a number is the word that is written."""
    try:
        yaml = importlib.import_module("yaml")
    except ImportError:
        raise UserError("it is YAML, and to read that takes PyYAML: pip install pyyaml.") from None
    if len(text) > LARGEST:
        raise UserError(f"it has {len(text)} characters, more than the {LARGEST} of any list of flags.")
    words = type("Words", (yaml.SafeLoader,), {"yaml_implicit_resolvers": {"<": [MERGED]}})
    try:
        aliases = sum(isinstance(token, yaml.AliasToken) for token in yaml.scan(text))
        said = yaml.load(text, Loader=words) if aliases <= MOST_ALIASES else None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f"line {mark.line + 1}: " if mark else ""
        raise UserError(f"{line}{getattr(error, 'problem', None) or 'this is not YAML'}.") from None
    if aliases > MOST_ALIASES:
        raise UserError(f"it has more than {MOST_ALIASES} aliases (*NAME).")
    return said


def mapping(said: Any, key: str) -> dict[str, Any]:
    """What stands below a key; nothing where it is missing."""
    found = (said.get(key) if isinstance(said, dict) else None) or {}
    if not isinstance(found, dict):
        raise UserError(f"{key} must have a line `NAME: value` for each of its names.")
    return found


def words_of(flag: str, value: Any) -> Iterator[str]:
    """A flag with its values, as a shell has them."""
    values = value if isinstance(value, list) else [value]
    if not all(isinstance(each, str) for each in (flag, *values)):
        raise UserError(f"{flag} must have a value, or a list of values.")
    if value == "false":
        return
    yield flag
    if isinstance(value, list):
        yield from map(quoted, value)
    elif value.startswith("[") and value.endswith("]"):  # a list within quotes
        yield from value[1:-1].replace(",", " ").split()
    elif value != "true" and value:
        yield quoted(value)


def quoted(value: Any) -> str:
    """As one word, in which variables are replaced; some files escape what a shell would take as its own."""
    return '"' + re.sub(r'[\\"`]', "", str(value)) + '"'
