"""The command that starts slime, after bash has expanded the words."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from agentrl.errors import ConfigError

TRAIN_PROGRAMS = ("train.py", "train_async.py")
_ENV_FLAG = "--runtime-env-json"


@dataclass(frozen=True, slots=True)
class TrainCommand:
    words: tuple[str, ...]
    """The arguments that follow train.py."""
    program: str = TRAIN_PROGRAMS[0]
    path: tuple[str, ...] = ()
    """The folders where the command looks for modules before all other folders."""
    yaml_only: bool = False
    submitted: bool = False
    """Whether the command is started by `ray job submit`. The job does not get the shell's environment."""
    sets_python_path: bool = False
    """Whether Ray's environment for the job has a PYTHONPATH."""


def read_command(words: Sequence[str]) -> TrainCommand:
    """Read a command: `python3 train.py FLAGS`, `ray job submit ... -- python3 train.py FLAGS`, or only the flags.

    Raises ConfigError if the value of --runtime-env-json is not JSON.
    """
    index = next((i for i, word in enumerate(words) if Path(word).name in TRAIN_PROGRAMS), None)
    if index is None:
        return TrainCommand(tuple(words))
    program, before = Path(words[index]), words[:index]
    job_path = _python_path(before)
    folders = (str(program.parent.resolve()), *job_path)
    return TrainCommand(
        tuple(words[index + 1 :]),
        program.name,
        tuple(dict.fromkeys(filter(None, folders))),
        submitted="job" in before and "submit" in before,
        sets_python_path=any(job_path),
    )


def read_argument(words: Sequence[str]) -> TrainCommand:
    """Read the arguments of `agentrl check slime`: a YAML file or a command. Raises ConfigError."""
    if not words:
        raise ConfigError("check slime: add the command, as in `agentrl check slime -- python3 train.py ...`")
    file = Path(words[0])
    if len(words) > 1 or words[0].startswith("--"):
        return read_command(words)
    if file.suffix in (".yaml", ".yml"):
        return TrainCommand(("--custom-config-path", str(file)), yaml_only=True)
    raise ConfigError(
        f"{file}: only bash can read a script; write `agentrl check slime --` before the command in it that starts "
        "train.py, and run it (in one of `agentrl slime init`: CHECK=1 bash run.sh)"
    )


def _python_path(words: Sequence[str]) -> list[str]:
    """The folders of the PYTHONPATH that the command passes to `ray job submit`."""
    texts = [word.partition("=")[2] for word in words if word.startswith(f"{_ENV_FLAG}=")]
    texts += [value for word, value in pairwise(words) if word == _ENV_FLAG]
    if not texts or not texts[-1].strip():
        return []
    try:
        variables = json.loads(texts[-1])["env_vars"]
        return str(variables.get("PYTHONPATH", "")).split(os.pathsep)
    except KeyError:
        return []
    except (ValueError, TypeError, AttributeError) as exc:
        raise ConfigError(
            f"{_ENV_FLAG} {texts[-1]}: not a JSON object with `env_vars` ({exc}); check its quotes"
        ) from exc
