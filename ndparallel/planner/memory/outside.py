"""Bytes on a GPU that belong to no tensor of the model: CUDA's context, the libraries' workspaces, NCCL's
buffers.

Cost   NCCL (src/init.cc, computeBuffSizes): a channel has for each peer that it receives from a buffer for
       every protocol, 4 MiB (Simple), 512 KiB (LL: 8 lines of 512 threads, 8 steps, 16 bytes) and 4.69 MiB
       (LL128: 120 elements of 640 threads, 8 steps, 8 bytes). A ring receives from one peer.
Limit  Rings alone; NVLS and trees take more. Every communicator has the channels of one in a node: between
       nodes there are fewer (16 for eight ports of 400 Gb/s, 4 where a group has one GPU in each node: 77 MB
       and 190 MB too much for each). Context and workspaces are those of Hopper and later.

Glossary
    channel    one ring of NCCL's, with its buffers
"""

from gpu import Hardware
from ndparallel.hardware.accelerator import inside_fraction
from ndparallel.planner.job import Plan, TrainingJob

# kernels' code, stacks and local memory: 0.29 GB when PyTorch has loaded none of its kernels, 0.67 GB with
# all (pytorch/pytorch, pull request 86509); a training needs some
CUDA_CONTEXT_BYTES = 0.5e9
# cuBLAS's workspace in PyTorch (aten/src/ATen/cuda/CublasHandlePool.cpp, 32 MiB from Hopper on): of the
# forward's thread, of autograd's, and Transformer Engine's or cuBLASLt's
WORKSPACE_BYTES = 3 * 32 * 2**20
NCCL_CHANNEL_BYTES = 4 * 2**20 + 512 * 512 * 2 + 120 * 640 * 8 * 8
# rings in a node (src/graph/search.cc, speedArrayIntra; topo.h): of 40 GB/s on an A100's 12 links of 20, of
# 60 on an H100's 18 of 20.6, of 90 on Blackwell's 720
RINGS, BLACKWELL_RINGS, BLACKWELL_NVLINK = 6, 8, 720e9
AXES = ("tp", "pp", "dp", "ep", "cp")


def context_bytes(job: TrainingJob, plan: Plan):
    """What is there before the first tensor, with a communicator for every axis of the mesh."""
    communicators = sum(1 * (getattr(plan, axis) > 1) for axis in AXES)
    buffers = communicators * channels_of(job.hardware) * NCCL_CHANNEL_BYTES
    return CUDA_CONTEXT_BYTES + buffers + WORKSPACE_BYTES


def channels_of(hardware: Hardware) -> int:
    """Channels of a communicator in a node: its rings are doubled where they are found (search.cc,
    ncclTopoDupChannels), and where they are connected (connect.cc, ncclTopoPostset)."""
    nvlink = hardware.inside.bandwidth_bytes_per_second / inside_fraction(hardware)
    return 4 * (BLACKWELL_RINGS if nvlink >= BLACKWELL_NVLINK else RINGS)
