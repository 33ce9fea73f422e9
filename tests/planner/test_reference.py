"""The frozen counts of tests/support against transformers itself, where it is installed: of published models
(architectures.json), and of small ones with every setting of their family (variants.json). Each model is
built without memory (on the meta device) from the very entries that we count."""

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
SUPPORT = Path(__file__).parents[1] / "support"
FROZEN = {
    name: entry
    for file in ("architectures.json", "variants.json")
    for name, entry in json.loads((SUPPORT / file).read_text("utf-8")).items()
}
SAME = {"kimi_k2": "deepseek_v3"}  # its files name DeepseekV3Config as their class


@pytest.mark.parametrize("name", FROZEN)
def test_transformers_builds_as_many_parameters_as_are_frozen(name):
    entries = FROZEN[name]["config"]
    entries = dict(entries.get("text_config", entries))
    model_type = entries.pop("model_type")
    config = transformers.AutoConfig.for_model(SAME.get(model_type, model_type), **entries)
    builders = (transformers.AutoModelForCausalLM, transformers.AutoModelForImageTextToText)
    builder = next((each for each in builders if type(config) in each._model_mapping), transformers.AutoModel)
    with torch.device("meta"):
        model = builder.from_config(config)
    model.tie_weights()
    weights = {id(weight): weight.numel() for weight in model.parameters()}  # a tied one once
    router_biases = sum(kept.numel() for name, kept in model.named_buffers() if "correction_bias" in name)
    if builder is transformers.AutoModel:  # the text's model of one that sees, without its head
        router_biases += config.vocab_size * config.hidden_size
    assert sum(weights.values()) + router_biases == FROZEN[name]["parameters"]
