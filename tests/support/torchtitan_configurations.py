"""torchtitan's own configurations, as it makes them: `python torchtitan_configurations.py ASKED ANSWERS`,
where each line of ASKED is JSON with "name", as llama3.llama3_8b, and "keys", or with "deal", four numbers.
ANSWERS gets a line for each: the values of these keys; how many layers each stage has; or a sentence on what
was wrong.
"""

import importlib
import json
import sys
from functools import reduce


def values(name: str, keys: list[str]) -> dict[str, object] | str:
    module, _, function = name.partition(".")
    try:
        config = getattr(importlib.import_module(f"torchtitan.models.{module}.config_registry"), function)()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    found = {key: reduce(getattr, key.split("."), config) for key in keys}
    policy = config.activation_checkpoint
    found["activation_checkpoint"] = policy and type(policy).__qualname__.partition(".")[0]
    return found | {"model.module": config.model_spec.name, "model.flavor": config.model_spec.flavor}


def dealt(deal: list[int]) -> list[int] | str:
    from torchtitan.distributed.pipeline_parallel import _generate_llm_fqn_per_model_part

    layers, stages, first, last = deal
    try:
        named = _generate_llm_fqn_per_model_part(stages, layers, first, last)
    except ValueError as error:
        return f"ValueError: {error}"
    return [sum(module.startswith("layers.") for module in stage) for stage in named]


if __name__ == "__main__":
    asked, answers = sys.argv[1:]
    with open(asked) as lines, open(answers, "w") as said:
        for question in map(json.loads, lines):
            answer = dealt(question["deal"]) if "deal" in question else values(**question)
            print(json.dumps(answer), file=said)
