#!/bin/bash
# A program that uses TRL's trainer, on two nodes of 8 GPUs under Accelerate's FSDP.
cat > fsdp2.yaml <<'END'
distributed_type: FSDP
mixed_precision: bf16
num_machines: 2
num_processes: 16
fsdp_config:
  fsdp_version: 2
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_activation_checkpointing: true
END
accelerate launch --config_file fsdp2.yaml --machine_rank "$MACHINE_RANK" \
  --main_process_ip "$MASTER_ADDR" --main_process_port 29500 sft.py \
  --model_name_or_path Qwen/Qwen3-8B --dataset_name trl-lib/Capybara --max_length 8192 \
  --per_device_train_batch_size 2 --gradient_accumulation_steps 2
