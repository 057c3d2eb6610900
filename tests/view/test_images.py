"""Images where they are among the tokens: in the page, as files of two kinds, and in `agentrl show`."""

from __future__ import annotations

import base64
import json
import re

import pytest
from typer.testing import CliRunner

from agentrl import Image, Task, load_renderer, run_episode
from agentrl.cli import app
from agentrl.engine import ScriptedEngine
from agentrl.models import load_tokenizer
from agentrl.models.vision import load_vision
from agentrl.view.payload import episode_payload
from agentrl.view.readers import own
from agentrl.view.server import ViewServer
from agentrl.view.sources import open_source
from tests.doubles import tiny_vlm
from tests.episode.pictures import SCRIPT, A, B, C, Screens
from tests.view.browser import chromium, needs_browser, server_of
from tests.view.requests import status

SVG = b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'


@pytest.fixture(scope="module")
def model() -> str:
    return str(tiny_vlm.folder("qwen3_vl"))


@pytest.fixture
async def record(model):
    renderer = load_renderer(load_tokenizer(model), vision=load_vision(model))
    engine = ScriptedEngine(SCRIPT, renderer)
    return json.loads(json.dumps((await run_episode(Screens(), Task(), engine=engine, renderer=renderer)).to_json()))


@pytest.fixture
async def served(write, record):
    server = ViewServer([open_source(write(record))])
    await server.start()
    yield server
    await server.close()


def at(image: Image, n: int = 0) -> str:
    return f"/image?f=records.jsonl&n={n}&d={image.digest}"


async def test_a_label_takes_the_place_of_the_pads(record, model):
    (sequence,) = episode_payload(own.read(record), None)["sequences"]
    assert [image[2] for image in sequence["images"]] == [A.digest, B.digest, C.digest]
    for start, stop, _, label in sequence["images"]:
        assert re.fullmatch(r"\[image \d+ x \d+, [\d.]+ kB, \d+ pads\]", label)
        assert label.endswith(f" {stop - start} pads]")
        assert label in sequence["words"]
    assert sequence["images"][0][3].startswith("[image 120 x 90, ")


async def test_an_image_is_sent_as_its_file_with_its_fixed_type(served):
    for image in (A, B, C):
        code, headers, _ = await status(served, at(image))
        assert (code, headers["Content-Type"]) == (200, "image/png")
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert "sandbox" in headers["Content-Security-Policy"]
        assert headers["Content-Length"] == str(image.size)
    assert (await status(served, at(A), cookie=False))[0] == 403
    for wrong in ("/image?f=records.jsonl&d=" + "0" * 64, "/image?f=records.jsonl", "/image", f"{at(A)}&s=7", at(A, 7)):
        assert (await status(served, wrong))[0] == 404, wrong


async def test_what_is_no_image_is_never_sent(write, record):
    hidden = f"data:image/svg+xml;base64,{base64.b64encode(SVG).decode()}"
    lied = f"data:image/png;base64,{base64.b64encode(SVG).decode()}"
    far = base64.b64encode(A.data[:16] + b"\x7f\xff\xff\xff" * 2 + A.data[24:]).decode()
    for uri in (hidden, lied, f"data:image/png;base64,{far}", "https://example.com/a.png", "file:///etc/passwd"):
        record["messages"][0]["content"] = [{"type": "image", "image": uri}]
        found = own.read(record)
        assert [one.image for one in found.sequences[0].images] == [B, C]


@pytest.mark.parametrize("place", [[-1, 5], [5, 5], [0, 10**9], ["0", 3], [None, None]])
async def test_places_that_cannot_be_are_left_out(record, place):
    record["media"][0] = [*place, A.digest]
    assert [one.image for one in own.read(record).sequences[0].images] == [B, C]


async def test_an_export_holds_the_images(served):
    _, _, page = await status(served, "/export?f=records.jsonl&n=0")
    assert all(image.uri in page for image in (A, B, C))
    assert "img-src data:;" in page


def test_show_prints_labels(record, write, model):
    shown = CliRunner().invoke(app, ["show", str(write(record)), "--model", model])
    assert shown.exit_code == 0, shown.output
    assert shown.output.count("[image 120 x 90, ") == 1
    assert "image_pad" not in shown.output
    record["messages"].append({"role": "user", "content": [{"type": "text", "text": "last"}, A.part]})
    record["unread"] = 1
    shown = CliRunner().invoke(app, ["show", str(write(record)), "--model", model])
    assert "user: last<Image 120 x 90" in shown.output
    assert "base64" not in shown.output


@pytest.mark.thorough
@needs_browser
async def test_the_page_and_its_export_draw_the_images(record, write, model, tmp_path):
    async with chromium() as browser, server_of(write(record), model=model) as server:
        await browser.goto(server.link)
        await browser.visit("#/0/episode/records.jsonl/0", "episode")
        await _draws(browser)
        outside = [url for url in browser.requests if not url.startswith((f"http://127.0.0.1:{server.port}/", "data:"))]
        assert (outside, browser.problems) == ([], [])
        page = await browser.js("fetch('/export?s=0&f=records.jsonl&n=0').then((r) => r.text())")
        (tmp_path / "exported.html").write_text(page, encoding="utf-8")
        browser.requests.clear()
        await browser.goto((tmp_path / "exported.html").as_uri())
        await _draws(browser)
        assert [url for url in browser.requests if not url.startswith(("file:", "data:"))] == []
        assert browser.problems == []


async def _draws(browser):
    """Each image is drawn at its place, and a click shows it beside the tokens."""
    await browser.until("document.querySelectorAll('.rows .thumb').length === 3")
    await browser.until("[...document.querySelectorAll('.thumb')].every((image) => image.naturalWidth > 0)")
    sizes = "[...document.querySelectorAll('.thumb')].map((image) => `${image.naturalWidth} x ${image.naturalHeight}`)"
    assert await browser.js(sizes) == [f"{image.width} x {image.height}" for image in (A, B, C)]
    await browser.click(".thumb")
    await browser.until("document.querySelector('.inspector .picture') !== null")
    assert "120 x 90" in await browser.text(".inspector figcaption")
    assert "120 x 90" in await browser.text(".rows")
    assert "image_pad" not in await browser.text(".rows")
