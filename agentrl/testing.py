"""For tests of an Env: play a script through the real episode loop. Needs no model, no download and no torch.

async def test_finds_and_answers() -> None:
    env = Capitals(shared=FakeIndex())
    t = await rollout(env, Task(prompt="Capital of France?"), [call("search", query="France"), "Paris"])
    assert (t.reward, t.stop, len(t.actions)) == (1.0, StopReason.DONE, 2)
"""

from __future__ import annotations

import zlib
from collections.abc import Generator, Sequence

from agentrl.engine.scripted import ScriptedEngine, Turn
from agentrl.env import Env, runtime
from agentrl.episode import run_episode
from agentrl.loading import cause
from agentrl.options import EpisodeOptions
from agentrl.render.base import Renderer
from agentrl.trajectory import Trajectory
from agentrl.types import JSON, Limits, Message, Task


def call(name: str, /, **arguments: JSON) -> Message:
    """An assistant message with one tool call; its id, nine letters and digits, follows from name and arguments."""
    function = {"name": name, "arguments": arguments}
    made = {"id": f"c{zlib.crc32(repr(function).encode()):08x}", "type": "function", "function": function}
    return {"role": "assistant", "content": "", "tool_calls": [made]}


async def rollout(
    env: Env,
    task: Task,
    turns: Sequence[Turn] | Generator[Turn, str, None],
    *,
    renderer: Renderer | None = None,
    limits: Limits | None = None,
    raise_tool_errors: bool = True,
) -> Trajectory:
    """One episode of `env` in which the model says `turns`: a list, or a generator that is sent what it reads.

    Without `renderer`, the `tiny` model's tokenizer and template. A failure of the environment is recorded on the
    trajectory, as in a run. Raises AssertionError when the script itself fails or has no turn left, and when a tool
    raises anything but a ToolError or an InfraError: in a run the model would read it. A test of just that passes
    `raise_tool_errors=False`.
    """
    renderer = renderer or tiny_renderer()
    engine, options = ScriptedEngine(turns, renderer), EpisodeOptions(limits=limits or Limits())
    trajectory = await run_episode(env, task, engine=engine, renderer=renderer, options=options)
    failure = trajectory.failure
    if failure is not None and (failure.kind, failure.boundary) == ("bug", "engine"):
        raise AssertionError(f"the script failed: {failure.error}\n{failure.traceback}")
    error = runtime(env).first_tool_error
    if error is not None and raise_tool_errors:
        raise AssertionError(f"a tool of {type(env).__name__} raised {cause(error)}") from error
    return trajectory


def tiny_renderer() -> Renderer:
    """The renderer of the bundled `tiny` model."""
    from agentrl.models import load_tokenizer  # transformers takes seconds to import
    from agentrl.render import load_renderer

    return load_renderer(load_tokenizer("tiny"))
