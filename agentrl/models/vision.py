"""The image side of a model: the number of tokens of an image, and the tensors for a trainer.

Only the image processor is used, never the processor of text and images together, which would tokenise again. A single
family of models is supported: Qwen-VL (2, 2.5, 3, 3.5). In the tokens of these models, an image has a pad token for
each merged patch.
"""

from __future__ import annotations

import io
import json
import math
import os
import shutil
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl.errors import ConfigError, one_line
from agentrl.image import Image
from agentrl.models import tiny_vl
from agentrl.models.adapter import base_of, is_adapter
from agentrl.models.folder import reads_images
from agentrl.models.hub import SEEDED, folder_of
from agentrl.models.pixels import PatchWriter
from agentrl.types import RenderedImage

if TYPE_CHECKING:
    from torch import Tensor

_FAMILY = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe")
_PROCESSOR = "preprocessor_config.json"
_SIZES_KEPT = 4096
_THREADS = 4
_PADS = ("image_token_id", "video_token_id", "vision_token_id", "audio_token_id")
"""The keys of config.json for the tokens that stand for media. A model may sample none of these tokens."""


class Vision:
    """The image side of a Qwen-VL model in a folder. Safe to share between threads. Only `tensors` imports torch.

    Raises ConfigError if the folder has no image processor, or belongs to an unknown family.
    """

    def __init__(self, folder: Path) -> None:
        config = _json(folder / "config.json")
        kind = config.get("model_type", "?")
        if kind not in _FAMILY:
            raise ConfigError(
                f"{folder} is a model of type {kind}: images are read by the Qwen-VL family only ({', '.join(_FAMILY)})"
            )
        if not (folder / _PROCESSOR).is_file():
            raise ConfigError(f"{folder} has no {_PROCESSOR}, so images cannot be prepared: copy it from the model")
        self.folder = folder
        self.pad: int = config["image_token_id"]
        """The id of the token for an image in a template's text, and for each merged patch in a trained sequence."""
        self.forbidden = tuple(sorted({config[key] for key in _PADS if isinstance(config.get(key), int)}))
        """The ids of tokens that a policy must not sample. A trainer would look for the image of such a token."""
        self._markers = [config.get(f"vision_{side}_token_id") for side in ("start", "end")]
        self._grids: OrderedDict[tuple[int, int], tuple[int, int]] = OrderedDict()

    @cached_property
    def processor(self) -> Any:
        from transformers import AutoImageProcessor

        try:
            return AutoImageProcessor.from_pretrained(self.folder, local_files_only=True, trust_remote_code=False)
        except Exception as exc:  # the boundary of a folder's files: damaged files raise any error
            raise ConfigError(f"{self.folder}: its image processor cannot be loaded: {one_line(exc)}") from exc

    def count(self, image: Image) -> int:
        """The number of an image's tokens in a trained sequence. Raises ValueError for a size that the model does not
        support, such as 1 x 1000."""
        rows, columns = self.grid(image)
        return rows * columns

    def grid(self, image: Image) -> tuple[int, int]:
        """The numbers of rows and columns of an image's merged patches. Each merged patch is a token. Raises ValueError
        for a size that the model does not support."""
        size = image.height, image.width
        if size not in self._grids:
            merge, patches = self.processor.merge_size, self.processor.get_number_of_image_patches(*size, {})
            grid = _grid(*size, self.processor)
            if grid[0] * grid[1] * merge**2 != patches:
                raise ConfigError(f"{self.folder}: its image processor resizes otherwise than Qwen-VL's: not supported")
            if len(self._grids) >= _SIZES_KEPT:
                self._grids.popitem(last=False)
            self._grids[size] = grid
        return self._grids[size]

    def positions(self, media: Sequence[RenderedImage], length: int) -> Tensor:
        """Positions [3, length] of tokens in time, height and width, for rotary embeddings (M-RoPE, arXiv 2409.12191).

        `media` are the images of the sequence, with all of their tokens inside. A text token has the same position on
        all three axes. The tokens of an image begin at the next position, and differ by row and column. The position
        after an image is the position after its longer side.
        """
        import torch

        axes, position, end = torch.empty((3, length), dtype=torch.long), 0, 0
        for placed in media:
            rows, columns = self.grid(placed.image)
            axes[:, end : placed.start] = torch.arange(position, position + placed.start - end)
            position += placed.start - end
            row, column = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
            axes[:, placed.start : placed.stop] = position + torch.stack([torch.zeros_like(row), row, column]).flatten(
                1
            )
            position, end = position + max(rows, columns), placed.stop
        axes[:, end:] = torch.arange(position, position + length - end)
        return axes

    def place(self, tokens: Sequence[int], images: Sequence[Image]) -> tuple[list[int], list[RenderedImage]]:
        """Replace each pad of a prompt by the tokens of the pad's image. The prompt has a single pad for each image.
        Returns the tokens, and the place of each image.

        Raises ValueError unless there are as many pads as images.
        """
        if (pads := tokens.count(self.pad)) != len(images):
            raise ValueError(f"the prompt has {pads} pads, and {len(images)} images are given")
        remaining, expanded, media = iter(images), list[int](), list[RenderedImage]()
        for token in tokens if images else ():
            count = 1
            if token == self.pad:
                image = next(remaining)
                count = self.count(image)
                media.append(RenderedImage(len(expanded), len(expanded) + count, image))
            expanded += [token] * count
        return expanded if images else list(tokens), media

    def alone(self, image: Image) -> tuple[list[int], list[RenderedImage]]:
        """The tokens of a sequence with a single image between the model's markers, and the place of the image."""
        start, end = self._markers
        return self.place([token for token in (start, self.pad, end) if token is not None], [image])

    def reads_as(self, other: Vision) -> bool:
        """Whether each image has the same tokens with both image sides."""
        mine, theirs = ((vision.pad, vision.forbidden, vision._sizes()) for vision in (self, other))
        return mine == theirs

    def _sizes(self) -> tuple[int, int, int]:
        """The settings of the image processor for `_grid`."""
        processor = self.processor
        return (
            processor.patch_size * processor.merge_size,
            processor.size["shortest_edge"],
            processor.size["longest_edge"],
        )

    def save(self, folder: Path) -> None:
        """Write the files of an image processor to the folder of a saved model."""
        if folder != self.folder:
            shutil.copy(self.folder / _PROCESSOR, folder / _PROCESSOR)

    def __reduce__(self) -> tuple[Any, ...]:
        return Vision, (self.folder,)  # the copy loads the folder again

    def tensors(self, images: Sequence[Image], dtype: str = "bfloat16") -> dict[str, Any]:
        """The tensors of images for the model's forward pass, for all images together.

        The tensors are `pixel_values`, [patches, values of a patch] in `dtype`, and `image_grid_thw`, int64 [images,
        3]. A model in bfloat16 casts pixels to bfloat16 first of all, so pixels in bfloat16 lose no precision and take
        half of the memory. A model in float32 reads float32. Equal images are processed once. Raises ValueError for a
        damaged image.
        """
        import torch

        processor = self.processor
        merge, grids = processor.merge_size, [self.grid(image) for image in images]
        counts = [rows * columns * merge**2 for rows, columns in grids]
        values = 3 * processor.temporal_patch_size * processor.patch_size**2
        # One tensor for all: parts in float32 and their concatenation take four times the memory.
        pixels = torch.empty((sum(counts), values), dtype=getattr(torch, dtype))
        places = list(zip(images, torch.split(pixels, counts), strict=True))
        first = {image.uri: (image, patches) for image, patches in reversed(places)}
        self._write_all(list(first.values()))
        for image, patches in places:
            if patches is not (first_patches := first[image.uri][1]):
                patches.copy_(first_patches)
        return {
            "pixel_values": pixels,
            "image_grid_thw": torch.tensor([[1, rows * merge, columns * merge] for rows, columns in grids]),
        }

    @cached_property
    def _patches(self) -> PatchWriter:
        return PatchWriter(self.processor)

    def _write_all(self, places: Sequence[tuple[Image, Tensor]]) -> None:
        """Write the patches of several images at once: reading and resizing run in parallel, because they need no
        Python."""
        threads = min(len(places), os.cpu_count() or 1, _THREADS)
        if threads < 2 or not self._patches.agrees:
            for place in places:
                self._write(*place)
            return
        with ThreadPoolExecutor(threads, "agentrl-pixels") as pool:
            for done in [pool.submit(self._write, *place) for place in places]:
                done.result()

    def _write(self, image: Image, pixels: Tensor) -> None:
        """Write the patches of an image to `pixels`. Raises ValueError for a damaged file."""
        import torch
        from PIL import Image as Pillow

        try:
            with Pillow.open(io.BytesIO(image.data)) as opened:
                picture = opened.convert("RGB")
        except Exception as exc:  # the boundary of a file from anybody: Pillow raises any error
            raise ValueError(f"{image!r} is damaged, or too large to read: {one_line(exc)}") from exc
        if self._patches.agrees:
            with torch.inference_mode():  # an engine's tensors belong to this mode, but a new thread starts without
                self._patches.write(picture, *self.grid(image), pixels)
        else:
            pixels.copy_(self._features(image, picture))

    def _features(self, image: Image, picture: Any) -> Tensor:
        features: Mapping[str, Any] = self.processor(images=[picture], return_tensors="pt")
        merge, (rows, columns) = self.processor.merge_size, self.grid(image)
        if features["image_grid_thw"].tolist() != [[1, rows * merge, columns * merge]]:
            actual = features["image_grid_thw"].tolist()
            raise ValueError(f"{image!r} was counted as {rows} x {columns} tokens, and its patches are {actual}")
        pixels: Tensor = features["pixel_values"]
        return pixels


