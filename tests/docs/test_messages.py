"""docs/messages.md has every verdict and every canary of the code, and no message that the code does not have."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

import pytest

from agentrl.monitor import verdicts
from agentrl.monitor.verdicts import TABLE
from tests.docs.blocks import ROOT
from tests.docs.messages import is_in, strings, text_of

PAGE = (ROOT / "docs" / "messages.md").read_text(encoding="utf-8")
MONITOR = ROOT / "agentrl" / "monitor"
CANARIES = ("Canaries that stop a run", "Canaries that warn")
_FEWEST_WORDS = 6
"""Shorter strings of the canaries are parts of a message."""


def rows(section: str) -> list[list[str]]:
    """The cells of the table under a heading."""
    text = PAGE.partition(f"## {section}\n")[2].partition("\n## ")[0]
    cells = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| `")]
    assert cells, section
    return cells


def quotes(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def names_of_verdicts() -> set[str]:
    """The names in the table of causes, and those of `Verdict("name", ...)`."""
    tree = ast.parse((MONITOR / "verdicts.py").read_text(encoding="utf-8"))
    calls = [
        node for node in ast.walk(tree) if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Verdict"
    ]
    return TABLE.keys() | {name for call in calls if (name := text_of(call.args[0]))}


def canaries() -> list[str]:
    """The messages of the canaries: strings that canaries.py and numerics.py raise, yield, return or call `message`."""
    files = [MONITOR / "canaries.py", MONITOR / "numerics.py"]
    nodes = [node for file in files for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))]
    texts = [text_of(part) for node in nodes for part in _parts(node)]
    return [*(text for text in texts if len(text.split()) >= _FEWEST_WORDS), verdicts.advice_against_harm(0.1)]


def _parts(node: ast.AST) -> Iterator[ast.expr | None]:
    if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
        yield from node.exc.args
    if isinstance(node, ast.Yield | ast.Return | ast.Assign):
        yield node.value


def quoted_canaries() -> Sequence[str]:
    return [quote for section in CANARIES for row in rows(section) for quote in quotes(row[0])]


def test_each_verdict_is_on_the_page_and_no_other() -> None:
    names = [quotes(row[0])[0] for row in rows("Verdicts")]
    assert len(names) == len(set(names))
    assert set(names) == names_of_verdicts()


def test_a_verdict_has_the_paragraph_of_the_code() -> None:
    cells = {quotes(row[0])[0]: row[-1] for row in rows("Verdicts")}
    assert [name for name, (_, place) in TABLE.items() if f"(not-learning.md#{place})" not in cells[name]] == []


def test_each_canary_is_on_the_page() -> None:
    messages = canaries()
    assert len(messages) > 8
    assert [text for text in messages if not any(is_in(quote, [text]) for quote in quoted_canaries())] == []


def test_the_page_has_no_canary_that_the_code_does_not_have() -> None:
    assert [quote for quote in quoted_canaries() if not is_in(quote, canaries())] == []


SECTIONS = [section for section in re.findall(r"^## (.*)$", PAGE, re.MULTILINE) if section not in CANARIES]


@pytest.mark.parametrize("section", SECTIONS)
def test_the_messages_are_those_of_the_code(section: str) -> None:
    column = 1 if section == "Verdicts" else 0
    messages = [quote for row in rows(section) for quote in quotes(row[column])]
    assert [message for message in messages if not is_in(message, strings(ROOT / "agentrl"))] == []


def test_a_message_that_the_code_does_not_have_is_noticed() -> None:
    assert is_in("N of the turns hold a wrong tool call, before it was N", canaries())
    assert not is_in("N of the turns hold a right tool call, before it was N", canaries())
