"""Images that an agent's client sends: they are turns like others, exact, compared by content, and kept once."""

from __future__ import annotations

import asyncio
import base64
import json
from dataclasses import replace

import aiohttp
import pytest

from agentrl import ConfigError, Image, Limits, SessionOptions, StopReason, Task, load_renderer
from agentrl.chat.request import Entry, RefusedError
from agentrl.chat.wires.gemini import Gemini
from agentrl.chat.wires.images import with_images
from agentrl.chat.wires.messages import Messages
from agentrl.gateway.session.matching import entry_digest
from agentrl.gateway.session.session import Session
from agentrl.models import load_tokenizer
from agentrl.models.vision import load_vision
from agentrl.testing import call, rollout
from agentrl.trajectory.trajectory import Trajectory
from tests.doubles import tiny_vlm
from tests.episode.pictures import A, B, C, picture
from tests.gateway.agents import doing
from tests.gateway.by_hand import Chat, Responses, Results
from tests.gateway.by_hand import Messages as MessagesClient
from tests.gateway.by_hand import Talk as Conversation
from tests.gateway.client import ASK, Recorder, Talk, told
from tests.gateway.wires.requests import WIRES

KINDS = ("qwen2_5_vl", "qwen3_vl")
GIF = base64.b64encode(b"GIF89a" + bytes(30)).decode()


def raw(image: Image) -> str:
    return image.uri.partition(",")[2]


@pytest.fixture(scope="module", params=KINDS)
def renderer(request):
    folder = str(tiny_vlm.folder(request.param))
    return load_renderer(load_tokenizer(folder), vision=load_vision(folder))


def shown(*parts, role="user", **more):
    return Entry.of(role, parts, **more)


class Seen(Recorder):
    """A recorder that also takes images. What it was sent is compared with the trained tokens, so pads are expanded."""

    def __init__(self, script, renderer):
        super().__init__(script, renderer)
        self.count = renderer.vision.count
        self.pad = renderer.vision.pad

    async def generate(self, input_ids, sampling_params, *, session_id="", rid="", images=()):
        before = len(self.answers)
        left = iter(images)
        expanded = [
            one for token in input_ids for one in ([token] * self.count(next(left)) if token == self.pad else [token])
        ]
        assert next(left, None) is None, "there are as many pads as images"
        found = await super().generate(input_ids, sampling_params, session_id=session_id, rid=rid)
        assert len(self.answers) == before + 1
        self.answers[-1] = (expanded, self.answers[-1][1])
        self.shown = [*getattr(self, "shown", []), list(images)]
        return found


def talk(renderer, script, **more):
    found = Talk(renderer, script, play=False, **more)
    found.engine = Seen(script, renderer)
    found.play()
    return found


LOOK = call("find", what="it")


async def test_a_user_and_a_tool_show_images_in_one_segment(renderer):
    t = talk(renderer, [LOOK, "I see it.", "Yes."])
    begin = [ASK, replace(shown(A), joined=True)]
    first = await t.says(*begin)
    result = shown("here:", B, "(seen)", role="tool", call_id=first.calls[0].id)
    second = await t.says(*begin, told(first), result)
    more = shown(C)
    await t.says(*begin, told(first), result, told(second), more)
    played = t.end()
    assert t.engine.shown == [[A], [A, B], [A, B, C]]
    assert len(played.segments) == 1
    assert [one.image for one in played.segment.media] == [A, B, C]
    assert played.tokens.count(renderer.vision.pad) == sum(map(renderer.vision.count, (A, B, C)))
    assert played.ledger.sampled == played.ledger.trained


@pytest.mark.parametrize("change", ["another", "removed", "moved", "as text"])
async def test_an_image_is_compared_by_its_content(renderer, change):
    t = talk(renderer, ["One.", "Two."])
    first = await t.says(shown("look", A, "here"))
    again = {
        "another": shown("look", B, "here"),
        "removed": shown("look", "here"),
        "moved": shown("look", "here", A),
        "as text": shown("look", f"image {A.digest}", "here"),
    }[change]
    await t.says(again, told(first), Entry("user", "more"))
    assert len(t.end().segments) == 2


async def test_an_equal_image_continues_and_is_kept_once(renderer):
    t = talk(renderer, ["One.", "Two.", "Three."])
    copies = [Image.of(bytes(bytearray(A.data))) for _ in range(3)]
    first = await t.says(shown(copies[0]))
    second = await t.says(shown(copies[1]), told(first), shown(copies[2]))
    await t.says(shown(copies[2], B), told(second), Entry("user", "another line"))
    played = t.end()
    assert len(played.segments) == 2
    kept = [one.image.uri for segment in played.segments for one in segment.media if one.image == A]
    kept += [
        p["image"] for m in played.messages for p in m["content"] if isinstance(p, dict) and p.get("image") == A.uri
    ]
    assert len(kept) > 4
    assert len(set(map(id, kept))) == 1, "one string, however many segments, turns and messages show it"


