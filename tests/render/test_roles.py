"""Which roles a template carries at places that an Env never uses: what the certificate says, and the docs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from agentrl.errors import TemplateError
from agentrl.render import load_renderer
from tests.render.conftest import CHATML_TOOLS, PLAIN_CHATML, chatml_tokenizer
from tests.render.markers import template_files, tokenizer_of

DOCS = Path(__file__).parents[2] / "docs" / "templates.md"
ROLES = ("developer", "later_system", "users_in_a_row")


def documented() -> dict[str, set[str]]:
    """Template -> the roles that the table in the docs says it carries."""
    _, _, table = DOCS.read_text(encoding="utf-8").partition("| carries | templates |\n|---|---|\n")
    rows = re.findall(r"\| (.+) \| (.+) \|\n", table.partition("\n\n")[0] + "\n")
    groups = {"all three": set(ROLES), "none of them": set[str]()}
    return {
        name: groups.get(carried, set(carried.split(", "))) for carried, names in rows for name in names.split(", ")
    }


@pytest.mark.parametrize("path", template_files(), ids=lambda path: path.stem)
def test_the_docs_say_which_roles_a_template_carries(path: Path) -> None:
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
