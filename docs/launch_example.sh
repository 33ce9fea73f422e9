#!/bin/bash
# A launch script of the usual form: variables, arrays, a condition. `ndparallel plan --from-megatron` reads it.
GPUS_PER_NODE=8
NNODES=8
TP=8
PP=4
PRECISION=bf16

MODEL=(
    --num-layers 80 --hidden-size 8192 --ffn-hidden-size 28672
    --num-attention-heads 64 --group-query-attention --num-query-groups 8
    --swiglu --normalization RMSNorm --position-embedding-type rope
    --disable-bias-linear --untie-embeddings-and-output-weights
    --attention-dropout 0.0 --hidden-dropout 0.0
    --seq-length 8192 --max-position-embeddings 8192
    --vocab-size 128256
)
TRAINING=(
    --micro-batch-size 1
    --global-batch-size $((GPUS_PER_NODE * NNODES * 2))
    --recompute-granularity full --recompute-method uniform --recompute-num-layers 1
    --cross-entropy-loss-fusion
    --lr 3e-4 --train-iters 100000
)
PARALLEL=(
    --tensor-model-parallel-size $TP
    --pipeline-model-parallel-size $PP
    --sequence-parallel
    --use-distributed-optimizer
    --overlap-grad-reduce   # but the weights are gathered at the end of a step
)
if [ "$PRECISION" = fp8 ]; then
    TRAINING+=(--bf16 --fp8-format hybrid)
else
    TRAINING+=(--bf16)
fi

torchrun --nproc-per-node $GPUS_PER_NODE --nnodes $NNODES pretrain_gpt.py \
    "${MODEL[@]}" "${TRAINING[@]}" "${PARALLEL[@]}" --data-path "$DATA" --tokenizer-type HuggingFaceTokenizer
