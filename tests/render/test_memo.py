"""Memoised bridges: equal to rendered ones, found out where they are not, and absent where nothing can be proved."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jinja2 import nodes

from agentrl.errors import TemplateError
from agentrl.render import Rendered, Renderer, load_renderer, memo, symbols, trace
from agentrl.render.context import Context
from agentrl.render.memo import VARIABLE, Memo, MemoState, Watch
from agentrl.render.renderer import TemplateRenderer
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import Action, CheckCounts, Generation, Message, ToolCall
from tests.render.checker import Judge
from tests.render.markers import made_files, small_tokenizer, template_files, tokenizer_of
from tests.render.memo import NEVER, _plain_tail
from tests.render.mutants import CHATML
from tests.render.probes import PROBES, TOOLS

TEXTS = (
    *("alpha", "beta gamma", "", " ", "  edges\n\n", "\n", "x", "0", "None", "a x b", "alpha, x", "ALPHA"),
    *(
        '{"a": "\\n", "b": [1]}',
        "<think>t</think>",
        "<|im_end|>\n",
        "q\u2028\u00a0'é'晴 <b>&amp;</b>",
        "{{ x }}",
        "zqsaid",
    ),
)


@pytest.fixture(autouse=True)
def unprimed(monkeypatch: pytest.MonkeyPatch, primed: None) -> None:
    """These tests prime the memo themselves, and only its own checks find its mistakes."""
    monkeypatch.setattr(Memo, "tail", _plain_tail)
    monkeypatch.setattr(Watch, "is_due", lambda *_: False)


def off(tokenizer: Any, monkeypatch: pytest.MonkeyPatch, **given: Any) -> Renderer:
    """A renderer without a memo."""
    with monkeypatch.context() as patch:
        patch.setenv(VARIABLE, "off")
        return load_renderer(tokenizer, **given)


def requests(renderer: Renderer, seed: int = 0) -> Iterator[tuple[Action, list[Message]]]:
    """Answers of a user, of one tool and of two, with every text, under ids that are always new."""
    pick, allowed = random.Random(seed), renderer.certificate.capabilities
    kinds = [0, *([1] if allowed.get("tool_results") else ()), *([2] if allowed.get("parallel_calls") else ())]
    stop = max(renderer.stop_token_ids)
    for count in kinds if allowed.get("tool_results") else [0]:
        for text in pick.sample(TEXTS, len(TEXTS)):
            ids = [f"c{pick.getrandbits(32):08x}" for _ in range(count)]
            calls = tuple(ToolCall(call_id, "book", {"place": "x"}) for call_id in ids)
            action = Action("said", "" if calls else "said", None, calls, "stop", stop, (5, stop))
            told = [
                {"role": "tool", "tool_call_id": i, "name": "book", "content": pick.choice((text, "x"))} for i in ids
            ]
            if count == 2 and pick.random() < 0.5:
                told.reverse()
            yield action, told or [{"role": "user", "content": text}]


HISTORY: Sequence[Message] = (
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "question"},
    {"role": "assistant", "content": "said"},
)


def made(renderer: Renderer, action: Action, new: Sequence[Message]) -> Rendered | str:
    try:
        return replace(renderer.bridge(HISTORY, action, new), checks=CheckCounts())
    except TemplateError as exc:
        return str(exc)


def differences(ours: Renderer, rendered: Renderer) -> list[str]:
    """Where a renderer with a memo, which nothing checks, makes another bridge than one without."""
    anew(ours, every=NEVER)
    pairs = [(made(ours, *given), made(rendered, *given)) for _ in range(2) for given in requests(ours)]
    return [f"{left} is not {right}" for left, right in pairs if left != right]


def anew(renderer: Renderer, every: int) -> MemoState:
    """The state of the renderer's memo, as if it had just been loaded."""
    state = renderer.turns.memo.state = MemoState(every=every)  # type: ignore[attr-defined]
    return state


def alone(renderer: Renderer) -> Renderer:
    """The renderer, which never renders the whole conversation: that would leave nothing to the memo."""
    turns = renderer.turns  # type: ignore[attr-defined]
    renderer.turns = replace(turns, context=Context()) if turns.context.whole else turns  # type: ignore[attr-defined]
    return renderer


def served(renderer: Renderer) -> int:
    count: int = renderer.turns.memo.state.served  # type: ignore[attr-defined]
    return count