def _grid(height: int, width: int, processor: Any) -> tuple[int, int]:
    """The numbers of rows and columns of merged patches after Qwen-VL's resize of an image (smart_resize of
    transformers)."""
    side, size = processor.patch_size * processor.merge_size, processor.size
    rows, columns, least, most = round(height / side), round(width / side), size["shortest_edge"], size["longest_edge"]
    if rows * columns * side**2 > most:
        factor = math.sqrt(height * width / most)
        return max(1, math.floor(height / factor / side)), max(1, math.floor(width / factor / side))
    if rows * columns * side**2 < least:
        factor = math.sqrt(least / (height * width))
        return math.ceil(height * factor / side), math.ceil(width * factor / side)
    return rows, columns


def vision_of(model: Any, source: str) -> Vision | None:
    """The image side of a model that was loaded from `source`. None for a model that reads text only, as Qwen3.5 does
    here."""
    return load_vision(source) if reads_images(model) else None


def load_vision(model: str) -> Vision | None:
    """The image side of a model, from the folder that `folder_of` returns. An adapter has the image side of its base
    model. None for a model that reads text only, for a model of an unknown family, and for a folder without an image
    processor."""
    if model in SEEDED:
        return Vision(tiny_vl.FOLDER) if model == "tiny-vl" else None
    folder = folder_of(model, weights=False)
    if is_adapter(folder):
        return load_vision(base_of(folder))
    config = folder / "config.json"
    reads_images = config.is_file() and _json(config).get("model_type") in _FAMILY
    return Vision(folder) if reads_images and (folder / _PROCESSOR).is_file() else None


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError) as exc:
        raise ConfigError(f"{path} cannot be read: {exc}") from exc
    return value if isinstance(value, dict) else {}
