"""Instructions, results and what users say: each word stands once and in order in the tokens, whatever the template."""

from __future__ import annotations

import functools
import os
from pathlib import Path

import pytest

from agentrl.errors import TemplateError
from agentrl.gateway.request import Entry
from agentrl.gateway.writing import Writer
from agentrl.render import load_renderer
from tests.gateway.told_oracle import ROOTS, behind_a_reply, misplaced, reply, spelled
from tests.render.conftest import LOOKUP
from tests.render.markers import HERE, made_files, template_files, tokenizer_of

SOAK = bool(os.environ.get("AGENTRL_SOAK"))
FILES = [*template_files(), *made_files()] if SOAK else [path for path in template_files() if path.is_relative_to(HERE)]
REPEATS_ITS_HEAD = {"mistralai-Mistral-Nemo-Instruct-2407"}


@functools.cache
def writer_of(path: Path, tools: bool) -> Writer | None:
    try:
        return Writer(load_renderer(tokenizer_of(path)).bind([LOOKUP] if tools else []))
    except TemplateError:
        return None  # test_survey knows which templates are refused


@pytest.mark.parametrize("tools", [True, False] if SOAK else [True])
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_nothing_is_lost(path: Path, tools: bool) -> None:
    writer = writer_of(path, tools)
    if writer is None:
        pytest.skip("this template is refused")
    again = path.stem in REPEATS_ITS_HEAD
    for name, shape in ROOTS.items():
        entries = spelled(shape)
        text = writer.renderer.decode(writer.prompt(entries).tokens)
        assert not misplaced(entries, text), f"{name}: {misplaced(entries, text)}"
        turns = [i for i, entry in enumerate(entries) if entry.role == "assistant" and i]
        for at in turns if SOAK else turns[:1]:
            check_known(writer, entries, at, again)
            check_bridge(writer, entries, at, again)


def check_known(writer: Writer, entries: list[Entry], at: int, again: bool) -> None:
    action, tokens, ids = reply(writer.renderer, entries[at])
    rendered = writer.prompt(entries, {at: (action, tokens)}, ids)
    head = len(writer.prompt(entries[:at]).tokens)
    assert list(rendered.tokens[head : head + len(tokens)]) == tokens or entries[at - 1].role == "assistant"
    assert misplaced(entries, writer.renderer.decode(rendered.tokens), head_again=again) == ""


def check_bridge(writer: Writer, entries: list[Entry], at: int, again: bool) -> None:
    action, _, ids = reply(writer.renderer, entries[at])
    history = [*writer.messages(entries[:at], root=True), {"role": "assistant", "content": "x"}]
    rendered = writer.bridge(history, action, entries[at + 1 :], ids=ids)
    assert behind_a_reply(entries, at, writer.renderer.decode(rendered.tokens), head_again=again) == ""
