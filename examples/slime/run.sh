#!/usr/bin/env bash
# One node, colocated. From slime's root:  MODEL=... MEGATRON=... bash /path/to/agentrl/examples/slime/run.sh
set -euo pipefail

HERE="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"
AGENTRL="$(cd -- "${HERE}/../.." && pwd)"
MODEL="${MODEL:?the Hugging Face folder of an instruct model}"
MEGATRON="${MEGATRON:?the folder of Megatron-LM}"
REF="${REF:-${MODEL}_torch_dist}"                # made by slime's tools/convert_hf_to_torch_dist.py
DATA="${DATA:-${HERE}/data}"
GPUS="${GPUS:-8}"
source "scripts/models/${MODEL_SCRIPT:-qwen2.5-0.5B.sh}"   # sets MODEL_ARGS

[[ -f "${DATA}/train.jsonl" ]] || python3 -m agentrl_envs.fact_search "${DATA}"

AGENT_ARGS=(
   --custom-generate-function-path agentrl.adapt
   --custom-config-path "${HERE}/agentrl.yaml"
   --prompt-data "${DATA}/train.jsonl"
   --eval-prompt-data held_out "${DATA}/held_out.jsonl"
   --input-key prompt
   --label-key label
   --metadata-key metadata
   --router-policy consistent_hashing            # an episode's turns meet the same worker, and its prefix cache
)
ROLLOUT_ARGS=(
   --rollout-shuffle
   --num-rollout 200
   --rollout-batch-size 32
   --n-samples-per-prompt 8
   --rollout-max-response-len 1024
   --rollout-max-context-len 4096
   --rollout-temperature 1
   --global-batch-size 256
   --eval-interval 20
   --n-samples-per-eval-prompt 1
)
TRAIN_ARGS=(
   --hf-checkpoint "${MODEL}"
   --ref-load "${REF}"
   --advantage-estimator grpo
   --eps-clip 0.2
   --eps-clip-high 0.28
   --optimizer adam
   --lr 1e-6
   --lr-decay-style constant
   --use-dynamic-batch-size
   --max-tokens-per-gpu 9216
)

ray start --head --num-gpus "${GPUS}" --disable-usage-stats
ray job submit --address="http://127.0.0.1:8265" \
   --runtime-env-json="{\"env_vars\": {\"PYTHONPATH\": \"${MEGATRON}:${AGENTRL}:${AGENTRL}/envs\", \"CUDA_DEVICE_MAX_CONNECTIONS\": \"1\"}}" \
   -- python3 train.py --actor-num-nodes 1 --actor-num-gpus-per-node "${GPUS}" --colocate \
   "${MODEL_ARGS[@]}" "${TRAIN_ARGS[@]}" "${ROLLOUT_ARGS[@]}" "${AGENT_ARGS[@]}"
