"""Switches in earlier messages, such as `/no_think`: every later bridge obeys them, as the template does."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from agentrl.errors import TemplateError
from agentrl.render import Renderer, load_renderer
from agentrl.render.memo import Watch
from agentrl.render.prove import certify
from agentrl.render.prove.dependence import Dependence
from agentrl.types import Raw
from tests.render.markers import made_files, small_tokenizer, template_files, tokenizer_of
from tests.render.mutants import CHATML
from tests.render.probes import TOOLS, says, user
from tests.render.switches import WORDS, SwitchJudge, conversations

LOOP = "{%- for m in messages -%}"
PROMPT = "{{- '<|im_start|>assistant\n' -}}"


@pytest.fixture(autouse=True)
def unwatched(monkeypatch: pytest.MonkeyPatch, primed: None) -> None:
    """Only certification finds out what a bridge depends on."""
    monkeypatch.setattr(Watch, "is_due", lambda *_: False)


def switching(before: str, switched: str) -> str:
    """A template that looks at the messages first, and ends its generation prompt with an empty thought if switched."""
    thought = "{%- if " + switched + " -%}{{- '<think>\n\n</think>\n\n' -}}{%- endif -%}"
    changed = CHATML.replace(PROMPT, PROMPT + thought)
    assert changed != CHATML
    return before + changed


def flag(condition: str) -> str:
    """Sets `ns.off` if a message meets the condition."""
    sets = "{%- if " + condition + " -%}{%- set ns.off = true -%}{%- endif -%}"
    return "{%- set ns = namespace(off=false) -%}{%- for m in messages -%}" + sets + "{%- endfor -%}"


COUNT = (
    "{%- set ns = namespace(n=0) -%}{%- for m in messages -%}{%- if m.role == 'tool' and 'Error' in m.content -%}"
    "{%- set ns.n = ns.n + 1 -%}{%- endif -%}{%- endfor -%}"
)
LAST_WINS = (
    "{%- set ns = namespace(off=false) -%}{%- for m in messages if m.role in ('user', 'system') -%}"
    "{%- if '/think' in m.content -%}{%- set ns.off = false -%}"
    "{%- elif '/no_think' in m.content -%}{%- set ns.off = true -%}{%- endif -%}{%- endfor -%}"
)
USERS = "{%- set users = messages | selectattr('role', 'equalto', 'user') | list -%}"
IN_SYSTEM = "messages[0].role == 'system' and '/no_think' in messages[0].content"
KINDS: Mapping[str, tuple[str, set[str]]] = {
    "the system message": (
        switching("", IN_SYSTEM),
        {"system"},
    ),
    "any user": (switching(flag("m.role == 'user' and '<|think_off|>' in m.content"), "ns.off"), {"users"}),
    "the last switch": (switching(LAST_WINS, "ns.off"), {"system", "users"}),
    "the first user": (switching(USERS, "users and users[0].content.endswith('/no_think')"), {"users"}),
    "the last user, in lower case": (switching(USERS, "users and '/no_think' in users[-1].content | lower"), {"users"}),
    "a result": (switching(flag("m.role == 'tool' and m.content.startswith('r1 Error')"), "ns.off"), {"results"}),
    "two failed results": (switching(COUNT, "ns.n >= 2"), {"results"}),
    "exactly one failed result": (switching(COUNT, "ns.n == 1"), {"results"}),
    "a text that is split": (switching(USERS, "users and users[0].content.split('/no_think') | length > 1"), {"users"}),
    "an id": (switching(flag("m.role == 'tool' and m.tool_call_id.startswith('c')"), "ns.off"), {"ids"}),
    "a system message and a user": (
        switching(flag("m.role == 'user' and '[[quick]]' in m.content"), "ns.off and 'brief' in messages[0].content"),
        {"system", "users"},
    ),
    "the length of all users": (
        switching(
            "{%- set ns = namespace(n=0) -%}{%- for m in messages if m.role == 'user' -%}"
            "{%- set ns.n = ns.n + m.content | length -%}{%- endfor -%}",
            "ns.n > 40",
        ),
        {"users"},
    ),
    "the number of users": (switching(USERS, "users | length > 2"), {"users"}),
    "the clock": (switching("", "strftime_now('%Y') == '1999'"), {"clock"}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_switch_is_obeyed_wherever_it_is(kind: str) -> None:
    source, depends = KINDS[kind]
    renderer, different = judged(small_tokenizer(source), WORDS)
    assert different == []
    assert set(renderer.certificate.depends) >= depends


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "the clock"])
def test_the_judge_finds_a_bridge_that_forgets_its_switch(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certify, "dependence_of", lambda turns, _: Dependence(frozenset(), turns.context))
    source = "{#- unproved -#}" + KINDS[kind][0]
    try:
        renderer, different = judged(small_tokenizer(source), ("/no_think", "<|think_off|>", "Error", "[[quick]]"))
    except TemplateError:
        return  # its own conversations show it
    assert different or renderer.turns.context.whole  # type: ignore[attr-defined]


def judged(tokenizer: Any, words: Sequence[str]) -> tuple[Renderer, list[str]]:
    """The renderer, and the bridges that differ from the whole conversation."""
    renderer: Any = load_renderer(tokenizer)
    try:
        renderer = load_renderer(tokenizer, tools=TOOLS)
        tools: Sequence[Mapping[str, Any]] = TOOLS
    except TemplateError:
        tools = ()
    judge, different = SwitchJudge(renderer, tokenizer, tools), list[str]()
    for name, messages in conversations(words, renderer.certificate.capabilities):
        different += [f"{name}: {difference}" for difference in judge.differences(messages) or ()]
    return renderer, different


@pytest.mark.thorough
@pytest.mark.parametrize("path", [*template_files(), *made_files()], ids=lambda path: path.stem)
def test_real_templates_obey_their_switches(path: Path) -> None:
    try:
        _, different = judged(tokenizer_of(path), WORDS)
    except TemplateError:
        return
    assert different == []


def test_a_template_that_reads_the_system_message_alone_keeps_its_memo() -> None:
    renderer = load_renderer(small_tokenizer(KINDS["the system message"][0]), tools=TOOLS)
    assert set(renderer.certificate.bridges.values()) == {"memo"}


def test_the_memo_serves_no_bridge_of_another_switch() -> None:
    renderer = load_renderer(small_tokenizer(KINDS["the system message"][0]), tools=TOOLS)
    tokens = renderer.encode(says("one"))
    action = renderer.parse(tokens, "stop", tokens[-1])
    for content in ["Be brief.", "/no_think", "Be kind.", "x /no_think"] * 2:
        history = [{"role": "system", "content": content}, user("alpha"), says("one")]
        text = renderer.decode(renderer.bridge(history, action, [user("beta")]).tokens)
        assert text.endswith("</think>\n\n") == ("/no_think" in content)


@pytest.mark.parametrize("kind", ["the system message", "any user"])
def test_a_turn_that_is_opened_again_obeys_the_switch(kind: str) -> None:
    renderer = load_renderer(small_tokenizer(KINDS[kind][0]), tools=TOOLS)
    tokens = renderer.encode(says("one"))
    action = renderer.parse(tokens, "stop", tokens[-1])
    history = [{"role": "system", "content": "/no_think"}, user("<|think_off|>"), says("one")]
    text = renderer.decode(renderer.text(Raw("Go on."), action, history=history).tokens)
    assert text.endswith("</think>\n\nGo on.")


def test_a_difference_is_counted_and_mended(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """What the probes did not show is found in a run: the first bridge that differs is right already."""
    monkeypatch.undo()
    monkeypatch.setattr(certify, "dependence_of", lambda turns, _: Dependence(frozenset(), turns.context))
    renderer: Any = load_renderer(small_tokenizer("{#- watched -#}" + KINDS["any user"][0]), tools=TOOLS)
    renderer.turns.watch.every = 1
    tokens = renderer.encode(says("one"))
    action = renderer.parse(tokens, "stop", tokens[-1])
    plain = renderer.bridge([user("alpha"), says("one")], action, [user("beta")])
    assert (plain.checks.bridges_different, caplog.text) == (0, "")
    assert plain.checks.bridges_checked >= 1
    history = [user("alpha <|think_off|>"), says("one")]
    with caplog.at_level(logging.WARNING, "agentrl"):
        first, second = (renderer.bridge(history, action, [user("beta")]) for _ in range(2))
    assert (first.checks.bridges_different, second.checks.bridges_different) == (1, 0)
    assert first.tokens == second.tokens
    assert renderer.decode(first.tokens).endswith("</think>\n\n")
    assert caplog.text.count("differs from the render of the whole conversation") == 1
