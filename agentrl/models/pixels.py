"""Qwen-VL's image processing with few passes over memory, identical bit for bit to transformers with torchvision.

SGLang's server has torchvision. torchvision resizes with torch, so this module resizes with torch even without
torchvision. transformers' processor without torchvision would resize with Pillow. Pillow's pixels differ by 1 of 255 in
a screenshot, and by up to 26 in noise. Each processor is tested once against this code; without torchvision, the test
leaves resizing out. If the results differ, the processor itself is used.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

_ROUNDING = 1e-5
"""The allowed error of a processor's Pillow backend. The backend scales and shifts pixels in two steps, and rounds
between the steps."""


class PatchWriter:
    """Writes the patches of images in the format of the Qwen-VL family's image processors. Safe to share between
    threads."""

    def __init__(self, processor: Any) -> None:
        self._processor = processor
        self.agrees = self._agrees()
        """Whether the processor computes the same pixels as this class. Otherwise the processor itself must be used."""

    def write(self, picture: Any, rows: int, columns: int, to: Tensor) -> None:
        """Write the patches of an RGB image (PIL) to the tensor `to` [patches, values]. The image has `rows` x
        `columns` merged patches."""
        import numpy as np
        import torch
        from torch.nn.functional import interpolate

        side, merge = self._processor.patch_size, self._processor.merge_size
        size, values = (rows * merge * side, columns * merge * side), torch.from_numpy(np.array(picture))
        image = values.permute(2, 0, 1)[None]
        resized = image if image.shape[2:] == size else interpolate(image, size, mode="bicubic", antialias=True)
        cut = resized[0].reshape(3, rows, merge, side, columns, merge, side)
        places = cut.permute(1, 4, 2, 5, 0, 3, 6)  # row, column, row and column within, channel, y, x
        whole = to.view(rows, columns * merge**2, 3, self._processor.temporal_patch_size, side**2)
        mean, deviation = self._scale()
        for row, patches in zip(places, whole, strict=True):  # a row of patches fits into the processor's cache
            pixels = row.contiguous().view(-1, 3, side**2).float()
            patches.copy_(pixels.sub_(mean).div_(deviation).unsqueeze(2))

    def _scale(self) -> tuple[Tensor, Tensor]:
        """The mean and the standard deviation [3, 1] of pixels from 0 to 255. transformers, too, merges scaling and
        shifting into a single step."""
        import torch

        processor, unit = self._processor, 1.0 / self._processor.rescale_factor
        return torch.tensor(processor.image_mean)[:, None] * unit, torch.tensor(processor.image_std)[:, None] * unit

    def _agrees(self) -> bool:
        import torch
        from PIL import Image as Pillow
        from transformers.utils import is_torchvision_available

        processor, exact = self._processor, is_torchvision_available()
        try:
            unit = processor.patch_size * processor.merge_size
            width, height = (150, 90) if exact else (4 * unit, 3 * unit)
            picture = Pillow.frombytes("RGB", (width, height), random.Random(0).randbytes(3 * width * height))
            features = processor(images=[picture], return_tensors="pt", do_resize=exact)
            expected, (_, rows, columns) = features["pixel_values"], features["image_grid_thw"][0].tolist()
            written_patches = torch.empty_like(expected)
            self.write(picture, rows // processor.merge_size, columns // processor.merge_size, written_patches)
            off = float((written_patches - expected).abs().max())
            return off == 0 if exact else off < _ROUNDING and processor.resample == Pillow.Resampling.BICUBIC
        except Exception:  # noqa: BLE001 - the boundary of foreign processors: unusual settings raise any error
            return False
