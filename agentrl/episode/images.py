"""The images of an episode: limits, and the check that the engine and the trainer read the same images.

SGLang itself replaces each image's pad token by several tokens. If SGLang's image processor or tokenization differs
from the trainer's, SGLang reports no error. Only the number of prompt tokens shows the difference, so the number is
compared for each generation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from agentrl.engine.base import Engine
from agentrl.errors import ConfigError, EngineError
from agentrl.render.base import ImageCounter
from agentrl.trajectory.segment import Segment
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import Generation, Limits, Rendered, RenderedImage

_NEVER = -1e4
"""A logit bias so low that the token is never sampled."""


def check_takes_images(engine: Engine) -> None:
    """Raises ConfigError for an engine without images."""
    if not getattr(engine, "takes_images", False):
        raise ConfigError(
            f"{type(engine).__name__} takes no images: play this Env with a model of the Qwen-VL family, in an SGLang "
            "server (engine: sglang), in LocalEngine, or under slime"
        )


def too_many_images(trajectory: Trajectory, rendered: Rendered, limits: Limits) -> bool:
    """Whether the images of the episode and of `rendered` exceed the limits. An image counts once, in any number of
    segments and turns."""
    if not rendered.media:
        return False
    return too_much([medium for segment in trajectory.segments for medium in segment.media] + [*rendered.media], limits)


def too_much(media: Iterable[RenderedImage], limits: Limits) -> bool:
    """Whether images exceed the limits on pixels and bytes. Equal images count once."""
    images = {medium.image.uri: medium.image for medium in media}.values()
    pixels = sum(image.width * image.height for image in images)
    size = sum(image.size for image in images)
    return (limits.image_pixels is not None and pixels > limits.image_pixels) or (
        limits.image_bytes is not None and size > limits.image_bytes
    )


def without_pads(bias: Mapping[str, float] | None, vision: ImageCounter) -> dict[str, float]:
    """The logit_bias with all media tokens forbidden. For a sampled media token, the trainer would look for a missing
    image, and stop the whole run."""
    return {**(bias or {}), **dict.fromkeys(map(str, vision.forbidden), _NEVER)}


def check_images(generation: Generation, segment: Segment, vision: ImageCounter) -> None:
    """Raises EngineError if the engine sampled a pad, or read another number of tokens than the segment has."""
    if not set(vision.forbidden).isdisjoint(generation.tokens):
        raise EngineError(
            "the engine sampled a token that stands for an image, which logit_bias forbids: it ignores logit_bias, so "
            "its model cannot be trained with images"
        )
    read = generation.meta.get("prompt_tokens")
    if segment.media and isinstance(read, int) and generation.tokens and read != segment.length:
        raise EngineError(
            f"the engine read {read} prompt tokens where the trainer will read {segment.length}: it expands images "
            "otherwise (another preprocessor_config.json, --mm-process-config), or it tokenises the prompt again, as "
            "slime's docker image does for Qwen-VL (slime #2388): use an SGLang without legacy_load_mm_data"
        )
