#!/usr/bin/env bash
# qwen3-30B-A3B on 2 nodes of 8 GPUs: BF16 rollout, synchronous.
# Set the variables that it asks for, try `agentrl slime check run.sh`, then `bash run.sh` on each node, with NODE=0 on the first.
set -euo pipefail

HEAD="${HEAD:?the address of the first node}"
if [[ "${NODE:?the number of this node, 0 on the first}" != 0 ]]; then
   exec ray start --address "${HEAD}:6379" --num-gpus 8 --disable-usage-stats --block
fi
HERE="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"
SLIME="${SLIME:?the folder of slime}"
MEGATRON="${MEGATRON:?the folder of Megatron-LM}"
MODEL="${MODEL:?the Hugging Face folder of qwen3-30B-A3B}"
REF="${REF:-${MODEL}_torch_dist}"   # made by tools/convert_hf_to_torch_dist.py of slime
DATA="${DATA:?the folder of train.jsonl and held_out.jsonl}"
SAVE="${SAVE:-${HERE}/checkpoints}"
source "${SLIME}/scripts/models/qwen3-30B-A3B.sh"   # sets MODEL_ARGS

AGENT_ARGS=(
   --custom-generate-function-path agentrl.adapt
   --custom-config-path "${HERE}/agentrl.yaml"
   --custom-reward-post-process-path agentrl.slime.post_process_rewards   # failed episodes leave the baseline
   --custom-rollout-log-function-path agentrl.slime.log_rollout
   --custom-eval-rollout-log-function-path agentrl.slime.log_eval
   --router-policy consistent_hashing   # an episode's turns meet the same engine, and its prefix cache
)
ROLLOUT_ARGS=(
   --prompt-data "${DATA}/train.jsonl"
   --input-key prompt
   --label-key label
   --metadata-key metadata
   --rollout-shuffle
   --num-rollout 200
   --rollout-batch-size 32
   --n-samples-per-prompt 8
   --global-batch-size 256
   --rollout-max-response-len 6144   # the whole response of an episode, observations included
   --rollout-max-context-len 8192
   --rollout-temperature 1
   --rollout-num-gpus-per-engine 8
   --sglang-mem-fraction-static 0.7
   --eval-interval 20
   --eval-prompt-data held_out "${DATA}/held_out.jsonl"
   --n-samples-per-eval-prompt 1
)
TRAIN_ARGS=(
   --hf-checkpoint "${MODEL}"
   --ref-load "${REF}"
   --load "${SAVE}"
   --save "${SAVE}"
   --save-interval 20
   --advantage-estimator grpo
   --eps-clip 0.2
   --eps-clip-high 0.28
   --optimizer adam
   --lr 1e-6
   --lr-decay-style constant
   --weight-decay 0.1
   --adam-beta1 0.9
   --adam-beta2 0.98
   --attention-dropout 0.0
   --hidden-dropout 0.0
   --accumulate-allreduce-grads-in-fp32
   --attention-softmax-in-fp32
   --attention-backend flash
)
PARALLEL_ARGS=(
   --tensor-model-parallel-size 4
   --sequence-parallel
   --pipeline-model-parallel-size 1
   --context-parallel-size 1
   --expert-model-parallel-size 8
   --expert-tensor-parallel-size 1
   --recompute-granularity full
   --recompute-method uniform
   --recompute-num-layers 1
   --use-dynamic-batch-size
   --max-tokens-per-gpu 20480
   --balance-data
)

ray start --head --node-ip-address "${HEAD}" --port 6379 --num-gpus 8 --disable-usage-stats
ray job submit --address="http://127.0.0.1:8265" \
   --runtime-env-json="{\"env_vars\": {\"PYTHONPATH\": \"${SLIME}:${MEGATRON}:${PYTHONPATH:-}\", \"CUDA_DEVICE_MAX_CONNECTIONS\": \"1\"}}" \
   -- python3 "${SLIME}/train.py" \
   --actor-num-nodes 2 --actor-num-gpus-per-node 8 \
   --num-gpus-per-node 8 --colocate \
   "${MODEL_ARGS[@]}" "${AGENT_ARGS[@]}" "${ROLLOUT_ARGS[@]}" "${TRAIN_ARGS[@]}" "${PARALLEL_ARGS[@]}"
