"""The content of a message as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentrl.errors import TemplateError


def text_of(content: Any) -> str:
    """The content of a message as text: a list of texts is joined, None becomes an empty string.

    Raises TemplateError for other content. Templates print or silently drop an image, a number or a mapping, and the
    model would be trained on the result.
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        raise TemplateError(f"the content of a message must be text, not {type(content).__name__}: {str(content)[:60]}")
    return "".join(map(_part, content))


def texts_in(content: Any) -> list[str]:
    """The texts in content that may also hold images."""
    parts = content if isinstance(content, list | tuple) else [content]
    texts = [part.get("text") if isinstance(part, Mapping) else part for part in parts]
    return [text for text in texts if isinstance(text, str)]


def with_text(content: Any, text: str) -> Any:
    """The content of a message with `text` in place of its texts. Images and other items keep their places.

    `text` is the beginning of the content's texts, possibly followed by a mark. Later texts are left out.
    """
    if isinstance(content, str) or not isinstance(content, list | tuple):
        return text
    rest, result = text, list[Any]()
    for part in content:
        texts = texts_in([part])
        if not texts:
            result.append(part)
        elif rest:
            prefix = texts[0] if rest.startswith(texts[0]) else rest
            rest = rest.removeprefix(prefix)
            result.append({"type": "text", "text": prefix})
    return [*result, {"type": "text", "text": rest}] if rest else result


def _part(part: Any) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str):
        text: str = part["text"]
        return text
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    raise TemplateError(f"the content of a message may hold parts of text only, not {kind!r}: turn it into text")
