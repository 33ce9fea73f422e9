"""2D in torch: parallelize_module with a plan for the blocks, alone and on a mesh with fully_shard.

Idea   A plan says of each module how its weight is cut and in which layout its input and output are; DTensor
       finds the collectives. PrepareModuleInput gathers what q, k and v (or gate and up) share once: four
       collectives a layer, where each of these modules would gather for itself otherwise.
Limit  A plan cannot share a key-value head among ranks: here are as many KV heads as ranks, and at least
       the lessons' two.

Run    torchrun --nproc-per-node 4 in_pytorch/2d_tensor_parallel.py
"""

import installed  # noqa: F401  before torch: says in a sentence where that is missing

# isort: split
from dataclasses import replace

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

from model import Transformer, loss_fn
from running import Job, Outcome, groups_of, main, share
from weights import draw


def tensor_parallel(model: Transformer, tp: DeviceMesh, sequence_parallel: bool) -> nn.Module:
    """Cut a model, or a stage of one. Between the pairs of matmuls activations are whole, or cut along the
    sequence."""
    between = Shard(1) if sequence_parallel else Replicate()
    whole = PrepareModuleInput(input_layouts=between, desired_input_layouts=Replicate())
    norms = {"norm1": SequenceParallel(), "norm2": SequenceParallel()} if sequence_parallel else {}
    block = norms | {
        "attention": whole,
        "attention.q": ColwiseParallel(),
        "attention.k": ColwiseParallel(),
        "attention.v": ColwiseParallel(),
        "attention.out": RowwiseParallel(output_layouts=between),
        "mlp": whole,
        "mlp.gate": ColwiseParallel(),
        "mlp.up": ColwiseParallel(),
        "mlp.down": RowwiseParallel(output_layouts=between),
    }
    ends = {
        "embedding.table": RowwiseParallel(input_layouts=Replicate(), output_layouts=between),
        "head.logits": ColwiseParallel(
            input_layouts=between, output_layouts=Shard(-1), use_local_output=False
        ),
    }
    if sequence_parallel:
        ends["head.norm"] = SequenceParallel()
    for layer in model.layers.values():
        parallelize_module(layer, tp, block)
    held = dict(model.named_modules())
    return parallelize_module(model, tp, {name: style for name, style in ends.items() if name in held})


def train(job: Job, model: nn.Module, dp_rank: int = 0, dp: int = 1) -> Outcome:
    """One GPU's loop; the loss is computed from logits that stay cut by the vocabulary."""
    optimizer, losses = job.make_optimizer(model.parameters()), []
    for tokens, targets in job.batches(dp_rank, dp):
        with loss_parallel():
            loss = loss_fn(model(tokens), targets)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.full_tensor().detach())
    return Outcome(losses, model)


def new_model(job: Job, tp: int) -> Transformer:
    share(job.config.heads, "heads", tp)
    config = replace(job.config, kv_heads=max(job.config.kv_heads, tp))
    return draw(Transformer(config), config).to(job.device)


def tp(job: Job, sequence_parallel: bool = False) -> Outcome:
    mesh = init_device_mesh(job.device.type, (dist.get_world_size(),))
    return train(job, tensor_parallel(new_model(job, mesh.size()), mesh, sequence_parallel))


def tp_sp(job: Job) -> Outcome:
    """The same with norms and residuals cut along the sequence."""
    return tp(job, sequence_parallel=True)


def tp_fsdp(job: Job) -> Outcome:
    """TP inside nodes of two GPUs, FSDP across them: each slice is sharded once more."""
    nodes = groups_of(2)
    mesh = init_device_mesh(job.device.type, (nodes, 2), mesh_dim_names=("dp", "tp"))
    model = tensor_parallel(new_model(job, 2), mesh["tp"], sequence_parallel=True)
    for unit in (model.embedding, *model.layers.values(), model.head):
        fully_shard(unit, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    return train(job, model, mesh.get_local_rank("dp"), nodes)


STRATEGIES = {"TP": tp, "TP + SP": tp_sp, "TP x FSDP": tp_fsdp}

if __name__ == "__main__":
    main(__doc__, STRATEGIES)
