#!/bin/bash
# A program that uses TRL's trainer, on 8 GPUs under DeepSpeed.
MICRO=${MICRO:-2}
cat > zero3.json <<'END'
{
  "train_micro_batch_size_per_gpu": "auto",
  "gradient_accumulation_steps": "auto",
  "bf16": {"enabled": true},
  "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}, "zero_quantized_weights": true}
}
END
deepspeed --num_gpus 8 sft.py --deepspeed zero3.json \
  --model_name_or_path Qwen/Qwen3-8B --dataset_name trl-lib/Capybara --max_length 8192 \
  --per_device_train_batch_size "$MICRO" --gradient_accumulation_steps 4 --gradient_checkpointing
