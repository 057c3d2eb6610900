"""Images in the requests of a LocalEngine: the model's inputs besides the tokens, and a test that the model reads
images."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from agentrl.engine.local.kv_cache import CacheBlock, run
from agentrl.engine.local.request import GenerateRequest
from agentrl.engine.local.sampling import Sampling
from agentrl.errors import ConfigError, RequestError, one_line
from agentrl.image import Image
from agentrl.models.folder import reads_images
from agentrl.models.vision import Vision
from agentrl.types import RenderedImage

_REMEDY = "serve the model with SGLang and use the engine sglang"
_TAIL = 3
"""The number of tokens of each test row that are decoded singly."""


class ImageInputs:
    """The model's arguments for rows with images: positions of all tokens, and the pixels of new images."""

    def __init__(self, vision: Vision, model: Any) -> None:
        self._vision, self._model = vision, model

    def place(self, request: GenerateRequest, images: Sequence[Image]) -> None:
        """Replace each pad in a request's prompt by the tokens of its image, and store the position of each token.
        Raises RequestError."""
        if request.input_ids[-1] == self._vision.pad:
            raise RequestError("the prompt ends with an image's pad: a template closes an image with a marker")
        try:
            request.input_ids, media = self._vision.place(request.input_ids, images)
        except ValueError as exc:
            raise RequestError(f"the images do not fit the prompt: {one_line(exc)}") from exc
        if images:
            request.media = media
            request.positions = self._vision.positions(media, len(request.input_ids))

    def of(
        self, rows: Sequence[GenerateRequest], starts: Sequence[int], ids: Sequence[Sequence[int]]
    ) -> dict[str, Tensor]:
        """Arguments for the tokens `ids` of each row, from the row's start on. Empty without images in any row.

        The arguments are `position_ids` [3, rows, width]. If `ids` contain images, they are also `pixel_values` and
        `image_grid_thw` of all rows' images in order, as in `Vision.tensors`. No image may be only partly in `ids`; see
        `pieces`. Raises RequestError for an unreadable image.
        """
        if not any(row.media for row in rows):
            return {}
        width = len(ids[0])
        places = [_positions(row, start, width) for row, start in zip(rows, starts, strict=True)]
        inputs = {"position_ids": torch.stack(places, dim=1).to(self._model.device)}
        new = [
            placed.image
            for row, start, row_ids in zip(rows, starts, ids, strict=True)
            for placed in row.media
            if start <= placed.start < start + width and row_ids[placed.start - start] == self._vision.pad
        ]
        if new:
            dtype = str(self._model.dtype).removeprefix("torch.")
            try:
                tensors = self._vision.tensors(new, dtype)
            except ValueError as exc:
                raise RequestError(one_line(exc)) from exc
            inputs |= {name: tensor.to(self._model.device) for name, tensor in tensors.items()}
        return inputs


def _positions(row: GenerateRequest, start: int, width: int) -> Tensor:
    """Positions [3, width] of a row's tokens. Positions after the prompt count up from the prompt's last position."""
    prompt_positions = row.positions
    if prompt_positions is None:
        return torch.arange(start, start + width).expand(3, -1)
    prompt = prompt_positions[:, start : start + width]
    first = max(start, prompt_positions.shape[1])
    after = (
        torch.arange(first, max(first, start + width)) + int(prompt_positions[0, -1]) + 1 - prompt_positions.shape[1]
    )
    return torch.cat([prompt, after.expand(3, -1)], dim=1)


def pieces(rows: Sequence[GenerateRequest], width: int, most: int) -> Iterator[tuple[int, int]]:
    """Ranges of at most `most` tokens that together cover `width` tokens of each row, after the tokens computed
    already. A range that ends inside an image is extended to the image's end. With several rows, `width` must be at
    most `most`."""
    start = 0
    while start < width:
        stop = min(start + most, width)
        for row in rows:
            for image in row.media:
                if image.start - row.computed < stop < image.stop - row.computed:
                    stop = image.stop - row.computed
        yield start, stop
        start = stop


def common_images(tokens: int, media: Sequence[RenderedImage], others: Sequence[RenderedImage]) -> int:
    """The number of leading tokens of two prompts that are equal, with equal images. `tokens` is the number of equal
    leading token ids. The result never ends inside an image."""
    for image, other in zip(media, others, strict=False):
        if image != other:
            tokens = min(tokens, image.start, other.start)
            break
    return min([tokens, *(image.start for image in media if image.start < tokens < image.stop)])