def test_texts_and_images_have_different_digests():
    assert entry_digest(shown("a", A)) == entry_digest(shown(" a ", A))
    forms = [shown("a", A), shown(A, "a"), shown("a", B), shown("a"), shown("a", A, role="tool"), shown("a", A, A)]
    forms += [shown(A), shown(f"image {A.digest}"), shown("a", f"image {A.digest}", B), shown("a", A, B)]
    assert len({entry_digest(form) for form in forms}) == len(forms)


@pytest.mark.parametrize("bound", [{"image_pixels": 120 * 90 + 200 * 70}, {"image_bytes": A.size + B.size + 9}])
async def test_too_many_images_end_the_session_as_an_env(renderer, bound):
    t = talk(renderer, ["One.", "Two.", "Three."], limits=Limits(**bound))
    first = await t.says(shown(A, B))
    second = await t.says(shown(A, B), told(first), shown(A))
    with pytest.raises(RefusedError, match=r"limits\.image_pixels or limits\.image_bytes") as refused:
        await t.says(shown(A, B), told(first), shown(A), told(second), shown(C))
    assert refused.value.kind == "closed"
    assert t.session.stop is StopReason.MAX_IMAGES
    assert t.session.ended.is_set()
    assert len(t.end().turns) == 2


async def test_a_first_prompt_with_too_many_images_is_refused(renderer):
    t = talk(renderer, ["One."], limits=Limits(image_pixels=100))
    with pytest.raises(RefusedError, match="the first prompt has more images") as refused:
        await t.says(shown(A))
    assert refused.value.kind == "invalid"
    assert not t.session.ended.is_set()


async def test_an_engine_without_images_ends_the_run(renderer):
    t = talk(renderer, ["One."])
    t.engine.takes_images = False
    with pytest.raises(ConfigError, match="takes no images"):
        await t.says(shown(A))


async def test_known_replies_of_another_opening_keep_the_images_between_them(renderer):
    """The prompt is written piece by piece, because it holds sampled replies."""
    t = talk(renderer, [LOOK, "I see it.", "Again."])
    first = await t.says(ASK)
    result = shown(B, "there", role="tool", call_id=first.calls[0].id)
    second = await t.says(ASK, told(first), result)
    await t.says(shown(A, "Capital of France?"), told(first), result, told(second), shown("more", C))
    played = t.end()
    assert t.engine.shown[-1] == [A, B, C]
    assert sorted([one.image for one in s.media] == [A, B, C] for s in played.segments) == [False, True]


async def test_a_template_without_images_of_tools_shows_them_as_the_users():
    tokenizer = load_tokenizer(str(tiny_vlm.folder("qwen2_5_vl")))
    tokenizer.chat_template = tiny_vlm.TEMPLATE.replace(
        "<tool_response>\n{{ shown(m.content) }}", "<tool_response>\n{{ m.content }}"
    )
    renderer = load_renderer(tokenizer, vision=load_vision(str(tiny_vlm.folder("qwen2_5_vl"))))
    t = talk(renderer, [LOOK, "I see it."])
    first = await t.says(ASK)
    await t.says(ASK, told(first), shown("here:", B, role="tool", call_id=first.calls[0].id))
    played = t.end()
    assert t.engine.shown == [[], [B]]
    assert played.messages[-2]["role"] == "user"
    assert len(played.segments) == 1


async def test_a_session_with_images_is_rebuilt_from_its_log(renderer, tmp_path, monkeypatch):
    monkeypatch.setenv("AGENTRL_SESSION_LOGS", str(tmp_path))
    t = talk(renderer, ["One.", "Two."])
    first = await t.says(shown("look", A))
    await t.says(shown("look", A), told(first), shown(B))
    played = t.end()
    (file,) = tmp_path.iterdir()
    again = Trajectory()
    rebuilt = Session.replay(file.read_text().splitlines())
    rebuilt.write(again)
    assert again.tokens == played.tokens
    assert again.segment.media == played.segment.media
    assert again.messages == played.messages
    assert [p.entries for p in rebuilt.tree.prompts] == [p.entries for p in t.session.tree.prompts]


# The wires


def with_image(wire: str, image: dict, *, result: bool) -> dict:
    """A body whose user, or whose tool, shows a text and then an image."""
    text = {"messages": "text", "chat": "text", "responses": "input_text"}[wire]
    parts = [{"type": text, "text": "see"}, image]
    if wire == "messages":
        content = [{"type": "tool_result", "tool_use_id": "c1", "content": parts}] if result else parts
        return {"messages": [{"role": "user", "content": content}]}
    if wire == "chat":
        return {
            "messages": [
                {"role": "tool", "tool_call_id": "c1", "content": parts}
                if result
                else {"role": "user", "content": parts}
            ]
        }
    return {
        "input": [
            {"type": "function_call_output", "call_id": "c1", "output": parts}
            if result
            else {"role": "user", "content": parts}
        ]
    }


