"""The run folder: the files of a run, written so that a kill at any moment loses no completed work.

config.yaml  metrics.jsonl  evaluations.jsonl  summary.json  bill.json  reward.png  tensorboard/  tracker_id
fingerprint.json              digests of the Env's code, of the tasks and of the configuration
trajectories/step_000010.jsonl, eval_start.jsonl, ...
index/ events.jsonl imitation.jsonl inflight.json       more files for `agentrl view`: see records.py
journal.db                    the fate of each group, and episodes that no checkpoint has: see rollout/loop/journal.py
checkpoints/step_000050/      a Hugging Face folder with optimizer.pt and state.json
best                          a link to the checkpoint of the best evaluation
skipped_rows.txt              rows of chat that the warm start left out, cut or found odd, with reasons; may be absent
model/                        the final weights
reference/                    the weights at the start of RL, if KL is measured (except of a new LoRA adapter)
base/                         with LoRA, the weights under the adapters of tiny: with LoRA the folders of weights hold
                              adapters, as peft writes them
"""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from agentrl._util.file_lock import try_lock, unlock
from agentrl._util.files import about_folder, append_line, damage, sync, write_atomically, write_folder
from agentrl.errors import ConfigError
from agentrl.rollout.play.evaluate import Evaluation
from agentrl.train.config import TrainConfig
from agentrl.train.held_out import HeldOut, ranked
from agentrl.train.key_types import Keep
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import JSON

log = logging.getLogger("agentrl")

BEST = "best"
"""The name of the link to the checkpoint of the best evaluation."""
ENGINE_LOG = "engine.log"
"""The log of an engine in a separate process. The log stays even if the run fails before the first step."""
_STEP = re.compile(r"step_(\d{6,})")

_RESUMABLE = {
    "steps", "eval_every", "eval_tasks", "checkpoint_every", "keep", "out", "concurrency", "canaries",
    "numerics", "data", "episodes", "engine_config", "trackers", "usd_per_hour", "learning_rate",
}  # fmt: skip
"""The keys that may change when a run continues. But for learning_rate, these keys change the length and the output of
a run, not the learning. For `data`, the tasks must be the same, not the name of the file."""


