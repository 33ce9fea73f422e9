"""The frozen counts of tests/support/architectures.json against transformers itself, where it is installed:
each model is built without memory (on the meta device) from the very entries that we count."""

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
ARCHITECTURES = json.loads((Path(__file__).parents[1] / "support" / "architectures.json").read_text("utf-8"))
SAME = {"kimi_k2": "deepseek_v3"}  # its files name DeepseekV3Config as their class


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_transformers_builds_as_many_parameters_as_are_frozen(name):
    entries = ARCHITECTURES[name]["config"]
    entries = dict(entries.get("text_config", entries))
    model_type = entries.pop("model_type")
    config = transformers.AutoConfig.for_model(SAME.get(model_type, model_type), **entries)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    model.tie_weights()
    weights = {id(weight): weight.numel() for weight in model.parameters()}  # a tied one once
    router_biases = sum(kept.numel() for name, kept in model.named_buffers() if "correction_bias" in name)
    assert sum(weights.values()) + router_biases == ARCHITECTURES[name]["parameters"]
