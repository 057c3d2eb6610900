from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from agentrl import Generation, StopReason, Task, Trajectory
from agentrl.types import Action, Rendered, RenderedSpan

DATA = Path(__file__).parent / "data"
QUESTION, REPLY, RESULT, NEXT, ANSWER = (1, 2, 3), (100, 101, 102), (7, 8), (50,), (200, 201)


def say(trajectory: Trajectory, tokens: Sequence[int], text: str = "said") -> None:
    trajectory.append_model(Generation(tokens, [-0.5] * len(tokens), "stop"), seconds=0.5)
    trajectory.append_action(Action(text=text, content=text))


def observe(trajectory: Trajectory, tokens: Sequence[int] = RESULT) -> None:
    spans = (RenderedSpan("observation", 0, len(tokens)), RenderedSpan("prompt", len(tokens), len(tokens) + 1))
    trajectory.append_observation(Rendered((*tokens, *NEXT), spans))


def made(**given: Any) -> Trajectory:
    """Two turns with an observation between them."""
    trajectory = Trajectory(Task(id="peru"), session_id=given.pop("session_id", "train-000001-0002-003"))
    trajectory.append_prompt(Rendered(QUESTION, ()), [{"role": "user", "content": "Where?"}])
    say(trajectory, REPLY, "look")
    observe(trajectory)
    say(trajectory, ANSWER, "Lima")
    trajectory.reward, trajectory.stop = 1.0, StopReason.DONE
    for name, value in given.items():
        setattr(trajectory, name, value)
    return trajectory


def stripped() -> Trajectory:
    """Thoughts are stripped: each turn is a segment."""
    trajectory = Trajectory(Task(id="peru"), session_id="s")
    trajectory.append_prompt(Rendered(QUESTION, ()))
    say(trajectory, REPLY)
    trajectory.begin_segment(Rendered((*QUESTION, 102, *RESULT, *NEXT), ()))
    say(trajectory, ANSWER)
    trajectory.reward, trajectory.stop = 0.0, StopReason.DONE
    return trajectory


@pytest.fixture
def record() -> dict[str, Any]:
    return json.loads(json.dumps(made().to_json()))


@pytest.fixture
def traces() -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / "verifiers.jsonl").read_text().splitlines()]


@pytest.fixture
def samples() -> list[dict[str, Any]]:
    """slime's own dump: two episodes of agentrl, one of them removed and one masked; and a rollout of slime's."""
    from agentrl.view.readers.dumps import load

    return copy.deepcopy(load(DATA / "slime_5.pt"))


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def write(*records: Any, name: str = "records.jsonl") -> Path:
        file = tmp_path / name
        file.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
        return file

    return write
