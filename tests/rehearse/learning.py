"""The demo's Env, trained through slime's own `train.py` from a warm start; and what its evaluations say.

    python -m tests.rehearse.learning write FOLDER --model WARM --data DATA [--rollouts 40]
    SLIME=... MEGATRON=... agentrl slime rehearse FOLDER/run.sh --full --no-resume --out OUT
    python -m tests.rehearse.learning read FOLDER

WARM is the model that `agentrl train --config examples/fact_search/train.yaml --steps 0` writes, DATA the folder of
`python -m agentrl_envs.fact_search`. `read` compares slime's first and last evaluation, task by task.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

TASKS = 150
"""Held-out tasks. An evaluation plays each once."""
CONFIG = """agentrl:
  env: agentrl_envs.fact_search:FactSearch
  limits: {turns: 4, max_tokens_per_turn: 48}
"""
SCRIPT = """#!/usr/bin/env bash
# Trains the demo's Env with slime, on any machine that `agentrl slime rehearse --full` takes.
set -euo pipefail
HERE="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"
export PYTHONPATH="${SLIME:?}:${MEGATRON:?}${PYTHONPATH:+:${PYTHONPATH}}"
MODEL_ARGS=(
   --swiglu --num-layers 2 --hidden-size 128 --ffn-hidden-size 384 --num-attention-heads 4
   --group-query-attention --num-query-groups 4 --use-rotary-position-embeddings --disable-bias-linear --add-qkv-bias
   --normalization RMSNorm --norm-epsilon 1e-6 --rotary-base 10000 --vocab-size 1024
)
AGENT_ARGS=(
   --custom-generate-function-path agentrl.adapt
   --custom-config-path "${HERE}/agentrl.yaml"
   --custom-reward-post-process-path agentrl.slime.post_process_rewards
   --custom-rollout-log-function-path agentrl.slime.log_rollout
   --custom-eval-rollout-log-function-path agentrl.slime.log_eval
   --router-policy consistent_hashing
)
ROLLOUT_ARGS=(
   --prompt-data @DATA@/train.jsonl --input-key prompt --label-key label --metadata-key metadata --rollout-shuffle
   --num-rollout @ROLLOUTS@ --rollout-batch-size 16 --n-samples-per-prompt 8 --global-batch-size 64
   --rollout-max-response-len 300 --rollout-max-context-len 400 --rollout-temperature 1
   --save-debug-rollout-data "${HERE}/rollouts/{rollout_id}.pt"
   --save-debug-train-data "${HERE}/trained/{rollout_id}.pt"
)
EVAL_ARGS=(
   --eval-interval @HALF@ --eval-prompt-data held_out "@DATA@/held_out.jsonl@[0:@TASKS@]"
   --n-samples-per-eval-prompt 1
)
TRAIN_ARGS=(
   --hf-checkpoint @MODEL@ --ref-load @MODEL@ --load "${HERE}/checkpoints" --save "${HERE}/checkpoints"
   --save-interval @ROLLOUTS@
   --advantage-estimator grpo --eps-clip 0.2 --eps-clip-high 0.28
   --optimizer adam --lr 3e-4 --lr-decay-style constant --weight-decay 0.0 --adam-beta1 0.9 --adam-beta2 0.98
)
LAYOUT_ARGS=(
   --tensor-model-parallel-size 1 --pipeline-model-parallel-size 1 --context-parallel-size 1
   --use-dynamic-batch-size --max-tokens-per-gpu 4096 --balance-data --rollout-num-gpus-per-engine 1
   --attention-dropout 0.0 --hidden-dropout 0.0
   --accumulate-allreduce-grads-in-fp32 --attention-softmax-in-fp32 --attention-backend flash
)
python3 "${SLIME}/train.py" \\
   --actor-num-nodes 1 --actor-num-gpus-per-node 2 --num-gpus-per-node 4 --rollout-num-gpus 2 \\
   "${MODEL_ARGS[@]}" "${AGENT_ARGS[@]}" "${ROLLOUT_ARGS[@]}" "${EVAL_ARGS[@]}" "${TRAIN_ARGS[@]}" "${LAYOUT_ARGS[@]}"
"""


def write(folder: Path, *, model: Path, data: Path, rollouts: int) -> Path:
    """Write the launch. Returns its script."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "agentrl.yaml").write_text(CONFIG, encoding="utf-8")
    text = SCRIPT
    values = {
        "MODEL": model.resolve(),
        "DATA": data.resolve(),
        "ROLLOUTS": rollouts,
        "HALF": rollouts // 2,
        "TASKS": TASKS,
    }
    for name, value in values.items():
        text = text.replace(f"@{name}@", str(value))
    script = folder / "run.sh"
    script.write_text(text, encoding="utf-8")
    script.chmod(0o755)
    return script


def rewards(file: Path) -> Mapping[str, float]:
    """The mean reward of each task in slime's dump of an evaluation. The tokens of its prompt name a task."""
    import torch

    by_task: dict[str, list[float]] = defaultdict(list)
    for sample in torch.load(file, weights_only=False)["samples"]:
        prompt = sample["tokens"][: len(sample["tokens"]) - sample["response_length"]]
        by_task[json.dumps([int(token) for token in prompt])].append(float(sample["reward"]))
    return {task: statistics.fmean(values) for task, values in by_task.items()}


def paired(before: Mapping[str, float], after: Mapping[str, float]) -> tuple[float, float, float, float, int]:
    """Mean before, mean after, mean difference, half of its 95 % interval, and the number of tasks."""
    if before.keys() != after.keys():
        raise ValueError("the two evaluations have other tasks")
    differences = [after[task] - before[task] for task in before]
    half = 1.96 * statistics.stdev(differences) / len(differences) ** 0.5
    means = statistics.fmean(before.values()), statistics.fmean(after.values())
    return *means, statistics.fmean(differences), half, len(differences)


def evaluations(folder: Path) -> Sequence[Path]:
    """slime's dumps of evaluations, in order."""
    files = (folder / "rollouts").glob("eval_*.pt")
    return sorted(files, key=lambda file: int(re.sub(r"\D", "", file.stem)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["write", "read"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--rollouts", type=int, default=40)
    options = parser.parse_args()
    if options.action == "write":
        print(write(options.folder, model=options.model, data=options.data, rollouts=options.rollouts))
        return
    first, *_, last = evaluations(options.folder)
    before, after, difference, half, tasks = paired(rewards(first), rewards(last))
    print(f"held-out reward of {tasks} tasks, {first.stem} to {last.stem}: {before:.3f} to {after:.3f}")
    print(
        f"difference {difference:+.3f} (95 % of {difference - half:+.3f} to {difference + half:+.3f}, paired by task)"
    )


if __name__ == "__main__":
    main()
