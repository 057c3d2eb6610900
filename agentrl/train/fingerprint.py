"""The fingerprint of a run: digests of the Env's code, of the tasks and of the configuration, so that a comparison of
runs knows whether they are alike."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentrl._util.content import content
from agentrl._util.files import write_atomically
from agentrl._util.loading import source_of
from agentrl.rollout.data.source import TaskSource
from agentrl.train.config import TrainConfig
from agentrl.types import Task

FILE = "fingerprint.json"
_PLACES = ("out", "trackers", "device", "usd_per_hour")
"""Keys of the configuration that do not change the result of a run."""


def fingerprint(config: TrainConfig, env: type, source: TaskSource, eval_tasks: Sequence[Task]) -> dict[str, str]:
    """Digests, by name: `env` of the files of the Env's class and its bases, and of the reward function; `tasks`;
    `eval_tasks`; `config`."""
    values = config.model_dump(mode="json")
    classes = [cls for cls in env.__mro__ if cls is not object and not cls.__module__.startswith("agentrl.")]
    return {
        "env": _digest([*(source_of(cls)[1] for cls in classes), source_of(config.reward_function())[1]]),
        "tasks": _digest(list(_rows(source.state_dict()))),
        "eval_tasks": _digest([content(task) for task in eval_tasks]),
        "config": _digest({key: value for key, value in values.items() if key not in _PLACES}),
    }


def write_fingerprint(folder: Path, digests: Mapping[str, str], warn: Callable[[str], None]) -> None:
    """Write the fingerprint into a run folder. If the Env's code differs from the code of the run's earlier processes,
    `warn`, and write the digests of both: these equal no other run's."""
    file, digests = folder / FILE, dict(digests)
    try:
        before = json.loads(file.read_text(encoding="utf-8"))["env"]
    except (OSError, ValueError, KeyError):
        before = digests["env"]
    changed = not before.endswith(digests["env"])
    digests["env"] = f"{before} {digests['env']}" if changed else before
    write_atomically(file, json.dumps(digests, indent=1) + "\n")
    if changed:
        warn("the code of the Env or of the reward has changed since the run began")


def _rows(state: Mapping[str, Any]) -> Iterator[str]:
    """The digests of the data in the state of a source, or of several."""
    if "rows" in state:
        yield str(state["rows"])
    for part in state.get("sources", ()):
        yield from _rows(part)


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
