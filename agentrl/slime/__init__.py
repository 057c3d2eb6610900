"""agentrl under slime: `--custom-generate-function-path agentrl.adapt`.

The only place that knows slime, and it knows it by the shape of `args` and `sample` alone: slime is never imported.
"""

from __future__ import annotations

from agentrl.slime.config import SlimeConfig
from agentrl.slime.sample import from_sample, to_sample

__all__ = ["SlimeConfig", "from_sample", "to_sample"]
