"""Claims about Megatron's flags in YAML."""

import sys

import pytest

from ndparallel.base.errors import UserError
from ndparallel.launch_flags.megatron.read import read_megatron
from ndparallel.launch_flags.reading import Beside, Reading
from tests.launch_flags.test_flags import H100, LINE

YAML = """
ENV_VARS:
  LAYERS: 8
COMMON: &common
  --seq-length: 2048
  --max-position-embeddings: 2048
  --bf16: true
MODEL_ARGS:
  <<: *common
  --num-layers: ${LAYERS}   # the variable of above
  --hidden-size: 1024
  --num-attention-heads: 16
  --swiglu: true
  --disable-bias-linear: false
  --padded-vocab-size: 50304
  --tensor-model-parallel-size: ${TP}
  --sequence-parallel: ${SP}
  --micro-batch-size: 1
  --global-batch-size: 0x10
  --recompute-granularity: selective
  --recompute-modules: "[layernorm mlp]"
  --num-experts: 8
  --moe-layer-freq: ([0]*2+[1]*6)
  --moe-router-topk: 2
METRICS:
  - "iteration-time"
"""
FLAGS = (
    "pretrain_gpt.py --seq-length 2048 --max-position-embeddings 2048 --bf16 --num-layers 8 "
    "--hidden-size 1024 --num-attention-heads 16 --swiglu "
    "--padded-vocab-size 50304 --tensor-model-parallel-size 2 --sequence-parallel --micro-batch-size 1 "
    "--global-batch-size 16 --recompute-granularity selective --recompute-modules layernorm mlp "
    "--num-experts 8 --moe-layer-freq '([0]*2+[1]*6)' --moe-router-topk 2"
)


def read(text: str, **given: str) -> Reading:
    return read_megatron(text, H100, Beside(gpus=8, variables=given))


def test_flags_in_yaml_are_read_as_on_a_command_line():
    """With lists in quotes, flags without a value, variables, and what is merged from elsewhere."""
    text = YAML.replace("0x10", "16")
    assert read(text, TP="2", SP="true") == read(FLAGS)
    listed = text.replace('"[layernorm mlp]"', "[layernorm, mlp]")
    assert read(listed, TP="2", SP="true") == read(FLAGS)


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ("line 16: --tensor-model-parallel-size must be a whole number, not '..TP.'.* --set TP=VALUE", YAML),
        ("line 19: --global-batch-size must be a whole number, not '0x10'", YAML.replace("${TP}", "2")),
        ("line 3: ", "MODEL_ARGS:\n  --swiglu: true\n\t--bf16: true"),
        ("MODEL_ARGS must have a line `NAME: value`", "MODEL_ARGS:\n- --swiglu"),
        ("--swiglu must have a value", "MODEL_ARGS:\n  --swiglu: [[true]]"),
        ("more than 16 aliases", "A: &a [x]\nMODEL_ARGS:\n" + "".join(f"  --f{n}: *a\n" for n in range(17))),
        ("more than the 50000", "MODEL_ARGS:\n" + "  # much\n" * 6000),
        ("more than 50 brackets in one another", "MODEL_ARGS: " + "[" * 5000),
        ("expected", "MODEL_ARGS: " + "[" * 50),
    ],
)
def test_yaml_that_cannot_be_read_is_one_sentence(said, text):
    with pytest.raises(UserError, match=said):
        read(text, SP="true")


def test_without_pyyaml_a_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(UserError, match="pip install pyyaml"):
        read(YAML)
    assert read(LINE).job.shape.layers == 32
