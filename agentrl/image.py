"""Images in the content of messages: the accepted forms, and the stored form.

    return [{"role": "user", "content": ["What is here?", Image.load("chart.png")]}]

In a message, an image is the part `{"type": "image", "image": "data:image/png;base64,..."}`. The part is JSON, so
trajectories, parked episodes and files hold the same part. Images in the formats of OpenAI, Anthropic and MCP are
converted. URLs and paths in messages are refused and never fetched, because a model or a client may have written the
URL.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import struct
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias

MediaType: TypeAlias = Literal["image/png", "image/jpeg"]
Part: TypeAlias = "str | Image"
"""A part of a message's content: text or an image."""

_PNG, _JPEG = b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff"
_NO_SIZE = frozenset({0x01, *range(0xD0, 0xDA)})
"""JPEG markers without a segment after them."""
_SIZES = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})
"""JPEG markers whose segment holds the size of the picture."""
_REMEMBERED, _REMEMBERED_LENGTH = 64, 2 << 20
"""Number of remembered images, and the longest remembered URI in characters: both bound the memory."""


class AddressError(ValueError):
    """An image is named by an address (a URL, a path, the id of a file). agentrl fetches no address."""


@dataclass(frozen=True, slots=True)
class Image:
    """A PNG or JPEG file, as a data URI. Immutable. Equal files are equal images."""

    uri: str
    """`data:image/png;base64,...`. Equal images share the same string, in all episodes."""
    width: int = field(init=False, compare=False)
    """Width in pixels, read from the file's header."""
    height: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        media, data = _read_uri(self.uri)
        if media != _media_type(data):
            raise ValueError(f"an image is {_media_type(data)}, but its data URI names {media}")
        width, height = _png_size(data) if media == "image/png" else _jpeg_size(data)
        if not (width > 0 and height > 0):
            raise ValueError(f"an image is damaged: its header gives a size of {width} x {height}")
        object.__setattr__(self, "uri", sys.intern(self.uri))  # equal images of all episodes are one string
        object.__setattr__(self, "width", width)
        object.__setattr__(self, "height", height)

    @classmethod
    def of(cls, data: bytes) -> Self:
        """The image in the bytes of a PNG or JPEG file. Raises ValueError for anything else."""
        return cls(f"data:{_media_type(data)};base64,{base64.b64encode(data).decode()}")

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a PNG or JPEG file. Raises OSError, and ValueError for other files."""
        return cls.of(Path(path).read_bytes())

    @classmethod
    def from_pil(cls, image: Any) -> Self:
        """A `PIL.Image.Image` as PNG, in RGB: no model sees transparency, and palettes differ between readers."""
        buffer = io.BytesIO()
        image.convert("RGB").save(buffer, format="PNG")
        return cls.of(buffer.getvalue())

    @property
    def data(self) -> bytes:
        """The content of the file. Each call decodes the URI again."""
        return _read_uri(self.uri)[1]

    @property
    def media_type(self) -> MediaType:
        """The MIME type, such as `image/png`, by the file's first bytes."""
        return "image/png" if self.uri.startswith("data:image/png") else "image/jpeg"

    @property
    def size(self) -> int:
        """The length of the file in bytes."""
        body = len(self.uri) - self.uri.index(",") - 1
        return body // 4 * 3 - self.uri[-2:].count("=")

    @property
    def digest(self) -> str:
        """The SHA-256 of the URI, in 64 hexadecimal digits."""
        return hashlib.sha256(self.uri.encode()).hexdigest()

    @property
    def part(self) -> dict[str, str]:
        """The image as a part of a message's content: `{"type": "image", "image": URI}`."""
        return {"type": "image", "image": self.uri}

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (self.uri, self.width, self.height)  # images from other processes share the string, too

    def __repr__(self) -> str:
        return f"<Image {self.width} x {self.height}, {self.size // 1000} kB>"


def parts_of(content: Any) -> list[Part]:
    """The parts of a message's content. Neighbouring texts stay separate. None and "" have no part.

    The content may hold texts, Images, and parts in the formats of OpenAI (`image_url`, `input_image`), Anthropic
    (`image` with a `source`) and MCP (`image` with `data` and `mimeType`). Raises ValueError for any other part and for
    an image that is neither PNG nor JPEG, and AddressError for a URL or path.
    """
    if content is None or content == "":
        return []
    if isinstance(content, str | Image) or not isinstance(content, Sequence):
        return [_part(content)]
    return [_part(part) for part in content]


def images_in(content: Any) -> list[Image]:
    """The images of a message's content, in order. Raises ValueError for a damaged image. Other parts are skipped."""
    if not has_image(content):
        return []
    return [_part(part) for part in content if is_image(part)]  # type: ignore[misc]


