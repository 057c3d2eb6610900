"""The text of a launch script for slime, and of its YAML file."""

from __future__ import annotations

import json
from collections.abc import Sequence

from agentrl.slime.check.setup import FULLY_ASYNC
from agentrl.slime.layouts import Launch, layout_for
from agentrl.slime.models import MODELS, Layout
from agentrl.slime.recipes import changed

SCRIPT, CONFIG = "run.sh", "agentrl.yaml"
CONTEXT, RESPONSE = 8192, 6144
"""Tokens of an episode, and of its response."""
_STOP = "ray stop   # ends what an earlier run left: all your Ray processes on this node"


def config(launch: Launch) -> str:
    """The YAML file of --custom-config-path."""
    settings = launch.recipe.config if launch.recipe else ("limits: {turns: 8}",)
    lines = [
        "# Read through slime's --custom-config-path. One key: every other would become an argument of slime.",
        "agentrl:",
        f'  env: {launch.env}   # a row\'s metadata["env"] wins',
        *(f"  {line}" for line in settings),
    ]
    return "\n".join([*lines, ""])


def script(launch: Launch) -> str:
    """The launch script. Raises ConfigError where the model does not fit the GPUs."""
    layout, offload = layout_for(launch)
    parameters = MODELS[launch.model].sizes.parameters
    groups = {
        "AGENT_ARGS": _agent(launch),
        "ROLLOUT_ARGS": _rollout(launch, layout),
        "TRAIN_ARGS": _train(launch),
        "PARALLEL_ARGS": _parallel(layout, recomputed=parameters >= 1e9, offload=offload),
    }
    parts = [_head(launch), *(_array(name, lines) for name, lines in groups.items()), _logs(launch)]
    return "\n".join([*parts, _start(launch, tuple(groups))])


def _head(launch: Launch) -> str:
    where = f"{launch.nodes} nodes of" if launch.nodes > 1 else "one node with"
    kind = f"{'FP8' if launch.fp8 else 'BF16'} rollout, {'fully asynchronous' if launch.fully_async else 'synchronous'}"
    many = launch.nodes > 1
    known = f":-{launch.folder}" if launch.folder else f":?the Hugging Face folder of {launch.model}"
    data = "train.jsonl" if launch.fully_async else "train.jsonl and held_out.jsonl"
    recipe, evaluated = launch.recipe, not launch.fully_async
    lines = [
        "#!/usr/bin/env bash",
        f"# {launch.model} on {where} {launch.gpus} GPU{'s' if launch.gpus > 1 else ''}: {kind}.",
        *_source(launch),
        f"# Set the variables that the script asks for. `{'NODE=0 ' if many else ''}CHECK=1 bash {SCRIPT}` "
        "lists problems and stops before Ray starts;",
        f"# `bash {SCRIPT}` runs it{': on each node, with NODE=0 on the first' if many else ''}.",
        "set -euo pipefail",
        "",
        *(_join(launch) if many else []),
        'HERE="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"',
        'SLIME="${SLIME:?the folder of slime}"',
        'MEGATRON="${MEGATRON:?the folder of Megatron-LM}"',
        f'MODEL="${{MODEL{known}}}"',
        *(_fp8_model() if launch.fp8 else []),
        *_ref(launch),
        f'DATA="${{DATA:?the folder of {recipe.data if recipe else data}}}"',
        *(recipe.variables if recipe else ()),
        *(recipe.data_sets if recipe and evaluated else ()),
        *_save(launch),
        f'source "${{SLIME}}/scripts/models/{launch.model}.sh"   # sets MODEL_ARGS',
        "",
    ]
    return "\n".join(lines)


def _source(launch: Launch) -> list[str]:
    if launch.recipe is None:
        return []
    differs = (*launch.recipe.differs, *launch.recipe.estimators[launch.estimator].differs)
    return [
        f"# {launch.estimator.upper()} as in {launch.recipe.source}.",
        "# What differs:",
        *(f"#   {d}" for d in differs),
    ]


