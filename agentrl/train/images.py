"""Images in the learner's rows. Rows with images are padded, not packed: the tokens of a pack have positions along a
single axis, and the tokens of an image have positions along three axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from agentrl.engine.local.images import plain_logits, probes
from agentrl.errors import ConfigError
from agentrl.models.vision import Vision
from agentrl.train.log_probs import alike
from agentrl.types import RenderedImage


@dataclass(frozen=True, slots=True)
class RowImages:
    """Makes the arguments of a model, besides the tokens, for padded rows with images."""

    vision: Vision
    dtype: str
    """The type of the model's weights, by torch's name, such as `bfloat16`."""
    device: torch.device
    forbidden: Tensor
    """The ids of the tokens that stand for media. The engine never samples these tokens, so the softmax leaves them
    out."""

    @classmethod
    def of(cls, model: Any, vision: Vision) -> RowImages:
        """Check the model on a few rows. Raises ConfigError if the logits of a padded row differ from those of the row
        alone."""
        dtype = str(model.dtype).removeprefix("torch.")
        images = cls(vision, dtype, model.device, torch.tensor(vision.forbidden, device=model.device))
        _prove(model, images)
        return images

    def inputs(self, rows: Sequence[tuple[int, Sequence[RenderedImage]]]) -> dict[str, Tensor]:
        """The model's arguments for rows of (length, images), padded on the right to the longest row.

        The arguments are `position_ids` [3, rows, length]. If a row has an image within its length, the arguments
        include `pixel_values` and `image_grid_thw` of all images in order.
        """
        longest = max(length for length, _ in rows)
        read = [[image for image in media if image.stop <= length] for length, media in rows]
        places = [self.vision.positions(media, longest) for media in read]
        inputs = {"position_ids": torch.stack(places, dim=1).to(self.device)}
        if images := [image.image for media in read for image in media]:
            inputs |= {name: tensor.to(self.device) for name, tensor in self.vision.tensors(images, self.dtype).items()}
        return inputs


@torch.no_grad()
def _prove(model: Any, images: RowImages) -> None:
    rows = list(probes(model, images.vision))
    longest = max(len(row.input_ids) for row in rows)
    ids = torch.tensor([row.input_ids + [0] * (longest - len(row.input_ids)) for row in rows], device=model.device)
    inputs = images.inputs([(len(row.input_ids), row.media) for row in rows])
    logits = model(input_ids=ids, **inputs, use_cache=False).logits.float()
    for row, row_logits in zip(rows, logits, strict=True):
        if not alike(plain_logits(model, images.vision, row), row_logits[: len(row.input_ids)], model.dtype):
            raise ConfigError(
                f"{type(model).__name__} does not compute the same for images in padded rows as for each row alone: it "
                "cannot be trained here"
            )
