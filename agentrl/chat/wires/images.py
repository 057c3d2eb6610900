"""Convert the images of a request, for a model that reads images: an `Image` takes the place of the vendor's part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agentrl.chat.options import SessionOptions
from agentrl.chat.wires.reading import refuse
from agentrl.image import AddressError, Image, is_image, parts_of
from agentrl.types import JSON

_LISTS = ("content", "output", "parts")
"""Keys under which a message or an item holds its parts."""
_NOT_SHOWN = "[image left out: {}]"


def with_images(body: Mapping[str, JSON], options: SessionOptions) -> Mapping[str, JSON]:
    """The body with an `Image` for each image part. Only contents are searched, because a call's arguments may hold any
    value.

    A tool's image in a format other than PNG or JPEG becomes a text with the reason: the policy chose the file and can
    convert the file. Raises RefusedError if such an image is in a user's message, and for an image that is only a URL
    or path.
    """
    changed = dict(body)
    for name in ("messages", "input", "contents"):
        if isinstance(sent := body.get(name), list):
            changed[name] = [_message(message, f"{name}[{index}]", options) for index, message in enumerate(sent)]
    return changed


def _message(message: JSON, where: str, options: SessionOptions) -> JSON:
    if not isinstance(message, dict):
        return message
    of_tool = message.get("role") == "tool" or "output" in message or message.get("type") == "tool_result"
    of_tool = of_tool or any(_answer_of(part) for part in message.get("parts") or ())
    changed = dict(message)
    for name in _LISTS:
        if isinstance(parts := message.get(name), list):
            changed[name] = _parts(parts, f"{where}.{name}", options, of_tool=of_tool)
    return changed


def _parts(parts: Sequence[JSON], where: str, options: SessionOptions, *, of_tool: bool) -> list[JSON]:
    return [_part(part, f"{where}[{index}]", options, of_tool=of_tool) for index, part in enumerate(parts)]


def _part(part: JSON, where: str, options: SessionOptions, *, of_tool: bool) -> JSON:
    if isinstance(part, dict) and part.get("type") == "tool_result":
        return _message(part, where, options)
    if answer := _answer_of(part):
        parts = _parts(answer.get("parts") or (), f"{where}.functionResponse.parts", options, of_tool=True)
        return {"functionResponse": {**answer, "parts": parts}}
    plain = _plain(part)
    if not is_image(plain):
        return part
    try:
        return _image(plain)
    except ValueError as exc:
        if of_tool and not isinstance(exc, AddressError):
            return {"type": "text", "text": _NOT_SHOWN.format(exc)}
        if options.images == "omit":
            return part
        raise refuse(f"{where}: {exc}") from exc


def _answer_of(part: JSON) -> Mapping[str, JSON] | None:
    """Read a tool's result in a part of Google's API. Images may be inside the result or next to the result."""
    answer = part.get("functionResponse", part.get("function_response")) if isinstance(part, dict) else None
    return answer if isinstance(answer, dict) else None


def _plain(part: JSON) -> JSON:
    """Convert an image of Google's API to MCP's form, or to OpenAI's form if it is only a URL. Any other part is
    unchanged."""
    if not isinstance(part, dict):
        return part
    inline, named = part.get("inlineData", part.get("inline_data")), part.get("fileData", part.get("file_data"))
    media, file = [data if isinstance(data, dict) else {} for data in (inline, named)]
    kind = media.get("mimeType", media.get("mime_type"))
    if isinstance(media.get("data"), str) and str(kind).startswith("image/"):
        return {"type": "image", "mimeType": kind, "data": media["data"]}
    kind, uri = file.get("mimeType", file.get("mime_type")), file.get("fileUri", file.get("file_uri"))
    return {"type": "image_url", "image_url": uri} if uri and str(kind).startswith("image/") else part


def _image(part: JSON) -> Image:
    (image,) = parts_of([part])
    assert isinstance(image, Image)
    return image
