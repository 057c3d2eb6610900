"""Claude Code and Codex read images, and a model of the Qwen-VL family is shown them: exact, in one segment."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
from PIL import Image as Pillow

from agentrl.image import Image
from agentrl.models import load_tokenizer
from agentrl.models.vision import load_vision
from agentrl.render import load_renderer
from agentrl.types import Limits, StopReason
from tests.doubles import tiny_vlm
from tests.gateway.clients import said
from tests.gateway.clients.playing import play
from tests.gateway.clients.said import Script
from tests.gateway.clients.starts import starter

pytestmark = pytest.mark.timeout(150)

CHART = Image.from_pil(Pillow.linear_gradient("L").resize((200, 120)))
GIF = base64.b64decode("R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7")


@dataclass(frozen=True, slots=True)
class Say(said.Say):
    """A turn of a template without thoughts."""

    def raw(self) -> str:
        calls = [f'<tool_call>\n{{"name": "{name}", "arguments": {given}}}\n</tool_call>' for name, given in self.calls]
        return "\n".join(filter(None, [self.text, *calls]))


@cache
def seeing_model(kind: str = "qwen3_vl") -> tuple[Any, Any]:
    folder = str(tiny_vlm.folder(kind))
    tokenizer = load_tokenizer(folder)
    return tokenizer, load_renderer(tokenizer, vision=load_vision(folder))


def looking(client: str, data: bytes, name: str, looks: int):
    """Writes a file, then looks at it so often."""
    shell = said.BASH if client == "claude-code" else said.EXEC

    def turns(number, prompt):
        if number == 1:
            return Say("", (shell.run(f"echo {base64.b64encode(data).decode()} | base64 -d > {name}; echo in $PWD."),))
        if number > 1 + looks:
            return Say("All done: 42.")
        path = f"{re.findall(r'^in (/.*)[.]$', prompt, re.MULTILINE)[-1]}/{name}"
        call = ("Read", {"file_path": path}) if client == "claude-code" else ("view_image", {"path": path})
        return Say(f"Look {number}.", ((call[0], json.dumps(call[1])),))

    return Script(turns)


@pytest.mark.parametrize("client", ["claude-code", "codex"])
async def test_a_png_is_shown_and_the_agent_continues(client):
    """`check` in `play` compares the trained tokens with what the engine was sent and returned."""
    played = await play(looking(client, CHART.data, "chart.png", 2), starter(client), model=seeing_model())
    trajectory = played.trajectory
    assert (len(played.engine.calls), len(trajectory.segments)) == (4, 1)
    assert trajectory.ledger.sampled == trajectory.ledger.trained
    media = trajectory.segment.media
    assert [len(images) for images in played.engine.images] == [0, 0, 1, 2]
    assert len(media) == 2
    shown: Image = media[0].image
    assert (shown.width, shown.height) == (CHART.width, CHART.height)
    assert len({id(one.image.uri) for one in media}) == 1, "kept once"
    assert played.audits() == []
    refused = [line for line in played.session.log.lines if line["event"] == "refused"]
    assert refused == []


@pytest.mark.parametrize("client", ["claude-code", "codex"])
async def test_a_gif_ends_no_session(client):
    """Claude Code sends it as it is, so the model reads why it is not shown. Codex makes a PNG of it."""
    played = await play(looking(client, GIF, "dot.gif", 1), starter(client), model=seeing_model())
    assert (len(played.engine.calls), len(played.trajectory.segments)) == (3, 1)
    why = "[image left out: an image must be a PNG or JPEG file, and this one begins with b'GIF89a"
    assert played.texts[0].count(why) == (client == "claude-code")
    assert len(played.trajectory.segment.media) == (client == "codex")


@pytest.mark.parametrize("client", ["claude-code", "codex"])
async def test_a_session_with_too_many_pixels_ends(client):
    limits = Limits(turns=100, image_pixels=CHART.width * CHART.height - 1)
    played = await play(
        looking(client, CHART.data, "chart.png", 2), starter(client), model=seeing_model(), limits=limits, fails=True
    )
    assert played.session.stop is StopReason.MAX_IMAGES
    assert len(played.engine.calls) == 2
