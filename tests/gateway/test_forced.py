"""What a client demands is sampled under a grammar: which grammar, what is trained of it, and what is refused."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import partial

import pytest

from agentrl.chat.options import SessionOptions
from agentrl.chat.request import Entry, Forced, RefusedError
from agentrl.chat.tokens.grammar import structural_tag
from agentrl.chat.wires.chat import Chat
from agentrl.chat.wires.messages import Messages
from agentrl.chat.wires.responses import Responses
from agentrl.engine import Generation
from agentrl.errors import RequestError
from agentrl.models import tiny_tokenizer
from agentrl.render import load_renderer
from agentrl.testing import call
from agentrl.trajectory.trajectory import total_ledger
from tests.gateway.client import ASK, FIND, Recorder, Talk, told
from tests.gateway.clients.playing import thinking_model

CALL = Forced(("find",))
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
JSON = Forced((), SCHEMA, source="response_format")
_VALUE = r'\{(?:[^{}"]|"[^"]*")*\}'
"""What the pattern takes for JSON: an object without another one in it."""


def pattern(form, renderer):
    """A structural tag as a regular expression, which knows no schemas. A token is its text in these marks: «»."""
    of = partial(pattern, renderer=renderer)
    match form["type"]:
        case "token":
            return re.escape(f"«{renderer.decode([form['token']])}»")
        case "any_tokens":
            assert form["exclude_tokens"]
            return "[^«»]*"
        case "star":
            return f"(?:{of(form['content'])})*"
        case "const_string":
            return re.escape(form["value"])
        case "json_schema":
            return _VALUE
        case "sequence":
            return "".join(map(of, form["elements"]))
        case "or":
            return f"(?:{'|'.join(map(of, form['elements']))})"
    raise AssertionError(form)


def spelled(renderer, message):
    """A message as the template writes it, with its marks as `pattern` writes tokens."""
    tokens = renderer.encode(message)[:-1]
    return "".join(f"«{renderer.decode([one])}»" if one in renderer.marks else renderer.decode([one]) for one in tokens)


def message(*names, content="", **more):
    calls = [
        {"id": f"call0000{i}", "type": "function", "function": {"name": name, "arguments": {"what": "x"}}}
        for i, name in enumerate(names)
    ]
    return {"role": "assistant", "content": content, **({"tool_calls": calls} if calls else {}), **more}


RENDERERS = {"tiny": lambda: load_renderer(tiny_tokenizer()), "Qwen3": lambda: thinking_model()[1]}


@pytest.mark.parametrize("name", RENDERERS)
def test_the_grammar_takes_what_the_template_writes_and_nothing_else(name):
    renderer = RENDERERS[name]().bind([FIND])
    thoughtful = {"reasoning_content": "hm"} if renderer.certificate.capabilities["thinking"] else {}

    def takes(forced, said):
        form = json.loads(structural_tag(renderer, forced, [FIND], thinking=False))["format"]
        return re.fullmatch(pattern(form, renderer), spelled(renderer, said)) is not None

    for more in ({}, thoughtful):
        assert takes(CALL, message("find", **more))
        assert takes(CALL, message("find", "find", **more))
        assert not takes(replace(CALL, parallel=False), message("find", "find", **more))
        assert not takes(CALL, message("look", **more))
        assert not takes(CALL, message(content="I would rather talk.", **more))
        assert not takes(CALL, message("find", content="First some talk.", **more))
        assert takes(JSON, message(content='{"a": 1}', **more))
        assert not takes(JSON, message("find", **more))
        assert not takes(JSON, message(content='{"a": 1} is it', **more))
        assert takes(Forced(("find",), SCHEMA), message("find", **more))
        assert takes(Forced(("find",), SCHEMA), message(content='{"a": 1}', **more))
        assert not takes(Forced(("find",), SCHEMA), message(content="Neither.", **more))


def test_a_thought_that_the_prompt_has_opened_goes_on():
    renderer = thinking_model()[1].bind([FIND])
    form = json.loads(structural_tag(renderer, CALL, [FIND], thinking=True))["format"]
    whole = spelled(renderer, message("find", reasoning_content="hm"))
    assert re.fullmatch(pattern(form, renderer), whole.removeprefix("«<think>»\n"))
    assert not re.fullmatch(pattern(form, renderer), whole.partition("«</think>»\n\n")[2])


LOOK = {"type": "object", "properties": {"where": {"type": "string"}}}
WIRES = {
    "chat": (Chat(), {"messages": [{"role": "user", "content": "Go."}]}, {"type": "function", "function": {}}),
    "responses": (Responses(), {"input": "Go."}, {"type": "function"}),
    "messages": (Messages(), {"messages": [{"role": "user", "content": "Go."}], "max_tokens": 9}, {}),
}
_NAMED = {"type": "function", "function": {"name": "b"}}
_ALLOWED = {"mode": "required", "tools": [_NAMED]}
BOTH = ("a", "b")
YES_OR_NO = {"type": "or", "elements": [{"type": "const_string", "value": value} for value in ("yes", "no")]}
DEMANDS = [
    ("chat", {"tool_choice": "required"}, Forced(BOTH)),
    ("chat", {"tool_choice": "required", "parallel_tool_calls": False}, Forced(BOTH, parallel=False)),
    ("chat", {"tool_choice": _NAMED}, Forced(("b",))),
    ("chat", {"tool_choice": {"type": "allowed_tools", "allowed_tools": _ALLOWED}}, Forced(("b",))),
    ("chat", {"tool_choice": "required", "response_format": {"type": "json_object"}}, Forced(BOTH)),
    ("chat", {"response_format": {"type": "json_object"}}, Forced(BOTH, {"type": "object"})),
    ("chat", {"response_format": {"type": "json_object"}, "tool_choice": "none"}, Forced((), {"type": "object"})),
    ("chat", {"response_format": {"type": "json_schema", "json_schema": {"schema": LOOK}}}, Forced(BOTH, LOOK)),
    ("chat", {"response_format": {"type": "text"}, "tool_choice": "auto"}, None),
    ("chat", {"guided_json": LOOK}, Forced(BOTH, LOOK)),
    ("chat", {"guided_json": json.dumps(LOOK), "tool_choice": "none"}, Forced((), LOOK)),
    ("chat", {"structured_outputs": {"json_object": True}}, Forced(BOTH, {"type": "object"})),
    ("chat", {"structured_outputs": {"regex": "a+"}}, Forced(BOTH, text={"type": "regex", "pattern": "a+"})),
    ("chat", {"regex": "a+"}, Forced(BOTH, text={"type": "regex", "pattern": "a+"})),
    ("responses", {"ebnf": "root ::= x"}, Forced(BOTH, text={"type": "grammar", "grammar": "root ::= x"})),
    ("messages", {"guided_choice": ["yes", "no"]}, Forced(BOTH, text=YES_OR_NO)),
    ("chat", {"tool_choice": "required", "guided_regex": "a+"}, Forced(BOTH)),
    ("responses", {"tool_choice": "required"}, Forced(BOTH)),
    ("responses", {"tool_choice": {"type": "function", "name": "a"}}, Forced(("a",))),
    ("responses", {"text": {"format": {"type": "json_schema", "name": "n", "schema": LOOK}}}, Forced(BOTH, LOOK)),
    ("responses", {"text": {"format": {"type": "text"}, "verbosity": "low"}}, None),
    ("messages", {"tool_choice": {"type": "any", "disable_parallel_tool_use": True}}, Forced(BOTH, parallel=False)),
    ("messages", {"tool_choice": {"type": "tool", "name": "b"}}, Forced(("b",))),
    ("messages", {"output_config": {"format": {"type": "json_schema", "schema": LOOK}}}, Forced(BOTH, LOOK)),
    ("messages", {"tool_choice": {"type": "auto"}}, None),
]


def _tools(wire):
    kinds = {
        "chat": lambda name: {"type": "function", "function": {"name": name, "parameters": LOOK}},
        "responses": lambda name: {"type": "function", "name": name, "parameters": LOOK},
        "messages": lambda name: {"name": name, "input_schema": LOOK},
    }
    return [kinds[wire](name) for name in BOTH]


@pytest.mark.parametrize(("wire", "body", "forced"), DEMANDS)
def test_each_api_has_its_own_place_for_it(wire, body, forced):
    reader, plain, _ = WIRES[wire]
    given = {**plain, "model": "m", "tools": _tools(wire), **body}
    assert reader.read(given, {}, "").request.forced == forced
    ignored = reader.read(given, {}, "", SessionOptions(forced="ignore")).request
    assert (ignored.forced, bool(ignored.recorded.get("forced_ignored"))) == (None, forced is not None)
    if forced is not None:
        with pytest.raises(RefusedError, match="the answer's form is not forced in this session"):
            reader.read(given, {}, "", SessionOptions(forced="refuse"))


@pytest.fixture(scope="module")
def renderer():
    return load_renderer(tiny_tokenizer())


class Grammatical(Recorder):
    """An engine that tells of some tokens that a grammar has changed them."""

    flags: tuple[int, ...] = ()
    error: Exception | None = None

    async def generate(self, input_ids, sampling_params, **request):
        if self.error is not None and "structural_tag" in sampling_params:
            raise self.error
        found = await super().generate(input_ids, sampling_params, **request)
        if "structural_tag" not in sampling_params:
            return found
        return replace(found, constrained=[i in self.flags for i in range(len(found.tokens))])


def talking(renderer, script, **more):
    talk = Talk(renderer, script, play=False, **more)
    talk.engine = Grammatical(script, renderer)
    talk.play()
    return talk


async def test_tokens_that_the_grammar_has_changed_are_masked_and_no_others(renderer):
    talk = talking(renderer, [call("find", what="x"), "It is Paris."])
    talk.engine.flags = (0, 1, 5)
    reply = await talk.says(ASK, forced=CALL)
    assert [one.name for one in reply.calls] == ["find"]
    await talk.says(ASK, told(reply), Entry("tool", "Paris", call_id=reply.calls[0].id))
    asked = [params.get("structural_tag") for params in talk.engine.params]
    first, second = json.loads(asked[0])["format"]["elements"][0]["elements"][:2]
    assert renderer.marks[first["token"]] == "<tool_call>"
    assert second["value"] == '\n{"name": "find", "arguments": '
    assert asked[1] is None
    (segment,) = talk.end().segments
    assert segment.ledger.masked == {"constrained": 3}
    assert segment.loss_mask[:7] == [0, 0, 1, 1, 1, 0, 1]
    assert segment.ledger.sampled == segment.ledger.trained + 3


async def test_an_aborted_turn_begins_again(renderer):
    """A grammar cannot go on from the middle of a turn."""
    talk = talking(renderer, [call("find", what="x")] * 2, aborted=lambda: False)
    talk.engine.aborts(4)
    reply = await talk.says(ASK, forced=CALL)
    assert reply.calls[0].arguments == {"what": "x"}
    assert [len(sent) for sent, _ in talk.engine.answers] == [len(talk.engine.answers[0][0])] * 2
    del talk.engine.answers[0]  # its four tokens are in no turn, and the session's own count knows of them
    talk.end()


@pytest.mark.parametrize(
    ("forced", "said", "words"),
    [
        (CALL, "I would rather talk.", "the reply has no call"),
        (CALL, call("look", what="x"), "the reply calls 'look'"),
        (JSON, "It is 1.", "the reply is not JSON"),
    ],
)
async def test_an_engine_that_ignores_the_grammar_is_noticed(renderer, forced, said, words):
    talk = talking(renderer, [said, "Free."])
    with pytest.raises(RefusedError, match=f"{words}, although the engine sampled under a grammar"):
        await talk.says(ASK, forced=forced)
    await talk.says(Entry("user", "And now?"))
    assert list(total_ledger(talk.end().segments).masked) == ["undelivered"]


async def test_an_engine_without_grammars_refuses_and_the_session_goes_on(renderer):
    talk = talking(renderer, ["Free."])
    type(talk.engine).takes_grammars = False
    try:
        for forced, name in ((CALL, "tool_choice"), (JSON, "response_format")):
            with pytest.raises(RefusedError, match=f"{name}: this engine cannot sample under a grammar"):
                await talk.says(ASK, forced=forced)
    finally:
        del type(talk.engine).takes_grammars
    assert (await talk.says(ASK)).content == "Free."
    assert talk.end().turn_count == 1


async def test_a_schema_that_the_engine_refuses_ends_no_session(renderer):
    talk = talking(renderer, ["Free."])
    talk.engine.error = RequestError("Failed to compile json grammar")
    with pytest.raises(RefusedError, match="the engine refuses this form: Failed to compile") as refused:
        await talk.says(ASK, forced=JSON)
    assert refused.value.status == 400
    assert (await talk.says(ASK)).content == "Free."
    assert talk.session.failure is None
    assert talk.end().ledger.trained > 0


async def test_the_same_prompt_with_another_demand_is_another_request(renderer):
    talk = talking(renderer, ["{}", "Free."])
    exchange = talk.ask(ASK, forced=JSON)
    await exchange.replies()
    exchange.lost()
    assert (await talk.says(ASK)).content == "Free."
    assert (await talk.says(ASK, forced=JSON)).content == "{}"  # nobody got it, and it is given again


def test_flags_must_cover_the_tokens(renderer):
    from agentrl.errors import LedgerError
    from agentrl.trajectory.arrays import checked

    with pytest.raises(LedgerError, match="not one flag of a grammar for 2 tokens"):
        checked(Generation([1, 2], [-0.1, -0.1], "stop", constrained=[True]))
