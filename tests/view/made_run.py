"""A run's folder as the trainer writes it, with failures of every kind."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from agentrl import Generation, StopReason, Task, Trajectory
from agentrl.errors import Failure
from agentrl.models import load_tokenizer
from agentrl.types import Action, Rendered, RenderedSpan, ToolCall
from agentrl.view.readers import own

SEARCH = {"type": "function", "function": {"name": "search", "parameters": {}}}
CITIES = ("Lima", "Paris", "Oslo", "Quito")
GROUPS, MEMBERS, STEPS = 4, 4, 12
FALL = 8
"""At this step the tool breaks and the reward falls."""


class Writer:
    """Episodes in the tokens of `tiny`."""

    def __init__(self, seed: int = 0) -> None:
        tokenizer = load_tokenizer("tiny")
        self.encode = lambda text: tokenizer.encode(text, add_special_tokens=False)
        self.random = random.Random(seed)

    def begin(self, task: str, session_id: str, prompt: str = "Which city?") -> Trajectory:
        trajectory = Trajectory(Task(id=task), session_id=session_id, tools=[SEARCH])
        text = f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n"
        trajectory.append_prompt(Rendered(self.encode(text), ()), [{"role": "user", "content": prompt}])
        return trajectory

    def say(self, trajectory: Trajectory, text: str, calls: Sequence[str] = (), error: str | None = None) -> None:
        tokens = self.encode(f"{text}<|im_end|>")
        log_probs = [-self.random.random() for _ in tokens]
        generation = Generation(tokens, log_probs, "stop", weight_version="3")
        trajectory.append_model(generation, seconds=0.2 + 0.01 * len(tokens))
        made = tuple(ToolCall(id=f"c{i}", name=name, arguments={}, error=error) for i, name in enumerate(calls))
        trajectory.append_action(Action(text=text, content=text, calls=made))

    def observe(self, trajectory: Trajectory, text: str) -> None:
        parts = (
            ("close", "\n"),
            ("observation", f"<|im_start|>tool\n{text}<|im_end|>\n"),
            ("prompt", "<|im_start|>assistant\n"),
        )
        tokens, spans = list[int](), list[RenderedSpan]()
        for kind, part in parts:
            start = len(tokens)
            tokens += self.encode(part)
            spans.append(RenderedSpan(kind, start, len(tokens)))  # type: ignore[arg-type]
        trajectory.append_observation(Rendered(tokens, tuple(spans)), [{"role": "tool", "content": text}])
        trajectory.turns[-1].env_s = 0.4


def episode(write: Writer, step: int, group: int, member: int) -> Trajectory:
    """Right where member < 2; group 3 is flat; after FALL the tool of group 2 breaks."""
    right = (member < 2 and step != FALL) or group == 3
    city = CITIES[group]
    trajectory = write.begin(f"task-{group}", f"train-{step:06d}-{group:04d}-{member:03d}")
    write.say(trajectory, f"I search for it: step {step}.", ["search"])
    write.observe(trajectory, f"the city is {city}" if step != FALL else "error: the index is gone")
    if not right:
        write.say(trajectory, f"Perhaps again, member {member}.", ["search"])
        write.observe(trajectory, "nothing more")
    write.say(trajectory, f"Answer: {city if right else 'I do not know'}")
    trajectory.reward = 1.0 if right else 0.0
    trajectory.reward_parts = {"answer": trajectory.reward, "format": 1.0}
    trajectory.stop = StopReason.DONE
    if step == FALL:
        trajectory.info["tool_errors"] = {"search:IndexError": 1 + (not right)}
    _fail(trajectory, group, member)
    return trajectory


def _fail(trajectory: Trajectory, group: int, member: int) -> None:
    """One failure of each kind, in group 0 and 1."""
    match group, member:
        case 0, 2:
            trajectory.stop = StopReason.MAX_TOKENS
            trajectory.mask("overlong")
        case 0, 3:
            trajectory.turns[0].bad_call = "structural"
            trajectory.mask("malformed", turn=0)
        case 1, 2:
            trajectory.stop, trajectory.reward = StopReason.FAILED, None
            trajectory.failure = Failure("environment", "step", "ConnectionError: the world is gone", "traceback")
            trajectory.mask("env_failure")
        case 1, 3:
            trajectory.stop, trajectory.reward = StopReason.ABORTED, None
            trajectory.mask("host")
        case 2, 3:
            trajectory.mask_where([i % 2 for i in range(trajectory.segment.response_length)], "off_policy")


def record(
    write: Writer, trajectory: Trajectory, step: int, group: int, member: int, advantage: float
) -> dict[str, Any]:
    """As the trainer writes it: the place, advantages and its own log-probs."""
    data = trajectory.to_json()
    log_probs = [
        [x - (3.0 if (group, member, i) == (2, 0, 4) else 0.001 * (i % 3)) for i, x in enumerate(_sampled(segment))]
        for segment in trajectory.segments
    ]
    data["training"] = {
        "step": step,
        "group": group,
        "member": member,
        "started": 1_700_000_000.0 + step * 60,
        "advantages": [[advantage] for _ in trajectory.segments],
        "log_probs": log_probs,
        "gap": 3.0 if (group, member) == (2, 0) else 0.002,
    }
    return data


def _sampled(segment: Any) -> list[float]:
    return [x for x, source in zip(segment.log_probs, segment.sources, strict=True) if source == "sampled"]


def write_step(folder: Path, write: Writer, step: int) -> dict[str, Any]:
    """The step's episodes, their index, and its line of metrics."""
    groups = [[episode(write, step, g, m) for m in range(MEMBERS)] for g in range(GROUPS)]
    lines, index, offset = list[str](), list[str](), 0
    for g, group in enumerate(groups):
        rewards = [t.reward or 0.0 for t in group]
        mean = sum(rewards) / len(rewards)
        for m, trajectory in enumerate(group):
            data = record(write, trajectory, step, g, m, rewards[m] - mean)
            line = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
            about = {**own.read(data).outline.to_json(), "offset": offset, "length": len(line.encode())}
            lines.append(line + "\n")
            offset += about["length"] + 1
            index.append(json.dumps(about, ensure_ascii=False) + "\n")
    for name, text in (("trajectories", lines), ("index", index)):
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / f"step_{step:06d}.jsonl").write_text("".join(text), encoding="utf-8")
    return _metrics(step, groups)


