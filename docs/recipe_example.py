"""A recipe for torchtitan, as `ndparallel plan --from-torchtitan` reads it: Llama 3 8B on 64 GPUs."""

from torchtitan.distributed.activation_checkpoint import FullAC
from torchtitan.models.llama3.config_registry import llama3_8b


def on_eight_nodes():
    config = llama3_8b()
    config.training.local_batch_size = 2
    config.training.disable_cuda_graphs = True
    config.parallelism.tensor_parallel_degree = 2
    config.parallelism.data_parallel_replicate_degree = 4
    config.activation_checkpoint = FullAC.Config()
    config.compile.enable = True
    return config
