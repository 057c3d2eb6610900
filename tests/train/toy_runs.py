"""Runs over a toy, and a trainer that crashes."""

import io
import json
from pathlib import Path

from rich.console import Console

from agentrl.train import Trainer
from agentrl.trajectory.trajectory import Trajectory

TOY = str(Path(__file__).with_name("toy_env.py"))


TIMES = {
    "seconds",
    "hand_over_s",
    "rollout_s",
    "train_s",
    "tokens_per_second",
    "rollout_tokens_per_second",
    "train_tokens_per_second",
}


def quiet():
    return Console(file=io.StringIO(), width=200)


def lines(folder):
    """The metrics of each step without what the clock says."""
    text = (folder / "metrics.jsonl").read_text()
    return [{k: v for k, v in json.loads(line).items() if k not in TIMES} for line in text.splitlines()]


def played(folder):
    """Task, tokens, reward and versions of the weights of every episode, in order."""
    found = []
    for file in sorted((folder / "trajectories").glob("step_*.jsonl")):
        for line in file.read_text().splitlines():
            trajectory = Trajectory.from_json(json.loads(line))
            versions = tuple(trajectory.weight_versions)
            found.append((file.stem, trajectory.task.id, tuple(trajectory.tokens), trajectory.reward, versions))
    return found


class Crash(BaseException):
    """Like a kill: nothing in the trainer may handle it."""


class CrashingTrainer(Trainer):
    def update(self, groups, step):
        if step == 4:
            raise Crash
        return super().update(groups, step)
