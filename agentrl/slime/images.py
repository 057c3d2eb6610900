"""Images under slime: the images in a data set's rows, and the tensors of pixels for the trainer.

A row's images come through slime's --multimodal-keys, which puts them into the messages of the prompt. These images are
the user's data, so paths of files are read. Paths from an Env or a client are not read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias, cast

from agentrl.errors import ConfigError, EngineError, Failure
from agentrl.image import Image
from agentrl.models.vision import Vision
from agentrl.render.base import ImageCounter, Renderer
from agentrl.slime.host import HostArgs
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import Message, StopReason

_FIELD = "multimodal_train_inputs"


NOT_KNOWN = (
    "remove --multimodal-keys: the model is not known to read images; they need one of the Qwen-VL family, with the "
    "preprocessor_config.json of its folder"
)


def check_media(sample: Any, renderer: Renderer) -> None:
    """Raises ConfigError for a sample with unsupported media."""
    inputs = getattr(sample, "multimodal_inputs", None) or {}
    kinds = sorted(name for name, value in inputs.items() if value is not None)
    if other := [kind for kind in kinds if kind != "images"]:
        raise ConfigError(f"remove {', '.join(other)} from --multimodal-keys: agentrl shows text and images only")
    if kinds and renderer.vision is None:
        raise ConfigError(NOT_KNOWN)


def check_replay(flags: HostArgs, renderer: Renderer) -> None:
    """Raises ConfigError for a flag whose data has no place in a sequence where the engine expands images to tokens."""
    if renderer.vision is not None and flags.use_rollout_routing_replay:
        raise ConfigError("remove --use-rollout-routing-replay: experts are not replayed for a model that reads images")


def with_images(message: Message) -> Message:
    """A row's message whose images are read from their files. Raises ConfigError with the name of an unreadable
    image."""
    content = message.get("content")
    if not isinstance(content, list):
        return message
    return {**message, "content": [_read(part) if _is_image(part) else part for part in content]}


Pixels: TypeAlias = "Mapping[str, Any] | None"
"""The tensors of a segment's images for the trainer, by name. None without images."""


async def pixels_of(trajectory: Trajectory, vision: ImageCounter | None) -> list[Pixels]:
    """The pixels of each segment's images, in the order of the images in the tokens. A thread computes the pixels.

    Pixels are computed at the end of the episode, because a screenshot is 25 MB as pixels and 0.2 MB as a file. An
    aborted episode is not trained, so it has no pixels. An episode with a damaged image fails, even if the engine
    accepted the image.
    """
    none: list[Pixels] = [None] * len(trajectory.segments)
    if trajectory.stop is StopReason.ABORTED:
        return none
    try:
        return [
            await asyncio.to_thread(cast(Vision, vision).tensors, segment.images) if segment.media else None
            for segment in trajectory.segments
        ]
    except ValueError as exc:
        error = EngineError(f"the engine took an image that the trainer cannot read: {exc}")
        trajectory.stop, trajectory.failure = StopReason.FAILED, Failure.of(error, "engine")
        return none


def write_pixels(sample: Any, pixels: Pixels) -> None:
    """Write the pixels into a Sample, for slime's trainer. Raises ConfigError for a Sample without the field."""
    if pixels is None:
        return
    if not hasattr(sample, _FIELD):
        raise ConfigError(f"an episode with images needs a Sample with {_FIELD}, as slime's has")
    setattr(sample, _FIELD, pixels)


def _is_image(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "image"


def _read(part: Mapping[str, Any]) -> Mapping[str, Any]:
    image = part.get("image", part)
    try:
        return _image(image).part
    except (OSError, ValueError) as exc:
        raise ConfigError(f"a row's image {image!r:.100} cannot be read: {exc}") from exc


def _image(source: Any) -> Image:
    """An image from any form that data sets have: a path, a data URI, a PIL image, bytes, or a mapping with a path or
    bytes."""
    if isinstance(source, Mapping) and (source.get("bytes") or source.get("path")):  # as Hugging Face's data sets
        source = source.get("bytes") or source["path"]
    if isinstance(source, Image):
        return source
    if isinstance(source, bytes):
        return Image.of(source)
    if hasattr(source, "convert"):
        return Image.from_pil(source)
    if isinstance(source, str) and source.startswith("data:"):
        return Image(source)
    if isinstance(source, str) and "://" in source and not source.startswith("file://"):
        raise ValueError("nothing is fetched while episodes are played; download it first")
    if isinstance(source, str):
        return Image.load(Path(source.removeprefix("file://")))
    raise ValueError("give a path, a data URI, bytes or a PIL image")
