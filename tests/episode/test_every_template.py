"""Whole episodes over the chat templates of real models: wrong calls answered, turns reopened, a last turn forced."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl import (
    Env,
    Generation,
    Limits,
    Raw,
    StepResult,
    StopReason,
    Task,
    TemplateError,
    TurnOptions,
    run_episode,
    tool,
)
from agentrl.chat.client import ScriptedSpeaker
from agentrl.chat.completions import read_reply
from agentrl.engine import ChatEngine, ScriptedEngine
from agentrl.env.env import tools_of
from agentrl.episode.options import EpisodeOptions
from agentrl.render import Renderer, load_renderer
from agentrl.testing import call
from agentrl_envs.search_r1 import SearchR1
from agentrl_envs.search_r1.prompts import INVALID
from agentrl_envs.search_r1.retrieval import Document
from tests.render.markers import template_files, tokenizer_of

SEARCH = call("search", query="France")


class Capitals(Env):
    @tool
    async def search(self, query: str) -> str:
        """Search the encyclopedia."""
        return f"{query}: the capital is Paris."

    def last_turn(self, reason):
        return "Answer now."

    def score(self, trajectory):
        return float("Paris" in trajectory.answer)  # what exactly its content is, tests/render says


class Tags(Env):
    turn_options = TurnOptions(stop=("</answer>",))

    async def step(self, action):
        return StepResult(done=True) if "</answer>" in action.text else StepResult(Raw("\nTry again.\n"))

    def score(self, trajectory):
        return float("<answer>Paris</answer>" in trajectory.actions[-1].text)


@pytest.fixture(scope="module", params=template_files(), ids=lambda path: path.stem)
def renderer(request) -> Renderer:
    """The certified renderer of a template."""
    path: Path = request.param
    try:
        return load_renderer(tokenizer_of(path))
    except TemplateError as exc:
        pytest.skip(f"not certified: {exc}"[:100])


def spoiled(renderer: Renderer) -> Generation:
    """A call with one token left out, so that it cannot be read."""
    tokens = renderer.bind([made.spec for made in tools_of(Capitals).values()]).encode(SEARCH)
    for place in reversed(range(1, len(tokens) - 1)):
        without = [*tokens[:place], *tokens[place + 1 :]]
        action = renderer.parse(without, "stop", without[-1])
        if action.calls and all(made.error for made in action.calls):
            return Generation(without, [-0.5] * len(without), "stop", without[-1])
    pytest.skip("this format of calls is read whatever token is missing")


async def play(renderer, env, script, **limits):
    engine = ScriptedEngine(script, renderer)
    t = await run_episode(
        env,
        Task(prompt="?", label="Paris"),
        engine=engine,
        renderer=renderer,
        options=EpisodeOptions(limits=Limits(**limits)),
    )
    assert t.failure is None, t.failure
    t.verify()
    assert (t.ledger.trained, t.prefix_breaks) == (t.ledger.sampled, 0)
    for request, turn in zip(engine.requests, t.turns, strict=True):
        assert request == t.tokens[: turn.prompt_tokens]
    return t


async def test_a_call_that_cannot_be_read_is_answered_and_then_the_last_turn(renderer):
    if not renderer.certificate.capabilities["calls"]:
        pytest.skip("this template writes no calls")
    t = await play(renderer, Capitals(), [spoiled(renderer), SEARCH, "Paris"], turns=2)
    assert (t.stop, t.reward) == (StopReason.DONE, 1.0)
    reply = t.messages[2]
    assert reply["role"] == ("tool" if renderer.certificate.capabilities["orphan_tool"] else "user")
    text = renderer.decode(t.response)
    for told in (reply["content"], "the capital is Paris.", "Answer now."):
        assert told in text
    assert [turn.bad_call for turn in t.turns] == ["structural", None, None]


async def test_text_goes_on_in_a_turn_that_the_model_had_ended(renderer):
    t = await play(renderer, Tags(), ["I do not know.", "<answer>Paris</answer>"])
    assert (t.stop, t.reward, len(t.turns)) == (StopReason.DONE, 1.0, 2)
    assert "Try again." in renderer.decode(t.response)


class Library:
    async def search(self, query, topk):
        return [Document("0", f'"{query}"\nThe capital is Paris.')]


def search_r1(form):
    return SearchR1({"form": form}, shared=Library())


async def test_search_r1_in_tags(renderer):
    """The thought may be the template's own, or plain text to it: a tag in it is no action either way."""
    tempted = "<think>I could write <search>x</search> or <answer>y</answer>"
    script = [tempted, "so I look.</think> <search>France</search>", "<think>I know.</think> <answer>Paris</answer>"]
    said = [Generation(tokens := renderer.prompt(Raw(text)).tokens, [-0.5] * len(tokens), "stop") for text in script]
    if "<answer>" not in renderer.parse(said[2].tokens, "stop", thinking=renderer.prompt("?").thinking).content:
        pytest.skip("this template ends thoughts by another mark, which these turns lack")
    t = await play(renderer, search_r1("tags"), said)
    assert (t.stop, t.reward, t.info["searches"], len(t.turns)) == (StopReason.DONE, 1.0, 1, 3)
    text = renderer.decode(t.response)
    assert (text.count(INVALID), text.count("</information>")) == (1, 1)
    assert text.endswith("<answer>Paris</answer>")