class RunFolder:
    """The files of a run. Nothing is written before `create`."""

    def __init__(self, path: Path, keep: Keep | None = None) -> None:
        self._set_path(path)
        self._keep = keep or Keep()
        self.results: list[HeldOut] = []
        """The results of the evaluations so far, in order."""
        self.evaluating: int | None = None
        """The step whose weights are evaluated now. The checkpoint of this step stays."""
        self._lock: int | None = None
        self._is_new = False

    def _set_path(self, path: Path) -> None:
        self.path = path
        self.metrics = path / "metrics.jsonl"
        self.evaluations = path / "evaluations.jsonl"
        self.bill = path / "bill.json"
        self.trajectories = path / "trajectories"
        self.checkpoints = path / "checkpoints"
        self.best = path / BEST
        self.model = path / "model"
        self.reference = path / "reference"
        self.base = path / "base"

    def check(self, config: TrainConfig, *, resume: bool) -> None:
        """Raises ConfigError if this folder cannot take or continue the run. Writes nothing."""
        config_file = self.path / "config.yaml"
        if resume:
            _check_same(config_file, config)
        elif self.path.exists() and (
            not self.path.is_dir() or {path.name for path in self.path.iterdir()} - {ENGINE_LOG}
        ):
            problem = "holds another run" if config_file.exists() else "is not an empty folder"
            remedy = "add --resume to continue it, or " if config_file.exists() else ""
            raise ConfigError(f"--out {self.path} {problem}; {remedy}choose another folder")

    def begun_with(self) -> TrainConfig:
        """The configuration with which the run in this folder began. Raises ConfigError."""
        return TrainConfig.from_yaml(self.path / "config.yaml")

    def lock(self) -> None:
        """Lock the folder against other processes, until `unlock` or the end of this process. Raises ConfigError for a
        locked folder."""
        self._lock = try_lock(self.path)
        if self._lock is None:
            raise ConfigError(
                f"--out {self.path}: another process is training in this folder; wait for its end, or end it"
            )

    def unlock(self) -> None:
        if self._lock is not None:
            unlock(self.path, self._lock)
            self._lock = None

    def create(self, config: TrainConfig) -> None:
        """Make missing folders and files, and lock the folder if this process has not locked it. Raises ConfigError."""
        if self._lock is None:
            self._is_new = not self.path.exists()
            try:
                self.path.mkdir(parents=True, exist_ok=True)
            except OSError as exc:
                if exc.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise
                raise ConfigError(
                    f"--out {self.path} cannot be made ({exc.strerror}); choose a folder that you may write"
                ) from exc
            self.lock()
            self.check(config, resume=False)  # another process may have been faster
        self._set_path(self.path.absolute())  # an Env may change the process's folder
        self.trajectories.mkdir(exist_ok=True)
        self.checkpoints.mkdir(exist_ok=True)
        write_atomically(self.path / "config.yaml", config.to_yaml())

    def discard(self) -> None:
        """Undo `create`, so that the next attempt can use the folder. The engine's log stays, to show the failure."""
        for path in list(self.path.iterdir()):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name != ENGINE_LOG:
                path.unlink()
        if self._is_new and not (self.path / ENGINE_LOG).exists():
            self.path.rmdir()

    def write_skipped(self, rows: Iterable[str]) -> None:
        """Write a file of the skipped rows of chat, a line for each row, with the reason. No file without rows."""
        if text := "".join(f"{row}\n" for row in rows):
            write_atomically(self.path / "skipped_rows.txt", text)

    def append_metrics(self, metrics: Mapping[str, JSON]) -> None:
        with self.metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(metrics) + "\n")

    def read_metrics(self) -> list[dict[str, Any]]:
        """The metrics of the steps so far. Raises ConfigError for a malformed line."""
        return _read_lines(self.metrics)

    def read_evaluations(self) -> list[HeldOut]:
        """The results of the evaluations so far, in order. Raises ConfigError for a malformed line."""
        return [HeldOut.from_json(line) for line in _read_lines(self.evaluations)]

    def add_evaluation(self, name: str, step: int, evaluation: Evaluation) -> None:
        """Store the episodes and the result of an evaluation after `step`. If `name` names a step, this step counts."""
        self.write_trajectories(f"eval_{name}", evaluation.trajectories)
        result = HeldOut.of(name, _step_of(name) or step, evaluation)
        self.results.append(result)
        self.evaluating = None
        append_line(self.evaluations, json.dumps(result.line()))

    def result(self, name: str) -> HeldOut | None:
        """The last result of the evaluations with this name."""
        return next((result for result in reversed(self.results) if result.name == name), None)

    def write_trajectories(self, name: str, trajectories: Iterable[Trajectory]) -> None:
        lines = [json.dumps(trajectory.to_json(), ensure_ascii=False) + "\n" for trajectory in trajectories]
        write_atomically(self.trajectories / f"{name}.jsonl", "".join(lines))

    def save_checkpoint(self, step: int, write: Callable[[Path], None]) -> Path:
        """Call `write` with a folder to write a checkpoint. The folder gets its final name only when complete. Then
        older checkpoints are removed, see `settle`.

        Raises OSError (ENOSPC) if the disk is full; the earlier checkpoints stay.
        """
        target = self.checkpoints / step_name(step)
        if self.metrics.exists():
            sync(self.metrics)
        write_folder(target, write, step=step)
        self._remove_after(step)
        self.settle()
        return target

    def is_wanted(self, step: int) -> bool:
        """Whether the checkpoint of this step, which may not be written yet, must stay: the evaluation of its weights
        is among the best, or runs."""
        return step in self._wanted({*self._steps(), step})

    def settle(self) -> None:
        """Let `best` name the checkpoint of the best evaluation. Then remove the checkpoints that are neither among the
        newest nor among the best."""
        steps = self._steps()
        wanted = self._wanted(steps)
        if (best := self.best_result()) is not None:
            temporary = self.best.with_name(f".{BEST}.tmp")
            temporary.unlink(missing_ok=True)  # left by a kill
            temporary.symlink_to(f"{self.checkpoints.name}/{step_name(best.step)}")
            os.replace(temporary, self.best)
        elif self.best.is_symlink():
            self.best.unlink()
        for step in steps[: -self._keep.last]:
            if step not in wanted:
                shutil.rmtree(self.checkpoints / step_name(step))

    def best_result(self) -> HeldOut | None:
        """The best evaluation whose checkpoint is in the folder. None without evaluations, and with `keep.best` 0."""
        steps = self._steps() if self._keep.best else []
        return next((result for result in ranked(self.results) if result.step in steps), None)

    def _wanted(self, steps: Iterable[int]) -> set[int | None]:
        steps = set(steps)
        best = [result.step for result in ranked(self.results) if result.step in steps]
        return {*best[: self._keep.best], self.evaluating if self._keep.best else None}

    def checkpoint(self, name: str) -> Path:
        """The checkpoint `best`, or the checkpoint of the step with the number `name`. Raises ConfigError if the folder
        has no such checkpoint, or if it is damaged."""
        steps = self._steps()
        folder = step_name(int(name)) if name.isdecimal() else name
        if name == BEST:
            folder = Path(os.path.realpath(self.best)).name
        if _step_of(folder) not in steps:
            listed = ", ".join(map(str, steps)) or "none"
            raise ConfigError(f"{self.path} has no checkpoint {name}; the steps of its checkpoints: {listed}")
        if why := damage(self.checkpoints / folder):
            raise ConfigError(f"{self.checkpoints / folder} is damaged: {why}; take another checkpoint")
        return self.checkpoints / folder

    def lock_and_find(self, resume: bool | str, warn: Callable[[str], None]) -> Path | None:
        """Lock the folder, and find the checkpoint that `resume` names, or the newest. Raises ConfigError."""
        self.lock()
        return self.checkpoint(resume) if isinstance(resume, str) else self.latest_checkpoint(warn)

    def save_model(self, target: Path, step: int, write: Callable[[Path], None]) -> None:
        """Call `write` with a folder to write the weights after a step. Then the folder becomes `target`, inside the
        run folder. A kill leaves no incomplete `target`."""
        write_folder(target, write, step=step)

    def latest_checkpoint(self, warn: Callable[[str], None] = log.warning) -> Path | None:
        """The newest intact checkpoint; None without checkpoints. `warn` gets a line about each damaged checkpoint.
        Raises ConfigError if all checkpoints are damaged."""
        return self._first_intact([self.checkpoints / step_name(step) for step in self._steps()[::-1]], warn)

    def newest_weights(self) -> Path | None:
        """The folder of the final weights, or of a newer checkpoint. Raises ConfigError for damaged weights."""
        folders = [(step, self.checkpoints / step_name(step)) for step in self._steps()]
        if self.model.exists():
            folders.append((about_folder(self.model).get("step", -1), self.model))
        folders.sort(key=lambda weights: weights[0])
        return self._first_intact([folder for _, folder in folders[::-1]], log.warning)

    def rewind(self, step: int, *, started: bool = True) -> None:
        """Remove the files of all steps after `step`. These steps will be played again. Unless RL has `started`, of the
        evaluations only the first stays."""
        self.results = [row for row in self.read_evaluations() if row.step <= step and (started or row.name == "start")]
        _write_lines(self.evaluations, (row.line() for row in self.results))
        _write_lines(self.metrics, (metrics for metrics in self.read_metrics() if metrics["step"] <= step))
        self._remove_after(step)
        if about_folder(self.model).get("step", -1) > step:
            shutil.rmtree(self.model)
        for file in self.trajectories.glob("step_*.jsonl"):
            if (of_file := _step_of(file.stem)) is not None and of_file > step:
                file.unlink()
        for partial in self.checkpoints.glob(".step_*"):  # by a kill
            shutil.rmtree(partial)

    def _remove_after(self, step: int) -> None:
        """Remove the checkpoints of later steps. These could not be read, or the user went back."""
        for later in self._steps():
            if later > step:
                shutil.rmtree(self.checkpoints / step_name(later))

    def _steps(self) -> list[int]:
        """The steps of the checkpoints, in order. Files with other names belong to the user."""
        if not self.checkpoints.is_dir():
            return []
        steps = [_step_of(path.name) for path in self.checkpoints.iterdir() if path.is_dir()]
        return sorted(step for step in steps if step is not None)

    def _first_intact(self, folders: Iterable[Path], warn: Callable[[str], None]) -> Path | None:
        broken = []
        for folder in folders:
            if (why := damage(folder)) is None:
                return folder
            broken.append(f"{folder} is damaged: {why}")
            warn(f"{broken[-1]}; taking the one before")
        if broken:
            raise ConfigError(f"{broken[0]}, and so is every other; begin a new run")
        return None


