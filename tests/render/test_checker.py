"""Every chat template beside the repository: what its certificate says, judged by the independent checker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from agentrl.errors import TemplateError
from agentrl.render import Rendered, Renderer, load_renderer
from tests.render.checker import Conversation, Judge
from tests.render.markers import small_tokenizer, template_files, tokenizer_of
from tests.render.probes import PROBES, TOOLS, asks, gives, says, user

each_template = pytest.mark.parametrize("path", [pytest.param(path, id=path.stem) for path in template_files()])

TOOL_CONVERSATION = (user("go"), asks("oslo1aaaa"), gives("oslo1aaaa", "full"), says("Sorry."), user("thanks"))


@dataclass
class Verdict:
    """One row of the table."""

    level: str
    outcomes: Counter[str] = field(default_factory=Counter)
    milliseconds: float = 0.0
    reason: str = ""


@pytest.fixture(scope="module")
def table(capsys_module: Any) -> Iterator[dict[str, Verdict]]:
    rows: dict[str, Verdict] = {}
    yield rows
    with capsys_module():
        print(f"\n{'template':<46} {'level':<14} {'equal':>5} {'kept':>5} {'denied':>6} {'ms':>5}")
        for name, row in sorted(rows.items(), key=lambda item: (item[1].level, item[0])):
            counts = " ".join(f"{row.outcomes[key]:>{width}}" for key, width in COLUMNS.items())
            print(f"{name:<46} {row.level:<14} {counts} {row.milliseconds:>5.0f}  {row.reason[:90]}")


COLUMNS = {"equal": 5, "kept": 5, "denied": 6}


@pytest.fixture(scope="module")
def capsys_module(request: pytest.FixtureRequest) -> Any:
    """Lets a module's fixture print past pytest's capture."""
    return request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled


def load(path: Path) -> tuple[Renderer, Any]:
    tokenizer = tokenizer_of(path)
    return load_renderer(tokenizer, tools=TOOLS), tokenizer


@pytest.mark.thorough
@each_template
def test_every_bridge_of_a_certified_template_is_its_own_render(path: Path, table: dict[str, Verdict]) -> None:
    try:
        renderer, tokenizer = load(path)
    except TemplateError as exc:
        table[path.stem] = Verdict("refused", reason=str(exc))
        return
    certificate = renderer.certificate
    verdict = table[path.stem] = Verdict(certificate.level, milliseconds=certificate.milliseconds)
    judge = Judge(renderer, tokenizer, TOOLS)
    for probe in PROBES:
        if any(not certificate.capabilities.get(name, True) for name in probe.needs):
            verdict.outcomes["denied"] += 1
            continue
        if not judge.carries(probe):
            continue
        differences = [*judge.differences(probe), *judge.differences(probe, as_in_history=True)]
        allowed = certificate.level == "keeps-history"
        assert [str(d) for d in differences if not (allowed and d.kind == "history")] == []
        verdict.outcomes["kept" if differences else "equal"] += 1
    assert verdict.outcomes["equal"] + verdict.outcomes["kept"] > 0
    assert allowed == bool(certificate.departures)


@each_template
def test_a_certificate_denies_nothing_that_the_template_carries(path: Path) -> None:
    try:
        renderer, tokenizer = load(path)
    except TemplateError:
        return  # nothing is claimed
    judge = Judge(renderer, tokenizer, TOOLS)
    denied = [
        probe.name
        for probe in PROBES
        if any(not renderer.certificate.capabilities.get(name, True) for name in probe.needs)
        and judge.carries(probe)
        and judge.shows(probe)
    ]
    assert denied == []


@each_template
def test_a_template_that_shows_a_tool_conversation_is_certified(path: Path) -> None:
    tokenizer = tokenizer_of(path)
    judge = Judge(None, tokenizer, TOOLS)  # type: ignore[arg-type]
    conversation = Conversation("a call and its result", TOOL_CONVERSATION)
    if not judge.carries(conversation) or not judge.shows(conversation):
        return
    assert load(path)[0].certificate.capabilities["tool_results"]


# The checker itself: a renderer that is wrong must be found out.

CHATML = (
    "{%- for m in messages -%}{{- '<|im_start|>' + m.role + '\n' + m.content -}}"
    "{%- for c in m.tool_calls or [] -%}"
    "{{- '<tool_call>\n' + {'name': c.function.name, 'arguments': c.function.arguments} | tojson + '\n</tool_call>' -}}"
    "{%- endfor -%}{{- '<|im_end|>\n' -}}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}"
)


class Tampered:
    """A renderer whose prompts or bridges are changed on their way out."""

    def __init__(self, inner: Renderer, **changes: Any) -> None:
        self._inner = inner
        self._changes = changes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def prompt(self, observation: Any) -> Rendered:
        return self._changed("prompt", self._inner.prompt(observation))

    def bridge(self, *args: Any, **kwargs: Any) -> Rendered:
        return self._changed("bridge", self._inner.bridge(*args, **kwargs))

    def parse(self, tokens: Sequence[int], *args: Any, **kwargs: Any) -> Any:
        action = self._inner.parse(tokens, *args, **kwargs)
        return replace(action, **self._changes.get("parse", dict)())

    def _changed(self, name: str, rendered: Rendered) -> Rendered:
        return replace(rendered, tokens=self._changes.get(name, lambda tokens: tokens)(rendered.tokens))


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("prompt", {"prompt": lambda tokens: tokens[1:]}),
        ("bridge", {"bridge": lambda tokens: tokens[1:]}),
        ("bridge", {"bridge": lambda tokens: tokens[:-1]}),
        ("bridge", {"bridge": lambda tokens: (*tokens[:3], tokens[3] + 1, *tokens[4:])}),
        ("bridge", {"bridge": lambda tokens: ()}),
        ("sampled", {"parse": lambda: {"tokens": ()}}),
        ("calls", {"parse": lambda: {"calls": ()}}),
    ],
)
def test_the_checker_finds_a_wrong_renderer(kind: str, changes: dict[str, Any]) -> None:
    tokenizer = small_tokenizer(CHATML)
    renderer = load_renderer(tokenizer, tools=TOOLS)
    conversation = Conversation("a call and its result", TOOL_CONVERSATION)
    assert Judge(renderer, tokenizer, TOOLS).differences(conversation) == []
    found = Judge(Tampered(renderer, **changes), tokenizer, TOOLS).differences(conversation)  # type: ignore[arg-type]
    assert kind in {difference.kind for difference in found}


REWRITTEN = CHATML.replace(
    "m.content -}}", "(m.content if loop.last else m.content | replace('one', 'one one')) -}}", 1
)


def test_history_that_a_template_rewrites_is_a_departure_and_no_more() -> None:
    assert kinds_where_history_is_rewritten(lambda tokens: tokens) == {"history"}


@pytest.mark.parametrize(
    "change",
    [
        lambda tokens: tokens[1:],  # the newline behind the stop token, the field's commonest loss
        lambda tokens: tokens[:-1],
        lambda tokens: tokens[-3:],
        lambda tokens: (*tokens[:1], *tokens),
    ],
)
def test_no_other_difference_passes_for_rewritten_history(change: Any) -> None:
    assert "bridge" in kinds_where_history_is_rewritten(change)


def kinds_where_history_is_rewritten(change: Any) -> set[str]:
    renderer: Any = Tampered(load_renderer(small_tokenizer(CHATML), tools=TOOLS), bridge=change)
    chat = Conversation("two answers", (user("a"), says("one"), user("b"), says("two"), user("c")))
    return {difference.kind for difference in Judge(renderer, small_tokenizer(REWRITTEN), TOOLS).differences(chat)}
