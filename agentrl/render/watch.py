"""The check that goes on in every run: one bridge in 64 is compared with a render of the whole conversation.

Certification finds out which earlier messages a template reads. A template may read more than its probes show.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agentrl.render.memo import CHECKED_EVERY, Check
from agentrl.render.tail import Tail
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

    def compared(self, template: Template, bridged: Callable[[], Tail], written: Tail) -> Check:
        """Compare a bridge with what the whole conversation gives. The first difference logs a warning."""
        bridge = bridged()
        if bridge == written:
            return "equal"
        if template.tells_time and bridged() != bridge:  # a second has passed
            return ""
        self.differed = True
        _log.warning(
            "a bridge of %s differs from the render of the whole conversation: it is %r, not %r; "
            "every bridge is rendered from the whole conversation from now on, which takes longer. Report this",
            template.name,
            (bridge.observation + bridge.prompt)[-80:],
            (written.observation + written.prompt)[-80:],
        )
        return "different"
