"""4D in torch: a plan for TP, fully_shard for DP and a schedule for PP on one device mesh.

Idea   Each axis of the mesh is cut by the tool of its own lesson, from the inside out: the plan cuts the
       matrices of a stage, fully_shard their slices, and the schedule runs the stages.
Limit  What does not compose in torch's public library today: expert parallelism, for which there is no
       module; context_parallel, which is experimental, and a ring of one axis; ZeroRedundancyOptimizer and
       DistributedDataParallel with parameters that are DTensors. torchtitan and Megatron-Core write these.

Run    torchrun --nproc-per-node 8 in_pytorch/4d_combined.py    (4 processes will do; the rest is DP)
"""

import installed  # noqa: F401  before torch: says in a sentence where that is missing

# isort: split
from functools import partial
from importlib import import_module

import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import loss_parallel

from model import Transformer
from running import Job, Outcome, groups_of, main
from weights import draw

tensor_parallel = import_module("2d_tensor_parallel").tensor_parallel
new_schedule = import_module("3d_pipeline_parallel").new_schedule


def combined(job: Job, tp: int, pp: int) -> Outcome:
    """TP inside, FSDP around it, and the pipeline outermost."""
    shape = (pp, groups_of(pp * tp), tp)
    mesh = init_device_mesh(job.device.type, shape, mesh_dim_names=("pp", "dp", "tp"))
    stage, dp_rank = mesh.get_local_rank("pp"), mesh.get_local_rank("dp")
    model = draw(Transformer(job.config, stage, pp), job.config).to(job.device)
    if tp > 1:
        tensor_parallel(model, mesh["tp"], sequence_parallel=True)
    if mesh["dp"].size() > 1:
        for unit in (model.embedding, *model.layers.values(), model.head):
            if len(list(unit.parameters())):
                fully_shard(unit, mesh=mesh["dp"], reshard_after_forward=False)
        fully_shard(model, mesh=mesh["dp"], reshard_after_forward=False)
    pipeline_stage = PipelineStage(model, stage, pp, job.device, group=mesh.get_group("pp"))
    pipeline = new_schedule(Schedule1F1B, pipeline_stage, job, mesh["dp"].size())
    optimizer, losses = job.make_optimizer(model.parameters()), []
    for tokens, targets in job.batches(dp_rank, mesh["dp"].size()):
        found: list[Tensor] = []
        inputs = (tokens,) if stage == 0 else ()
        with loss_parallel():
            pipeline.step(*inputs, target=targets, losses=found, return_outputs=False)
        losses += [whole(torch.stack(found).mean())] if found else []
        optimizer.step()
        optimizer.zero_grad()
    return Outcome(losses, model)


def whole(loss: Tensor) -> Tensor:
    """The loss, also where it is a DTensor of the tensor-parallel ranks."""
    return (loss.full_tensor() if hasattr(loss, "full_tensor") else loss).detach()


STRATEGIES = {
    "TP2 x PP2": partial(combined, tp=2, pp=2),
    "TP2 x DP": partial(combined, tp=2, pp=1),
    "PP2 x DP": partial(combined, tp=1, pp=2),
}

if __name__ == "__main__":
    main(__doc__, STRATEGIES, microbatches=Job.microbatches)
