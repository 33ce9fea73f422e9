"""The pocket GPU: an H100 scaled down like a model in a wind tunnel.

Idea   A model that trains on a laptop in a second has, on this hardware, the same ratio of compute to
       communication as Llama-3-70B on H100s, so that what a lesson shows at eight layers of width 32 is what
       happens at eighty of width 8192. Time is not scaled: a pocket layer takes the milliseconds of a Llama
       layer.
Limit  What cannot be met: a message between pipeline stages (see below), the share of attention (15% of the
       FLOPs here, 7% there), and memory, which is sized to hold the default model and not `--model-size
       large`.

The original. Llama-3-70B (hidden 8192, 64 heads, 8 KV heads, ffn 28672), tp 8, sequence 8192, microbatch 1,
bf16, on H100s (NVLink 450 GB/s, network 50 GB/s a GPU, each way), 400 TFLOP/s achieved, 16 microbatches a
step. One layer, one microbatch, forward and backward:
    compute       855.6 M parameters: 6 * 855.6e6 * 8192 = 42.1 TFLOP, causal attention 12 * 8192^3 / 2 = 3.3;
                  45.4 / 8 / 400e12 = 14.2 ms
    tp in node    4 all-reduces of 8192 * 8192 * 2 B = 134 MB:  4 * 2 * 7/8 * 134 MB / 450 GB/s  =  2.1 ms
    tp across     the same at 50 GB/s  = 18.8 ms
    dp            once a step, all-reduce of the gradients, 855.6e6 / 8 * 2 B = 214 MB:
                  2 * 214 MB / 50 GB/s  =  8.6 ms
    pp            the shard of an activation: 134 MB / 8 / 50 GB/s  =  0.34 ms
    overhead      30 kernels of 3 us  =  0.09 ms

The pocket model. hidden h = 32, 8 heads, 2 KV heads, ffn 88, sequence s = 64, float32, tp 4 (a pocket node
has 4 GPUs), microbatch 1:
    flops         1.31 MFLOP of matmuls and attention a layer and rank in 14.2 ms: 91.9 MFLOP/s
    inside        4 * 2 * 3/4 * 64 * 32 * 4 B = 49.2 kB in 2.1 ms: 23.5 MB/s
    across        a ninth of that: 2.61 MB/s
    dp            2 * 11072 / 4 * 4 B = 22.1 kB at 2.61 MB/s = 8.5 ms. This fixed the sizes: dp / tp goes with
                  hidden / sequence, so that at tp 4 a sequence must be about twice as long as the model is
                  wide
    pp            64 * 32 * 4 / 4 = 2 kB at 2.61 MB/s = 0.78 ms, not 0.34: pp / tp is 1 / (8 (tp - 1)), and tp
                  is 4 instead of 8
    memory b/w    norms, residuals, rotary, SwiGLU take as long as Llama's at 3.35 TB/s * 0.9
    latency       the H100's own: 3.4 us inside a node, 14 us across (NCCL, src/graph/tuning.cc), and the 3 us
                  a kernel

The constants below are those of this derivation; tests/support/pocket_derivation.py does it in code, and a
test holds the two equal.
"""

from gpu import CLASSROOM, Hardware, Link

POCKET = Hardware(
    name="pocket",
    flops_per_second=91943661.97183098,
    memory_bandwidth_bytes_per_second=204761971.67266187,
    kernel_overhead_seconds=3e-06,
    memory_bytes=48e6,
    gpus_per_node=4,
    inside=Link(latency_seconds=3.4e-06, bandwidth_bytes_per_second=23517703.3492823),
    across=Link(latency_seconds=1.4e-05, bandwidth_bytes_per_second=2614468.085106383),
    source="derived in ndparallel/hardware/pocket.py from Llama-3-70B on H100s",
)
IDEALIZED = {"pocket": POCKET, "classroom": CLASSROOM}  # presets that are no data sheets
