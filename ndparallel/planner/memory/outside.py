"""Bytes on a GPU that belong to no tensor of the model: CUDA's context, the libraries' workspaces, NCCL's
buffers.

Cost   NCCL (src/init.cc, computeBuffSizes): a channel has for each peer that it receives from a buffer for
       every protocol, 4 MiB (Simple), 512 KiB (LL: 8 lines of 512 threads, 8 steps, 16 bytes) and 4.69 MiB
       (LL128: 120 elements of 640 threads, 8 steps, 8 bytes). A ring receives from one peer.
Limit  Rings alone; NVLS and trees take more. All communicators have the channels of a node of A100s or H100s:
       between nodes there are 16, and fewer where a communicator has one GPU in each (77 MB and more too
       much for each), and 32 in a node of Blackwell (77 MB too few). Context and workspaces are those of
       Hopper and later.
"""

from ndparallel.planner.job import Plan

# kernels' code, stacks and local memory: 0.29 GB when PyTorch has loaded none of its kernels, 0.67 GB with
# all (pytorch/pytorch, pull request 86509); a training needs some
CUDA_CONTEXT_BYTES = 0.5e9
# cuBLAS's workspace in PyTorch (aten/src/ATen/cuda/CublasHandlePool.cpp, 32 MiB from Hopper on): of the
# forward's thread, of autograd's, and Transformer Engine's or cuBLASLt's
WORKSPACE_BYTES = 3 * 32 * 2**20
# of a communicator in a node of A100s or H100s: 6 rings at 40 or 60 GB/s share 12 links of 20 GB/s, or 18 of
# 20.6 (src/graph/search.cc, speedArrayIntra; topo.h), and are doubled where they are found
# (ncclTopoDupChannels) and where they are connected (connect.cc, ncclTopoPostset). Between nodes 8 rings at
# 48, one for a port, are doubled once: 16; on Blackwell 8 at 90 in a node twice: 32
NCCL_CHANNELS = 24
NCCL_CHANNEL_BYTES = 4 * 2**20 + 512 * 512 * 2 + 120 * 640 * 8 * 8
AXES = ("tp", "pp", "dp", "ep", "cp")


def context_bytes(plan: Plan):
    """What is there before the first tensor, with a communicator for every axis of the mesh."""
    communicators = sum(1 * (getattr(plan, axis) > 1) for axis in AXES)
    return CUDA_CONTEXT_BYTES + communicators * NCCL_CHANNELS * NCCL_CHANNEL_BYTES + WORKSPACE_BYTES
