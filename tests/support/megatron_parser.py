"""Megatron-Core's own reading of command lines, without a GPU: `python megatron_parser.py ASKED ANSWERS`,
where each line of ASKED is JSON with "words" and "gpus", and ANSWERS gets a line for each: null, or what was
wrong.

parse_args, validate_args and TransformerConfig are Megatron's. Played are the GPU and TransformerEngine,
which they ask for versions and fused kernels.
"""

import contextlib
import io
import json
import os
import sys
import types
import typing
import warnings
from typing import Any

import typing_extensions

ADDED = "--train-iters 10 --lr 1e-4 --mock-data --tokenizer-type NullTokenizer"  # what no plan knows


def megatron() -> Any:
    """Megatron's module of arguments. Its release is for Python 3.12; on 3.11 it lacks one name."""
    vars(typing).setdefault("override", typing_extensions.override)
    import torch

    torch.cuda.get_device_capability = lambda *ignored: (9, 0)
    torch.cuda.get_device_properties = lambda *ignored: types.SimpleNamespace(major=9, minor=0)
    from megatron.core import utils
    from megatron.core.models.common.embeddings import rope_utils
    from megatron.core.transformer.moe import moe_utils
    from megatron.training import arguments
    from packaging.version import Version

    utils._te_version = Version("2.14.0")
    rope_utils.fused_apply_rotary_pos_emb = rope_utils.fused_apply_rotary_pos_emb_thd = object()
    for name in vars(moe_utils):
        if name.startswith("fused_"):
            setattr(moe_utils, name, object())
    return arguments


def wrong(arguments: Any, words: list[str], gpus: int, environment: dict[str, str]) -> str | None:
    os.environ |= {"WORLD_SIZE": f"{gpus}", "RANK": "0", "LOCAL_RANK": "0"}
    os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
    os.environ |= environment
    sys.argv = ["pretrain_gpt.py", *words, *ADDED.split()]
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            given = arguments.parse_args()
            arguments.validate_args(given)
            given.padded_vocab_size = given.vocab_size
            arguments.core_transformer_config_from_args(given)
    except (Exception, SystemExit) as error:
        return f"{type(error).__name__}: {error}"
    return None


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    asked, answers = sys.argv[1:]
    parser = megatron()
    with open(asked) as lines, open(answers, "w") as said:
        for line in map(json.loads, lines):
            print(json.dumps(wrong(parser, line["words"], line["gpus"], line["environment"])), file=said)
