#!/usr/bin/env bash
# qwen3-30B-A3B on 2 nodes of 8 GPUs: FP8 rollout, fully asynchronous.
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
MODEL_FP8="${MODEL_FP8:-${MODEL}-FP8}"   # tools/convert_hf_to_fp8.py --strategy block
REF="${REF:-${MODEL}_torch_dist}"   # made by tools/convert_hf_to_torch_dist.py of slime
DATA="${DATA:?the folder of train.jsonl}"
SAVE="${SAVE:-${HERE}/checkpoints}"
source "${SLIME}/scripts/models/qwen3-30B-A3B.sh"   # sets MODEL_ARGS

AGENT_ARGS=(
   --custom-generate-function-path agentrl.adapt
   --custom-config-path "${HERE}/agentrl.yaml"
   --custom-reward-post-process-path agentrl.slime.post_process_rewards   # failed episodes leave the baseline
   --custom-rollout-log-function-path agentrl.slime.log_rollout
   --router-policy consistent_hashing   # an episode's turns meet the same engine, and its prefix cache
)
ROLLOUT_ARGS=(
   --rollout-function-path slime.rollout.fully_async_rollout.generate_rollout_fully_async
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
)
TRAIN_ARGS=(
   --hf-checkpoint "${MODEL_FP8}"
   --ref-load "${REF}"
   --load "${SAVE}"
   --save "${SAVE}"
   --save-interval 20
   --advantage-estimator grpo
   --eps-clip 0.2
   --eps-clip-high 0.28
   --use-tis   # the policy that sampled is not quite the one that is trained
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
   --optimizer-cpu-offload
   --overlap-cpu-optimizer-d2h-h2d
   --use-precision-aware-optimizer
)

ray start --head --node-ip-address "${HEAD}" --port 6379 --num-gpus 8 --disable-usage-stats
ray job submit --address="http://127.0.0.1:8265" \
   --runtime-env-json="{\"env_vars\": {\"PYTHONPATH\": \"${SLIME}:${MEGATRON}:${PYTHONPATH:-}\", \"CUDA_DEVICE_MAX_CONNECTIONS\": \"1\"}}" \
   -- python3 "${SLIME}/train_async.py" \
   --actor-num-nodes 1 --actor-num-gpus-per-node 8 \
   --num-gpus-per-node 8 --rollout-num-gpus 8 \
   "${MODEL_ARGS[@]}" "${AGENT_ARGS[@]}" "${ROLLOUT_ARGS[@]}" "${TRAIN_ARGS[@]}" "${PARALLEL_ARGS[@]}"
