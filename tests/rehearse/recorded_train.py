"""Stands in for slime's train.py: writes the events of a run, and ends as the flag --end says. No Ray, no model."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from agentrl.rehearse.standins import events

words = sys.argv[1:]


def last(flag: str, default: str = "") -> str:
    return words[len(words) - words[::-1].index(flag)] if flag in words else default


END, ROLLOUTS, SAVE = last("--end"), int(last("--num-rollout")), Path(last("--save"))
FIRST = int((SAVE / "latest").read_text()) + 1 if (SAVE / "latest").exists() else 0
if END == "forgets":
    FIRST = 0


def send(total: float) -> None:
    events.log("weights", "data", rank=0, sum=total)
    with events.stage("weights"):
        if END == "raises":
            raise ValueError("no such weight")


for name in ("arguments", "ray", "placement", "router", "engines", "actors"):
    with events.stage(name):
        if END == "hangs" and name == "engines":
            Path(os.environ[events.FOLDER_VARIABLE], "hanging").touch()
            time.sleep(600)
events.log("arguments", "data", args={"n_samples_per_prompt": 2})
send(1.0 + FIRST)
for rollout in range(FIRST, ROLLOUTS):
    for name in ("rollout", "conversion", "training", "checkpoint"):
        with events.stage(name, rollout):
            pass
    metrics = {"train/loss": 0.1, "train/grad_norm": 1.0, "train/train_rollout_logprob_abs_diff": 0.003}
    events.log("training", "data", step=rollout, metrics=metrics)
    data = {"tokens": [[1, 2], [1, 3]], "sample_indices": [0, 1], "loss_masks": [[1], [1]], "raw_reward": [0.0, 1.0]}
    events.log_samples(rollout, data)
    SAVE.mkdir(parents=True, exist_ok=True)
    (SAVE / "latest").write_text(str(rollout))
    send(2.0 + rollout)
print("the last line")
