#!/usr/bin/env bash
# Trains @ENV@ with slime. Written by `agentrl slime init`; edit it as you like.
#
# Set the variables that the script asks for. `CHECK=1 bash run.sh` lists problems and stops before Ray starts;
# `bash run.sh` runs it. On several nodes run it on each, with NODES and HEAD, and with NODE=0 on the first.
set -euo pipefail

GPUS="${GPUS:-$(nvidia-smi -L 2> /dev/null | grep -c . || true)}"   # of each node
(( GPUS > 0 )) || GPUS=8
NODES="${NODES:-1}"
FULLY_ASYNC="${FULLY_ASYNC:-}"   # 1: generate while training, on half of the GPUs

RAY_PORT="${RAY_PORT:-6379}"
HEAD_WAIT="${HEAD_WAIT:-600}"   # the most seconds that another node waits for the first
if [[ -z "${RAY_AUTH_MODE:-}" ]]; then   # Ray asks for a token where the account has one, and a job has to send it
   RAY_AUTH_MODE=disabled
   if [[ -n "${RAY_AUTH_TOKEN:-}" || -f "${RAY_AUTH_TOKEN_PATH:-${HOME:-}/.ray/auth_token}" ]]; then RAY_AUTH_MODE=token; fi
fi
export RAY_AUTH_MODE   # `token` on several nodes: all need the same one

if (( NODES > 1 )); then
   HEAD="${HEAD:?the IP address of the first node}"
   export no_proxy="localhost,127.0.0.1,0.0.0.0,${HEAD}${no_proxy:+,${no_proxy}}"
   if [[ "${NODE:?the number of this node, 0 on the first}" != 0 ]]; then
      ray stop   # ends what an earlier run left: all your Ray processes on this node
      until timeout 5 bash -c "exec 3<> /dev/tcp/${HEAD}/${RAY_PORT}" 2> /dev/null; do
         (( SECONDS < HEAD_WAIT )) || {
            echo "no Ray at ${HEAD}:${RAY_PORT} after ${HEAD_WAIT} s: start this script with NODE=0 there, or correct HEAD" >&2
            exit 1
         }
         [[ -n "${WAITING:-}" ]] || echo "waiting for the first node at ${HEAD}:${RAY_PORT}, at most ${HEAD_WAIT} s"
         WAITING=1
         sleep 2
      done
      exec ray start --address "${HEAD}:${RAY_PORT}" --num-gpus "${GPUS}" --disable-usage-stats --block
   fi
   SAVE="${SAVE:?a folder for checkpoints, on a disk that all nodes share}"
fi

