"""The skills for coding agents: their form, and whatever they quote exists. test_blocks.py checks their code blocks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from tests.docs.blocks import ROOT, SKILLS
from tests.docs.messages import is_in, strings

HEADINGS = ("When to use", "Steps", "Common mistakes", "References")
SKILL = pytest.mark.parametrize("file", SKILLS, ids=lambda file: file.parent.name)


def parts(file: Path) -> tuple[dict[str, str], str]:
    """The front matter and the text of a skill."""
    start, front, text = file.read_text(encoding="utf-8").split("---\n", 2)
    assert start == ""
    return yaml.safe_load(front), text


def quoted_messages(text: str) -> list[str]:
    """The messages in the first column of the table under Common mistakes."""
    table = text.partition("## Common mistakes\n")[2].partition("\n## ")[0]
    first = [line.split(" | ")[0].removeprefix("| ") for line in table.splitlines() if line.startswith("| `")]
    return [cell.strip("`") for cell in first if re.fullmatch(r"`[^`]+`", cell) and " " in cell]


def is_in_source(message: str) -> bool:
    """Whether a string of the code has the message, apart from numbers and names that the code fills in."""
    return is_in(re.sub(r"\d+|MyEnv\S*|price|--rm-type|consistent_hashing", "...", message), strings(ROOT / "agentrl"))


def test_there_are_three():
    assert [file.parent.name for file in SKILLS] == ["debug-a-run", "train-with-slime", "write-an-env"]


@SKILL
def test_the_front_matter_has_the_common_form(file):
    front, _ = parts(file)
    assert front.keys() == {"name", "description"}
    assert front["name"] == file.parent.name
    assert re.fullmatch(r"[a-z0-9-]{1,64}", front["name"])
    assert 80 < len(front["description"]) <= 1024
    assert "Use when" in front["description"]


@SKILL
def test_a_skill_has_all_parts_and_is_short(file):
    text = parts(file)[1]
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert [heading for heading in headings if heading in HEADINGS] == list(HEADINGS)
    assert len(text.splitlines()) <= 500


@SKILL
def test_pages_and_folders_that_it_names_exist(file):
    text = parts(file)[1]
    pages = set(re.findall(r"`([\w-]+\.md)`", text))
    folders = set(re.findall(r"`(examples/\w+)`", text))
    assert pages
    assert [page for page in pages if not (ROOT / "docs" / page).is_file()] == []
    assert [folder for folder in folders if not (ROOT / folder).is_dir()] == []


@SKILL
def test_the_messages_that_it_quotes_are_those_of_the_code(file):
    messages = quoted_messages(parts(file)[1])
    assert messages
    assert [message for message in messages if not is_in_source(message)] == []


def test_a_message_that_the_code_does_not_have_is_noticed():
    assert is_in_source("none of 640 episodes called a tool")
    assert not is_in_source("none of 640 episodes called the tool")
