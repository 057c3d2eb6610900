"""The images of an episode: their places among the tokens, and their bytes.

A file of trajectories is not trusted: only the bytes of a PNG or JPEG file are sent as an image, so no image can hold a
script.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from agentrl.image import Image, images_in
from agentrl.types import JSON, RenderedImage

_PIXELS = 100_000_000
"""The most pixels of an image: a browser would need gigabytes for more."""


def images_of(messages: Sequence[Mapping[str, JSON]]) -> dict[str, Image]:
    """Digest -> image, for the images in the messages. Items that are no image are skipped."""
    return {image.digest: image for message in messages for image in _readable(message)}


def _readable(message: Mapping[str, JSON]) -> Iterator[Image]:
    try:
        images = images_in(message.get("content"))
    except ValueError:
        return
    yield from (image for image in images if image.width * image.height <= _PIXELS)


def placed(media: Sequence[JSON], images: Mapping[str, Image], length: int) -> list[RenderedImage]:
    """The images among `length` tokens, in order. Images at impossible places, and images that are in no message, are
    left out."""
    places = list[RenderedImage]()
    for start, stop, digest in media:
        last = places[-1].stop if places else 0
        if isinstance(start, int) and isinstance(stop, int) and last <= start < stop <= length and digest in images:
            places.append(RenderedImage(start, stop, images[digest]))
    return places


def labelled(pieces: Sequence[str], images: Sequence[RenderedImage]) -> list[str]:
    """The texts of tokens, with a label in place of the padding tokens of each image."""
    labels = list(pieces)
    for image in images:
        labels[image.start : image.stop] = [image.label, *[""] * (image.stop - image.start - 1)]
    return labels
