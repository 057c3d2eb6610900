"""For tests of an Env: play a script through the real episode loop. Needs no model, no download and no torch.

async def test_finds_and_answers() -> None:
    env = Capitals(shared=FakeIndex())
    t = await rollout(env, Task(prompt="Capital of France?"), [call("search", query="France"), "Paris"])
    assert (t.reward, t.stop, len(t.actions)) == (1.0, StopReason.DONE, 2)

`agentrl.testing.chat_server` is a model's API that answers as a function says.
"""

from agentrl.testing.playing import call, rollout, tiny_renderer

__all__ = ["call", "rollout", "tiny_renderer"]
