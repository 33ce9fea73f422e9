"""1D in torch: DistributedDataParallel, ZeroRedundancyOptimizer, and fully_shard in its four ways.

Idea   The loop is one GPU's; what is averaged, sharded and gathered is said by wrapping the model or its
       units. fully_shard has no auto-wrap policy: `units` is one, by size.
Limit  There is no ZeRO-2 in torch; fully_shard that does not reshard is near to it.

Run    torchrun --nproc-per-node 4 in_pytorch/1d_data_parallel.py
"""

import installed  # noqa: F401  before torch: says in a sentence where that is missing

# isort: split
from itertools import pairwise

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from model import Transformer, loss_fn
from running import OPTIMIZERS, Job, Outcome, groups_of, main
from weights import draw


def train(job: Job, model: nn.Module, optimizer: Optimizer) -> Outcome:
    """Each rank takes its part of the batch; the mean of the parts' gradients is the wrapper's business."""
    losses = []
    for tokens, targets in job.batches(dist.get_rank(), dist.get_world_size()):
        loss = loss_fn(model(tokens), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return Outcome(losses, model)


def new_model(job: Job) -> Transformer:
    return draw(Transformer(job.config), job.config).to(job.device)


def ddp(job: Job) -> Outcome:
    """One bucket for all gradients."""
    model = DistributedDataParallel(new_model(job), bucket_cap_mb=1000)
    return train(job, model, job.make_optimizer(model.parameters()))


def ddp_overlapped(job: Job) -> Outcome:
    """Buckets of 0.1 MB, each reduced behind the rest of the backward pass."""
    model = DistributedDataParallel(new_model(job), bucket_cap_mb=0.1)
    return train(job, model, job.make_optimizer(model.parameters()))


def zero1(job: Job) -> Outcome:
    """Gradients are all-reduced; each rank steps its parameters, and broadcasts them."""
    model = DistributedDataParallel(new_model(job), bucket_cap_mb=0.1)
    kind = OPTIMIZERS[job.optimizer]
    return train(job, model, ZeroRedundancyOptimizer(model.parameters(), kind, lr=job.learning_rate))


def units(model: Transformer, least: int = 0) -> list[list[nn.Module]]:
    """Embedding, blocks and head, in runs of at least so many parameters: what FSDP gathers at once."""
    runs: list[list[nn.Module]] = [[]]
    for unit in (model.embedding, *model.layers.values(), model.head):
        if sum(weight.numel() for module in runs[-1] for weight in module.parameters()) >= max(least, 1):
            runs.append([])
        runs[-1].append(unit)
    return runs


def fsdp(job: Job, mesh=None, reshard_after_forward: bool = True, least: int = 0) -> Outcome:
    """Weights are gathered unit by unit, in the order in which they were used before."""
    model = new_model(job)
    for unit in units(model, least):
        fully_shard(unit, mesh=mesh, reshard_after_forward=reshard_after_forward)
    fully_shard(model, mesh=mesh)
    return train(job, model, job.make_optimizer(model.parameters()))


def fsdp_no_reshard(job: Job) -> Outcome:
    """Weights stay from the forward to the backward pass."""
    return fsdp(job, reshard_after_forward=False)


def fsdp_prefetch(job: Job) -> Outcome:
    """Gather the next unit while one computes: each is told its neighbours."""
    model = new_model(job)
    ordered = [fully_shard(unit) for unit in (model.embedding, *model.layers.values(), model.head)]
    fully_shard(model)
    for unit, following in pairwise(ordered):
        unit.set_modules_to_forward_prefetch([following])
        following.set_modules_to_backward_prefetch([unit])
    return train(job, model, job.make_optimizer(model.parameters()))


def fsdp_large_units(job: Job) -> Outcome:
    """The auto-wrap policy: units of at least 30,000 parameters."""
    return fsdp(job, least=30_000)


def hsdp(job: Job) -> Outcome:
    """Shards inside each node of two GPUs, replicas across."""
    shape, names = (groups_of(2), 2), ("replicate", "shard")
    return fsdp(job, init_device_mesh(job.device.type, shape, mesh_dim_names=names))


STRATEGIES = {
    "DDP ring": ddp,
    "DDP overlapped": ddp_overlapped,
    "ZeRO-1": zero1,
    "FSDP": fsdp,
    "FSDP prefetch": fsdp_prefetch,
    "FSDP no reshard": fsdp_no_reshard,
    "FSDP large units": fsdp_large_units,
    "HSDP": hsdp,
}

if __name__ == "__main__":
    main(__doc__, STRATEGIES)
