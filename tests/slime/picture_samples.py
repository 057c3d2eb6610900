"""slime's samples with pictures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.slime.conftest import Sample as TextSample


@dataclass
class Sample(TextSample):
    multimodal_train_inputs: dict[str, Any] | None = None