def _ref(launch: Launch) -> list[str]:
    convert = 'tools/convert_hf_to_torch_dist.py "${MODEL_ARGS[@]}" --hf-checkpoint "${MODEL}" --save "${REF}"'
    return [
        f"# REF is made in slime's folder by: source scripts/models/{launch.model}.sh; "
        f'PYTHONPATH="${{MEGATRON}}" python3 {convert}',
        'REF="${REF:-${MODEL}_torch_dist}"',
    ]


def _fp8_model() -> list[str]:
    convert = 'python3 tools/convert_hf_to_fp8.py --model-dir "${MODEL}" --save-dir "${MODEL_FP8}"'
    return [
        f"# MODEL_FP8 is made in slime's folder by: {convert} --strategy block --block-size 128 128",
        'MODEL_FP8="${MODEL_FP8:-${MODEL}-FP8}"',
    ]


def _save(launch: Launch) -> list[str]:
    if launch.nodes == 1:
        return ['SAVE="${SAVE:-${HERE}/checkpoints}"']
    return [
        "# Each node writes its part of a checkpoint, and reads all parts. MODEL, REF and DATA are read on every node.",
        'SAVE="${SAVE:?a folder for checkpoints, on a disk that all nodes share}"',
    ]


def _join(launch: Launch) -> list[str]:
    """Lines for every node but the first: join the first node's Ray cluster."""
    return [
        'HEAD="${HEAD:?the IP address of the first node}"',
        'export no_proxy="localhost,127.0.0.1,0.0.0.0,${HEAD}${no_proxy:+,${no_proxy}}"',
        'if [[ "${NODE:?the number of this node, 0 on the first}" != 0 ]]; then',
        _STOP.replace("ray stop", "   ray stop"),
        f'   exec ray start --address "${{HEAD}}:6379" --num-gpus {launch.gpus} --disable-usage-stats --block',
        "fi",
    ]


def _agent(launch: Launch) -> list[str]:
    return [
        "--custom-generate-function-path agentrl.adapt",
        f'--custom-config-path "${{HERE}}/{CONFIG}"',
        "--custom-reward-post-process-path agentrl.slime.post_process_rewards   # no failed episodes in the baseline",
        "--custom-rollout-log-function-path agentrl.slime.log_rollout",
        *([] if launch.fully_async else ["--custom-eval-rollout-log-function-path agentrl.slime.log_eval"]),
        "--router-policy consistent_hashing   # an episode's turns go to one engine and its prefix cache",
    ]


def _rollout(launch: Launch, layout: Layout) -> list[str]:
    prompts = 8 if launch.gpus * launch.nodes == 1 else 32
    evaluation = [
        "--eval-interval 20",
        '--eval-prompt-data held_out "${DATA}/held_out.jsonl"',
        "--n-samples-per-eval-prompt 1",
    ]
    lines = [
        *([f"--rollout-function-path {FULLY_ASYNC}"] if launch.fully_async else []),
        '--prompt-data "${DATA}/train.jsonl"',
        "--input-key prompt",
        "--label-key label",
        "--metadata-key metadata",
        "--rollout-shuffle",
        "--num-rollout 200",
        f"--rollout-batch-size {prompts}",
        "--n-samples-per-prompt 8",
        f"--global-batch-size {prompts * 8}",
        f"--rollout-max-response-len {RESPONSE}   # the whole response of an episode, observations included",
        f"--rollout-max-context-len {CONTEXT}",
        "--rollout-temperature 1",
        f"--rollout-num-gpus-per-engine {layout.engine}",
        *([f"--sglang-expert-parallel-size {layout.engine_expert}"] if layout.engine_expert > 1 else []),
        "--sglang-mem-fraction-static 0.7",
        "--use-fault-tolerance   # an engine that stops answering is restarted",
    ]
    if recipe := launch.recipe:
        lines = changed(lines, (*recipe.rollout, *recipe.estimators[launch.estimator].rollout))
        evaluation = changed(evaluation, recipe.evaluation)
    return [*lines, *([] if launch.fully_async else evaluation)]


