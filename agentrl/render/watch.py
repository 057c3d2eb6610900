"""The check that goes on in every run: one bridge in 64 is compared with a render of the whole conversation.

Certification finds out which earlier messages a template reads. A template may read more than its probes show.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from agentrl.render.memo import CHECKED_EVERY
from agentrl.render.template import Template
from agentrl.types import Message

_log = logging.getLogger("agentrl")


@dataclass(slots=True)
class Watch:
    """What is common to all uses of one template."""

    every: int = CHECKED_EVERY
    """One bridge in so many is compared."""
    differed: bool = False
    """Whether a bridge differed. From then on every bridge is made from the whole conversation."""

    def is_due(self, history: Sequence[Message], new: Sequence[Message]) -> bool:
        """Whether this bridge is compared. The messages decide, so that a run repeats exactly."""
        texts = [str(len(history)), *(str(message.get("content")) for message in new)]
        return zlib.crc32("\0".join(texts).encode(errors="replace")) % self.every == 0

    def differs(self, template: Template, bridged: str, expected: str) -> None:
        """Note that a bridge differs from what the whole conversation gives, and log a warning."""
        self.differed = True
        _log.warning(
            "a bridge of %s differs from the render of the whole conversation: it is %r, not %r; "
            "every bridge is rendered from the whole conversation from now on, which takes longer. Report this",
            template.name,
            bridged[-80:],
            expected[-80:],
        )
