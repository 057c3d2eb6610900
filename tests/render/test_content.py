"""Content as a list of parts: text is joined, anything else is refused, on every path."""

from __future__ import annotations

from typing import Any

import pytest

from agentrl import Env, Limits, StepResult, Task, TemplateError
from agentrl.episode.bad_calls import joined
from agentrl.render import Renderer, load_renderer
from agentrl.testing import rollout, tiny_renderer
from tests.render.conftest import LOOKUP

PARTS = [{"type": "text", "text": "Capital of "}, {"type": "text", "text": "France?"}]
PLAIN = "Capital of France?"
IMAGE = [{"type": "text", "text": "See "}, {"type": "image_url", "image_url": {"url": "x.png"}}]


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def result(content: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": "call00000", "name": "lookup", "content": content}


def asked(renderer: Renderer) -> Any:
    tokens = renderer.encode(
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"id": "call00000", "type": "function", "function": {"name": "lookup", "arguments": {"query": "x"}}}
            ],
        }
    )
    return renderer.parse(tokens, "stop", tokens[-1])


def test_a_prompt_joins_text_parts(chatml: Renderer) -> None:
    assert chatml.prompt([user(PARTS)]) == chatml.prompt([user(PLAIN)])
    assert chatml.prompt([user(["Capital of ", "France?"])]) == chatml.prompt([user(PLAIN)])
    assert chatml.prompt([user([])]) == chatml.prompt([user("")])


def test_a_sampled_turn_joins_text_parts(chatml: Renderer) -> None:
    assert chatml.encode({"role": "assistant", "content": PARTS}) == chatml.encode(
        {"role": "assistant", "content": PLAIN}
    )


def test_a_bridge_joins_text_parts_and_counts_them(chatml: Renderer) -> None:
    action = asked(chatml)
    long, parts = "word " * 200, [{"type": "text", "text": "word " * 100}] * 2
    assert chatml.bridge([], action, [result(parts)]) == chatml.bridge([], action, [result(long)])
    cut = chatml.bridge([], action, [result(parts)], budget=80)
    assert cut == chatml.bridge([], action, [result(long)], budget=80)
    assert cut.cut > 0


@pytest.mark.parametrize("content", [[{"type": "text"}], [3], {"a": 1}, 3])
def test_what_is_no_text_is_refused(chatml: Renderer, content: Any) -> None:
    _refused(chatml, content, r"content .*text")


def test_an_image_is_refused_where_the_model_reads_none(chatml: Renderer) -> None:
    with pytest.raises(TemplateError, match="is not known to read images"):
        chatml.prompt([user(IMAGE)])
    with pytest.raises(TemplateError, match="may hold parts of text only, not 'image_url'"):
        chatml.encode({"role": "assistant", "content": IMAGE})


def _refused(chatml: Renderer, content: Any, why: str) -> None:
    for render in (
        lambda: chatml.prompt([user(content)]),
        lambda: chatml.encode({"role": "assistant", "content": content}),
        lambda: chatml.bridge([], asked(chatml), [result(content)]),
        lambda: chatml.bridge([], asked(chatml), [result(content)], budget=5),
    ):
        with pytest.raises(TemplateError, match=why):
            render()


def test_an_observation_behind_parts_is_joined_as_text() -> None:
    pending = [result(PARTS)]
    assert joined(pending, "Answer now.", {})[-1]["content"] == f"{PLAIN}\n\nAnswer now."


def test_a_template_that_takes_parts_itself_is_given_text(tokenizers: Any) -> None:
    said = "'<|im_start|>assistant\n' + m.content"
    source = tokenizers.CHATML.replace(said, "'<|im_start|>assistant\n' + (m.content if m.content is string else '')")
    renderer = load_renderer(tokenizers.chatml(source), tools=[LOOKUP])
    assert PLAIN in renderer.decode(renderer.encode({"role": "assistant", "content": PARTS}))


class Shows(Env):
    """Answers in parts, as servers of tools do."""

    async def step(self, action: Any) -> StepResult:
        return StepResult(done=True) if "Paris" in action.text else StepResult([user(PARTS)])

    def score(self, trajectory: Any) -> float:
        return 1.0


async def test_an_episode_shows_parts_to_the_model() -> None:
    t = await rollout(Shows(), Task(prompt="?"), ["hm", "Paris"], limits=Limits(turns=3))
    assert (t.failure, t.reward, len(t.turns)) == (None, 1.0, 2)
    assert any(message.get("content") == PARTS for message in t.messages)
    assert PLAIN in tiny_renderer().decode(t.response)
