"""The run folder: what a run leaves behind, written so that a kill at any moment loses nothing that counted.

config.yaml  metrics.jsonl  summary.json  reward.png  tensorboard/
trajectories/step_000010.jsonl, eval_start.jsonl, ...
checkpoints/step_000050/      a Hugging Face folder, with optimizer.pt and state.json beside the weights
model/                        the final weights
reference/                    the weights at the start of RL, if KL is measured
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from agentrl.errors import ConfigError
from agentrl.train.config import TrainConfig
from agentrl.trajectory import Trajectory
from agentrl.types import JSON

KEEP_CHECKPOINTS = 2
_FULL_BYTES = 1 << 20
"""A disk with less free space is what a failed write failed for."""

_RESUMABLE = {
    "steps", "eval_every", "eval_tasks", "checkpoint_every", "save_groups", "out", "concurrency", "canaries",
    "numerics",
}  # fmt: skip
"""Keys that may change between a run and its continuation: they alter how long it goes and what it says, not what it
learns."""


class RunFolder:
    """The files of one run. Nothing is written before `create`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metrics = path / "metrics.jsonl"
        self.trajectories = path / "trajectories"
        self.checkpoints = path / "checkpoints"
        self.model = path / "model"
        self.reference = path / "reference"

    def check(self, config: TrainConfig, *, resume: bool) -> None:
        """Raises ConfigError if this folder cannot take the run, or cannot go on with it. Writes nothing."""
        config_file = self.path / "config.yaml"
        if not resume:
            if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
                what = "holds another run" if config_file.exists() else "is not an empty folder"
                remedy = "add --resume to go on with it, or " if config_file.exists() else ""
                raise ConfigError(f"--out {self.path} {what}; {remedy}choose another folder")
            return
        if not config_file.exists():
            raise ConfigError(f"--resume: {self.path} holds no run; leave --resume out to begin one")
        before, now = TrainConfig.from_yaml(config_file).model_dump(mode="json"), config.model_dump(mode="json")
        changed = [key for key in now if key not in _RESUMABLE and before[key] != now[key]]
        if changed:
            key = changed[0]
            raise ConfigError(
                f"--resume: {key} was {before[key]!r} and is now {now[key]!r}; restore it, or begin a new run"
            )

    def create(self, config: TrainConfig) -> None:
        self.trajectories.mkdir(parents=True, exist_ok=True)
        self.checkpoints.mkdir(exist_ok=True)
        write_atomically(self.path / "config.yaml", config.to_yaml())

    def append_metrics(self, metrics: Mapping[str, JSON]) -> None:
        with self.metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(metrics) + "\n")

    def read_metrics(self) -> list[dict[str, Any]]:
        """The steps so far; a last line that a kill cut short is left out."""
        if not self.metrics.exists():
            return []
        lines = self.metrics.read_text(encoding="utf-8").split("\n")
        return [json.loads(line) for line in lines[:-1]]

    def write_trajectories(self, name: str, trajectories: Iterable[Trajectory]) -> None:
        lines = [json.dumps(trajectory.to_json(), ensure_ascii=False) + "\n" for trajectory in trajectories]
        write_atomically(self.trajectories / f"{name}.jsonl", "".join(lines))

    def save_checkpoint(self, step: int, write: Callable[[Path], None]) -> Path:
        """Let `write` fill a folder, which takes its name only once it is complete; then drop the oldest.

        Raises OSError (ENOSPC) when the disk is full; the checkpoints before it stay.
        """
        target = self.checkpoints / step_name(step)
        _replace_folder(target, write)
        for old in self._complete()[:-KEEP_CHECKPOINTS]:
            shutil.rmtree(old)
        return target

    def save_model(self, target: Path, write: Callable[[Path], None]) -> None:
        """Let `write` fill `target`, one of this folder's, complete or not at all."""
        _replace_folder(target, write)

    def latest_checkpoint(self) -> Path | None:
        complete = self._complete()
        return complete[-1] if complete else None

    def rewind(self, step: int) -> None:
        """Forget what happened after `step`: it will happen again."""
        lines = [json.dumps(metrics) + "\n" for metrics in self.read_metrics() if metrics["step"] <= step]
        write_atomically(self.metrics, "".join(lines))
        for file in self.trajectories.glob("step_*.jsonl"):
            if file.stem > step_name(step):
                file.unlink()

    def _complete(self) -> list[Path]:
        return sorted(self.checkpoints.glob("step_*"))


def model_folder(path: str | Path) -> Path:
    """The weights in a run folder: final, else of the latest checkpoint. Any other path is returned as it is.

    Raises ConfigError if the run has neither yet.
    """
    run = RunFolder(Path(path))
    if not (run.path / "config.yaml").exists():
        return run.path
    found = run.model if run.model.exists() else run.latest_checkpoint()
    if found is None:
        raise ConfigError(f"{path} holds a run without a checkpoint yet; go on with it: agentrl train --resume")
    return found


def step_name(step: int) -> str:
    return f"step_{step:06d}"


def write_atomically(file: Path, text: str) -> None:
    temporary = file.with_name(f".{file.name}.tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, file)


def _replace_folder(target: Path, write: Callable[[Path], None]) -> None:
    temporary = target.with_name(f".{target.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)  # left by a kill
    temporary.mkdir(parents=True)
    try:
        write(temporary)
    except Exception as exc:  # torch and safetensors tell of a full disk each in words of their own
        full = shutil.disk_usage(target.parent).free < _FULL_BYTES
        shutil.rmtree(temporary, ignore_errors=True)
        if full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target)) from exc
        raise
    if target.exists():
        shutil.rmtree(target)
    os.rename(temporary, target)
