"""The check in every run: 1 bridge in 64 is compared with a render of the whole conversation.

Certification learns which earlier messages a template reads. A template may read more than its probes show.
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
    """The common state of all uses of a template."""

    every: int = CHECKED_EVERY
    """1 bridge in `every` is compared."""
    differed: bool = False
    """Whether a bridge differed. From then on every bridge is made from the whole conversation."""

    def is_due(self, history: Sequence[Message], new: Sequence[Message]) -> bool:
        """Whether this bridge is compared. The messages decide, so a run repeats exactly."""
        texts = [str(len(history)), *(str(message.get("content")) for message in new)]
        return zlib.crc32("\0".join(texts).encode(errors="replace")) % self.every == 0

    def differs(self, template: Template, bridged: str, expected: str) -> None:
        """Record a difference between a bridge and a render of the whole conversation, and log a warning."""
        self.differed = True
        _log.warning(
            "a bridge of %s differs from the render of the whole conversation: it is %r, not %r; "
            "every bridge is rendered from the whole conversation from now on, which takes longer. Report this",
            template.name,
            bridged[-80:],
            expected[-80:],
        )