def model_folder(path: str | Path) -> Path:
    """The newest weights in a run folder, or the best weights for the path `RUN/best`. Any other path is returned
    unchanged.

    Raises ConfigError if the run has no such weights yet, or if all are damaged.
    """
    run = RunFolder(Path(path))
    if run.path.name == BEST and (run.path.parent / "config.yaml").exists():
        return RunFolder(run.path.parent).checkpoint(BEST)
    if not (run.path / "config.yaml").exists():
        return run.path
    weights = run.newest_weights()
    if weights is None:
        raise ConfigError(f"{path} holds a run without a checkpoint yet; resume it: agentrl train --resume")
    return weights


def weights_of(model: str) -> str:
    """The weights of `model_folder`, or `model` unchanged. `./x` is a path, `o/x` a name on the Hugging Face Hub.

    Raises ConfigError for a run without weights.
    """
    weights = model_folder(model)
    return model if weights == Path(model) else str(weights)


def step_name(step: int) -> str:
    return f"step_{step:06d}"


def _step_of(name: str) -> int | None:
    match = _STEP.fullmatch(name)
    return int(match[1]) if match and step_name(int(match[1])) == name else None


def _read_lines(file: Path) -> list[dict[str, Any]]:
    """The rows of a file of JSON lines. If a kill cut the last line short, the line is left out. Raises ConfigError for
    any other malformed line."""
    if not file.exists():
        return []
    rows = []
    for number, line in enumerate(file.read_text(encoding="utf-8", errors="replace").split("\n")[:-1], 1):
        try:
            rows.append(json.loads(line))
        except ValueError as exc:
            raise ConfigError(f"{file}:{number}: not JSON ({exc}); delete this line") from exc
    return rows


def _write_lines(file: Path, rows: Iterable[Mapping[str, JSON]]) -> None:
    write_atomically(file, "".join(json.dumps(row) + "\n" for row in rows))


def _check_same(config_file: Path, now: TrainConfig) -> None:
    """Raises ConfigError unless the run with this configuration file can continue with the configuration `now`."""
    if not config_file.exists():
        raise ConfigError(f"--resume: {config_file.parent} holds no run; leave --resume out to begin one")
    first = TrainConfig.from_yaml(config_file)
    before, after = first.model_dump(mode="json"), now.with_engine(first.engine).model_dump(mode="json")
    changed = [key for key in after if key not in _RESUMABLE and before[key] != after[key]]
    if changed:
        key = changed[0]
        raise ConfigError(
            f"--resume: {key} was {before[key]!r} and is now {after[key]!r}; restore it, or begin a new run"
        )