def _train(launch: Launch) -> list[str]:
    off_policy = launch.fp8 or launch.fully_async
    lines = [
        f'--hf-checkpoint "${{MODEL{"_FP8" if launch.fp8 else ""}}}"',
        '--ref-load "${REF}"',
        '--load "${SAVE}"',
        '--save "${SAVE}"',
        "--save-interval 20",
        "--advantage-estimator grpo",
        "--eps-clip 0.2",
        "--eps-clip-high 0.28",
        *(["--use-tis   # the sampling policy differs slightly from the trained one"] if off_policy else []),
        "--optimizer adam",
        "--lr 1e-6",
        "--lr-decay-style constant",
        "--weight-decay 0.1",
        "--adam-beta1 0.9",
        "--adam-beta2 0.98",
        "--attention-dropout 0.0",
        "--hidden-dropout 0.0",
        "--accumulate-allreduce-grads-in-fp32",
        "--attention-softmax-in-fp32",
        *([] if MODELS[launch.model].sizes.rank else ["--attention-backend flash"]),  # which has no latent attention
        *([f"--rotary-base {launch.rotary_base:.0f}   # of its config.json"] if launch.rotary_base else []),
    ]
    if launch.recipe is None:
        return lines
    estimator = launch.recipe.estimators[launch.estimator]
    roles = ['--megatron-config-path "${SAVE}/roles.yaml"   # the critic\'s settings'] if estimator.critic else []
    return changed(lines, (*launch.recipe.train, f"--advantage-estimator {launch.estimator}", *estimator.train, *roles))


def _parallel(layout: Layout, *, recomputed: bool, offload: bool) -> list[str]:
    recompute = ["--recompute-granularity full", "--recompute-method uniform", "--recompute-num-layers 1"]
    on_cpu = ["--optimizer-cpu-offload", "--overlap-cpu-optimizer-d2h-h2d", "--use-precision-aware-optimizer"]
    return [
        f"--tensor-model-parallel-size {layout.tensor}",
        *(["--sequence-parallel"] if layout.tensor > 1 else []),
        "--pipeline-model-parallel-size 1",
        f"--context-parallel-size {layout.context}",
        f"--expert-model-parallel-size {layout.expert}",
        "--expert-tensor-parallel-size 1",
        *(recompute if recomputed else []),
        "--use-dynamic-batch-size",
        f"--max-tokens-per-gpu {layout.tokens}",
        "--balance-data",
        *(on_cpu if offload else []),
    ]


def _array(name: str, lines: Sequence[str]) -> str:
    return "\n".join([f"{name}=(", *(f"   {line}" for line in lines), ")"])


def _logs(launch: Launch) -> str:
    """Weights & Biases and TensorBoard, by environment variable."""
    return "\n".join(
        [
            'if [[ -n "${WANDB_PROJECT:-}" ]]; then   # with WANDB_API_KEY, or after `wandb login`',
            '   TRAIN_ARGS+=(--use-wandb --wandb-project "${WANDB_PROJECT}")',
            f'   TRAIN_ARGS+=(--wandb-group "${{WANDB_GROUP:-{launch.model}}}")',
            "fi",
            'if [[ -n "${TENSORBOARD_DIR:-}" ]]; then',
            "   TRAIN_ARGS+=(--use-tensorboard)",
            "fi",
        ]
    )


