"""Bytes on a GPU that belong to no tensor of the model: CUDA's context, the libraries' workspaces, NCCL's
buffers.

Cost   NCCL (src/include/comm.h, device.h): a channel has for each peer that it receives from a buffer for
       every protocol, 4 MiB (Simple), 512 KiB (LL: 8 lines of 512 threads, 8 steps, 16 bytes) and 4.69 MiB
       (LL128: 120 elements of 640 threads, 8 steps, 8 bytes). A ring receives from one peer.
Limit  Rings alone; NVLS and trees take more. Context and workspaces are those of Hopper and later.
"""

from ndparallel.planner.job import Plan

CUDA_CONTEXT_BYTES = 0.5e9  # kernels' code, stacks and local memory
# cuBLAS's workspace in PyTorch (aten/src/ATen/cuda/CublasHandlePool.cpp, 32 MiB from Hopper on): of the
# forward's thread, of autograd's, and Transformer Engine's or cuBLASLt's
WORKSPACE_BYTES = 3 * 32 * 2**20
NCCL_CHANNELS = 24  # of a communicator in a DGX H100, as NCCL_DEBUG=INFO prints; 16 between nodes
NCCL_CHANNEL_BYTES = 4 * 2**20 + 512 * 512 * 2 + 120 * 640 * 8 * 8
AXES = ("tp", "pp", "dp", "ep", "cp")


def context_bytes(plan: Plan):
    """What is there before the first tensor, with a communicator for every axis of the mesh."""
    communicators = sum(1 * (getattr(plan, axis) > 1) for axis in AXES)
    return CUDA_CONTEXT_BYTES + communicators * NCCL_CHANNELS * NCCL_CHANNEL_BYTES + WORKSPACE_BYTES
