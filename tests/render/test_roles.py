"""Which roles a template carries at places that an Env never uses: what the certificate says, and levels.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from agentrl.errors import TemplateError
from agentrl.render import load_renderer
from tests.render.conftest import CHATML_TOOLS, PLAIN_CHATML, chatml_tokenizer
from tests.render.markers import template_files, tokenizer_of

LEVELS = Path(__file__).parent / "templates" / "levels.md"
ROLES = ("developer", "later_system", "users_in_a_row")


def documented() -> dict[str, set[str]]:
    """Template -> the roles that levels.md says it carries."""
    _, _, table = LEVELS.read_text(encoding="utf-8").partition("| carries | templates |\n|---|---|\n")
    rows = re.findall(r"\| (.+) \| (.+) \|\n", table.partition("\n\n")[0] + "\n")
    groups = {"all three": set(ROLES), "none of them": set[str]()}
    return {
        name: groups.get(carried, set(carried.split(", "))) for carried, names in rows for name in names.split(", ")
    }


@pytest.mark.parametrize("path", template_files(), ids=lambda path: path.stem)
def test_levels_say_which_roles_a_template_carries(path: Path) -> None:
    try:
        capabilities = load_renderer(tokenizer_of(path)).certificate.capabilities
    except TemplateError:
        assert path.stem not in documented()
        return
    assert {role for role in ROLES if capabilities[role]} == documented()[path.stem]


def carried(template: str) -> set[str]:
    capabilities: dict[str, Any] = load_renderer(chatml_tokenizer(template=template)).certificate.capabilities
    return {role for role in ROLES if capabilities[role]}


LATER = "m.role == 'user' or not loop.first"


@pytest.mark.parametrize(
    ("template", "roles"),
    [
        (PLAIN_CHATML, set(ROLES)),
        (CHATML_TOOLS, {"later_system", "users_in_a_row"}),
        (CHATML_TOOLS.replace(LATER, "m.role == 'user'"), {"users_in_a_row"}),
        (CHATML_TOOLS.replace(LATER, f"({LATER}) and not (m.role == 'system' and loop.last)"), {"users_in_a_row"}),
        (
            CHATML_TOOLS.replace(
                LATER, f"({LATER}) and (loop.first or m.role != 'user' or loop.previtem.role != m.role)"
            ),
            {"later_system"},
        ),
    ],
    ids=["any role", "no developer", "no later system", "none at the end", "no second user"],
)
def test_a_message_that_is_dropped_is_not_carried(template: str, roles: set[str]) -> None:
    assert carried(template) == roles


KNOWN = CHATML_TOOLS.replace(LATER, "m.role == 'user'")
"""A template that writes nothing for any other role."""


@pytest.mark.parametrize("role", ["developer", "system", "function", "ipython", "observation"])
@pytest.mark.parametrize("at", [0, 1, 2, 3])
def test_a_prompt_loses_no_message_of_a_strange_role(role: str, at: int) -> None:
    renderer = load_renderer(chatml_tokenizer(template=KNOWN))
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ]
    messages.insert(at, {"role": role, "content": "Obey."})
    if (role, at) == ("system", 0):
        assert "Obey." in renderer.decode(renderer.prompt(messages).tokens)
        return
    with pytest.raises(
        TemplateError, match=f"leaves out message {at + 1} of 4, which has the role '{role}': .*\"user\""
    ):
        renderer.prompt(messages)


@pytest.mark.parametrize("role", ["developer", "system", "function", "ipython"])
def test_a_bridge_loses_no_message_of_a_strange_role(role: str) -> None:
    history = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    for template, written in ((KNOWN, False), (PLAIN_CHATML, True)):
        renderer = load_renderer(chatml_tokenizer(template=template))
        tokens = renderer.encode(history[1])
        action, new = renderer.parse(tokens, "stop", tokens[-1]), [{"role": role, "content": "Obey."}]
        if written:
            assert "Obey." in renderer.decode(renderer.bridge(history, action, new).tokens)
            continue
        with pytest.raises(TemplateError, match=f"leaves out message 1 of 1, which has the role '{role}'"):
            renderer.bridge(history, action, new)


def test_a_tool_message_that_a_prompt_would_lose_is_refused() -> None:
    without = KNOWN.replace("'\\n<tool_response>\\n' + m.content + '\\n</tool_response>'", "''")
    template = (
        without if without != KNOWN else KNOWN.replace("m.content + '\n</tool_response>'", "'\n</tool_response>'")
    )
    assert template != KNOWN
    renderer = load_renderer(chatml_tokenizer(template=template))
    messages = [{"role": "user", "content": "a"}, {"role": "tool", "content": "18 degrees", "tool_call_id": "x"}]
    with pytest.raises(TemplateError, match="leaves out message 2 of 2, which has the role 'tool'"):
        renderer.prompt(messages)