ALL = (*template_files(), *made_files())
CASES = [
    *(pytest.param(path, False, id=path.stem) for path in ALL),
    *(pytest.param(path, True, id=f"{path.stem} as text") for path in ALL[::8]),
]


@pytest.mark.parametrize(("path", "as_text"), CASES)
def test_a_bridge_is_the_same_with_the_memo_and_without(
    path: Path, as_text: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = tokenizer_of(path)
    try:
        ours, rendered = load_renderer(tokenizer, tools=TOOLS), off(tokenizer, monkeypatch, tools=TOOLS)
        ours, rendered = (ours.as_text(), rendered.as_text()) if as_text else (ours, rendered)
    except TemplateError:
        return
    assert differences(ours, rendered) == []
    assert (served(ours) > 0) == ("memo" in ours.certificate.bridges.values())


@pytest.mark.parametrize("path", [pytest.param(path, id=path.stem) for path in template_files()[:4]])
def test_the_independent_checker_finds_no_difference_without_a_memo(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a memo, `test_checker` asks it of every template."""
    renderer = off(tokenizer_of(path), monkeypatch, tools=TOOLS)
    assert renderer.turns.memo is None  # type: ignore[attr-defined]
    judge = Judge(renderer, tokenizer_of(path), TOOLS)
    allowed = [p for p in PROBES if all(renderer.certificate.capabilities.get(name, True) for name in p.needs)]
    found = [d for probe in allowed if judge.carries(probe) for d in judge.differences(probe)]
    assert [str(d) for d in found if d.kind != "history"] == []


# Templates that ask, change or hide their texts, and memos that lack what this needs.

_CONTENT = "{{- m.content -}}"
_TOOL = "m.role == 'tool'"


def asking(written: str) -> str:
    """A template that writes the results of tools in this way."""
    assert _CONTENT in CHATML
    return CHATML.replace(_CONTENT, f"{{%- if {_TOOL} -%}}{written}{{%- else -%}}{_CONTENT}{{%- endif -%}}")


ASKING: Mapping[str, str] = {
    "asks": "{{- '<hint>' + m.content if 'x' in m.content else m.content -}}",
    "asks for its start": "{{- ('!' if m.content.startswith('a') else '') + m.content -}}",
    "asks for its length": "{{- m.content + ('!' if m.content | length > 4 else '') -}}",
    "asks whether it is empty": "{{- m.content or 'nothing' -}}",
    "compares": "{{- m.content + ('!' if m.content == 'x' else '') -}}",
    "compares in a list": "{{- m.content + ('!' if m.content in ['x', 'alpha'] else '') -}}",
    "trims": "{{- m.content | trim -}}",
    "quotes": "{{- m.content | tojson -}}",
    "quotes within": "{{- {'result': m.content} | tojson -}}",
    "joins and asks": "{%- set text = 'is ' ~ m.content -%}{{- text + ('!' if 'x' in text else '') -}}",
    "joins nothing and asks": "{%- set text = '' ~ m.content -%}{{- text + ('!' if 'x' in text else '') -}}",
    "asks a macro": (
        "{%- macro shown(t) -%}{{- t -}}{%- endmacro -%}{%- set text = shown(m.content) -%}"
        "{{- text + ('!' if 'x' in text else '') -}}"
    ),
    "asks a block": "{%- set text -%}{{- m.content -}}{%- endset -%}{{- text + ('!' if 'x' in text else '') -}}",
    "looks it up": "{{- m.content + ('!' if m.content in 'xyz' else '') -}}",
    "looks it up in a map": "{{- m.content + {'x': '!', 'alpha': '?'}.get(m.content, '') -}}",
    "formats": "{{- '%-6s|%s' % (m.content, '') -}}",
    "formats with a filter": "{{- '%-6s|' | format(m.content) -}}",
    "counts": "{{- m.content + '!' * m.content.count('a') -}}",
    "splits": "{{- m.content.split('x')[0] + (m.content.split('x')[1:] | join('x')) -}}",
    "joins a list": "{%- set text = [m.content] | join -%}{{- text + ('!' if 'x' in text else '') -}}",
    "reads a letter": "{{- m.content + ('!' if m.content and m.content[0] == 'a' else '') -}}",
    "writes the id": "{{- m.tool_call_id + ': ' + m.content -}}",
    "asks for the call's id": (
        "{%- set before = loop.previtem -%}{{- m.content -}}"
        "{%- if before.role == 'assistant' and before.tool_calls and before.tool_calls[0].id == m.tool_call_id -%}"
        "{{- '!' -}}{%- endif -%}"
    ),
    "asks whether results are equal": "{{- m.content + ('!' if m.content == messages[-1].content else '') -}}",
}


@pytest.mark.parametrize("name", ASKING)
def test_a_template_that_looks_at_its_texts_is_served_exactly(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = small_tokenizer(asking(ASKING[name]))
    try:
        ours, rendered = load_renderer(tokenizer, tools=TOOLS), off(tokenizer, monkeypatch, tools=TOOLS)
    except TemplateError:
        pytest.skip("certification refuses it")
    assert differences(ours, rendered) == []


Mutation = Callable[[pytest.MonkeyPatch], None]


def _no_guards(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(symbols.Guard, "holds", lambda self, values: True)


def _no_questions(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(symbols.Trace, "ask", lambda self, hole, function, *args: function(hole.value(self.values), *args))


def _no_changes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(symbols.Hole, "value", lambda self, values: values[self.key])


def _unseen(name: str) -> Mutation:
    """`~` or `in` stays C code."""

    def visit(self: Any, node: nodes.Node) -> nodes.Node:
        return self.generic_visit(node)

    return lambda patch: patch.setattr(trace._Rewriting, name, visit)


def _unseen_joins(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        trace, "joined", lambda texts: "".join(texts) if len(texts := list(texts)) < 3 else symbols.joined(texts)
    )


def _all_plain(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(trace, "_is_plain", lambda value: True)


def _all_itself(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(trace, "_ITSELF", (*trace._ITSELF, "format", "join"))


def _ids_unrelated(patch: pytest.MonkeyPatch) -> None:
    """The shape does not say which result answers which call. Results stay in the order in which they come."""
    patch.setattr(TemplateRenderer, "_by_id", True)
    shape = memo.shape_of

    def forgetful(*args: Any) -> Any:
        found = shape(*args)
        if found is None:
            return None
        system, length, asks, says, content = found.key
        return found._replace(key=(system, length, asks, tuple(each[:3] for each in says), content))

    patch.setattr(memo, "shape_of", forgetful)


MUTANTS: Sequence[tuple[str, str, Mutation]] = (
    ("no guards", "asks", _no_guards),
    ("no guards", "asks for its start", _no_guards),
    ("no guards", "asks whether it is empty", _no_guards),
    ("no guards", "compares", _no_guards),
    ("no guards", "compares in a list", _no_guards),
    ("no questions", "asks for its length", _no_questions),
    ("no changes", "trims", _no_changes),
    ("joins unseen", "joins nothing and asks", _unseen("visit_Concat")),
    ("look-ups unseen", "looks it up", _unseen("visit_Compare")),
    ("macros unseen", "asks a macro", _unseen_joins),
    ("blocks unseen", "asks a block", _unseen_joins),
    ("filters unseen", "formats with a filter", _all_itself),
    ("filters unseen", "joins a list", _all_itself),
    ("values unseen", "formats", _all_plain),
    ("values unseen", "quotes within", _all_plain),
    ("ids unrelated", "asks for the call's id", _ids_unrelated),
)


@pytest.mark.parametrize(("lack", "name", "mutate"), MUTANTS, ids=[f"{lack}: {name}" for lack, name, _ in MUTANTS])
def test_a_memo_that_lacks_a_guard_is_found_out(
    lack: str, name: str, mutate: Mutation, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = small_tokenizer(asking(ASKING[name]))
    rendered = off(tokenizer, monkeypatch, tools=TOOLS)
    mutate(monkeypatch)
    trace.tracer.cache_clear()
    try:
        assert differences(alone(load_renderer(tokenizer, tools=TOOLS)), rendered) != []
        ours = alone(load_renderer(tokenizer, tools=TOOLS))
        state = anew(ours, every=1)
        assert [made(ours, *given) for given in requests(ours)] == [made(rendered, *given) for given in requests(ours)]
        assert state.off
    finally:
        trace.tracer.cache_clear()


def test_a_memo_that_is_wrong_when_it_is_loaded_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    _no_guards(monkeypatch)
    renderer = load_renderer(small_tokenizer(asking("{{- m.content or 'nothing was found' -}}")), tools=TOOLS)
    assert renderer.certificate.bridges["tool"].startswith("render: it is")
    assert renderer.turns.memo.state.off  # type: ignore[attr-defined]


def test_a_difference_switches_the_memo_off_once_and_for_all(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer = small_tokenizer(asking(ASKING["asks"].replace("hint", "sign")))
    renderer, rendered = load_renderer(tokenizer, tools=TOOLS), off(tokenizer, monkeypatch, tools=TOOLS)
    state = renderer.turns.memo.state  # type: ignore[attr-defined]
    state.every = 3  # of the requests, which messages decide
    _no_guards(monkeypatch)
    with caplog.at_level(logging.WARNING, "agentrl"):
        checks = [_verdict(renderer.bridge(HISTORY, *given).checks) for given in requests(renderer)]
    assert (checks.count("different"), len(caplog.records)) == (1, 1)
    assert "Report this" in caplog.text
    since = checks.index("different")
    assert state.off
    assert not any(checks[since + 1 :])
    assert differences_as_they_are(renderer, rendered) == []
    assert differences_as_they_are(renderer.bind(TOOLS[:1]), off(tokenizer, monkeypatch, tools=TOOLS[:1])) == []


def _verdict(checks: CheckCounts) -> str:
    return "different" if checks.bridges_different else "equal" if checks.bridges_checked else ""


def differences_as_they_are(ours: Renderer, rendered: Renderer) -> list[object]:
    pairs = [(made(ours, *given), made(rendered, *given)) for given in requests(ours, seed=1)]
    return [left for left, right in pairs if left != right]


@pytest.mark.parametrize("every", [1, 2, 3])
def test_what_was_compared_is_counted(every: int) -> None:
    """The messages decide what is compared, not what the process served before: a run repeats exactly."""
    renderer = load_renderer(small_tokenizer(CHATML), tools=TOOLS)
    anew(renderer, every=every)
    cold, warm = _played(renderer), _played(renderer)
    assert cold == warm
    assert cold == (12, 0) if every == 1 else 0 < cold[0] < 12


def _played(renderer: Renderer) -> tuple[int, int]:
    """The bridges of an episode of twelve that were compared, and that differed."""
    trajectory = Trajectory()
    trajectory.append_prompt(renderer.prompt("question"))
    stop = min(renderer.stop_token_ids)
    for number in range(12):
        trajectory.append_model(Generation([5, stop], [-1.0, -1.0], "stop", stop))
        action = renderer.parse([5, stop], "stop", stop)
        trajectory.append_action(action)
        new: list[Message] = [{"role": "user", "content": f"more {number}"}]
        trajectory.append_observation(renderer.bridge(trajectory.messages, action, new), new)
    return trajectory.checks.bridges_checked, trajectory.checks.bridges_different


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ("{{- m.content + strftime_now('%H') -}}", "its text holds the time"),
        (
            "{%- if strftime_now('%H') > '12' -%}{{- m.content -}}{%- else -%}{{- m.content -}}{%- endif -%}",
            "it uses gt on a text",
        ),
        ("{{- m.content + ('' if strftime_now('%H') == '12' else '') -}}", "its text depends on the time"),
        ("{{- m.content + (['', ''] | random) -}}", "it throws dice"),
        ("{%- for c in m.content -%}{{- c -}}{%- endfor -%}", "it uses iter on a text"),
    ],
)
def test_what_cannot_be_followed_is_rendered(written: str, why: str) -> None:
    renderer = load_renderer(small_tokenizer(asking(written)), tools=TOOLS)
    assert renderer.certificate.bridges["tool"] == f"render: {why}"
    followed = not set(renderer.certificate.depends) - {"clock"}  # else earlier results may matter to users' texts too
    assert (renderer.certificate.bridges["user"] == "memo") == followed


def test_it_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    renderer = off(small_tokenizer(CHATML), monkeypatch, tools=TOOLS)
    assert set(renderer.certificate.bridges) == {"user", "tool"}
    assert all(VARIABLE in how for how in renderer.certificate.bridges.values())


def test_a_template_that_asks_too_much_is_rendered(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = small_tokenizer(asking("{{- m.content + '!' * (m.content | length) -}}"))
    renderer = load_renderer(tokenizer, tools=TOOLS)
    memory: Memo = renderer.turns.memo  # type: ignore[attr-defined]
    for length in range(40):
        call = ToolCall("c00000000", "book", {})
        action = Action("", "", None, (call,), "stop", None, ())
        renderer.bridge(HISTORY, action, [{"role": "tool", "tool_call_id": call.id, "content": "x" * length}])
    assert memory.reason == "its text depends on what the texts are"
    assert [len(kept) for kept in memory.scaffolds.values() if kept] == []
