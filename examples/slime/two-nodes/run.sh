#!/usr/bin/env bash
# qwen3-30B-A3B on 2 nodes of 8 GPUs: BF16 rollout, synchronous.
# Set the variables that the script asks for. `NODE=0 CHECK=1 bash run.sh` lists problems and stops before Ray starts;
# `bash run.sh` runs it: on each node, with NODE=0 on the first.
set -euo pipefail

HEAD="${HEAD:?the IP address of the first node}"
export no_proxy="localhost,127.0.0.1,0.0.0.0,${HEAD}${no_proxy:+,${no_proxy}}"
if [[ "${NODE:?the number of this node, 0 on the first}" != 0 ]]; then
   ray stop   # ends what an earlier run left: all your Ray processes on this node
   exec ray start --address "${HEAD}:6379" --num-gpus 8 --disable-usage-stats --block
fi
HERE="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"
SLIME="${SLIME:?the folder of slime}"
MEGATRON="${MEGATRON:?the folder of Megatron-LM}"
MODEL="${MODEL:?the Hugging Face folder of qwen3-30B-A3B}"
# REF is made in slime's folder by: source scripts/models/qwen3-30B-A3B.sh; PYTHONPATH="${MEGATRON}" python3 tools/convert_hf_to_torch_dist.py "${MODEL_ARGS[@]}" --hf-checkpoint "${MODEL}" --save "${REF}"
REF="${REF:-${MODEL}_torch_dist}"
DATA="${DATA:?the folder of train.jsonl and held_out.jsonl}"
# Each node writes its part of a checkpoint, and reads all parts. MODEL, REF and DATA are read on every node.
SAVE="${SAVE:?a folder for checkpoints, on a disk that all nodes share}"
source "${SLIME}/scripts/models/qwen3-30B-A3B.sh"   # sets MODEL_ARGS

AGENT_ARGS=(
   --custom-generate-function-path agentrl.adapt
   --custom-config-path "${HERE}/agentrl.yaml"
   --custom-reward-post-process-path agentrl.slime.post_process_rewards   # no failed episodes in the baseline
   --custom-rollout-log-function-path agentrl.slime.log_rollout
   --custom-eval-rollout-log-function-path agentrl.slime.log_eval
   --router-policy consistent_hashing   # an episode's turns go to one engine and its prefix cache
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
   --use-fault-tolerance   # an engine that stops answering is restarted
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
if [[ -n "${WANDB_PROJECT:-}" ]]; then   # with WANDB_API_KEY, or after `wandb login`
   TRAIN_ARGS+=(--use-wandb --wandb-project "${WANDB_PROJECT}")
   TRAIN_ARGS+=(--wandb-group "${WANDB_GROUP:-qwen3-30B-A3B}")
fi
if [[ -n "${TENSORBOARD_DIR:-}" ]]; then
   TRAIN_ARGS+=(--use-tensorboard)
fi
COMMAND=(
   python3 "${SLIME}/train.py"
   --actor-num-nodes 2 --actor-num-gpus-per-node 8
   --num-gpus-per-node 8 --colocate
   "${MODEL_ARGS[@]}" "${AGENT_ARGS[@]}" "${ROLLOUT_ARGS[@]}" "${TRAIN_ARGS[@]}" "${PARALLEL_ARGS[@]}"
)

export PYTHONPATH="${SLIME}:${MEGATRON}${PYTHONPATH:+:${PYTHONPATH}}"
agentrl slime check -- "${COMMAND[@]}"
[[ -z "${CHECK:-}" ]] || exit 0

NVLS=0   # NVLink SHARP, where the GPUs have NVLink
if [[ "$(nvidia-smi topo -m 2> /dev/null || true)" =~ NV[0-9] ]]; then NVLS=1; fi
# The network device of HEAD, by which the nodes reach each other. It has the same name on all of them.
SOCKET_IFNAME="${SOCKET_IFNAME:-$(ip -o address 2> /dev/null | awk -v head="${HEAD}/" 'index($4, head) == 1 {print $2; exit}' || true)}"
: "${SOCKET_IFNAME:?the network device between the nodes, such as eth0}"

ray stop   # ends what an earlier run left: all your Ray processes on this node
ray start --head --node-ip-address "${HEAD}" --port 6379 --num-gpus 8 --disable-usage-stats
ray job submit --address="http://127.0.0.1:8265" --runtime-env-json="{\"env_vars\": {\"PYTHONPATH\": \"${PYTHONPATH}\", \"CUDA_DEVICE_MAX_CONNECTIONS\": \"1\", \"TENSORBOARD_DIR\": \"${TENSORBOARD_DIR:-}\", \"NCCL_NVLS_ENABLE\": \"${NCCL_NVLS_ENABLE:-${NVLS}}\", \"MASTER_ADDR\": \"${HEAD}\", \"GLOO_SOCKET_IFNAME\": \"${SOCKET_IFNAME}\", \"TP_SOCKET_IFNAME\": \"${SOCKET_IFNAME}\", \"no_proxy\": \"${no_proxy}\"}}" -- "${COMMAND[@]}"
