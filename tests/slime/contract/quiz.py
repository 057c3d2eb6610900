"""A quiz under slime's hooks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentrl.engine import Generation, ScriptedEngine
from agentrl.engine.scripted import scripted_log_prob
from agentrl.models import load_tokenizer
from agentrl.render import load_renderer
from tests.episode.thinking import TEMPLATE
from tests.slime.conftest import ENV_FILE
from tests.slime.player import Player


class Plain(Player):
    """It says the same to everybody, without a tool."""

    def _say(self, input_ids: Any) -> Any:
        return "Paris"


def rest(tokens: Any, input_ids: Any) -> Generation:
    """A turn, or the rest of it where an abort has cut it."""
    begun = next((k for k in range(len(tokens) - 1, 0, -1) if list(input_ids[-k:]) == list(tokens[:k])), 0)
    return Generation(tokens[begun:], [scripted_log_prob(token) for token in tokens[begun:]], "stop")


class Quizzed(ScriptedEngine):
    """Thinks, and guesses one letter after the other."""

    def __init__(self, renderer: Any) -> None:
        super().__init__(self._turn, renderer)
        self.renderer = renderer

    def _turn(self, input_ids: Any) -> Generation:
        letter = "abcd"[self.renderer.decode(input_ids).count("No.")]
        tokens = self.renderer.encode({"role": "assistant", "content": letter, "reasoning_content": f"I try {letter}."})
        return rest(tokens, input_ids)


@pytest.fixture
def quiz(start, tmp_path) -> Any:
    """`quiz(**args)`: a Run whose episodes have one to four segments, by the row."""
    template: Path = tmp_path / "chat.jinja"
    template.write_text(TEMPLATE)
    tokenizer = load_tokenizer("tiny")
    tokenizer.chat_template = TEMPLATE
    engine = Quizzed(load_renderer(tokenizer))
    data = [{"prompt": "Guess.", "label": letter, "metadata": {}} for letter in "abcd"]
    config = {"env": f"{ENV_FILE}:Quiz", "thinking": "strip", "chat_template": str(template)}
    return lambda **args: start(data, engine=engine, agentrl=config, **args)
