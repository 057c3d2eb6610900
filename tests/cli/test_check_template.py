"""`agentrl check template` on folders with a tokenizer, and on what is none."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from agentrl.models import tiny_model
from tests.render.conftest import CHATML_TOOLS, TAGS, chatml_tokenizer

COUNTED = CHATML_TOOLS.replace(
    "'<|im_start|>' + m.role",
    "'<|im_start|>' + m.role + (loop.previtem.content | length | string if loop.previtem is defined else '')",
)
"""Each header holds the number of letters of the turn before it, which a bridge does not render."""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    chatml_tokenizer(*TAGS).save_pretrained(folder)
    return folder


def test_one_line_for_a_sound_template(agentrl, model):
    assert agentrl("check", "template", model) == 0
    assert re.fullmatch(
        r"checked template: exact: \d+ cases proved; carries calls, .*; not thinking, developer; matches results by "
        r"place; \d+ ms\n0 errors, 0 warnings\n",
        agentrl.stdout,
    )
    assert agentrl.stderr == ""


def test_json_holds_the_whole_certificate(agentrl, model):
    assert agentrl("check", "template", model, "--json") == 0
    found = json.loads(agentrl.stdout)["figures"]
    assert found["level"] == "exact"
    assert found["capabilities"]["parallel_calls"] is True
    roles = {name: found["capabilities"][name] for name in ("developer", "later_system", "users_in_a_row")}
    assert roles == {"developer": False, "later_system": True, "users_in_a_row": True}
    assert found["agents_refused"] == ""
    assert "a tool result after a call" in found["proved"]


def test_a_template_that_cannot_be_proved_shows_the_case(agentrl, model, tmp_path):
    assert COUNTED != CHATML_TOOLS
    file = tmp_path / "counted.jinja"
    file.write_text(COUNTED)
    assert agentrl("check", "template", model, file) == 1
    assert agentrl.stdout.startswith("error: the chat template of ")
    assert "cannot be continued exactly: a user message after an answer: expected" in agentrl.stdout
    assert agentrl("check", "template", model, file, "--json") == 1
    assert json.loads(agentrl.stdout)["figures"]["level"] == "refused"


def test_a_template_without_calls_says_what_it_lacks(agentrl, model, tmp_path):
    file = tmp_path / "plain.jinja"
    file.write_text(
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    assert agentrl("check", "template", model, file) == 0
    assert "checked template: keeps-history: " in agentrl.stdout
    assert "departures (--json lists them)" in agentrl.stdout
    assert "not calls, tools" in agentrl.stdout


UNREAD = CHATML_TOOLS.replace("c.function.arguments | tojson", "c.function.arguments.values() | join('#')")


@pytest.mark.thorough
def test_exit_codes_for_tools(agentrl, model, tmp_path):
    """0 for exact and keeps-history; 1 where nothing can be offered or, if strict, no tools."""
    unread, counted = tmp_path / "unread.jinja", tmp_path / "counted.jinja"
    unread.write_text(UNREAD)
    counted.write_text(COUNTED)
    assert agentrl("check", "template", model, "--strict") == 0
    assert agentrl("check", "template", model, unread) == 0
    assert "warning: no tools: the chat template of" in agentrl.stdout
    assert agentrl("check", "template", model, unread, "--strict") == 1
    assert "cannot be used with tools: its tool calls cannot be read back" in agentrl.stdout
    assert agentrl("check", "template", model, unread, "--strict", "--json") == 1
    assert "cannot be read back" in json.loads(agentrl.stdout)["figures"]["tools_refused"]
    assert agentrl("check", "template", model, counted, "--strict") == 1


def test_training_with_tools_that_cannot_be_read_does_not_begin(agentrl, folder, model):
    tiny_model().save_pretrained(model)
    (model / "generation_config.json").unlink()  # its stop token is another tokenizer's
    (model / "chat_template.jinja").write_text(UNREAD)
    assert agentrl("train", "my_env.py:Capitals", "--model", model, "--data", "tasks.jsonl", "--out", "run") == 2
    assert "cannot be used with tools" in agentrl.stderr
    assert agentrl.stderr.count("\nerror") <= 1


@pytest.mark.parametrize("bad", ["nowhere", "no-tokenizer"])
def test_what_is_no_model_is_a_usage_error(agentrl, tmp_path, bad):
    (tmp_path / "no-tokenizer").mkdir()
    assert agentrl("check", "template", tmp_path / bad) == 2
    assert agentrl.stderr.startswith("error: ")
    assert agentrl.stderr.count("\n") == 1


def test_a_template_file_that_is_not_there(agentrl, model):
    assert agentrl("check", "template", model, "missing.jinja") == 2
    assert "missing.jinja" in agentrl.stderr


@pytest.mark.parametrize("command", [("eval",), ("train", "--out", "run")])
def test_a_folder_that_cannot_be_proved_stops_other_commands_first(agentrl, folder, model, command):
    """Before anything is generated."""
    tiny_model().save_pretrained(model)
    (model / "chat_template.jinja").write_text(COUNTED)
    assert agentrl(*command, "my_env.py:Capitals", "--model", model, "--data", "tasks.jsonl") == 2, agentrl.exception
    assert "cannot be continued exactly" in agentrl.stderr, agentrl.exception


def test_a_template_that_loses_reminders_is_not_for_agents_of_others(agentrl, model, tmp_path):
    said = "m.role + '\n' + m.content"
    assert said in CHATML_TOOLS
    file = tmp_path / "deaf.jinja"
    file.write_text(
        CHATML_TOOLS.replace(said, "m.role + '\n' + (m.content if 'system-reminder' not in m.content else '')")
    )
    assert agentrl("check", "template", model, file) == 0
    assert "checked template: exact: " in agentrl.stdout
    assert "note: no AgentEnv: the chat template of " in agentrl.stdout
    assert "a system message after a user would be lost" in agentrl.stdout
