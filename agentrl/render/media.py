"""Images in rendered messages: roles that may have images, pad tokens, and the cut of an observation with images.

A template writes a single pad token for each image. The trained sequence holds a pad token for each merged patch of the
image, so each pad is expanded. The engine gets single pads again (`Segment.engine_ids`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

from agentrl.errors import TemplateError
from agentrl.image import Image, has_image, images_in, is_image, normal_content
from agentrl.render.base import ImageCounter
from agentrl.render.learn.probe import ASKED, QUESTION, assistant
from agentrl.render.template import Template
from agentrl.types import Message, Observation, Rendered, RenderedImage, RenderedSpan

_WORDS = ("zqpart0", "zqpart1", "zqpart2")
LEFT_OUT = "[image left out]"
"""Text in place of an image for which an observation's budget has no room."""


def as_messages(observation: Observation) -> Sequence[Message]:
    """The messages of an observation that is not Raw. A text, an image, or a list of parts becomes one user message."""
    content: Any = observation
    if isinstance(content, str | Image):
        return [{"role": "user", "content": normal_content(content)}]
    if content and all(isinstance(part, str | Image) for part in content):
        return [{"role": "user", "content": normal_content(list(content))}]
    messages: Sequence[Message] = content
    return messages


def image_roles(template: Template, pad: int) -> frozenset[str]:
    """The roles for which the template writes images: one pad for each image, at its position between the texts."""
    every = replace(template, image_roles=frozenset({"user", "tool"}))
    return frozenset(role for role in ("user", "tool") if _carries(every, role, pad))


def _carries(template: Template, role: str, pad: int) -> bool:
    for images in ((0,), (1,), (0, 1), (0, 0, 2)):
        content: list[Mapping[str, Any]] = []
        for place, word in enumerate(_WORDS):
            content += [{"type": "image", "image": ""}] * images.count(place) + [{"type": "text", "text": word}]
        text = template.try_render(_conversation(role, content), generation_prompt=True)
        if text is None or _places(template, text, pad) != sorted(images):
            return False
    return True


def _conversation(role: str, content: Any) -> list[Message]:
    if role == "user":
        return [{"role": "user", "content": content}]
    result = {"role": "tool", "tool_call_id": "call00000", "name": "lookup", "content": content}
    return [QUESTION, assistant("", [ASKED]), result]


def _places(template: Template, text: str, pad: int) -> list[int] | None:
    """For each pad in a text, the number of words before it. None if a word is missing or in another order."""
    mark = template.decode([pad])
    if template.encode(text).count(pad) != text.count(mark):
        return None
    pieces, words, counts = text.split(mark), list[str](), list[int]()
    for i, piece in enumerate(pieces):
        words += sorted((word for word in _WORDS if word in piece), key=piece.index)
        counts += [len(words)] if i < len(pieces) - 1 else []
    return counts if words == list(_WORDS) else None


def pictured(rendered: Rendered, images: Sequence[Image], counter: ImageCounter, name: str) -> Rendered:
    """The tokens with each pad expanded, and the span of each image.

    Raises TemplateError if the number of pads is not the number of images, because a text may contain the pad.
    """
    pads = rendered.tokens.count(counter.pad)
    if pads != len(images):
        raise TemplateError(
            f"the messages have {len(images)} images and {pads} of the tokens that stand for one, with the chat "
            f'template of {name}: a text that holds the token\'s own text needs special_tokens: "as_text"'
        )
    if not images:
        return rendered
    remaining, tokens, media, offsets = iter(images), list[int](), list[RenderedImage](), [0]
    for token in rendered.tokens:
        if token == counter.pad:
            image = next(remaining)
            count = _count(counter, image)
            media.append(RenderedImage(len(tokens), len(tokens) + count, image))
            tokens += [token] * count
        else:
            tokens.append(token)
        offsets.append(len(tokens))
    spans = tuple(RenderedSpan(span.kind, offsets[span.start], offsets[span.stop]) for span in rendered.spans)
    return replace(rendered, tokens=tuple(tokens), spans=spans, media=tuple(media))


def fitted(
    new: Sequence[Message], counter: ImageCounter | None, budget: int | None
) -> tuple[Sequence[Message], int | None, int]:
    """Three values: the messages with the images that fit into the budget, the rest of the budget for text, and the
    number of tokens of the images left out.

    The first images are kept. An image is shown as a whole or not at all.
    """
    if counter is None or budget is None:
        return new, budget, 0
    counts = [_count(counter, image) for image in _images(new)]
    fitting = sum(total <= budget for total in accumulate(counts))
    beyond = sum(count - 1 for count in counts[:fitting])
    if fitting == len(counts):
        return new, budget - beyond, 0
    return _first_images(new, fitting), budget - beyond, sum(counts[fitting:])


def images_of(messages: Sequence[Message]) -> list[Image]:
    """The images of the messages, in order. Raises TemplateError for an unreadable image."""
    return list(_images(messages))


def _images(messages: Sequence[Message]) -> Iterator[Image]:
    for message in messages:
        try:
            yield from images_in(message.get("content"))
        except ValueError as exc:
            raise TemplateError(f"a message of the {message.get('role')} cannot be shown: {exc}") from exc


def _count(counter: ImageCounter, image: Image) -> int:
    try:
        return counter.count(image)
    except ValueError as exc:
        raise TemplateError(f"{image!r} cannot be shown to the model: {exc}") from exc


def _first_images(messages: Sequence[Message], room: int) -> list[Message]:
    result = list[Message]()
    for message in messages:
        content: Any = message.get("content")
        if has_image(content):
            parts = list[Any]()
            for part in content:
                fits = not is_image(part) or room > 0
                room -= is_image(part)
                parts.append(part if fits else {"type": "text", "text": LEFT_OUT})
            message = {**message, "content": parts}
        result.append(message)
    return result
