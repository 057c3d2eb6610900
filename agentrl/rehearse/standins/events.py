"""Events of a rehearsal: lines of JSON that the processes of slime append to files. This file describes the format.

Each process writes to `$AGENTRL_REHEARSAL/events/PID.jsonl`. A line is an object with these keys:

- `t`: seconds since 1970
- `pid`: the process
- `stage`: a name of `STAGES`
- `event`: `begin`, `end`, `error` (the stage raised), or `data` (`data` has values that slime logs or a hook reads)
- `rollout`: the number of slime's rollout, or null
- `error`: only for `error`: the type of the exception, a colon, the text. The text may have several lines.
- `trace`: only for `error`: `file:line` where the exception was raised
- `data`: an object, for any event

The data of `training`, `rollout` and `evaluation` have `metrics` (the dict that slime logs) and `step`. The data of
`arguments` have `args`.

Before training, the samples that slime trains are appended to `$AGENTRL_REHEARSAL/samples/PID.jsonl`. The line of a
sample has `rollout`, `index` (slime's sample index), `group` (slime's rollout_id of the sample), `tokens`, `loss_mask`
and `log_probs` (of the response's tokens) and `reward` (raw). A value that slime does not have is null.

A stage that runs in several processes, or several times, has several events. `begin` and `end` of a process alternate
for each pair of stage and rollout. A process that is killed writes no `end`.
"""

from __future__ import annotations

import json
import math
import os
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

FOLDER_VARIABLE = "AGENTRL_REHEARSAL"
"""The environment variable with the rehearsal's folder. Without it nothing is replaced and nothing is written."""
STAGES = (
    "arguments",
    "ray",
    "placement",
    "router",
    "engines",
    "actors",
    "weights",
    "rollout",
    "conversion",
    "training",
    "checkpoint",
    "evaluation",
)
"""The stages of slime's training program, in the order of a first rollout."""
Kind = Literal["begin", "end", "error", "data"]
_SAMPLE_KEYS = {
    "index": "sample_indices",
    "group": "rollout_ids",
    "loss_mask": "loss_masks",
    "log_probs": "rollout_log_probs",
    "reward": "raw_reward",
}
_LOGGED = "_agentrl_rehearsal_logged"
_LIMIT = 4000
"""The most characters of an error's text."""


def log(
    stage: str, event: Kind, *, rollout: int | None = None, error: BaseException | None = None, **data: Any
) -> None:
    """Append an event to this process's file. Does nothing without a rehearsal.

    An event never stops the host: an OSError is ignored.
    """
    folder = os.environ.get(FOLDER_VARIABLE)
    if not folder:
        return
    line: dict[str, Any] = {"t": time.time(), "pid": os.getpid(), "stage": stage, "event": event, "rollout": rollout}
    if error is not None:
        line |= {"error": f"{type(error).__name__}: {_text(error)}"[:_LIMIT], "trace": _place(error)}
    if data:
        line["data"] = plain(data)
    with suppress(OSError):
        append(Path(folder) / "events" / f"{os.getpid()}.jsonl", line)


def append(file: Path, line: Mapping[str, Any]) -> None:
    """Append a line of JSON in a single write, so that lines of several threads do not mix. Raises OSError."""
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(file, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o644)
    try:
        os.write(descriptor, json.dumps(line).encode() + b"\n")
    finally:
        os.close(descriptor)


@contextmanager
def stage(name: str, rollout: int | None = None) -> Iterator[None]:
    """Log the begin of a stage, and its end or its error."""
    log(name, "begin", rollout=rollout)
    with only_errors(name, rollout):
        yield
    log(name, "end", rollout=rollout)


@contextmanager
def only_errors(name: str, rollout: int | None = None) -> Iterator[None]:
    """Log an error of a stage. An error that passes several stages is logged once, by the innermost stage.

    SystemExit and KeyboardInterrupt are no errors of a stage: with them Ray ends its workers.
    """
    try:
        yield
    except Exception as exc:
        if not getattr(exc, _LOGGED, False):
            log(name, "error", rollout=rollout, error=exc)
            setattr(exc, _LOGGED, True)
        raise


def log_samples(rollout: int | None, data: Mapping[str, Any]) -> None:
    """Append the samples of slime's training data to this process's file of samples. An OSError is ignored."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if not folder:
        return
    file = Path(folder) / "samples" / f"{os.getpid()}.jsonl"
    for number, tokens in enumerate(data["tokens"]):
        line = {"rollout": rollout, "tokens": plain(tokens)}
        for name, key in _SAMPLE_KEYS.items():
            line[name] = plain(data[key][number]) if key in data else None
        with suppress(OSError):
            append(file, line)


def read(folder: Path) -> list[dict[str, Any]]:
    """All events of a rehearsal's folder, ordered by time. A line that a killed process cut off is left out."""
    events: list[dict[str, Any]] = []
    for file in sorted((folder / "events").glob("*.jsonl")):
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                events.append(json.loads(line))
            except ValueError:
                continue
    return sorted(events, key=lambda event: event["t"])


def plain(value: Any) -> Any:
    """A value as JSON: tensors and arrays as numbers or lists, numbers that JSON lacks as null, other objects as
    text."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else None
        case Mapping():
            return {str(key): plain(item) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [plain(item) for item in value]
    return plain(value.tolist()) if hasattr(value, "tolist") else str(value)


def _text(error: BaseException) -> str:
    """The message. An error without one, such as that of a bare `assert`, has the line of code that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    return str(error) or (frames[-1].line if frames else None) or ""


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
