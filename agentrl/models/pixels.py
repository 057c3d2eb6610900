"""Qwen-VL's image processing with few passes over memory: each picture is resized, cut into patches, and looked up.

transformers' processors rescale and normalise in float32, picture by picture. A value of 8 bits has 256 results in each
channel, so they are looked up, in the type that is wanted. A processor is tried once against this; if a bit differs, it
is used itself.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


class PatchWriter:
    """Writes the patches of pictures as an image processor of the Qwen-VL family makes them."""

    def __init__(self, processor: Any) -> None:
        self._processor = processor
        self._tables: dict[str, Any] = {}
        self.is_exact = self._agrees()
        """Whether the processor's pixels are equal, bit for bit. Else it must be used itself."""

    def write(self, picture: Any, rows: int, columns: int, to: Tensor) -> None:
        """Fill `to` [patches, values] with the patches of an RGB picture of PIL, of `rows` x `columns` merged ones."""
        import numpy as np
        import torch

        side, merge = self._processor.patch_size, self._processor.merge_size
        resized = picture.resize((columns * merge * side, rows * merge * side), self._processor.resample)
        cut = np.asarray(resized).reshape(rows, merge, side, columns, merge, side, 3)
        places = np.ascontiguousarray(cut.transpose(0, 3, 1, 4, 6, 2, 5))  # row, column, row, column in it, channel
        whole = to.view(*places.shape[:5], self._processor.temporal_patch_size, side, side)
        for channel, values in enumerate(self._table(to.dtype)):
            found = torch.from_numpy(values.take(places[:, :, :, :, channel], mode="clip")).view(to.dtype)
            whole[:, :, :, :, channel] = found.unsqueeze(4)

    def _table(self, dtype: Any) -> Any:
        """[3, 256] of numpy: what becomes of a value in each channel. A half-precision number is an integer there."""
        import torch

        if str(dtype) not in self._tables:
            values = self._ramp().to(dtype)
            self._tables[str(dtype)] = (values.view(torch.int16) if values.element_size() == 2 else values).numpy()
        return self._tables[str(dtype)]

    def _ramp(self) -> Tensor:
        from PIL import Image as Pillow

        side, merge = self._processor.patch_size, self._processor.merge_size
        width = side * merge
        found = [Pillow.new("RGB", (width, width), (value,) * 3) for value in range(256)]
        pixels = self._processor(images=found, return_tensors="pt", do_resize=False)["pixel_values"]
        shape = 256, merge**2, 3, self._processor.temporal_patch_size * side**2
        values: Tensor = pixels.view(*shape)[:, 0, :, 0].T.contiguous()
        return values

    def _agrees(self) -> bool:
        import torch
        from PIL import Image as Pillow

        noise = random.Random(0).randbytes(3 * 150 * 90)
        picture = Pillow.frombytes("RGB", (150, 90), noise)
        try:
            features = self._processor(images=[picture], return_tensors="pt")
            expected, merge = features["pixel_values"], self._processor.merge_size
            _, rows, columns = features["image_grid_thw"][0].tolist()
            found = torch.empty_like(expected)
            self.write(picture, rows // merge, columns // merge, found)
        except Exception:  # noqa: BLE001 - the boundary of foreign processors: one with other settings raises anything
            return False
        return torch.equal(found, expected)
