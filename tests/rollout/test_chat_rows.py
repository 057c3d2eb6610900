"""Rows of chat as episodes, compared with the templates' own renders and with episodes that say the same words."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from typing import Any

import pytest

from agentrl import Env, StepResult, Task, run_episode
from agentrl.engine import ScriptedEngine
from agentrl.episode.options import EpisodeOptions
from agentrl.errors import ConfigError
from agentrl.render import load_renderer
from agentrl.rollout.data.chat_rows import NO_RESULT, NO_TOOLS, ChatReader, SkippedError, is_chat
from tests.render.markers import HERE, small_tokenizer, tokenizer_of

FIND = {
    "type": "function",
    "function": {
        "name": "find_papers",
        "description": "Find papers.",
        "parameters": {
            "type": "object",
            "properties": {"title": {"type": "string"}, "year": {"type": "integer"}},
            "required": ["title"],
        },
    },
}
ARGUMENTS = {"title": 'the "Río" of\nPerú', "year": 1997}


def said(content: str | None, *calls: dict[str, Any], **more: Any) -> dict[str, Any]:
    made = [
        {"id": f"call_{i}", "type": "function", "function": {"name": "find_papers", "arguments": json.dumps(call)}}
        for i, call in enumerate(calls)
    ]
    return {"role": "assistant", "content": content, **({"tool_calls": made} if made else {}), **more}


def user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


def result(content: str, call_id: str = "call_0") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


LIBRARY = [
    {"role": "system", "content": "You keep the library."},
    user("Which paper is it?"),
    said(None, ARGUMENTS),
    result("number 42, été 漢字"),
    said("It is number 42,\n\n  the one on  été."),
    user("Thanks. Any other?"),
    said("No: that is all."),
]
EXACT = ("Qwen-Qwen2.5-7B-Instruct", "Qwen3-Coder", "ByteDance-Seed-OSS")
"""Templates that write no turn in another way once it is history: one render of all messages holds each as it was."""
OTHERS = ("Qwen-Qwen3-0.6B", "deepseek-ai-DeepSeek-V3.1", "GLM-4.6", "openai-gpt-oss-120b")


def of(name: str) -> tuple[Any, Any]:
    tokenizer = tokenizer_of(HERE / "real" / f"{name}.jinja")
    return tokenizer, load_renderer(tokenizer)


def read(renderer: Any, messages: list[Any], context: int = 100_000, **row: Any) -> Any:
    return ChatReader(renderer=renderer, context=context).read({"messages": messages, **row})


def trained(chat: Any, renderer: Any) -> list[str]:
    """The texts of the trained spans."""
    segments = chat.trajectory.segments
    return [
        renderer.decode(segment.response[span.start : span.stop])
        for segment in segments
        for span in segment.spans
        if span.trained
    ]


def rendered(tokenizer: Any, messages: list[dict[str, Any]], *, prompt: bool = False) -> str:
    """What transformers itself writes: arguments as an object, and no content that is null."""
    told = []
    for message in messages:
        calls = [
            {**call, "function": {**call["function"], "arguments": json.loads(call["function"]["arguments"])}}
            for call in message.get("tool_calls", ())
        ]
        told.append({**message, "content": message["content"] or "", **({"tool_calls": calls} if calls else {})})
    text = tokenizer.apply_chat_template(told, tools=[FIND], tokenize=False, add_generation_prompt=prompt)
    assert isinstance(text, str)
    return text


def turns_of(tokenizer: Any, messages: list[dict[str, Any]]) -> list[str]:
    """Each assistant message as the template writes it when it is the last, up to the end of the turn."""
    turns = []
    for i, message in enumerate(messages):
        if message["role"] == "assistant":
            asked, full = (
                rendered(tokenizer, messages[:i], prompt=True),
                rendered(tokenizer, messages[: i + 1]),
            )
            assert full.startswith(asked)
            turns.append(full[len(asked) :].removesuffix("\n"))
    return turns


@pytest.mark.parametrize("name", EXACT)
def test_the_trained_tokens_are_those_that_one_render_of_all_messages_has_at_the_assistants_turns(name: str) -> None:
    tokenizer, renderer = of(name)
    trajectory = read(renderer, LIBRARY, tools=[FIND]).trajectory

    whole = rendered(tokenizer, LIBRARY)
    encoded = tokenizer(whole, add_special_tokens=False, return_offsets_mapping=True)
    places, at = [], 0
    for turn in turns_of(tokenizer, LIBRARY):
        at = whole.index(turn, at)
        places.append(range(at, at := at + len(turn)))
    theirs = [int(any(begin in place for place in places)) for begin, _ in encoded["offset_mapping"]]
    count = trajectory.segment.length
    assert encoded["input_ids"][:count] == trajectory.tokens
    assert theirs[:count] == [0] * trajectory.prompt_length + trajectory.loss_mask
    assert not any(theirs[count:]), "nothing that the assistant says is missing"


@pytest.mark.parametrize("name", [*EXACT, *OTHERS])
def test_each_trained_turn_is_what_the_template_writes_for_it_when_it_is_the_last(name: str) -> None:
    tokenizer, renderer = of(name)
    chat = read(renderer, LIBRARY, tools=json.dumps([FIND]))

    ours = trained(chat, renderer)
    if name == "GLM-4.6":  # its turn ends with the next one's marker
        ours = [turn.removesuffix("<|observation|>").removesuffix("<|user|>") for turn in ours]
    if name == "openai-gpt-oss-120b":  # its prompt stands before a channel that a call leaves out
        assert [turn.rpartition("<|message|>")[2] for turn in ours[1:]] == [
            f"{LIBRARY[i]['content']}<|return|>" for i in (4, 6)
        ]
        assert json.loads(ours[0].rpartition("<|message|>")[2].removesuffix("<|call|>")) == ARGUMENTS
    else:
        assert ours == turns_of(tokenizer, LIBRARY)
    chat.trajectory.verify()
    [call], answer = chat.trajectory.actions[0].calls, chat.trajectory.messages[3]
    assert (answer["name"], answer["tool_call_id"]) == (call.name, call.id)
    assert "Thanks" not in "".join(ours)
    assert "漢字" not in "".join(ours)


class Told(Env):
    """Answers with the messages that stand behind each turn of a row."""

    answers: list[list[dict[str, Any]]]

    async def step(self, action: Any) -> StepResult:
        if not self.answers:
            return StepResult(done=True)
        messages = self.answers.pop(0)
        ids = [call.id for call in action.calls]
        return StepResult([{**m, "tool_call_id": ids[0]} if m["role"] == "tool" else m for m in messages])


@pytest.mark.parametrize("thinking", ["keep", "strip"])
def test_the_tokens_are_to_the_bit_those_of_an_episode(thinking: Any) -> None:
    _, renderer = of("Qwen-Qwen3-0.6B")
    messages = [
        {**message, **({"reasoning_content": f"Thought {i}."} if message["role"] == "assistant" else {})}
        for i, message in enumerate(LIBRARY)
    ]
    chat = ChatReader(renderer=renderer, context=5000, thinking=thinking).read({"messages": messages, "tools": [FIND]})

    at = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    env = Told()
    env.answers = [messages[i + 1 : j] for i, j in pairwise(at)]
    engine = ScriptedEngine([messages[i] for i in at], renderer)
    task = Task(prompt=messages[: at[0]], tools=[FIND])
    options = EpisodeOptions(thinking=thinking)
    episode = asyncio.run(run_episode(env, task, engine=engine, renderer=renderer, options=options))

    def sequences(trajectory: Any) -> Any:
        return [(segment.tokens, segment.loss_mask, segment.log_probs) for segment in trajectory.segments]

    assert episode.failure is None
    assert sequences(chat.trajectory) == sequences(episode)
    assert len(chat.trajectory.segments) == (2 if thinking == "strip" else 1)


def test_a_thought_may_stand_in_the_content() -> None:
    _, renderer = of("Qwen-Qwen3-0.6B")
    apart = read(renderer, [user("How many?"), said("Two.", reasoning_content="One and one.")])
    within = read(renderer, [user("How many?"), said("<think>One and one.</think> Two.")])

    assert within.trajectory.tokens == apart.trajectory.tokens
    assert trained(apart, renderer) == ["<think>\nOne and one.\n</think>\n\nTwo.<|im_end|>"]


def test_messages_of_weight_0_are_read_and_not_trained(renderer: Any) -> None:
    messages = [user("A?"), said("first", weight=0), user("B?"), said("second", step_loss_mask=0), said("third")]
    chat = read(renderer, messages)

    assert trained(chat, renderer) == ["third<|im_end|>"]
    assert chat.trajectory.ledger.masked == {"host": len(renderer.encode(said("first")) + renderer.encode(messages[3]))}


def test_of_a_prompt_and_its_completion_the_completion_is_trained(renderer: Any) -> None:
    row = {"prompt": [user("A?"), said("first"), user("B?")], "completion": [said("second")]}

    assert is_chat(row)
    assert trained(ChatReader(renderer=renderer, context=1000).read(row), renderer) == ["second<|im_end|>"]


def test_calls_without_ids_or_with_one_id_are_answered_in_order() -> None:
    _, renderer = of("mistralai-Mistral-Nemo-Instruct-2407")
    named = [said(None, {"title": "a"}, {"title": "b"}), result("rA"), result("rB", "call_1"), said("done")]
    blank = json.loads(json.dumps(named).replace("call_0", "").replace("call_1", ""))
    first, second = (read(renderer, [user("Go."), *rest], tools=[FIND]).trajectory for rest in (named, blank))

    for trajectory in (first, second):
        calls, answers = trajectory.actions[0].calls, [m for m in trajectory.messages if m["role"] == "tool"]
        assert [answer["tool_call_id"] for answer in answers] == [call.id for call in calls]
        assert calls[0].id != calls[1].id


def test_a_greeting_before_the_user_is_part_of_the_prompt(renderer: Any) -> None:
    chat = read(renderer, [said("Good day."), user("A?"), said("answer")])

    assert trained(chat, renderer) == ["answer<|im_end|>"]
    assert "Good day." in renderer.decode(chat.trajectory.tokens[: chat.trajectory.prompt_length])


def test_turns_behind_the_context_are_left_out_whole(renderer: Any) -> None:
    messages = [user("A?"), said("one two three"), user("B?"), said("four five six"), user("C?"), said("seven")]
    whole = read(renderer, messages).trajectory
    end = whole.prompt_length + [span.stop for span in whole.segment.spans if span.trained][1]

    fits, short = read(renderer, messages, end), read(renderer, messages, end - 1)
    assert (fits.left_out, len(trained(fits, renderer))) == (1, 2)
    assert (short.left_out, len(trained(short, renderer))) == (2, 1)
    with pytest.raises(SkippedError, match="longer than 8 tokens before the first turn to learn ends"):
        read(renderer, messages, 8)


PICTURE = [{"type": "image_url", "image_url": {"url": "data:,"}}]
SKIPPED = {
    "no assistant message": [user("A?")],
    "neither 0 nor 1": [user("A?"), said("b", weight=0.5)],
    r"not a readable chat: messages\[0\].role": [{"role": "function", "content": "x"}, user("A?"), said("b")],
    r"not a readable chat: .*'image_url'": [{"role": "user", "content": PICTURE}, said("b")],
    "the arguments of a call are not a JSON object": [
        user("A?"),
        {**said(None), "tool_calls": [{"id": "1", "function": {"name": "find_papers", "arguments": "{x"}}]},
    ],
    r"cut at a stop token within it: '<\|im_end\|>'": [user("A?"), said("one<|im_end|> two")],
    "does not come back to the letter": [user("A?"), said('Say <tool_call>\n{"name": "f"}\n</tool_call>')],
    "a thought, and the chat template writes none: 'hm'": [user("A?"), said("b", reasoning_content="hm")],
}


@pytest.mark.parametrize("reason", SKIPPED)
def test_a_row_that_cannot_be_carried_is_skipped_with_the_reason(reason: str) -> None:
    _, renderer = of("Qwen-Qwen2.5-7B-Instruct")

    with pytest.raises(SkippedError, match=reason):
        read(renderer, SKIPPED[reason], tools=[FIND])


ODD = {
    "is not among the row's tools: 'burn'": [
        user("A?"),
        {**said(None), "tool_calls": [{"id": "call_0", "function": {"name": "burn", "arguments": "{}"}}]},
        result("x"),
        said("b"),
    ],
    "fits no call of the turn before it: 'call_7'": [
        user("A?"), said(None, ARGUMENTS), result("x", "call_7"), said("b"),
    ],
    "no result before the assistant's next message: find_papers": [
        user("A?"), said(None, ARGUMENTS), said("It is 42."),
    ],
}  # fmt: skip


@pytest.mark.parametrize("reason", ODD)
def test_calls_that_could_only_teach_a_mistake_are_skipped(reason: str, renderer: Any) -> None:
    with pytest.raises(SkippedError, match=reason):
        read(renderer, ODD[reason], tools=[FIND])


def test_calls_that_are_only_odd_are_learned_with_a_remark(renderer: Any) -> None:
    asked = [user("A?"), said(None, ARGUMENTS)]

    assert read(renderer, asked, tools=[FIND]).remarks == (), "a row may end with its call"
    assert read(renderer, [*asked, result("x"), said("b")]).remarks == (NO_TOOLS,)
    assert read(renderer, [*asked, user("Well?"), said("b")], tools=[FIND]).remarks == (NO_RESULT,)
    burnt = {**said(None, weight=0), "tool_calls": [{"id": "1", "function": {"name": "burn", "arguments": "{}"}}]}
    mended = [user("A?"), burnt, result("no such tool", "1"), said("b")]
    assert read(renderer, mended, tools=[FIND]).remarks == (), "what is not learned may be wrong"
    unnamed = {"role": "tool", "content": "x"}
    assert read(renderer, [*asked, unnamed, said("b")], tools=[FIND]).trajectory.messages[2]["role"] == "tool"


LOSES = (
    "{% for m in messages %}{% if m.role != 'assistant' or loop.index0 %}"
    "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def test_what_a_template_refuses_or_loses_is_skipped() -> None:
    _, mistral = of("mistralai-Mistral-Nemo-Instruct-2407")
    greeting = [said("Good day."), user("A?"), said("b")]

    with pytest.raises(SkippedError, match=r"the chat template refuses it: .*roles must"):
        read(mistral, greeting)
    with pytest.raises(SkippedError, match=r"to the letter from the chat template: 'Wait\.' became ''"):
        read(mistral, [user("A?"), said("Wait.", ARGUMENTS), result("x"), said("b")], tools=[FIND])
    with pytest.raises(SkippedError, match=r"leaves out this message of the assistant: 'Good day\.'"):
        read(load_renderer(small_tokenizer(LOSES)), greeting)


@pytest.mark.parametrize("row", [{"messages": "hi"}, {"messages": [{"content": "x"}]}, {"completion": []}])
def test_what_is_no_chat_at_all_is_an_error(renderer: Any, row: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="must be a list of messages with a role each"):
        ChatReader(renderer=renderer, context=1000).read(row)
