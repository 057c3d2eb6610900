"""Launch scripts for slime, written for a model size and the GPUs at hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from agentrl.errors import ConfigError
from agentrl.slime.check.setup import FULLY_ASYNC
from agentrl.slime.layouts import Launch, Layout, fitted

SCRIPT, CONFIG = "run.sh", "agentrl.yaml"
CONTEXT, RESPONSE = 8192, 6144
"""Tokens of an episode, and of its response."""


def write_launch(launch: Launch, folder: Path) -> tuple[Path, Path]:
    """Write the script and the YAML file into `folder`; their paths. Raises ConfigError, also where one exists."""
    texts = {folder / SCRIPT: script(launch), folder / CONFIG: config(launch)}
    for file in texts:
        if file.exists():
            raise ConfigError(f"{file} exists; name another folder, or remove it first")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in texts.items():
            file.write_text(text, encoding="utf-8")
    except (FileExistsError, NotADirectoryError, PermissionError) as exc:
        raise ConfigError(f"{folder} cannot be written to: {exc.strerror}; name another folder") from exc
    (folder / SCRIPT).chmod(0o755)
    return folder / SCRIPT, folder / CONFIG


def config(launch: Launch) -> str:
    """The YAML file of --custom-config-path."""
    return (
        "# Read through slime's --custom-config-path. One key: every other would become an argument of slime.\n"
        "agentrl:\n"
        f'  env: {launch.env}   # a row\'s metadata["env"] wins\n'
        "  limits: {turns: 8}\n"
    )


def script(launch: Launch) -> str:
    """The launch script. Raises ConfigError where the model does not fit the GPUs."""
    layout, offload = fitted(launch)
    groups = {
        "AGENT_ARGS": _agent(launch),
        "ROLLOUT_ARGS": _rollout(launch, layout),
        "TRAIN_ARGS": _train(launch),
        "PARALLEL_ARGS": _parallel(layout, offload=offload),
    }
    parts = [_head(launch), *(_array(name, lines) for name, lines in groups.items()), _start(launch, tuple(groups))]
    return "\n".join(parts)


def _head(launch: Launch) -> str:
    where = f"{launch.nodes} nodes of" if launch.nodes > 1 else "one node with"
    kind = f"{'FP8' if launch.fp8 else 'BF16'} rollout, {'fully asynchronous' if launch.fully_async else 'synchronous'}"
    usage = f"bash {SCRIPT}`" + (" on each node, with NODE=0 on the first." if launch.nodes > 1 else ".")
    lines = [
        "#!/usr/bin/env bash",
        f"# {launch.model} on {where} {launch.gpus} GPU{'s' if launch.gpus > 1 else ''}: {kind}.",
        f"# Set the variables that it asks for, try `agentrl slime check {SCRIPT}`, then `{usage}",
        "set -euo pipefail",
        "",
        *(_join(launch) if launch.nodes > 1 else []),
        'HERE="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"',
        'SLIME="${SLIME:?the folder of slime}"',
        'MEGATRON="${MEGATRON:?the folder of Megatron-LM}"',
        f'MODEL="${{MODEL:?the Hugging Face folder of {launch.model}}}"',
    ]
    if launch.fp8:
        lines.append('MODEL_FP8="${MODEL_FP8:-${MODEL}-FP8}"   # tools/convert_hf_to_fp8.py --strategy block')
    lines += [
        'REF="${REF:-${MODEL}_torch_dist}"   # made by tools/convert_hf_to_torch_dist.py of slime',
        f'DATA="${{DATA:?the folder of train.jsonl{"" if launch.fully_async else " and held_out.jsonl"}}}"',
        'SAVE="${SAVE:-${HERE}/checkpoints}"',
        f'source "${{SLIME}}/scripts/models/{launch.model}.sh"   # sets MODEL_ARGS',
        "",
    ]
    return "\n".join(lines)


def _join(launch: Launch) -> list[str]:
    """What every node but the first does: join the first one's Ray cluster."""
    return [
        'HEAD="${HEAD:?the address of the first node}"',
        'if [[ "${NODE:?the number of this node, 0 on the first}" != 0 ]]; then',
        f'   exec ray start --address "${{HEAD}}:6379" --num-gpus {launch.gpus} --disable-usage-stats --block',
        "fi",
    ]


