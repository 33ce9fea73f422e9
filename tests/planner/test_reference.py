"""The frozen counts of tests/support against transformers itself, where it is installed: of published models
(architectures.json), and of small ones with every setting of their family (variants.json). Each model is
built without memory (on the meta device) from the very entries that we count. What a file leaves out, and
the bytes of its loss, as torch's allocator has them."""

import inspect
import json
import re
from itertools import accumulate
from pathlib import Path

import pytest

from ndparallel.planner.models.huggingface.config import SPELLINGS, ConfigRule
from ndparallel.planner.models.huggingface.families import FAMILIES
from ndparallel.planner.software import find_stack

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
SUPPORT = Path(__file__).parents[1] / "support"
FROZEN = {
    name: entry
    for file in ("architectures.json", "variants.json")
    for name, entry in json.loads((SUPPORT / file).read_text("utf-8")).items()
}
SAME = {"kimi_k2": "deepseek_v3"}  # its files name DeepseekV3Config as their class
ALONE = {"step3p5": "Step3p7TextModel"}  # of a model that sees, which no automatic class builds


@pytest.mark.parametrize("name", FROZEN)
def test_transformers_builds_as_many_parameters_as_are_frozen(name):
    entries = FROZEN[name]["config"]
    entries = dict(entries.get("text_config", entries))
    model_type = entries.pop("model_type")
    config = transformers.AutoConfig.for_model(SAME.get(model_type, model_type), **entries)
    builders = (transformers.AutoModelForCausalLM, transformers.AutoModelForImageTextToText)
    builder = next((each for each in builders if type(config) in each._model_mapping), transformers.AutoModel)
    with torch.device("meta"):
        model = (
            getattr(transformers, ALONE[model_type])(config)
            if model_type in ALONE
            else builder.from_config(config)
        )
    model.tie_weights()
    weights = {id(weight): weight.numel() for weight in model.parameters()}  # a tied one once
    router_biases = sum(kept.numel() for name, kept in model.named_buffers() if "correction_bias" in name)
    if builder is transformers.AutoModel:  # the text's model of one that sees, without its head
        tied = getattr(config, "tie_word_embeddings", False)
        router_biases += config.vocab_size * config.hidden_size * (not tied)
    assert sum(weights.values()) + router_biases == FROZEN[name]["parameters"]


NOT_ITS_OWN = {"mimo", "bailing_moe_v2"}  # families whose code is not in transformers
COMPUTED = {("ernie4_5_moe", "last_mixed")}  # -1: the last layer's number


@pytest.mark.parametrize("model_type", sorted({*FAMILIES} - NOT_ITS_OWN))
def test_what_a_file_leaves_out_is_what_the_class_of_transformers_has(model_type):
    """Of keys that the class has; rules that follow from other keys are held by the counts above. An object
    has no window where none is used, and the class says which it would be."""
    family = FAMILIES[model_type]
    named = getattr(transformers, family.class_name, None)
    made = named() if named else transformers.AutoConfig.for_model(model_type)
    config = made.to_dict()
    config |= config.get("text_config") or {}
    for field, value in family.class_defaults().items():
        keys = {**SPELLINGS, **family.spellings}[field]
        known = [config[key] for key in keys if key in config]
        if field == "window" and "use_window" in family.defaults:
            known = [type(made).sliding_window]
        if known and not isinstance(value, ConfigRule) and (model_type, field) not in COMPUTED:
            assert value in known, field


@pytest.mark.parametrize("model_type", sorted({*FAMILIES} - NOT_ITS_OWN))
def test_norms_multiply_by_1_and_the_weight_where_the_code_of_transformers_says_so(model_type):
    family = FAMILIES[model_type]
    if named := getattr(transformers, family.class_name, None):
        files = Path(inspect.getfile(named)).parent.glob("modeling_*.py")
        code = "".join(file.read_text("utf-8") for file in files)
        centered = re.search(r"\(1(\.0)? \+ self\.weight|self\.weight \+ 1", code)
        assert family.constants.get("zero_centered", False) == bool(centered)


def test_the_loss_of_transformers_keeps_as_many_bytes_of_a_logit_as_accelerates_software_says():
    """Its Trainer keeps no outputs beside the loss (compute_loss in transformers/trainer.py)."""
    from transformers.loss.loss_utils import ForCausalLMLoss

    tokens, vocab, hidden = 64, 8192, 16
    rows = torch.randn(1, tokens, hidden, dtype=torch.bfloat16, requires_grad=True)
    head = torch.randn(vocab, hidden, dtype=torch.bfloat16, requires_grad=True)
    labels = torch.randint(0, vocab, (1, tokens))

    def loss_of(logits):
        return ForCausalLMLoss(logits, labels, vocab, num_items_in_batch=torch.tensor(tokens))

    with torch.profiler.profile(profile_memory=True) as profile:
        loss_of(torch.nn.functional.linear(rows, head)).backward()
    kept = find_stack("accelerate").logits_kept
    assert most_allocated(profile) / (tokens * vocab) == pytest.approx(kept, rel=1e-3)


def most_allocated(profile) -> int:
    """The most bytes that were allocated at one time while a profile was taken."""
    events, sizes = [*profile.profiler.kineto_results.experimental_event_tree()], []
    while events:
        event = events.pop()
        events += event.children
        if event.tag == torch._C._profiler._EventType.Allocation:
            sizes.append((event.start_time_ns, event.extra_fields.alloc_size))
    return max(accumulate(size for _, size in sorted(sizes)))