def image_part(wire: str, media: str, data: str) -> dict:
    uri = f"data:{media};base64,{data}"
    return {
        "messages": {"type": "image", "source": {"type": "base64", "media_type": media, "data": data}},
        "chat": {"type": "image_url", "image_url": {"url": uri, "detail": "high"}},
        "responses": {"type": "input_image", "image_url": uri, "detail": "auto"},
    }[wire]


ADDRESSES = {
    "messages": [
        {"type": "image", "source": {"type": "url", "url": "http://169.254.169.254/latest"}},
        {"type": "image", "source": {"type": "file", "file_id": "file_1"}},
    ],
    "chat": [
        {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
        {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}},
        {"type": "image_url", "image_url": {"url": "/etc/passwd"}},
    ],
    "responses": [
        {"type": "input_image", "image_url": "http://127.0.0.1/a.png"},
        {"type": "input_image", "file_id": "file_1"},
    ],
}


def read(wire, body, options=None):
    options = options or SessionOptions()
    least = {"model": "m", "max_tokens": 9} if wire == "messages" else {"model": "m"}
    return WIRES[wire].read(with_images(least | body, options), {}, "", options).request


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("image", [A, picture(50, 40, kind="JPEG")])
def test_each_wire_reads_images_of_users_and_tools(wire, image):
    media = image.uri.partition(";")[0].removeprefix("data:")
    part = image_part(wire, media, raw(image))
    user = read(wire, with_image(wire, part, result=False)).entries
    assert user == (Entry("user", "see"), Entry("user", "", parts=(image,), joined=True))
    assert read(wire, with_image(wire, part, result=True)).entries == (
        Entry("tool", "see", call_id="c1", parts=("see", image)),
    )


@pytest.mark.parametrize(("wire", "address"), [(w, a) for w, found in ADDRESSES.items() for a in found])
@pytest.mark.parametrize("result", [False, True])
def test_an_address_is_refused_and_never_fetched(wire, address, result):
    with pytest.raises(RefusedError, match=r"\[1\]: an image is named by the address .* nothing is fetched") as refused:
        read(wire, with_image(wire, address, result=result))
    assert "\n" not in str(refused.value)
    omitted = read(wire, with_image(wire, address, result=result), SessionOptions(images="omit"))
    assert "[image omitted" in omitted.entries[-1].text


@pytest.mark.parametrize("wire", WIRES)
def test_a_tools_image_of_another_kind_is_told_to_the_model(wire):
    part = image_part(wire, "image/gif", GIF)
    (entry,) = read(wire, with_image(wire, part, result=True)).entries
    assert entry.text.startswith("see\n[image left out: an image must be a PNG or JPEG file")
    assert "convert it to PNG" in entry.text
    with pytest.raises(RefusedError, match=r"\[1\]: an image must be a PNG or JPEG file"):
        read(wire, with_image(wire, part, result=False))


@pytest.mark.parametrize("wire", WIRES)
def test_only_what_the_model_does_not_read_is_left_out(wire):
    part = image_part(wire, "image/png", raw(A))
    pdf = {"messages": {"type": "document", "source": {"type": "base64", "data": ""}}, "chat": {"type": "file"}}
    body = with_image(wire, part, result=False)
    body[next(iter(body))][0]["content"].append(pdf.get(wire, {"type": "input_file"}))
    found = read(wire, body, SessionOptions(images="omit"))
    assert found.entries[1].images == [A]
    assert "omitted" in found.entries[2].text
    with pytest.raises(RefusedError, match=r"\[2\]: the model does not read a .*leave it out"):
        read(wire, body)


@pytest.mark.parametrize("role", ["assistant", "system"])
@pytest.mark.parametrize("wire", WIRES)
def test_a_model_shows_no_images(wire, role):
    body = with_image(wire, image_part(wire, "image/png", raw(A)), result=False)
    body[next(iter(body))][0]["role"] = role
    with pytest.raises(RefusedError, match=r"content\[1\].*"):
        read(wire, body)


def test_the_arguments_of_a_call_are_never_an_image():
    part = image_part("messages", "image/png", raw(A))
    use = {"type": "tool_use", "id": "c1", "name": "draw", "input": {"content": [part]}}
    (entry,) = read("messages", {"messages": [{"role": "assistant", "content": [use]}]}).entries
    assert entry.calls[0].arguments == {"content": [part]}


# Google's API, whose files have no type, and stand inside a tool's result or beside it