HERE="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"
SLIME="${SLIME:?the folder of slime}"
MEGATRON="${MEGATRON:?the folder of Megatron-LM}"
MODEL="${MODEL:?the Hugging Face folder of the model}"
MODEL_FILE="${MODEL_FILE:-@MODEL_FILE@}"   # a file of slime's scripts/models, without .sh
# REF is made in slime's folder by: source scripts/models/${MODEL_FILE}.sh; PYTHONPATH="${MEGATRON}" python3 tools/convert_hf_to_torch_dist.py "${MODEL_ARGS[@]}" --hf-checkpoint "${MODEL}" --save "${REF}"
REF="${REF:-${MODEL}_torch_dist}"
# Engines may load FP8 weights, made by slime's tools/convert_hf_to_fp8.py --strategy block --block-size 128 128.
ENGINE_MODEL="${ENGINE_MODEL:-${MODEL}}"
DATA="${DATA:?the folder of train.jsonl and held_out.jsonl}"
SAVE="${SAVE:-${HERE}/checkpoints}"
[[ -f "${SLIME}/scripts/models/${MODEL_FILE}.sh" ]] || {
   echo "MODEL_FILE ${MODEL_FILE} is none of slime's:" "${SLIME}"/scripts/models/*.sh >&2
   exit 2
}
source "${SLIME}/scripts/models/${MODEL_FILE}.sh"   # sets MODEL_ARGS

# The router of slime's image takes consistent_hashing, that of PyPI takes manual.
ROUTER_POLICY="${ROUTER_POLICY:-$(python3 -m agentrl.slime.router 2> /dev/null || true)}"
AGENT_ARGS=(
   --custom-generate-function-path agentrl.adapt
   --custom-config-path "${HERE}/agentrl.yaml"
   --custom-reward-post-process-path agentrl.slime.post_process_rewards   # no failed episodes in the baseline
   --custom-rollout-log-function-path agentrl.slime.log_rollout
   --custom-eval-rollout-log-function-path agentrl.slime.log_eval
   --router-policy "${ROUTER_POLICY:-consistent_hashing}"   # an episode's turns go to one engine and its prefix cache
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
   --use-fault-tolerance   # an engine that stops answering is restarted
)
EVAL_ARGS=(
   --eval-interval 20
   --eval-prompt-data held_out "${DATA}/held_out.jsonl"
   --n-samples-per-eval-prompt 1
)
TRAIN_ARGS=(
   --hf-checkpoint "${ENGINE_MODEL}"
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
   --override-opt_param-scheduler   # so that a larger --num-rollout continues a finished run
   --weight-decay 0.1
   --adam-beta1 0.9
   --adam-beta2 0.98
)
# @NOTE@
LAYOUT_ARGS=(
   @LAYOUT@
)

PROGRAM=train.py
TRAIN_NODES="${NODES}" TRAIN_GPUS="${GPUS}" PLACE_ARGS=(--colocate)
if [[ -n "${FULLY_ASYNC}" ]]; then
   (( GPUS * NODES > 1 )) || { echo "FULLY_ASYNC trains and generates on different GPUs: it needs at least two" >&2; exit 2; }
   if (( NODES > 1 )); then TRAIN_NODES=$(( NODES / 2 )); else TRAIN_GPUS=$(( GPUS / 2 )); fi
   PLACE_ARGS=(--rollout-num-gpus $(( GPUS * NODES - TRAIN_GPUS * TRAIN_NODES )))
   ROLLOUT_ARGS+=(--rollout-function-path slime.rollout.fully_async_rollout.generate_rollout_fully_async)
   if [[ -f "${SLIME}/train_async.py" ]]; then   # slime before 0.4: its fully-async rollout cannot evaluate
      PROGRAM=train_async.py EVAL_ARGS=()
   fi
fi
if [[ -n "${FULLY_ASYNC}" || "${ENGINE_MODEL}" != "${MODEL}" ]]; then
   TRAIN_ARGS+=(--use-tis)   # the sampling policy differs slightly from the trained one
fi
if [[ -n "${WANDB_PROJECT:-}" ]]; then   # with WANDB_API_KEY, or after `wandb login`
   TRAIN_ARGS+=(--use-wandb --wandb-project "${WANDB_PROJECT}" --wandb-group "${WANDB_GROUP:-${MODEL_FILE}}")
fi
if [[ -n "${TENSORBOARD_DIR:-}" ]]; then
   TRAIN_ARGS+=(--use-tensorboard)
fi
COMMAND=(
   python3 "${SLIME}/${PROGRAM}"
   --actor-num-nodes "${TRAIN_NODES}" --actor-num-gpus-per-node "${TRAIN_GPUS}"
   --num-gpus-per-node "${GPUS}" "${PLACE_ARGS[@]}"
   "${MODEL_ARGS[@]}" "${AGENT_ARGS[@]}" "${ROLLOUT_ARGS[@]}" "${EVAL_ARGS[@]}" "${TRAIN_ARGS[@]}" "${LAYOUT_ARGS[@]}"
)

export PYTHONPATH="${SLIME}:${MEGATRON}${PYTHONPATH:+:${PYTHONPATH}}"
agentrl check slime -- "${COMMAND[@]}"
[[ -z "${CHECK:-}" ]] || exit 0

NVLS=0   # NVLink SHARP, where the GPUs have NVLink
if [[ "$(nvidia-smi topo -m 2> /dev/null || true)" =~ NV[0-9] ]]; then NVLS=1; fi
VARIABLES="\"PYTHONPATH\": \"${PYTHONPATH}\", \"CUDA_DEVICE_MAX_CONNECTIONS\": \"1\""
VARIABLES+=", \"TENSORBOARD_DIR\": \"${TENSORBOARD_DIR:-}\", \"NCCL_NVLS_ENABLE\": \"${NCCL_NVLS_ENABLE:-${NVLS}}\""
VARIABLES+=", \"RAY_AUTH_MODE\": \"${RAY_AUTH_MODE}\""
VARIABLES+=", \"SGLANG_VLM_CACHE_SIZE_MB\": \"0\""   # it would read a known image with old weights
ADDRESS=()
if (( NODES > 1 )); then
   # The network device of HEAD, by which the nodes reach each other. It has the same name on all of them.
   DEVICE="$(ip -o address 2> /dev/null | awk -v head="${HEAD}/" 'index($4, head) == 1 {print $2; exit}' || true)"
   SOCKET_IFNAME="${SOCKET_IFNAME:-${DEVICE}}"
   : "${SOCKET_IFNAME:?the network device between the nodes, such as eth0}"
   VARIABLES+=", \"MASTER_ADDR\": \"${HEAD}\", \"no_proxy\": \"${no_proxy}\""
   VARIABLES+=", \"GLOO_SOCKET_IFNAME\": \"${SOCKET_IFNAME}\", \"TP_SOCKET_IFNAME\": \"${SOCKET_IFNAME}\""
   ADDRESS=(--node-ip-address "${HEAD}" --port "${RAY_PORT}")
fi

ray stop   # ends what an earlier run left: all your Ray processes on this node
ray start --head "${ADDRESS[@]}" --num-gpus "${GPUS}" --disable-usage-stats
ray job submit --address="http://127.0.0.1:8265" --runtime-env-json="{\"env_vars\": {${VARIABLES}}}" -- "${COMMAND[@]}"