def _agent(launch: Launch) -> list[str]:
    return [
        "--custom-generate-function-path agentrl.adapt",
        f'--custom-config-path "${{HERE}}/{CONFIG}"',
        "--custom-reward-post-process-path agentrl.slime.post_process_rewards   # failed episodes leave the baseline",
        "--custom-rollout-log-function-path agentrl.slime.log_rollout",
        *([] if launch.fully_async else ["--custom-eval-rollout-log-function-path agentrl.slime.log_eval"]),
        "--router-policy consistent_hashing   # an episode's turns meet the same engine, and its prefix cache",
    ]


def _rollout(launch: Launch, layout: Layout) -> list[str]:
    prompts = 8 if launch.gpus * launch.nodes == 1 else 32
    evaluation = [
        "--eval-interval 20",
        '--eval-prompt-data held_out "${DATA}/held_out.jsonl"',
        "--n-samples-per-eval-prompt 1",
    ]
    return [
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
        "--sglang-mem-fraction-static 0.7",
        *([] if launch.fully_async else evaluation),
    ]


def _train(launch: Launch) -> list[str]:
    off_policy = launch.fp8 or launch.fully_async
    return [
        f'--hf-checkpoint "${{MODEL{"_FP8" if launch.fp8 else ""}}}"',
        '--ref-load "${REF}"',
        '--load "${SAVE}"',
        '--save "${SAVE}"',
        "--save-interval 20",
        "--advantage-estimator grpo",
        "--eps-clip 0.2",
        "--eps-clip-high 0.28",
        *(["--use-tis   # the policy that sampled is not quite the one that is trained"] if off_policy else []),
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
        "--attention-backend flash",
    ]


def _parallel(layout: Layout, *, offload: bool) -> list[str]:
    recompute = ["--recompute-granularity full", "--recompute-method uniform", "--recompute-num-layers 1"]
    on_cpu = ["--optimizer-cpu-offload", "--overlap-cpu-optimizer-d2h-h2d", "--use-precision-aware-optimizer"]
    return [
        f"--tensor-model-parallel-size {layout.tensor}",
        *(["--sequence-parallel"] if layout.tensor > 1 else []),
        "--pipeline-model-parallel-size 1",
        f"--context-parallel-size {layout.context}",
        f"--expert-model-parallel-size {layout.expert}",
        "--expert-tensor-parallel-size 1",
        *(recompute if layout.billions >= 1 else []),
        "--use-dynamic-batch-size",
        f"--max-tokens-per-gpu {layout.tokens}",
        "--balance-data",
        *(on_cpu if offload else []),
    ]


def _array(name: str, lines: Sequence[str]) -> str:
    return "\n".join([f"{name}=(", *(f"   {line}" for line in lines), ")"])


def _start(launch: Launch, arrays: Sequence[str]) -> str:
    address = ' --node-ip-address "${HEAD}" --port 6379' if launch.nodes > 1 else ""
    nodes, each = launch.trainer
    rollout = f"--rollout-num-gpus {launch.gpus * launch.nodes - nodes * each}" if launch.fully_async else "--colocate"
    names = " ".join(f'"${{{name}[@]}}"' for name in ("MODEL_ARGS", *arrays))
    path = "${SLIME}:${MEGATRON}:${PYTHONPATH:-}"
    env = f'{{\\"env_vars\\": {{\\"PYTHONPATH\\": \\"{path}\\", \\"CUDA_DEVICE_MAX_CONNECTIONS\\": \\"1\\"}}}}'
    return "\n".join(
        [
            "",
            f"ray start --head{address} --num-gpus {launch.gpus} --disable-usage-stats",
            'ray job submit --address="http://127.0.0.1:8265" \\',
            f'   --runtime-env-json="{env}" \\',
            f'   -- python3 "${{SLIME}}/{"train_async" if launch.fully_async else "train"}.py" \\',
            f"   --actor-num-nodes {nodes} --actor-num-gpus-per-node {each} \\",
            f"   --num-gpus-per-node {launch.gpus} {rollout} \\",
            f"   {names}",
            "",
        ]
    )