def _start(launch: Launch, arrays: Sequence[str]) -> str:
    address = ' --node-ip-address "${HEAD}" --port 6379' if launch.nodes > 1 else ""
    nodes, each = launch.trainer
    rollout = f"--rollout-num-gpus {launch.gpus * launch.nodes - nodes * each}" if launch.fully_async else "--colocate"
    names = " ".join(f'"${{{name}[@]}}"' for name in ("MODEL_ARGS", *arrays))
    network, settings = _network(launch)
    variables = {
        "PYTHONPATH": "${PYTHONPATH}",
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
        "TENSORBOARD_DIR": "${TENSORBOARD_DIR:-}",
        **settings,
    }
    env = json.dumps({"env_vars": variables}).replace('"', '\\"')
    return "\n".join(
        [
            "COMMAND=(",
            f'   python3 "${{SLIME}}/{"train_async" if launch.fully_async else "train"}.py"',
            f"   --actor-num-nodes {nodes} --actor-num-gpus-per-node {each}",
            f"   --num-gpus-per-node {launch.gpus} {rollout}",
            f"   {names}",
            ")",
            "",
            'export PYTHONPATH="${SLIME}:${MEGATRON}${PYTHONPATH:+:${PYTHONPATH}}"',
            'agentrl slime check -- "${COMMAND[@]}"',
            '[[ -z "${CHECK:-}" ]] || exit 0',
            "",
            *_roles(launch),
            *network,
            _STOP,
            f"ray start --head{address} --num-gpus {launch.gpus} --disable-usage-stats",
            f'ray job submit --address="http://127.0.0.1:8265" --runtime-env-json="{env}" -- "${{COMMAND[@]}}"',
            "",
        ]
    )


def _network(launch: Launch) -> tuple[list[str], dict[str, str]]:
    """Lines, and variables of the job, for NCCL and Gloo: those that slime's own scripts set."""
    lines, variables = list[str](), dict[str, str]()
    if launch.gpus * launch.nodes > 1:
        lines += [
            "NVLS=0   # NVLink SHARP, where the GPUs have NVLink",
            'if [[ "$(nvidia-smi topo -m 2> /dev/null || true)" =~ NV[0-9] ]]; then NVLS=1; fi',
        ]
        variables["NCCL_NVLS_ENABLE"] = "${NCCL_NVLS_ENABLE:-${NVLS}}"
    if launch.nodes > 1:
        device = (
            """ip -o address 2> /dev/null | awk -v head="${HEAD}/" 'index($4, head) == 1 {print $2; exit}' || true"""
        )
        lines += [
            "# The network device of HEAD, by which the nodes reach each other. It has the same name on all of them.",
            f'SOCKET_IFNAME="${{SOCKET_IFNAME:-$({device})}}"',
            ': "${SOCKET_IFNAME:?the network device between the nodes, such as eth0}"',
        ]
        variables |= {
            "MASTER_ADDR": "${HEAD}",
            "GLOO_SOCKET_IFNAME": "${SOCKET_IFNAME}",
            "TP_SOCKET_IFNAME": "${SOCKET_IFNAME}",
            "no_proxy": "${no_proxy}",
        }
    return [*lines, *([""] if lines else [])], variables


def _roles(launch: Launch) -> list[str]:
    """Write the file of --megatron-config-path. Without it the critic would save into the actor's folder."""
    critic = launch.recipe.estimators[launch.estimator].critic if launch.recipe else {}
    if not critic:
        return []
    return [
        "# The critic begins as the reference model, with a new last layer; later it goes on from its own checkpoint.",
        'CRITIC="${SAVE}/critic"',
        'CRITIC_LOAD="${REF}"',
        'if [[ -f "${CRITIC}/latest_checkpointed_iteration.txt" ]]; then CRITIC_LOAD="${CRITIC}"; fi',
        'mkdir -p "${SAVE}"',
        'cat > "${SAVE}/roles.yaml" <<END',
        "megatron:",
        "  - role: critic",
        "    overrides:",
        *(f"      {name}: {value}" for name, value in critic.items()),
        '      load: "${CRITIC_LOAD}"',
        '      save: "${CRITIC}"',
        "END",
        "",
    ]