def gemini(*parts, role="user", options=None):
    options = options or SessionOptions()
    body = {"model": "m", "contents": [{"role": role, "parts": list(parts)}]}
    return Gemini().read(with_images(body, options), {}, "", options).request.entries


def inline(media, data, *, snake=False):
    names = ("inline_data", "mime_type") if snake else ("inlineData", "mimeType")
    return {names[0]: {names[1]: media, "data": data}}


def answered(*parts, response=None):
    return {"functionResponse": {"id": "c1", "name": "look", "response": response, "parts": list(parts)}}


@pytest.mark.parametrize("snake", [False, True])
def test_google_images_of_users_and_tools(snake):
    part = inline("image/png", raw(A), snake=snake)
    user, shown = gemini({"text": "see"}, part)
    assert (user, shown) == (Entry("user", "see"), Entry("user", "", parts=(A,), joined=True))
    (result,) = gemini(answered(part, response={"output": "see"}))
    assert result == Entry("tool", "see", call_id="c1", parts=("see", A))
    assert gemini(answered(part)) == (Entry("tool", "", call_id="c1", parts=(A,)),)
    result, beside = gemini(answered(response={"output": "see"}), part)
    assert (result.text, beside.images, beside.joined) == ("see", [A], True)


def test_google_files_that_are_not_read():
    gif, address = (
        inline("image/gif", GIF),
        {"fileData": {"mimeType": "image/png", "fileUri": "https://example.com/a.png"}},
    )
    for parts in ((answered(gif),), (answered(response={"output": "see"}), gif)):
        assert "[image left out: an image must be a PNG or JPEG file" in gemini(*parts)[-1].text
    with pytest.raises(RefusedError, match=r"contents\[0\]\.parts\[0\]: an image must be a PNG or JPEG file"):
        gemini(gif)
    for parts in ((address,), (answered(address),)):
        with pytest.raises(RefusedError, match=r"parts\[0\]: an image is named by the address .* nothing is fetched"):
            gemini(*parts)
        assert "[image omitted" in gemini(*parts, options=SessionOptions(images="omit"))[-1].text
    with pytest.raises(RefusedError, match=r"parts\[0\]: only a user's content shows images"):
        gemini(inline("image/png", raw(A)), role="model")
    with pytest.raises(RefusedError, match="the model does not read a 'audio'"):
        gemini(inline("audio/wav", "AAAA"))
    with pytest.raises(RefusedError, match="the model does not read a 'file'"):
        gemini(inline("application/pdf", "AAAA"))


# Over HTTP


@pytest.mark.parametrize("wire", WIRES)
async def test_an_agent_reads_an_image_over_http(renderer, wire):
    client = {"messages": MessagesClient(), "chat": Chat(), "responses": Responses(keeps_ids=False)}[wire]

    async def run(env, task, endpoint):
        items: list = ["What is it?"]
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {endpoint.key}"}) as http:
            while True:
                body = client.body(Conversation(items, system="Be short.", tools=("find",)))
                _show(body, wire, B)
                async with http.post(f"{endpoint.url}{client.path}", json=body) as answer:
                    assert answer.status == 200
                    said = client.said(await answer.json())
                if not said.calls:
                    return said.text
                items += [said, Results({said.calls[0][0]: "PICTURE"})]

    played = await rollout(
        doing(run)(), Task(prompt="Go."), [call("find", what="x"), call("find", what="y"), "Red."], renderer=renderer
    )
    assert played.failure is None, played.failure
    assert played.info["result"] == "Red."
    assert len(played.segments) == 1
    assert [one.image for one in played.segment.media] == [B, B]
    assert played.ledger.sampled == played.ledger.trained
    again = Trajectory.from_json(json.loads(json.dumps(played.to_json())))
    assert again.segment.media == played.segment.media


def _show(body: dict, wire: str, image: Image) -> None:
    """Put the image in place of each result's text."""
    part = image_part(wire, "image/png", raw(image))
    for message in body.get("messages", body.get("input")):
        for one in message["content"] if isinstance(message.get("content"), list) else []:
            if one.get("content") == "PICTURE":
                one["content"] = [part]
        for name in ("content", "output"):
            if message.get(name) == "PICTURE":
                message[name] = [part]


async def test_requests_with_images_are_counted(renderer):
    t = talk(renderer, ["One."])
    request = (
        Messages().read({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": [A]}]}, {}, "").request
    )
    assert await t.session.count(request) > renderer.vision.count(A)
    t.session.close("done")


async def test_sessions_beside_each_other_share_an_image(renderer):
    async def one():
        t = talk(renderer, ["One."])
        await t.says(shown(Image.of(bytes(bytearray(A.data)))))
        return t.end()

    played = await asyncio.gather(*(one() for _ in range(5)))
    assert len({id(t.segment.media[0].image.uri) for t in played}) == 1
