"""Speakers: a model behind an endpoint that answers as real ones do, and a function in its place."""

from __future__ import annotations

import pytest

from agentrl.chat import ChatModel, ScriptedSpeaker, SpeakerConfig, speaker
from agentrl.errors import ConfigError

ASKED = [{"role": "user", "content": "Capital of France?"}]


async def test_a_function_speaks():
    async def say(messages, tools):
        return f"{len(messages)} messages, {len(tools)} tools"

    assert await ScriptedSpeaker(say).reply(ASKED) == {"role": "assistant", "content": "1 messages, 0 tools"}


def test_a_configuration_names_a_speaker(tmp_path):
    (tmp_path / "who.py").write_text("def say(messages, tools):\n    return 'Paris'\n")
    assert isinstance(speaker({"script": f"{tmp_path}/who.py:say"}), ScriptedSpeaker)
    model = speaker(SpeakerConfig(base_url="http://127.0.0.1:1/v1", model="m", options={"temperature": 0}))
    assert isinstance(model, ChatModel)
    assert (model.model, model.host, model.options) == ("m", "127.0.0.1:1", {"temperature": 0})


@pytest.mark.parametrize("config", [{}, {"script": "a.py:b", "model": "m"}, {"base_url": "http://a"}, {"who": 1}])
def test_a_configuration_that_names_none_is_refused_in_one_line(config):
    with pytest.raises(ConfigError, match="this names no speaker: ") as info:
        speaker(config)
    assert "\n" not in str(info.value)