def _metrics(step: int, groups: Sequence[Sequence[Trajectory]]) -> dict[str, Any]:
    from agentrl.monitor import RolloutMetrics

    metrics = RolloutMetrics.of_groups(groups).to_json()
    return {
        "step": step,
        **metrics,
        "loss": 0.1,
        "kl": 0.0,
        "grad_norm": 1.0,
        "logprob_diff_mean": 0.002,
        "logprob_diff_max": 3.0,
        "hand_over_s": 0.1,
        "rollout_s": 2.0 + 0.1 * step,
        "train_s": 1.0,
        "seconds": 3.1 + 0.1 * step,
    }


def made_run(folder: Path, *, steps: int = STEPS, seed: int = 0, rate: float = 0.001, live: bool = False) -> Path:
    """A whole run. `live`: it goes on, with episodes in flight, one of them stuck."""
    write = Writer(seed)
    folder.mkdir(parents=True, exist_ok=True)
    config = {"model": "tiny", "learning_rate": rate, "limits": {"turns": 4}, "mask_overlong": True, "out": str(folder)}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    lines = [write_step(folder, write, step) for step in range(1, steps + 1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    event = {"step": FALL, "kind": "canary", "message": "tasks fail in step after step: search:IndexError"}
    (folder / "events.jsonl").write_text(json.dumps(event) + "\n")
    evaluated = [episode(write, 0, g, 0).to_json() for g in range(GROUPS)]
    text = "".join(json.dumps({**e, "session_id": f"eval-000000-{g:04d}-000"}) + "\n" for g, e in enumerate(evaluated))
    (folder / "trajectories" / "eval_final.jsonl").write_text(text)
    now = time.time()
    if live:
        stuck = {
            "name": "train-000013-0000-000",
            "task": "task-0",
            "started": now - 500,
            "turn": 3,
            "waiting": "env",
            "since": now - 480,
        }
        quick = {
            "name": "train-000013-0000-001",
            "task": "task-0",
            "started": now - 5,
            "turn": 1,
            "waiting": "engine",
            "since": now - 1,
        }
        (folder / "inflight.json").write_text(
            json.dumps({"written": now, "step": steps + 1, "episodes": [stuck, quick]})
        )
    else:
        summary = {"eval_start": 0.1, "eval_warm": 0.2, "eval_final": 0.75, "steps": steps}
        (folder / "summary.json").write_text(json.dumps(summary))
        rows = [("start", 0, 0.1), ("warm", 0, 0.2), ("step_000002", 2, 0.8), ("final", steps, 0.75)]
        text = "".join(json.dumps({"name": name, "step": step, "mean": mean}) + "\n" for name, step, mean in rows)
        (folder / "evaluations.jsonl").write_text(text)
        (folder / "best").symlink_to("checkpoints/step_000002")
    return folder