def has_image(content: Any) -> bool:
    """Whether content has an image part of any form. Costs no time for text."""
    return isinstance(content, list | tuple) and any(is_image(part) for part in content)


def is_image(part: Any) -> bool:
    """Whether a part of content is an image, in any of the forms."""
    return isinstance(part, Image) or (isinstance(part, Mapping) and _address(part) is not None)


def normal_content(content: Any) -> Any:
    """Content with images in the stored form, and text as `{"type": "text"}` parts. Content without images is returned
    unchanged.

    Raises ValueError as `parts_of` does.
    """
    content = [content] if isinstance(content, Image) else content
    if not has_image(content):
        return content
    return [part.part if isinstance(part, Image) else {"type": "text", "text": part} for part in parts_of(content)]


def share_images(messages: Any) -> None:
    """Replace, in place, the images of messages from another process: equal images then share a string. An observation
    that is no list of messages has no images."""
    for message in messages if isinstance(messages, Sequence) else ():
        content: Any = message.get("content") if isinstance(message, Mapping) else None
        if has_image(content):
            for part in content:
                if isinstance(part, dict) and isinstance(part.get("image"), str):
                    part["image"] = sys.intern(part["image"])


def _restored(uri: str, width: int, height: int) -> Image:
    """Make an Image without a check: used for unpickling, where the file was checked earlier."""
    image = object.__new__(Image)
    for name, value in (("uri", sys.intern(uri)), ("width", width), ("height", height)):
        object.__setattr__(image, name, value)
    return image


def _part(part: Any) -> Part:
    if isinstance(part, str | Image):
        return part
    if isinstance(part, Mapping):
        if part.get("type") in ("text", "input_text", "output_text") and isinstance(part.get("text"), str):
            return str(part["text"])
        if (address := _address(part)) is not None:
            return _at(address)
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    raise ValueError(f"the content of a message may hold text and images, not {kind!r}")


def _address(part: Mapping[str, Any]) -> str | None:
    """The data URI or address of an image part; None for any other part."""
    kind = part.get("type")
    if kind in ("image_url", "input_image"):
        address = part.get("image_url")
        address = address.get("url") if isinstance(address, Mapping) else address
        return address if isinstance(address, str) else str(part.get("file_id", ""))
    if kind != "image":
        return None
    if isinstance(address := part.get("image"), str | Image):
        return address.uri if isinstance(address, Image) else address
    source = part.get("source", part)
    if isinstance(source, Mapping) and isinstance(source.get("data"), str):
        guessed = "image/jpeg" if source["data"].startswith("/9j/") else "image/png"
        media = source.get("media_type") or source.get("mimeType") or guessed
        return f"data:{media};base64,{source['data']}"
    named = (source.get("url") or source.get("file_id")) if isinstance(source, Mapping) else None
    return named if isinstance(named, str) else None


def _at(address: str) -> Image:
    if not address.startswith("data:"):
        raise AddressError(
            f"an image is named by the address {address!r:.60}, and nothing is fetched: give its bytes, as a data URI "
            "or agentrl.Image"
        )
    return _read(sys.intern(address)) if len(address) <= _REMEMBERED_LENGTH else Image(address)


@lru_cache(maxsize=_REMEMBERED)
def _read(uri: str) -> Image:
    """The Image of a data URI. Cached, because a turn renders an image several times, and decoding a screenshot takes a
    millisecond."""
    return Image(uri)


def _read_uri(uri: str) -> tuple[str, bytes]:
    head, _, body = uri.partition(";base64,")
    if not head.startswith("data:") or not body:
        raise ValueError(f"an image must be a data URI such as data:image/png;base64,..., not {uri!r:.40}")
    try:
        return head.removeprefix("data:"), base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError) as exc:
        raise ValueError(f"an image's data URI is not base64: {exc}") from exc


def _media_type(data: bytes) -> MediaType:
    if data.startswith(_PNG):
        return "image/png"
    if data.startswith(_JPEG):
        return "image/jpeg"
    raise ValueError(f"an image must be a PNG or JPEG file, and this one begins with {data[:8]!r}: convert it to PNG")


def _png_size(data: bytes) -> tuple[int, int]:
    if len(data) < 24 or data[12:16] != b"IHDR":
        return 0, 0
    width, height = struct.unpack(">II", data[16:24])
    return width, height


def _jpeg_size(data: bytes) -> tuple[int, int]:
    offset = 2
    while offset + 9 <= len(data):
        if data[offset] != 0xFF:
            return 0, 0
        marker = data[offset + 1]
        if marker == 0xFF:  # padding
            offset += 1
        elif marker in _NO_SIZE:
            offset += 2
        elif marker in _SIZES:
            height, width = struct.unpack(">HH", data[offset + 5 : offset + 9])
            return width, height
        else:
            offset += 2 + struct.unpack(">H", data[offset + 2 : offset + 4])[0]
    return 0, 0
