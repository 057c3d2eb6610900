"""Images over /generate: what a client gets is what the engine gives, and a bad image harms nobody else."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import pickle
import re
import struct
import tracemalloc
import zlib
from urllib.parse import urlsplit

import pytest

torch = pytest.importorskip("torch", reason="the embedded engine needs the extra `train`")
pytest.importorskip("PIL", reason="images need Pillow")

import aiohttp  # noqa: E402

from agentrl import Generation, Image, RequestError  # noqa: E402
from agentrl.engine import ScriptedEngine, SGLangEngine  # noqa: E402
from agentrl.engine.local import LocalEngine  # noqa: E402
from agentrl.engine.sglang.server import running_server  # noqa: E402
from agentrl.models import load_model, load_tokenizer  # noqa: E402
from agentrl.models.vision import load_vision  # noqa: E402
from tests.engine.noise import A, B, noise  # noqa: E402

VISION, TOKENIZER = load_vision("tiny-vl"), load_tokenizer("tiny-vl")
SAMPLING = {"max_new_tokens": 8, "temperature": 0.9, "sampling_seed": 3}
BIAS = {str(token): -1e4 for token in VISION.forbidden}


def ids(*parts):
    return [
        token for part in parts for token in (TOKENIZER(part)["input_ids"] if isinstance(part, str) else [VISION.pad])
    ]


def png(width, height, pixels=b""):
    """A file whose header says so, and whose pixels are these bytes."""

    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    file = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    return f"data:image/png;base64,{base64.b64encode(file).decode()}"


@pytest.fixture(scope="module")
def local():
    return LocalEngine(load_model("tiny-vl"), TOKENIZER, vision=VISION)


async def test_a_client_gets_what_the_engine_gives(local):
    first = ids("look at ", A, " and ", B, " and say ")
    async with running_server(local) as url, SGLangEngine(url) as client:
        said = await client.generate(first, {**SAMPLING, "logit_bias": BIAS}, session_id="s", images=[A, B])
        here = await local.generate(first, SAMPLING, images=[A, B])
        second = [*first, *said.tokens, *ids(" and now ", A, " so ")]
        again = await client.generate(second, SAMPLING, session_id="s", images=[A, B, A])
        text = await client.generate(ids("no image at all "), {**SAMPLING, "logit_bias": BIAS})
    assert list(said.tokens) == list(here.tokens)
    assert said.log_probs == pytest.approx(here.log_probs, abs=1e-6)
    assert said.meta["prompt_tokens"] == here.meta["prompt_tokens"] == len(VISION.place(first, [A, B])[0])
    assert again.meta["prompt_tokens"] == len(VISION.place(second, [A, B, A])[0])
    assert again.cached_tokens > said.meta["prompt_tokens"], "what the session has read is not read again"
    assert len(text.tokens) == 8


BAD = {
    "an address": (["https://example.com/a.png"], "must be a data URI"),
    "a path": (["/etc/passwd"], "must be a data URI"),
    "no base64": (["data:image/png;base64,$$$"], "not base64"),
    "another kind": (["data:image/png;base64,R0lGODlh"], "must be a PNG or JPEG file"),
    "no list": ({"a": 1}, "must be a list of data URIs"),
    "a batch": ([[A.uri]], "must be a list of data URIs"),
    "no images": (None, "1 pads, and 0 images"),
    "too many": ([A.uri, B.uri], "1 pads, and 2 images"),
    "no pixels": ([png(64, 64)], "is damaged, or too large to read"),
    "half of its pixels": ([Image.of(A.data[: len(A.data) // 2]).uri], "is damaged, or too large to read"),
    "a bomb": ([png(30_000, 30_000, zlib.compress(bytes(1000)))], "the context holds|is damaged, or too large to read"),
}


@pytest.mark.parametrize(("given", "why"), BAD.values(), ids=BAD)
async def test_a_bad_image_is_refused_by_name_and_others_are_played(local, given, why):
    prompt = ids("look: ", A, " so ")
    async with running_server(local) as url, SGLangEngine(url) as client, aiohttp.ClientSession() as http:
        beside = asyncio.gather(*(client.generate(prompt, SAMPLING, images=[A]) for _ in range(3)))
        body = {"input_ids": prompt, "sampling_params": SAMPLING, "image_data": given}
        async with http.post(f"{url}/generate", json=body) as answer:
            assert answer.status == 400, "a client does not repeat it"
            assert re.search(why, (await answer.json())["error"]["message"])
        for found in await beside:
            assert len(found.tokens) == 8


async def test_what_is_not_the_pads_of_media_may_not_be_forbidden(local):
    async with running_server(local) as url, SGLangEngine(url) as client:
        with pytest.raises(RequestError, match="but to forbid the tokens of media"):
            await client.generate(ids("x ", A, " y"), {**SAMPLING, "logit_bias": {"5": -1e4}}, images=[A])


async def test_a_model_of_text_takes_no_images():
    engine = LocalEngine(load_model("tiny"), load_tokenizer("tiny"))
    async with engine, running_server(engine) as url, SGLangEngine(url) as client:
        with pytest.raises(RequestError, match="'image_data' is not served here"):
            await client.generate([5, 6, 7], SAMPLING, images=[A])
        with pytest.raises(RequestError, match="logit_bias"):
            await client.generate([5, 6, 7], {**SAMPLING, "logit_bias": {"5": -1e4}})


class Held(ScriptedEngine):
    """Answers when it is told to."""

    def __init__(self):
        super().__init__([], None)
        self.go, self.full = asyncio.Event(), asyncio.Event()

    async def generate(self, input_ids, sampling_params, *, session_id="", rid="", images=()):
        self.images.append(list(images))
        if len(self.images) == 64:
            self.full.set()
        await self.go.wait()
        return Generation([1], [-0.5], "length")


async def test_an_image_of_64_requests_is_held_once():
    """And no body is held while its request runs."""
    image = noise(400, 300, 5)  # 0.48 MB as base64
    body = json.dumps(
        {"input_ids": [1, 2], "image_data": [image.uri], "sampling_params": {"max_new_tokens": 1}}
    ).encode()
    head = f"POST /generate HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    engine = Held()
    async with running_server(engine) as url:
        at = urlsplit(url)
        tracemalloc.start()
        lines = [await asyncio.open_connection(at.hostname, at.port) for _ in range(64)]
        for _, writer in lines:
            writer.writelines((head, body))
            await writer.drain()
        await asyncio.wait_for(engine.full.wait(), 60)
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        engine.go.set()
        for reader, writer in lines:
            assert b"200 OK" in await reader.readline()
            writer.close()
    assert len({id(images[0].uri) for images in engine.images}) == 1
    assert held < 16 * len(body), "64 bodies would be 64 times as much"


def test_an_image_in_a_pickle_shares_its_string():
    found = [pickle.loads(pickle.dumps(A)) for _ in range(3)]
    assert {id(one.uri) for one in found} == {id(A.uri)}
    assert [(one.width, one.height) for one in found] == [(A.width, A.height)] * 3
    assert io.BytesIO(found[0].data).read(4) == b"\x89PNG"
