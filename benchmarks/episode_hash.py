"""Find out whether a change of code changes tokens: a hash of scripted episodes, and a hash of a short training run.

python -m benchmarks.episode_hash          (twenty seconds; run it before and after, on one machine)

A hash covers the tokens, loss_mask and log-probs (as float32) of each segment, the reward and the stop. The first hash
is the same on every machine, and `tests/episode/test_episode_hash.py` checks it. The second hash depends on how this
machine rounds.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import tempfile
from array import array
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentrl import Env, Limits, Observation, Raw, StepResult, StopReason, Task, ToolResult, TurnOptions, tool
from agentrl.render.base import Renderer
from agentrl.testing import call, rollout, tiny_renderer
from agentrl.types import Action

TASK = Task(prompt="Add up, then say the sum.", label=6.0, seed=3, id="t")


class Sums(Env):
    """An Env with tools, random numbers, step rewards and a last turn."""

    @tool
    async def add(self, n: int) -> str:
        """Add a number."""
        return f"{n} and {self.rng.random():.3f}"

    @tool
    def finish(self, text: str) -> ToolResult:
        """End."""
        return ToolResult(text, reward=0.5, done=True)

    def last_turn(self, reason: StopReason) -> Observation:
        return "Answer now."


class Search(Env):
    """An Env with raw text inside the model's turn, as in Search-R1."""

    turn_options = TurnOptions(stop=("</search>",))

    async def step(self, action: Action) -> StepResult:
        found = action.content.rpartition("<search>")[2]
        return StepResult(Raw(f" found {found} "), reward=0.25) if "</search>" in action.text else StepResult(done=True)


class Echo(Env):
    """An Env that replies as the user. The reward is the share of even tokens, so a random model earns some."""

    turn_options = TurnOptions(stop=tuple("aeiou"))

    def step(self, action: Action) -> StepResult:
        return StepResult(f"Go on, {self.task.id}: {action.content}", reward=float(len(action.tokens) % 2))

    def score(self, trajectory: Any) -> float:
        sampled = [token for action in trajectory.actions for token in action.tokens]
        return sum(token % 2 == 0 for token in sampled) / max(len(sampled), 1)


_UNREAD = '<tool_call>\n{"name": "add", "arguments": {\n</tool_call>'
_PLAYED: Sequence[tuple[type[Env], Sequence[Any], Mapping[str, Any]]] = (
    (Sums, [call("add", n=1), call("add", n=2), "3"], {}),
    (Sums, [call("add", n="x"), _UNREAD, call("nothing"), "given up"], {}),
    (Sums, [call("add", n=1), call("add", n=2), "3"], {"turns": 1}),
    (Sums, [call("add", n=1), call("finish", text="done")], {"observation_tokens": 4}),
    (Sums, [call("add", n=1), "3"], {"tokens": 60}),
    (Sums, [call("add", n=1), "3"], {"max_tokens_per_turn": 5}),
    (Search, ["I <search>Paris</search>", "or <search>Rome</search>", "Rome"], {}),
    (Echo, ["one", "two", "three", "four"], {"turns": 3}),
)


def digest(trajectories: Iterable[Mapping[str, Any]]) -> str:
    """The hash of trajectories in the form of `Trajectory.to_json`."""
    found = hashlib.sha256()
    for data in trajectories:
        for segment in (*data["earlier"], data):
            found.update(json.dumps([segment["tokens"], segment["prompt_length"], segment["loss_mask"]]).encode())
            found.update(array("f", segment["log_probs"]).tobytes())
        read = data["messages"][: len(data["messages"]) - data.get("unread", 0)]
        said = [(message["role"], message["content"]) for message in read]  # the ids of calls are agentrl's own
        found.update(json.dumps([data["reward"], data["stop"], said, data["info"]]).encode())
    return found.hexdigest()[:16]


async def scripted(renderer: Renderer) -> list[dict[str, Any]]:
    """Scripted episodes, which do not depend on rounding."""
    played = [
        await rollout(env(), TASK, list(turns), renderer=renderer, limits=Limits(**limits))
        for env, turns, limits in _PLAYED
    ]
    return [trajectory.to_json() for trajectory in played]


def trained(folder: Path) -> list[dict[str, Any]]:
    """All episodes of three steps of RL with `tiny`. Seeds determine the weights and every sample."""
    import torch

    from agentrl.train import TrainConfig, train

    torch.set_num_threads(1)
    data = folder / "tasks.jsonl"
    data.write_text("".join(json.dumps({"prompt": f"say {i}", "id": str(i)}) + "\n" for i in range(6)))
    config = TrainConfig.make(
        env=f"{Path(__file__)}:Echo",
        data=data,
        out=folder / "run",
        steps=3,
        prompts_per_step=3,
        group_size=4,
        limits={"turns": 3, "max_tokens_per_turn": 8, "context": 240},
        credit="turn",
        keep={"groups": 3},
        device="cpu",
    )
    train(config)
    files = sorted((folder / "run" / "trajectories").glob("*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def main() -> None:
    print("scripted", digest(asyncio.run(scripted(tiny_renderer()))))
    with tempfile.TemporaryDirectory() as folder:
        print("trained ", digest(trained(Path(folder))))


if __name__ == "__main__":
    main()
