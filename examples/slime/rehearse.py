"""slime's own train.py on this machine, with the fact search's Env: `python examples/slime/rehearse.py /path/to/slime`.

Writes the tasks and a folder of the model `tiny` into build/rehearse, and calls `agentrl slime rehearse` with a launch
as for a cluster. Arguments after the path of slime are options of the command, such as --no-resume.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FOLDER = Path("build/rehearse")
CONFIG = """\
agentrl:
  env: agentrl_envs.fact_search:FactSearch
  limits: {turns: 4}
"""
MODEL = """
    --swiglu --num-layers 2 --hidden-size 128 --ffn-hidden-size 384 --num-attention-heads 4 --group-query-attention
    --num-query-groups 4 --use-rotary-position-embeddings --disable-bias-linear --add-qkv-bias --normalization RMSNorm
    --norm-epsilon 1e-6 --rotary-base 10000 --vocab-size 1024
"""
"""Megatron's flags for the model `tiny`."""
LAUNCH = """
    --actor-num-nodes 1 --actor-num-gpus-per-node 8 --num-gpus-per-node 8 --colocate --use-fault-tolerance
    --custom-generate-function-path agentrl.adapt --custom-config-path {folder}/agentrl.yaml
    --custom-reward-post-process-path agentrl.slime.post_process_rewards
    --custom-rollout-log-function-path agentrl.slime.log_rollout
    --custom-eval-rollout-log-function-path agentrl.slime.log_eval --router-policy consistent_hashing
    --prompt-data {folder}/data/train.jsonl --input-key prompt --label-key label --metadata-key metadata
    --rollout-shuffle --num-rollout 200 --rollout-batch-size 32 --n-samples-per-prompt 8 --global-batch-size 128
    --rollout-max-response-len 400 --rollout-max-context-len 800 --rollout-temperature 1
    --eval-interval 20 --eval-prompt-data held_out {folder}/data/held_out.jsonl --n-samples-per-eval-prompt 1
    --hf-checkpoint {folder}/tiny --ref-load {folder}/tiny --load {folder}/saved --save {folder}/saved
    --save-interval 20 --advantage-estimator grpo --eps-clip 0.2 --eps-clip-high 0.28 --optimizer adam --lr 1e-6
    --lr-decay-style constant --weight-decay 0.1 --adam-beta1 0.9 --adam-beta2 0.98
    --use-dynamic-batch-size --max-tokens-per-gpu 4096 --balance-data --rollout-num-gpus-per-engine 1
    --attention-dropout 0.0 --hidden-dropout 0.0 --accumulate-allreduce-grads-in-fp32 --attention-softmax-in-fp32
    --attention-backend flash
"""


def main() -> int:
    slime, *options = sys.argv[1:]
    folder = FOLDER.resolve()
    words = prepare(folder)
    rehearse = [sys.executable, "-m", "agentrl", "slime", "rehearse", "--out", str(folder / "out"), *options]
    return subprocess.run([*rehearse, "--", "python3", f"{slime}/train.py", *words], check=False).returncode


def prepare(folder: Path) -> list[str]:
    """Write the data, the configuration and the model. Returns the arguments of train.py."""
    from agentrl.models.tiny import tiny_model, tiny_tokenizer

    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run([sys.executable, "-m", "agentrl_envs.fact_search", str(folder / "data")], check=True)
    (folder / "agentrl.yaml").write_text(CONFIG, encoding="utf-8")
    tiny_model().save_pretrained(folder / "tiny")
    tiny_tokenizer().save_pretrained(folder / "tiny")
    return [word.format(folder=folder) for word in (MODEL + LAUNCH).split()]


if __name__ == "__main__":
    sys.exit(main())
