"""Megatron-Core's own reading of command lines, without a GPU: `python megatron_parser.py ASKED ANSWERS`,
where each line of ASKED is JSON with "words", "gpus", "environment" and "capability", the GPU's, and ANSWERS
gets a line for each: null, or what was wrong.

parse_args, validate_args, TransformerConfig and the groups of ranks are Megatron's. Played are the GPU and
TransformerEngine, which they ask for versions and fused kernels, and the other ranks.
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

    stand_in(torch.cuda, [9, 0])
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


def stand_in(cuda: Any, capability: list[int]) -> None:
    """Play a GPU of this compute capability."""
    major, minor = capability
    cuda.get_device_capability = lambda *ignored: (major, minor)
    cuda.get_device_properties = lambda *ignored: types.SimpleNamespace(major=major, minor=minor)


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
            join_groups(given)
    except (Exception, SystemExit) as error:
        return f"{type(error).__name__}: {error}"
    return None


def join_groups(given: Any) -> None:
    """As a rank of many, join the groups of the parallel degrees, and those of Megatron-FSDP."""
    from megatron.core import parallel_state
    from torch import distributed
    from torch.testing._internal.distributed.fake_pg import FakeStore

    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=given.world_size)
    try:
        parallel_state.initialize_model_parallel(
            given.tensor_model_parallel_size,
            given.pipeline_model_parallel_size,
            given.virtual_pipeline_model_parallel_size,
            context_parallel_size=given.context_parallel_size,
            expert_model_parallel_size=given.expert_model_parallel_size,
            expert_tensor_parallel_size=given.expert_tensor_parallel_size,
            num_distributed_optimizer_instances=given.num_distributed_optimizer_instances,
            create_gloo_process_groups=False,
        )
        if given.use_megatron_fsdp:
            make_meshes(parallel_state, given)
    finally:
        parallel_state.destroy_model_parallel()
        distributed.destroy_process_group()


def make_meshes(state: Any, given: Any) -> None:
    """The meshes of weights and of experts, as _init_dist_index in mcore_fsdp_adapter.py makes them."""
    from megatron.core.distributed.fsdp import mcore_fsdp_adapter as adapter

    several = given.num_distributed_optimizer_instances > 1
    replicas = [state.get_inter_distributed_optimizer_instance_group()] if several else []
    mesh = adapter._get_hsdp_tp_mesh if several else adapter._get_dp_tp_mesh
    shards = state.get_data_parallel_group(with_context_parallel=True, partial_data_parallel=several)
    mesh(*replicas, shards, state.get_tensor_model_parallel_group())
    if given.num_experts:
        shards = state.get_expert_data_parallel_group(partial_expert_data_parallel=several)
        parts = given.expert_model_parallel_size
        mesh(*replicas, shards, state.get_expert_tensor_parallel_group(), ep_size=parts)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    asked, answers = sys.argv[1:]
    parser = megatron()
    with open(asked) as lines, open(answers, "w") as said:
        for line in map(json.loads, lines):
            stand_in(sys.modules["torch"].cuda, line["capability"])
            print(json.dumps(wrong(parser, line["words"], line["gpus"], line["environment"])), file=said)