@torch.inference_mode()
def prove_images(model: Any, vision: Vision, context: int, tolerance: float) -> None:
    """Compare rows with two, one and no images, in two pieces and then token by token, with plain forward passes.

    The plain passes get no positions, so the model computes its own positions. Raises ConfigError if the results differ
    by more than `tolerance` standard deviations, and if the pixels do not matter.
    """
    name = type(model).__name__
    if not reads_images(model) or model.config.image_token_id != vision.pad:
        raise ConfigError(f"{name} does not read the images of {vision.folder}: load both from one folder")
    inputs, rows = ImageInputs(vision, model), list(probes(model, vision))
    if (longest := max(len(row.input_ids) for row in rows)) >= context:
        raise ConfigError(f"max_context is {context}, too short for two small images of {longest} tokens: raise it")
    try:
        plain = [plain_logits(model, vision, row) for row in rows]
        blind = plain_logits(model, vision, next(probes(model, vision, seed=1)))
        off = _difference(model, inputs, rows, plain, context)
    except Exception as exc:  # the model's own code may accept neither our positions nor our cache
        raise ConfigError(f"LocalEngine cannot batch images of {name}: {one_line(exc)}; {_REMEDY}") from exc
    if torch.equal(blind, plain[0]):
        raise ConfigError(f"{name} reads no pixels: other images give equal logits; {_REMEDY}")
    if not off <= tolerance:
        raise ConfigError(
            f"LocalEngine cannot batch images of {name}: its logits through a cache are off by {off:.2g} standard "
            f"deviations from a plain forward pass; {_REMEDY}"
        )


def probes(model: Any, vision: Vision, seed: int = 0) -> Iterator[GenerateRequest]:
    """Test rows with two images, one image and no image, between a few tokens. The images are noise."""
    size = model.config.get_text_config().vocab_size
    first, second = _noise(seed, 90, 60), _noise(seed + 7, 40, 130)
    for number, images in enumerate(([first, second], [second], [])):
        tokens = list[int]()
        for place in range(len(images) + 1):
            words = [(17 + 31 * number + 7 * place + 29 * i * i) % size for i in range(6 + number)]
            tokens += [*(word for word in words if word not in vision.forbidden), *[vision.pad] * (place < len(images))]
        row = GenerateRequest(tokens, Sampling(seed=0))
        ImageInputs(vision, model).place(row, images)
        yield row


def _noise(seed: int, width: int, height: int) -> Image:
    from PIL import Image as Pillow

    return Image.from_pil(Pillow.frombytes("RGB", (width, height), random.Random(seed).randbytes(3 * width * height)))


def plain_logits(model: Any, vision: Vision, row: GenerateRequest) -> Tensor:
    """The logits [tokens, vocabulary] of a single forward pass in which the model computes the positions itself."""
    ids = torch.tensor([row.input_ids], device=model.device)
    images: dict[str, Tensor] = {}
    if row.media:
        tensors = vision.tensors([placed.image for placed in row.media], str(model.dtype).removeprefix("torch."))
        images = {name: tensor.to(model.device) for name, tensor in tensors.items()}
        images["mm_token_type_ids"] = (ids == vision.pad).int()
    logits: Tensor = model(input_ids=ids, use_cache=False, **images).logits[0].float()
    return logits


def _difference(
    model: Any, inputs: ImageInputs, rows: Sequence[GenerateRequest], plain: Sequence[Tensor], context: int
) -> float:
    """The largest difference of the logits of the rows' last tokens, in standard deviations."""
    block, longest = CacheBlock(), max(len(row.input_ids) for row in rows)
    block.fit(len(rows), longest, len(rows))
    halves = [rows[0].media[0].stop, rows[1].media[0].start, 1]
    ends = [len(row.input_ids) - _TAIL for row in rows]
    for row, end in zip(rows, ends, strict=True):
        row.positions = None if row.positions is None else row.positions[:, :end]  # the rest is as if sampled

    def read(starts: list[int], stops: list[int]) -> Tensor:
        width = max(stop - start for start, stop in zip(starts, stops, strict=True))
        ids = [row.input_ids[start:stop] for row, start, stop in zip(rows, starts, stops, strict=True)]
        padded = [row_ids + [0] * (width - len(row_ids)) for row_ids in ids]
        return run(model, block, 0, padded, starts, max(stops), context, inputs.of(rows, starts, padded)).float()

    read([0] * len(rows), halves)
    read(halves, ends)
    off = 0.0
    for step in range(_TAIL):
        positions = [end + step for end in ends]
        for logits, actual, place in zip(
            plain, read(positions, [place + 1 for place in positions]), positions, strict=True
        ):
            off = max(off, float((actual - logits[place]).abs().max() / logits[place].std()))
    return off
