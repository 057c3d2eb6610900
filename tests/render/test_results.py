"""Results of parallel calls: each is read as the result of its own call, in whatever order they arrive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import Any

import pytest

from agentrl import Env, StepResult, Task, run_episode
from agentrl.chat.request import Entry
from agentrl.chat.tokens.writer import Writer
from agentrl.chat.wires.chat import Chat
from agentrl.chat.wires.gemini import Gemini
from agentrl.chat.wires.messages import Messages
from agentrl.chat.wires.responses import Responses
from agentrl.engine import ScriptedEngine
from agentrl.errors import TemplateError
from agentrl.render import Renderer, load_renderer
from agentrl.render.results import CallKey, answered, in_call_order, ordered
from agentrl.types import Action, Message, ToolCall
from tests.render.markers import small_tokenizer, template_files, tokenizer_of
from tests.render.mutants import CHATML
from tests.render.probes import TOOLS, A, B, C, asks, gives, user

NUMBERED = "{%- if m.role == 'tool' -%}{{- '[' + m.tool_call_id + '] ' -}}{%- endif -%}{{- m.content -}}"
IDS = CHATML.replace("{{- m.content -}}", NUMBERED)


@pytest.mark.parametrize(
    ("results", "matched"),
    [
        ([("b", ""), ("a", "")], [1, 0]),
        ([("", ""), ("", "")], [0, 1]),
        ([("", "g"), ("", "f")], [1, 0]),
        ([("", "f"), ("", "f")], [0, 1]),
        ([("", ""), ("a", "")], [1, 0]),
        ([("x", "g"), ("b", "")], [None, 1]),
        ([("b", ""), ("b", ""), ("", "")], [1, 1, 0]),
        ([("", ""), ("", ""), ("", "")], [0, 1, None]),
        ([], []),
    ],
)
def test_a_result_answers_the_call_of_its_id_or_name_or_place(
    results: Sequence[tuple[str, str]], matched: Sequence[int | None]
) -> None:
    calls = [CallKey("a", "f"), CallKey("b", "g")]
    assert answered(calls, [CallKey(*result) for result in results]) == matched


def test_what_answers_no_call_stays_at_its_place() -> None:
    assert ordered(["second", "note", "first"], [1, None, 0]) == ["first", "note", "second"]
    calls = [ToolCall("a", "f", {}), ToolCall("b", "f", {})]
    first, second = ({"role": "tool", "tool_call_id": name} for name in "ab")
    assert in_call_order([user("x"), second, user("y"), first], calls) == [user("x"), first, user("y"), second]
    assert in_call_order([second, first], calls, by_id=True) == [second, first]
    assert in_call_order([{"role": "tool", "content": "r"}], calls) == [
        {"role": "tool", "content": "r", "tool_call_id": "a"}
    ]


def test_the_certificate_says_how_a_template_matches() -> None:
    assert load_renderer(small_tokenizer(CHATML), tools=TOOLS).certificate.results == "place"
    # an id at the result alone says nothing: the model does not see the ids of its calls
    assert load_renderer(small_tokenizer(IDS), tools=TOOLS).certificate.results == "place"
    both = IDS.replace('{"name": "\'', '{"id": "\' + c.id + \'", "name": "\'')
    assert both != IDS
    assert load_renderer(small_tokenizer(both), tools=TOOLS).certificate.results == "id"


def parallel(renderer: Renderer) -> tuple[Action, list[str]]:
    tokens = renderer.encode(asks(A, B, C))
    action = renderer.parse(tokens, "stop", tokens[-1])
    return action, [call.id for call in action.calls]


@pytest.mark.parametrize("path", template_files(), ids=lambda path: path.stem)
def test_a_bridge_writes_results_in_the_order_of_their_calls(path: Any) -> None:
    try:
        renderer = load_renderer(tokenizer_of(path), tools=TOOLS)
    except TemplateError:
        return
    certificate = renderer.certificate
    if not certificate.capabilities["parallel_calls"] or not certificate.capabilities["calls"]:
        return
    action, ids = parallel(renderer)
    history: list[Message] = [user("go"), asks(A, B, C)]
    results = [gives(call_id, f"result{name}") for call_id, name in zip(ids, ("one", "two", "six"), strict=True)]
    expected = renderer.bridge(history, action, results).tokens
    for several in permutations(results):
        tokens = renderer.bridge(history, action, several).tokens
        assert (tokens == expected) == (certificate.results == "place" or list(several) == results)


def test_a_prompt_writes_results_in_the_order_of_their_calls() -> None:
    renderer = load_renderer(small_tokenizer(CHATML), tools=TOOLS)
    sorted_, mixed = (
        renderer.prompt([user("go"), asks(A, B), *answers, user("more"), asks(C), gives(C, "third")])
        for answers in ([gives(A, "r1"), gives(B, "r2")], [gives(B, "r2"), gives(A, "r1")])
    )
    assert sorted_.tokens == mixed.tokens


class Mixed(Env):
    """Answers its calls in another order, or without ids."""

    answers: Sequence[Mapping[str, Any]] = ()

    async def step(self, action: Action) -> StepResult:
        if not action.calls:
            return StepResult(reward=1.0, done=True)
        ids = [call.id for call in action.calls]
        return StepResult(
            [{**m, **({"tool_call_id": ids[m["n"]]} if m.get("n") is not None else {})} for m in self.answers]
        )


@pytest.mark.parametrize("n", [(1, 0), (None, None)])
async def test_an_env_may_answer_in_any_order(n: Sequence[int | None]) -> None:
    renderer = load_renderer(small_tokenizer(CHATML), tools=TOOLS)
    contents = ("second", "first") if n == (1, 0) else ("first", "second")
    env = Mixed()
    env.answers = [{"role": "tool", "content": text, "n": i} for text, i in zip(contents, n, strict=True)]
    task = Task(prompt="go", tools=tuple(TOOLS))
    turns = [renderer.decode(renderer.encode(asks(A, B))), "done"]
    t = await run_episode(env, task, engine=ScriptedEngine(turns, renderer), renderer=renderer)
    text = renderer.decode(t.tokens)
    assert 0 < text.index("first<") < text.index("second<")
    told = [message for message in t.messages if message["role"] == "tool"]
    assert [message["content"] for message in told] == ["first", "second"]
    assert [message["tool_call_id"] for message in told] == [call.id for call in t.actions[0].calls]


def _chat() -> Sequence[Entry]:
    calls = [
        {"id": i, "type": "function", "function": {"name": "book", "arguments": f'{{"place": "{i}"}}'}} for i in "ab"
    ]
    results = [{"role": "tool", "tool_call_id": i, "content": f"result {i}"} for i in "ba"]
    sent = [{"role": "user", "content": "Go."}, {"role": "assistant", "content": None, "tool_calls": calls}, *results]
    return Chat().read({"messages": sent}, {}, "digest").request.entries


def _messages() -> Sequence[Entry]:
    calls = [{"type": "tool_use", "id": i, "name": "book", "input": {"place": i}} for i in "ab"]
    results = [{"type": "tool_result", "tool_use_id": i, "content": f"result {i}"} for i in "ba"]
    sent = [
        {"role": "user", "content": "Go."},
        {"role": "assistant", "content": calls},
        {"role": "user", "content": results},
    ]
    return Messages().read({"messages": sent}, {}, "digest").request.entries


def _responses() -> Sequence[Entry]:
    calls = [{"type": "function_call", "call_id": i, "name": "book", "arguments": f'{{"place": "{i}"}}'} for i in "ab"]
    results = [{"type": "function_call_output", "call_id": i, "output": f"result {i}"} for i in "ba"]
    sent = [{"role": "user", "content": "Go."}, *calls, *results]
    return Responses().read({"input": sent}, {}, "digest").request.entries


def _gemini() -> Sequence[Entry]:
    calls = [{"functionCall": {"id": i, "name": "book", "args": {"place": i}}} for i in "ab"]
    results = [{"functionResponse": {"id": i, "name": "book", "response": {"output": f"result {i}"}}} for i in "ba"]
    sent = [
        {"role": "user", "parts": [{"text": "Go."}]},
        {"role": "model", "parts": calls},
        {"role": "user", "parts": results},
    ]
    return Gemini().read({"contents": sent}, {}, "digest").request.entries


@pytest.mark.parametrize("entries", [_chat, _messages, _responses, _gemini])
def test_every_wire_may_send_results_in_any_order(entries: Any) -> None:
    writer = Writer(load_renderer(small_tokenizer(CHATML), tools=TOOLS))
    sent = entries()
    text = writer.renderer.decode(writer.prompt(sent).tokens)
    assert 0 < text.index("result a") < text.index("result b")
    action, ids = parallel(writer.renderer)
    wire = {"a": ids[0], "b": ids[1]}
    history = [*writer.messages(sent[:1], root=True), asks(A, B, C)]
    bridge = writer.renderer.decode(writer.bridge(history, action, sent[-2:], ids=wire).tokens)
    assert 0 < bridge.index("result a") < bridge.index("result b")
    told = [m["content"] for m in writer.messages(sent[-2:], wire, action=action)]
    assert told == ["result a", "result b"]
