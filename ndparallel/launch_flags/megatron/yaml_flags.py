"""Megatron's flags in a YAML file, as its functional tests and NVIDIA's MoE-ModelZoo write them, as a script.

    ENV_VARS:
      CUDA_DEVICE_MAX_CONNECTIONS: 1
    MODEL_ARGS:
      --num-layers: ${LAYERS}
      --swiglu: true                # a flag without a value; false leaves it out
      --recompute-modules: "[layernorm mlp]"

Limit  Of several MODEL_ARGS (MODEL_ARGS_2, of a second run) the first counts.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ndparallel.base.errors import UserError
from ndparallel.launch_flags.yaml_text import loaded, mapping

HAS_FLAGS = re.compile(r"^MODEL_ARGS:", re.MULTILINE)
VARIABLE = re.compile(r"\$\{(\w+)\}")
PROGRAM = "pretrain_gpt.py"


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
    """Quote a value as one word, in which variables are replaced; some files escape what a shell would take
    as its own."""
    return '"' + re.sub(r'[\\"`]', "", str(value)) + '"'