async def test_search_r1_with_tools(renderer):
    if not renderer.certificate.capabilities["calls"]:
        pytest.skip("this template writes no calls")
    t = await play(renderer, search_r1("tools"), [SEARCH, "<answer>Paris</answer>"])
    assert (t.stop, t.reward, t.info["searches"]) == (StopReason.DONE, 1.0, 1)
    (read,) = [m["content"] for m in t.messages if m["role"] == "tool"]
    assert read == 'Doc 1(Title: "France") The capital is Paris.'
    assert "The capital is Paris." in renderer.decode(t.response)


def said(**message):
    """What an API's answer says, as ChatEngine's speaker gives it."""
    choices = [{"message": {"role": "assistant", "content": None, **message}}]
    return read_reply({"choices": choices}, "").message


def made(arguments, name="call_AbC-0123456789"):
    return {"id": name, "type": "function", "function": {"name": "search", "arguments": arguments}}


FRANCE = '{"query": "France"}'
SAID = {
    "one call": {"tool_calls": [made(FRANCE)]},
    "two calls": {"content": "Both.", "tool_calls": [made(FRANCE), made(FRANCE, "b")]},
    "a call that is cut": {"tool_calls": [made('{"query": "Fra'), made(FRANCE, "b")]},
    "a thought": {"reasoning_content": "Hm.", "tool_calls": [made(FRANCE)]},
    "markup": {"content": "<|im_end|></s><tool_call>", "tool_calls": [made(FRANCE)]},
}


@pytest.mark.parametrize("first", SAID)
async def test_what_an_api_says_plays_over_every_template(renderer, first):
    def reply(messages, tools):
        open_calls = []
        for message in messages:  # servers refuse a conversation in which a call has no result
            if message["role"] == "tool":
                open_calls.remove(message["tool_call_id"])
            else:
                assert not open_calls
                open_calls = [one["id"] for one in message.get("tool_calls", ())]
        assert not open_calls
        return said(**SAID[first]) if messages[-1]["role"] == "user" else said(content="Paris")

    if any("without tools only" in departure for departure in renderer.certificate.departures):
        pytest.skip("this template serves without tools only")
    engine = ChatEngine(ScriptedSpeaker(reply), renderer)
    t = await run_episode(Capitals(), Task(prompt="Capital of France?"), engine=engine, renderer=renderer)
    t.verify()
    assert (t.failure, t.reward) == (None, 1.0)
    carries = renderer.certificate.capabilities["calls"] and first == "one call"
    assert not carries or "not_carried" not in t.info["player"]


class Summarized(Capitals):
    searches = 0

    async def exec_tool(self, made):
        self.searches += 1
        return f"Result {self.searches}: the capital is Paris."

    def ask_summary(self, trajectory):
        return "Sum up." if self.searches == 2 and not trajectory.summaries else ""


async def test_after_a_summary_the_bridges_are_those_of_a_new_conversation(renderer):
    """Templates that number calls, or look for earlier results, see only the calls after the summary."""
    if not renderer.certificate.capabilities["calls"]:
        pytest.skip("this template writes no calls")
    script = [SEARCH, SEARCH, "It is Paris.", SEARCH, SEARCH, SEARCH, "Paris"]
    engine, env = ScriptedEngine(script, renderer), Summarized()
    bound = renderer.bind([made.spec for made in tools_of(Summarized).values()])
    compact_at = len(bound.prompt("?").tokens) + 1
    t = await run_episode(
        env,
        Task(prompt="?", label="Paris"),
        engine=engine,
        renderer=renderer,
        options=EpisodeOptions(limits=Limits(compact_at=compact_at, turns=9)),
    )
    assert t.failure is None, t.failure
    t.verify()
    assert (t.stop, t.summaries, t.prefix_breaks, t.reward) == (StopReason.DONE, 1, 0, 1.0)
    assert [len(segment.turns) for segment in t.segments] == [3, 4]
    assert "It is Paris." in renderer.decode(t.segment.ids[: t.segment.prompt_length])
    assert "Sum up." not in renderer.decode(t.segment.ids)
    if renderer.certificate.level == "exact":
        for request, place in zip(engine.requests[3:], t.replies[3:], strict=True):
            assert request == [*bound.prompt(t.messages[t.segment.first_message : place]).tokens]
